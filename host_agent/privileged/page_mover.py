# SPDX-License-Identifier: Apache-2.0
"""Move guest memory to exact shares per node with ``move_pages(2)``: batched, rate limited, verified, retried.

The kernel's traps that shape this (measured on Linux 6.1 and 6.12): many addresses inside one transparent huge page
move it once per address, so a unit that sits on one node as a whole is moved by its first address alone, and only what
then still is elsewhere was made of small pages; a positive result leaves stale entries in the status array, so every
batch is looked up again; a node outside the process's cpuset fails the whole call with EACCES.
"""

import errno
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Protocol

from host_agent.controllers.page_moves import HUGE_UNIT_BYTES, Move, Run, plan_moves
from host_agent.privileged.shapes import MoveLimits, MoveReport, RamRange, Target
from host_agent.privileged.syscalls import PAGE

UNIT: Final = HUGE_UNIT_BYTES
UNIT_PAGES: Final = UNIT // PAGE
_PAGE_KB: Final = PAGE // 1024
_LOOKUP: Final = 32 * UNIT  # addresses per look-up call
_BATCH_KB: Final = 16384  # one move call: bounds how long the kernel holds the pages
_ROUNDS: Final = 3


class Kernel(Protocol):
    """What the mover needs of :class:`~host_agent.privileged.syscalls.Syscalls`."""

    def locate(self, pid: int, addresses: "array[int]") -> "array[int]":
        """Node of each page."""

    def move(self, pid: int, addresses: "array[int]", nodes: Sequence[int]) -> int:
        """Move each page."""


@dataclass(slots=True)
class _Progress:
    limits: MoveLimits
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    started: float
    moved_kb: int = 0
    calls: int = 0
    problem: str = ""
    refused: int = 0

    @property
    def over(self) -> bool:
        """Nothing more may be moved; time runs out only after a first batch, or looking up could eat it for ever."""
        late = self.calls > 0 and self.clock() - self.started >= self.limits.seconds
        return bool(self.problem) or self.moved_kb >= self.limits.max_kb or late

    def pace(self) -> None:
        """Sleep until what was moved fits the rate, but not beyond the time limit."""
        if self.limits.rate_mbps <= 0:
            return
        due = self.started + self.moved_kb * 1.024e-3 / self.limits.rate_mbps
        wait = min(due, self.started + self.limits.seconds) - self.clock()
        if wait > 0:
            self.sleep(wait)


def move(
    kernel: Kernel,
    pid: int,
    ranges: Sequence[RamRange],
    targets: Sequence[Target],
    limits: MoveLimits,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> MoveReport:
    """Bring guest memory nearer to its targets, within limits; call again for the rest.

    :param ranges: guest memory of the process, with the part in huge pages
    :param targets: wanted shares; each target must be one of the ranges
    """
    huge = {(found.start, found.end): found.thp_kb > 0 for found in ranges}
    progress = _Progress(limits, clock, sleep, clock())
    remaining_kb = 0
    for target in targets:
        borders = (target.start, target.end)
        if borders not in huge:
            progress.problem = (
                f"{target.start:#x}-{target.end:#x} is not guest memory of process {pid}"
            )
            break
        try:
            remaining_kb += _move_range(kernel, pid, target, huge[borders], progress)
        except OSError as error:
            progress.problem = _sentence(error, target)
            break
    seconds = clock() - progress.started
    return MoveReport(
        progress.moved_kb,
        remaining_kb,
        progress.refused,
        progress.calls,
        round(seconds, 6),
        progress.problem,
    )


def _sentence(error: OSError, target: Target) -> str:
    if error.errno == errno.EACCES:
        nodes = [node for node, _ in target.shares]
        return f"nodes {nodes} are not all in the cpuset of the process; it is never widened"
    return error.strerror or str(error)


def _move_range(kernel: Kernel, pid: int, target: Target, huge: bool, progress: _Progress) -> int:
    """Move one range; return the KiB that are still elsewhere."""
    runs = _locate(kernel, pid, target.start, target.end, huge)
    plan = plan_moves(runs, dict(target.shares))
    whole = [move for move in plan.moves if move.unit_bytes == UNIT]
    small = [move for move in plan.moves if move.unit_bytes != UNIT]
    _move_addresses(kernel, pid, _pairs(whole), UNIT // 1024, progress)
    _move_addresses(kernel, pid, _pairs(small), _PAGE_KB, progress)
    stretches = [(move.start, move.start + move.bytes, move.target) for move in plan.moves]
    left = list(_misplaced(kernel, pid, stretches))
    for _round in range(_ROUNDS):
        if not left or progress.over:
            break
        _move_addresses(kernel, pid, left, _PAGE_KB, progress)
        left = list(_misplaced(kernel, pid, stretches))
    if not progress.over:
        progress.refused += len(left)
    return len(left) * _PAGE_KB


def _pairs(moves: Sequence[Move]) -> list[tuple[int, int]]:
    return [(address, move.target) for move in moves for address in move.addresses]


def _locate(kernel: Kernel, pid: int, start: int, end: int, huge: bool) -> list[Run]:
    """Return where the resident pages of a range are.

    :param huge: part of the range is in huge pages: a full unit on one node is taken for one until it proves otherwise
    """
    runs: list[Run] = []
    for chunk in range(start - start % UNIT, end, _LOOKUP):
        first, last = max(chunk, start), min(chunk + _LOOKUP, end)
        status = kernel.locate(pid, array("Q", range(first, last, PAGE)))
        position = 0
        while position < len(status):
            address = first + position * PAGE
            pages = min(UNIT_PAGES - address % UNIT // PAGE, len(status) - position)
            part = status[position : position + pages]
            _append_unit(runs, address, part, huge and pages == UNIT_PAGES)
            position += pages
    return runs


def _append_unit(runs: list[Run], address: int, nodes: "array[int]", huge: bool) -> None:
    """Add the pages of one unit, joined to the run before where that is of the same kind."""
    if nodes.count(nodes[0]) == len(nodes):
        stretches = [(nodes[0], len(nodes))]
    else:
        stretches = [(node, len(list(group))) for node, group in groupby(nodes)]
    huge = huge and len(stretches) == 1
    for node, pages in stretches:
        size, units = (UNIT, 1) if huge else (PAGE, pages)
        if node >= 0:
            last = runs[-1] if runs else None
            joins = last and (last.start + last.bytes, last.unit_bytes, last.node) == (
                address,
                size,
                node,
            )
            if last and joins:
                runs[-1] = replace(last, units=last.units + units)
            else:
                runs.append(Run(address, size, units, node))
        address += pages * PAGE


def _misplaced(
    kernel: Kernel, pid: int, stretches: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield (address, node) of each resident page of (start, end, node) that is not on its node."""
    for start, end, node in stretches:
        for first in range(start, end, _LOOKUP):
            wanted = array("Q", range(first, min(first + _LOOKUP, end), PAGE))
            status = kernel.locate(pid, wanted)
            if status.count(node) == len(status):
                continue
            for address, actual in zip(wanted, status, strict=True):
                if actual >= 0 and actual != node:
                    yield address, node


def _move_addresses(
    kernel: Kernel,
    pid: int,
    moves: Sequence[tuple[int, int]],
    each_kb: int,
    progress: _Progress,
) -> None:
    size = max(1, _BATCH_KB // each_kb)
    for first in range(0, len(moves), size):
        if progress.over:
            return
        room = max(1, (progress.limits.max_kb - progress.moved_kb) // each_kb)
        batch = moves[first : first + min(size, room)]
        wanted = array("Q", [address for address, _ in batch])
        kernel.move(pid, wanted, [node for _, node in batch])
        progress.calls += 1
        status = kernel.locate(pid, wanted)
        arrived = sum(actual == node for actual, (_, node) in zip(status, batch, strict=True))
        progress.moved_kb += arrived * each_kb
        progress.pace()
