# SPDX-License-Identifier: Apache-2.0
"""Shapes of resctrl and the rules of what may be written: pure, shared by library, planner and tests.

Words: a *control group* is a directory below the mount point and holds one CLOSID; a *monitoring group* is a directory
in its ``mon_groups`` and holds one RMID. A *domain* is one instance of a cache (for L3 and MB: one L3 domain).
Source: Linux Documentation/filesystems/resctrl.rst.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

from placement_traits.errors import InvalidValueError

GROUP_PREFIX: Final = "numa_ext-"
ROOT_GROUP: Final = ""
SHAREABLE_MODE: Final = "shareable"
UINT32_MAX: Final = 0xFFFFFFFF
EIGHTH_GBPS_MBPS: Final = 125

Schemata = Mapping[str, Mapping[int, int]]
"""Resource name (``L3``, ``L3CODE``, ``L3DATA``, ``L2``, ``MB`` …) -> domain -> bit mask or bandwidth value."""

_BANDWIDTH: Final = frozenset({"MB", "SMBA"})
_HEX = re.compile(r"(0[xX])?[0-9a-fA-F]{1,16}\Z")
_DECIMAL = re.compile(r"[0-9]{1,20}\Z")  # up to 64 bits


class BandwidthUnit(StrEnum):
    """What a number in an ``MB`` line means."""

    PERCENT = "percent"
    MBPS = "MiB/s"  # mounted with mba_MBps: a control loop of the kernel
    EIGHTH_GBPS = "1/8 GB/s"  # AMD: an absolute limit


class Unknown(Enum):
    """A counter that could not be read; never to be taken for 0."""

    UNAVAILABLE = "Unavailable"
    ERROR = "Error"
    UNASSIGNED = "Unassigned"


Counter = int | Unknown


@dataclass(frozen=True, slots=True)
class CacheControl:
    """One cache resource that can be partitioned (CAT).

    Masks are bit masks of ways; ``shareable_bits`` are ways that devices may fill too (DDIO), so that nothing in them
    is exclusive. ``sparse_masks``: masks with holes are legal (AMD; Intel where the kernel says so).
    """

    name: str
    cbm_mask: int
    min_cbm_bits: int
    shareable_bits: int
    num_closids: int
    domains: tuple[int, ...]
    sparse_masks: bool = False

    @property
    def ways(self) -> int:
        """Length of a mask in ways."""
        return self.cbm_mask.bit_length()


@dataclass(frozen=True, slots=True)
class BandwidthControl:
    """Memory bandwidth allocation (MBA): smallest and largest value and step, in ``unit``.

    ``thread_throttle_mode`` is ``per-thread``, ``max`` (the most throttled thread of a core decides) or None (AMD).
    ``full`` is what 100 % stands for where values are absolute, in ``unit``: the bandwidth that one L3 domain draws, of
    which the largest value says nothing (AMD: 256 GB/s, several times as much). None: not calibrated.
    """

    min_bandwidth: int
    max_bandwidth: int
    bandwidth_gran: int
    delay_linear: bool
    thread_throttle_mode: str | None
    num_closids: int
    unit: BandwidthUnit
    domains: tuple[int, ...]
    full: int | None = None

    @property
    def levels_known(self) -> bool:
        """Whether a level in per cent says what is left of the bandwidth, and is ours to write."""
        if self.unit is BandwidthUnit.EIGHTH_GBPS:
            return self.full is not None
        return self.unit is BandwidthUnit.PERCENT

    def from_percent(self, percent: int) -> int:
        """Return the legal value that allows at least ``percent`` of the bandwidth, in the unit of this host.

        Where it is not known what that is, it is no limit at all.
        """
        value = percent
        if self.unit is BandwidthUnit.EIGHTH_GBPS:
            if self.full is None or percent >= 100:
                return self.max_bandwidth
            value = -(-self.full * percent // 100)
        stepped = -(-value // self.bandwidth_gran) * self.bandwidth_gran
        return min(max(stepped, self.min_bandwidth), self.max_bandwidth)


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Cache and bandwidth monitoring (CMT, MBM): number of RMIDs (root's included) and event file names."""

    num_rmids: int
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this host's resctrl can do, read from ``info/`` only (cpuinfo flags lie on several platforms)."""

    caches: tuple[CacheControl, ...] = ()
    bandwidth: BandwidthControl | None = None
    monitoring: Monitoring | None = None

    def cache(self, name: str) -> CacheControl | None:
        """Return the cache resource of that name, or None."""
        return next((cache for cache in self.caches if cache.name == name), None)

    @property
    def l3(self) -> tuple[CacheControl, ...]:
        """The L3 resources: ``L3``, or ``L3CODE`` and ``L3DATA`` when mounted with CDP, or none."""
        return tuple(cache for cache in self.caches if cache.name.startswith("L3"))

    @property
    def l2(self) -> tuple[CacheControl, ...]:
        """The L2 resources: ``L2``, or ``L2CODE`` and ``L2DATA`` when mounted with cdpl2, or none."""
        return tuple(cache for cache in self.caches if cache.name.startswith("L2"))

    @property
    def num_closids(self) -> int:
        """Classes of service of the machine, root's included: the smallest number over the resources."""
        numbers = [cache.num_closids for cache in self.caches]
        if self.bandwidth:
            numbers.append(self.bandwidth.num_closids)
        return min(numbers, default=0)


@dataclass(frozen=True, slots=True)
class GroupState:
    """One control group as it is: name ("" is root's), mode, schemata and the names of its monitoring groups."""

    name: str
    mode: str
    schemata: Schemata
    monitors: tuple[str, ...] = ()

    @property
    def ours(self) -> bool:
        """Whether this project made the group; others are never touched."""
        return self.name.startswith(GROUP_PREFIX)

    @property
    def our_monitors(self) -> tuple[str, ...]:
        """The monitoring groups of it that this project made."""
        return tuple(name for name in self.monitors if name.startswith(GROUP_PREFIX))


@dataclass(frozen=True, slots=True)
class Actual:
    """All control groups of the host at one moment, root first."""

    groups: tuple[GroupState, ...]

    @property
    def root(self) -> GroupState:
        """The default group."""
        return self.groups[0]

    @property
    def ours(self) -> tuple[GroupState, ...]:
        """Control groups of this project."""
        return tuple(group for group in self.groups if group.ours)

    @property
    def foreign(self) -> tuple[GroupState, ...]:
        """Control groups of others, without root."""
        return tuple(group for group in self.groups[1:] if not group.ours)

    def get(self, name: str) -> GroupState | None:
        """Return the group of that name, or None."""
        return next((group for group in self.groups if group.name == name), None)


def is_bandwidth(resource: str) -> bool:
    """Tell whether a schemata line holds bandwidth values rather than cache masks."""
    return resource in _BANDWIDTH


def parse_schemata(text: str) -> dict[str, dict[int, int]]:
    """Parse a ``schemata`` file; names and numbers may be padded, the order of lines is free.

    A resource without values (``uninitialized``, a group on its way to pseudo-locking) is left out.

    :raises InvalidValueError: a line is not ``NAME:domain=value;…``
    """
    found: dict[str, dict[int, int]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, rest = (part.strip() for part in line.partition(":"))
        if rest == "uninitialized":
            continue
        try:
            if not colon:
                raise ValueError(line)
            pairs = (pair.split("=") for pair in rest.split(";") if pair.strip())
            base = 10 if is_bandwidth(name) else 16
            found[name] = {int(domain): int(value, base) for domain, value in pairs}
        except ValueError:
            raise InvalidValueError(
                "resctrl schemata", line, "NAME:domain=value;domain=value"
            ) from None
    return found


def format_schemata(schemata: Schemata) -> str:
    """Return the text of one write to ``schemata``, newline at the end (the kernel refuses it without)."""
    lines = []
    for name in sorted(schemata):
        style = "d" if is_bandwidth(name) else "x"
        values = ";".join(
            f"{domain}={value:{style}}" for domain, value in sorted(schemata[name].items())
        )
        lines.append(f"{name}:{values}\n")
    return "".join(lines)


def schemata_difference(now: Schemata, target: Schemata) -> dict[str, dict[int, int]]:
    """Return the values of ``target`` that are not so ``now``."""
    found = {
        name: {d: value for d, value in values.items() if now.get(name, {}).get(d) != value}
        for name, values in target.items()
    }
    return {name: values for name, values in found.items() if values}


def parse_mask(text: str) -> int:
    """Parse a hexadecimal bit mask of ``info/``.

    :raises InvalidValueError: it is not hexadecimal
    """
    stripped = text.strip()
    if not _HEX.match(stripped):
        raise InvalidValueError("resctrl bit mask", stripped, "a hexadecimal number")
    return int(stripped, 16)


def parse_number(text: str, where: str) -> int:
    """Parse a decimal number that the kernel writes.

    :raises InvalidValueError: it is none
    """
    stripped = text.strip()
    if not _DECIMAL.match(stripped):
        raise InvalidValueError(f"resctrl {where}", stripped, "a decimal number")
    return int(stripped)


def parse_counter(text: str) -> Counter:
    """Parse the content of an event file: a number of bytes, or a word for "unknown" (the read itself succeeds).

    :raises InvalidValueError: it is neither
    """
    word = text.strip()
    if _DECIMAL.match(word):
        return int(word)
    try:
        return Unknown(word)
    except ValueError:
        raise InvalidValueError(
            "resctrl counter", word, "a number, Unavailable, Error or Unassigned"
        ) from None


def is_contiguous(mask: int) -> bool:
    """Tell whether the set bits of a mask are one unbroken run (an empty mask is not)."""
    if mask <= 0:
        return False
    shifted = mask // (mask & -mask)
    return shifted & (shifted + 1) == 0


def validate(capabilities: Capabilities, group: str, schemata: Schemata) -> None:
    """Check everything that the kernel would refuse, before anything is written.

    :param group: name for the error
    :raises InvalidValueError: names group, domain, value and what is allowed
    """
    for resource, values in schemata.items():
        control: CacheControl | BandwidthControl | None = (
            capabilities.bandwidth if resource == "MB" else capabilities.cache(resource)
        )
        where = f"RDT group {group or '(root)'}, {resource}"
        if control is None:
            raise InvalidValueError(
                where, resource, f"one of {_resources(capabilities)} on this host"
            )
        for domain, value in values.items():
            if domain not in control.domains:
                raise InvalidValueError(
                    f"{where} domain", domain, f"one of {list(control.domains)}"
                )
            place = f"{where} domain {domain}"
            if isinstance(control, CacheControl):
                _validate_mask(control, place, value)
            else:
                _validate_bandwidth(control, place, value)


def _validate_mask(cache: CacheControl, where: str, mask: int) -> None:
    if mask < 0 or mask & ~cache.cbm_mask or (mask == 0 and not cache.sparse_masks):
        allowed = f"a non-empty mask within {cache.cbm_mask:#x}"
        raise InvalidValueError(where, f"{mask:#x}", allowed)
    if not cache.sparse_masks and not is_contiguous(mask):
        raise InvalidValueError(where, f"{mask:#x}", "a mask of neighbouring ways, without holes")
    if mask.bit_count() < cache.min_cbm_bits:
        raise InvalidValueError(where, f"{mask:#x}", f"at least {cache.min_cbm_bits} ways")


def _validate_bandwidth(bandwidth: BandwidthControl, where: str, value: int) -> None:
    low, high, step = bandwidth.min_bandwidth, bandwidth.max_bandwidth, bandwidth.bandwidth_gran
    if not low <= value <= high or (value % step and value != high):
        allowed = f"{low} to {high} {bandwidth.unit} in steps of {step}"
        raise InvalidValueError(where, value, allowed)


def _resources(capabilities: Capabilities) -> list[str]:
    names = [cache.name for cache in capabilities.caches]
    return [*names, "MB"] if capabilities.bandwidth else names


def validate_budget(capabilities: Capabilities, control_groups: int, monitor_groups: int) -> None:
    """Check that so many groups can exist at all.

    :param control_groups: all control groups, without root
    :param monitor_groups: all monitoring groups
    :raises InvalidValueError: more groups than CLOSIDs or RMIDs (each control group takes one of each)
    """
    if control_groups + 1 > capabilities.num_closids:
        allowed = f"at most {capabilities.num_closids - 1} beside root (CLOSIDs)"
        raise InvalidValueError("RDT control groups", control_groups, allowed)
    if capabilities.monitoring is None:
        return
    used = control_groups + 1 + monitor_groups
    if used > capabilities.monitoring.num_rmids:
        allowed = f"at most {capabilities.monitoring.num_rmids} with root (RMIDs)"
        raise InvalidValueError("RDT control and monitoring groups", used, allowed)
