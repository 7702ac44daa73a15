# SPDX-License-Identifier: Apache-2.0
"""What a leaf has left, by what groups hold there."""

from collections.abc import Sequence
from dataclasses import replace

from nova_numa_ext.policy.network import leafs
from nova_numa_ext.policy.network.leafs import Leaf, Leafs
from placement_traits.fabric import LeafLayout
from placement_traits.names import LEAF_BLOCK, LEAF_HOST, LEAF_REMAINDER, LEAF_REST


def leaf(free: int = 18, **more) -> Leaf:
    return Leaf("l", ("p",), 18, free, 16, **more)


def test_an_untouched_leaf_of_18_is_a_block_of_16_and_a_rest_of_2() -> None:
    one = leaf()
    assert (one.blocks_free, one.rest_free, one.room, one.is_all_free) == (1, 2, 18, True)
    assert one.whole_claim() == {LEAF_BLOCK: 16, LEAF_REST: 2}


def test_a_leaf_with_too_few_usable_hosts_gives_no_block() -> None:
    assert [leaf(free).blocks_free for free in (18, 16, 15, 0)] == [1, 1, 0, 0]
    assert [leaf(free).is_all_free for free in (18, 17)] == [True, False]


def test_a_taken_block_leaves_the_rest() -> None:
    one = leaf(held={LEAF_BLOCK: 16})
    assert (one.blocks_free, one.rest_free, one.room) == (0, 2, 2)
    assert (one.is_large, one.is_small, one.is_remainder) == (True, False, False)


def test_remainders_and_small_groups_close_a_leaf_for_blocks() -> None:
    last = leaf(layout=LeafLayout.REMAINDER, held={LEAF_REMAINDER: 4})
    small = leaf(layout=LeafLayout.WHOLE, held={LEAF_HOST: 1})
    assert [(one.blocks_free, one.rest_free, one.room) for one in (last, small)] == [
        (0, 0, 14),
        (0, 0, 17),
    ]
    assert (last.is_large, last.is_remainder, last.is_small) == (True, True, False)
    assert (small.is_large, small.is_remainder, small.is_small) == (False, False, True)


def test_a_leaf_that_is_empty_again_is_partitioned_whatever_its_layout() -> None:
    assert leaf(layout=LeafLayout.WHOLE).blocks_free == 1


def test_what_groups_hold_is_no_room_though_no_server_runs_there_yet() -> None:
    assert leaf(free=16, held={LEAF_BLOCK: 16}).room == 2
    assert leaf(free=1, held={LEAF_BLOCK: 16}).room == 1


def test_a_nonblocking_leaf_has_several_blocks() -> None:
    one = Leaf("l", (), 18, 18, 8, held={LEAF_BLOCK: 8})
    assert (one.blocks_free, one.rest_free) == (1, 2)
    assert one.whole_claim() == {LEAF_BLOCK: 16, LEAF_REST: 2}


def test_hosts_are_given_one_by_one_in_two_layouts() -> None:
    assert leafs.class_of(LeafLayout.REMAINDER) == LEAF_REMAINDER
    assert leafs.class_of(LeafLayout.WHOLE) == LEAF_HOST


def test_single_hosts_are_those_that_the_layout_lets_a_group_take() -> None:
    assert leaf(17).singles == 17
    assert leaf(10, layout=LeafLayout.WHOLE, held={LEAF_HOST: 8}).singles == 10
    assert leaf(2, held={LEAF_BLOCK: 16}).singles == 2
    assert leaf(18, held={LEAF_REST: 1}).singles == 1


def test_what_follows_from_all_leafs_is_looked_for_once() -> None:
    asked = []

    def find(of: Leafs, allowed: Sequence[int], more: int) -> int:
        asked.append((*allowed, more))
        return len(asked)

    some = Leafs(("leaf",), (leaf(), leaf()), 18)
    assert [some.once(find, each, 7) for each in ([0, 1], [0], [0, 1], [0])] == [1, 2, 1, 3]
    assert some.once(find, [0, 1], 8) == 4
    assert replace(some).once(find, [0, 1], 7) == 5
