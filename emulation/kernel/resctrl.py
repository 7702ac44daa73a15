# SPDX-License-Identifier: Apache-2.0
"""The kernel's resctrl file system, in process: the same files, texts, error numbers and ``last_cmd_status``.

It implements :class:`host_agent.machine.rdt.files.ResctrlFiles`, so the library runs on it unchanged, and
:mod:`emulation.kernel.fuse` serves it as a real tree. Written from the kernel's documentation and from what
running kernels answered; ``tests/conformance`` holds both to the same cases.

What it does not have: pseudo-locking, the mount option ``debug``, real caches. Counters are synthetic: bytes that the
threads would move, times the bandwidth level of their group; what the loop of ``mba_MBps`` would do is not in them.
"""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final, Literal

from emulation.kernel.allocations import Allocations
from emulation.kernel.groups import CommandStatus, ControlGroup, MonitorGroup, kernel_error
from emulation.kernel.members import Members
from emulation.kernel.numbers import format_cpu_list, parse_cpu_list, parse_cpu_mask, parse_int32
from emulation.kernel.profiles import LINUX_6_12, KernelProfile
from emulation.kernel.shape import INTEL, Shape
from emulation.kernel.threads import Demand, Threads, ThreadTable, no_demand

_CONTROL_FILES: Final = ("cpus", "cpus_list", "mode", "schemata", "size", "tasks")
_MONITOR_FILES: Final = ("cpus", "cpus_list", "tasks")
_WRITABLE: Final = frozenset(
    {"cpus", "cpus_list", "tasks", "schemata", "mode", "max_threshold_occupancy"}
)
_UINT32: Final = 1 << 32
_Id = Literal["closid", "rmid"]


@dataclass(frozen=True, slots=True)
class _Place:
    """A path taken apart: which group, and what is left of the path below it."""

    control: ControlGroup
    monitor: str
    rest: tuple[str, ...]


class ResctrlModel:
    """A mounted resctrl tree.

    :param shape: hardware
    :param profile: kernel version
    :param threads: the host's threads
    :param demand: memory traffic of threads
    :param limbo_s: how long a freed RMID stays unusable
    :param clock: seconds, for the limbo
    """

    def __init__(
        self,
        shape: Shape = INTEL,
        profile: KernelProfile = LINUX_6_12,
        *,
        threads: Threads | None = None,
        demand: Demand = no_demand,
        limbo_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shape = shape
        self.profile = profile
        self.threads: Threads = threads if threads is not None else ThreadTable()
        self._limbo_s = limbo_s
        self._clock = clock
        self._mutex = threading.RLock()
        self._tree_lock = threading.RLock()
        self._status = CommandStatus()
        self._free_closids = list(range(1, shape.usable_closids))
        self._free_rmids = list(range(1, shape.rmids)) if shape.monitoring else []
        self._limbo: dict[int, float] = {}
        self._threshold = shape.l3_bytes // max(shape.rmids, 1)
        root = ControlGroup("", 0, MonitorGroup(0, cpus=set(shape.cpus)))
        self._made = count(1)
        for name in shape.all_caches:
            root.schemata[name] = dict.fromkeys(shape.domains_of(name), shape.full_of(name))
        if shape.mba:
            root.schemata["MB"] = dict.fromkeys(shape.domains, shape.mba_max)
        self._groups: dict[str, ControlGroup] = {"": root}
        self._allocations = Allocations(shape, self._groups, self._status)
        self._members = Members(shape, self._groups, self._status, self.threads, demand)

    # -- the seam of the library --

    def read(self, path: str) -> str:
        """Return the text of a file."""
        with self._mutex:
            parts = _split(path)
            if not parts or self.is_directory(path):
                raise kernel_error(errno.EISDIR)
            if parts[0] == "info":
                return self._read_info(parts[1:])
            place = self._place(parts)
            if place.rest[0] == "mon_data":
                return self._members.counter(
                    place.control, place.monitor, int(place.rest[1][-2:]), place.rest[2]
                )
            return self._read_group_file(place, place.rest[0])

    def write(self, path: str, data: str, writer: int = 0) -> None:
        """Take one command; ``writer`` is the thread that ``0`` means in ``tasks``."""
        with self._mutex:
            parts = _split(path)
            if self.is_directory(path):
                raise kernel_error(errno.EISDIR)
            if not self.writable(path):
                raise kernel_error(errno.EACCES)
            if parts[0] == "info":
                self._write_threshold(data)
                return
            place = self._place(parts)
            match place.rest[0]:
                case "schemata":
                    staged = self._allocations.parse(place.control, data)
                    self._members.settle()  # at the levels that were effective
                    self._allocations.apply(place.control, staged)
                case "mode":
                    self._allocations.write_mode(place.control, data)
                case "tasks":
                    self._write_tasks(place, data, writer)
                case name:
                    self._write_cpus(place, name, data)

    def mkdir(self, path: str) -> None:
        """Create a group."""
        with self._mutex:
            *parent, name = _split(path)
            if "\n" in name:
                raise kernel_error(errno.EINVAL)
            control = not parent
            place = self._place(tuple(parent))
            monitor = place.rest == ("mon_groups",) and not place.monitor
            if not control and not (monitor and name != "mon_groups"):
                raise kernel_error(errno.EPERM)
            if name in self.listdir("/".join(parent)):
                raise kernel_error(errno.EEXIST)
            if self.profile.mkdir_clears_status:
                self._status.clear()
            if monitor:
                place.control.monitors[name] = MonitorGroup(self._take("rmid"), next(self._made))
            else:
                self._create_control(name)

    def rmdir(self, path: str) -> None:
        """Remove a group; its threads and CPUs go to root, those of a monitoring group to its control group."""
        with self._mutex:
            place = self._place(_split(path))
            if place.rest or (place.control.name == "" and not place.monitor):
                raise kernel_error(errno.EPERM if self.is_directory(path) else errno.ENOTDIR)
            self._members.settle()
            if place.monitor:
                gone = [place.control.monitors.pop(place.monitor)]
                for tid in self._members.of(place.control.name, place.monitor):
                    self._members.assign(tid, place.control.name, "")
            else:
                control = self._groups.pop(place.control.name)
                gone = [control.own, *control.monitors.values()]
                self._groups[""].own.cpus |= control.own.cpus
                for tid in self._members.of(control.name):
                    self._members.assign(tid, "", "")
                self._release("closid", control.closid)
            for monitor in gone:
                self._release("rmid", monitor.rmid)

    def listdir(self, path: str) -> list[str]:
        """Return all names of a directory."""
        with self._mutex:
            return sorted(self._names(_split(path)))

    def directories(self, path: str) -> list[str]:
        """Return the names of the directories in a directory."""
        with self._mutex:
            prefix = f"{path}/" if path else ""
            return [name for name in self.listdir(path) if self.is_directory(prefix + name)]

    def identity(self, path: str) -> int:
        """Return the number of a group's directory."""
        with self._mutex:
            place = self._place(_split(path))
            if place.rest:
                raise kernel_error(errno.ENOENT)
            return self._monitor(place).number

    @contextmanager
    def lock(self, *, exclusive: bool) -> Iterator[None]:
        """Hold the tree's lock (shared holders exclude each other here, which is invisible outside)."""
        del exclusive
        with self._tree_lock:
            yield

    def options(self) -> frozenset[str]:
        """Return the mount options."""
        return self.shape.mount_options

    # -- for tests and the FUSE server --

    def is_directory(self, path: str) -> bool:
        """Return whether it is a directory; ``ENOENT`` when it is neither."""
        parts = _split(path)
        if not parts:
            return True
        try:
            self._names(parts)
        except FileNotFoundError:
            if parts[-1] in self._names(parts[:-1]):
                return False
            raise
        return True

    def writable(self, path: str) -> bool:
        """Return whether a file can be opened for writing."""
        return path.rsplit("/", 1)[-1] in _WRITABLE

    def set_fault(self, group: str, monitor: str = "", fault: str = "Unavailable") -> None:
        """Make the counters of a group read ``Unavailable`` or ``Error``; "" heals them."""
        control = self._groups[group]
        (control.monitors[monitor] if monitor else control.own).fault = fault

    # -- tree --

    def _place(self, parts: tuple[str, ...]) -> _Place:
        rest = list(parts)
        control = (
            self._groups[rest.pop(0)] if rest and rest[0] in self._groups else self._groups[""]
        )
        monitor = ""
        if len(rest) >= 2 and rest[0] == "mon_groups":
            monitor = rest[1]
            if monitor not in control.monitors:
                raise kernel_error(errno.ENOENT)
            rest = rest[2:]
        return _Place(control, monitor, tuple(rest))

    def _names(self, parts: tuple[str, ...]) -> list[str]:
        if parts and parts[0] == "info":
            return self._info_names(parts[1:])
        place = self._place(parts)
        domains = [f"mon_L3_{domain:02d}" for domain in self.shape.domains]
        match place.rest:
            case ():
                names = list(_MONITOR_FILES if place.monitor else _CONTROL_FILES)
                if self.shape.monitoring:
                    names += ["mon_data"] if place.monitor else ["mon_data", "mon_groups"]
                if not place.monitor and place.control.name == "":
                    names += ["info", *filter(None, self._groups)]
                return names
            case ("mon_groups",) if not place.monitor and self.shape.monitoring:
                return list(place.control.monitors)
            case ("mon_data",) if self.shape.monitoring:
                return domains
            case ("mon_data", domain) if self.shape.monitoring and domain in domains:
                return list(self.shape.monitoring)
        raise kernel_error(errno.ENOENT)

    def _info(self) -> dict[str, dict[str, Callable[[], str]]]:
        shape = self.shape
        found: dict[str, dict[str, Callable[[], str]]] = {}
        for name in shape.all_caches:
            found[name] = {
                "bit_usage": partial(self._allocations.bit_usage, name),
                "cbm_mask": partial("{:x}".format, shape.full_of(name)),
                "min_cbm_bits": lambda: str(shape.min_cbm_bits),
                "num_closids": partial(str, shape.closids_of(name)),
                "shareable_bits": partial("{:x}".format, shape.shareable_of(name)),
            }
            if self.profile.sparse_masks_file:
                found[name]["sparse_masks"] = lambda: str(int(shape.amd))
        if shape.mba:
            found["MB"] = {
                "bandwidth_gran": lambda: str(shape.mba_gran),
                "delay_linear": lambda: str(int(not shape.amd)),
                "min_bandwidth": lambda: str(shape.mba_min),
                "num_closids": partial(str, shape.closids_of("MB")),
            }
            if not shape.amd:
                found["MB"]["thread_throttle_mode"] = lambda: shape.thread_throttle_mode
        if shape.monitoring:
            found["L3_MON"] = {
                "max_threshold_occupancy": lambda: str(self._threshold),
                "mon_features": lambda: "\n".join(shape.monitoring),
                "num_rmids": lambda: str(shape.rmids),
            }
        return found

    def _info_names(self, parts: tuple[str, ...]) -> list[str]:
        info = self._info()
        if not parts:
            return ["last_cmd_status", *info]
        if len(parts) == 1 and parts[0] in info:
            return list(info[parts[0]])
        raise kernel_error(errno.ENOENT)

    def _read_info(self, parts: tuple[str, ...]) -> str:
        if parts == ("last_cmd_status",):
            return self._status.text or "ok\n"
        return self._info()[parts[0]][parts[1]]() + "\n"

    # -- groups --

    def _create_control(self, name: str) -> None:
        order: tuple[_Id, _Id] = ("rmid", "closid")
        if self.profile.closid_before_rmid:
            order = ("closid", "rmid")
        ids: dict[_Id, int] = {}
        with ExitStack() as undo:
            for kind in order:
                ids[kind] = self._take(kind)
                undo.callback(self._release, kind, ids[kind])
            schemata = self._allocations.of_new_group()
            undo.pop_all()
        monitor = MonitorGroup(ids["rmid"], next(self._made))
        self._groups[name] = ControlGroup(name, ids["closid"], monitor, schemata=schemata)

    def _take(self, kind: _Id) -> int:
        if kind == "closid":
            if not self._free_closids:
                raise self._status.refuse(errno.ENOSPC, "Out of CLOSIDs")
            return self._free_closids.pop(0)
        if not self.shape.monitoring:
            return 0
        now = self._clock()
        for rmid in [rmid for rmid, until in self._limbo.items() if until <= now]:
            del self._limbo[rmid]
            self._free_rmids.append(rmid)
        if not self._free_rmids:
            raise self._status.refuse(errno.EBUSY if self._limbo else errno.ENOSPC, "Out of RMIDs")
        return self._free_rmids.pop(0)

    def _release(self, kind: _Id, number: int) -> None:
        if kind == "closid":
            self._free_closids = sorted((*self._free_closids, number))
        elif self._limbo_s:
            self._limbo[number] = self._clock() + self._limbo_s
        elif self.shape.monitoring:
            self._free_rmids.append(number)

    # -- files of a group --

    def _read_group_file(self, place: _Place, name: str) -> str:
        control = place.control
        match name:
            case "schemata":
                return self._allocations.values(control)
            case "size":
                return self._allocations.sizes(control)
            case "mode":
                return f"{control.mode}\n"
            case "tasks":
                return "".join(
                    f"{tid}\n" for tid in sorted(self._members.living(control.name, place.monitor))
                )
        cpus = self._monitor(place).cpus
        if name == "cpus_list":
            return format_cpu_list(cpus) + "\n"
        width = (max(self.shape.cpus) + 4) // 4
        return f"{sum(1 << cpu for cpu in cpus):0{width}x}\n"

    def _monitor(self, place: _Place) -> MonitorGroup:
        return place.control.monitors[place.monitor] if place.monitor else place.control.own

    def _write_threshold(self, data: str) -> None:
        try:
            value = int(data, 0)
        except ValueError:
            raise kernel_error(errno.EINVAL) from None
        if value >= _UINT32:
            raise kernel_error(errno.ERANGE)
        if not 0 <= value <= self.shape.l3_bytes:
            raise kernel_error(errno.EINVAL)
        self._threshold = value

    # -- threads --

    def _write_tasks(self, place: _Place, data: str, writer: int) -> None:
        if not self.profile.task_lists:
            tid = parse_int32(data)
            if tid is None or tid < 0:
                raise kernel_error(errno.EINVAL)
            self._status.clear()
            self._members.move(place.control.name, place.monitor, tid or writer)
            return
        self._status.clear()
        for entry in data.rstrip("\n").removesuffix(",").split(",") if data.strip() else ():
            tid = parse_int32(entry)
            if tid is None:
                raise self._status.refuse(
                    errno.EINVAL, f"Task list parsing error pid {entry.strip()}"
                )
            if tid < 0:
                raise self._status.refuse(errno.EINVAL, f"Invalid pid {tid}")
            try:
                self._members.move(place.control.name, place.monitor, tid or writer)
            except OSError as error:
                raise self._status.refuse(
                    error.errno or errno.EINVAL, f"Error while processing task {tid}"
                ) from None

    def _write_cpus(self, place: _Place, name: str, data: str) -> None:
        if self.profile.cpus_clears_status:
            self._status.clear()
        new = self._parse_cpus(name, data)
        if new - self.shape.cpus:
            raise self._status.refuse(errno.EINVAL, "Can only assign online CPUs")
        control, root = place.control, self._groups[""]
        if place.monitor:
            if new - control.own.cpus:
                text = "Can only add CPUs to mongroup that belong to parent"
                raise self._status.refuse(errno.EINVAL, text)
            for monitor in control.monitors.values():
                monitor.cpus -= new
        else:
            if control is root and root.own.cpus - new:
                raise self._status.refuse(errno.EINVAL, "Can't drop CPUs from default group")
            root.own.cpus |= control.own.cpus - new
            for other in self._groups.values():
                if other is not control:
                    other.own.cpus -= new
                    for monitor in other.monitors.values():
                        monitor.cpus &= other.own.cpus
            for monitor in control.monitors.values():
                monitor.cpus.clear()
        self._monitor(place).cpus = new

    def _parse_cpus(self, name: str, data: str) -> set[int]:
        text = data.strip()
        try:
            new = parse_cpu_mask(text) if name == "cpus" else parse_cpu_list(text, self.shape.cpus)
        except ValueError:
            raise self._status.refuse(errno.EINVAL, "Bad CPU list/mask") from None
        if new and max(new) > max(self.shape.cpus):
            too_big = errno.EOVERFLOW if name == "cpus" else errno.ERANGE
            raise self._status.refuse(too_big, "Bad CPU list/mask")
        return new


def _split(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)
