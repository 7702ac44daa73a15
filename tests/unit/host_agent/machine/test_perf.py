# SPDX-License-Identifier: Apache-2.0
"""perf_event groups per vCPU thread: what is opened, what is missing, what is closed; and the kernel itself."""

import errno
import os
import platform
import resource
import threading
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from host_agent.machine.privileged.open_files import raise_limit
from host_agent.machine.privileged.perf import PerfEvents, ThreadCounters
from host_agent.machine.privileged.pmu import PerfEvent, events
from host_agent.machine.privileged.syscalls import Syscalls
from placement_traits.errors import CapabilityMissingError

SKYLAKE = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n"
ZEN3 = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n"
OPTERON = "vendor_id\t: AuthenticAMD\ncpu family\t: 21\nmodel\t\t: 2\n"
OTHER = "processor\t: 0\n"
SOFTWARE_TASK_CLOCK = PerfEvent(1, 1)


@dataclass
class FakeKernel:
    """perf_event_open of a CPU that lacks some events."""

    lacks: set[int] = field(default_factory=set)
    refuses: int = 0
    refused: set[int] = field(default_factory=set)
    open_groups: dict[int, list[int]] = field(default_factory=dict)
    opened: list[tuple[int, int, bool]] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)
    files_max: int = 4000
    _next: int = 10

    def open(self, event: PerfEvent, tid: int, group: int, *, guest_only: bool) -> int:
        if self.refuses and (not self.refused or tid in self.refused):
            raise OSError(self.refuses, os.strerror(self.refuses))
        if event.config in self.lacks:
            raise OSError(errno.ENOENT, "no such event")
        if sum(map(len, self.open_groups.values())) >= self.files_max:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._next += 1
        self.opened.append((tid, event.config, guest_only))
        self.open_groups.setdefault(group if group >= 0 else self._next, []).append(self._next)
        return self._next

    def read(self, descriptor: int, events: int) -> tuple[int, ...]:
        if descriptor in self.broken:
            raise OSError(errno.EBADF, "gone")
        return (100, 50, *range(1, events + 1))

    def close(self, descriptor: int) -> None:
        for members in self.open_groups.values():
            if descriptor in members:
                members.remove(descriptor)


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


@pytest.fixture
def counters(tmp_path: Path, kernel: FakeKernel) -> ThreadCounters:
    (tmp_path / "cpuinfo").write_text(SKYLAKE)
    return ThreadCounters(tmp_path, 4000, kernel)


def test_each_thread_has_one_group_that_counts_over_the_same_time(
    counters: ThreadCounters, kernel: FakeKernel
) -> None:
    report = counters.count({"a": [7, 8]}, lambda _uuid: {7: True, 8: True})
    assert sorted(len(group) for group in kernel.open_groups.values()) == [4, 4]
    assert report.problem == ""
    assert [c.tid for c in report.counts] == [7, 8]
    assert report.counts[0][2:] == (100, 50, 1, 2, 3, 4)
    opened = len(kernel.opened)
    counters.count({"a": [7, 8]}, lambda _uuid: {7: True, 8: True})
    assert len(kernel.opened) == opened, "they stay open"


def test_only_the_guest_counts_on_kvm_and_user_space_under_tcg(
    counters: ThreadCounters, kernel: FakeKernel
) -> None:
    counters.count({"a": [7], "b": [9]}, lambda uuid: {7: True} if uuid == "a" else {9: False})
    assert {(tid, guest) for tid, _, guest in kernel.opened} == {(7, True), (9, False)}


def test_threads_of_others_are_never_opened(counters: ThreadCounters, kernel: FakeKernel) -> None:
    assert counters.count({"a": [1]}, lambda _uuid: {7: True}).counts == ()
    assert kernel.opened == []


def test_a_reading_of_some_leaves_the_others_open(
    counters: ThreadCounters, kernel: FakeKernel
) -> None:
    both = {"a": [7], "b": [9]}
    counters.count(both, lambda uuid: {7: True} if uuid == "a" else {9: True})
    opened = len(kernel.opened)
    some = counters.count({"a": [7]}, lambda _uuid: {}, others_stay=True)
    assert [count.tid for count in some.counts] == [7], "the others are not read"
    assert [count.tid for count in counters.count(both, lambda _uuid: {}).counts] == [7, 9]
    assert len(kernel.opened) == opened
    counters.count({"a": [7]}, lambda _uuid: {})
    assert sum(map(len, kernel.open_groups.values())) == 4, "a reading of all closes them"


def test_what_nobody_asks_for_is_closed(counters: ThreadCounters, kernel: FakeKernel) -> None:
    counters.count({"a": [7]}, lambda _uuid: {7: True})
    assert counters.count({}, lambda _uuid: {}).counts == ()
    assert not any(kernel.open_groups.values())


def test_a_cpu_without_one_event_still_counts_the_others(
    counters: ThreadCounters, kernel: FakeKernel
) -> None:
    kernel.lacks = {3}
    (count,) = counters.count({"a": [7]}, lambda _uuid: {7: True}).counts
    assert (count.cycles, count.instructions, count.misses, count.stalls) == (1, 2, -1, 3)


def test_a_machine_without_counters_is_asked_once(
    counters: ThreadCounters, kernel: FakeKernel
) -> None:
    kernel.lacks = {0, 1, 3}
    for _look in range(2):
        report = counters.count({"a": [7]}, lambda _uuid: {7: True})
        assert "no hardware performance counters" in report.problem
    kernel.lacks = set()
    assert counters.count({"a": [7]}, lambda _uuid: {7: True}).counts == ()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENODEV, errno.EOPNOTSUPP])
def test_what_the_kernel_refuses_of_one_thread_is_tried_again_and_costs_no_other(
    counters: ThreadCounters, kernel: FakeKernel, number: int
) -> None:
    """L5: a CPU that goes offline, a guest that has the counters for itself."""
    kernel.refuses, kernel.refused = number, {7}
    requested, threads = {"a": [7], "b": [8]}, {7: True, 8: True}
    report = counters.count(requested, lambda _uuid: threads)
    assert [count.tid for count in report.counts] == [8]
    assert os.strerror(number) in report.problem
    kernel.refuses = 0
    report = counters.count(requested, lambda _uuid: threads)
    assert ([count.tid for count in report.counts], report.problem) == ([7, 8], "")


def test_a_missing_right_is_named(counters: ThreadCounters, kernel: FakeKernel) -> None:
    kernel.refuses = errno.EACCES
    report = counters.count({"a": [7]}, lambda _uuid: {7: True})
    assert "CAP_PERFMON" in report.problem


def test_a_broken_counter_is_opened_again(counters: ThreadCounters, kernel: FakeKernel) -> None:
    counters.count({"a": [7]}, lambda _uuid: {7: True})
    kernel.broken = set(kernel.open_groups)
    assert "cannot be read" in counters.count({"a": [7]}, lambda _uuid: {7: True}).problem
    kernel.broken = set()
    assert len(counters.count({"a": [7]}, lambda _uuid: {7: True}).counts) == 1


def test_counters_keep_within_their_budget_by_whole_servers(
    tmp_path: Path, kernel: FakeKernel
) -> None:
    (tmp_path / "cpuinfo").write_text(SKYLAKE)
    counters = ThreadCounters(tmp_path, 12, kernel)
    for _look in range(2):
        report = counters.count(
            {"a": [1, 2], "b": [3, 4], "c": [5]}, lambda _uuid: dict.fromkeys(range(1, 6), True)
        )
        assert [(one.uuid, one.tid) for one in report.counts] == [("a", 1), ("a", 2), ("c", 5)]
        assert report.problem.startswith("open files suffice for counters of 3 vCPUs only")


def test_where_files_run_out_counters_give_some_back(
    counters: ThreadCounters, kernel: FakeKernel
) -> None:
    """Without, nothing else in the process could open a file any more."""
    threads = {uuid: [number] for number, uuid in enumerate("abcdefgh")}
    kernel.files_max = 17  # four groups, and one file more
    problems = set()
    for _look in range(3):
        report = counters.count(threads, lambda _uuid: dict.fromkeys(range(8), True))
        problems.add(report.problem)
        assert [count.uuid for count in report.counts] == ["a", "b", "c"]
        assert sum(map(len, kernel.open_groups.values())) == 12
    assert len(problems) == 1, "reported once"


def test_the_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
    try:
        assert raise_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_machine_whose_system_calls_are_not_known_lacks_them_and_all_else_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(OTHER)
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    counters = ThreadCounters(tmp_path, 4000, PerfEvents())
    problem = counters.count({"a": [1]}, lambda _uuid: {1: True}).problem
    assert problem == "hardware performance counters are not known on s390x"
    with pytest.raises(CapabilityMissingError, match="move_pages is not known on s390x"):
        Syscalls().locate(os.getpid(), array("Q", [4096]))


@pytest.mark.parametrize(
    ("cpuinfo", "stalls"),
    [
        (SKYLAKE, PerfEvent(4, 0x140014A3)),
        (ZEN3, PerfEvent(4, 0xA2D6)),
        (OPTERON, PerfEvent(4, 0xD1)),
        (OTHER, PerfEvent(0, 8)),
    ],
)
def test_stalls_are_counted_by_the_event_of_the_cpu(cpuinfo: str, stalls: PerfEvent) -> None:
    assert events(cpuinfo)["stalls"] == stalls
    assert list(events(cpuinfo)) == ["cycles", "instructions", "misses", "stalls"]


def test_the_kernel_counts_a_real_thread() -> None:
    """A software event, which every kernel has: the calls and the layout of the answer are the kernel's own."""
    kernel = PerfEvents()
    try:
        descriptor = kernel.open(
            SOFTWARE_TASK_CLOCK, threading.get_native_id(), -1, guest_only=False
        )
    except OSError as error:
        pytest.skip(f"perf_event_open: {error}")
    sum(range(1_000_000))
    enabled, running, clock_ns = kernel.read(descriptor, 1)
    kernel.close(descriptor)
    assert 0 < running <= enabled
    assert clock_ns > 0
