# SPDX-License-Identifier: Apache-2.0
"""Where the ways of one L3 domain go: one run per latency-critical server, one shared run for all others. Pure.

Model. A domain is a line of ways, bit 0 at the left::

    ways      0  1  2  3  4  5  6  7  8  9 10 11
              [  LC a  ][ b  ][   shared run   ]
                                          [hw ]     shareable: devices fill these too, no group has them for itself

A mask must be one unbroken run, so the shared run (root, best-effort classes) grows from an *anchor* that no LC may
take: the shareable ways, or the highest way where there are none. LCs are stacked from the two ends towards the anchor;
ways in a hole between LCs are wasted until an LC moves.

Choice, in this order:

1. every LC has exactly its amount, disjoint from shareable ways, locked ways and, if possible, all foreign groups';
2. the shared run keeps its minimum;
3. the step from the current masks can be done by single writes without two LCs ever overlapping;
4. at most ``wasted_max`` ways less for the shared run than the best layout there is;
5. fewest LCs moved, then the larger shared run, then the first in the order of names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product

from host_agent.model.rdt import is_contiguous


@dataclass(frozen=True, slots=True)
class Line:
    """One L3 domain's ways.

    :ivar ways: number of ways
    :ivar min_bits: least ways in any mask
    :ivar shareable: ways that devices fill too
    :ivar locked: ways of foreign groups in exclusive mode: the kernel lets no other group in
    :ivar fenced: ways of foreign groups that root does not reach now: the shared run keeps out
    :ivar foreign: ways of all foreign groups: LCs keep out where they can
    :ivar shared_min: least ways of the shared run beside the shareable ones
    """

    ways: int
    min_bits: int
    shareable: int = 0
    locked: int = 0
    fenced: int = 0
    foreign: int = 0
    shared_min: int = 1

    @property
    def full(self) -> int:
        """All ways of ours to use."""
        return ((1 << self.ways) - 1) & ~self.locked

    @property
    def anchor(self) -> int:
        """The ways that always belong to the shared run; at least ``min_bits`` wide where there is room."""
        open_ways = self.full & ~self.fenced
        allowed = _wide(open_ways, self.min_bits) or _wide(self.full, self.min_bits)
        allowed = allowed or open_ways or self.full
        shareable = self.shareable & allowed
        mask = _run_at(shareable, shareable.bit_length() - 1) if shareable else 0
        mask = mask or 1 << (allowed.bit_length() - 1)
        while mask.bit_count() < self.min_bits:
            below, above = (mask & -mask) >> 1, 1 << mask.bit_length()
            if below & allowed:
                mask |= below
            elif above & allowed:
                mask |= above
            else:
                break
        return mask

    def shared_run(self, taken: int) -> int:
        """Return the longest run around the anchor that meets none of ``taken``."""
        free = self.full & ~self.fenced & ~taken
        return _run_at(free | self.anchor, self.anchor.bit_length() - 1)

    def shared_enough(self, shared: int) -> bool:
        """Tell whether the shared run keeps its minimum."""
        own = (shared & ~self.shareable).bit_count()
        return shared.bit_count() >= self.min_bits and own >= self.shared_min

    def is_placed(self, mask: int) -> bool:
        """Tell whether a mask can be an LC's at work; a new group's default mask covers the anchor and is not."""
        return is_contiguous(mask) and not mask & self.anchor


@dataclass(frozen=True, slots=True)
class L3Layout:
    """The outcome for one domain: mask per LC name and the shared run."""

    masks: Mapping[str, int]
    shared: int


def lay_out(
    line: Line, amounts: Mapping[str, int], current: Mapping[str, int], wasted_max: int = 1
) -> L3Layout | None:
    """Give every LC a run of its amount, or say that it cannot be done.

    :param amounts: LC name -> ways
    :param current: LC name -> mask it has now; those of new ones are missing
    :param wasted_max: ways that may be lost in holes before LCs are moved together
    :returns: None when the amounts do not fit, or cannot be reached from ``current`` without taking ways from an LC
    """
    if not amounts:
        return L3Layout({}, line.shared_run(0))
    obstacles = {name: mask for name, mask in current.items() if line.is_placed(mask)}
    for avoided in dict.fromkeys((line.foreign, 0)):
        usable = line.full & ~line.anchor & ~line.shareable & ~avoided
        found = _search(line, usable, dict(amounts), obstacles, wasted_max)
        if found:
            return found
    return None


def _search(
    line: Line, usable: int, amounts: dict[str, int], current: dict[str, int], wasted_max: int
) -> L3Layout | None:
    kept: dict[str, int] = {}
    for name in sorted(amounts):
        mask = current.get(name, 0)
        taken = sum(kept.values())
        if mask.bit_count() == amounts[name] and not mask & (taken | ~usable):
            kept[name] = mask
    everything = list(_candidates(line, usable, amounts, {}, current))
    if not everything:
        return None
    goal = max(layout.shared.bit_count() for layout in everything) - wasted_max
    fallback: L3Layout | None = None
    for count in range(len(kept) + 1):
        found = [
            layout
            for moved in combinations(kept, count)
            for layout in _candidates(
                line, usable, amounts, {n: m for n, m in kept.items() if n not in moved}, current
            )
            if steps(current, layout.masks) is not None
        ]
        best = max(found, key=lambda layout: layout.shared.bit_count(), default=None)
        if best and best.shared.bit_count() >= goal:
            return best
        if best and (fallback is None or best.shared.bit_count() > fallback.shared.bit_count()):
            fallback = best
    return fallback


def _candidates(
    line: Line, usable: int, amounts: dict[str, int], kept: dict[str, int], current: dict[str, int]
) -> Iterator[L3Layout]:
    """Yield the best packings of the LCs that are not kept, one per way of distributing them over the two ends."""
    free = usable & ~sum(kept.values())
    low = free & (line.anchor - 1)
    high = free & ~low
    order = sorted(
        amounts.keys() - kept.keys(), key=lambda n: (n not in current, current.get(n, 0), n)
    )
    sides = ("low", "high") if high else ("low",)
    seen: set[tuple[tuple[int, str], ...]] = set()
    for ends in product(sides, repeat=len(order)):
        kind = tuple(sorted((amounts[name], side) for name, side in zip(order, ends, strict=True)))
        if kind in seen:
            continue
        seen.add(kind)
        lows = [name for name, side in zip(order, ends, strict=True) if side == "low"]
        highs = [name for name, side in zip(order, ends, strict=True) if side == "high"]
        left = _pack(low, lows, amounts)
        right = _pack(_mirror(high, line.ways), highs[::-1], amounts)
        if left is None or right is None:
            continue
        masks = kept | left | {name: _mirror(mask, line.ways) for name, mask in right.items()}
        shared = line.shared_run(sum(masks.values()))
        if line.shared_enough(shared):
            yield L3Layout(masks, shared)


def _pack(free: int, names: list[str], amounts: Mapping[str, int]) -> dict[str, int] | None:
    """Stack runs from bit 0 up so that the highest used bit is lowest; keep the given order where it costs nothing."""
    best = _tightest(free, tuple(sorted(amounts[name] for name in names)))
    if best is None:
        return None
    end, sizes = best
    masks = _stack(free, [amounts[name] for name in names])
    if masks is not None and (not masks or masks[-1].bit_length() == end):
        return dict(zip(names, masks, strict=True))
    stacked = _stack(free, list(sizes)) or []
    waiting = list(names)
    placed: dict[str, int] = {}
    for size, mask in zip(sizes, stacked, strict=True):
        name = next(name for name in waiting if amounts[name] == size)
        waiting.remove(name)
        placed[name] = mask
    return placed


@lru_cache(maxsize=4096)
def _tightest(free: int, sizes: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """Return the lowest end that the runs can have, and an order that reaches it (exact, over all orders)."""
    if not sizes:
        return 0, ()
    best: tuple[int, tuple[int, ...]] | None = None
    for size in dict.fromkeys(sizes):
        rest = list(sizes)
        rest.remove(size)
        before = _tightest(free, tuple(rest))
        mask = _first_fit(free, before[0], size) if before else 0
        if before and mask and (best is None or mask.bit_length() < best[0]):
            best = mask.bit_length(), (*before[1], size)
    return best


def _stack(free: int, sizes: list[int]) -> list[int] | None:
    masks: list[int] = []
    for size in sizes:
        mask = _first_fit(free, masks[-1].bit_length() if masks else 0, size)
        if not mask:
            return None
        masks.append(mask)
    return masks


def _first_fit(free: int, start: int, size: int) -> int:
    """Return the lowest run of ``size`` free ways at or above ``start``, 0 when there is none."""
    mask = ((1 << size) - 1) << start
    while mask.bit_length() <= free.bit_length():
        if mask & free == mask:
            return mask
        mask <<= 1
    return 0


def steps(current: Mapping[str, int], target: Mapping[str, int]) -> list[str] | None:
    """Order single writes so that no two LCs ever overlap; each write takes one LC from its old mask to its new one.

    :returns: names in the order of writing, None when two LCs stand in each other's way
    """
    masks = dict(current)
    pending = [name for name in sorted(target) if current.get(name) != target[name]]
    order: list[str] = []
    while pending:
        ready = next(
            (
                n
                for n in pending
                if not any(target[n] & mask for o, mask in masks.items() if o != n)
            ),
            None,
        )
        if ready is None:
            return None
        masks[ready] = target[ready]
        pending.remove(ready)
        order.append(ready)
    return order


def _run_at(mask: int, bit: int) -> int:
    """Return the unbroken run of ones of ``mask`` that contains ``bit``."""
    run = 1 << bit & mask
    while grown := (run << 1 | run >> 1) & mask & ~run:
        run |= grown
    return run


def _wide(mask: int, bits: int) -> int:
    """Return the ways of a mask that lie in unbroken runs of at least so many."""
    ends = mask
    for _ in range(bits - 1):
        ends &= ends << 1 & mask
    for _ in range(bits - 1):
        ends |= ends >> 1
    return ends


def _mirror(mask: int, ways: int) -> int:
    return int(f"{mask:0{ways}b}"[::-1], 2)
