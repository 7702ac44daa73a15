# SPDX-License-Identifier: Apache-2.0
"""What is left for groups, and which uplinks are idle (F-003-15)."""

from dataclasses import replace

import pytest

from nova_numa_ext.policy.network.fragmentation import LeafKinds, after, fragmentation, placeable
from nova_numa_ext.policy.network.groups import GroupRequest, PlanOptions
from placement_traits.names import LEAF_HOST, UplinkShare
from tests.support.fabrics import Groups, fabric, leafs_of

QUIET, SHARED = UplinkShare.QUIET, UplinkShare.SHARED
OPTIONS = PlanOptions()


def test_an_empty_fabric_is_fragmented_only_by_what_does_not_divide() -> None:
    leafs = leafs_of(fabric([18] * 10, leafs_per_pod=5))
    assert placeable(leafs, GroupRequest(32, QUIET), OPTIONS) == 5
    assert fragmentation(leafs, 32, OPTIONS) == pytest.approx(20 / 180)
    assert fragmentation(leafs, 36, OPTIONS) == 0
    assert fragmentation(leafs, 36, OPTIONS, SHARED) == 0
    assert fragmentation(leafs, 10, OPTIONS) == pytest.approx(80 / 180)


def test_one_server_on_each_leaf_leaves_large_groups_without_a_place() -> None:
    leafs = leafs_of(fabric([18] * 10, leafs_per_pod=5))
    used = replace(leafs, leafs=tuple(replace(leaf, free=15) for leaf in leafs.leafs))
    assert fragmentation(used, 32, OPTIONS) == 1
    assert fragmentation(used, 30, OPTIONS, SHARED) == 0
    full = replace(leafs, leafs=tuple(replace(leaf, free=0) for leaf in leafs.leafs))
    assert fragmentation(full, 32, OPTIONS) is None


def test_places_that_are_taken_one_after_the_other_are_those_of_an_account() -> None:
    groups = Groups(fabric([18] * 9, leafs_per_pod=3))
    leafs = groups.leafs
    for name, hosts, share in (
        ("a", 40, QUIET),
        ("b", 41, QUIET),
        ("c", 5, QUIET),
        ("d", 20, SHARED),
    ):
        leafs = after(leafs, groups.start(name, GroupRequest(hosts, share)))
        assert leafs == groups.leafs


def test_uplinks_of_the_small_groups_block_can_be_off() -> None:
    """F-003-15: leafs 139 to 171 of 172, figure 4.8."""
    leafs = leafs_of(fabric([18] * 172, leafs_per_pod=18))
    small = tuple(
        replace(leaf, held={LEAF_HOST: 1}) if at >= 139 else leaf
        for at, leaf in enumerate(leafs.leafs)
    )
    kinds = LeafKinds.of(replace(leafs, leafs=small))
    assert (kinds.idle_uplinks, kinds.small, kinds.free) == (33, 33, 139)
    assert round(100 * kinds.idle_share, 1) == 19.2


def test_leafs_are_counted_by_what_is_held() -> None:
    groups = Groups(fabric([18] * 9, leafs_per_pod=3))
    for name, hosts in (("even", 32), ("odd", 40), ("small", 5)):
        groups.start(name, GroupRequest(hosts, QUIET))
    assert LeafKinds.of(groups.leafs) == LeafKinds(3, 0, 4, 1, 1, 0, 1)
    groups.end("even")
    groups.start("two", GroupRequest(2, QUIET))
    assert LeafKinds.of(groups.leafs).free == 5
