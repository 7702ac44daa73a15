# SPDX-License-Identifier: Apache-2.0
"""Hardware counters of vCPU threads by ``perf_event_open(2)``: one group per thread, kept open while it is asked for.

A group holds cycles, instructions, last-level-cache misses and stalled cycles, so that all count over the same time;
the kernel reports how long the group was on and how long it really counted (multiplexing). A descriptor follows its
thread from CPU to CPU and is safe to read for ever: a thread id that is used again belongs to another descriptor.

Descriptors are scarce, and without any left nothing works in the process. So counters have a budget, which servers get
as a whole or not at all; where files run out all the same, some are closed and the budget stays at what is left.

KVM vCPUs count the guest only (``exclude_host``). A TCG vCPU *is* user code of the host, translated: there the host's
user space is counted, and IPC and stalls are those of the translation.

Source: perf_event_open(2), include/uapi/linux/perf_event.h.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from host_agent.machine.privileged.pmu import PerfEvent, events
from host_agent.model.process import CountReport, ThreadCount

_NUMBERS: Final = {"x86_64": 298, "aarch64": 241}
_ATTR_SIZE: Final = 120  # PERF_ATTR_SIZE_VER6
_TIMES_AND_GROUP: Final = 1 | 2 | 8  # PERF_FORMAT_TOTAL_TIME_ENABLED, _RUNNING, _GROUP
_EXCLUDE_KERNEL: Final = 1 << 5
_EXCLUDE_HV: Final = 1 << 6
_EXCLUDE_HOST: Final = 1 << 19
_FLAG_FD_CLOEXEC: Final = 8
_WORD: Final = 8
_NEVER: Final = (errno.ENOENT, errno.ENOSYS)  # no thread of this machine can be counted
# Errors of one event among others.
_ABSENT: Final = (*_NEVER, errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL)
_NO_FILES: Final = (errno.EMFILE, errno.ENFILE)
_GROUP_DESCRIPTORS: Final = 4  # of a thread, see host_agent.machine.privileged.pmu.events
_KEPT: Final = 0.75  # part of the groups that stays open when files run out


class PerfKernel(Protocol):
    """What is needed of the kernel."""

    def open(self, event: PerfEvent, tid: int, group: int, *, guest_only: bool) -> int:
        """Open a counter of a thread; a descriptor."""

    def read(self, descriptor: int, events: int) -> tuple[int, ...]:
        """Time enabled, time running, then one value per event."""

    def close(self, descriptor: int) -> None:
        """Close it."""


class PerfEvents:
    """The kernel; tests put a model of it in its place."""

    def __init__(self) -> None:
        self._number = _NUMBERS.get(platform.machine())
        self._libc = ctypes.CDLL(None, use_errno=True)

    def open(self, event: PerfEvent, tid: int, group: int, *, guest_only: bool) -> int:
        """Open a counter.

        :param group: descriptor of the group's leader, -1 to open a leader
        :raises OSError: ENOENT where the CPU has no such counter, EACCES without CAP_PERFMON, ESRCH, ENOSYS on a
            machine whose number of the system call is not known, EMFILE
        """
        if self._number is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        flags = _EXCLUDE_HOST if guest_only else _EXCLUDE_KERNEL | _EXCLUDE_HV
        attributes = ctypes.create_string_buffer(_ATTR_SIZE)
        struct.pack_into(
            "IIQQQQQ",
            attributes,
            0,
            event.type,
            _ATTR_SIZE,
            event.config,
            0,
            0,
            _TIMES_AND_GROUP,
            flags,
        )
        descriptor = self._libc.syscall(
            self._number,
            attributes,
            ctypes.c_int(tid),
            ctypes.c_int(-1),
            ctypes.c_int(group),
            ctypes.c_ulong(_FLAG_FD_CLOEXEC),
        )
        if descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(descriptor)

    def read(self, descriptor: int, events: int) -> tuple[int, ...]:
        """Read a group: number of events, times, values.

        :raises OSError: the descriptor is broken
        """
        data = os.read(descriptor, _WORD * (3 + events))
        return struct.unpack(f"{len(data) // _WORD}Q", data)[1:]

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)


@dataclass(slots=True)
class _Group:
    """Open counters of one thread; ``names`` in the order of the group's values."""

    names: tuple[str, ...]
    descriptors: tuple[int, ...]


VcpuThreads = Callable[[str], Mapping[int, bool]]
"""UUID -> its vCPU threads, each with whether it runs on KVM; empty when the server has no process."""


@dataclass(slots=True)
class ThreadCounters:
    """All open groups.

    :param proc: the proc file system, for the CPU's model
    :param descriptors_max: descriptors that all groups together may hold
    :param kernel: perf_event_open and read
    """

    proc: Path
    descriptors_max: int
    kernel: PerfKernel = field(default_factory=PerfEvents)
    _groups: dict[tuple[str, int], _Group] = field(default_factory=dict)
    _events: Mapping[str, PerfEvent] | None = None
    _absent: str = ""

    def count(
        self,
        requested: Mapping[str, Sequence[int]],
        threads: VcpuThreads,
        *,
        others_stay: bool = False,
    ) -> CountReport:
        """Read the counters of these threads; open those that are new, close those that are not named any more.

        :param requested: UUID -> thread ids
        :param threads: looked up for servers with new threads only
        :param others_stay: those that are not named stay open, and are not read
        """
        keys = {(uuid, tid) for uuid, tids in requested.items() for tid in tids}
        if not others_stay:
            for key in set(self._groups) - keys:
                self._close(key)
        if self._absent:
            return CountReport((), self._absent)
        problems: list[str] = []
        self._open_all(keys - set(self._groups), threads, problems)
        counts = [self._read(key, problems) for key in sorted(keys & self._groups.keys())]
        found = tuple(count for count in counts if count is not None)
        return CountReport(found, problems[0] if problems else "")

    def _open_all(
        self, keys: Collection[tuple[str, int]], threads: VcpuThreads, problems: list[str]
    ) -> None:
        for uuid in sorted({uuid for uuid, _ in keys}):
            tids = sorted(tid for server, tid in keys if server == uuid)
            if self._held() + len(tids) * _GROUP_DESCRIPTORS > self.descriptors_max:
                problems.append(self._scarce())
                continue
            ours = threads(uuid)
            for tid in tids:
                if tid not in ours:
                    continue
                try:
                    self._groups[uuid, tid] = self._open(tid, guest_only=ours[tid])
                except OSError as error:
                    if error.errno in _NO_FILES:
                        self._make_room()
                        problems.append(self._scarce())
                        return
                    problems.append(_sentence(error))
                    if error.errno in _NEVER:
                        self._absent = problems[-1]
                        return

    def _held(self) -> int:
        return len(self._groups) * _GROUP_DESCRIPTORS

    def _scarce(self) -> str:
        most = self.descriptors_max // _GROUP_DESCRIPTORS
        return (
            f"open files suffice for counters of {most} vCPUs only (see LimitNOFILE of the service)"
        )

    def _make_room(self) -> None:
        """Close the groups of some servers, for the rest of the process, and open no more than stay."""
        keys = sorted(self._groups)
        if keys:
            first = keys[int(len(keys) * _KEPT)][0]
            for key in keys:
                if key[0] >= first:
                    self._close(key)
        self.descriptors_max = self._held()

    def _open(self, tid: int, *, guest_only: bool) -> _Group:
        if self._events is None:
            self._events = events((self.proc / "cpuinfo").read_text())
        names: list[str] = []
        descriptors: list[int] = []
        for name, event in self._events.items():
            leader = descriptors[0] if descriptors else -1
            try:
                descriptors.append(self.kernel.open(event, tid, leader, guest_only=guest_only))
                names.append(name)
            except OSError as error:
                if descriptors and error.errno in _ABSENT:
                    continue  # the rest is worth having without it
                for descriptor in descriptors:
                    self.kernel.close(descriptor)
                raise
        return _Group(tuple(names), tuple(descriptors))

    def _read(self, key: tuple[str, int], problems: list[str]) -> ThreadCount | None:
        group = self._groups[key]
        try:
            enabled, running, *values = self.kernel.read(group.descriptors[0], len(group.names))
        except (OSError, ValueError) as error:
            problems.append(f"counters of thread {key[1]} cannot be read: {error}")
            self._close(key)
            return None
        found = dict(zip(group.names, values, strict=False))
        return ThreadCount(
            key[0],
            key[1],
            enabled,
            running,
            found.get("cycles", -1),
            found.get("instructions", -1),
            found.get("misses", -1),
            found.get("stalls", -1),
        )

    def _close(self, key: tuple[str, int]) -> None:
        for descriptor in reversed(self._groups.pop(key).descriptors):
            self.kernel.close(descriptor)


def _sentence(error: OSError) -> str:
    if error.errno == errno.ENOSYS:
        return f"hardware performance counters are not known on {platform.machine()}"
    if error.errno in _NEVER:
        return "this machine has no hardware performance counters (perf_event_open: no such event)"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "hardware performance counters are not allowed: CAP_PERFMON is missing"
    return f"hardware performance counters cannot be opened: {os.strerror(error.errno or 0)}"
