# SPDX-License-Identifier: Apache-2.0
"""Wanted and actual: what differs, and what is never allowed."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.conf.options import Options
from host_agent.decide.cores.placement import decide
from host_agent.model.assignment import Assignment, Guest, Observation, check, difference
from host_agent.model.process import Pin, Process, RamRange, Role, Target, Thread
from host_agent.model.workload import Activity, parse
from placement_traits.errors import InvalidValueError
from placement_traits.names import Tier
from tests.support.fake_host import FakeHost

TOPOLOGY = four_nodes()


def guest(
    server: Server, ram: tuple[RamRange, ...] = (), mems: str = "0-3", cpus: str = "0-7"
) -> Guest:
    threads = (
        Thread(10, Role.EMULATOR, -1, "qemu", cpus),
        Thread(11, Role.VCPU, 0, "CPU 0/KVM", cpus),
        Thread(12, Role.VHOST, -1, "vhost-10", cpus),
    )
    return Guest(parse(server.xml, Activity.RUNNING), Process(10, 1, mems, threads), ram)


def test_pins_outside_of_novas_cpus_are_refused() -> None:
    dedicated = guest(Server("lc", LC_SPECS, cpus=(3,)))
    floating = guest(Server("be", BE_SPECS, shared="0,2"))
    for seen, cpu in ((dedicated, 5), (floating, 1), (floating, 99)):
        wrong = Assignment(seen.uuid, vcpu_cpus={0: frozenset({cpu})})
        with pytest.raises(InvalidValueError, match="pin of vCPU 0"):
            check(wrong, seen, TOPOLOGY)
    check(Assignment(floating.uuid, vcpu_cpus={0: frozenset({2})}), floating, TOPOLOGY)


def test_an_empty_pin_or_an_unknown_node_is_refused() -> None:
    seen = guest(Server("be", BE_SPECS, shared=""))
    with pytest.raises(InvalidValueError):
        check(Assignment(seen.uuid, vcpu_cpus={0: frozenset()}), seen, TOPOLOGY)
    with pytest.raises(InvalidValueError, match="memory share"):
        check(Assignment(seen.uuid, memory_shares={7: 1.0}), seen, TOPOLOGY)


def test_only_threads_that_differ_are_pinned() -> None:
    seen = guest(Server("lc", LC_SPECS, cpus=(3,)), cpus="3")
    desired = Assignment(seen.uuid, vcpu_cpus={0: frozenset({3})}, emulator_cpus=frozenset({3}))
    assert difference(desired, seen, 0.01).pins == ()
    wide = guest(Server("lc", LC_SPECS, cpus=(3,)))
    assert difference(desired, wide, 0.01).pins == (Pin(10, "3"), Pin(11, "3"), Pin(12, "3"))
    keep = dataclasses.replace(desired, emulator_cpus=None)
    assert difference(keep, wide, 0.01).pins == (Pin(11, "3"),)


def test_each_bound_range_goes_to_the_node_of_its_policy() -> None:
    ram = (
        RamRange(0x1000, 0x2000, (1,), 4, 0, ((0, 50), (1, 50))),
        RamRange(0x3000, 0x4000, (2,), 4, 0, ((2, 100),)),
        RamRange(0x5000, 0x6000, (1, 2), 4, 0, ((3, 100),)),
    )
    seen = guest(Server("lc", LC_SPECS, cpus=(3,)), ram)
    desired = Assignment(seen.uuid, memory_shares={1: 0.5, 2: 0.5}, bound=True)
    found = difference(desired, seen, 0.01)
    assert found.targets == (
        Target(0x1000, 0x2000, ((1, 1.0),)),
        Target(0x3000, 0x4000, ((2, 1.0),)),
    )
    assert found.misplaced == 0.5


def test_what_huge_pages_cannot_divide_is_left() -> None:
    """63 huge pages do not go into four equal parts; a guest that was asked to try moved nothing, for ever."""
    quarters = dict.fromkeys(range(4), 0.25)
    parts = ((0, 16 * 2048), (1, 16 * 2048), (2, 16 * 2048), (3, 15 * 2048))
    seen = guest(
        Server("be", BE_SPECS, shared=""), (RamRange(0, 63 << 21, (), 4, 63 << 11, parts),)
    )
    desired = Assignment(seen.uuid, memory_shares=quarters)
    assert difference(desired, seen, 0.01).targets == ()
    two_more = ((0, 18 * 2048), (1, 16 * 2048), (2, 16 * 2048), (3, 13 * 2048))
    worse = guest(
        Server("be", BE_SPECS, shared=""), (RamRange(0, 63 << 21, (), 4, 63 << 11, two_more),)
    )
    assert difference(desired, worse, 0.01).targets
    home = Assignment(seen.uuid, memory_shares={0: 1.0})
    one_away = ((0, 62 * 2048), (1, 2048))
    nearly = guest(
        Server("be", BE_SPECS, shared=""), (RamRange(0, 63 << 21, (), 4, 63 << 11, one_away),)
    )
    assert difference(home, nearly, 0.01).targets, "one page that is not at home can go home"


def test_a_node_outside_the_cpuset_is_never_a_target() -> None:
    ram = (RamRange(0x1000, 0x2000, (), 4, 0, ((0, 100),)),)
    seen = guest(Server("be", BE_SPECS, shared=""), ram, mems="0-1")
    assert difference(Assignment(seen.uuid, memory_shares={3: 1.0}), seen, 0.01).targets == ()
    assert difference(Assignment(seen.uuid, memory_shares={1: 1.0}), seen, 0.01).targets


servers = st.lists(
    st.one_of(
        st.builds(
            lambda cpu: Server("lc", LC_SPECS, cpus=(cpu,), node=cpu // 2),
            st.sampled_from([1, 3, 5, 7]),
        ),
        st.builds(
            lambda vcpus, shared: Server("be", BE_SPECS, vcpus=vcpus, shared=shared),
            st.integers(1, 6),
            st.sampled_from(["0,2,4,6", "0", "4,6", "2,4"]),
        ),
    ),
    max_size=8,
    unique_by=lambda server: server.cpus or server.uuid,
)


@settings(deadline=None)  # the machine is shared
@given(servers, st.dictionaries(st.integers(0, 3), st.integers(0, 3000)))
def test_every_decision_is_allowed_and_stable(booted: list[Server], free: dict[int, int]) -> None:
    """Whatever runs: nothing leaves nova's CPUs, shares sum to 1, and deciding again changes nothing."""
    host = FakeHost(TOPOLOGY)
    guests = []
    for server in booted:
        host.boot(server)
        workload = parse(server.xml, Activity.RUNNING)
        guests.append(Guest(workload, host.process(server.uuid), host.guest_ram(server.uuid)))
    observation = Observation(TOPOLOGY, tuple(guests), free)
    decided = decide(observation, {}, Options())
    assert not decided.unplaced
    critical = {
        TOPOLOGY.l3_of_cpu(cpu)
        for desired in decided.assignments
        if desired.partition and desired.partition.tier == Tier.LC
        for chosen in desired.vcpu_cpus.values()
        for cpu in chosen
    }
    for desired in decided.assignments:
        seen = observation.get(desired.uuid)
        assert seen is not None
        check(desired, seen, TOPOLOGY)
        if desired.memory_shares is not None:
            assert sum(desired.memory_shares.values()) == pytest.approx(1.0)
        assert desired.partition is not None
        for l3, level in desired.partition.mba_percent.items():
            assert level == (50 if l3 in critical else 100)
    home_nodes = {
        desired.uuid: desired.nodes for desired in decided.assignments if not desired.bound
    }
    again = decide(observation, home_nodes, Options())
    assert {w.uuid: w.nodes for w in again.assignments if not w.bound} == home_nodes
