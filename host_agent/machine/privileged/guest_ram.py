# SPDX-License-Identifier: Apache-2.0
"""Which mappings of a QEMU process are guest memory, and on which nodes their pages are.

Guest memory is known by its size: the command line names every memory backend with its size, and QEMU maps each with a
guard page behind it. Executable mappings are never guest memory (TCG's code buffer is as big as a small guest).
"""

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from host_agent.machine.privileged import command_line
from host_agent.model import cpus
from host_agent.model.process import RamRange

_MAPS_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ")
_NODE = re.compile(r"N(\d+)=(\d+)\Z")
_SIZE = re.compile(r"(\d{1,18})([kmgtKMGT]?)")
_UNITS: Final = {"": 1 << 20, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class _Mapping:
    start: int
    end: int
    permissions: str

    @property
    def size(self) -> int:
        return self.end - self.start


def backend_sizes(arguments: list[str]) -> tuple[int, ...]:
    """Return the sizes of all memory backends of a QEMU command line, bytes.

    :param arguments: the command line, split
    """
    sizes = []
    for flag, value in pairwise(arguments):
        if flag == "-object" and "memory-backend-" in value:
            size = _backend_size(value)
            if size:
                sizes.append(size)
    if sizes:
        return tuple(sizes)
    for flag, value in pairwise(arguments):
        if flag == "-m":
            return (_quantity(value.removeprefix("size=").split(",")[0]),)
    return ()


def _backend_size(text: str) -> int:
    if text.startswith("{"):
        try:
            size = json.loads(text).get("size", 0)
        except (ValueError, RecursionError):
            return 0
        return int(size) if isinstance(size, int) else 0
    found = re.search(r"(?:^|,)size=(\d{1,18})([kmgtKMGT]?)", text)
    # A size in -object without a unit is in bytes, in -m it is in MiB.
    return 0 if found is None else int(found[1]) * (_UNITS[found[2].lower()] if found[2] else 1)


def _quantity(text: str) -> int:
    found = _SIZE.match(text)
    return 0 if found is None else int(found[1]) * _UNITS[found[2].lower()]


def guest_mappings(maps: str, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return (start, end) of the mappings that are guest memory, ascending.

    :param maps: text of ``/proc/PID/maps``
    :param sizes: of the memory backends, bytes; each is looked for once
    """
    candidates = _runs(maps)
    found: list[tuple[int, int]] = []
    for size in sorted(sizes, reverse=True):
        exact = next((run for run in candidates if sum(m.size for m in run) == size), None)
        # The kernel may have merged a neighbour in front of it; the guard page keeps the end exact.
        larger = [run for run in candidates if sum(m.size for m in run) > size]
        chosen = exact or min(larger, key=lambda run: sum(m.size for m in run), default=None)
        if chosen is None:
            continue
        candidates.remove(chosen)
        begin = chosen[-1].end - size
        found.extend((max(m.start, begin), m.end) for m in chosen if m.end > begin)
    return sorted(found)


def _runs(maps: str) -> list[list[_Mapping]]:
    """Writable, not executable mappings; neighbours with equal permissions are one run (a policy may split them)."""
    runs: list[list[_Mapping]] = []
    for line in maps.split("\n"):
        match = _MAPS_LINE.match(line)
        if match is None or match[3][:3] != "rw-":
            continue
        mapping = _Mapping(int(match[1], 16), int(match[2], 16), match[3])
        last = runs[-1][-1] if runs else None
        if last and last.end == mapping.start and last.permissions == mapping.permissions:
            runs[-1].append(mapping)
        else:
            runs.append([mapping])
    return runs


def parse_numa_maps(text: str) -> dict[int, RamRange]:
    """Parse ``/proc/PID/numa_maps``: start address -> range without its end (0)."""
    ranges = {}
    for line in text.split("\n"):
        words = line.split()
        if len(words) < 2:
            continue
        page_kb, pages = 4, []
        for word in words[2:]:
            node = _NODE.match(word)
            if node:
                pages.append((int(node[1]), int(node[2])))
            elif word.startswith("kernelpagesize_kB="):
                page_kb = int(word.partition("=")[2])
        start = int(words[0], 16)
        resident = tuple((node, count * page_kb) for node, count in sorted(pages))
        ranges[start] = RamRange(start, 0, _bound(words[1]), page_kb, -1, resident)
    return ranges


def _bound(policy: str) -> tuple[int, ...]:
    mode, _, nodes = policy.partition(":")
    return tuple(sorted(cpus.parse(nodes))) if mode.startswith("bind") and nodes else ()


def parse_thp(smaps: str) -> dict[int, int]:
    """Parse ``/proc/PID/smaps``: start address -> KiB in transparent huge pages (anonymous, or shared memory)."""
    thp: dict[int, int] = {}
    start = -1
    for line in smaps.split("\n"):
        match = _MAPS_LINE.match(line)
        if match:
            start = int(match[1], 16)
            thp[start] = 0
        elif line.startswith(("AnonHugePages:", "ShmemPmdMapped:")):
            thp[start] += int(line.split()[1])
    return thp


def mapped(process: Path) -> list[tuple[int, int]]:
    """Return (start, end) of one process's guest memory, ascending; no page table is walked for that.

    :param process: ``/proc/PID``
    """
    arguments = [part.decode(errors="replace") for part in command_line.read(process)]
    return guest_mappings(_text(process / "maps"), backend_sizes(arguments))


def read(process: Path, *, with_thp: bool = False) -> tuple[RamRange, ...]:
    """Read guest memory of one process: a full pass over its page tables, so not for a fast loop.

    :param process: ``/proc/PID``
    :param with_thp: a second pass that reads the part in transparent huge pages
    """
    mappings = mapped(process)
    numa = parse_numa_maps(_text(process / "numa_maps"))
    thp = parse_thp(_text(process / "smaps")) if with_thp else None
    ranges = []
    for start, end in mappings:
        # Where a merged neighbour was cut off the front, numa_maps lists the mapping by its own, lower start.
        own = max((known for known in numa if known <= start), default=None)
        if own is None:
            continue
        found = numa[own]._replace(start=start, end=end)
        ranges.append(found if thp is None else found._replace(thp_kb=thp.get(own, 0)))
    return tuple(ranges)


def _text(file: Path) -> str:
    """Read a file that names files: any bytes, of which the kernel escapes line feeds and no other line end."""
    return file.read_bytes().decode(errors="replace")
