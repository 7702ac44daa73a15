# SPDX-License-Identifier: Apache-2.0
"""The parts of the view that need no Placement."""

import pytest

from placement_traits.fleet import Amount
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.snapshot import FleetSnapshot, ViewState
from placement_traits.view import ViewSettings, pause_s


def test_on_a_small_fleet_the_interval_rules():
    assert pause_s(ViewSettings(interval_s=2.0, busy_share=0.2), duration_s=0.1) == 2.0


def test_on_a_large_fleet_placement_is_busy_with_us_a_fifth_of_the_time():
    settings = ViewSettings(interval_s=2.0, busy_share=0.2, max_age_s=120.0)
    assert pause_s(settings, duration_s=3.0) == pytest.approx(12)


@pytest.mark.parametrize("duration_s", [0.1, 5.0, 20.0, 40.0])
def test_no_pause_lets_the_view_become_stale_while_refreshes_take_as_long_as_before(duration_s):
    settings = ViewSettings(interval_s=10.0, busy_share=0.2, max_age_s=120.0)
    assert 2 * duration_s + pause_s(settings, duration_s) <= settings.max_age_s


def test_what_is_free_may_be_negative_after_a_shrink():
    assert Amount(capacity=5, used=8).free == -3


def test_an_unknown_host_is_none():
    assert FleetSnapshot(FleetArrays.of(()), 0.0, ViewState.FRESH).host("f00") is None
