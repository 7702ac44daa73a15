# SPDX-License-Identifier: Apache-2.0
"""What the kernel's resctrl file system says: what the host can do, groups, threads, counters.

Detection looks at ``info/`` only. Errors carry the kernel's own sentence.
"""

import errno
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeVar

from host_agent.machine.rdt.errors import (
    ResctrlError,
    ResctrlGoneError,
    ResctrlUnavailableError,
    error_class,
)
from host_agent.machine.rdt.files import OsFiles, ResctrlFiles
from host_agent.model.rdt import (
    EIGHTH_GBPS_MBPS,
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


class ResctrlReader:
    """One mounted resctrl tree, for those who change nothing in it.

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
        return parse_schemata(self._read(join(group, "schemata")))

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
            mode=self._files.read(join(name, "mode")).strip() if control else SHAREABLE_MODE,
            schemata=parse_schemata(self._files.read(join(name, "schemata"))) if control else {},
            monitors=tuple(self._files.directories(join(name, "mon_groups")))
            if "mon_groups" in names
            else (),
        )

    def tasks(self, group: str, monitor: str = "") -> frozenset[int]:
        """Return the thread ids in a control group, or in one of its monitoring groups."""
        path = join(directory_of(group, monitor), "tasks")
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
        directory = directory_of(group, monitor)
        base = join(directory, "mon_data")
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

    def _number(self, path: str) -> int:
        return parse_number(self._read(path), path)

    def _read(self, path: str) -> str:
        return self._call("reading", path, self._files.read)

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


def join(directory: str, name: str) -> str:
    """Return the path of what is in a directory of the tree; "" is the tree."""
    return f"{directory}/{name}" if directory else name


def directory_of(group: str, monitor: str) -> str:
    """Return the path of a control group, or of a monitoring group in it."""
    return join(group, f"mon_groups/{monitor}") if monitor else group
