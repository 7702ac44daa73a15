# SPDX-License-Identifier: Apache-2.0
"""Periods of a group from values of a monitoring system."""

import pytest

from nova_numa_ext.policy.elastic.load import MemberLoad
from nova_numa_ext.policy.elastic.monitored import READINGS, check_period, ends_ms, periods
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from placement_traits.errors import InvalidValueError

SETTINGS = ScalingSettings(35.0, period_s=10.0)


def test_periods_end_at_multiples_and_none_twice():
    assert ends_ms(0.0, 35.0, SETTINGS) == [10_000, 20_000, 30_000]
    assert ends_ms(10.0, 20.0, SETTINGS) == [20_000]
    assert ends_ms(20.0, 20.0, SETTINGS) == []
    odd = ScalingSettings(35.0, period_s=0.7)
    first, *others = ends_ms(1000.0, 1003.0, odd)
    assert ends_ms(first / 1000.0, 1003.0, odd) == others


@pytest.mark.parametrize("period_s", [0.01, 0.7, 12.34, 45.0, 300.0, 86_400.0])
def test_periods_of_whole_hundredths_are_allowed(period_s):
    check_period(ScalingSettings(35.0, period_s=period_s))


@pytest.mark.parametrize("period_s", [0.001, 0.125, 33.3333, 300.001])
def test_periods_between_them_are_not(period_s):
    with pytest.raises(InvalidValueError, match=r"period_s: .* a multiple of 0\.01"):
        check_period(ScalingSettings(35.0, period_s=period_s))


def test_a_member_has_what_is_known_of_it():
    times = range(11_000, 20_001, 1000)
    found = {
        "reads": {"b": {10_000: 5.0, 20_000: 7.0}, "a": {20_000: 9.0}},
        "writes": {"a": {20_000: 2.0}},
        "size_kb": {"a": {20_000: 4.0}},
        "placement": {"a": {20_000: 0.25}},
        "disturbed": {"a": {20_000: 1.0}, "b": {20_000: 0.0}},
        "latency_ms": {"a": {at: at / 1000.0 for at in times}, "other": {20_000: 1.0}},
    }
    first, second = periods([10_000, 20_000, 30_000], found, SETTINGS)
    assert [each.name for each in first.members] == ["b"]
    a, b = second.members
    assert (a.load, a.placement, a.disturbed) == (MemberLoad(9.0, 2.0, 4.0), 0.25, True)
    assert a.readings_ms == tuple(float(at) for at in range(11, 21))
    assert len(a.readings_ms) == READINGS
    assert (b.load, b.placement, b.disturbed) == (MemberLoad(7.0), 1.0, False)
    assert (second.at_s, second.data_at_s) == (20.0, 20.0)
