# SPDX-License-Identifier: Apache-2.0
"""Virtual network blocks, "quiet neighbourhoods" (Jokanović, section 4.2): no two groups on one leaf's uplinks.

Five mechanisms, for leafs of 18 hosts::

    0                          B      S                       last
    ├──── large groups ─────────┤ free ├──── small groups ─────┤

1. Two blocks of leafs. A group that fits in one leaf is *small*: it goes into one leaf, from the last on down, and uses
   no uplink. Large groups fill up from the first. B is the last leaf with a large group, S the first above it with a
   small one; they follow from what is held now.
2. Partitions. A leaf is a block of 16, which one group takes as a whole, and 2 beside it. Groups of a multiple of 16
   take blocks; others take whole leafs for every 18 hosts. Small groups of 1 or 2 may go beside a taken block when
   there is no other place.
3. Remainders. What is left of a large group goes into a *remainder leaf*, with those of others: the only place where
   uplinks are shared. One is made where a remainder needs it, a few in each pod at most, and ends when it is empty.
4. Small groups may use remainder leafs when there is no other place.
5. Contiguity. One pod when it has enough leafs; else as few pods, then as short a run, as can be.

Decisions where the thesis is silent: multiples of 16 count as powers of two (A1); partitions are counts, not certain
hosts (A2); remainder leafs are made on demand up to a limit per pod (A3); remainders of 1 or 2 hosts go to remainder
leafs, too (A4); small groups begin right above the last large one (A5).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nova_numa_ext.policy.network.allocation import (
    Found,
    Take,
    all_of,
    one_by_one,
    rest_of,
)
from nova_numa_ext.policy.network.leafs import Leaf, Leafs
from nova_numa_ext.policy.network.terms import GroupTerm
from placement_traits import names
from placement_traits.fabric import LeafLayout
from placement_traits.names import WHOLE_UPLINK
from placement_traits.reason import Reason


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """Where the two blocks of leafs may end.

    :param large: position of the last leaf that a large group has, -1: none
    :param small: position of the first leaf above it that is small groups', the number of leafs: none
    """

    large: int
    small: int

    @classmethod
    def of(cls, leafs: Leafs) -> "BlockLimits":
        """Return the limits by what is held now."""
        count = len(leafs.leafs)
        large = next((at for at in reversed(range(count)) if leafs.leafs[at].is_large), -1)
        small = next((at for at in range(large + 1, count) if leafs.leafs[at].is_small), count)
        return cls(large, small)


@dataclass(frozen=True, slots=True)
class Vnb:
    """The policy.

    :param remainders_most: remainder leafs of a pod, at most
    :param is_balanced: large groups take blocks alone, and the same number of hosts of each
    """

    remainders_most: int = 2
    is_balanced: bool = False

    def __call__(self, leafs: Leafs, allowed: Sequence[int], hosts: int, slice_hosts: int) -> Found:
        """Choose leafs for a group that holds nothing yet."""
        if hosts <= leafs.usual_size:
            return _small(leafs, allowed, hosts)
        ground = leafs.once(_LargeGround.of, allowed)
        block = leafs.leafs[0].block
        if hosts % block == 0 and block % slice_hosts == 0:
            return _blocks(leafs, ground.blocks, hosts // block, block)
        if self.is_balanced:
            return _balanced(leafs, ground, hosts, slice_hosts)
        return self._whole_leafs(leafs, ground, hosts, slice_hosts)

    def _whole_leafs(
        self, leafs: Leafs, ground: "_LargeGround", hosts: int, slice_hosts: int
    ) -> Found:
        usable = leafs.usual_size // slice_hosts * slice_hosts
        if not usable:
            return Reason(GroupTerm.SLICES, hosts, slice_hosts)
        needed, remainder = divmod(hosts, usable)
        refused = Reason(GroupTerm.WHOLE_LEAFS, len(ground.whole), needed)
        for chosen in _contiguous(leafs, ground.whole, needed):
            takes = [all_of(leafs.leafs[at], at, usable) for at in chosen]
            if not remainder:
                return tuple(takes)
            last = self._remainder(leafs, ground.all, chosen, remainder)
            if last:
                return tuple(sorted((*takes, last), key=lambda one: one.at))
            made = sum(leaf.is_remainder for leaf in leafs.leafs)
            refused = Reason(GroupTerm.REMAINDER, f"there are {made}", remainder)
        return refused

    def _remainder(
        self, leafs: Leafs, ground: Sequence[int], chosen: Sequence[int], hosts: int
    ) -> Take | None:
        """Take a remainder: where others are in the same pods, in a new leaf there, or else anywhere."""
        pods = {leafs.leafs[at].pod for at in chosen}
        made = Counter(leaf.pod for leaf in leafs.leafs if leaf.is_remainder)
        best: tuple[tuple[int, ...], int] | None = None
        for at in ground:
            leaf = leafs.leafs[at]
            if at in chosen or leaf.room < hosts:
                continue
            is_new = leaf.is_untouched
            if not (is_new or leaf.is_remainder):
                continue
            if is_new and made[leaf.pod] >= self.remainders_most:
                continue
            # In the pods of the group; with other remainders; where no block is lost; the fullest; the first.
            order = (
                leaf.pod not in pods,
                is_new,
                is_new and leaf.blocks_free > 0,
                0 if is_new else leaf.room,
                at,
            )
            if best is None or order < best[0]:
                best = order, at
        if best is None:
            return None
        return one_by_one(leafs.leafs[best[1]], best[1], hosts, LeafLayout.REMAINDER)


@dataclass(frozen=True, slots=True)
class _SmallGround:
    """Where groups may go that fit in one leaf.

    :param above: the leafs above the large groups', from the last on down
    :param below: the others
    :param singles: hosts that the best of the former gives one by one
    :param room: hosts that are free on the one of them with most
    :param rest: hosts that the best of the latter has beside its blocks
    :param remainder: hosts that the best leaf for remainders gives
    """

    above: Sequence[int]
    below: Sequence[int]
    singles: int
    room: int
    rest: int
    remainder: int

    @classmethod
    def of(cls, leafs: Leafs, allowed: Sequence[int]) -> "_SmallGround":
        """Return the ground of some leafs."""
        large = leafs.once(_limits, allowed).large
        above = [at for at in reversed(allowed) if at > large]
        below = [at for at in allowed if at <= large]
        high, low = [leafs.leafs[at] for at in above], [leafs.leafs[at] for at in below]
        return cls(
            above,
            below,
            max([leaf.singles for leaf in high], default=0),
            max([leaf.room for leaf in high], default=0),
            max([leaf.rest_free for leaf in low if _is_filled(leaf)], default=0),
            max([leaf.singles for leaf in low if leaf.is_remainder], default=0),
        )


@dataclass(frozen=True, slots=True)
class _LargeGround:
    """Where groups of several leafs may go.

    :param all: leafs below those of small groups, in pods that no group has whole
    :param alone: those of them that no group of another kind uses the uplinks of
    :param blocks: the leafs of blocks that are free, once for each
    :param whole: leafs that are free as a whole
    """

    all: Sequence[int]
    alone: Sequence[int]
    blocks: Sequence[int]
    whole: Sequence[int]

    @classmethod
    def of(cls, leafs: Leafs, allowed: Sequence[int]) -> "_LargeGround":
        """Return the ground of some leafs."""
        small = leafs.once(_limits, allowed).small
        taken = {node for node, units in leafs.uplinks.items() if units >= WHOLE_UPLINK}
        ground = [at for at in allowed if at < small]
        if taken:
            ground = [at for at in ground if leafs.leafs[at].pod not in taken]
        alone = [at for at in ground if not leafs.leafs[at].residents]
        return cls(
            ground,
            alone,
            [at for at in alone for _ in range(leafs.leafs[at].blocks_free)],
            [
                at
                for at in alone
                if leafs.leafs[at].is_all_free and leafs.leafs[at].size >= leafs.usual_size
            ],
        )


def _limits(leafs: Leafs, allowed: Sequence[int]) -> BlockLimits:
    """Return the limits, which are those of all leafs."""
    return BlockLimits.of(leafs)


def _is_filled(leaf: Leaf) -> bool:
    """Tell whether groups of several leafs have all blocks of a leaf."""
    return leaf.is_quiet and not leaf.blocks_free


def _small(leafs: Leafs, allowed: Sequence[int], hosts: int) -> Found:
    ground = leafs.once(_SmallGround.of, allowed)
    for at in ground.above if hosts <= ground.singles else ():
        if found := one_by_one(leafs.leafs[at], at, hosts, LeafLayout.WHOLE):
            return (found,)
    for at in ground.below if hosts <= ground.rest else ():
        leaf = leafs.leafs[at]
        if _is_filled(leaf) and (found := rest_of(leaf, at, hosts)):
            return (found,)
    for at in ground.below if hosts <= ground.remainder else ():
        leaf = leafs.leafs[at]
        if leaf.is_remainder and (found := one_by_one(leaf, at, hosts, LeafLayout.REMAINDER)):
            return (found,)
    return Reason(GroupTerm.ONE_LEAF, ground.room, hosts)


def _blocks(leafs: Leafs, free: Sequence[int], needed: int, share: int) -> Found:
    """Take blocks, and use a share of the hosts of each.

    :param free: the leafs of free blocks, once for each
    """
    for chosen in _contiguous(leafs, free, needed):
        return tuple(
            Take(at, count * share, {names.LEAF_BLOCK: count * leafs.leafs[at].block})
            for at, count in Counter(chosen).items()
        )
    return Reason(GroupTerm.BLOCKS, len(free), needed)


def _balanced(leafs: Leafs, ground: _LargeGround, hosts: int, slice_hosts: int) -> Found:
    block, slices = leafs.leafs[0].block, hosts // slice_hosts
    for count in range(-(-hosts // block), slices + 1):
        if slices % count == 0:
            return _blocks(leafs, ground.blocks, count, hosts // count)
    return Reason(GroupTerm.BALANCE, sum(leafs.leafs[at].room for at in ground.alone), hosts)


def _contiguous(leafs: Leafs, free: Sequence[int], needed: int) -> Iterator[list[int]]:
    """Yield ways to take so many of some leafs: within one pod first, then as near together as can be."""
    if len(free) < needed:
        return
    by_pod: dict[str, list[int]] = {}
    for at in free:
        by_pod.setdefault(leafs.leafs[at].pod, []).append(at)
    for one in by_pod.values():
        if len(one) >= needed:
            yield one[:needed]
    if len(by_pod) < 2:
        return
    number = {pod: n for n, pod in enumerate(dict.fromkeys(leaf.pod for leaf in leafs.leafs))}
    pods = [number[leafs.leafs[at].pod] for at in free]
    best = min(
        range(len(free) - needed + 1),
        key=lambda n: (pods[n + needed - 1] - pods[n], free[n + needed - 1] - free[n], n),
    )
    yield list(free[best : best + needed])
