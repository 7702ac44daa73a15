# SPDX-License-Identifier: Apache-2.0
"""The policies that fit a group into the tree by what is free: the ideas of Kueue, Slurm and koordinator.

:func:`best_fit` is how Kueue's topology-aware scheduling and Slurm's tree plug-in choose, :func:`least_free` Kueue's
choice for groups without a demand, :func:`balanced` the equal shares of Kueue and koordinator, :func:`block` Slurm's
block plug-in. None of them knows who uses an uplink.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from nova_numa_ext.policy.network.allocation import (
    Found,
    Takes,
    from_largest,
    in_order,
    too_few,
    whole_slices,
)
from nova_numa_ext.policy.network.leafs import Leafs
from nova_numa_ext.policy.network.terms import GroupTerm
from placement_traits.reason import Reason


def best_fit(leafs: Leafs, allowed: Sequence[int], hosts: int, slice_hosts: int) -> Found:
    """Take the lowest node that has room for all, of several the fullest; in it the emptiest children first.

    Of the last child only a part is needed: it is the fullest that has as much.
    """
    rooms = whole_slices(leafs, allowed, slice_hosts)
    if sum(rooms.values()) < hosts:
        return too_few(rooms, hosts)
    if alone := [(room, at) for at, room in rooms.items() if room >= hosts]:
        return in_order({min(alone)[1]: hosts})
    for level in range(1, len(leafs.levels)):
        fitting = [one for one in _nodes(leafs, rooms, level) if _sum(rooms, one) >= hosts]
        if fitting:
            tightest = min(fitting, key=lambda one: (_sum(rooms, one), one[0]))
            return _down(leafs, rooms, tightest, level, hosts)
    return _down(leafs, rooms, list(rooms), len(leafs.levels), hosts)


def least_free(leafs: Leafs, allowed: Sequence[int], hosts: int, slice_hosts: int) -> Found:
    """Take the fullest leaf that has room for all; else leafs from the fullest on, so that empty ones stay empty."""
    rooms = whole_slices(leafs, allowed, slice_hosts)
    if sum(rooms.values()) < hosts:
        return too_few(rooms, hosts)
    ordered = sorted(rooms, key=lambda at: (rooms[at], at))
    fitting = [at for at in ordered if rooms[at] >= hosts]
    if fitting:
        return in_order({fitting[0]: hosts})
    taken: dict[int, int] = {}
    for at in ordered:
        taken[at] = min(rooms[at], hosts - sum(taken.values()))
    return in_order(taken)


def balanced(leafs: Leafs, allowed: Sequence[int], hosts: int, slice_hosts: int) -> Found:
    """Take the same number of hosts from each leaf: from as few leafs, then as low a node, as can be."""
    rooms = whole_slices(leafs, allowed, slice_hosts)
    if sum(rooms.values()) < hosts:
        return too_few(rooms, hosts)
    slices = hosts // slice_hosts
    for count in (each for each in range(1, min(slices, len(rooms)) + 1) if slices % each == 0):
        share = hosts // count
        able = {at: rooms[at] for at in rooms if rooms[at] >= share}
        for level in range(len(leafs.levels) + 1):
            fitting = [one for one in _nodes(leafs, able, level) if len(one) >= count]
            if fitting:
                tightest = min(fitting, key=lambda one: (_sum(able, one), one[0]))
                fullest = sorted(tightest, key=lambda at: (able[at], at))[:count]
                return in_order(dict.fromkeys(fullest, share))
    return Reason(GroupTerm.BALANCE, sum(rooms.values()), hosts)


def block(leafs: Leafs, allowed: Sequence[int], hosts: int, slice_hosts: int) -> Found:
    """Take the smallest aligned run of 1, 2, 4 … leafs that has room for all, of several the fullest."""
    rooms = whole_slices(leafs, allowed, slice_hosts)
    if sum(rooms.values()) < hosts:
        return too_few(rooms, hosts)
    width = 1
    while True:
        runs: dict[int, list[int]] = {}
        for at in rooms:
            runs.setdefault(at // width, []).append(at)
        fitting = [one for one in runs.values() if _sum(rooms, one) >= hosts]
        if fitting:
            tightest = min(fitting, key=lambda one: (_sum(rooms, one), one[0]))
            return from_largest({at: rooms[at] for at in tightest}, hosts)
        width *= 2


def _down(
    leafs: Leafs, rooms: Mapping[int, int], node: Sequence[int], level: int, hosts: int
) -> Takes:
    """Take hosts of a node's leafs, child by child."""
    if level == 0:
        return in_order({node[0]: hosts})
    children = _nodes(leafs, node, level - 1)
    chosen = from_largest({n: _sum(rooms, child) for n, child in enumerate(children)}, hosts)
    takes = [_down(leafs, rooms, children[one.at], level - 1, one.hosts) for one in chosen]
    return in_order({one.at: one.hosts for each in takes for one in each})


def _nodes(leafs: Leafs, at: Iterable[int], level: int) -> list[list[int]]:
    """Return the leafs below each node of a level, 0 for leafs themselves; above the last there is the fabric."""
    found: dict[Hashable, list[int]] = {}
    for each in at:
        path = (each, *leafs.leafs[each].above, None)
        found.setdefault(path[level], []).append(each)
    return list(found.values())


def _sum(rooms: Mapping[int, int], at: Iterable[int]) -> int:
    return sum(rooms[each] for each in at)
