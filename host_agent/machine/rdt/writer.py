# SPDX-License-Identifier: Apache-2.0
"""The writer of RDT groups: checks and carries out changes, moves threads, takes everything back.

- :meth:`GroupWriter.carry_out` – under the lock: compare, check, write in the given order, read back;
- :meth:`GroupWriter.move_process` – all threads of a process into a group;
- :meth:`GroupWriter.reset` – undo what we changed; what root was found with should be remembered, but need not.

Each compares before it writes and can be run again after a crash at any point, with the same end state. Nothing is
decided here. The planner has no rights, and what it planned for may have changed since, so a change is checked as a
whole before its first write. It passes when the groups are still those that it was planned for, when it touches nothing
but root's masks and groups of ours, and when every value is one that this host's kernel takes. Memory bandwidth levels
are not compared: the SLO controller writes them meanwhile.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import reduce
from typing import Final

from host_agent.machine.rdt.errors import (
    RdtChangedError,
    ResctrlBusyError,
    ResctrlError,
    ResctrlGoneError,
)
from host_agent.machine.rdt.resctrl import MoveResult, Resctrl
from host_agent.machine.rdt.undo import release_writes, reset_writes
from host_agent.model.partition import RdtChange, Write, WriteKind
from host_agent.model.rdt import (
    GROUP_PREFIX,
    ROOT_GROUP,
    SHAREABLE_MODE,
    Actual,
    Capabilities,
    GroupState,
    Schemata,
    is_bandwidth,
    validate,
    validate_budget,
)
from placement_traits.errors import ConflictError, InvalidValueError

_OURS: Final = f"root, or a group whose name starts with {GROUP_PREFIX!r}"
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
        _check(self._resctrl.capabilities(), self._resctrl.actual(), change)

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
            _check(capabilities, self._resctrl.actual(), change)
        pending = list(change.writes)
        expected = change.seen

        def go_on() -> None:
            nonlocal expected
            now = self._resctrl.actual()
            _refuse_outdated(expected, now)
            while pending:
                self._perform(pending[0])
                write = pending.pop(0)
                expected, now = _after(expected, write), _after(now, write)
            _refuse_lost(now, self._resctrl.actual())

        self._until_done(go_on)

    def release_bandwidth(self, *, write: bool = True) -> tuple[Write, ...]:
        """Give all our groups all memory bandwidth; masks and threads stay as they are.

        Without the lock, which an agent that hangs may hold for ever: each of these writes stands alone.

        :param write: false: only say what would be written
        :raises ResctrlError: the kernel refused a command; all others were carried out
        """
        capabilities = self._resctrl.capabilities()
        writes = release_writes(capabilities, self._resctrl.actual())
        refused: list[ResctrlError] = []
        for each in writes if write else ():
            try:
                self._perform(each)
            except ResctrlError as error:
                refused.append(error)
        if refused:
            raise refused[0]
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
            return reset_writes(capabilities, self._resctrl.actual(), found)
        done: list[Write] = []

        def undo() -> None:
            now = self._resctrl.actual()
            writes = reset_writes(capabilities, now, found)
            for each in writes:
                self._perform(each)
                done.append(each)
            _refuse_lost(reduce(_after, writes, now), self._resctrl.actual())

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
        :param extra: thread ids outside the process that work for it (kernel threads)
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


# -- what a change may do --


def _check(capabilities: Capabilities, actual: Actual, change: RdtChange) -> None:
    """Refuse a change that must not or cannot be carried out, as a whole.

    :raises RdtChangedError: the groups are not those any more that it was planned for
    :raises InvalidValueError: names group, domain, value and what is allowed
    """
    _refuse_outdated(change.seen, actual)
    validate(capabilities, ROOT_GROUP, change.root_found)
    now = actual
    for write in change.writes:
        validate(capabilities, write.group, write.schemata)
        now = _after(now, write)
    control = [group for group in now.groups if group.name != ROOT_GROUP]
    validate_budget(capabilities, len(control), sum(len(group.monitors) for group in now.groups))
    for member in change.members:
        _ours(member.group, member.monitor)


def _refuse_outdated(seen: Actual, now: Actual) -> None:
    """Refuse to go on when groups, modes or masks are not those that were seen.

    :raises RdtChangedError: says what differs
    """
    found = list(_differences(seen, now))
    if found:
        raise RdtChangedError("RDT groups have changed since they were read: " + "; ".join(found))


def _differences(seen: Actual, now: Actual, *, levels: bool = False) -> Iterator[str]:
    """Yield what differs, one sentence each; values that were not seen count as equal.

    :param levels: compare bandwidth levels, too
    """
    before = {group.name: group for group in seen.groups}
    there = {group.name: group for group in now.groups}
    for name in sorted(before.keys() ^ there.keys()):
        yield f"group {name} has {'gone' if name in before else 'appeared'}"
    for name in sorted(before.keys() & there.keys()):
        yield from _different_group(before[name], there[name], levels=levels)


def _different_group(seen: GroupState, now: GroupState, *, levels: bool) -> Iterator[str]:
    name = seen.name or "(root)"
    if seen.mode != now.mode:
        yield f"group {name} is {now.mode}, not {seen.mode}"
    for monitor in sorted(set(seen.monitors) ^ set(now.monitors)):
        what = "gone" if monitor in seen.monitors else "appeared"
        yield f"monitoring group {name}/{monitor} has {what}"
    for resource, values in seen.schemata.items():
        if is_bandwidth(resource) and not levels:
            continue
        style = "d" if is_bandwidth(resource) else "x"
        for domain, value in values.items():
            there = now.schemata.get(resource, {}).get(domain)
            if there != value:
                has = "nothing" if there is None else f"{there:{style}}"
                yield f"group {name} has {resource}:{domain}={has}, not {value:{style}}"


def _after(now: Actual, write: Write) -> Actual:
    """Return the groups as a write leaves them; of a new group only what was written to it is known.

    :raises InvalidValueError: it touches what is not ours, or what is not there
    :raises RdtChangedError: it was planned for another value
    """
    _ours(write.group, write.monitor)
    groups = {group.name: group for group in now.groups}
    if write.kind is WriteKind.CREATE_GROUP:
        _expect(write, write.group not in groups, "a group that is not there yet")
        return Actual((*now.groups, GroupState(write.group, SHAREABLE_MODE, {})))
    _expect(write, write.group in groups, "a group that is there")
    group = groups[write.group]
    match write.kind:
        case WriteKind.REMOVE_GROUP:
            _expect(write, write.group != ROOT_GROUP, "a group of ours")
            return Actual(tuple(each for each in now.groups if each is not group))
        case WriteKind.SCHEMATA:
            groups[group.name] = replace(group, schemata=_written(group, write))
        case WriteKind.MOVE_THREADS:
            _ours(write.target)
            _expect(write, write.monitor in group.monitors, "a monitoring group that is there")
            _expect(write, write.target in groups, "a target that is there")
        case WriteKind.CREATE_MONITOR:
            _expect(write, write.monitor not in group.monitors, "one that is not there yet")
            groups[group.name] = replace(group, monitors=(*group.monitors, write.monitor))
        case WriteKind.REMOVE_MONITOR:
            _expect(write, write.monitor in group.monitors, "a monitoring group that is there")
            left = tuple(monitor for monitor in group.monitors if monitor != write.monitor)
            groups[group.name] = replace(group, monitors=left)
    return Actual(tuple(groups.values()))


def _written(group: GroupState, write: Write) -> Schemata:
    if write.group == ROOT_GROUP:
        levels = [resource for resource in write.schemata if is_bandwidth(resource)]
        _expect(write, not levels, "root's masks only: its bandwidth is the host's")
    planned_for = GroupState(group.name, group.mode, write.before, group.monitors)
    for sentence in _different_group(planned_for, group, levels=False):
        raise RdtChangedError(f"{write} was planned for another value: {sentence}")
    names = sorted(group.schemata.keys() | write.schemata.keys())
    return {
        name: {**group.schemata.get(name, {}), **write.schemata.get(name, {})} for name in names
    }


def _ours(group: str, monitor: str = "") -> None:
    for name in filter(None, (group, monitor)):
        if not name.startswith(GROUP_PREFIX) or "/" in name:
            raise InvalidValueError("RDT group to change", name, _OURS)


def _expect(write: Write, fits: bool, allowed: str) -> None:
    if not fits:
        raise InvalidValueError("write to resctrl", str(write), allowed)


def _refuse_lost(expected: Actual, now: Actual) -> None:
    """Refuse to call done what is not there: groups of ours and root, levels too, for the lock is held meanwhile.

    :raises ConflictError: says what differs
    """
    lost = list(_differences(_own(expected), _own(now), levels=True))
    if lost:
        raise ConflictError("resctrl did not keep what was written: " + "; ".join(lost))


def _own(actual: Actual) -> Actual:
    groups = (actual.root, *actual.ours)
    return Actual(tuple(replace(group, monitors=group.our_monitors) for group in groups))
