# SPDX-License-Identifier: Apache-2.0
"""The only writer of resctrl: carries out checked changes, moves threads, takes everything back.

- :meth:`GroupWriter.carry_out` – under the lock: compare, check, write in the given order, read back;
- :meth:`GroupWriter.move_process` – all threads of a process into a group;
- :meth:`GroupWriter.reset` – undo what we changed; what root was found with should be remembered, but need not.

Each compares before it writes and can be run again after a crash at any point, with the same end state. What the
planner decides is checked (:mod:`.checks`); nothing is decided here.
"""

import os
import time
from collections.abc import Callable, Collection, Sequence
from functools import reduce
from typing import Final

from host_agent.machine.rdt.checks import after, check, refuse_lost, refuse_outdated
from host_agent.machine.rdt.errors import ResctrlBusyError, ResctrlGoneError
from host_agent.machine.rdt.resctrl import MoveResult, Resctrl
from host_agent.model.partition import RdtChange, Write, WriteKind
from host_agent.model.rdt import (
    ROOT_GROUP,
    SHAREABLE_MODE,
    Actual,
    BandwidthUnit,
    CacheControl,
    Capabilities,
    GroupState,
    Schemata,
)

LIMBO_WAIT_S: Final = 5.0
_RETRY_EVERY_S: Final = 0.5  # the kernel looks into the limbo once a second


class GroupWriter:
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

    def check(self, change: RdtChange) -> None:
        """Refuse a change that cannot be carried out now; write nothing.

        :raises RdtChangedError: the groups are not those any more that it was planned for
        :raises InvalidValueError: it is not legal on this host
        """
        check(self._resctrl.capabilities(), self._resctrl.actual(), change)

    def carry_out(self, change: RdtChange) -> None:
        """Write a change in its order and verify it; nothing is written when it as a whole must not be.

        The lock is released while waiting for RMIDs. What other software changes meanwhile ends it.

        :raises RdtChangedError: the groups are not those any more that it was planned for
        :raises InvalidValueError: it is not legal on this host; nothing was written
        :raises ResctrlError: the kernel refused a command; what was written before stands
        :raises ConflictError: what was read back is not what was written
        """
        capabilities = self._resctrl.capabilities()
        with self._resctrl.lock():
            check(capabilities, self._resctrl.actual(), change)
        pending = list(change.writes)
        expected = change.seen

        def go_on() -> None:
            nonlocal expected
            now = self._resctrl.actual()
            refuse_outdated(expected, now)
            while pending:
                self._perform(pending[0])
                write = pending.pop(0)
                expected, now = after(expected, write), after(now, write)
            refuse_lost(now, self._resctrl.actual())

        self._until_done(go_on)

    def release_bandwidth(self, *, write: bool = True) -> tuple[Write, ...]:
        """Give all our groups all memory bandwidth; masks and threads stay as they are.

        Without the lock, which an agent that hangs may hold for ever: each of these writes stands alone.

        :param write: false: only say what would be written
        :raises ResctrlError: the kernel refused a command
        """
        capabilities = self._resctrl.capabilities()
        writes = _release_writes(capabilities, self._resctrl.actual())
        for each in writes if write else ():
            self._perform(each)
        return writes

    def reset(self, found: Schemata | None = None, *, write: bool = True) -> tuple[Write, ...]:
        """Give root back what it was found with and remove our groups; foreign groups and root's bandwidth stay.

        :param found: root's masks where they were shrunk. None when that is not known: then root gets all ways that no
            foreign group holds exclusively.
        :param write: false: only say what would be written
        :raises ResctrlError: the kernel refused a command
        """
        capabilities = self._resctrl.capabilities()
        if not write:
            return _reset_writes(capabilities, self._resctrl.actual(), found)
        done: list[Write] = []

        def undo() -> None:
            now = self._resctrl.actual()
            writes = _reset_writes(capabilities, now, found)
            for each in writes:
                self._perform(each)
                done.append(each)
            refuse_lost(reduce(after, writes, now), self._resctrl.actual())

        self._until_done(undo)
        return tuple(done)

    def move_process(
        self,
        group: str,
        monitor: str,
        pid: int,
        extra: Collection[int] = (),
        *,
        write: bool = True,
    ) -> MoveResult:
        """Move all threads of a process into a group, and again until no new one shows up.

        :param group: control group of ours, "" for root
        :param monitor: monitoring group in it, or ""
        :param pid: process id
        :param extra: thread ids outside the process that work for it (``vhost-PID`` kernel threads before Linux 6.4)
        :param write: false: only say which threads would be moved; all, where the group does not exist yet
        :raises ResctrlGoneError: the group does not exist
        """

        def threads() -> set[int]:
            try:
                inside = set(map(int, os.listdir(f"{self._proc}/{pid}/task")))
            except FileNotFoundError:
                return set()
            return inside | set(extra)

        if not write:
            there = self._tasks(group, monitor)
            return MoveResult(tuple(sorted(threads() - there)), len(threads() & there), 0)
        with self._resctrl.lock():
            return self._resctrl.move_tasks(group, monitor, threads)

    def _tasks(self, group: str, monitor: str) -> frozenset[int]:
        try:
            return self._resctrl.tasks(group, monitor)
        except ResctrlGoneError:
            return frozenset()

    def _until_done(self, attempt: Callable[[], None]) -> None:
        """Try under the lock until no RMID is in limbo and no group vanishes in between."""
        deadline = self._clock() + self._limbo_wait_s
        while True:
            try:
                with self._resctrl.lock():
                    attempt()
                return
            except (ResctrlBusyError, ResctrlGoneError):
                if self._clock() >= deadline:
                    raise
            self._sleep(_RETRY_EVERY_S)

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


def _release_writes(capabilities: Capabilities, actual: Actual) -> tuple[Write, ...]:
    bandwidth = capabilities.bandwidth
    if bandwidth is None or bandwidth.unit is BandwidthUnit.MBPS:  # then the levels are not ours
        return ()
    target = {"MB": dict.fromkeys(bandwidth.domains, bandwidth.max_bandwidth)}
    return tuple(
        _schemata_write(group, differs)
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
        writes.append(_schemata_write(actual.root, differs))
    return tuple(writes)


def _schemata_write(group: GroupState, values: Schemata) -> Write:
    before = {
        name: {d: group.schemata[name][d] for d in written if d in group.schemata[name]}
        for name, written in values.items()
        if name in group.schemata
    }
    return Write(WriteKind.SCHEMATA, group.name, schemata=values, before=before)


def _widest(cache: CacheControl, domain: int, wanted: int, foreign: Sequence[GroupState]) -> int:
    """Return the longest run of ``wanted`` ways that no foreign group holds exclusively: all where there is none."""
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
