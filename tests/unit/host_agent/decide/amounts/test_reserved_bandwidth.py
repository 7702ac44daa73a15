# SPDX-License-Identifier: Apache-2.0
"""``reserved`` follows measured traffic calmly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.decide.amounts.reserved_bandwidth import (
    ReservationSettings,
    excess_mbps,
    next_reserved,
)
from placement_traits.errors import InvalidValueError

CALM = ReservationSettings(dead_band=0.05, rise_per_s=0.10, fall_per_s=0.01)
amounts = st.integers(0, 100_000)


def test_what_was_sold_is_not_reserved_again():
    assert excess_mbps(measured_mbps=9_000, declared_mbps=6_000) == 3_000
    assert excess_mbps(measured_mbps=2_000, declared_mbps=6_000) == 0


def test_small_moves_are_not_written():
    assert next_reserved(3_000, 3_400, 10_000, 60.0, CALM) == 3_000
    assert next_reserved(3_000, 3_600, 10_000, 60.0, CALM) == 3_600


def test_it_rises_fast_and_falls_slowly():
    assert next_reserved(0, 9_000, 10_000, 2.0, CALM) == 2_000
    assert next_reserved(9_000, 1_000, 10_000, 2.0, CALM) == 8_800


def test_a_quiet_domain_reaches_zero_although_the_last_step_is_small():
    assert next_reserved(300, 0, 10_000, 60.0, CALM) == 0


def test_unknown_traffic_frees_nothing():
    assert next_reserved(4_000, None, 10_000, 600.0, CALM) == 4_000


@given(amounts, st.none() | amounts, amounts, st.floats(0, 1e4))
def test_reserved_stays_within_the_capacity(reserved, excess, capacity, elapsed_s):
    assert 0 <= next_reserved(reserved, excess, capacity, elapsed_s, CALM) <= capacity


@given(amounts, amounts, st.integers(1_000, 100_000))
def test_constant_traffic_is_reached_within_the_dead_band_and_then_left_alone(
    start, excess, capacity
):
    reserved = min(start, capacity)
    for _ in range(120):
        reserved = next_reserved(reserved, excess, capacity, 1.0, CALM)
    assert abs(reserved - min(excess, capacity)) <= CALM.dead_band * capacity
    assert next_reserved(reserved, excess, capacity, 1.0, CALM) == reserved


def test_a_share_above_one_is_refused():
    with pytest.raises(InvalidValueError, match="reserved bandwidth, dead_band: 5"):
        ReservationSettings(dead_band=5)
