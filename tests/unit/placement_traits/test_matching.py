# SPDX-License-Identifier: Apache-2.0
"""Each of several gets one that it may have, and no two the same."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from placement_traits.matching import matched

CHOICES = st.lists(st.lists(st.integers(0, 4), max_size=4, unique=True), max_size=5)


def test_the_first_choice_where_it_is_free() -> None:
    assert matched([[2, 1], [2, 3], []]) == [2, 3, None]


def test_one_before_moves_where_it_can() -> None:
    assert matched([["a", "b"], ["a"]]) == ["b", "a"]


def test_one_before_stays_where_it_cannot_move() -> None:
    assert matched([["a"], ["a"]]) == ["a", None]


@given(CHOICES)
def test_as_many_as_by_trying_all(choices: list[list[int]]) -> None:
    found = matched(choices)
    chosen = [each for each in found if each is not None]
    assert len(set(chosen)) == len(chosen)
    assert all(each is None or each in asked for each, asked in zip(found, choices, strict=True))
    tried = itertools.product(*([None, *each] for each in choices))
    distinct = ([each for each in one if each is not None] for one in tried)
    assert len(chosen) == max(len(each) for each in distinct if len(set(each)) == len(each))
