# SPDX-License-Identifier: Apache-2.0
"""All requests of a server by how long they took: counts that only grow, in buckets that percentiles are made of."""

import math
from itertools import pairwise

from host_agent.observe.latency.request_times import BOUNDS_US, RequestTimes

SLO_US = 1234.0


def test_ends_of_buckets_are_ten_a_decade_from_100_us_to_10_s() -> None:
    assert (BOUNDS_US[0], BOUNDS_US[-1], len(BOUNDS_US)) == (100.0, 1e7, 51)
    assert max(high / low for low, high in pairwise(BOUNDS_US)) < 1.27


def test_a_request_counts_in_each_bucket_that_ends_at_or_above_it() -> None:
    times = RequestTimes(SLO_US)
    times.add([(50.0, 1), (SLO_US, 2), (SLO_US + 0.1, 4), (2e7, 8)])
    found = dict(times.read().buckets)
    assert found[100e-6] == 1
    assert found[SLO_US / 1e6] == 3, "what has met the objective"
    assert found[10.0] == 7
    assert found[math.inf] == 15
    assert list(found.values()) == sorted(found.values())


def test_counts_only_grow() -> None:
    times = RequestTimes(SLO_US)
    times.add([(500.0, 1000)])
    before = times.read()
    times.add([(1000.0, 10)])
    after = times.read()
    assert before.buckets[-1] == (math.inf, 1000), "what was read stays as it is"
    assert after.buckets[-1] == (math.inf, 1010)
    assert (round(before.total_s, 9), round(after.total_s, 9)) == (0.5, 0.51)
