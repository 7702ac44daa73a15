# SPDX-License-Identifier: Apache-2.0
"""Move guest memory to exact shares per node with ``move_pages(2)``: in windows, rate limited, verified, retried.

A :class:`Sweep` walks the address range once, window by window: look up, plan, move, verify. Which part of each node's
pages leaves is known from the full pass before it (:class:`_Recipe`), so that every window does its fraction, the bytes
moved are the least, and a call needs time and memory for a window only, however large the guest is.

The kernel's traps that shape this (measured on Linux 6.1 and 6.12): many addresses inside one transparent huge page
move it once per address, so a unit that sits on one node as a whole is moved by its first address alone, and only what
then still is elsewhere was made of small pages; a positive result leaves stale entries in the status array, so every
batch is looked up again; a node outside the process's cpuset fails the whole call with EACCES.
"""

import errno
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Final, Protocol

from host_agent.machine.privileged.syscalls import PAGE
from host_agent.model.pages import (
    HUGE_UNIT_BYTES,
    Move,
    Run,
    apportion,
    plan_moves,
    resident_bytes,
)
from host_agent.model.process import MoveLimits, MoveReport, RamRange, Target

UNIT: Final = HUGE_UNIT_BYTES
UNIT_PAGES: Final = UNIT // PAGE
_PAGE_KB: Final = PAGE // 1024
# A call moves whole windows: bounds how late it can be, and one move_pages call.
_WINDOW: Final = 8 * UNIT
_ROUNDS: Final = 3
# What a longer walk saw of its first windows is too old to be reported as the present; a full pass costs little then.
_REPORTED_S: Final = 10.0


class PageKernel(Protocol):
    """What the mover needs of :class:`~host_agent.machine.privileged.syscalls.Syscalls`."""

    def locate(self, pid: int, addresses: "array[int]") -> "array[int]":
        """Node of each page."""

    def move(self, pid: int, addresses: "array[int]", nodes: Sequence[int]) -> int:
        """Move each page."""


class _Recipe:
    """Which fraction of each node's pages leaves a range, and where it goes; the same for every window.

    What a window cannot give exactly, because pages are moved as units, is carried to the next one.

    :param resident_kb: node -> KiB of the range there, by the full pass before the sweep
    :param shares: node -> desired share, sums to 1
    """

    def __init__(self, resident_kb: Mapping[int, int], shares: Mapping[int, float]) -> None:
        total = sum(resident_kb.values())
        surplus = {
            node: resident_kb.get(node, 0) - total * shares.get(node, 0.0)
            for node in {**resident_kb, **shares}
        }
        self._leave = {n: kb / resident_kb[n] for n, kb in surplus.items() if kb > 0}
        lack = {node: -kb for node, kb in surplus.items() if kb < 0}
        self.planned_kb = round(sum(lack.values()))
        self._enter = {node: kb / sum(lack.values()) for node, kb in lack.items()}
        self._due: dict[int, float] = defaultdict(float)  # bytes
        self._left: dict[int, int] = defaultdict(int)

    @property
    def left_kb(self) -> tuple[tuple[int, int], ...]:
        """(node, KiB) of the windows planned so far, ascending by node, when all that was planned has arrived."""
        return tuple((node, held // 1024) for node, held in sorted(self._left.items()) if held)

    def plan(self, runs: Sequence[Run]) -> tuple[Move, ...]:
        """Return this window's moves.

        :param runs: where its pages are
        """
        held = resident_bytes(runs)
        moves = self._moves(runs, held)
        for node, kept in held.items():
            self._left[node] += kept
        for move in moves:
            self._left[move.source] -= move.bytes
            self._left[move.target] += move.bytes
        return moves

    def _moves(self, runs: Sequence[Run], held: Mapping[int, int]) -> tuple[Move, ...]:
        unit = min((run.unit_bytes for run in runs), default=1)
        desired = {node: kept // unit for node, kept in held.items()}
        for node, part in self._leave.items():
            self._due[node] += part * held.get(node, 0)
        out = {node: self._due[node] for node in self._leave if desired.get(node)}
        leaving = _split(round(sum(out.values()) / unit), out)
        leaving = {node: min(count, desired[node]) for node, count in leaving.items()}
        units = sum(leaving.values())
        if not units:
            return ()
        into = {node: self._due[node] + part * units * unit for node, part in self._enter.items()}
        for node, count in leaving.items():
            desired[node] -= count
        for node, count in _split(units, into).items():
            desired[node] = desired.get(node, 0) + count
        total = sum(desired.values())
        moves = plan_moves(runs, {node: count / total for node, count in desired.items()}).moves
        moved = sum(move.bytes for move in moves)
        for node, part in self._enter.items():
            self._due[node] += part * moved
        for move in moves:
            self._due[move.source] -= move.bytes
            self._due[move.target] -= move.bytes
        return moves


def _split(units: int, due: Mapping[int, float]) -> dict[int, int]:
    """Split units over nodes in proportion to what is due to each; who had too much before gets none."""
    open_ = {node: max(0.0, amount) for node, amount in due.items()}
    total = sum(open_.values())
    if units <= 0 or not total:
        return {}
    return apportion(units, {node: amount / total for node, amount in open_.items()})


class _Pace:
    """How much one call of move_pages may move, so that a guest that wants these pages is not kept waiting too long.

    It begins with one unit, doubles while calls take less than half of the limit and halves when one took longer.
    """

    def __init__(self) -> None:
        self._size = UNIT
        self._pause_ms = 0.0
        self._clock: Callable[[], float] = time.monotonic
        self.longest_ms = 0.0

    def begin(self, pause_ms: float, clock: Callable[[], float]) -> None:
        """Begin a call of the mover."""
        self._pause_ms, self._clock, self.longest_ms = pause_ms, clock, 0.0

    @property
    def window(self) -> int:
        """Bytes of the next window, whole units."""
        return self._size if self._pause_ms else _WINDOW

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Around one move_pages."""
        began = self._clock()
        yield
        took_ms = 1000.0 * (self._clock() - began)
        self.longest_ms = max(self.longest_ms, took_ms)
        if took_ms > self._pause_ms:
            self._size = max(UNIT, self._size // 2)
        elif took_ms < self._pause_ms / 2:
            self._size = min(_WINDOW, 2 * self._size)


class Sweep:
    """One walk over guest memory that brings it to its targets; made once, advanced call by call.

    :param kernel: the system calls
    :param pid: the process
    :param ranges: its guest memory as a full pass sees it now, with the part in huge pages
    :param targets: desired shares; each target must be one of the ranges
    :param begin: address to start at; what lies below is walked last
    """

    def __init__(
        self,
        kernel: PageKernel,
        pid: int,
        ranges: Sequence[RamRange],
        targets: Sequence[Target],
        begin: int = 0,
    ) -> None:
        self._kernel = kernel
        self._pid = pid
        self._targets = _plain(targets)
        self._stretches: list[tuple[int, int, bool, _Recipe]] = []
        self._walked: list[tuple[RamRange, _Recipe]] = []
        self._begun_s: float | None = None
        self._planned_kb = 0
        self._left_pages = 0
        self._calls = 0
        self._moved_kb = 0
        self._pace = _Pace()
        self._problem = ""
        known = {(found.start, found.end): found for found in ranges}
        for target in targets:
            found = known.get((target.start, target.end))
            if found is None:
                self._problem = (
                    f"{target.start:#x}-{target.end:#x} is not guest memory of process {pid}"
                )
                return
            recipe = _Recipe(dict(found.resident_kb), dict(target.shares))
            self._walked.append((found, recipe))
            middle = min(max(target.start, begin), target.end)
            for start, end in ((middle, target.end), (target.start, middle)):
                if start < end:
                    self._stretches.append((start, end, found.thp_kb > 0, recipe))
        self._planned_kb = sum({id(r): r.planned_kb for *_, r in self._stretches}.values())
        self._stretches.sort(key=lambda stretch: (stretch[0] < begin, stretch[0]))

    @property
    def cursor(self) -> int:
        """First address that has not been walked; 0 at the end."""
        return self._stretches[0][0] if self._stretches else 0

    def serves(self, pid: int, targets: Sequence[Target]) -> bool:
        """Tell whether this walk is the one that is asked for now."""
        return pid == self._pid and _plain(targets) == self._targets

    def advance(
        self,
        limits: MoveLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> MoveReport:
        """Walk on within limits, at least over one window; call again for the rest."""
        started = clock()
        if self._begun_s is None:
            self._begun_s = started
        calls, moved_kb = self._calls, self._moved_kb
        self._pace.begin(limits.pause_ms, clock)
        while self._stretches and not self._problem:
            done_kb = self._moved_kb - moved_kb
            room = max(UNIT, (limits.max_kb - done_kb) * 1024 // UNIT * UNIT)
            self._window(min(self._pace.window, room))
            done_kb = self._moved_kb - moved_kb
            if limits.rate_mbps > 0:
                due = started + done_kb * 1.024e-3 / limits.rate_mbps
                wait = min(due, started + limits.seconds) - clock()
                if wait > 0:
                    sleep(wait)
            if done_kb >= limits.max_kb or clock() - started >= limits.seconds:
                break
        ended = clock()
        finished = not self._stretches
        left_kb = self._left_pages * _PAGE_KB
        # Other software may have moved pages meanwhile: a walk that has not ended never reports that nothing is left.
        open_kb = left_kb if finished else max(self._planned_kb - self._moved_kb, _PAGE_KB)
        return MoveReport(
            self._moved_kb - moved_kb,
            open_kb,
            self._left_pages if finished else 0,
            self._calls - calls,
            round(ended - started, 6),
            self._problem,
            round(self._pace.longest_ms, 3),
            self._as_left() if ended - self._begun_s <= _REPORTED_S else (),
        )

    def _as_left(self) -> tuple[RamRange, ...]:
        """Return the ranges as this walk has left them, nothing where that is not exactly known."""
        if self._stretches or self._left_pages or self._problem:
            return ()
        return tuple(found._replace(resident_kb=recipe.left_kb) for found, recipe in self._walked)

    def _window(self, size: int) -> None:
        """Do the next window, of at most ``size`` bytes."""
        start, end, huge, recipe = self._stretches[0]
        border = min(end, start - start % UNIT + size)
        try:
            self._bring(start, border, huge, recipe)
        except OSError as error:
            self._problem = self._sentence(error)
            return
        if border < end:
            self._stretches[0] = (border, end, huge, recipe)
        else:
            del self._stretches[0]

    def _sentence(self, error: OSError) -> str:
        if error.errno == errno.EACCES:
            nodes = sorted({node for *_, shares in self._targets for node, _ in shares})
            return f"nodes {nodes} are not all in the cpuset of the process; it is never widened"
        return error.strerror or str(error)

    def _bring(self, start: int, end: int, huge: bool, recipe: _Recipe) -> None:
        kernel, pid = self._kernel, self._pid
        moves = recipe.plan(_locate(kernel, pid, start, end, huge))
        self._move(_pairs(moves, UNIT), UNIT)
        self._move(_pairs(moves, PAGE), PAGE)
        stretches = [(move.start, move.start + move.bytes, move.target) for move in moves]
        left = list(_misplaced(kernel, pid, stretches))
        for _round in range(_ROUNDS):
            self._move(left, PAGE)
            left = list(_misplaced(kernel, pid, stretches)) if left else []
        self._left_pages += len(left)

    def _move(self, moves: Sequence[tuple[int, int]], size: int) -> None:
        """Move units of ``size`` bytes, each named by its first address, and count what arrived."""
        if not moves:
            return
        nodes = [node for _, node in moves]
        with self._pace.timed():
            self._kernel.move(self._pid, array("Q", [address for address, _ in moves]), nodes)
        self._calls += 1
        # Where a unit was small pages after all, its first page arrived and its last did not.
        for offset, kb in ((0, _PAGE_KB), (size - PAGE, (size - PAGE) // 1024)):
            addresses = array("Q", [address + offset for address, _ in moves])
            status = self._kernel.locate(self._pid, addresses) if kb else ()
            arrived = sum(actual == node for actual, node in zip(status, nodes, strict=False))
            self._moved_kb += arrived * kb


def _plain(targets: Sequence[Target]) -> list[tuple[int, int, tuple[tuple[int, float], ...]]]:
    """Targets that can be compared, whether they came over a wire or not."""
    return [(t.start, t.end, tuple((node, share) for node, share in t.shares)) for t in targets]


def _pairs(moves: Sequence[Move], unit: int) -> list[tuple[int, int]]:
    return [
        (address, move.target)
        for move in moves
        if move.unit_bytes == unit
        for address in move.addresses
    ]


def _locate(kernel: PageKernel, pid: int, start: int, end: int, huge: bool) -> list[Run]:
    """Return where the resident pages of a range are.

    :param huge: part of the range is in huge pages: a full unit on one node is taken for one until it proves otherwise
    """
    runs: list[Run] = []
    status = kernel.locate(pid, array("Q", range(start, end, PAGE)))
    position = 0
    while position < len(status):
        address = start + position * PAGE
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
    kernel: PageKernel, pid: int, stretches: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield (address, node) of each resident page of (start, end, node) that is not on its node."""
    for start, end, node in stretches:
        addresses = array("Q", range(start, end, PAGE))
        status = kernel.locate(pid, addresses)
        if status.count(node) == len(status):
            continue
        for address, actual in zip(addresses, status, strict=True):
            if actual >= 0 and actual != node:
                yield address, node
