# SPDX-License-Identifier: Apache-2.0
"""The kernel's resctrl file system as a small library: what is read, and what is written one command at a time.

Groups of others are never changed: every method refuses a name without our prefix (root's schemata and threads
excepted). Decisions are elsewhere: :mod:`host_agent.decide.partitions.plan` says what should be,
:mod:`host_agent.machine.rdt.writer` makes it so. Levels of :mod:`host_agent.decide.slo.levels` come the short way, to
:meth:`Resctrl.set_levels`.
"""

import errno
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from host_agent.machine.rdt.errors import NoSuchTaskError, ResctrlRefusedError
from host_agent.machine.rdt.reader import ResctrlReader, directory_of, join
from host_agent.model.process import GroupLevel
from host_agent.model.rdt import (
    GROUP_PREFIX,
    ROOT_GROUP,
    BandwidthControl,
    BandwidthUnit,
    Schemata,
    format_schemata,
)
from placement_traits.errors import NumaExtError

_MAX_ROUNDS: Final = 16


@dataclass(frozen=True, slots=True)
class MoveResult:
    """Threads that were moved, and how many were already there or ended while being moved."""

    moved: tuple[int, ...]
    already: int
    ended: int


class Resctrl(ResctrlReader):
    """One mounted resctrl tree that is written, too."""

    def create_group(self, name: str) -> None:
        """Create a control group of ours.

        :raises ResctrlExhaustedError: no CLOSID or RMID is left
        :raises ResctrlBusyError: RMIDs are in limbo, try later
        """
        self._only_ours(name)
        self._call("creating a control group", name, self._files.mkdir)

    def remove_group(self, name: str) -> None:
        """Remove a control group of ours; its threads fall back to root."""
        self._only_ours(name)
        self._call("removing a control group", name, self._files.rmdir)

    def create_monitor(self, group: str, monitor: str) -> None:
        """Create a monitoring group of ours in root or in a control group of ours; errors as :meth:`create_group`."""
        self._only_ours(*filter(None, (group,)), monitor)
        self._call("creating a monitoring group", directory_of(group, monitor), self._files.mkdir)

    def remove_monitor(self, group: str, monitor: str) -> None:
        """Remove a monitoring group of ours; its threads stay in the control group."""
        self._only_ours(*filter(None, (group,)), monitor)
        self._call("removing a monitoring group", directory_of(group, monitor), self._files.rmdir)

    def write_schemata(self, group: str, schemata: Schemata) -> None:
        """Set masks and bandwidth of root or of a group of ours in one command: the kernel takes all or nothing.

        :raises ResctrlRefusedError: with the kernel's reason
        """
        if group != ROOT_GROUP:
            self._only_ours(group)
        self._write(join(group, "schemata"), format_schemata(schemata))

    def set_levels(self, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
        """Write bandwidth levels of groups and nothing else: the short way of a control loop.

        Only what differs is written, and read back. No group is made and no thread moved.

        :returns: one sentence per entry about what went wrong, "" where nothing did
        """
        try:
            with self.lock():
                control = self.bandwidth()
                if control is None or control.unit is BandwidthUnit.MBPS:
                    return ("memory bandwidth is not allocated by us on this host",) * len(levels)
                return tuple(self._set_level(control, level) for level in levels)
        except (NumaExtError, OSError) as error:
            return (str(error),) * len(levels)

    def _set_level(self, control: BandwidthControl, level: GroupLevel) -> str:
        desired = {domain: control.from_percent(percent) for domain, percent in level.mba_percent}
        try:
            now = self.schemata(level.group).get("MB", {})
            differs = {
                domain: value for domain, value in desired.items() if now.get(domain) != value
            }
            if not differs:
                return ""
            self.write_schemata(level.group, {"MB": differs})
            kept = self.schemata(level.group).get("MB", {})
        except (NumaExtError, OSError) as error:
            return str(error)
        lost = {
            domain: kept.get(domain)
            for domain, value in differs.items()
            if kept.get(domain) != value
        }
        return f"group {level.group} did not keep {differs}: it has {lost}" if lost else ""

    def move_tasks(
        self, group: str, monitor: str, threads: Callable[[], Collection[int]]
    ) -> MoveResult:
        """Move threads into a group, one per write, and look again until no new thread shows up.

        Threads inherit the group of the thread that creates them, so the second look finds only those born of threads
        that were not moved yet. A monitoring group takes only threads of its control group: those that come from
        elsewhere are written twice.

        :param group: control group of ours, or root
        :param monitor: monitoring group in it, or ""
        :param threads: lists the thread ids now (of a process: ``/proc/PID/task``)
        :raises ResctrlGoneError: the group was removed meanwhile
        """
        if group != ROOT_GROUP:
            self._only_ours(group)
        places = [(group, "")] if not monitor else [(group, ""), (group, monitor)]
        moved: dict[int, None] = {}
        ended: set[int] = set()
        already: set[int] | None = None
        for _round in range(_MAX_ROUNDS):
            inside = [self.tasks(*place) for place in places]
            desired = set(threads()) - ended
            if already is None:
                already = desired & inside[-1]
            missing = sorted(desired - inside[-1])
            if not missing:
                break
            for tid in missing:
                try:
                    for place, members in zip(places, inside, strict=True):
                        if tid not in members:
                            self._write(join(directory_of(*place), "tasks"), f"{tid}\n")
                    moved[tid] = None
                except NoSuchTaskError:
                    ended.add(tid)
        return MoveResult(tuple(moved), len(already or ()), len(ended))

    def _only_ours(self, *names: str) -> None:
        for name in names:
            if not name.startswith(GROUP_PREFIX) or "/" in name:
                action = f"changing a group whose name does not start with {GROUP_PREFIX!r}"
                raise ResctrlRefusedError(action, name, "", errno.EPERM)

    def _write(self, path: str, data: str) -> None:
        try:
            self._files.write(path, data)
        except OSError as error:
            raise self._error(f"writing {data.strip()!r}", path, data.strip(), error) from error
