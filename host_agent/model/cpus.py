# SPDX-License-Identifier: Apache-2.0
"""CPU and node lists as the kernel and libvirt write them (``0,2,4-7``, libvirt also ``0-7,^3``)."""

import re
from collections.abc import Iterable
from functools import lru_cache

from placement_traits.errors import InvalidValueError

_PART = re.compile(r"(\^?)([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")
_REMEMBERED = 512  # a set of all CPUs of the largest kernel has half a MiB
_LARGEST = 65535  # more than any kernel has; keeps a hostile "0-99999999999" from filling memory
_MOST = 4 * (
    _LARGEST + 1
)  # more than any list names; keeps a hostile "0-65535,0-65535…" from taking minutes


def parse(text: str) -> frozenset[int]:
    """Parse a list; an empty text is the empty set.

    :raises InvalidValueError: it is not a list of numbers and ranges
    """
    added: set[int] = set()
    removed: set[int] = set()
    named = 0
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = _PART.match(part)
        if match is None:
            raise InvalidValueError("CPU list", text, "numbers and ranges such as 0,2,4-7")
        low, high = int(match[2]), int(match[3] or match[2])
        if low > high or high > _LARGEST:
            raise InvalidValueError("CPU list", text, f"ascending ranges up to {_LARGEST}")
        named += high - low + 1
        if named > _MOST:
            raise InvalidValueError("CPU list", text, "each number once")
        (removed if match[1] else added).update(range(low, high + 1))
    return frozenset(added - removed)


@lru_cache(maxsize=_REMEMBERED)
def seen(text: str) -> frozenset[int]:
    """Parse a list as the kernel shows it of a thread or process: a round sees hundreds of few different ones.

    :raises InvalidValueError: it is none
    """
    return parse(text)


def text(numbers: Iterable[int]) -> str:
    """Return the shortest list the kernel would write; "" for the empty set."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
