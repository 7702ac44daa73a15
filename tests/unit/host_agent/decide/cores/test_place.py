# SPDX-License-Identifier: Apache-2.0
"""A decision that keeps parts of the last one is the same as a new one, and costs what has changed."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.conf.memory import MemoryOptions
from host_agent.conf.options import Options
from host_agent.decide.cores import choose, ranking
from host_agent.decide.cores.placement import CoarseDecision, decide, place
from host_agent.model.assignment import Decision, Guest, Observation
from host_agent.model.process import Process, RamRange
from host_agent.model.workload import Activity, parse
from placement_traits import presets
from placement_traits.names import MemoryPolicy

TOPOLOGY = presets.load("epyc-7763-nps4").topology
NODES = sorted(TOPOLOGY.node_ids)
OPTIONS = Options(memory=MemoryOptions(margin_mb=256))
PROCESS = Process(1, 1, "0-3", ())
AMOUNTS = st.sampled_from([0, 1, 200, 600, 1500])
FREE = st.lists(st.integers(0, 4000), min_size=len(NODES), max_size=len(NODES))

servers = st.builds(
    dict,
    number=st.integers(0, 7),
    kind=st.sampled_from(["sheep", "rabbit", "devil"]),
    policy=st.sampled_from(list(MemoryPolicy)),
    vcpus=st.sampled_from([1, 2, 40]),
    critical=st.sampled_from([False, False, False, True]),
)
held = st.dictionaries(st.sampled_from(NODES), AMOUNTS, max_size=2)
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["pages", "pages", "free", "come", "go", "pause", "homes", "vanish", "device"]
        ),
        st.integers(0, 7),
        held,
        FREE,
        servers,
    ),
    min_size=1,
    max_size=5,
)


def ram(held_mb: dict[int, int]) -> tuple[RamRange, ...]:
    """Guest memory with so many MiB on each node."""
    resident = tuple((node, mb * 1024) for node, mb in sorted(held_mb.items()))
    return (RamRange(0x1000, 0x2000, (), 4, 0, resident),)


def guest(drawn: dict[str, object], held_mb: dict[int, int]) -> Guest:
    """A server that runs."""
    specs = {
        **(LC_SPECS if drawn["critical"] else BE_SPECS),
        "numa_ext:interference_class": drawn["kind"],
        "numa_ext:memory_policy": drawn["policy"],
    }
    number = int(str(drawn["number"]))
    floats = {"vcpus": drawn["vcpus"], "shared": "0-127"}
    place_of = {"cpus": (number,), "vcpus": 1} if drawn["critical"] else floats
    uuid = f"00000000-0000-4000-8000-{number:012}"
    server = Server(f"s{number}", specs, uuid=uuid, **place_of)  # type: ignore[arg-type]
    return Guest(parse(server.xml, Activity.RUNNING), PROCESS, ram(held_mb))


def host(guests: Sequence[Guest], free_mb: Sequence[int]) -> Observation:
    """One server of each UUID."""
    by_uuid = {found.uuid: found for found in guests}
    return Observation(TOPOLOGY, tuple(by_uuid.values()), dict(zip(NODES, free_mb, strict=True)))


def homes(decision: Decision) -> dict[str, tuple[int, ...]]:
    """As the agent keeps them."""
    return {found.uuid: found.nodes for found in decision.assignments if not found.bound}


@given(st.lists(st.tuples(servers, held), min_size=1, max_size=6), FREE, steps)
def test_a_decision_after_another_is_the_same_as_a_new_one(
    drawn: list[tuple[dict[str, object], dict[int, int]]],
    free_mb: list[int],
    changes: list[tuple[str, int, dict[int, int], list[int], dict[str, object]]],
) -> None:
    """Servers of all kinds and policies, on nodes that are nearly full, that come, go, and whose pages move."""
    now = host([guest(*each) for each in drawn], free_mb)
    known: dict[str, tuple[int, ...]] = {}
    last = place(now, known, OPTIONS)
    for what, which, held_mb, free, other in changes:
        guests = list(now.guests)
        at = which % max(1, len(guests))
        match what:
            case "free":
                free_mb = free
            case "come":
                guests.append(guest(other, held_mb))
            case "homes":
                known = homes(last.decision)
            case _ if not guests:
                pass
            case "pages":
                guests[at] = replace(guests[at], ram=ram(held_mb))
            case "go":
                guests.pop(at)
            case "pause":
                paused = replace(guests[at].workload, activity=Activity.PAUSED)
                guests[at] = replace(guests[at], workload=paused)
            case "vanish":
                seen = None if guests[at].process else PROCESS
                guests[at] = replace(guests[at], process=seen)
            case "device":
                guests[at] = replace(guests[at], gpus={"0000:01:00.0": which % 4})
        now = host(guests, free_mb)
        last = place(now, known, OPTIONS, last)
        assert last.decision == decide(now, known, OPTIONS)


def many() -> tuple[Observation, dict[str, tuple[int, ...]], CoarseDecision]:
    """Forty servers at home, two of them latency-critical."""
    drawn = {"kind": "sheep", "policy": MemoryPolicy.LOCAL, "vcpus": 2}
    guests = [
        guest({**drawn, "number": number, "critical": number < 2}, {number % 4: 600})
        for number in range(40)
    ]
    now = host(guests, [40_000] * len(NODES))
    first = place(now, {}, OPTIONS)
    known = homes(first.decision)
    return now, known, place(now, known, OPTIONS)


def test_only_servers_whose_pages_moved_are_ranked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the pages of one server made the decision a new one for all."""
    now, known, last = many()
    ranked: list[str] = []
    rank = ranking.rank

    def counted(occupancy: object, server: object, *more: object) -> object:
        ranked.append(server.name)  # type: ignore[attr-defined]
        return rank(occupancy, server, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(choose, "rank", counted)
    (moved,) = (found for found in now.guests if found.uuid.endswith("07"))
    guests = [replace(g, ram=ram({0: 300, 3: 300})) if g is moved else g for g in now.guests]
    found = place(host(guests, [39_000] * len(NODES)), known, OPTIONS, last)
    assert set(ranked) == {moved.uuid}
    assert found.decision is last.decision, "what has not changed is the same object"


def test_a_server_that_leaves_its_place_makes_those_after_it_choose_again() -> None:
    """The second goes where the first was: nothing else of it has changed."""
    drawn = {"kind": "devil", "policy": MemoryPolicy.LOCAL, "vcpus": 2, "critical": False}
    first, second = (guest({**drawn, "number": number}, {0: 200}) for number in range(2))
    now = host([first, second], [4000] * len(NODES))
    last = place(now, {}, OPTIONS)
    assert [found.nodes for found in last.decision.assignments] == [(0,), (1,)]
    now = host([replace(first, ram=ram({3: 5000})), second], [4000] * len(NODES))
    found = place(now, {}, OPTIONS, last)
    assert [each.nodes for each in found.decision.assignments] == [(3,), (0,)]
    assert found.decision == decide(now, {}, OPTIONS)
