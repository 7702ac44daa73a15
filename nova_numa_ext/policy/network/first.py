# SPDX-License-Identifier: Apache-2.0
"""The policies that know the order of leafs only (Jokanović, section 4.3): baselines, what plain nova comes near."""

from collections.abc import Sequence

from nova_numa_ext.policy.network.allocation import Found, in_order, too_few, whole_slices
from nova_numa_ext.policy.network.leafs import Leafs


def first_available(leafs: Leafs, allowed: Sequence[int], hosts: int, slice_hosts: int) -> Found:
    """Take free hosts from the first leaf to the last."""
    rooms = whole_slices(leafs, allowed, slice_hosts)
    if sum(rooms.values()) < hosts:
        return too_few(rooms, hosts)
    taken: dict[int, int] = {}
    for at, room in rooms.items():
        taken[at] = min(room, hosts)
        hosts -= taken[at]
        if not hosts:
            break
    return in_order(taken)


def first_contiguous(leafs: Leafs, allowed: Sequence[int], hosts: int, slice_hosts: int) -> Found:
    """Take the first leaf that has room for all; else the first run of adjacent, quite free leafs; else any."""
    rooms = whole_slices(leafs, allowed, slice_hosts)
    if hosts <= leafs.usual_size:
        for at, room in rooms.items():
            if room >= hosts:
                return in_order({at: hosts})
        return first_available(leafs, allowed, hosts, slice_hosts)
    run: dict[int, int] = {}
    for at, room in rooms.items():
        if run and at - 1 not in run:
            run = {}
        if not leafs.leafs[at].is_all_free:
            run = {}
            continue
        run[at] = min(room, hosts - sum(run.values()))
        if sum(run.values()) == hosts:
            return in_order(run)
    return first_available(leafs, allowed, hosts, slice_hosts)
