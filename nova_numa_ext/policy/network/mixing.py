# SPDX-License-Identifier: Apache-2.0
"""Which groups may share a leaf's uplinks, by how much they use the network (Jokanović, sections 3.3 to 3.5).

Where a leaf passes upwards nearly all that its hosts send, an extreme group goes well with groups of low use, and never
with another extreme one. Where it passes a quarter or less, the most demanding groups are better alone.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from nova_numa_ext.policy.network.leafs import Leaf
from placement_traits.names import NetClass

STRONG_OVERSUBSCRIPTION: Final = 4.0


class Company(IntEnum):
    """How well groups go together on one leaf's uplinks; less is better."""

    GOOD = 0
    FAIR = 1
    BAD = 2


_WIDE: Final = {
    frozenset({NetClass.LOW}): Company.GOOD,
    frozenset({NetClass.LOW, NetClass.MODERATE}): Company.GOOD,
    frozenset({NetClass.LOW, NetClass.EXTREME}): Company.GOOD,
    frozenset({NetClass.MODERATE}): Company.FAIR,
    frozenset({NetClass.MODERATE, NetClass.EXTREME}): Company.FAIR,
}
_NARROW: Final = {
    frozenset({NetClass.LOW}): Company.GOOD,
    frozenset({NetClass.LOW, NetClass.MODERATE}): Company.FAIR,
}


def company(leaf: Leaf, net_class: NetClass) -> Company:
    """Return how well a group of several leafs goes with those on a leaf.

    Over-subscription that is not known counts as slight: only what is certain keeps groups off leafs.
    """
    if not leaf.residents:
        return Company.GOOD
    is_narrow = (leaf.oversubscription or 1.0) >= STRONG_OVERSUBSCRIPTION
    together = _NARROW if is_narrow else _WIDE
    pairs = (frozenset({net_class, each}) for each in {*leaf.residents})
    return max(together.get(pair, Company.BAD) for pair in pairs)


def pays(
    inter_before: Iterable[float],
    inter_after: Iterable[float],
    intra_before: float,
    intra_after: float,
) -> bool:
    """Return whether another place of a group is better for all together (Eq. 3.5).

    It is when the interference between groups falls by more than the contention within the group rises. Nothing on a
    real fabric measures these times; those of replays are known.

    :param inter_before: time that each group loses to others now, s
    :param inter_after: time that each would lose then, s
    :param intra_before: time that the group loses to itself now, s
    :param intra_after: time that it would lose then, s
    """
    return sum(inter_before) - sum(inter_after) > intra_after - intra_before
