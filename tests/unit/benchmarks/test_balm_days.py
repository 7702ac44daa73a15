# SPDX-License-Identifier: Apache-2.0
"""Hours of a host whose latency-critical servers are honest, declare too little, or lie, by each source of latencies.

Whole days: :func:`test_a_day` (long), and with more servers ``make bench-balm``.
"""

import pytest

from benchmarks.balm_days import PEAK_MBPS, Case, Conduct, Source, alone, day, trying

COUNT, BEGIN_H, HOURS = 8, 11.4, 1.2
FALSE = 1.15


def _named(case: Case) -> str:
    return f"{case.title}, {case.source}, {case.count}, {case.published:g}, {case.phase:g}"


# The first is by default in the tests of a host that says no; the other differs from it by its interval.
LONG = {source: [pytest.mark.long] for source in (Source.PROMETHEUS_15, Source.PROMETHEUS_60)}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=_named(case), marks=LONG.get(source, []))
        for source in Source
        for case in alone(source, COUNT)
    ],
)
def test_a_server_alone(case: Case) -> None:
    """H1: with a Prometheus server it was violated for most of the time. H2: a liar took all for ever."""
    found = day(case, begin_h=BEGIN_H, hours=HOURS)
    assert list(found.missed()) == []
    if case.lcs[0][0] is Conduct.HONEST:
        assert found.level_mean < 90.0, "there was something to do"
    else:
        assert found.spent
        assert {event.declared_mbps for event in found.spent} == {PEAK_MBPS / 4.0}
    if case.lcs[0][0] is Conduct.UNDER_DECLARED:
        needed = max(event.needed_mbps or 0.0 for event in found.spent)
        assert 0.6 * PEAK_MBPS <= needed <= 1.5 * PEAK_MBPS


@pytest.mark.parametrize("case", list(trying(Source.PROMETHEUS_15, COUNT))[:-1], ids=_named)
def test_a_host_that_says_no(case: Case) -> None:
    too_much = case.published == FALSE
    found = day(case, begin_h=BEGIN_H, hours=2.0 if too_much else HOURS)
    assert list(found.missed()) == []
    if too_much:
        # It needs 55 of the 115 GB/s that are said to be there.
        needed = [event.needed_mbps or 0.0 for event in found.spent]
        assert 45_000.0 <= max(needed, default=0.0) <= 65_000.0


@pytest.mark.long
@pytest.mark.parametrize("case", trying(Source.CHANNEL, COUNT), ids=_named)
def test_a_day(case: Case) -> None:
    assert list(day(case).missed()) == []
