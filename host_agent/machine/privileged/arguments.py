# SPDX-License-Identifier: Apache-2.0
"""What the helper takes: the bounds of every argument of every operation, all of them here.

The agent talks to guests and services, so it may be an attacker's one day. The helper does nothing for it but the
operations of the table, with arguments of their shapes (:mod:`.wire`) within these bounds. Domains are named by UUID,
and which process is meant is libvirt's to tell (:mod:`.processes`); groups are named by one word with our prefix, so
that no path leads out of the resctrl tree. What depends on the host – L3 domains, masks, threads of a domain, ranges of
its memory – is compared with the host by the operation.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from host_agent.machine.privileged import libvirt_state
from host_agent.machine.privileged.syscalls import PAGE
from host_agent.model.process import LOOKED_AT_ONCE
from host_agent.model.rdt import GROUP_PREFIX, ROOT_GROUP
from placement_traits.errors import InvalidValueError

Check = Callable[[str, Any], None]
"""Called with the name of a value and the value, of the right shape.

:raises InvalidValueError: it is not allowed
"""

_CPUS_MAX: Final = 8192  # NR_CPUS of the largest kernel
_PINNED_CPUS_MAX: Final = 1 << 22  # a thousand threads on each of four thousand
_NODES_MAX: Final = 1024  # MAX_NUMNODES
_GROUPS_MAX: Final = 4096
_SERVERS_MAX: Final = 4096
_THREADS_MAX: Final = 16384
_RANGES_MAX: Final = 1024
_PAGES_MAX: Final = 4096
_ADDRESS_MAX: Final = 1 << 57
_CPU_PART: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?\Z")


def number(low: float, high: float) -> Check:
    """Allow numbers of a range."""

    def check(where: str, value: Any) -> None:
        if not low <= value <= high:  # NaN is in no range
            raise InvalidValueError(where, value, f"{low:g} to {high:g}")

    return check


def word(pattern: "re.Pattern[str]", allowed: str) -> Check:
    """Allow texts of a pattern."""

    def check(where: str, value: Any) -> None:
        if not pattern.match(value):
            raise InvalidValueError(where, value, allowed)

    return check


def many(each: Check, most: int) -> Check:
    """Allow lists of at most so many of what ``each`` allows."""

    def check(where: str, value: Any) -> None:
        if len(value) > most:
            raise InvalidValueError(f"{where}, entries", len(value), f"at most {most}")
        for one in value:
            each(where, one)

    return check


@dataclass(frozen=True, slots=True)
class Fields:
    """Allow named tuples and dataclasses whose fields are allowed.

    :param checks: by name of the field
    """

    checks: Mapping[str, Check]

    def __call__(self, where: str, value: Any) -> None:
        for name, one in self.checks.items():
            one(f"{where}.{name}", getattr(value, name))


def fields(**checks: Check) -> Fields:
    """Allow named tuples and dataclasses whose fields are allowed, each by a check of its own."""
    return Fields(checks)


def record(*checks: Check) -> Check:
    """Allow tuples, entry by entry."""

    def check(where: str, value: Any) -> None:
        for one, found in zip(checks, value, strict=True):
            one(where, found)

    return check


def mapping(key: Check, each: Check, most: int) -> Check:
    """Allow mappings of at most so many entries."""

    def check(where: str, value: Mapping[Any, Any]) -> None:
        many(key, most)(where, value)
        many(each, most)(where, value.values())

    return check


def anything(_where: str, _value: Any) -> None:
    """Allow what has the right shape: a truth value, a choice."""


def _cpu_list(where: str, value: str) -> None:
    """Allow CPU lists as the kernel writes them, without making a set of them first."""
    _cpus_of(where, value)


def _cpus_of(where: str, value: str) -> int:
    """Return how many CPUs an allowed list names."""
    total = 0
    for part in value.split(",", _CPUS_MAX):  # what follows so many parts makes the last one none
        match = _CPU_PART.match(part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        total += max(0, high - low + 1)
        if low > high or high >= _CPUS_MAX or total > _CPUS_MAX:
            raise InvalidValueError(where, value, f"CPUs below {_CPUS_MAX} such as 0,2,4-7")
    return total


def _few_cpus(where: str, value: Any) -> None:
    """Allow pins that are made in some tenths of a second."""
    total = sum(_cpus_of(where, pin.cpus) for pin in value)
    if total > _PINNED_CPUS_MAX:
        raise InvalidValueError(f"{where}, CPUs of all", total, f"at most {_PINNED_CPUS_MAX}")


def _range(where: str, value: tuple[int, int]) -> None:
    start, end = value
    if not 0 <= start < end <= _ADDRESS_MAX or start % PAGE or end % PAGE:
        raise InvalidValueError(where, (start, end), "first address of a page, and of one behind")


def _target(where: str, value: Any) -> None:
    _range(where, (value.start, value.end))
    total = sum(share for _node, share in value.shares)
    if not math.isclose(total, 1.0, abs_tol=0.01):
        raise InvalidValueError(f"{where}, sum of shares", total, "1")


def both(first: Check, second: Check) -> Check:
    """Allow what both allow."""

    def check(where: str, value: Any) -> None:
        first(where, value)
        second(where, value)

    return check


_UUID = word(libvirt_state.UUID, "a UUID in lower case")
_OURS = word(
    re.compile(rf"{GROUP_PREFIX}[A-Za-z0-9_.-]{{1,200}}\Z"), f"{GROUP_PREFIX} and one word"
)
_TID = number(1, 1 << 22)
_L3_DOMAIN = number(0, 65535)
_LABEL = word(re.compile(r"[^/\0\n]{0,255}\Z"), "a name without a slash")
_PERCENT = number(1, 100)


def _ours_or_none(where: str, value: str) -> None:
    if value != ROOT_GROUP:
        _OURS(where, value)


_SCHEMATA = mapping(_LABEL, mapping(_L3_DOMAIN, number(0, 1 << 64), _GROUPS_MAX), 64)
_WRITE = fields(
    kind=anything,
    group=_ours_or_none,
    monitor=_ours_or_none,
    schemata=_SCHEMATA,
    before=_SCHEMATA,
    target=_ours_or_none,
)
_MEMBER = fields(uuid=_UUID, group=_ours_or_none, monitor=_ours_or_none)
_SEEN = fields(  # only compared with what there is
    groups=many(
        fields(name=_LABEL, mode=_LABEL, schemata=_SCHEMATA, monitors=many(_LABEL, _GROUPS_MAX)),
        _GROUPS_MAX,
    )
)
_LIMITS = fields(
    max_kb=number(0, 1 << 50),
    rate_mbps=number(0, 1e9),
    seconds=number(0, 60),
    pause_ms=number(0, 60_000),
)

BOUNDS: Final[Mapping[str, tuple[Check, ...]]] = {
    "process": (_UUID,),
    "guest_ram": (_UUID,),
    "look": (
        many(record(_UUID, many(_range, _RANGES_MAX)), LOOKED_AT_ONCE),
        number(1, _PAGES_MAX),
    ),
    "pin": (_UUID, both(many(fields(tid=_TID, cpus=_cpu_list), _THREADS_MAX), _few_cpus)),
    "move_memory": (
        _UUID,
        many(
            both(
                fields(
                    start=number(0, _ADDRESS_MAX),
                    end=number(0, _ADDRESS_MAX),
                    shares=many(record(number(0, _NODES_MAX - 1), number(0, 1)), _NODES_MAX),
                ),
                _target,
            ),
            _RANGES_MAX,
        ),
        _LIMITS,
    ),
    "count": (many(record(_UUID, many(_TID, _THREADS_MAX)), _SERVERS_MAX), anything),
    "plug_latency_port": (_UUID,),
    "plug_vsock": (_UUID,),
    "unplug_vsock": (_UUID,),
    "rdt_state": (),
    "apply_partitions": (
        fields(
            seen=_SEEN,
            writes=many(_WRITE, _GROUPS_MAX),
            members=many(_MEMBER, _SERVERS_MAX),
            root_found=_SCHEMATA,
        ),
        anything,
    ),
    "throttle": (
        many(
            fields(
                group=_OURS,
                mba_percent=many(record(_L3_DOMAIN, _PERCENT), _GROUPS_MAX),
            ),
            _GROUPS_MAX,
        ),
    ),
    "limit_cpu_time": (many(record(_UUID, _PERCENT), _SERVERS_MAX), anything),
    "release_throttles": (anything,),
    "in_control": (),
    "graceful_shutdown": (),
    "reset_partitions": (anything,),
}
"""Operation -> what each of its arguments may be."""


def check_call(operation: str, names: "tuple[str, ...]", values: "tuple[Any, ...]") -> None:
    """Check the arguments of one call, of the right shapes.

    :param names: of the arguments, in the order of the table
    :raises InvalidValueError: names operation, argument, value and what is allowed
    """
    for name, bound, value in zip(names, BOUNDS[operation], values, strict=True):
        bound(f"{operation}, {name}", value)
