# SPDX-License-Identifier: Apache-2.0
"""Hours of a host whose latency-critical server is honest, declares too little, or lies, by each source of latencies.

Days, and more servers: ``make bench-balm``.
"""

import pytest

from benchmarks.balm_days import BUDGET_S, FLOOR, PEAK_MBPS, Conduct, Day, Source, day

COUNT, BEGIN_H, HOURS = 8, 10.0, 2.0
each_source = pytest.mark.parametrize("source", Source)


@each_source
def test_who_is_honest_and_declares_its_need_is_not_violated(source: Source) -> None:
    """H1: with a Prometheus server it was violated for most of the time."""
    found = day(Conduct.HONEST, source, COUNT, begin_h=BEGIN_H, hours=HOURS)
    assert found.violated_share <= 0.10
    assert found.level_mean < 90.0, "there was something to do"
    assert found.spent == []


@each_source
def test_a_liar_takes_what_its_account_holds(source: Source) -> None:
    """H2: it had all best-effort servers at the minimum for ever."""
    found = day(Conduct.LIAR, source, COUNT, begin_h=BEGIN_H, hours=HOURS)
    assert found.hour_level >= FLOOR
    assert found.spent
    assert _within_account(found)


@each_source
def test_who_declares_too_little_is_told_what_to_declare(source: Source) -> None:
    found = day(Conduct.UNDER_DECLARED, source, COUNT, begin_h=BEGIN_H, hours=HOURS)
    assert found.spent
    assert found.spent[0].declared_mbps == PEAK_MBPS / 4.0
    needed = max(event.needed_mbps or 0.0 for event in found.spent)
    assert 0.6 * PEAK_MBPS <= needed <= 1.5 * PEAK_MBPS
    assert found.hour_level >= FLOOR
    assert _within_account(found)


def _within_account(found: Day) -> bool:
    """The account and one period; 5 % for demand that changes unseen while servers are throttled."""
    return found.beyond_s <= 1.05 * BUDGET_S * (HOURS + 1.0)
