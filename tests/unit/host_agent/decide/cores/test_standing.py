# SPDX-License-Identifier: Apache-2.0
"""A decision stands while nothing that it was made of has changed, and no longer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.conf.memory import MemoryOptions
from host_agent.conf.options import Options
from host_agent.decide.cores.placement import decide
from host_agent.decide.cores.standing import Standing, standing
from host_agent.model.assignment import Guest, Observation
from host_agent.model.process import Process, RamRange, Role, Thread
from host_agent.model.workload import Activity, parse
from placement_traits import presets
from placement_traits.names import MemoryPolicy

TOPOLOGY = presets.load("epyc-7763-nps4").topology
MARGIN = 256
OPTIONS = Options(memory=MemoryOptions(margin_mb=MARGIN))


def ram(node: int, mb: int = 600) -> tuple[RamRange, ...]:
    return (RamRange(0x1000, 0x2000, (), 4, 0, ((node, mb * 1024),)),)


def guest(title: str, *, node: int = 0, critical: bool = False) -> Guest:
    specs = LC_SPECS if critical else BE_SPECS
    server = Server(title, specs, cpus=(1,), vcpus=1) if critical else Server(title, specs)
    return Guest(parse(server.xml, Activity.RUNNING), Process(1, 1, "0-3", ()), ram(node))


HOST = Observation(
    TOPOLOGY,
    (guest("lc", critical=True), guest("a"), guest("b", node=1)),
    dict.fromkeys(TOPOLOGY.node_ids, 4096),
)


def changed(at: int, **what: object) -> Observation:
    """The host with one guest changed."""
    guests = list(HOST.guests)
    guests[at] = replace(guests[at], **what)
    return replace(HOST, guests=tuple(guests))


def free(node: int, mb: int) -> Observation:
    return replace(HOST, free_mb={**HOST.free_mb, node: mb})


def kept(host: Observation = HOST) -> Standing:
    return standing(host, decide(host, {}, OPTIONS))


THREADS = (Thread(7, Role.VCPU, 0, "CPU 0/KVM", "0-3"),)


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(replace(HOST), id="the same"),
        pytest.param(changed(1, ram_age_s=99.0, sampled={0: 0.9, 1: 0.1}), id="a new sample"),
        pytest.param(changed(1, process=Process(2, 2, "0-3", THREADS)), id="other threads"),
        pytest.param(free(0, 4096 - 1500), id="less free memory, and enough for all that comes"),
    ],
)
def test_what_a_decision_does_not_ask_for_changes_none(now: Observation) -> None:
    assert kept().holds(now, MARGIN)
    assert decide(now, {}, OPTIONS) == kept().decision


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(changed(1, ram=ram(2)), id="pages elsewhere"),
        pytest.param(changed(1, process=None), id="its process has gone"),
        pytest.param(changed(1, gpus={"0000:01:00.0": 3}), id="a device"),
        pytest.param(
            changed(1, workload=replace(HOST.guests[1].workload, activity=Activity.PAUSED)),
            id="paused",
        ),
        pytest.param(changed(0, workload=guest("other").workload), id="another server"),
        pytest.param(replace(HOST, guests=HOST.guests[:2]), id="a server has gone"),
        pytest.param(
            replace(HOST, topology=replace(TOPOLOGY, cores=TOPOLOGY.cores[:-1])), id="a core less"
        ),
        pytest.param(free(0, MARGIN + 100), id="less free memory than what was granted"),
        pytest.param(replace(HOST, free_mb={0: 4096}), id="free memory is not known"),
    ],
)
def test_what_a_decision_was_made_of_changes_it(now: Observation) -> None:
    assert not kept().holds(now, MARGIN)


@pytest.mark.parametrize(("before_mb", "now_mb"), [(MARGIN + 1, MARGIN), (0, -1)])
def test_it_ends_where_free_memory_passes_a_mark(before_mb: int, now_mb: int) -> None:
    """A node that has no more than the margin lets no page in; where promises are not covered, pages leave."""
    assert not kept(free(2, before_mb)).holds(free(2, now_mb), MARGIN)
    assert not kept(free(2, now_mb)).holds(free(2, before_mb), MARGIN)


def test_the_margin_stays_free_behind_what_was_granted_but_for_half_of_it() -> None:
    """Server "a" is on node 3 alone, and comes to another one with 600 MiB."""
    host = replace(HOST, guests=(HOST.guests[0], replace(guest("a"), ram=ram(3))))
    host = replace(host, free_mb={0: 5000, 1: 5000, 2: 5000, 3: -1})
    found = kept(host)
    (node,) = (n for n in host.free_mb if found.left_mb[n] < found.room_mb[n])
    assert found.room_mb[node] - found.left_mb[node] == 600
    enough = 600 + MARGIN + 1
    assert found.holds(replace(host, free_mb={**host.free_mb, node: enough}), MARGIN)
    assert not found.holds(replace(host, free_mb={**host.free_mb, node: enough - 1}), MARGIN)
    crowded = kept(replace(host, free_mb={**host.free_mb, node: enough}))
    assert crowded.holds(
        replace(host, free_mb={**host.free_mb, node: enough - MARGIN // 2}), MARGIN
    )
    assert not crowded.holds(
        replace(host, free_mb={**host.free_mb, node: enough - MARGIN // 2 - 1}), MARGIN
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(TOPOLOGY.node_ids)),
            st.sampled_from([200, 600, 1500]),
            st.sampled_from(list(MemoryPolicy)),
        ),
        min_size=1,
        max_size=4,
    ),
    st.lists(
        st.integers(0, 3000), min_size=2 * len(TOPOLOGY.nodes), max_size=2 * len(TOPOLOGY.nodes)
    ),
    st.booleans(),
)
def test_less_memory_that_leaves_the_margin_changes_no_decision(
    drawn: list[tuple[int, int, MemoryPolicy]], amounts: list[int], settled: bool
) -> None:
    """Servers with memory anywhere, at their homes or on their way, of all policies, on nodes that are nearly full."""
    servers = [
        Server(f"s{number}", {**BE_SPECS, "numa_ext:memory_policy": policy})
        for number, (_, _, policy) in enumerate(drawn)
    ]
    guests = tuple(
        Guest(parse(server.xml, Activity.RUNNING), Process(1, 1, "0-3", ()), ram(node, mb))
        for server, (node, mb, _) in zip(servers, drawn, strict=True)
    )
    before = dict(zip(TOPOLOGY.node_ids, amounts, strict=False))
    drops = dict(zip(TOPOLOGY.node_ids, amounts[len(before) :], strict=True))
    host = Observation(TOPOLOGY, guests, before)
    first = decide(host, {}, OPTIONS)
    homes = {one.uuid: one.nodes for one in first.assignments} if settled else {}
    found = standing(host, decide(host, homes, OPTIONS))
    less = {
        node: mb - min(drops[node], max(0, int(found.left_mb[node]) - MARGIN - 1))
        for node, mb in before.items()
    }
    now = replace(host, free_mb=less)
    assert found.holds(now, MARGIN)
    assert decide(now, homes, OPTIONS) == found.decision
