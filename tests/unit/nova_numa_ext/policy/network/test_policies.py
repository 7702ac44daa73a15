# SPDX-License-Identifier: Apache-2.0
"""The policies beside virtual network blocks: which leafs each takes of the same fabric (F-003-14)."""

from dataclasses import replace

import pytest

from nova_numa_ext.policy.network.exclusive import exclusive
from nova_numa_ext.policy.network.groups import GroupRequest, NoLeafs
from nova_numa_ext.policy.network.leafs import Leafs
from nova_numa_ext.policy.network.planner import SHARING
from nova_numa_ext.policy.network.terms import GroupTerm
from placement_traits.names import (
    LEAF_BLOCK,
    LEAF_HOST,
    LEAF_REST,
    POD_UPLINK,
    WHOLE_UPLINK,
    UplinkShare,
)
from placement_traits.reason import Reason
from tests.support.fabrics import Groups, fabric, leafs_of


def with_free(*free: int, leafs_per_pod: int = 4) -> Leafs:
    leafs = leafs_of(fabric([18] * len(free), leafs_per_pod=leafs_per_pod))
    return replace(
        leafs,
        leafs=tuple(replace(leaf, free=n) for leaf, n in zip(leafs.leafs, free, strict=True)),
    )


def taken(policy: str, leafs: Leafs, hosts: int, slice_hosts: int = 1) -> dict[int, int] | Reason:
    found = SHARING[policy](leafs, range(len(leafs.leafs)), hosts, slice_hosts)
    return found if isinstance(found, Reason) else {one.at: one.hosts for one in found}


# Two pods of four leafs.
FREE = (3, 18, 18, 5, 18, 18, 9, 0)


@pytest.mark.parametrize(
    ("policy", "hosts", "expected"),
    [
        ("first_available", 4, {0: 3, 1: 1}),
        ("first_available", 40, {0: 3, 1: 18, 2: 18, 3: 1}),
        ("first_contiguous", 4, {1: 4}),
        ("first_contiguous", 36, {1: 18, 2: 18}),
        ("first_contiguous", 20, {1: 18, 2: 2}),
        ("first_contiguous", 54, {0: 3, 1: 18, 2: 18, 3: 5, 4: 10}),
        ("best_fit", 4, {3: 4}),
        ("best_fit", 9, {6: 9}),
        ("best_fit", 20, {1: 18, 0: 2}),
        ("best_fit", 23, {1: 18, 3: 5}),
        ("best_fit", 45, {4: 18, 5: 18, 6: 9}),
        ("best_fit", 50, {4: 18, 5: 18, 6: 9, 3: 5}),
        ("least_free", 4, {3: 4}),
        ("least_free", 20, {0: 3, 3: 5, 6: 9, 1: 3}),
        ("balanced", 20, {1: 10, 2: 10}),
        ("balanced", 36, {1: 18, 2: 18}),
        ("balanced", 27, {4: 9, 5: 9, 6: 9}),
        ("block", 4, {3: 4}),
        ("block", 20, {1: 18, 0: 2}),
        ("block", 36, {4: 18, 5: 18}),
        ("block", 40, {1: 18, 2: 18, 3: 4}),
        ("block", 70, {1: 18, 2: 18, 4: 18, 5: 16}),
    ],
)
def test_what_each_takes(policy: str, hosts: int, expected: dict[int, int]) -> None:
    assert taken(policy, with_free(*FREE), hosts) == expected


@pytest.mark.parametrize("policy", SHARING)
def test_each_says_how_many_hosts_are_free(policy: str) -> None:
    assert taken(policy, with_free(*FREE), 90) == Reason(GroupTerm.FREE_HOSTS, 89, 90)


@pytest.mark.parametrize("policy", SHARING)
def test_each_keeps_slices_whole(policy: str) -> None:
    """Leafs of 18 have two slices of 8; those with 3 or 5 have none."""
    found = taken(policy, with_free(*FREE), 32, 8)
    assert sum(found.values()) == 32
    assert all(hosts % 8 == 0 for hosts in found.values())
    assert taken(policy, with_free(*FREE), 80, 8) == Reason(GroupTerm.FREE_HOSTS, 72, 80)


def test_shares_that_no_number_of_leafs_can_have_are_refused() -> None:
    assert taken("balanced", with_free(18, 18), 29) == Reason(GroupTerm.BALANCE, 36, 29)


def test_a_run_of_leafs_ends_where_leafs_may_not_be_taken() -> None:
    leafs = with_free(18, 18, 18, 18)
    found = SHARING["first_contiguous"](leafs, [0, 2, 3], 36, 1)
    assert [one.at for one in found] == [2, 3]


def alone(hosts: int) -> GroupRequest:
    return GroupRequest(hosts, UplinkShare.EXCLUSIVE)


def test_an_exclusive_group_has_whole_pods_and_small_groups_may_be_there() -> None:
    groups = Groups(fabric([18] * 6, leafs_per_pod=2))
    groups.start("small", alone(5))
    found = groups.start("large", alone(30))
    assert groups.hosts("small") == {"l005": 5}
    assert groups.hosts("large") == {"l004": 18, "l005": 12}, "the fullest pod that has room"
    assert found.claims == {
        "l004": {LEAF_BLOCK: 16, LEAF_REST: 2},
        "l005": {LEAF_HOST: 12},
        "p02": {POD_UPLINK: WHOLE_UPLINK},
    }
    groups.start("wide", alone(40))
    assert groups.pods("wide") == {"p00", "p01"}
    assert groups.start("late", alone(20)) == NoLeafs((Reason(GroupTerm.PODS, 0, 20),), ever=True)


def test_an_exclusive_group_is_not_with_quiet_ones() -> None:
    groups = Groups(fabric([18] * 4, leafs_per_pod=2))
    groups.start("quiet", GroupRequest(32, UplinkShare.QUIET))
    groups.start("exclusive", alone(36))
    assert groups.pods("exclusive") == {"p01"}
    assert isinstance(groups.start("more", alone(19)), NoLeafs)


def test_leafs_without_pods_cannot_be_had_alone() -> None:
    leafs = with_free(18, 18)
    flat = replace(leafs, leafs=tuple(replace(leaf, above=()) for leaf in leafs.leafs))
    assert exclusive(flat, [0, 1], 36, 1) == Reason(GroupTerm.PODS, 0, 36)
