# SPDX-License-Identifier: Apache-2.0
"""Floating servers' memory over many rounds: the rule decides, pages are moved, the rule looks again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.conf.memory import MemoryOptions
from host_agent.conf.options import Options
from host_agent.decide.cores.placement import decide
from host_agent.decide.pages.policy import Room
from host_agent.model.assignment import Assignment, Guest, Observation
from host_agent.model.process import Process, RamRange
from host_agent.model.workload import Activity, Workload, parse
from placement_traits.names import MemoryPolicy

TOPOLOGY = four_nodes()
NODES = TOPOLOGY.node_ids
MARGIN_MB = 256
ROUNDING_MB = 1.0
# Two servers that change places do it through the free room: this keeps the rounds few.
UNIT_MB = 64

Memory = Mapping[int, float]


@dataclass
class Closed:
    """A host whose pages go where they should be at once.

    :param capacity_mb: node -> MiB that are free or hold floating servers
    :param promised_mb: node -> MiB that nova promised to a bound server there, not touched yet
    :param servers: floating servers, with node -> MiB
    :param bound_specs: flavor of the bound servers
    """

    capacity_mb: Memory
    promised_mb: Memory
    servers: list[tuple[Workload, Memory]]
    bound_specs: dict[str, str] = field(default_factory=lambda: LC_SPECS)
    home_nodes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    strict: list[Guest] = field(init=False)

    def __post_init__(self) -> None:
        self.strict = [
            Guest(
                parse(
                    Server(
                        "bound",
                        self.bound_specs,
                        cpus=(2 * node + 1,),
                        node=node,
                        memory_mb=int(mb),
                    ).xml,
                    Activity.RUNNING,
                )
            )
            for node, mb in self.promised_mb.items()
        ]

    def free(self, node: int) -> float:
        return self.capacity_mb[node] - sum(held.get(node, 0.0) for _, held in self.servers)

    def turn(self) -> float:
        """Decide and move; returns MiB moved."""
        guests = [
            Guest(workload, Process(1, 1, "0-3", ()), (ram(held),))
            for workload, held in self.servers
        ]
        free = {node: int(self.free(node)) for node in NODES}
        seen = Observation(TOPOLOGY, (*self.strict, *guests), free)
        decision = decide(seen, self.home_nodes, Options(memory=MemoryOptions(margin_mb=MARGIN_MB)))
        self.home_nodes = {
            found.uuid: found.nodes for found in decision.assignments if not found.bound
        }
        before = self.servers
        self.servers = [
            (workload, moved(held, decision.get(workload.uuid))) for workload, held in before
        ]
        return sum(
            max(0.0, new.get(node, 0.0) - old.get(node, 0.0))
            for (_, old), (_, new) in zip(before, self.servers, strict=True)
            for node in NODES
        )

    def held(self, node: int) -> float:
        return sum(held.get(node, 0.0) for _, held in self.servers)


def ram(held: Memory) -> RamRange:
    return RamRange(
        0x1000, 0x2000, (), 4, 0, tuple((n, round(mb * 1024)) for n, mb in held.items())
    )


def moved(held: Memory, desired: Assignment | None) -> Memory:
    if desired is None or desired.memory_shares is None:
        return held
    total = sum(held.values())
    return {node: share * total for node, share in desired.memory_shares.items()}


def floating(number: int, policy: str = "local") -> Workload:
    specs = {**BE_SPECS, "numa_ext:memory_policy": policy}
    server = Server("be", specs, shared="0,2,4,6", uuid=str(UUID(int=number)))
    return parse(server.xml, Activity.RUNNING)


def test_a_margin_that_is_half_used_moves_no_server_to_and_fro() -> None:
    """Two servers that live on node 0 fill it into its margin; in the other L3 domains are latency-critical ones."""
    closed = Closed(
        dict.fromkeys(NODES, 4096.0),
        dict.fromkeys((1, 2, 3), 64.0),
        [(floating(1), {0: 2000.0}), (floating(2), {0: 2000.0})],
    )
    closed.home_nodes = {workload.uuid: (0,) for workload, _ in closed.servers}
    assert sum(closed.turn() for _ in range(200)) == 0


def test_one_deficit_is_covered_once() -> None:
    """A bound server was promised 100 MiB more than are free on node 0: one floating server makes room, not all."""
    closed = Closed(
        dict.fromkeys(NODES, 4096.0),
        {0: 300.0},
        [(floating(number), {0: 1300.0}) for number in range(3)],
        bound_specs={"hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"},
    )
    closed.home_nodes = {workload.uuid: (0,) for workload, _ in closed.servers}
    first = closed.turn()
    assert first == pytest.approx(1300, abs=ROUNDING_MB)
    assert sum(closed.turn() for _ in range(20)) < ROUNDING_MB
    assert closed.free(0) >= 300 + MARGIN_MB


def test_the_same_room_is_not_granted_twice() -> None:
    closed = Closed(
        {0: 1000.0, 1: 2600.0, 2: 1000.0, 3: 1000.0},
        {0: 300.0, 2: 1000.0, 3: 1000.0},
        [(floating(1), {0: 500.0}), (floating(2), {0: 450.0}), (floating(3), {1: 2000.0})],
    )
    closed.turn()
    assert closed.free(1) >= 0


def in_mb(units: Memory) -> Memory:
    return {node: count * float(UNIT_MB) for node, count in units.items()}


amounts = st.dictionaries(st.sampled_from(NODES), st.integers(1, 19), min_size=1)
policies = st.sampled_from([policy.value for policy in MemoryPolicy])


@settings(deadline=None, max_examples=60)  # the machine is shared
@given(
    servers=st.lists(st.tuples(policies, amounts), min_size=1, max_size=5),
    free=st.lists(st.integers(0, 31), min_size=4, max_size=4),
    promised=st.dictionaries(st.sampled_from(NODES), st.integers(1, 24)),
)
def test_pages_come_to_rest_and_never_enter_the_margin(
    servers: Sequence[tuple[str, Memory]], free: Sequence[int], promised: Memory
) -> None:
    placed = [(floating(number, policy), held) for number, (policy, held) in enumerate(servers)]
    capacity = {
        node: free[node] * UNIT_MB + sum(held.get(node, 0.0) for _, held in placed)
        for node in NODES
    }
    closed = Closed(capacity, promised, placed)
    for _ in range(40):
        before = {node: closed.held(node) for node in NODES}
        last = closed.turn()
        for node in NODES:
            if closed.held(node) > before[node] + ROUNDING_MB:
                left = closed.free(node) - promised.get(node, 0)
                assert left >= MARGIN_MB - ROUNDING_MB * len(placed)
        if last < ROUNDING_MB * len(placed):
            return
    raise AssertionError(f"pages still move: {last} MiB in the last round")


@given(
    free=st.floats(-2000, 2000),
    resident=st.floats(0, 2000),
    desired=st.floats(0, 4000),
)
def test_room_is_handed_out_once(free: float, resident: float, desired: float) -> None:
    room = Room({0: free}, MARGIN_MB)
    granted = min(desired, room.limits_mb({0: resident})[0])
    left = room.after({0: resident}, {0: granted})
    assert left.free_mb[0] <= max(free, MARGIN_MB)
    if granted > resident:
        assert left.free_mb[0] == pytest.approx(free - (granted - resident))
        assert left.free_mb[0] >= MARGIN_MB - 1e-6
    if free >= 0 and granted <= resident:
        assert left.free_mb[0] == free
