# SPDX-License-Identifier: Apache-2.0
"""What crosses the seam to the privileged helper: processes, threads, pins, pages and counters, as plain values.

Never page lists: the helper gets ranges and shares and makes the lists itself.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Role(StrEnum):
    """What a thread of a QEMU process does."""

    VCPU = "vcpu"
    IO = "io"
    VHOST = "vhost"
    EMULATOR = "emulator"


class Thread(NamedTuple):
    """One thread that works for a domain.

    :param tid: thread id
    :param role: a :class:`Role`
    :param vcpu: number of the vCPU, -1 for others
    :param name: the kernel's ``comm``
    :param cpus: ``Cpus_allowed_list``
    """

    tid: int
    role: str
    vcpu: int
    name: str
    cpus: str


class Process(NamedTuple):
    """A domain's process with its threads.

    :param pid: process id
    :param started: start time in clock ticks since boot: pid and this together never come again
    :param mems: ``Mems_allowed_list``: nodes its cpuset allows
    :param threads: all threads, ascending by tid, vhost kernel threads last
    """

    pid: int
    started: int
    mems: str
    threads: tuple[Thread, ...]


class RamRange(NamedTuple):
    """One mapping of guest memory.

    :param start: first address
    :param end: address behind the last
    :param bound: nodes that the memory policy binds it to, ascending; empty for the default policy
    :param page_kb: page size of the mapping, KiB (more than the base page: hugetlb)
    :param thp_kb: part backed by transparent huge pages, KiB; -1 when not asked for
    :param resident_kb: (node, KiB) pairs, ascending by node
    """

    start: int
    end: int
    bound: tuple[int, ...]
    page_kb: int
    thp_kb: int
    resident_kb: tuple[tuple[int, int], ...]


class Target(NamedTuple):
    """Where a range of guest memory shall be: (node, share) pairs whose shares sum to 1."""

    start: int
    end: int
    shares: tuple[tuple[int, float], ...]


class MoveLimits(NamedTuple):
    """How much one call may do.

    :param max_kb: KiB to move at most
    :param rate_mbps: MB/s at most, 0 for no limit
    :param seconds: time after which the call returns
    :param pause_ms: how long one move_pages may take, 0 for no limit: what is being moved is waited for by the guest
    """

    max_kb: int
    rate_mbps: int
    seconds: float
    pause_ms: float = 0.0


class MoveReport(NamedTuple):
    """What one call did.

    :param moved_kb: KiB that arrived
    :param remaining_kb: KiB that are still not where they shall be; an estimate until the walk is over
    :param failed: pages that the kernel refused to move after retries, known when the walk is over
    :param calls: move_pages calls that moved
    :param seconds: time taken
    :param problem: the sentence about what stopped it, "" when nothing did
    :param longest_ms: the longest of the calls
    :param ram: the ranges with their pages as the walk has left them; empty until it is over, and where it has left
        pages behind, was stopped or took so long that only a full pass shows where they are
    """

    moved_kb: int
    remaining_kb: int
    failed: int
    calls: int
    seconds: float
    problem: str
    longest_ms: float = 0.0
    ram: tuple[RamRange, ...] = ()

    @property
    def over(self) -> bool:
        """The walk has ended; ``ram``, or a new full pass, shows what it left."""
        return not self.remaining_kb or bool(self.failed or self.problem)


class PinFailure(NamedTuple):
    """A thread whose affinity could not be set, and the kernel's reason."""

    tid: int
    problem: str


class Pin(NamedTuple):
    """A thread and the CPUs it may run on, as a list text."""

    tid: int
    cpus: str


class GroupLevel(NamedTuple):
    """Memory bandwidth level of one control group of ours.

    :param group: its name
    :param mba_percent: (L3 domain, level) pairs; other domains stay as they are
    """

    group: str
    mba_percent: tuple[tuple[int, int], ...]


class QuotaReport(NamedTuple):
    """What one call did or would do to quotas of CPU time.

    :param writes: what was written, one sentence each
    :param problems: (server UUID, what went wrong)
    """

    writes: tuple[str, ...]
    problems: tuple[tuple[str, str], ...]


LOOKED_AT_ONCE: Final = 16
"""Servers that one look is at: more make it no cheaper, and a helper that is asked to end has to wait for it."""


class Look(NamedTuple):
    """One server as a quick look sees it.

    :param process: its process and threads, None where it cannot be read
    :param pages: node -> resident pages of the sample, as pairs; ranges of another process than that say nothing
    :param problem: why it cannot be read, "" where it can
    """

    process: Process | None = None
    pages: tuple[tuple[int, int], ...] = ()
    problem: str = ""


class ThreadCount(NamedTuple):
    """Hardware counters of one vCPU thread since they were opened; -1 where the CPU does not count it.

    :param uuid: of the server
    :param tid: of the thread
    :param enabled_ns: time for which it was to be counted
    :param running_ns: time for which it was: less than enabled where counters are shared out
    :param cycles: unhalted core cycles
    :param instructions: retired instructions
    :param misses: last-level-cache misses
    :param stalls: cycles in which the core waited for memory
    """

    uuid: str
    tid: int
    enabled_ns: int
    running_ns: int
    cycles: int
    instructions: int
    misses: int
    stalls: int


class CountReport(NamedTuple):
    """What one reading of the counters gave.

    :param counts: of all threads that could be read
    :param problem: why some could not, "" when all could
    """

    counts: tuple[ThreadCount, ...]
    problem: str
