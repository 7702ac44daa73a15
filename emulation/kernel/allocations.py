# SPDX-License-Identifier: Apache-2.0
"""What each control group of the resctrl model has of caches and bandwidth: the files ``schemata``, ``size``, ``mode``
and ``bit_usage``.
"""

import errno
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from emulation.kernel.groups import CommandStatus, ControlGroup, kernel_error
from emulation.kernel.shape import Shape
from host_agent.model.rdt import is_contiguous

_UINT32: Final = 1 << 32
_UINT64: Final = 1 << 64

Staged: TypeAlias = dict[tuple[str, int], int]
"""(resource, domain) -> value."""


class Allocations:
    """Ways and levels of all control groups.

    :param shape: hardware
    :param groups: by name, as they are at any time
    :param status: takes the kernel's sentences
    """

    def __init__(
        self, shape: Shape, groups: Mapping[str, ControlGroup], status: CommandStatus
    ) -> None:
        self._shape = shape
        self._groups = groups
        self._status = status

    def of_new_group(self) -> dict[str, dict[int, int]]:
        """All bandwidth, and of each cache the first run of ways that are shareable, shared by a group, or unused."""
        shape = self._shape
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
                    raise self._status.refuse(errno.ENOSPC, f"No space on {cache}:{domain}")
                schemata[cache][domain] = mask
        if shape.mba:
            schemata["MB"] = dict.fromkeys(shape.domains, shape.mba_max)
        return schemata

    def values(self, control: ControlGroup) -> str:
        """Return the text of ``schemata``."""
        return self._show(control, self._show_value)

    def sizes(self, control: ControlGroup) -> str:
        """Return the text of ``size``."""
        return self._show(control, self._show_size)

    def bit_usage(self, cache: str) -> str:
        """Return the text of ``bit_usage`` without its end of line."""
        lines = []
        for domain in self._shape.domains_of(cache):
            used = dict.fromkeys(("shareable", "exclusive"), 0)
            for group in self._groups.values():
                used[group.mode] |= group.schemata[cache][domain]
            letters = ""
            for way in reversed(range(self._shape.full_of(cache).bit_length())):
                bit = 1 << way
                shared, hardware = used["shareable"] & bit, self._shape.shareable_of(cache) & bit
                exclusive = "E" if used["exclusive"] & bit else "0"
                letters += ("X" if shared else "H") if hardware else "S" if shared else exclusive
            lines.append(f"{domain}={letters}")
        return ";".join(lines)

    def parse(self, control: ControlGroup, data: str) -> Staged:
        """Return what is written into ``schemata`` of a group; nothing is changed yet."""
        if not data.endswith("\n"):
            raise kernel_error(errno.EINVAL)
        self._status.clear()
        staged: Staged = {}
        text = data[:-1].partition("\0")[0]  # the kernel takes it for a C string
        for line in text.split("\n"):
            name, colon, rest = line.partition(":")
            name = name.strip()
            if not colon:
                raise self._status.refuse(errno.EINVAL, "Missing ':'")
            if not rest:
                raise self._status.refuse(errno.EINVAL, f"Missing '{name}' value")
            if name not in control.schemata:
                raise self._status.refuse(
                    errno.EINVAL, f"Unknown or unsupported resource name '{name}'"
                )
            self._stage(control, name, rest, staged)
        return staged

    def apply(self, control: ControlGroup, staged: Staged) -> None:
        """Make it true."""
        for (name, domain), value in staged.items():
            control.schemata[name][domain] = value

    def write_mode(self, control: ControlGroup, data: str) -> None:
        """Take what is written into ``mode``."""
        if not data.endswith("\n"):
            raise kernel_error(errno.EINVAL)
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
                raise self._status.refuse(errno.EINVAL, "Cannot pseudo-lock default group")
            case "pseudo-locksetup":
                raise self._status.refuse(errno.EINVAL, "Pseudo-locking not supported")
            case _:
                raise self._status.refuse(errno.EINVAL, "Unknown or unsupported mode")

    def _make_exclusive(self, control: ControlGroup) -> None:
        if not self._shape.all_caches:
            raise self._status.refuse(errno.EINVAL, "Cannot be exclusive without CAT/CDP")
        for cache in self._shape.all_caches:
            for domain, mask in control.schemata[cache].items():
                used = self._shape.shareable_of(cache)
                for group in self._groups.values():
                    used |= group.schemata[cache][domain] if group is not control else 0
                if used & mask:
                    raise self._status.refuse(errno.EINVAL, "Schemata overlaps")
        control.mode = "exclusive"

    def _stage(self, control: ControlGroup, name: str, rest: str, staged: Staged) -> None:
        for entry in rest.removesuffix(";").split(";"):
            number, equals, value = entry.partition("=")
            if not equals or not re.fullmatch(r"\+?[0-9]+", number):
                raise self._status.refuse(errno.EINVAL, "Missing '=' or non-numeric domain")
            domain = int(number)
            if domain not in self._shape.domains_of(name):
                raise kernel_error(errno.EINVAL)  # the kernel gives no reason
            if (name, domain) in staged:
                raise self._status.refuse(errno.EINVAL, f"Duplicate domain {domain}")
            parse = self._parse_bandwidth if name == "MB" else self._parse_mask
            staged[name, domain] = parse(control, name, domain, value.strip())

    def _parse_mask(self, control: ControlGroup, name: str, domain: int, text: str) -> int:
        shape = self._shape
        mask = int(text, 16) if re.fullmatch(r"\+?(0[xX])?[0-9a-fA-F]+", text) else _UINT64
        if mask >= _UINT64:
            raise self._status.refuse(errno.EINVAL, f"Non-hex character in the mask {text}")
        if mask > shape.full_of(name) or (mask == 0 and shape.min_cbm_bits > 0):
            raise self._status.refuse(errno.EINVAL, "Mask out of range")
        if not shape.amd and not is_contiguous(mask):
            raise self._status.refuse(errno.EINVAL, f"The mask {mask:x} has non-consecutive 1-bits")
        if mask.bit_count() < shape.min_cbm_bits:
            raise self._status.refuse(
                errno.EINVAL, f"Need at least {shape.min_cbm_bits} bits in the mask"
            )
        others = [group for group in self._groups.values() if group is not control]
        meets = [group for group in others if group.schemata[name][domain] & mask]
        if any(group.mode == "exclusive" for group in meets):
            raise self._status.refuse(errno.EINVAL, "Overlaps with exclusive group")
        if control.mode == "exclusive" and (meets or mask & shape.shareable_of(name)):
            raise self._status.refuse(errno.EINVAL, "Overlaps with other group")
        return mask

    def _parse_bandwidth(self, control: ControlGroup, name: str, domain: int, text: str) -> int:
        del control, name, domain
        shape = self._shape
        value = int(text) if re.fullmatch(r"\+?[0-9]+", text) else _UINT32
        if value >= _UINT32:
            raise self._status.refuse(errno.EINVAL, f"Invalid MB value {text}")
        if shape.mba_mbps:
            return value
        if not shape.mba_min <= value <= shape.mba_max:
            limits = f"[{shape.mba_min},{shape.mba_max}]"
            raise self._status.refuse(errno.EINVAL, f"MB value {value} out of range {limits}")
        return -(-value // shape.mba_gran) * shape.mba_gran

    def _show(self, control: ControlGroup, show: Callable[[str, int], str]) -> str:
        width = max(map(len, control.schemata), default=0)
        lines = []
        for name in reversed(control.schemata):
            values = control.schemata[name].items()
            text = ";".join(f"{domain}={show(name, value)}" for domain, value in values)
            lines.append(f"{name:>{width}}:{text}\n")
        return "".join(lines)

    def _show_value(self, name: str, value: int) -> str:
        widths = [4 if self._shape.amd else 3] if self._shape.mba else []
        width = max([*widths, (self._shape.cbm_len + 3) // 4 if self._shape.l3 else 0])
        return f"{value:{width}d}" if name == "MB" else f"{value:0{width}x}"

    def _show_size(self, name: str, value: int) -> str:
        if name == "MB":
            return str(value)
        return str(self._shape.way_bytes(name) * value.bit_count())
