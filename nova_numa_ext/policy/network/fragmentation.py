# SPDX-License-Identifier: Apache-2.0
"""How much of a fabric's free hosts groups of a size can still get, and which leafs need no uplinks."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlan, PlanOptions
from nova_numa_ext.policy.network.leafs import Leaf, Leafs
from nova_numa_ext.policy.network.planner import plan
from nova_numa_ext.policy.network.uplinks import with_another
from nova_numa_ext.policy.network.vnb import BlockLimits
from placement_traits.names import UplinkShare


def placeable(leafs: Leafs, request: GroupRequest, options: PlanOptions) -> int:
    """Return how many groups like one could be placed now, one after the other."""
    count = 0
    while isinstance(found := plan(leafs, request, options), LeafPlan):
        leafs = after(leafs, found)
        count += 1
    return count


def fragmentation(
    leafs: Leafs,
    hosts: int,
    options: PlanOptions,
    share: UplinkShare = UplinkShare.QUIET,
) -> float | None:
    """Return which part of the free hosts groups of a size cannot get, 0 to 1; None where none are free.

    Some of it is of the size, not of what runs: groups of 10 leave 8 of each leaf of 18.
    """
    free = sum(leaf.room for leaf in leafs.leafs)
    if not free:
        return None
    return 1 - placeable(leafs, GroupRequest(hosts, share), options) * hosts / free


def after(leafs: Leafs, found: LeafPlan) -> Leafs:
    """Return the leafs when a group that held nothing has got its places."""
    taken = {one.leaf: one.hosts for one in found.places}
    uplinks = dict(leafs.uplinks)
    for node, amounts in found.claims.items():
        if node not in taken:
            uplinks[node] = uplinks.get(node, 0) + sum(amounts.values())
    changed = tuple(
        replace(
            leaf,
            free=leaf.free - taken[leaf.name],
            layout=found.layouts.get(leaf.name, leaf.layout),
            held=_sum(leaf.held, found.claims.get(leaf.name, {})),
            residents=with_another(leaf.residents, found.uplinks.get(leaf.name, 0)),
        )
        if leaf.name in taken
        else leaf
        for leaf in leafs.leafs
    )
    return replace(leafs, leafs=changed, uplinks=uplinks)


def _sum(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {key: a.get(key, 0) + b.get(key, 0) for key in {*a, *b}}


class LeafKind(StrEnum):
    """A leaf by what groups hold there.

    FREE: nothing.
    DRAINED: nothing, and no group may come.
    LARGE: a block, or all.
    REMAINDER: last servers of large groups.
    SMALL: groups that fit in one leaf.
    REST: small groups beside no block.
    """

    FREE = "free"
    DRAINED = "drained"
    LARGE = "large"
    REMAINDER = "remainder"
    SMALL = "small"
    REST = "rest"

    @classmethod
    def of(cls, leaf: Leaf) -> "LeafKind":
        """Return the kind of a leaf."""
        if leaf.is_untouched:
            return cls.DRAINED if leaf.drained else cls.FREE
        if leaf.is_remainder:
            return cls.REMAINDER
        if leaf.is_large:
            return cls.LARGE
        return cls.SMALL if leaf.is_small else cls.REST


@dataclass(frozen=True, slots=True)
class LeafKinds:
    """Leafs by what groups hold there.

    :param free: nothing
    :param drained: nothing, and no group may come
    :param large: a block, or all
    :param remainder: last servers of large groups
    :param small: groups that fit in one leaf
    :param rest: small groups beside no block
    :param idle_uplinks: in the block of small groups, whose uplinks could be off
    """

    free: int
    drained: int
    large: int
    remainder: int
    small: int
    rest: int
    idle_uplinks: int

    @classmethod
    def of(cls, leafs: Leafs) -> "LeafKinds":
        """Count leafs."""
        kinds = Counter(map(LeafKind.of, leafs.leafs))
        idle = len(leafs.leafs) - BlockLimits.of(leafs).small
        return cls(**{kind.value: kinds[kind] for kind in LeafKind}, idle_uplinks=idle)

    @property
    def idle_share(self) -> float:
        """Part of the leafs whose uplinks could be off (Jokanović, figure 4.8)."""
        leafs = self.free + self.drained + self.large + self.remainder + self.small + self.rest
        return self.idle_uplinks / leafs
