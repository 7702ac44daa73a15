# SPDX-License-Identifier: Apache-2.0
"""All requests that a server has reported, counted by how long they took. Pure.

The window (:mod:`~host_agent.observe.latency.window`) forgets within seconds; these counts only grow, so that a
Prometheus makes rates and percentiles of any time of them. They begin at 0 with the agent, and when the objective
changes.

Buckets end at ten values a decade, from 100 µs to 10 s, and at the objective: a percentile between two ends is at most
a quarter off, and what part of the requests has met the objective is known as well as the guest's reporter says it.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from host_agent.model.latency import RequestHistogram

_MICRO: Final = 1e6
_LOWEST_US: Final = 100.0
_A_DECADE: Final = 10
_DECADES: Final = 5
BOUNDS_US: Final = tuple(
    float(f"{_LOWEST_US * 10.0 ** (step / _A_DECADE):.3g}")
    for step in range(_A_DECADE * _DECADES + 1)
)
"""Upper ends of buckets beside the objective, microseconds."""


class RequestTimes:
    """Counts of one server.

    :param slo_p99_us: its objective, microseconds
    """

    def __init__(self, slo_p99_us: float) -> None:
        self._bounds_us = sorted({*BOUNDS_US, slo_p99_us})
        self._counts = [0] * (len(self._bounds_us) + 1)
        self._total_us = 0.0

    def add(self, latencies: Iterable[tuple[float, int]]) -> None:
        """Count requests.

        :param latencies: latency in microseconds and number of requests
        """
        for latency, count in latencies:
            self._counts[bisect_left(self._bounds_us, latency)] += count
            self._total_us += latency * count

    def read(self) -> RequestHistogram:
        """Return what was counted so far; any thread may ask."""
        counts = list(self._counts)  # the controller's thread may be counting
        ends = [*(bound / _MICRO for bound in self._bounds_us), float("inf")]
        buckets = tuple(zip(ends, accumulate(counts), strict=True))
        return RequestHistogram(buckets, self._total_us / _MICRO)
