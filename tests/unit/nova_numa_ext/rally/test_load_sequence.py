# SPDX-License-Identifier: Apache-2.0
"""F-002-91: a load with gaps of 90, 45, 22 and 0 seconds in random order, which a seed repeats."""

from collections import Counter

from nova_numa_ext.rally.load_sequence import Session, sessions

GAPS_S = (90.0, 45.0, 22.0, 0.0)
FLAVORS = ("a", "b", "c", "d")


def test_a_seed_says_the_whole_order() -> None:
    """With literals: another Python, or another release, must not make another load of a seed."""
    drawn = [(each.flavor, each.gap_s) for each in sessions(FLAVORS, GAPS_S, 8, 1)]
    assert drawn == [
        *(("b", 90.0), ("d", 22.0), ("a", 0.0), ("c", 45.0)),
        *(("d", 0.0), ("c", 22.0), ("b", 45.0), ("a", 90.0)),
    ]


def test_another_seed_is_another_order() -> None:
    orders = {sessions(FLAVORS, GAPS_S, 40, seed) for seed in range(20)}
    assert len(orders) == 20


def test_more_sessions_begin_as_fewer_do() -> None:
    assert sessions(FLAVORS, GAPS_S, 40, 3)[:7] == sessions(FLAVORS, GAPS_S, 7, 3)


def test_each_gap_and_each_flavor_comes_equally_often() -> None:
    drawn = sessions(FLAVORS, GAPS_S, 40, 5)
    assert Counter(each.gap_s for each in drawn) == dict.fromkeys(GAPS_S, 10)
    assert Counter(each.flavor for each in drawn) == dict.fromkeys(FLAVORS, 10)
    assert len({tuple(each.gap_s for each in drawn[i : i + 4]) for i in range(0, 40, 4)}) > 1


def test_one_gap_is_one_load() -> None:
    assert sessions(["a"], [22], 3, 9) == (Session("a", 22.0),) * 3
