# SPDX-License-Identifier: Apache-2.0
"""How groups share the uplinks of leafs, as Placement counts them.

The uplinks of a leaf have :data:`placement_traits.names.LEAF_UPLINK_UNITS` units. A group that uses them beside others
takes 1, 1,000 or 1,000,000 by how much it uses the network, so that what is taken says how many groups of each class
are there. One that has a leaf's block alone takes all that go with it; of a leaf of one block, all: of two such
groups, and of one that shares and one that does not, Placement refuses the second. A group in one leaf uses none.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from placement_traits import names
from placement_traits.names import LEAF_UPLINK_UNITS, NetClass

SHARES: Final[Mapping[NetClass, int]] = {
    NetClass.LOW: 1,
    NetClass.MODERATE: 1_000,
    NetClass.EXTREME: 1_000_000,
}
_MOST: Final = 1_000  # groups of one class that can be told apart


def of_blocks(size: int, block: int, hosts: int) -> int:
    """Return the units that go with blocks: an equal part with each.

    :param size: hosts of the leaf
    :param block: hosts of one block
    :param hosts: of the blocks that are taken
    """
    blocks = size // block
    return LEAF_UPLINK_UNITS // blocks * (hosts // block) if blocks else 0


def with_another(there: Sequence[NetClass], units: int) -> tuple[NetClass, ...]:
    """Return who shares a leaf's uplinks when one more group takes units of them.

    :param there: who does so already, in the order of :data:`SHARES`
    """
    new = [net_class for net_class, of_class in SHARES.items() if of_class == units]
    return tuple(sorted((*there, *new), key=[*SHARES].index))


def residents(used: int, size: int, block: int, held: Mapping[str, int]) -> tuple[NetClass, ...]:
    """Return how much each group that shares a leaf's uplinks uses the network.

    :param used: units
    :param size: hosts of the leaf
    :param block: hosts of one block
    :param held: hosts of the leaf that groups hold, by resource class
    """
    # Below: blocks that were taken before uplinks were counted.
    left = max(0, used - of_blocks(size, block, held.get(names.LEAF_BLOCK, 0)))
    if left >= LEAF_UPLINK_UNITS:
        return ()
    return tuple(
        net_class for net_class, units in SHARES.items() for _ in range(left // units % _MOST)
    )
