# SPDX-License-Identifier: Apache-2.0
"""From totals to IPC, misses and stalls: multiplexing, what cannot be, sources and their order."""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from emulation.counters import ModelledCounters
from emulation.hosts import four_nodes
from emulation.physics.sensor import ModelSensor
from emulation.servers import BE_SPECS, Server
from host_agent.machine.libvirt import AgentEndsError
from host_agent.model.assignment import Observation
from host_agent.model.counters import ServerCounters
from host_agent.model.process import ThreadCount
from host_agent.observe.counters.differences import Differences
from host_agent.observe.counters.libvirt import LibvirtCounters
from host_agent.observe.counters.perf import PerfCounters
from host_agent.observe.counters.source import Readings
from host_agent.observe.counters.stacks import FirstOf, LoggedOnce, NoCounters, Shared
from host_agent.observe.machine_files import MachineFiles
from host_agent.observe.snapshot import Observer
from tests.support.fake_host import FakeHost

SECOND = 1_000_000_000


def count(
    tid: int = 1,
    cycles: int = 0,
    instructions: int = 0,
    misses: int = 0,
    stalls: int = 0,
    *,
    enabled: int = SECOND,
    running: int | None = None,
    uuid: str = "a",
) -> ThreadCount:
    ran = enabled if running is None else running
    return ThreadCount(uuid, tid, enabled, ran, cycles, instructions, misses, stalls)


ZERO = count(enabled=0)


def difference(
    before: Sequence[ThreadCount], now: Sequence[ThreadCount], seconds: float = 1.0
) -> ServerCounters | None:
    differences = Differences()
    differences.since(before, 100.0)
    return differences.since(now, 100.0 + seconds).get("a")


def test_the_figures_of_all_vcpus_are_taken_together() -> None:
    before = [count(1, enabled=0), count(2, enabled=0)]
    now = [count(1, 1000, 2000, 20, 300), count(2, 3000, 2000, 20, 500)]
    assert difference(before, now, 2.0) == ServerCounters(ipc=1.0, mpi=0.01, stall_rate=200.0)


def test_a_shared_counter_is_scaled_to_the_whole_time() -> None:
    now = count(1, 1000, 500, 10, 100, running=SECOND // 4)
    assert difference([ZERO], [now]) == ServerCounters(ipc=0.5, mpi=0.02, stall_rate=400.0)


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        (ZERO, count(1, 1000, 500, 10, 100, running=SECOND // 1000), None),  # hardly counted
        (count(1, 9, 9, 9, 9, enabled=SECOND), ZERO, None),  # ran backwards
        # IPC of 1000.
        (ZERO, count(1, 100, 99_999, 10, 10), ServerCounters(None, 10 / 99_999, 10.0)),
        # More misses than work.
        (ZERO, count(1, 1000, 100, 5000, 10), ServerCounters(0.1, None, 10.0)),
        # Stalled longer than on.
        (ZERO, count(1, 100, 100, 1, 5000), ServerCounters(1.0, 0.01, None)),
        # Not counted by this CPU.
        (ZERO, count(1, 1000, 500, -1, -1), ServerCounters(0.5, None, None)),
        (ZERO, ZERO, ServerCounters(None, None, 0.0)),  # slept
    ],
)
def test_what_cannot_be_is_not_measured(
    before: ThreadCount, now: ThreadCount, found: ServerCounters | None
) -> None:
    measured = difference([before], [now])
    assert measured == found


def test_a_server_with_a_new_thread_is_not_measured_this_time() -> None:
    differences = Differences()
    differences.since([ZERO], 1.0)
    assert differences.since([count(1, 9, 9), count(2, 9, 9)], 2.0) == {}
    later = [count(1, 19, 19, enabled=2 * SECOND), count(2, 19, 19, enabled=2 * SECOND)]
    assert differences.since(later, 3.0)["a"].ipc == 1.0


def test_servers_are_measured_since_each_was_read_last() -> None:
    differences = Differences()
    differences.since([count(enabled=0), count(enabled=0, uuid="b")], 1.0)
    now = count(1, 1000, 500, 10, 100)
    some = differences.since([now], 2.0, {"a"})
    assert some == {"a": ServerCounters(0.5, 0.02, 100.0)}
    found = differences.since([now._replace(enabled_ns=2 * SECOND, uuid="b")], 3.0)
    assert found["b"].stall_rate == pytest.approx(100.0), "in two seconds, and half of the time"


def test_a_server_that_was_asked_for_and_not_found_begins_anew() -> None:
    differences = Differences()
    differences.since([ZERO], 1.0)
    assert differences.since([], 2.0, {"a"}) == {}
    assert differences.since([count(1, 9, 9)], 3.0) == {}


class Host:
    """One running server on a fake host."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeHost(four_nodes())
        self.server = self.fake.boot(
            Server("a", BE_SPECS, vcpus=2, memory_mb=512, shared="0-7"), {0: 512}
        )
        self._observer = Observer(
            self.fake, self.fake, MachineFiles(lambda: self.fake.topology, folder)
        )
        self.seen = self.look()
        self.tids = [1101, 1102]

    def look(self) -> Observation:
        return self._observer.observe(full=True, relist=True)

    def count(self, cycles: int, enabled: int) -> None:
        self.fake.counts = tuple(
            count(tid, cycles, cycles, enabled=enabled, uuid=self.server.uuid) for tid in self.tids
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_vcpu_threads_are_counted_and_no_others(host: Host) -> None:
    perf = PerfCounters(host.fake)
    host.count(0, 0)
    perf.read(host.seen, 1.0)
    host.count(1000, SECOND)
    found = perf.read(host.seen, 2.0)
    assert host.fake.counted == [(host.server.uuid, (1101, 1102))]
    assert (found.source, found.counters[host.server.uuid].ipc) == ("perf", 1.0)


def test_only_servers_that_are_asked_for_are_read_and_the_others_counted_on(host: Host) -> None:
    other = host.fake.boot(Server("b", BE_SPECS, vcpus=1, memory_mb=512, shared="0-7"), {0: 512})
    seen = host.look()
    perf = PerfCounters(host.fake)
    perf.read(seen, 1.0)
    assert {uuid for uuid, _ in host.fake.counted} == {host.server.uuid, other.uuid}
    assert not host.fake.counts_stay
    perf.read(seen, 1.2, {other.uuid, "gone"})
    assert [uuid for uuid, _ in host.fake.counted] == [other.uuid]
    assert host.fake.counts_stay
    model = ModelledCounters(ModelSensor, lambda _seen: {})
    assert set(model.read(seen, 1.0, {other.uuid}).counters) == {other.uuid}


def test_a_reading_of_some_neither_chooses_the_source_nor_is_logged(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """Perf has room for some servers: of the others it counts none."""
    none, perf = Readings(problem="open files suffice for 2 vCPUs"), Readings(source="perf")
    spare = Script(iter([]))
    source = LoggedOnce(FirstOf(Script(iter([perf, none, perf])), spare))
    with caplog.at_level(logging.INFO):
        source.read(host.seen, 1.0)
        assert source.read(host.seen, 1.2, {"a"}) == none
        source.read(host.seen, 2.0)
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_libvirt_counts_where_perf_cannot(host: Host) -> None:
    host.fake.count_problem = "this machine has no hardware performance counters"
    source = FirstOf(PerfCounters(host.fake), LibvirtCounters(host.fake.perf_totals))
    found = source.read(host.seen, 1.0)
    assert found.source == ""
    assert "no hardware" in found.problem
    assert "enabled_perf_events" in found.problem
    totals = {"cpu_cycles": 0, "instructions": 0, "stalled_cycles_backend": 0}
    host.fake.libvirt_counts = {host.server.uuid: totals}
    source.read(host.seen, 2.0)
    more = {"cpu_cycles": 4000, "instructions": 2000, "stalled_cycles_backend": 1000}
    host.fake.libvirt_counts = {host.server.uuid: more}
    found = source.read(host.seen, 4.0)
    assert found.source == "libvirt"
    assert found.counters[host.server.uuid] == ServerCounters(0.5, None, 250.0), "per vCPU"


def test_libvirt_that_is_not_asked_any_more_is_no_change_of_the_source(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent was asked to end in the middle of a round."""
    totals = {"cpu_cycles": 0, "instructions": 0, "stalled_cycles_backend": 0}
    host.fake.libvirt_counts = {host.server.uuid: totals}
    ends = [False]

    def asked() -> Mapping[str, Mapping[str, int]]:
        if ends[0]:
            raise AgentEndsError("the agent ends")
        return host.fake.perf_totals()

    source = LoggedOnce(LibvirtCounters(asked))
    source.read(host.seen, 1.0)
    ends[0] = True
    found = source.read(host.seen, 2.0)
    assert (dict(found.counters), found.source, found.problem) == ({}, "libvirt", "")
    assert caplog.records == []


@dataclass
class Script:
    readings: Iterator[Readings] = field(default_factory=lambda: iter(()))

    def read(
        self, observation: Observation, now_s: float, only: Collection[str] | None = None
    ) -> Readings:
        return next(self.readings)


def test_what_one_reads_is_handed_to_the_others_with_its_time(host: Host) -> None:
    heard: list[tuple[float, dict[str, ServerCounters]]] = []
    first, second = {"a": ServerCounters(ipc=1.0)}, {"a": ServerCounters(ipc=2.0)}
    inner = Script(iter([Readings(first, "perf"), Readings(second, "perf")]))
    shared = Shared(inner, [lambda found, now_s: heard.append((now_s, dict(found)))])
    assert shared.read(host.seen, 1.0).counters == first
    assert shared.read(host.seen, 2.0).source == "perf"
    assert heard == [(1.0, first), (2.0, second)]


def test_counters_that_come_and_go_are_told_once(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    none, some = Readings(problem="no PMU"), Readings(source="perf")
    source = LoggedOnce(Script(iter([none, none, some, some, none])))
    with caplog.at_level(logging.INFO):
        for second in range(5):
            source.read(host.seen, float(second))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
    assert "no PMU" in caplog.records[0].getMessage()


def test_the_model_answers_for_managed_servers_and_says_that_it_is_one(host: Host) -> None:
    source = ModelledCounters(ModelSensor, lambda _seen: {})
    found = source.read(host.seen, 1.0)
    assert "modelled" in found.source
    counters = found.counters[host.server.uuid]
    assert counters.ipc is not None
    assert 0.1 < counters.ipc < 4.0


def test_counting_can_be_turned_off(host: Host) -> None:
    assert NoCounters().read(host.seen, 1.0) == Readings()
