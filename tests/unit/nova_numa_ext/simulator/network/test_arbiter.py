# SPDX-License-Identifier: Apache-2.0
"""Two lists of lanes, one above the other: shares, and how long the lower one waits (F-003-30)."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.simulator.network.arbiter import MANAGEMENT, LaneArbiter, ListedLane
from placement_traits.errors import InvalidValueError


def sent(arbiter: LaneArbiter, waiting: Iterable[int], packets: int) -> list[int | None]:
    lanes = frozenset(waiting)
    return [arbiter.chosen(lanes) for _ in range(packets)]


def test_lanes_of_a_list_share_by_weight() -> None:
    arbiter = LaneArbiter([], [ListedLane(0, 1), ListedLane(1, 2), ListedLane(2, 4)], 1)
    assert Counter(sent(arbiter, {0, 1, 2}, 700)) == {0: 100, 1: 200, 2: 400}
    assert sent(arbiter, {1}, 3) == [1, 1, 1], "what nobody else wants"
    assert sent(arbiter, {7}, 1) == [None], "it is in no list"


def test_the_high_list_goes_first_up_to_its_limit() -> None:
    arbiter = LaneArbiter([ListedLane(1, 9)], [ListedLane(0, 1)], 3)
    assert sent(arbiter, {0, 1}, 8) == [1, 1, 1, 0, 1, 1, 1, 0]


def test_the_limit_counts_only_while_another_one_waits() -> None:
    arbiter = LaneArbiter([ListedLane(1, 9)], [ListedLane(0, 1)], 3)
    assert sent(arbiter, {1}, 50) == [1] * 50
    assert sent(arbiter, {0, 1}, 4) == [1, 1, 1, 0]


def test_without_a_limit_the_low_list_starves() -> None:
    arbiter = LaneArbiter([ListedLane(1, 1)], [ListedLane(0, 1)], None)
    assert set(sent(arbiter, {0, 1}, 1000)) == {1}
    assert arbiter.longest_wait is None


def test_management_goes_before_all() -> None:
    arbiter = LaneArbiter([ListedLane(1, 1)], [ListedLane(0, 1)], 1)
    assert sent(arbiter, {0, 1, MANAGEMENT}, 2) == [MANAGEMENT, MANAGEMENT]


@given(
    high=st.lists(st.tuples(st.integers(8, 14), st.integers(1, 9)), max_size=4),
    low=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 9)), min_size=1, max_size=4),
    limit=st.integers(1, 20),
    others=st.lists(st.sets(st.integers(0, 14)), min_size=1, max_size=20),
)
def test_no_lane_of_the_low_list_waits_longer_than_the_bound(
    high: list[tuple[int, int]],
    low: list[tuple[int, int]],
    limit: int,
    others: list[set[int]],
) -> None:
    arbiter = LaneArbiter(
        [ListedLane(*each) for each in high], [ListedLane(*each) for each in low], limit
    )
    bound = arbiter.longest_wait
    assert bound is not None
    one = low[0][0]
    waited = 0
    for turn in range(3 * bound):
        if arbiter.chosen(others[turn % len(others)] | {one}) == one:
            waited = 0
        else:
            waited += 1
        assert waited <= bound


@pytest.mark.parametrize(
    "wrong", [ListedLane(15, 1), ListedLane(-1, 1), ListedLane(0, 0), ListedLane(0, 256)]
)
def test_lanes_and_weights_are_those_of_infiniband(wrong: ListedLane) -> None:
    with pytest.raises(InvalidValueError, match="lane and weight"):
        LaneArbiter([wrong], [], 1)
    with pytest.raises(InvalidValueError, match="lane and weight"):
        LaneArbiter([], [wrong], 1)


def test_a_limit_lets_one_packet_through() -> None:
    with pytest.raises(InvalidValueError, match="limit"):
        LaneArbiter([], [], 0)
