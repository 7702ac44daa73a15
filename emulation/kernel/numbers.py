# SPDX-License-Identifier: Apache-2.0
"""Numbers and CPU lists as the kernel reads and writes them."""

import re
from collections.abc import Iterable
from typing import Final

_INT32: Final = 1 << 31


def parse_int32(text: str) -> int | None:
    """Parse a 32-bit number as the kernel does; None when it is none."""
    try:
        number = int(text.strip(" \t\n"), 0)
    except ValueError:
        return None
    return number if abs(number) < _INT32 else None


def parse_cpu_mask(text: str) -> set[int]:
    """Parse a mask such as ``f,ffffffff``.

    :raises ValueError: it is none
    """
    if not re.fullmatch(r"[0-9a-fA-F,]*", text):
        raise ValueError(text)
    mask = int(text.replace(",", "") or "0", 16)
    return {cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1}


def parse_cpu_list(text: str, online: frozenset[int]) -> set[int]:
    """Parse ``1,4-6,8-15:2/4`` (first-last:used/every) and ``all``.

    :raises ValueError: it is none
    """
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+)(?::(\d+)/(\d+))?)?\s*", part)
        if part == "all":
            found |= online
            continue
        if not match:
            raise ValueError(text)
        first, last = int(match[1]), int(match[2] or match[1])
        used, every = int(match[3] or 1), int(match[4] or 1)
        if last < first or not 0 < used <= every:
            raise ValueError(text)
        found |= {cpu for cpu in range(first, last + 1) if (cpu - first) % every < used}
    return found


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Return the shortest list, such as ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
