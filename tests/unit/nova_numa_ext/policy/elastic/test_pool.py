# SPDX-License-Identifier: Apache-2.0
"""The weighted majority, and the parts of a total."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.elastic.forecast import LastValue, NotEnoughHistoryError, lags, sane
from nova_numa_ext.policy.elastic.load import MemberLoad
from nova_numa_ext.policy.elastic.pool import GradedMajority, WeightedMajority, majority
from nova_numa_ext.policy.elastic.settings import ScalingSettings, literal
from nova_numa_ext.policy.elastic.share import predicted, suggested


def test_f_004_55_the_predictor_that_was_wrong_least_often_is_followed() -> None:
    """F-004-55: 100, 120 and 130 are followed; the weights are 0.125, 1 and 0.125."""
    pool, followed = WeightedMajority.of(3, 0.5, 0.05, 0.0), []
    for said, real in (
        ((100, 120, 90), 118),
        ((100, 120, 100), 122),
        ((110, 130, 120), 129),
    ):
        followed.append(said[pool.chosen])
        pool = pool.learned(said, real)
    assert followed == [100, 120, 130]
    assert pool.weights == (0.125, 1.0, 0.125)


def test_a_graded_majority_weighs_by_how_wrong_each_was_and_forgets() -> None:
    """Wrong by 2 tolerances, by 1 and not at all: weights of 1/4, 1/2 and 1, and all speak."""
    pool = GradedMajority((0.0, 0.0, 0.0), 0.5, 0.05, 0.9).learned((110, 95, 100), 100)
    assert pool.losses == pytest.approx((2.0, 1.0, 0.0))
    assert pool.combined((70.0, 140.0, 70.0)) == pytest.approx((70 / 4 + 140 / 2 + 70) / 1.75)
    assert pool.learned((1, 1, 1), 1).losses == pytest.approx((1.8, 0.9, 0.0))
    assert pool.chosen == 2


@given(
    said=st.lists(
        st.tuples(*[st.floats(0.0, 1e12)] * 3, st.floats(0.0, 1e12)), min_size=1, max_size=60
    ),
    factor=st.floats(0.0, 0.999),
)
def test_a_graded_majority_says_nothing_that_no_predictor_says(said, factor: float) -> None:
    pool = GradedMajority((0.0,) * 3, factor, 0.05, 0.9)
    for *predictions, real in said:
        pool = pool.learned(predictions, real)
        assert min(pool.losses) == 0.0
        low, high = min(predictions), max(predictions)
        assert low * (1 - 1e-9) <= pool.combined(predictions) <= high * (1 + 1e-9)


def test_the_published_majority_is_that_of_literal_settings() -> None:
    assert isinstance(majority(2, literal(35.0)), WeightedMajority)
    assert isinstance(majority(2, ScalingSettings(35.0)), GradedMajority)


def test_among_equals_the_first_is_followed() -> None:
    assert WeightedMajority((0.5, 1.0, 1.0)).chosen == 1


@pytest.mark.parametrize("factor", [0.5, 0.0])
def test_weights_never_all_become_nothing(factor: float) -> None:
    """0.5 ** 1075 is 0.0: after four days of mistakes all would be equal, and the first be followed."""
    pool = WeightedMajority.of(2, factor, 0.05, 0.0).learned((1.0, 9.0), 9.0)
    for _ in range(2000):
        pool = pool.learned((1.0, 2.0), 9.0)
    assert max(pool.weights) > 0.0
    if factor:
        assert pool.weights[1] / pool.weights[0] == pytest.approx(2.0)


def test_with_a_memory_the_pool_changes_its_mind() -> None:
    def after(memory: float) -> int:
        pool = WeightedMajority.of(2, 0.5, 0.05, memory)
        for _ in range(50):
            pool = pool.learned((1.0, 2.0), 1.0)
        for _ in range(5):
            pool = pool.learned((1.0, 2.0), 2.0)
        return pool.chosen

    assert after(0.0) == 0
    assert after(0.1) == 1


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6)), max_size=50),
    st.floats(0.0, 0.99),
    st.floats(0.0, 1.0),
)
def test_weights_stay_between_nothing_and_one(
    rounds: list[tuple[float, float, float]], factor: float, memory: float
) -> None:
    pool = WeightedMajority.of(2, factor, 0.05, memory)
    for first, second, real in rounds:
        pool = pool.learned((first, second), real)
        assert all(0.0 <= weight <= 1.0 for weight in pool.weights)
        assert pool.weights[pool.chosen] == max(pool.weights) > 0.0


@pytest.mark.parametrize(
    ("said", "acted_on"),
    [(float("nan"), 5.0), (float("inf"), 5.0), (-3.0, 0.0), (7.0, 7.0), (1e9, 20.0)],
)
def test_a_prediction_that_cannot_be_is_not_acted_on(said: float, acted_on: float) -> None:
    assert sane(said, (10.0, 5.0)) == acted_on


def test_the_last_value_is_the_same_at_every_lead() -> None:
    assert LastValue().predict((1.0, 4.0), (1, 3)) == [4.0, 4.0]


def test_a_regression_learns_from_what_was_known_at_its_lead() -> None:
    """At a lead of 2, value 3 is learnt from values 1 and 0 and its place in a season of 4."""
    rows, values, now = lags((10.0, 11.0, 12.0, 13.0, 14.0), 2, 4)
    assert rows.tolist() == [[3.0, 11.0, 10.0], [0.0, 12.0, 11.0]]
    assert values.tolist() == [13.0, 14.0]
    assert now.tolist() == [[2.0, 14.0, 13.0]]
    with pytest.raises(NotEnoughHistoryError):
        lags((1.0, 2.0, 3.0), 2, 4)


def test_f_004_58_a_total_is_split_as_it_is_now() -> None:
    """F-004-58: 4,000 reads and 100 writes over members with 3/4 and 1/4 of the reads, half of the writes each."""
    now = {"a": MemberLoad(1500.0, 20.0, 8.0), "b": MemberLoad(500.0, 20.0, 2.0)}
    assert predicted(now, 4000.0, 100.0) == {
        "a": MemberLoad(3000.0, 50.0, 8.0),
        "b": MemberLoad(1000.0, 50.0, 2.0),
    }


def test_a_total_that_is_nothing_now_is_split_evenly() -> None:
    assert predicted({"a": MemberLoad(0.0), "b": MemberLoad(0.0)}, 10.0, 0.0) == {
        "a": MemberLoad(5.0),
        "b": MemberLoad(5.0),
    }


def test_more_is_suggested_for_members_that_can_do_more() -> None:
    loads = {"a": MemberLoad(100.0), "b": MemberLoad(100.0), "idle": MemberLoad(0.0)}
    shares = suggested({"a": 0.5, "b": 1.0, "idle": 0.0}, loads)
    assert shares == pytest.approx({"a": 2 / 3, "b": 1 / 3})
