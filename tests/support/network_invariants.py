# SPDX-License-Identifier: Apache-2.0
"""What holds of quiet groups at each moment, whatever came before: I1 to I7 of reference F-003.

It is asked of what is seen, of a fabric and of what each group holds there: the policy's own account, or what Placement
answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from nova_numa_ext.policy.network.leafs import Leafs
from placement_traits.names import LEAF_BLOCK, LEAF_REMAINDER


@dataclass(frozen=True)
class Running:
    """A group that runs.

    :param hosts: that it has asked for
    :param places: its hosts by leaf
    :param blocks: leafs of which it holds the block
    """

    hosts: int
    places: Mapping[str, int]
    blocks: frozenset[str]


Claims: TypeAlias = Mapping[str, Mapping[str, int]]


def running(hosts: int, places: Mapping[str, int], claims: Claims) -> Running:
    """Return a group with the blocks that it claims.

    :param claims: leaf -> resource class -> hosts
    """
    return Running(
        hosts, places, frozenset(leaf for leaf, held in claims.items() if LEAF_BLOCK in held)
    )


def violated(leafs: Leafs, groups: Mapping[str, Running], block: int) -> list[str]:
    """Return the invariants that do not hold, each with what is wrong.

    :param leafs: as they are seen, with what is held of each
    :param block: hosts of a whole block
    """
    found = [f"I{number}: {what}" for number, what in _of_groups(groups, block, leafs.usual_size)]
    remainders = {leaf.name for leaf in leafs.leafs if LEAF_REMAINDER in leaf.held}
    large = {name: each for name, each in groups.items() if len(each.places) > 1}
    for (a, one), (b, other) in combinations(sorted(large.items()), 2):
        shared = one.places.keys() & other.places.keys()
        if not shared <= remainders:
            found.append(f"I3: {a} and {b} share {shared - remainders}")
        if shared and not (one.hosts % block and other.hosts % block):
            found.append(f"I4: {a} of {one.hosts} shares with {b} of {other.hosts}")
    order = {leaf.name: at for at, leaf in enumerate(leafs.leafs)}
    of_large = [
        order[leaf]
        for each in groups.values()
        if each.hosts > leafs.usual_size
        for leaf in each.places
    ]
    of_small = [order[leaf.name] for leaf in leafs.leafs if leaf.is_small]
    if max(of_large, default=-1) >= min(of_small, default=len(order)):
        found.append(f"I5, I7: large groups up to {max(of_large)}, small ones from {min(of_small)}")
    return found


def _of_groups(groups: Mapping[str, Running], block: int, size: int) -> list[tuple[int, str]]:
    """Return what is wrong with groups one by one, and with their blocks."""
    found, owner = [], dict[str, str]()
    for name, each in groups.items():
        if each.hosts <= size and len(each.places) != 1:
            found.append((1, f"{name} of {each.hosts} hosts is on {len(each.places)} leafs"))
        for leaf in each.blocks:
            if leaf in owner:
                found.append((2, f"{name} and {owner[leaf]} have the block of {leaf}"))
            owner[leaf] = name
            if each.places[leaf] not in {block, size}:
                found.append((2, f"{name} has {each.places[leaf]} hosts in the block of {leaf}"))
        if sum(each.places.values()) != each.hosts or max(each.places.values()) > size:
            found.append((6, f"{name} of {each.hosts} hosts has {dict(each.places)}"))
    return found
