# SPDX-License-Identifier: Apache-2.0
"""The only writer of resctrl: makes a plan true, moves threads, takes everything back.

Three coarse operations with plain arguments, so that a privileged helper can sit exactly here:

- :meth:`Executor.apply` – under the lock: read, compare, write the difference, read back;
- :meth:`Executor.move_process` – all threads of a process into a group;
- :meth:`Executor.reset` – undo what we changed; what root was found with should be remembered, but need not.

Each compares before it writes and can be run again after a crash at any point, with the same end state.
:class:`DryRun` answers with the same commands and touches nothing.
"""

import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from host_agent.decide.partitions.changes import Write, WriteKind, changes
from host_agent.decide.partitions.plan import PartitionPlan
from host_agent.machine.rdt.errors import ResctrlBusyError, ResctrlGoneError
from host_agent.machine.rdt.resctrl import MoveResult, Resctrl
from host_agent.model.rdt import (
    ROOT_GROUP,
    SHAREABLE_MODE,
    Actual,
    BandwidthUnit,
    CacheControl,
    Capabilities,
    GroupState,
    Schemata,
    validate,
    validate_budget,
)
from placement_traits.errors import ConflictError

LIMBO_WAIT_S: Final = 5.0
_RETRY_EVERY_S: Final = 0.5  # the kernel looks into the limbo once a second


class RdtActuator(Protocol):
    """What the agent's loop needs from an RDT backend."""

    def apply(self, plan: PartitionPlan) -> tuple[Write, ...]:
        """Make the plan true; return what was written, in order."""

    def move_process(
        self, group: str, monitor: str, pid: int, extra: Collection[int] = ()
    ) -> MoveResult:
        """Move all threads of a process, and ``extra`` ones outside it, into a group ("" is root)."""

    def release_bandwidth(self) -> tuple[Write, ...]:
        """Give all our groups all memory bandwidth; return what was written."""

    def reset(self, found: Schemata | None = None) -> tuple[Write, ...]:
        """Undo everything of ours; return what was written."""


class Executor:
    """Writes to a resctrl tree.

    :param resctrl: the tree
    :param proc: where proc(5) is mounted
    :param limbo_wait_s: how long to wait for RMIDs of removed groups before giving up
    :param clock: seconds, monotonic
    :param sleep: waits so many seconds
    """

    def __init__(
        self,
        resctrl: Resctrl,
        *,
        proc: str = "/proc",
        limbo_wait_s: float = LIMBO_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._resctrl = resctrl
        self._proc = proc
        self._limbo_wait_s = limbo_wait_s
        self._clock = clock
        self._sleep = sleep

    def apply(self, plan: PartitionPlan) -> tuple[Write, ...]:
        """Make the plan true and verify it; return what was written, in order.

        Nothing is written when the plan as a whole is not legal on this host. The lock is released while waiting for
        RMIDs, and what is there is read again after that.

        :raises InvalidValueError: the plan is not legal here; nothing was written
        :raises ResctrlError: the kernel refused a command; what was written before stands, and running again goes on
        :raises ConflictError: what was read back is not what was written
        """
        capabilities = self._resctrl.capabilities()
        return self._until_done(lambda actual: _checked(capabilities, actual, plan))

    def release_bandwidth(self) -> tuple[Write, ...]:
        """Give all our groups all memory bandwidth; masks and threads stay as they are.

        Without the lock, which an agent that hangs may hold for ever: each of these writes stands alone.

        :raises ResctrlError: the kernel refused a command
        """
        capabilities = self._resctrl.capabilities()
        writes = _release_writes(capabilities, self._resctrl.actual())
        for write in writes:
            self._perform(write)
        return writes

    def reset(self, found: Schemata | None = None) -> tuple[Write, ...]:
        """Give root back what it was found with and remove our groups; strangers and root's bandwidth stay as they are.

        :param found: root's masks where they were shrunk (:attr:`PartitionPlan.found`). None when that is not known:
            then root gets all ways that no stranger holds exclusively.
        :raises ResctrlError: the kernel refused a command
        """
        capabilities = self._resctrl.capabilities()
        return self._until_done(lambda actual: _reset_writes(capabilities, actual, found))

    def move_process(
        self, group: str, monitor: str, pid: int, extra: Collection[int] = ()
    ) -> MoveResult:
        """Move all threads of a process into a group, and again until no new one shows up.

        :param group: control group of ours, "" for root
        :param monitor: monitoring group in it, or ""
        :param pid: process id
        :param extra: thread ids outside the process that work for it (``vhost-PID`` kernel threads before Linux 6.4)
        :raises ResctrlGoneError: the group does not exist
        """

        def threads() -> set[int]:
            try:
                inside = set(map(int, os.listdir(f"{self._proc}/{pid}/task")))
            except FileNotFoundError:
                return set()
            return inside | set(extra)

        with self._resctrl.lock():
            return self._resctrl.move_tasks(group, monitor, threads)

    def _until_done(self, decide: Callable[[Actual], tuple[Write, ...]]) -> tuple[Write, ...]:
        done: list[Write] = []
        deadline = self._clock() + self._limbo_wait_s
        while True:
            try:
                with self._resctrl.lock():
                    for write in decide(self._resctrl.actual()):
                        self._perform(write)
                        done.append(write)
                    left = decide(self._resctrl.actual())
            except (ResctrlBusyError, ResctrlGoneError):
                if self._clock() >= deadline:
                    raise
                self._sleep(_RETRY_EVERY_S)
                continue
            if left:
                raise ConflictError(
                    "resctrl did not keep what was written; still to do: "
                    + "; ".join(map(str, left))
                )
            return tuple(done)

    def _perform(self, write: Write) -> None:
        match write.kind:
            case WriteKind.MOVE_THREADS:
                self._resctrl.move_tasks(
                    write.target, "", lambda: self._resctrl.tasks(write.group, write.monitor)
                )
            case WriteKind.REMOVE_GROUP:
                self._resctrl.remove_group(write.group)
            case WriteKind.REMOVE_MONITOR:
                self._resctrl.remove_monitor(write.group, write.monitor)
            case WriteKind.CREATE_GROUP:
                self._resctrl.create_group(write.group)
            case WriteKind.CREATE_MONITOR:
                self._resctrl.create_monitor(write.group, write.monitor)
            case WriteKind.SCHEMATA:
                self._resctrl.write_schemata(write.group, write.schemata)


class DryRun:
    """The executor's twin that only says what it would do."""

    def __init__(self, resctrl: Resctrl, *, proc: str = "/proc") -> None:
        self._resctrl = resctrl
        self._proc = proc

    def apply(self, plan: PartitionPlan) -> tuple[Write, ...]:
        """Return what :meth:`Executor.apply` would write; the same checks, the same errors."""
        return _checked(self._resctrl.capabilities(), self._resctrl.actual(), plan)

    def release_bandwidth(self) -> tuple[Write, ...]:
        """Return what :meth:`Executor.release_bandwidth` would write."""
        return _release_writes(self._resctrl.capabilities(), self._resctrl.actual())

    def reset(self, found: Schemata | None = None) -> tuple[Write, ...]:
        """Return what :meth:`Executor.reset` would write."""
        return _reset_writes(self._resctrl.capabilities(), self._resctrl.actual(), found)

    def move_process(
        self, group: str, monitor: str, pid: int, extra: Collection[int] = ()
    ) -> MoveResult:
        """Return which threads :meth:`Executor.move_process` would move (all, when the group does not exist yet)."""
        try:
            there = self._resctrl.tasks(group, monitor)
        except ResctrlGoneError:
            there = frozenset()
        try:
            threads = set(map(int, os.listdir(f"{self._proc}/{pid}/task"))) | set(extra)
        except FileNotFoundError:
            threads = set()
        return MoveResult(tuple(sorted(threads - there)), len(threads & there), 0)


def _checked(capabilities: Capabilities, actual: Actual, plan: PartitionPlan) -> tuple[Write, ...]:
    """Return the writes of a plan after checking all of it."""
    validate(capabilities, ROOT_GROUP, plan.root)
    for group in plan.groups:
        validate(capabilities, group.name, group.schemata)
    strangers = sum(len(g.monitors) - len(g.our_monitors) for g in actual.groups)
    monitors = strangers + sum(len(group.monitors) for group in plan.groups)
    validate_budget(capabilities, len(plan.groups) + len(actual.foreign), monitors)
    return changes(actual, plan)


def _release_writes(capabilities: Capabilities, actual: Actual) -> tuple[Write, ...]:
    bandwidth = capabilities.bandwidth
    if bandwidth is None or bandwidth.unit is BandwidthUnit.MBPS:  # then the levels are not ours
        return ()
    target = {"MB": dict.fromkeys(bandwidth.domains, bandwidth.max_bandwidth)}
    return tuple(
        Write(WriteKind.SCHEMATA, group.name, schemata=differs)
        for group in actual.ours
        if (differs := _differs(group.schemata, target))
    )


def _reset_writes(
    capabilities: Capabilities, actual: Actual, found: Schemata | None
) -> tuple[Write, ...]:
    writes = [Write(WriteKind.REMOVE_GROUP, group.name) for group in actual.ours]
    writes += [
        Write(WriteKind.REMOVE_MONITOR, ROOT_GROUP, monitor) for monitor in actual.root.our_monitors
    ]
    if found is None:
        found = {
            cache.name: dict.fromkeys(cache.domains, cache.cbm_mask) for cache in capabilities.l3
        }
    target = {
        cache.name: {
            domain: _widest(cache, domain, mask, actual.foreign)
            for domain, mask in found.get(cache.name, {}).items()
        }
        for cache in capabilities.l3
    }
    differs = _differs(actual.root.schemata, target)
    if differs:
        writes.append(Write(WriteKind.SCHEMATA, ROOT_GROUP, schemata=differs))
    return tuple(writes)


def _widest(cache: CacheControl, domain: int, wanted: int, foreign: Sequence[GroupState]) -> int:
    """Return the longest run of ``wanted`` ways that no stranger holds exclusively: all on a host without such."""
    free = wanted
    for group in foreign:
        if group.mode != SHAREABLE_MODE:
            free &= ~group.schemata.get(cache.name, {}).get(domain, 0)
    if free == wanted:
        return wanted  # the mask that was there, with holes if it had some
    runs = []
    while free:
        run = free & ~(free + (free & -free))
        runs.append(run)
        free &= ~run
    return max(runs, key=int.bit_count, default=wanted)


def _differs(now: Schemata, target: Schemata) -> dict[str, dict[int, int]]:
    found = {
        name: {d: v for d, v in values.items() if now.get(name, {}).get(d) != v}
        for name, values in target.items()
    }
    return {name: values for name, values in found.items() if values}
