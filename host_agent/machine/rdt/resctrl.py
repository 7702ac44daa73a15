# SPDX-License-Identifier: Apache-2.0
"""The kernel's resctrl file system as a small library: detect, read, write one command at a time.

Detection looks at ``info/`` only. Errors carry the kernel's own sentence. Groups of others are listed but never
changed: every method that changes something refuses a name without our prefix (root's schemata and threads excepted).
Decisions are elsewhere: :mod:`host_agent.decide.partitions.plan` says what should be,
:mod:`host_agent.machine.rdt.writer` makes it so.
"""

import errno
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeVar

from host_agent.machine.rdt.errors import (
    NoSuchTaskError,
    ResctrlError,
    ResctrlGoneError,
    ResctrlRefusedError,
    ResctrlUnavailableError,
    error_class,
)
from host_agent.machine.rdt.files import OsFiles, ResctrlFiles
from host_agent.model.rdt import (
    EIGHTH_GBPS_MBPS,
    GROUP_PREFIX,
    ROOT_GROUP,
    SHAREABLE_MODE,
    UINT32_MAX,
    Actual,
    BandwidthControl,
    BandwidthUnit,
    CacheControl,
    Capabilities,
    Counter,
    GroupState,
    Monitoring,
    Schemata,
    format_schemata,
    parse_counter,
    parse_mask,
    parse_number,
    parse_schemata,
)

_NOT_GROUPS: Final = frozenset({"info", "mon_data", "mon_groups"})
_L3_MONITORS: Final = "mon_L3_"
# The kernel's last_cmd_status_buf; a sentence that does not fit is dropped as a whole.
_STATUS_BYTES: Final = 512
_LONGEST_OF_MKDIR: Final = len("Out of CLOSIDs\n\0")
_CACHES: Final = ("L3", "L3CODE", "L3DATA", "L2", "L2CODE", "L2DATA")
_AMD_MAX_BANDWIDTH: Final = 2048  # 256 GB/s; the kernel's limit where CPUID does not say otherwise
_MAX_ROUNDS: Final = 16

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CounterReading:
    """Events of one group in one L3 domain: event file name -> bytes or unknown.

    :ivar generation: which life of the group it is of; counters begin at zero with each, so only readings of the same
        one can be compared
    """

    domain: int
    events: dict[str, Counter]
    generation: int


@dataclass(frozen=True, slots=True)
class MoveResult:
    """Threads that were moved, and how many were already there or ended while being moved."""

    moved: tuple[int, ...]
    already: int
    ended: int


class Resctrl:
    """One mounted resctrl tree.

    :param files: the tree; default the kernel's at ``/sys/fs/resctrl``
    :param full_mbps: what 100 % stands for where bandwidth levels are absolute, MB/s; 0: not known
    """

    def __init__(self, files: ResctrlFiles | None = None, *, full_mbps: int = 0) -> None:
        self._files = files or OsFiles()
        self._full_mbps = full_mbps

    def available(self) -> bool:
        """Tell whether a resctrl file system is mounted here."""
        try:
            return "info" in self._files.directories("")
        except OSError:
            return False

    def lock(self, *, exclusive: bool = True) -> AbstractContextManager[None]:
        """Hold flock(2) on the mount point, as libvirt and libpqos do: exclusive around read-decide-write."""
        return self._files.lock(exclusive=exclusive)

    # -- reading --

    def capabilities(self) -> Capabilities:
        """Read what this host can do.

        :raises ResctrlUnavailableError: nothing is mounted
        :raises InvalidValueError: a file says something that the kernel never says, named by its path
        """
        if not self.available():
            raise ResctrlUnavailableError(
                "no resctrl file system is mounted; mount it (`mount -t resctrl resctrl /sys/fs/resctrl`) "
                "on a CPU and kernel with Intel RDT or AMD QoS"
            )
        resources = self._files.directories("info")
        # A host that can only monitor has no schemata.
        root = (
            parse_schemata(self._read("schemata")) if "schemata" in self._files.listdir("") else {}
        )
        caches = (self._cache(name, root) for name in _CACHES if name in resources)
        bandwidth = self._bandwidth(root) if "MB" in resources else None
        monitoring = None
        if "L3_MON" in resources:
            features = tuple(self._read("info/L3_MON/mon_features").split())
            monitoring = Monitoring(self._number("info/L3_MON/num_rmids"), features)
        # A cache without ways has nothing to allocate.
        return Capabilities(tuple(each for each in caches if each.cbm_mask), bandwidth, monitoring)

    def bandwidth(self) -> BandwidthControl | None:
        """Read what memory bandwidth allocation can do here; None where there is none, or nothing is mounted.

        A part of :meth:`capabilities`, for callers who are in a hurry.
        """
        try:
            if not self._files.listdir("info/MB"):
                return None
        except OSError:
            return None
        return self._bandwidth(self.schemata(ROOT_GROUP))

    def schemata(self, group: str) -> dict[str, dict[int, int]]:
        """Read the schemata of one control group.

        :raises ResctrlGoneError: it does not exist
        """
        return parse_schemata(self._read(_join(group, "schemata")))

    def _cache(self, name: str, root: Schemata) -> CacheControl:
        info = f"info/{name}"
        files = self._files.listdir(info)
        min_bits = self._number(f"{info}/min_cbm_bits")
        # Kernels before 6.7 do not say whether masks may have holes; an allowed empty mask is AMD, which allows both.
        sparse = (
            self._read(f"{info}/sparse_masks").strip() == "1"
            if "sparse_masks" in files
            else min_bits == 0
        )
        return CacheControl(
            name=name,
            cbm_mask=parse_mask(self._read(f"{info}/cbm_mask")),
            min_cbm_bits=min_bits,
            shareable_bits=parse_mask(self._read(f"{info}/shareable_bits")),
            num_closids=self._number(f"{info}/num_closids"),
            domains=tuple(sorted(root.get(name, {}))),
            sparse_masks=sparse,
        )

    def _bandwidth(self, root: Schemata) -> BandwidthControl:
        files = self._files.listdir("info/MB")
        linear = self._read("info/MB/delay_linear").strip() == "1"
        values = root.get("MB", {})
        if "mba_MBps" in self._files.options() or (
            linear and max(values.values(), default=0) > 100
        ):
            unit, maximum = BandwidthUnit.MBPS, UINT32_MAX
        elif linear:
            unit, maximum = BandwidthUnit.PERCENT, 100
        else:
            # The kernel drops MBA on an Intel CPU that is not linear, so this is AMD.
            unit, maximum = BandwidthUnit.EIGHTH_GBPS, max([_AMD_MAX_BANDWIDTH, *values.values()])
        throttle = "thread_throttle_mode"
        return BandwidthControl(
            min_bandwidth=self._number("info/MB/min_bandwidth"),
            max_bandwidth=maximum,
            # A step of 0 is none: any number is taken.
            bandwidth_gran=max(1, self._number("info/MB/bandwidth_gran")),
            delay_linear=linear,
            thread_throttle_mode=self._read(f"info/MB/{throttle}").strip()
            if throttle in files
            else None,
            num_closids=self._number("info/MB/num_closids"),
            unit=unit,
            domains=tuple(sorted(values)),
            full=self._full_mbps // EIGHTH_GBPS_MBPS or None,
        )

    def actual(self) -> Actual:
        """Read all control groups, root first, then by name. A group that vanishes meanwhile is left out."""
        groups = []
        for name in self.control_groups():
            try:
                groups.append(self._group(name))
            except FileNotFoundError:
                if name == ROOT_GROUP:
                    raise
        return Actual(tuple(groups))

    def control_groups(self) -> tuple[str, ...]:
        """Return the names of all control groups, root first.

        :raises ResctrlGoneError: nothing is mounted any more
        """
        names = self._call("listing groups", "", self._files.directories)
        return (ROOT_GROUP, *(name for name in names if name not in _NOT_GROUPS))

    def _group(self, name: str) -> GroupState:
        names = self._files.listdir(name)
        control = "schemata" in names  # false on a host that can only monitor
        return GroupState(
            name=name,
            mode=self._files.read(_join(name, "mode")).strip() if control else SHAREABLE_MODE,
            schemata=parse_schemata(self._files.read(_join(name, "schemata"))) if control else {},
            monitors=tuple(self._files.directories(_join(name, "mon_groups")))
            if "mon_groups" in names
            else (),
        )

    def tasks(self, group: str, monitor: str = "") -> frozenset[int]:
        """Return the thread ids in a control group, or in one of its monitoring groups."""
        path = _join(_directory(group, monitor), "tasks")
        return frozenset(parse_number(word, path) for word in self._read(path).split())

    def counters(
        self, group: str, monitor: str = "", *, events: Collection[str] = ()
    ) -> tuple[CounterReading, ...]:
        """Read events of a group in all L3 domains, by domain.

        Other monitors than those of L3 domains (Linux 7.0: energy of packages) are left out. A control group counts its
        own threads and those of its monitoring groups. Values are bytes since the group was made; only differences
        within the life of one group mean anything.

        :param events: only these, as far as the host has them: each costs an interrupt of a CPU; empty for all
        :raises ResctrlGoneError: the group is not there, or was made again while it was read
        """
        directory = _directory(group, monitor)
        base = _join(directory, "mon_data")
        generation = self._call("looking at", directory, self._files.identity)
        readings = []
        for name in self._call("listing", base, self._files.directories):
            if not name.startswith(_L3_MONITORS):
                continue
            found = {
                event: parse_counter(self._read(f"{base}/{name}/{event}"))
                for event in self._files.listdir(f"{base}/{name}")
                # Beside the events there are per-node directories of sub-NUMA clusters.
                if not event.startswith("mon_") and (not events or event in events)
            }
            domain = parse_number(name.removeprefix(_L3_MONITORS), f"{base}/{name}")
            readings.append(CounterReading(domain, found, generation))
        if self._call("looking at", directory, self._files.identity) != generation:
            raise ResctrlGoneError("reading counters", base, "", errno.ENOENT)
        return tuple(sorted(readings, key=lambda reading: reading.domain))

    # -- writing --

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
        self._call("creating a monitoring group", _directory(group, monitor), self._files.mkdir)

    def remove_monitor(self, group: str, monitor: str) -> None:
        """Remove a monitoring group of ours; its threads stay in the control group."""
        self._only_ours(*filter(None, (group,)), monitor)
        self._call("removing a monitoring group", _directory(group, monitor), self._files.rmdir)

    def write_schemata(self, group: str, schemata: Schemata) -> None:
        """Set masks and bandwidth of root or of a group of ours in one command: the kernel takes all or nothing.

        :raises ResctrlRefusedError: with the kernel's reason
        """
        if group != ROOT_GROUP:
            self._only_ours(group)
        self._write(_join(group, "schemata"), format_schemata(schemata))

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
                            self._write(_join(_directory(*place), "tasks"), f"{tid}\n")
                    moved[tid] = None
                except NoSuchTaskError:
                    ended.add(tid)
        return MoveResult(tuple(moved), len(already or ()), len(ended))

    # -- errors --

    def _only_ours(self, *names: str) -> None:
        for name in names:
            if not name.startswith(GROUP_PREFIX) or "/" in name:
                action = f"changing a group whose name does not start with {GROUP_PREFIX!r}"
                raise ResctrlRefusedError(action, name, "", errno.EPERM)

    def _number(self, path: str) -> int:
        return parse_number(self._read(path), path)

    def _read(self, path: str) -> str:
        return self._call("reading", path, self._files.read)

    def _write(self, path: str, data: str) -> None:
        try:
            self._files.write(path, data)
        except OSError as error:
            raise self._error(f"writing {data.strip()!r}", path, data.strip(), error) from error

    def _call(self, action: str, path: str, operation: Callable[[str], _T]) -> _T:
        try:
            return operation(path)
        except OSError as error:
            raise self._error(action, path, "", error) from error

    def _error(self, action: str, path: str, value: str, error: OSError) -> ResctrlError:
        number = error.errno or errno.EIO
        status = ""
        # For other errors the kernel gives no reason, and what is there belongs to an older command.
        if number in (errno.EINVAL, errno.ERANGE, errno.ENOSPC, errno.EBUSY, errno.ESRCH):
            try:
                text = self._files.read("info/last_cmd_status")
            except OSError:
                text = ""
            # A write to schemata or tasks clears what was there, mkdir appends to it: the last line is its own, unless
            # it found no room.
            lines = text.strip().split("\n")
            if not value and len(text) > _STATUS_BYTES - _LONGEST_OF_MKDIR:
                lines = []
            status = "; ".join(lines if value else lines[-1:])
        return error_class(number)(action, path, value, number, "" if status == "ok" else status)


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _directory(group: str, monitor: str) -> str:
    return _join(group, f"mon_groups/{monitor}") if monitor else group
