# SPDX-License-Identifier: Apache-2.0
"""Which pages of a guest must move so that each NUMA node holds its share, with the least bytes moved.

The input is where the pages are, as runs of equal units; the output is moves of stretches of such units. A *unit* is
what the kernel moves as a whole: 2 MiB where a transparent huge page backs the range, one 4 KiB page elsewhere (naming
one page of a huge one moves all of it).

* Every page that moves comes from a node that holds too much and goes to one that holds too little, so no page moves
  twice and the bytes moved are the minimum, up to the rounding of one unit per node.
* Both directions work: towards the workers and away from them. ``mbind`` with an interleave policy can only narrow,
  because pages on an allowed node stay (Gureya 2021, algorithm 3).
* BWAP assumes that every page is equally hot. Real guests have hot stretches, so what moves is taken evenly over the
  address range, in stretches of ``granule_bytes``, and distributed to the targets in turn: each stretch of
  addresses ends up with about the same shares.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from host_agent.model.process import RamRange
from placement_traits.errors import InvalidValueError

Shares: TypeAlias = Mapping[int, float]
"""NUMA node -> fraction of the guest's memory; the fractions sum to 1."""

HUGE_UNIT_BYTES: Final = 2 * 1024 * 1024

SAMPLE_MIN: Final = 100
"""Fewer pages show nothing: a guest that has touched little of its memory is hit by few of a sample."""

_SIGMAS: Final = 4.0  # one look in 16,000 contradicts by chance, and costs a full pass


@dataclass(frozen=True, slots=True)
class Run:
    """A contiguous stretch of resident memory on one node.

    :param start: first address, a multiple of ``unit_bytes``
    :param unit_bytes: size of the units that the kernel moves as a whole
    :param units: number of units
    :param node: NUMA node that holds them
    """

    start: int
    unit_bytes: int
    units: int
    node: int

    @property
    def bytes(self) -> int:
        """Length of the stretch, bytes."""
        return self.units * self.unit_bytes


@dataclass(frozen=True, slots=True)
class Move:
    """A contiguous stretch of units to move, named by one address per unit.

    :param start: first address
    :param unit_bytes: size of the units
    :param units: number of units
    :param source: node that holds them
    :param target: node that shall hold them
    """

    start: int
    unit_bytes: int
    units: int
    source: int
    target: int

    @property
    def bytes(self) -> int:
        """Bytes that move."""
        return self.units * self.unit_bytes

    @property
    def addresses(self) -> range:
        """One address per unit."""
        return range(self.start, self.start + self.bytes, self.unit_bytes)


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What to move, in address order.

    :param moves: stretches to move
    :param minimum_bytes: least bytes that any plan must move to reach the shares exactly
    :param result_bytes: node -> bytes it holds afterwards
    """

    moves: tuple[Move, ...]
    minimum_bytes: int
    result_bytes: Mapping[int, int]

    @property
    def bytes(self) -> int:
        """Bytes that the plan moves."""
        return sum(move.bytes for move in self.moves)


def resident_bytes(runs: Iterable[Run]) -> dict[int, int]:
    """Return node -> resident bytes."""
    held: dict[int, int] = defaultdict(int)
    for run in runs:
        held[run.node] += run.bytes
    return dict(held)


def huge_page_share(resident_mb: Mapping[int, float]) -> float:
    """Return which part of a guest's memory one huge page is, which moves as a whole.

    :param resident_mb: node -> MiB that are resident
    :return: 0.0 to 1.0; 1.0 when nothing is resident
    """
    total = sum(resident_mb.values()) * (1 << 20)
    return min(1.0, HUGE_UNIT_BYTES / total) if total else 1.0


def share_error(actual: Shares, desired: Shares) -> float:
    """Return the largest difference of two sets of shares over the nodes, 0.0 to 1.0."""
    return max(
        (abs(actual.get(node, 0.0) - desired.get(node, 0.0)) for node in {**actual, **desired}),
        default=0.0,
    )


def ram_shares(ram: Iterable[RamRange]) -> dict[int, float]:
    """Return node -> share of the resident guest memory; empty where nothing is resident."""
    held: dict[int, int] = defaultdict(int)
    for found in ram:
        for node, kib in found.resident_kb:
            held[node] += kib
    total = sum(held.values())
    return {node: kib / total for node, kib in sorted(held.items())} if total else {}


def sample_agrees(pages: Mapping[int, int], shares: Shares) -> bool:
    """Tell whether sampled pages are as they would be with these shares, but for chance.

    :param pages: node -> pages of the sample that are there
    :returns: false, too, where the sample has too few pages to show anything
    """
    total = sum(pages.values())
    if total < SAMPLE_MIN:
        return False
    return all(
        abs(pages.get(node, 0) / total - part) <= _SIGMAS * math.sqrt(_variance(part, total))
        for node in {**pages, **shares}
        for part in (shares.get(node, 0.0),)
    )


def _variance(part: float, total: int) -> float:
    """Of the part that a sample of so many pages finds; one page more or less is never a contradiction."""
    return max(part * (1.0 - part), 1.0 / total) / total


def apportion(
    total: int, shares: Shares, prefer: Mapping[int, float] | None = None
) -> dict[int, int]:
    """Split ``total`` units by shares into whole numbers that sum to it (largest remainders).

    :param prefer: node -> tie-break between equal remainders, larger first (what is there already moves least)
    :raises InvalidValueError: shares that are negative or do not sum to 1
    """
    if abs(sum(shares.values()) - 1.0) > 1e-6 or min(shares.values()) < 0:
        raise InvalidValueError("shares", dict(shares), "fractions that sum to 1")
    exact = {node: total * share for node, share in shares.items()}
    whole = {node: int(value + 1e-9) for node, value in exact.items()}
    rank = prefer or {}
    by_remainder = sorted(
        shares, key=lambda node: (round(whole[node] - exact[node], 9), -rank.get(node, 0.0), node)
    )
    for node in by_remainder[: total - sum(whole.values())]:
        whole[node] += 1
    return whole


def plan_moves(
    runs: Sequence[Run],
    shares: Shares,
    *,
    distances: Mapping[int, Mapping[int, int]] | None = None,
    granule_bytes: int = HUGE_UNIT_BYTES,
) -> MovePlan:
    """Return the moves that bring the resident pages to ``shares``.

    :param runs: where the pages are now; unit sizes may be mixed
    :param shares: node -> desired fraction of the resident bytes, sums to 1
    :param distances: node -> node -> SLIT distance; pages go to near nodes first where there is a choice
    :param granule_bytes: stretches of this size stay together
    """
    held = resident_bytes(runs)
    smallest = min((run.unit_bytes for run in runs), default=1)
    total = sum(held.values()) // smallest
    desired = apportion(total, shares, {node: float(count) for node, count in held.items()})
    surplus = {
        node: held.get(node, 0) - desired.get(node, 0) * smallest for node in {**held, **desired}
    }
    minimum = sum(excess for excess in surplus.values() if excess > 0)
    flows = _flows(surplus, distances)
    moves: list[Move] = []
    for source, targets in flows.items():
        moves += _realise([run for run in runs if run.node == source], targets, granule_bytes)
    result = defaultdict(int, held)
    for move in moves:
        result[move.source] -= move.bytes
        result[move.target] += move.bytes
    ordered = tuple(sorted(moves, key=lambda move: move.start))
    return MovePlan(ordered, minimum, dict(result))


def _flows(
    surplus: Mapping[int, int], distances: Mapping[int, Mapping[int, int]] | None
) -> dict[int, dict[int, int]]:
    """Match surplus with need, near pairs first; any matching moves the least bytes."""
    excess = {node: count for node, count in sorted(surplus.items()) if count > 0}
    need = {node: -count for node, count in sorted(surplus.items()) if count < 0}
    pairs = [(source, target) for source in excess for target in need]
    if distances is not None:
        pairs.sort(key=lambda pair: (distances[pair[0]][pair[1]], pair))
    flows: dict[int, dict[int, int]] = defaultdict(dict)
    for source, target in pairs:
        amount = min(excess[source], need[target])
        if amount > 0:
            flows[source][target] = amount
            excess[source] -= amount
            need[target] -= amount
    return flows


def _realise(runs: Sequence[Run], targets: Mapping[int, int], granule_bytes: int) -> list[Move]:
    """Choose units of one source node, large units first, and distribute them to the targets."""
    open_bytes = dict(targets)
    sizes = sorted({run.unit_bytes for run in runs}, reverse=True)
    moves: list[Move] = []
    for unit in sizes:
        of_size = [run for run in runs if run.unit_bytes == unit]
        available = sum(run.units for run in of_size)
        last = unit == sizes[-1]
        quota = {
            target: (amount + unit // 2) // unit if last else amount // unit
            for target, amount in open_bytes.items()
        }
        quota = _at_most(quota, available)
        moves += _deal(of_size, quota, max(1, granule_bytes // unit))
        for target, units in quota.items():
            open_bytes[target] -= units * unit
    return moves


def _at_most(quota: Mapping[int, int], available: int) -> dict[int, int]:
    """Reduce quotas in proportion where more units are asked for than there are."""
    total = sum(quota.values())
    if total <= available:
        return dict(quota)
    return apportion(available, {target: units / total for target, units in quota.items()})


def _deal(runs: Sequence[Run], quota: Mapping[int, int], granule: int) -> list[Move]:
    """Take ``sum(quota)`` units evenly over the runs and give them to the targets in turn.

    Error diffusion: after each stretch of ``granule`` units the number taken so far is the right fraction of the units
    seen so far, and each target has its fraction of those taken.
    """
    available = sum(run.units for run in runs)
    take_all = sum(quota.values())
    left = {target: units for target, units in quota.items() if units > 0}
    seen = taken = 0
    moves: list[Move] = []
    for run in sorted(runs, key=lambda run: run.start):
        offset = 0
        while offset < run.units and taken < take_all:
            stretch = min(granule, run.units - offset)
            seen += stretch
            due = (seen * take_all) // available - taken
            if due >= stretch or (due > 0 and seen == available):
                at = offset
                for target, units in _next_targets(left, quota, min(due, stretch)):
                    start = run.start + at * run.unit_bytes
                    moves.append(Move(start, run.unit_bytes, units, run.node, target))
                    at += units
                    taken += units
            offset += stretch
    if taken < take_all:
        moves += _deal(_without(runs, moves), left, 1)
    return _joined(moves)


def _next_targets(
    left: dict[int, int], quota: Mapping[int, int], units: int
) -> list[tuple[int, int]]:
    """Serve the target that lags most behind its quota; take from ``left``."""
    result = []
    while units > 0 and left:
        target = max(left, key=lambda node: (left[node] / quota[node], -node))
        given = min(units, left[target])
        left[target] -= given
        if left[target] == 0:
            del left[target]
        units -= given
        result.append((target, given))
    return result


def _without(runs: Sequence[Run], moves: Sequence[Move]) -> list[Run]:
    """Return what is left of the runs after the moves, both in address order."""
    rest: list[Run] = []
    pending = iter(moves)
    move = next(pending, None)
    for run in sorted(runs, key=lambda run: run.start):
        at, end = run.start, run.start + run.bytes
        while move is not None and move.start < end:
            if move.start > at:
                rest.append(replace(run, start=at, units=(move.start - at) // run.unit_bytes))
            at = move.start + move.bytes
            move = next(pending, None)
        if at < end:
            rest.append(replace(run, start=at, units=(end - at) // run.unit_bytes))
    return rest


def _joined(moves: Sequence[Move]) -> list[Move]:
    """Join neighbouring stretches with the same target."""
    joined: list[Move] = []
    for move in sorted(moves, key=lambda move: move.start):
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.start + last.bytes == move.start
            and (last.unit_bytes, last.source, last.target)
            == (move.unit_bytes, move.source, move.target)
        ):
            joined[-1] = replace(last, units=last.units + move.units)
        else:
            joined.append(move)
    return joined
