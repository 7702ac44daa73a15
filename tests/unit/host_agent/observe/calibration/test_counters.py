# SPDX-License-Identifier: Apache-2.0
"""Bandwidths by resctrl's counters, over the kernel's model: what they tell, and when they are not believed.

No hardware counter has been seen by this code: operator/proven.rst.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from emulation.hosts import four_nodes
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import Shape
from emulation.kernel.threads import ThreadTable
from emulation.kernel.threads import Traffic as Bytes
from host_agent.control.calibration import calibrate
from host_agent.machine.rdt.calibration import CalibrationGroups
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.traffic import NodeBandwidth, Traffic
from host_agent.observe.calibration.counters import (
    CountedProfiler,
    UnbelievableError,
    by_counters,
    refused,
)
from host_agent.observe.calibration.timing import TimingProfiler, TimingSettings, Watch
from placement_traits.topology import HostTopology

MEGA = 1_000_000
READERS = {0: 100, 1: 101, 2: 102, 3: 103}
OWN, OTHERS = 2000.0, 500.0


class Machine(TimingProfiler):
    """Four readers, one per node: each gets 2000 MB/s of its own memory and 500 of any other; others move as much.

    Timing overrates everything by a tenth, because some lines come from a cache.
    """

    def __init__(self, *, counted: float = 1.0) -> None:
        super().__init__({}, TimingSettings(seconds=2.0))
        self.now = 50.0
        self.counted = counted
        self.running: Mapping[int, float] = {}
        self.own: Mapping[int, float] = {}
        self.moved = {tid: Bytes() for tid in (*READERS.values(), 900)}
        self.model = ResctrlModel(
            Shape(domains=(0, 1, 2, 3)), threads=ThreadTable(self.moved), demand=self.demand
        )
        self.resctrl = Resctrl(self.model)
        self.reported: list[str] = []

    def demand(self, tid: int, domain: int) -> Bytes:
        mine = tid == READERS[domain] or (tid == 900 and domain == 0)
        return self.moved[tid] if mine else Bytes()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for worker, tid in READERS.items():
            total, local = self.running.get(worker, 0.0), self.own.get(worker, 0.0)
            before = self.moved[tid]
            grown = self.counted * MEGA * seconds
            self.moved[tid] = Bytes(
                before.total_bytes + total * grown, before.local_bytes + local * grown
            )
        self.moved[900] = Bytes(self.moved[900].total_bytes + 9000 * MEGA * seconds, 0.0)

    def profile(
        self,
        workers: Collection[int],
        nodes: Collection[int],
        watch: Watch = lambda _readers, _seconds: None,
    ) -> NodeBandwidth:
        rate = {n: {w: OWN if n == w else OTHERS for w in workers} for n in nodes}
        self.running = {w: sum(rate[n][w] for n in nodes) for w in workers}
        self.own = {w: OWN if w in nodes else 0.0 for w in workers}
        watch([READERS[worker] for worker in workers], 2.0)
        return {n: {w: 1.1 * mbps for w, mbps in row.items()} for n, row in rate.items()}

    def counting(self, topology: HostTopology | None = None) -> CountedProfiler:
        return CountedProfiler(
            self,
            CalibrationGroups(self.resctrl).counted,
            topology or four_nodes(),
            progress=self.reported.append,
            sleep=self.sleep,
            clock=lambda: self.now,
        )


def test_f_004_05_counters_tell_what_came_from_memory() -> None:
    """F-004-05: the worker's own node as counted, the rest shared out as timed; foreign traffic does not count."""
    machine = Machine()
    profiler = machine.counting()
    found = profiler.profile([0, 2], range(4))
    assert found[0] == pytest.approx({0: OWN, 2: OTHERS})
    assert found[2] == pytest.approx({0: OTHERS, 2: OWN})
    assert found[1] == pytest.approx({0: OTHERS, 2: OTHERS})
    assert profiler.profile([1], [3]) == {3: {1: pytest.approx(OTHERS)}}
    assert profiler.profile([1], [1]) == {1: {1: pytest.approx(OWN)}}
    assert machine.reported == []


def test_the_result_says_how_it_was_measured_and_the_monitoring_group_is_gone() -> None:
    machine = Machine()
    found = calibrate(four_nodes(), machine.counting(), now=datetime(2026, 11, 21, tzinfo=UTC))
    assert found.measured.endswith("by resctrl's counters (20 of 20 measurements)")
    assert found.local_bandwidth_mbps() == dict.fromkeys(range(4), OWN)
    assert machine.resctrl.actual().root.monitors == ()


def test_what_a_killed_calibration_left_is_made_anew() -> None:
    machine = Machine()
    machine.resctrl.create_monitor("", "numa_ext-calibrate")
    machine.resctrl.move_tasks("", "numa_ext-calibrate", lambda: [900])
    assert machine.counting().profile([0], [0]) == {0: {0: pytest.approx(OWN)}}
    assert machine.resctrl.actual().root.monitors == ()


@pytest.mark.parametrize("counted", [0.0, 0.1, 5.0])
def test_counters_that_contradict_the_clock_are_not_believed(counted: float) -> None:
    """A hypervisor may show counters that never move; an emulator's know nothing of where memory is."""
    machine = Machine(counted=counted)
    profiler = machine.counting()
    found = profiler.profile([0], range(4))
    assert found[0] == {0: pytest.approx(1.1 * OWN)}
    assert profiler.method == "timing"
    assert "worker 0 moved" in machine.reported[0]


@pytest.mark.parametrize(("late_s", "counted"), [(0.5, True), (1.0, False), (1.9, False)])
def test_counters_are_read_last_while_the_readers_still_run(
    late_s: float, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read for 2 s; somebody else holds the lock of resctrl for a part of that."""
    machine = Machine()
    create, began_s = machine.resctrl.create_monitor, machine.now

    def late(group: str, monitor: str) -> None:
        machine.now += late_s
        create(group, monitor)

    monkeypatch.setattr(machine.resctrl, "create_monitor", late)
    profiler = machine.counting()
    profiler.profile([0], [0])
    if counted:
        assert machine.now == pytest.approx(began_s + 1.6)
    else:
        assert (profiler.method, "too late" in machine.reported[0]) == ("timing", True)


def test_without_a_free_counter_timing_stands() -> None:
    machine = Machine()
    for number in range(machine.model.shape.rmids - 1):
        machine.resctrl.create_monitor("", f"numa_ext-{number}")
    assert machine.counting().profile([0], [0]) == {0: {0: pytest.approx(1.1 * OWN)}}
    assert "creating a monitoring group" in machine.reported[0]


def test_a_worker_that_read_nothing_near_or_far_is_not_believed() -> None:
    timed = {0: {0: 100.0}, 1: {0: 50.0}}
    assert by_counters(timed, {0: Traffic(80.0, 130.0)}) == {0: {0: 80.0}, 1: {0: 50.0}}
    with pytest.raises(UnbelievableError, match="nothing from other nodes"):
        by_counters(timed, {0: Traffic(150.0, 150.0)})
    with pytest.raises(UnbelievableError, match="nothing from its own node"):
        by_counters(timed, {0: Traffic(0.0, 150.0)})


def test_hosts_whose_counters_cannot_tell_are_measured_by_timing() -> None:
    topology = four_nodes()
    assert refused(Resctrl(ResctrlModel(Shape(domains=(0, 1, 2, 3)))), topology) == ""
    blind = ResctrlModel(Shape(domains=(0, 1, 2, 3), monitoring=()))
    assert "does not count" in refused(Resctrl(blind), topology)
    cores = tuple(replace(core, l3=0) if core.node == 1 else core for core in topology.cores)
    first, _, *others = topology.l3_domains
    domains = (replace(first, nodes=(0, 1)), *others)
    rdt = replace(topology.rdt, l3_ids=(0, 2, 3)) if topology.rdt else None
    clusters = replace(topology, cores=cores, l3_domains=domains, rdt=rdt)
    assert "L3 domain 0 spans the nodes 0,1" in refused(Machine().resctrl, clusters)
