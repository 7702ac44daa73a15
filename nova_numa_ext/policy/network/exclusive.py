# SPDX-License-Identifier: Apache-2.0
"""Whole pods for one group (Jokanović, section 4.3): no sharing at all, and the longest wait.

A group that fits in one leaf uses no uplink: it goes into one leaf anywhere, from the last on down. A larger one gets
pods in which no other large group is: the fullest pod that has room, else as few pods as can be.
"""

from collections.abc import Sequence

from nova_numa_ext.policy.network.allocation import (
    Found,
    Take,
    all_of,
    from_largest,
    one_by_one,
)
from nova_numa_ext.policy.network.leafs import Leaf, Leafs
from nova_numa_ext.policy.network.terms import GroupTerm
from placement_traits.fabric import LeafLayout
from placement_traits.reason import Reason


def exclusive(leafs: Leafs, allowed: Sequence[int], hosts: int, slice_hosts: int) -> Found:
    """Choose leafs for a group that holds nothing yet."""
    if hosts <= leafs.usual_size:
        return _small(leafs, allowed, hosts)
    pods = leafs.once(_pods, allowed, slice_hosts)
    sums = {number: sum(pod.values()) for number, pod in enumerate(pods)}
    if sum(sums.values()) < hosts:
        return Reason(GroupTerm.PODS, sum(sums.values()), hosts)
    takes: list[Take] = []
    for chosen in from_largest(sums, hosts):
        left = chosen.hosts
        for at, room in pods[chosen.at].items():
            take = min(left, room)
            left -= take
            if take:
                takes.append(_take(leafs.leafs[at], at, take))
    return tuple(takes)


def _pods(leafs: Leafs, allowed: Sequence[int], slice_hosts: int) -> list[dict[int, int]]:
    """Return the room of each pod that has no other large group, by leaf."""
    rooms: dict[str, dict[int, int]] = {}
    shared = {leaf.pod for leaf in leafs.leafs if leaf.residents}
    for at in allowed:
        leaf = leafs.leafs[at]
        room = leaf.singles // slice_hosts * slice_hosts
        if leaf.pod and room and not leafs.uplinks.get(leaf.pod) and leaf.pod not in shared:
            rooms.setdefault(leaf.pod, {})[at] = room
    return list(rooms.values())


def _small(leafs: Leafs, allowed: Sequence[int], hosts: int) -> Found:
    most = leafs.once(_most_singles, allowed)
    if hosts > most:
        return Reason(GroupTerm.ONE_LEAF, most, hosts)
    return next(
        (found,)
        for at in reversed(allowed)
        if (found := one_by_one(leafs.leafs[at], at, hosts, LeafLayout.WHOLE))
    )


def _most_singles(leafs: Leafs, allowed: Sequence[int]) -> int:
    return max([leafs.leafs[at].singles for at in allowed], default=0)


def _take(leaf: Leaf, at: int, hosts: int) -> Take:
    if leaf.is_all_free and hosts == leaf.size >= leaf.block:
        return all_of(leaf, at, hosts)
    found = one_by_one(leaf, at, hosts, LeafLayout.REMAINDER)
    assert found is not None, "not more than there is room for"
    return found
