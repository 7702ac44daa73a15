# SPDX-License-Identifier: Apache-2.0
"""The leafs of a fabric as a group's planner sees them.

A leaf that groups hold in part is *small* ground while groups that fit in one leaf share it, and *large* ground while
a group of several leafs has a block or its last servers there. All of it is in the classes that are held:

======================  ================  ====================================================
resource class          layout            who holds it
======================  ================  ====================================================
``LEAF_BLOCK``          partitioned       a group of several leafs; each block whole
``LEAF_REST``           partitioned       groups that need no more; with the block: the whole leaf
``LEAF_REMAINDER``      remainder         the last servers of groups of several leafs, small groups
``LEAF_HOST``           whole             groups that fit in this leaf
======================  ================  ====================================================
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeVar, TypeVarTuple, cast

from placement_traits import names
from placement_traits.fabric import LeafLayout
from placement_traits.names import WHOLE_UPLINK, NetClass

Held = Mapping[str, int]
"""Resource class -> hosts."""

_Known = TypeVar("_Known")
_More = TypeVarTuple("_More")

_SINGLE: Final = {
    LeafLayout.REMAINDER: names.LEAF_REMAINDER,
    LeafLayout.WHOLE: names.LEAF_HOST,
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf as it is now.

    :param name: as the fabric calls it
    :param above: the nodes above it, the nearest first
    :param size: hosts that groups may have there
    :param free: hosts there that can take a server of the group that is planned
    :param block: hosts of one block; > size: the leaf has none
    :param layout: how its hosts are given
    :param held: what all groups hold there, the planned one included
    :param residents: how much each group that shares its uplinks uses the network
    :param oversubscription: how much more its hosts can send than it passes upwards; None: not known
    :param drained: hosts that the plan has there besides, as operators keep groups off
    """

    name: str
    above: tuple[str, ...]
    size: int
    free: int
    block: int
    layout: LeafLayout = LeafLayout.PARTITIONED
    held: Held = field(default_factory=dict)
    residents: tuple[NetClass, ...] = ()
    oversubscription: float | None = None
    drained: int = 0
    pod: str = field(init=False, repr=False, compare=False)
    """The node right above it, '' where leafs are the highest level."""
    planned_size: int = field(init=False, repr=False, compare=False)
    """Hosts that the plan has there, drained or not."""
    held_hosts: int = field(init=False, repr=False, compare=False)
    """Hosts that groups hold."""
    room: int = field(init=False, repr=False, compare=False)
    """Hosts that are free and that no group holds."""
    is_untouched: bool = field(init=False, repr=False, compare=False)
    """No group holds anything, so that its layout may change."""
    is_all_free: bool = field(init=False, repr=False, compare=False)
    """Every host is free and no group holds anything."""
    is_quiet: bool = field(init=False, repr=False, compare=False)
    """A quiet group of several leafs has blocks there: its uplinks are that group's alone.

    Those of leafs for remainders are not: they are where the virtual network blocks let groups share.
    """
    is_large: bool = field(init=False, repr=False, compare=False)
    """A group of several leafs may be there."""
    is_remainder: bool = field(init=False, repr=False, compare=False)
    """Last servers of groups are there, and more may come."""
    is_small: bool = field(init=False, repr=False, compare=False)
    """Groups that fit in one leaf are there, and it is theirs."""
    blocks_free: int = field(init=False, repr=False, compare=False)
    """Blocks that a group can take now."""
    rest_free: int = field(init=False, repr=False, compare=False)
    """Hosts beside the blocks that a group can take now."""
    singles: int = field(init=False, repr=False, compare=False)
    """Hosts that a group can take one by one now, by the layout."""

    def __post_init__(self) -> None:
        # What follows from the fields is asked for thousands of times for each change of a leaf.
        held = sum(self.held.values())
        blocks = self.held.get(names.LEAF_BLOCK, 0)
        remainder = bool(self.held.get(names.LEAF_REMAINDER))
        room = max(0, min(self.free, self.size - held))
        blocks_free = rest_free = 0
        if not held or self.layout is LeafLayout.PARTITIONED:
            taken = blocks // self.block
            blocks_free = max(0, min(self.size // self.block - taken, room // self.block))
            rest = self.size % self.block - self.held.get(names.LEAF_REST, 0)
            rest_free = max(0, min(rest, room))
        is_whole = not held or self.layout is not LeafLayout.PARTITIONED
        for name, value in (
            ("pod", self.above[0] if self.above else ""),
            ("planned_size", self.size + self.drained),
            ("held_hosts", held),
            ("room", room),
            ("is_untouched", not held),
            ("is_all_free", not held and not self.drained and self.free >= self.size),
            ("is_quiet", bool(blocks)),
            ("is_large", bool(blocks) or remainder),
            ("is_remainder", remainder),
            ("is_small", bool(self.held.get(names.LEAF_HOST))),
            ("blocks_free", blocks_free),
            ("rest_free", rest_free),
            ("singles", room if is_whole else rest_free),
        ):
            object.__setattr__(self, name, value)

    @property
    def emptied(self) -> "Leaf":
        """The leaf without any group, and not drained."""
        return replace(self, size=self.planned_size, drained=0, held={}, residents=())

    def whole_claim(self) -> dict[str, int]:
        """What a group holds that has this leaf alone."""
        rest = self.size % self.block
        blocks = self.size - rest
        return {
            **({names.LEAF_BLOCK: blocks} if blocks else {}),
            **({names.LEAF_REST: rest} if rest else {}),
        }


@dataclass(frozen=True, slots=True)
class Leafs:
    """All leafs, in the fabric's order.

    :param levels: of the fabric, bottom up
    :param leafs: in order; those of one pod stand together
    :param usual_size: hosts of most leafs by the plan
    :param uplinks: units of :data:`placement_traits.names.POD_UPLINK` that all groups hold, by node above the leafs;
        a node that is missing has none held
    """

    levels: tuple[str, ...]
    leafs: tuple[Leaf, ...]
    usual_size: int
    uplinks: Mapping[str, int] = field(default_factory=dict)
    size: int = field(init=False, repr=False, compare=False)
    """Hosts that the plan has in all leafs, drained or not."""
    largest: int = field(init=False, repr=False, compare=False)
    """Hosts that the plan has in the largest leaf; 0 without one."""
    _known: dict[Hashable, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        sizes = [leaf.planned_size for leaf in self.leafs]
        object.__setattr__(self, "size", sum(sizes))
        object.__setattr__(self, "largest", max(sizes, default=0))

    def once(
        self,
        find: Callable[[Self, Sequence[int], *_More], _Known],
        allowed: Sequence[int],
        *more: *_More,
    ) -> _Known:
        """Return what a function finds in some leafs; where these are all, it is asked once.

        :param allowed: positions of leafs, each once
        :param more: what else it is given
        """
        if len(allowed) < len(self.leafs):
            return find(self, allowed, *more)
        what = (find, *more)
        if what not in self._known:
            self._known[what] = find(self, allowed, *more)
        return cast(_Known, self._known[what])

    @property
    def emptied(self) -> "Leafs":
        """The same leafs without any group, and none of them drained."""
        return replace(self, leafs=tuple(leaf.emptied for leaf in self.leafs), uplinks={})

    def is_closed(self, at: int) -> bool:
        """Return whether a quiet or exclusive group has a leaf's uplinks, so that no other may use them.

        :param at: position of the leaf
        """
        leaf = self.leafs[at]
        if leaf.is_quiet or not self.uplinks:
            return leaf.is_quiet
        return any(self.uplinks.get(node, 0) >= WHOLE_UPLINK for node in leaf.above)


def class_of(layout: LeafLayout) -> str:
    """Return the class whose hosts are given one by one in a layout that is not partitioned."""
    return _SINGLE[layout]
