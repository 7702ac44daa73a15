# SPDX-License-Identifier: Apache-2.0
"""Virtual network blocks: each mechanism of the thesis on a small fabric, by its own examples (F-003-05 to 13)."""

import pytest

from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlan, NoLeafs, PlanOptions
from nova_numa_ext.policy.network.terms import GroupTerm, sentence
from nova_numa_ext.policy.network.vnb import BlockLimits
from placement_traits.fabric import LeafLayout
from placement_traits.names import (
    LEAF_BLOCK,
    LEAF_HOST,
    LEAF_REMAINDER,
    LEAF_REST,
    POD_UPLINK,
    UplinkShare,
)
from tests.support.fabrics import Groups, fabric

QUIET = UplinkShare.QUIET


def quiet(hosts: int, **more) -> GroupRequest:
    return GroupRequest(hosts, QUIET, **more)


def nine_leafs() -> Groups:
    """Three pods of three leafs of 18 hosts."""
    return Groups(fabric([18] * 9, leafs_per_pod=3))


def test_the_blocks_end_where_groups_are() -> None:
    """F-003-06, the example of nine leafs; the thesis counts the last leaf of large groups, we the first of small."""
    groups = nine_leafs()
    assert BlockLimits.of(groups.leafs) == BlockLimits(large=-1, small=9), (
        "large groups may go up to leaf 8"
    )
    groups.start("large", quiet(54))
    assert groups.hosts("large") == {"l000": 18, "l001": 18, "l002": 18}
    assert BlockLimits.of(groups.leafs) == BlockLimits(large=2, small=9), (
        "small groups may go down to leaf 3"
    )
    groups.start("small", quiet(1))
    assert groups.hosts("small") == {"l008": 1}
    assert BlockLimits.of(groups.leafs) == BlockLimits(large=2, small=8), (
        "large groups may go up to leaf 7"
    )
    groups.end("large")
    groups.end("small")
    assert BlockLimits.of(groups.leafs) == BlockLimits(large=-1, small=9)


@pytest.mark.parametrize("hosts", range(1, 19))
def test_a_group_that_fits_in_one_leaf_is_in_the_last_one(hosts: int) -> None:
    """F-003-05."""
    groups = nine_leafs()
    found = groups.start("small", quiet(hosts))
    assert groups.hosts("small") == {"l008": hosts}
    assert found.claims == {"l008": {LEAF_HOST: hosts}}
    assert found.layouts == {"l008": LeafLayout.WHOLE}


def test_small_groups_go_on_down_when_the_last_leaf_is_full() -> None:
    groups = nine_leafs()
    for number in range(3):
        groups.start(f"small{number}", quiet(7))
    assert [groups.hosts(f"small{n}") for n in range(3)] == [{"l008": 7}, {"l008": 7}, {"l007": 7}]


def test_a_group_of_64_takes_four_blocks_and_leaves_the_rest() -> None:
    """F-003-07: what is beside its blocks is for small groups, which use no uplink."""
    groups = nine_leafs()
    found = groups.start("large", quiet(64))
    assert groups.hosts("large") == {f"l00{n}": 16 for n in range(4)}
    assert found.claims == {
        **{f"l00{n}": {LEAF_BLOCK: 16} for n in range(4)},
        "p00": {POD_UPLINK: 1},
        "p01": {POD_UPLINK: 1},
    }
    assert found.layouts == {}
    assert [leaf.rest_free for leaf in groups.leafs.leafs[:4]] == [2] * 4
    groups.start("other", quiet(64))
    assert set(groups.hosts("other")).isdisjoint(groups.hosts("large"))
    assert list(groups.sharing_leafs()) == []


def test_remainders_share_one_leaf_and_nothing_else() -> None:
    """F-003-08: 40 hosts are two whole leafs and 4 elsewhere, and the 5 of 41 go there, too."""
    groups = Groups(fabric([18] * 9, leafs_per_pod=9))
    first = groups.start("forty", quiet(40))
    assert groups.hosts("forty") == {"l000": 18, "l001": 18, "l002": 4}
    assert first.claims == {
        "l000": {LEAF_BLOCK: 16, LEAF_REST: 2},
        "l001": {LEAF_BLOCK: 16, LEAF_REST: 2},
        "l002": {LEAF_REMAINDER: 4},
        "p00": {POD_UPLINK: 1},
    }
    assert first.layouts == {"l002": LeafLayout.REMAINDER}
    assert BlockLimits.of(groups.leafs).large == 2, (
        "the leaf for remainders is large groups' ground"
    )
    second = groups.start("forty-one", quiet(41))
    assert groups.hosts("forty-one") == {"l002": 5, "l003": 18, "l004": 18}
    assert second.layouts == {}
    assert list(groups.sharing_leafs()) == [("forty", "forty-one", "l002")]


def full_of_small_groups(leafs: int = 4) -> Groups:
    """One large group on two blocks, and small ones of 18 on all other leafs."""
    groups = Groups(fabric([18] * leafs, leafs_per_pod=leafs))
    groups.start("large", quiet(32))
    for number in range(leafs - 2):
        groups.start(f"small{number}", quiet(18))
    return groups


def test_one_and_two_hosts_go_beside_a_block_when_small_ground_is_full() -> None:
    """F-003-09; three do not."""
    groups = full_of_small_groups()
    two = groups.start("two", quiet(2))
    assert two.claims == {"l000": {LEAF_REST: 2}}
    groups.start("one", quiet(1))
    groups.start("one more", quiet(1))
    assert (groups.hosts("one"), groups.hosts("one more")) == ({"l001": 1}, {"l001": 1})
    assert isinstance(groups.start("three", quiet(3)), NoLeafs)


def test_small_groups_go_to_remainder_leafs_when_small_ground_is_full() -> None:
    """F-003-10: the limit is locked by leaf 2 and by the small groups above it."""
    groups = Groups(fabric([18] * 4, leafs_per_pod=4))
    groups.start("large", quiet(40))
    assert groups.hosts("large") == {"l000": 18, "l001": 18, "l002": 4}
    groups.start("small", quiet(18))
    late = groups.start("late", quiet(9))
    assert late.claims == {"l002": {LEAF_REMAINDER: 9}}
    assert isinstance(groups.start("too many", quiet(6)), NoLeafs)


def test_a_group_stays_in_one_pod_where_one_has_the_leafs() -> None:
    """F-003-11: one leaf is left in the first pod, two are in the second."""
    groups = nine_leafs()
    groups.start("first", quiet(32))
    groups.start("second", quiet(32))
    assert groups.hosts("second") == {"l003": 16, "l004": 16}
    assert groups.pods("second") == {"p01"}


def test_a_group_that_no_pod_holds_takes_as_few_pods_and_as_short_a_run_as_can_be() -> None:
    groups = nine_leafs()
    groups.start("first", quiet(32))
    groups.start("wide", quiet(80))
    assert groups.hosts("wide") == {f"l00{n}": 16 for n in range(3, 8)}


@pytest.mark.parametrize(("most", "placed"), [(1, 6), (2, 12), (3, 15)])
def test_more_remainder_leafs_let_fewer_groups_of_odd_sizes_wait(most: int, placed: int) -> None:
    """F-003-12: 27 hosts are a leaf and a half; 3 pods of 8 leafs have room for 5 each."""
    groups = Groups(fabric([18] * 24, leafs_per_pod=8))
    options = PlanOptions(remainders_most=most)
    started = [groups.start(str(number), quiet(27), options) for number in range(20)]
    assert sum(isinstance(one, LeafPlan) for one in started) == placed
    last = started[-1].reasons[0]
    if most == 1:
        assert sentence(last) == (
            "no leaf for remainders has 9 free hosts, and none can become one: there are 3"
        )


def test_a_remainder_leaf_ends_when_it_is_empty() -> None:
    groups = Groups(fabric([18] * 9, leafs_per_pod=9))
    groups.start("odd", quiet(40))
    groups.end("odd")
    found = groups.start("even", quiet(64))
    assert groups.hosts("even") == {f"l00{n}": 16 for n in range(4)}
    assert found.layouts == {"l002": LeafLayout.PARTITIONED}


def test_a_group_waits_though_hosts_enough_are_free() -> None:
    """F-003-13: three small groups of 10 leave 24 hosts, and no block."""
    groups = Groups(fabric([18] * 3, leafs_per_pod=3))
    for number in range(3):
        groups.start(str(number), quiet(10))
    assert sum(leaf.room for leaf in groups.leafs.leafs) == 24
    found = groups.start("large", quiet(32))
    assert found == NoLeafs(found.reasons, ever=True)
    assert [reason.term for reason in found.reasons] == [GroupTerm.BLOCKS]
    assert sentence(found.reasons[0]) == "free blocks for large groups: 0, needed: 2"


def test_leafs_with_dead_hosts_give_no_block_but_take_remainders() -> None:
    groups = Groups(fabric([18] * 4, leafs_per_pod=4))
    leafs = groups.empty.leafs
    groups.empty = type(groups.empty)(
        groups.empty.levels,
        (type(leafs[0])("l000", ("p00",), 15, 15, 16), *leafs[1:]),
        18,
    )
    groups.start("even", quiet(32))
    assert groups.hosts("even") == {"l001": 16, "l002": 16}
    groups.end("even")
    groups.start("odd", quiet(40))
    assert groups.hosts("odd") == {"l000": 4, "l001": 18, "l002": 18}


@pytest.mark.parametrize(
    ("hosts", "leafs"),
    [
        (16, [16]),
        (18, [18]),
        (19, [18, 1]),
        (32, [16] * 2),
        (36, [18] * 2),
        (48, [16] * 3),
        (512, [16] * 32),
        (2048, [16] * 128),
        (2752, [16] * 172),
    ],
)
def test_sizes_on_marenostrum(hosts: int, leafs: list[int]) -> None:
    """2752 is the most that blocks of 16 have."""
    groups = Groups(fabric([18] * 172, leafs_per_pod=18))
    found = groups.start("group", quiet(hosts))
    assert [one.hosts for one in found.places] == leafs


def test_more_than_all_blocks_waits_for_ever() -> None:
    groups = Groups(fabric([18] * 4))
    assert groups.start("group", quiet(80)) == NoLeafs(
        groups.start("group", quiet(80)).reasons, ever=False
    )


def test_a_balanced_group_has_the_same_number_of_hosts_in_each_of_its_blocks() -> None:
    groups = nine_leafs()
    found = groups.start("group", quiet(24, is_balanced=True))
    assert groups.hosts("group") == {"l000": 12, "l001": 12}
    assert found.claims["l000"] == {LEAF_BLOCK: 16}
    assert isinstance(groups.start("prime", quiet(29, is_balanced=True)), NoLeafs)


def test_slices_stay_whole() -> None:
    """Slices of 4: 16 is four of them, and of 18 hosts only 16 are."""
    groups = Groups(fabric([18] * 9, leafs_per_pod=9))
    groups.start("blocks", quiet(32, slice_hosts=4))
    assert groups.hosts("blocks") == {"l000": 16, "l001": 16}
    groups.start("leafs", quiet(40, slice_hosts=5))
    assert groups.hosts("leafs") == {"l002": 15, "l003": 15, "l004": 10}


def test_a_pod_that_a_group_has_alone_is_left_alone() -> None:
    groups = nine_leafs()
    groups.start("exclusive", GroupRequest(40, UplinkShare.EXCLUSIVE))
    groups.start("large", quiet(32))
    assert groups.pods("exclusive").isdisjoint(groups.pods("large"))
