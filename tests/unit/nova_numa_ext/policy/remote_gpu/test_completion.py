# SPDX-License-Identifier: Apache-2.0
"""Utility and cost of a place: Eq. 11 to 13 of Amaral 2019 and the network-aware policy (F-000-26, 35)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.jobs.postponing import MOST_POSTPONEMENTS
from nova_numa_ext.policy.remote_gpu.completion import (
    OTHER,
    PREFERRED,
    Goal,
    expected_s,
    network_cost,
    place_cost,
    postpones,
    queue_cost,
)
from placement_traits.errors import InvalidValueError


@pytest.mark.parametrize(
    ("expected", "importance", "utility"),
    [(60, 1, 0.4), (100, 1, 0.0), (150, 1, -0.5), (150, 5.5, -0.25), (150, 10, 0.0), (60, 10, 0.4)],
)
def test_utility_of_a_completion_time(expected: float, importance: float, utility: float) -> None:
    found = Goal(100, importance).utility(expected)
    assert found == pytest.approx(utility)
    assert place_cost(found, 2.0) == pytest.approx((1 - utility) * 2)


def test_a_job_waits_one_round_for_its_own_host_before_it_takes_a_remote_gpu() -> None:
    remote = Goal(100).utility(90)
    assert place_cost(remote, OTHER) == pytest.approx(1.8)
    assert queue_cost(0) < place_cost(remote, OTHER) < queue_cost(1)
    assert place_cost(remote, PREFERRED) < queue_cost(0)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 2))
def test_a_busier_network_never_costs_less(load: float, other: float, factor: float) -> None:
    less, more = sorted((load, other))
    assert network_cost(less, 1.0, factor) <= network_cost(more, 1.0, factor)
    assert expected_s(10, less, 1.0, factor) <= expected_s(10, more, 1.0, factor)
    assert network_cost(5 * load, 5.0, factor) == pytest.approx(network_cost(load, 1.0, factor))


@given(st.floats(1, 1e6), st.floats(0, 1e7))
def test_the_eleventh_attempt_is_placed(within_s: float, expected: float) -> None:
    goal = Goal(within_s)
    postponed = 0
    while postpones(goal, expected, postponed, MOST_POSTPONEMENTS):
        postponed += 1
    assert postponed == (10 if expected > within_s else 0)


@pytest.mark.parametrize(("within_s", "importance"), [(0, 1), (-1, 1), (1, 0.9), (1, 10.1)])
def test_a_goal_without_meaning_is_refused(within_s: float, importance: float) -> None:
    with pytest.raises(InvalidValueError):
        Goal(within_s, importance)
