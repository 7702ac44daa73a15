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
    rooms: dict[str, dict[int, int]] = {}
    shared = {leaf.pod for leaf in leafs.leafs if leaf.residents}
    for at in allowed:
        leaf = leafs.leafs[at]
        room = _room(leaf) // slice_hosts * slice_hosts
        if leaf.pod and room and not leafs.uplinks.get(leaf.pod) and leaf.pod not in shared:
            rooms.setdefault(leaf.pod, {})[at] = room
    pods = list(rooms.values())
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


def _small(leafs: Leafs, allowed: Sequence[int], hosts: int) -> Found:
    for at in reversed(allowed):
        if found := one_by_one(leafs.leafs[at], at, hosts, LeafLayout.WHOLE):
            return (found,)
    rooms = [_room(leafs.leafs[at]) for at in allowed]
    return Reason(GroupTerm.ONE_LEAF, max(rooms, default=0), hosts)


def _room(leaf: Leaf) -> int:
    """Hosts that can be taken one by one."""
    if leaf.is_untouched or leaf.layout is not LeafLayout.PARTITIONED:
        return leaf.room
    return leaf.rest_free


def _take(leaf: Leaf, at: int, hosts: int) -> Take:
    if leaf.is_all_free and hosts == leaf.size >= leaf.block:
        return all_of(leaf, at, hosts)
    found = one_by_one(leaf, at, hosts, LeafLayout.REMAINDER)
    assert found is not None, "not more than there is room for"
    return found
