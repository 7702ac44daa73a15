# SPDX-License-Identifier: Apache-2.0
"""The privileged operations, as one object over the host's files."""

import random
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final, TypeVar

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import (
    guest_ram,
    open_files,
    page_mover,
    partitions,
    processes,
    vcpu_quota,
)
from host_agent.machine.privileged.dead_man_switch import DeadManSwitch
from host_agent.machine.privileged.devices import Devices
from host_agent.machine.privileged.libvirt_state import RunningDomain
from host_agent.machine.privileged.partitions import RdtOperations
from host_agent.machine.privileged.perf import ThreadCounters
from host_agent.machine.privileged.syscalls import PAGE, Syscalls
from host_agent.machine.privileged.table import operations_of, reads, writes, writes_if_asked
from host_agent.model import cpus
from host_agent.model.pages import ram_shares, sample_agrees
from host_agent.model.process import (
    CountReport,
    Look,
    MoveLimits,
    MoveReport,
    Pin,
    PinFailure,
    Process,
    QuotaReport,
    RamRange,
    Role,
    Target,
)
from placement_traits.errors import CapabilityMissingError, NumaExtError

_Known = TypeVar("_Known")

_SEED = 20260101  # samples are spread at random, but a repeated pass over unchanged memory gives the same answer
_COUNTERS_PART: Final = 2  # this part of all open files is for counters, the rest for all others
_SERVERS_MAX: Final = 1024  # whose samples and sweeps are remembered; a sample has up to 32 KiB
_SAMPLE_PAGES: Final = (
    512  # by which it is seen whether pages are still where a sweep has left them
)
_LOOKS_S: Final = 1.0
# After that page tables are walked again: the kernel may have made huge pages, which are moved by one address each.
_LEFT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Walked:
    """Guest memory of one process as a walk over its page tables saw it, or sweeps since then have left it.

    :param walked_s: when they were walked
    """

    pid: int
    started: int
    walked_s: float
    ranges: tuple[RamRange, ...]

    def left(self, ranges: Iterable[RamRange]) -> "_Walked":
        """Return the same with some ranges as a sweep has left them."""
        now = {(found.start, found.end): found for found in ranges}
        merged = (now.get((found.start, found.end), found) for found in self.ranges)
        return replace(self, ranges=tuple(merged))


class HostOperations(RdtOperations):
    """Operations on this host, for a caller that has the rights; they may be called by several threads at once.

    :param paths: where the host's files are
    :param kernel: the page-moving system calls
    :param release_after_s: take throttles off when the agent has not been in control for so long: the helper's; None
        where this process does not outlive the agent
    :param devices: plugs devices into domains
    """

    def __init__(
        self,
        paths: HostPaths,
        kernel: page_mover.PageKernel | None = None,
        release_after_s: float | None = None,
        devices: Devices | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(paths)
        self._clock = clock
        self._devices = devices or Devices()
        self._kernel = kernel or Syscalls()
        self._sweeps: dict[str, tuple[page_mover.Sweep, _Walked]] = {}
        self._left: dict[str, _Walked] = {}
        self._counters = ThreadCounters(paths.proc, open_files.raise_limit() // _COUNTERS_PART)
        self._counting = threading.Lock()
        self._limiting = threading.Lock()
        if release_after_s is not None:
            mark = paths.helper_state / "in-control"
            release = partial(self.release_throttles, True)
            self.dead_man_switch = DeadManSwitch(mark, release_after_s, release)

    @reads
    def process(self, uuid: str) -> Process:
        """Return process and threads of a domain.

        :raises ProcessGoneError: it has none
        """
        with processes.opened(self._paths, uuid, self._libvirt) as domain:
            return self._read(domain)

    def _read(self, domain: RunningDomain) -> Process:
        uuid, outside = domain.uuid, self._kernel_threads.of(domain.pid)
        try:
            return processes.read_process(self._paths, domain, outside)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise processes.ProcessGoneError(f"the process of domain {uuid} has ended") from error

    @reads
    def guest_ram(self, uuid: str) -> tuple[RamRange, ...]:
        """Walk the page tables of a domain's guest memory: exact, and too slow for a fast loop.

        It comes when a server has started or a device was plugged in: kernel threads are looked for again, too.

        :raises ProcessGoneError: it has no process
        """
        self._kernel_threads.look_again()
        with processes.opened(self._paths, uuid, self._libvirt) as domain:
            return self._ram(uuid, domain.pid, with_thp=False)

    def _ram(self, uuid: str, pid: int, *, with_thp: bool) -> tuple[RamRange, ...]:
        try:
            return guest_ram.read(self._paths.proc / str(pid), with_thp=with_thp)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise processes.ProcessGoneError(f"the process of domain {uuid} has ended") from error

    @reads
    def look(
        self, servers: Sequence[tuple[str, Sequence[tuple[int, int]]]], pages: int
    ) -> tuple[Look, ...]:
        """Return process and threads of some domains, and where some pages of each range are.

        One call for what each round asks of each server: the process is found and held once for both, and to wake this
        process costs as much as half a look.

        :param servers: UUIDs with ranges, at most :data:`~host_agent.model.process.LOOKED_AT_ONCE`
        :param pages: of each server at most so many of all its ranges together, by their size, spread evenly with a
            random offset in each stretch
        :returns: in the same order; one that cannot be read has its problem. The first, and those that follow within
            a second: where looks are slow, the caller has something to do between them
        """
        end_s = self._clock() + _LOOKS_S
        looks: list[Look] = []
        for uuid, ranges in servers:
            looks.append(self._looked_at(uuid, ranges, pages))
            if self._clock() >= end_s:
                break
        return tuple(looks)

    def _looked_at(self, uuid: str, ranges: Sequence[tuple[int, int]], pages: int) -> Look:
        try:
            with processes.opened(self._paths, uuid, self._libvirt) as domain:
                process = self._read(domain)
                found = self._sampled(domain.pid, ranges, pages)
        except (NumaExtError, OSError) as error:
            return Look(problem=str(error))
        return Look(process, tuple(sorted(found.items())))

    def _sampled(self, pid: int, ranges: Iterable[Sequence[int]], pages: int) -> dict[int, int]:
        found: Counter[int] = Counter()
        for addresses in _sampled_pages(tuple(map(tuple, ranges)), pages):
            found.update(self._kernel.locate(pid, addresses))
        return {node: count for node, count in found.items() if node >= 0}

    @writes(lambda _uuid, _pins: ())
    def pin(self, uuid: str, pins: Sequence[Pin]) -> tuple[PinFailure, ...]:
        """Set the affinity of threads of a domain; return those that could not be set.

        :raises ProcessGoneError: it has no process
        """
        with processes.opened(self._paths, uuid, self._libvirt) as domain:
            process = self._read(domain)
            threads = processes.ThreadPinner(
                self._paths, process, self._kernel_threads.of(domain.pid)
            )
            problems = ((pin.tid, threads.set(pin.tid, cpus.parse(pin.cpus))) for pin in pins)
            return tuple(PinFailure(tid, problem) for tid, problem in problems if problem)

    @writes(lambda _uuid, _targets, _limits: MoveReport(0, 0, 0, 0, 0.0, ""))
    def move_memory(self, uuid: str, targets: Sequence[Target], limits: MoveLimits) -> MoveReport:
        """Bring guest memory nearer to its targets, within limits; the next call goes on where this one stopped.

        Page tables are walked when a sweep begins, unless another has just ended and the pages are still where it has
        left them. With other targets a new sweep begins, at the same address.

        :raises ProcessGoneError: it has no process
        """
        before = self._sweeps.pop(uuid, None)
        with processes.opened(self._paths, uuid, self._libvirt) as domain:
            if before is not None and before[0].serves(domain.pid, targets):
                sweep, walked = before
            else:
                walked = self._begin(domain)
                begin = before[0].cursor if before else 0
                sweep = page_mover.Sweep(self._kernel, domain.pid, walked.ranges, targets, begin)
            report = sweep.advance(limits)
        if not report.over:
            _remember(self._sweeps, uuid, (sweep, walked))
        elif report.ram:
            _remember(self._left, uuid, walked.left(report.ram))
        return report

    def _begin(self, domain: RunningDomain) -> _Walked:
        """Return guest memory for a new sweep."""
        uuid, pid, now_s = domain.uuid, domain.pid, self._clock()
        left = self._left.pop(uuid, None)
        same = left and (left.pid, left.started) == (pid, domain.started)
        if left and same and now_s - left.walked_s <= _LEFT_S and self._still_there(left):
            return left
        return _Walked(pid, domain.started, now_s, self._ram(uuid, pid, with_thp=True))

    def _still_there(self, left: _Walked) -> bool:
        """Tell whether the same mappings are guest memory, and a sample finds the pages where they were left."""
        ranges = [(found.start, found.end) for found in left.ranges]
        try:
            mapped = guest_ram.mapped(self._paths.proc / str(left.pid))
        except OSError:
            return False  # the walk that follows says why
        found = self._sampled(left.pid, ranges, _SAMPLE_PAGES) if mapped == ranges else {}
        return sample_agrees(found, ram_shares(left.ranges))

    @reads
    def count(self, threads: Sequence[tuple[str, Sequence[int]]], others_stay: bool) -> CountReport:
        """Read the hardware counters of vCPU threads; those that are not named any more are closed.

        :param threads: (UUID, thread ids) of every server that is to be read
        :param others_stay: those that are not named are counted on
        """
        with self._counting:
            return self._counters.count(dict(threads), self._vcpu_threads, others_stay=others_stay)

    def _vcpu_threads(self, uuid: str) -> dict[int, bool]:
        try:
            found = self.process(uuid).threads
        except (NumaExtError, OSError):
            return {}  # the others' counters are read; reading this server's process tells the agent why
        return {t.tid: t.name.endswith("/KVM") for t in found if t.role == Role.VCPU}

    @writes(lambda _uuid: None)
    def plug_latency_port(self, uuid: str) -> None:
        """Plug the latency port into a domain; see :meth:`.devices.Devices.plug_latency_port`."""
        self._devices.plug_latency_port(uuid)

    @writes(lambda _uuid: None)
    def plug_vsock(self, uuid: str) -> None:
        """Plug a vsock device into a domain; see :meth:`.devices.Devices.plug_vsock`."""
        self._devices.plug_vsock(uuid)

    @writes(lambda _uuid: None)
    def unplug_vsock(self, uuid: str) -> None:
        """Unplug that device; see :meth:`.devices.Devices.unplug_vsock`."""
        self._devices.unplug_vsock(uuid)

    @writes_if_asked
    def limit_cpu_time(self, levels: Sequence[tuple[str, int]], write: bool) -> QuotaReport:
        """Throttle servers by CPU time; see :func:`host_agent.machine.privileged.vcpu_quota.throttle`."""
        report = self._limit(levels, write)
        self._watch(write and bool(levels))
        return report

    def _limit(self, levels: Sequence[tuple[str, int]], write: bool) -> QuotaReport:
        with self._limiting:
            return vcpu_quota.throttle(self._paths, dict(levels), write, libvirt=self._libvirt)

    @writes_if_asked
    def release_throttles(self, write: bool) -> tuple[str, ...]:
        """Give all our RDT groups all bandwidth, and servers that are throttled by CPU time all of theirs.

        :returns: the commands
        :raises ResctrlError: the kernel refused one
        :raises NumaExtError: a server's CPU time is still throttled; all else is released
        """
        try:
            levels = partitions.release(self._paths, write)
        finally:
            quotas = self._limit((), write)
        if quotas.problems:
            texts = (f"server {uuid}: {problem}" for uuid, problem in quotas.problems)
            raise NumaExtError(f"CPU time stays throttled: {'; '.join(texts)}")
        return (*quotas.writes, *levels)

    @writes(lambda: 0)
    def in_control(self) -> int:
        """Report that the agent is in control; throttles are released when it does not for some time.

        :returns: how often that has happened so far
        :raises CapabilityMissingError: nothing here outlives the agent
        """
        if self.dead_man_switch is None:
            raise CapabilityMissingError(
                "no helper listens on [helper]socket, so throttles would stay if the agent died: start "
                "numa-host-agent-helper.socket, or let numa-host-agent-supervisor start the agent"
            )
        self.dead_man_switch.in_control()
        return self.dead_man_switch.fired

    @writes(lambda: None)
    def graceful_shutdown(self) -> None:
        """Report that the agent ends: throttles stay as they are."""
        if self.dead_man_switch is not None:
            self.dead_man_switch.leave()


OPERATIONS: Final = operations_of(HostOperations)
"""The table: name -> operation."""


def _remember(known: dict[str, _Known], uuid: str, value: _Known) -> None:
    if len(known) >= _SERVERS_MAX:
        known.clear()  # of servers that have ended: there are never so many
    known[uuid] = value


@lru_cache(maxsize=_SERVERS_MAX)
def _sampled_pages(ranges: tuple[tuple[int, ...], ...], pages: int) -> tuple["array[int]", ...]:
    """Choose the pages of a sample: addresses, one array per range. Choosing them takes longer than looking them up.

    :param ranges: (start, end) each
    :param pages: at most so many of all ranges together
    """
    chooser = random.Random(_SEED)
    every = max(1, sum((end - start) // PAGE for start, end in ranges))
    chosen = []
    for start, end in ranges:
        total = (end - start) // PAGE
        share = 1 + max(0, pages - len(ranges)) * total // every
        step = max(1, -(-total // share))
        numbers = (min(n + chooser.randrange(step), total - 1) for n in range(0, total, step))
        chosen.append(array("Q", (start + PAGE * number for number in numbers)))
    return tuple(chosen)
