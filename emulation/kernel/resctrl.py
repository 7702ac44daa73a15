# SPDX-License-Identifier: Apache-2.0
"""The kernel's resctrl file system, in process: the same files, texts, error numbers and ``last_cmd_status``.

It implements :class:`host_agent.machine.rdt.files.ResctrlFiles`, so the library runs on it unchanged, and
:mod:`emulation.kernel.fuse` serves it as a real tree. Written from the kernel's documentation and from what
running kernels answered; ``tests/conformance`` holds both to the same cases.

What it does not have: pseudo-locking, the mount option ``debug``, real caches. Counters are synthetic: bytes that the
threads would move, times the bandwidth level of their group; what the loop of ``mba_MBps`` would do is not in them.
"""

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final, Literal

from emulation.kernel.numbers import format_cpu_list, parse_cpu_list, parse_cpu_mask, parse_int32
from emulation.kernel.profiles import LINUX_6_12, KernelProfile
from emulation.kernel.shape import INTEL, Shape
from emulation.kernel.threads import Demand, Threads, ThreadTable, Traffic, no_demand
from host_agent.model.rdt import is_contiguous

_CONTROL_FILES: Final = ("cpus", "cpus_list", "mode", "schemata", "size", "tasks")
_MONITOR_FILES: Final = ("cpus", "cpus_list", "tasks")
_WRITABLE: Final = frozenset(
    {"cpus", "cpus_list", "tasks", "schemata", "mode", "max_threshold_occupancy"}
)
_UINT32: Final = 1 << 32
_UINT64: Final = 1 << 64
STATUS_BYTES: Final = 512  # last_cmd_status_buf
_Id = Literal["closid", "rmid"]


@dataclass(slots=True)
class _Status:
    """The kernel's sentences since they were cleared: a ``seq_buf`` that takes no more once one did not fit."""

    text: str = ""
    full: bool = False

    def clear(self) -> None:
        self.text, self.full = "", False

    def add(self, line: str) -> None:
        self.full = self.full or len(self.text) + len(line) >= STATUS_BYTES
        if not self.full:
            self.text += line


@dataclass(slots=True)
class _Monitor:
    """A monitoring group, or that part of a control group: one RMID; ``number`` distinguishes groups of one name."""

    rmid: int
    number: int = 0
    cpus: set[int] = field(default_factory=set)
    total: dict[int, float] = field(default_factory=dict)
    local: dict[int, float] = field(default_factory=dict)
    occupancy: dict[int, float] = field(default_factory=dict)
    fault: str = ""


@dataclass(slots=True)
class _Control:
    """A control group: one CLOSID."""

    name: str
    closid: int
    own: _Monitor
    mode: str = "shareable"
    schemata: dict[str, dict[int, int]] = field(default_factory=dict)
    monitors: dict[str, _Monitor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Place:
    """A path taken apart: which group, and what is left of the path below it."""

    control: _Control
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
        self._demand = demand
        self._limbo_s = limbo_s
        self._clock = clock
        self._mutex = threading.RLock()
        self._tree_lock = threading.RLock()
        self._status = _Status()
        self._free_closids = list(range(1, shape.usable_closids))
        self._free_rmids = list(range(1, shape.rmids)) if shape.monitoring else []
        self._limbo: dict[int, float] = {}
        self._threshold = shape.l3_bytes // max(shape.rmids, 1)
        self._member: dict[int, tuple[str, str]] = {}  # thread -> (control, monitor), absent: root
        self._moved_at: dict[int, float] = {}
        self._known: set[int] = set()  # threads seen at the last look, while any is outside root
        self._charged: dict[int, tuple[Traffic, ...]] = {}
        root = _Control("", 0, _Monitor(0, cpus=set(shape.cpus)))
        self._made = count(1)
        for name in shape.all_caches:
            root.schemata[name] = dict.fromkeys(shape.domains_of(name), shape.full_of(name))
        if shape.mba:
            root.schemata["MB"] = dict.fromkeys(shape.domains, shape.mba_max)
        self._groups: dict[str, _Control] = {"": root}
        for tid in self.threads.all():  # counting starts at the mount
            self._meter(tid)

    # -- the seam of the library --

    def read(self, path: str) -> str:
        """Return the text of a file."""
        with self._mutex:
            parts = _split(path)
            if not parts or self.is_directory(path):
                raise _error(errno.EISDIR)
            if parts[0] == "info":
                return self._read_info(parts[1:])
            place = self._place(parts)
            if place.rest[0] == "mon_data":
                return self._read_counter(place, int(place.rest[1][-2:]), place.rest[2])
            return self._read_group_file(place, place.rest[0])

    def write(self, path: str, data: str, writer: int = 0) -> None:
        """Take one command; ``writer`` is the thread that ``0`` means in ``tasks``."""
        with self._mutex:
            parts = _split(path)
            if self.is_directory(path):
                raise _error(errno.EISDIR)
            if not self.writable(path):
                raise _error(errno.EACCES)
            if parts[0] == "info":
                self._write_threshold(data)
                return
            place = self._place(parts)
            match place.rest[0]:
                case "schemata":
                    self._write_schemata(place.control, data)
                case "mode":
                    self._write_mode(place.control, data)
                case "tasks":
                    self._write_tasks(place, data, writer)
                case name:
                    self._write_cpus(place, name, data)

    def mkdir(self, path: str) -> None:
        """Create a group."""
        with self._mutex:
            *parent, name = _split(path)
            if "\n" in name:
                raise _error(errno.EINVAL)
            control = not parent
            place = self._place(tuple(parent))
            monitor = place.rest == ("mon_groups",) and not place.monitor
            if not control and not (monitor and name != "mon_groups"):
                raise _error(errno.EPERM)
            if name in self.listdir("/".join(parent)):
                raise _error(errno.EEXIST)
            if self.profile.mkdir_clears_status:
                self._status.clear()
            if monitor:
                place.control.monitors[name] = _Monitor(self._take("rmid"), next(self._made))
            else:
                self._create_control(name)

    def rmdir(self, path: str) -> None:
        """Remove a group; its threads and CPUs go to root, those of a monitoring group to its control group."""
        with self._mutex:
            place = self._place(_split(path))
            if place.rest or (place.control.name == "" and not place.monitor):
                raise _error(errno.EPERM if self.is_directory(path) else errno.ENOTDIR)
            self._settle()
            if place.monitor:
                gone = [place.control.monitors.pop(place.monitor)]
                for tid in self._members(place.control.name, place.monitor):
                    self._assign(tid, place.control.name, "")
            else:
                control = self._groups.pop(place.control.name)
                gone = [control.own, *control.monitors.values()]
                self._groups[""].own.cpus |= control.own.cpus
                for tid in self._members(control.name):
                    self._assign(tid, "", "")
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
                raise _error(errno.ENOENT)
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
                raise _error(errno.ENOENT)
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
        raise _error(errno.ENOENT)

    def _info(self) -> dict[str, dict[str, Callable[[], str]]]:
        shape = self.shape
        found: dict[str, dict[str, Callable[[], str]]] = {}
        for name in shape.all_caches:
            found[name] = {
                "bit_usage": partial(self._bit_usage, name),
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
        raise _error(errno.ENOENT)

    def _read_info(self, parts: tuple[str, ...]) -> str:
        if parts == ("last_cmd_status",):
            return self._status.text or "ok\n"
        return self._info()[parts[0]][parts[1]]() + "\n"

    def _bit_usage(self, cache: str) -> str:
        lines = []
        for domain in self.shape.domains_of(cache):
            used = dict.fromkeys(("shareable", "exclusive"), 0)
            for group in self._groups.values():
                used[group.mode] |= group.schemata[cache][domain]
            letters = ""
            for way in reversed(range(self.shape.full_of(cache).bit_length())):
                bit = 1 << way
                shared, hardware = used["shareable"] & bit, self.shape.shareable_of(cache) & bit
                exclusive = "E" if used["exclusive"] & bit else "0"
                letters += ("X" if shared else "H") if hardware else "S" if shared else exclusive
            lines.append(f"{domain}={letters}")
        return ";".join(lines)

    def _fail(self, number: int, reason: str) -> OSError:
        self._status.add(reason + "\n")
        return _error(number)

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
            schemata = self._default_schemata()
            undo.pop_all()
        monitor = _Monitor(ids["rmid"], next(self._made))
        self._groups[name] = _Control(name, ids["closid"], monitor, schemata=schemata)

    def _take(self, kind: _Id) -> int:
        if kind == "closid":
            if not self._free_closids:
                raise self._fail(errno.ENOSPC, "Out of CLOSIDs")
            return self._free_closids.pop(0)
        if not self.shape.monitoring:
            return 0
        now = self._clock()
        for rmid in [rmid for rmid, until in self._limbo.items() if until <= now]:
            del self._limbo[rmid]
            self._free_rmids.append(rmid)
        if not self._free_rmids:
            raise self._fail(errno.EBUSY if self._limbo else errno.ENOSPC, "Out of RMIDs")
        return self._free_rmids.pop(0)

    def _release(self, kind: _Id, number: int) -> None:
        if kind == "closid":
            self._free_closids = sorted((*self._free_closids, number))
        elif self._limbo_s:
            self._limbo[number] = self._clock() + self._limbo_s
        elif self.shape.monitoring:
            self._free_rmids.append(number)

    def _default_schemata(self) -> dict[str, dict[int, int]]:
        """All bandwidth, and of each cache the first run of ways that are shareable, shared by a group, or unused."""
        shape = self.shape
        schemata: dict[str, dict[int, int]] = {}
        for cache in shape.all_caches:
            schemata[cache] = {}
            for domain in shape.domains_of(cache):
                exclusive = 0
                for group in self._groups.values():
                    exclusive |= group.schemata[cache][domain] if group.mode == "exclusive" else 0
                mask = shape.full_of(cache) & ~exclusive
                low = mask & -mask
                mask &= ~(mask + low)  # the first run of ones
                if mask.bit_count() < shape.min_cbm_bits:
                    raise self._fail(errno.ENOSPC, f"No space on {cache}:{domain}")
                schemata[cache][domain] = mask
        if shape.mba:
            schemata["MB"] = dict.fromkeys(shape.domains, shape.mba_max)
        return schemata

    # -- files of a group --

    def _read_group_file(self, place: _Place, name: str) -> str:
        control = place.control
        match name:
            case "schemata":
                return self._show(control, self._show_value)
            case "size":
                return self._show(control, self._show_size)
            case "mode":
                return f"{control.mode}\n"
            case "tasks":
                return "".join(f"{tid}\n" for tid in sorted(self._tasks(place)))
        cpus = self._monitor(place).cpus
        if name == "cpus_list":
            return format_cpu_list(cpus) + "\n"
        width = (max(self.shape.cpus) + 4) // 4
        return f"{sum(1 << cpu for cpu in cpus):0{width}x}\n"

    def _monitor(self, place: _Place) -> _Monitor:
        return place.control.monitors[place.monitor] if place.monitor else place.control.own

    def _show(self, control: _Control, show: Callable[[str, int], str]) -> str:
        width = max(map(len, control.schemata), default=0)
        lines = []
        for name in reversed(control.schemata):
            values = control.schemata[name].items()
            text = ";".join(f"{domain}={show(name, value)}" for domain, value in values)
            lines.append(f"{name:>{width}}:{text}\n")
        return "".join(lines)

    def _show_value(self, name: str, value: int) -> str:
        widths = [4 if self.shape.amd else 3] if self.shape.mba else []
        width = max([*widths, (self.shape.cbm_len + 3) // 4 if self.shape.l3 else 0])
        return f"{value:{width}d}" if name == "MB" else f"{value:0{width}x}"

    def _show_size(self, name: str, value: int) -> str:
        if name == "MB":
            return str(value)
        return str(self.shape.way_bytes(name) * value.bit_count())

    def _write_schemata(self, control: _Control, data: str) -> None:
        if not data.endswith("\n"):
            raise _error(errno.EINVAL)
        self._status.clear()
        staged: dict[tuple[str, int], int] = {}
        text = data[:-1].partition("\0")[0]  # the kernel takes it for a C string
        for line in text.split("\n"):
            name, colon, rest = line.partition(":")
            name = name.strip()
            if not colon:
                raise self._fail(errno.EINVAL, "Missing ':'")
            if not rest:
                raise self._fail(errno.EINVAL, f"Missing '{name}' value")
            if name not in control.schemata:
                raise self._fail(errno.EINVAL, f"Unknown or unsupported resource name '{name}'")
            self._stage(control, name, rest, staged)
        self._settle()
        for (name, domain), value in staged.items():
            control.schemata[name][domain] = value

    def _stage(
        self, control: _Control, name: str, rest: str, staged: dict[tuple[str, int], int]
    ) -> None:
        for entry in rest.removesuffix(";").split(";"):
            number, equals, value = entry.partition("=")
            if not equals or not re.fullmatch(r"\+?[0-9]+", number):
                raise self._fail(errno.EINVAL, "Missing '=' or non-numeric domain")
            domain = int(number)
            if domain not in self.shape.domains_of(name):
                raise _error(errno.EINVAL)  # the kernel gives no reason
            if (name, domain) in staged:
                raise self._fail(errno.EINVAL, f"Duplicate domain {domain}")
            parse = self._parse_bandwidth if name == "MB" else self._parse_mask
            staged[name, domain] = parse(control, name, domain, value.strip())

    def _parse_mask(self, control: _Control, name: str, domain: int, text: str) -> int:
        shape = self.shape
        mask = int(text, 16) if re.fullmatch(r"\+?(0[xX])?[0-9a-fA-F]+", text) else _UINT64
        if mask >= _UINT64:
            raise self._fail(errno.EINVAL, f"Non-hex character in the mask {text}")
        if mask > shape.full_of(name) or (mask == 0 and shape.min_cbm_bits > 0):
            raise self._fail(errno.EINVAL, "Mask out of range")
        if not shape.amd and not is_contiguous(mask):
            raise self._fail(errno.EINVAL, f"The mask {mask:x} has non-consecutive 1-bits")
        if mask.bit_count() < shape.min_cbm_bits:
            raise self._fail(errno.EINVAL, f"Need at least {shape.min_cbm_bits} bits in the mask")
        others = [group for group in self._groups.values() if group is not control]
        meets = [group for group in others if group.schemata[name][domain] & mask]
        if any(group.mode == "exclusive" for group in meets):
            raise self._fail(errno.EINVAL, "Overlaps with exclusive group")
        if control.mode == "exclusive" and (meets or mask & shape.shareable_of(name)):
            raise self._fail(errno.EINVAL, "Overlaps with other group")
        return mask

    def _parse_bandwidth(self, control: _Control, name: str, domain: int, text: str) -> int:
        del control, name, domain
        shape = self.shape
        value = int(text) if re.fullmatch(r"\+?[0-9]+", text) else _UINT32
        if value >= _UINT32:
            raise self._fail(errno.EINVAL, f"Invalid MB value {text}")
        if shape.mba_mbps:
            return value
        if not shape.mba_min <= value <= shape.mba_max:
            limits = f"[{shape.mba_min},{shape.mba_max}]"
            raise self._fail(errno.EINVAL, f"MB value {value} out of range {limits}")
        return -(-value // shape.mba_gran) * shape.mba_gran

    def _write_mode(self, control: _Control, data: str) -> None:
        if not data.endswith("\n"):
            raise _error(errno.EINVAL)
        self._status.clear()
        mode = data[:-1]
        if mode == control.mode:
            return
        match mode:
            case "shareable":
                control.mode = mode
            case "exclusive":
                self._make_exclusive(control)
            case "pseudo-locksetup" if control.name == "":
                raise self._fail(errno.EINVAL, "Cannot pseudo-lock default group")
            case "pseudo-locksetup":
                raise self._fail(errno.EINVAL, "Pseudo-locking not supported")
            case _:
                raise self._fail(errno.EINVAL, "Unknown or unsupported mode")

    def _make_exclusive(self, control: _Control) -> None:
        if not self.shape.all_caches:
            raise self._fail(errno.EINVAL, "Cannot be exclusive without CAT/CDP")
        for cache in self.shape.all_caches:
            for domain, mask in control.schemata[cache].items():
                used = self.shape.shareable_of(cache)
                for group in self._groups.values():
                    used |= group.schemata[cache][domain] if group is not control else 0
                if used & mask:
                    raise self._fail(errno.EINVAL, "Schemata overlaps")
        control.mode = "exclusive"

    def _write_threshold(self, data: str) -> None:
        try:
            value = int(data, 0)
        except ValueError:
            raise _error(errno.EINVAL) from None
        if value >= _UINT32:
            raise _error(errno.ERANGE)
        if not 0 <= value <= self.shape.l3_bytes:
            raise _error(errno.EINVAL)
        self._threshold = value

    # -- threads --

    def _write_tasks(self, place: _Place, data: str, writer: int) -> None:
        if not self.profile.task_lists:
            tid = parse_int32(data)
            if tid is None or tid < 0:
                raise _error(errno.EINVAL)
            self._status.clear()
            self._move(place, tid or writer)
            return
        self._status.clear()
        for entry in data.rstrip("\n").removesuffix(",").split(",") if data.strip() else ():
            tid = parse_int32(entry)
            if tid is None:
                raise self._fail(errno.EINVAL, f"Task list parsing error pid {entry.strip()}")
            if tid < 0:
                raise self._fail(errno.EINVAL, f"Invalid pid {tid}")
            try:
                self._move(place, tid or writer)
            except OSError as error:
                raise self._fail(
                    error.errno or errno.EINVAL, f"Error while processing task {tid}"
                ) from None

    def _move(self, place: _Place, tid: int) -> None:
        if not tid or not self.threads.exists(tid):
            raise self._fail(errno.ESRCH, f"No task {tid}")
        self._settle()
        if tid not in self._member:
            self._charge(tid)
        if place.monitor and self._member.get(tid, ("", ""))[0] != place.control.name:
            raise self._fail(errno.EINVAL, "Can't move task to different control group")
        self._assign(tid, place.control.name, place.monitor)

    def _assign(self, tid: int, control: str, monitor: str) -> None:
        self._moved_at[tid] = self.threads.now()
        if control or monitor:
            if not self._member:
                self._known = set(self.threads.all())
            self._member[tid] = (control, monitor)
        else:
            self._member.pop(tid, None)

    def _members(self, control: str, monitor: str | None = None) -> list[int]:
        return [
            tid
            for tid, place in self._member.items()
            if place[0] == control and monitor in (None, place[1])
        ]

    def _tasks(self, place: _Place) -> list[int]:
        self._inherit()
        if place.control.name == "" and not place.monitor:
            return [tid for tid in self.threads.all() if self._member.get(tid, ("", ""))[0] == ""]
        inside = self._members(place.control.name, place.monitor or None)
        return [tid for tid in inside if self.threads.exists(tid)]

    def _inherit(self) -> None:
        """Give threads born since the last look the place of the thread they were cloned from."""
        if not self._member:
            return
        now = set(self.threads.all())
        births = []
        for tid in now - self._known:
            origin = self.threads.origin(tid)
            if origin:
                births.append((origin[1], tid, origin[0]))
        for born, tid, parent in sorted(births):
            if (
                parent in self._member
                and tid not in self._member
                and born >= self._moved_at.get(parent, 0)
            ):
                self._member[tid] = self._member[parent]
                self._moved_at[tid] = born
        for tid in self._member.keys() - now:
            del self._member[tid]
            self._charged.pop(tid, None)
        self._known = now

    def _write_cpus(self, place: _Place, name: str, data: str) -> None:
        if self.profile.cpus_clears_status:
            self._status.clear()
        new = self._parse_cpus(name, data)
        if new - self.shape.cpus:
            raise self._fail(errno.EINVAL, "Can only assign online CPUs")
        control, root = place.control, self._groups[""]
        if place.monitor:
            if new - control.own.cpus:
                text = "Can only add CPUs to mongroup that belong to parent"
                raise self._fail(errno.EINVAL, text)
            for monitor in control.monitors.values():
                monitor.cpus -= new
        else:
            if control is root and root.own.cpus - new:
                raise self._fail(errno.EINVAL, "Can't drop CPUs from default group")
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
            raise self._fail(errno.EINVAL, "Bad CPU list/mask") from None
        if new and max(new) > max(self.shape.cpus):
            too_big = errno.EOVERFLOW if name == "cpus" else errno.ERANGE
            raise self._fail(too_big, "Bad CPU list/mask")
        return new

    # -- counters --

    def _settle(self) -> None:
        """Charge what threads outside root have moved since the last look, at the levels that were effective."""
        self._inherit()
        for tid in self._member:
            self._charge(tid)

    def _meter(self, tid: int) -> tuple[Traffic, ...]:
        """Return the traffic of a thread since the last look, by domain."""
        now = tuple(self._demand(tid, domain) for domain in self.shape.domains)
        before = self._charged.get(tid) or (Traffic(),) * len(now)
        self._charged[tid] = now
        return tuple(new.since(old) for new, old in zip(now, before, strict=True))

    def _charge(self, tid: int) -> None:
        if self._demand is no_demand:  # with hundreds of threads, adding zeros takes seconds
            return
        shape = self.shape
        name, monitor_name = self._member.get(tid, ("", ""))
        control = self._groups[name]
        monitor = control.monitors[monitor_name] if monitor_name else control.own
        for domain, traffic in zip(shape.domains, self._meter(tid), strict=True):
            throttled = shape.mba and not shape.mba_mbps
            level = control.schemata["MB"][domain] / shape.mba_max if throttled else 1.0
            total = traffic.total_bytes * level
            local = traffic.local_bytes * level
            monitor.total[domain] = monitor.total.get(domain, 0.0) + total
            monitor.local[domain] = monitor.local.get(domain, 0.0) + local
            ways = control.schemata[shape.caches[0]][domain] if shape.caches else shape.full
            room = shape.l3_bytes * ways.bit_count() / shape.cbm_len
            filled = monitor.occupancy.get(domain, 0.0) + total
            monitor.occupancy[domain] = min(filled, room)

    def _read_counter(self, place: _Place, domain: int, event: str) -> str:
        self._settle()
        control = place.control
        if control.name == "":
            for tid in self.threads.all():
                if tid not in self._member:
                    self._charge(tid)
        everybody = [control.own, *control.monitors.values()]
        monitors = [control.monitors[place.monitor]] if place.monitor else everybody
        good = [monitor for monitor in monitors if not monitor.fault]
        if not good:
            return f"{monitors[-1].fault}\n"
        kinds = {
            "llc_occupancy": "occupancy",
            "mbm_total_bytes": "total",
            "mbm_local_bytes": "local",
        }
        values: list[dict[int, float]] = [getattr(monitor, kinds[event]) for monitor in good]
        return f"{int(sum(value.get(domain, 0.0) for value in values))}\n"


def _split(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
