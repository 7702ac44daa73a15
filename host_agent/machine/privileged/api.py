# SPDX-License-Identifier: Apache-2.0
"""Three ways through the seam: in process, by oslo.privsep's helper, and reading only (``--dry-run``)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from host_agent.conf.paths import HostPaths
from host_agent.model.process import (
    CountReport,
    GroupLevel,
    MoveLimits,
    MoveReport,
    PartitionReport,
    PartitionWish,
    Pin,
    PinFailure,
    Process,
    QuotaReport,
    RamRange,
    Target,
)

# Linux capability numbers (include/uapi/linux/capability.h): what the helper keeps, and what makes it superfluous.
CAP_DAC_OVERRIDE: Final = 1
CAP_SYS_PTRACE: Final = 19
CAP_SYS_NICE: Final = 23
CAP_PERFMON: Final = 38
NEEDED: Final = (CAP_DAC_OVERRIDE, CAP_SYS_PTRACE, CAP_SYS_NICE, CAP_PERFMON)


class Privileged(Protocol):
    """What the agent may ask of the privileged side; see :class:`~.operations.HostOperations`."""

    def process(self, uuid: str) -> Process:
        """Process and threads of a domain."""

    def guest_ram(self, uuid: str) -> tuple[RamRange, ...]:
        """Full pass over guest memory."""

    def sample(
        self, uuid: str, ranges: Sequence[tuple[int, int]], pages: int
    ) -> tuple[tuple[int, int], ...]:
        """Sampled residency."""

    def pin(self, uuid: str, pins: Sequence[Pin]) -> tuple[PinFailure, ...]:
        """Set affinities."""

    def move_memory(self, uuid: str, targets: Sequence[Target], limits: MoveLimits) -> MoveReport:
        """Move pages."""

    def count(self, threads: Sequence[tuple[str, Sequence[int]]]) -> CountReport:
        """Hardware counters of vCPU threads."""

    def partition(
        self, wishes: Sequence[PartitionWish], shrink_root: bool, shared_ways_min: int, write: bool
    ) -> PartitionReport:
        """RDT groups."""

    def throttle(self, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
        """Bandwidth levels of RDT groups, in a hurry."""

    def limit_cpu_time(self, levels: Sequence[tuple[str, int]], write: bool) -> QuotaReport:
        """CPU time of best-effort servers."""

    def release_throttles(self, write: bool) -> tuple[str, ...]:
        """Take all throttles off."""

    def alive(self, after_s: float) -> None:
        """A sign of life for the dead man's switch."""

    def leave(self) -> None:
        """Switch it off."""

    def reset_partitions(self, write: bool) -> tuple[str, ...]:
        """Undo all RDT groups."""


class ReadOnly:
    """The dry-run twin: reads pass, writes are answered as if nothing had to be done.

    :param inner: the real thing
    """

    def __init__(self, inner: Privileged) -> None:
        self._inner = inner

    def process(self, uuid: str) -> Process:
        """Read as the real one does."""
        return self._inner.process(uuid)

    def guest_ram(self, uuid: str) -> tuple[RamRange, ...]:
        """Read as the real one does."""
        return self._inner.guest_ram(uuid)

    def sample(
        self, uuid: str, ranges: Sequence[tuple[int, int]], pages: int
    ) -> tuple[tuple[int, int], ...]:
        """Read as the real one does."""
        return self._inner.sample(uuid, ranges, pages)

    def pin(self, uuid: str, pins: Sequence[Pin]) -> tuple[PinFailure, ...]:
        """Pin nothing."""
        return ()

    def move_memory(self, uuid: str, targets: Sequence[Target], limits: MoveLimits) -> MoveReport:
        """Move nothing."""
        return MoveReport(0, 0, 0, 0, 0.0, "")

    def count(self, threads: Sequence[tuple[str, Sequence[int]]]) -> CountReport:
        """Read as the real one does."""
        return self._inner.count(threads)

    def partition(
        self, wishes: Sequence[PartitionWish], shrink_root: bool, shared_ways_min: int, write: bool
    ) -> PartitionReport:
        """Plan, but write nothing."""
        return self._inner.partition(wishes, shrink_root, shared_ways_min, False)

    def throttle(self, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
        """Write nothing."""
        return ("",) * len(levels)

    def limit_cpu_time(self, levels: Sequence[tuple[str, int]], write: bool) -> QuotaReport:
        """List what would be limited."""
        return self._inner.limit_cpu_time(levels, False)

    def release_throttles(self, write: bool) -> tuple[str, ...]:
        """List what would be released."""
        return self._inner.release_throttles(False)

    def alive(self, after_s: float) -> None:
        """Nothing is in force that would have to be released."""

    def leave(self) -> None:
        """Nothing was begun."""

    def reset_partitions(self, write: bool) -> tuple[str, ...]:
        """List what would be undone."""
        return self._inner.reset_partitions(False)


def open_seam(paths: HostPaths, conf: Any, *, dry_run: bool) -> Privileged:
    """Return the way through the seam that fits this process.

    :param conf: the loaded configuration, which the helper reads, too
    :param dry_run: reading only
    """
    real: Privileged
    if has_rights(Path("/proc/self/status").read_text()):
        from host_agent.machine.privileged.operations import HostOperations

        real = HostOperations(paths)
    else:
        from host_agent.machine.privileged.separated import Separated

        real = Separated(conf)
    return ReadOnly(real) if dry_run else real


def has_rights(status: str) -> bool:
    """Tell from the text of ``/proc/self/status`` whether this process may do all of it itself.

    Capabilities alone do not: resctrl lets only root (effective uid 0) move other users' threads into a group
    (``rdtgroup_task_write_permission`` in the kernel).
    """
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    effective_uid = int(fields["Uid"].split()[1])
    effective = int(fields["CapEff"], 16)
    return effective_uid == 0 and all(effective >> number & 1 for number in NEEDED)
