# SPDX-License-Identifier: Apache-2.0
"""What every policy answers: hosts of leafs, and how they are held."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nova_numa_ext.policy.network.leafs import Held, Leaf, Leafs, class_of
from nova_numa_ext.policy.network.terms import GroupTerm
from placement_traits import names
from placement_traits.fabric import LeafLayout
from placement_traits.reason import Reason


@dataclass(frozen=True, slots=True)
class Take:
    """Hosts of one leaf.

    :param at: position of the leaf
    :param hosts: that are used, >= 1
    :param holds: what is claimed for them; at least as many hosts, or nothing
    :param layout: that the leaf needs for it
    """

    at: int
    hosts: int
    holds: Held = field(default_factory=dict)
    layout: LeafLayout = LeafLayout.PARTITIONED


Takes: TypeAlias = tuple[Take, ...]
Found: TypeAlias = Takes | Reason

Allocate = Callable[[Leafs, Sequence[int], int, int], Found]
"""Chooses leafs: all of them, positions that may be taken in order, hosts, hosts of a slice; or says why it cannot.

The number of hosts is a multiple of the slice.
"""


def whole_slices(leafs: Leafs, at: Iterable[int], slice_hosts: int) -> dict[int, int]:
    """Return the room of leafs in whole slices, by position; leafs without any are left out."""
    of = leafs.leafs
    if slice_hosts == 1:
        return {each: of[each].room for each in at if of[each].room}
    rooms = ((each, of[each].room // slice_hosts * slice_hosts) for each in at)
    return {each: room for each, room in rooms if room}


def in_order(taken: Mapping[int, int]) -> Takes:
    """Return takes that hold nothing, in the fabric's order.

    :param taken: hosts by position
    """
    return tuple(Take(at, taken[at]) for at in sorted(taken) if taken[at])


def too_few(rooms: Mapping[int, int], hosts: int) -> Reason:
    """Return why hosts cannot be had."""
    return Reason(GroupTerm.FREE_HOSTS, sum(rooms.values()), hosts)


def from_largest(rooms: Mapping[int, int], hosts: int) -> Takes:
    """Take all of the largest leafs, and of the last one what is left: the smallest that has it.

    :param rooms: by position; together at least as many
    """
    taken: dict[int, int] = {}
    left = dict(rooms)
    while hosts:
        fitting = [at for at in left if left[at] >= hosts]
        if fitting:
            at = min(fitting, key=lambda each: (left[each], each))
        else:
            at = max(left, key=lambda each: (left[each], -each))
        taken[at] = min(hosts, left.pop(at))
        hosts -= taken[at]
    return in_order(taken)


def one_by_one(leaf: Leaf, at: int, hosts: int, layout: LeafLayout) -> Take | None:
    """Take single hosts of a leaf, by what its layout allows; None: it has not as many.

    :param layout: that an untouched leaf gets for it
    """
    if hosts > leaf.singles:
        return None
    if leaf.is_untouched:
        return Take(at, hosts, {class_of(layout): hosts}, layout)
    if leaf.layout is LeafLayout.PARTITIONED:
        return rest_of(leaf, at, hosts)
    return Take(at, hosts, {class_of(leaf.layout): hosts}, leaf.layout)


def rest_of(leaf: Leaf, at: int, hosts: int) -> Take | None:
    """Take hosts beside a leaf's blocks; None: it has not as many."""
    if hosts > leaf.rest_free:
        return None
    return Take(at, hosts, {names.LEAF_REST: hosts})


def all_of(leaf: Leaf, at: int, hosts: int) -> Take:
    """Take a leaf alone, using some of its hosts."""
    return Take(at, hosts, leaf.whole_claim())
