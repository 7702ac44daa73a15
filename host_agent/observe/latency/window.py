# SPDX-License-Identifier: Apache-2.0
"""A sliding window of latencies: a ring of histograms, one per 100 ms, whose sum is kept by adding and subtracting.

The window answers two questions without keeping a single request: the 99th percentile of the last seconds, and that of
the requests *received after a moment* (an action and its settling time). Times are the host's: clocks of guests are not
trusted. Buckets grow by 1 %, so a percentile is exact within half a per cent, and memory is bounded whatever comes in:
at most ``window_s / slot_s + 1`` slots of at most ``BUCKETS`` counts.

Source: Gureya 2021, section 5.5 (window of n = 3 s, polled every m = 20 ms). Samples from before an action say nothing
about it: BALM's own window would judge an action by them for three seconds.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from host_agent.model.latency import QUANTILE, LatencyReading, beyond_chance

LOWEST_US: Final = 1.0
HIGHEST_US: Final = 60_000_000.0
_GROWTH: Final = math.log(1.01)
BUCKETS: Final = int(math.log(HIGHEST_US / LOWEST_US) / _GROWTH) + 1
NEWEST_S: Final = 0.5


class _Tally:
    """Counts per bucket, their sum, and the highest bucket that may hold something."""

    __slots__ = ("counts", "top", "total")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total = 0
        self.top = 0

    def add(self, slot: dict[int, int], sign: int = 1) -> None:
        for bucket, count in slot.items():
            self.counts[bucket] += sign * count
            self.total += sign * count
        self.top = max(self.top, *slot)

    def above(self, bucket: int) -> int:
        return sum(self.counts[bucket + 1 : self.top + 1])

    def quantile(self) -> int:
        """Return the bucket of the smallest latency that is not exceeded by 99 % of the requests."""
        while self.top and not self.counts[self.top]:
            self.top -= 1
        slower = math.floor((1.0 - QUANTILE) * self.total + 1e-9)
        for bucket in range(self.top, -1, -1):
            slower -= self.counts[bucket]
            if slower < 0:
                return bucket
        return 0


@dataclass(slots=True)
class _Slot:
    """Requests of a tenth of a second: number, count per bucket, and how many were slower than the objective."""

    number: int
    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    above: int = 0


class LatencyWindow:
    """The latencies of one server.

    :param slo_p99_us: objective, microseconds
    :param window_s: length of the window, seconds
    :param slot_s: length of one histogram, seconds
    :param least_samples: fewer requests make no percentile
    """

    def __init__(
        self,
        slo_p99_us: float,
        window_s: float = 3.0,
        slot_s: float = 0.1,
        least_samples: int = 200,
    ) -> None:
        self._slo_bucket = _bucket(slo_p99_us)
        self._slot_s = slot_s
        self._length = max(1, round(window_s / slot_s))
        self._least = least_samples
        self._slots: deque[_Slot] = deque()
        self._all = _Tally()
        self._since = _Tally()
        self._first = -(1 << 62)

    def add(self, latencies: Iterable[tuple[float, int]], now_s: float) -> None:
        """Take requests that have just been received.

        :param latencies: latency in microseconds and number of requests; values outside the range are clipped to it
        :param now_s: host's monotonic clock, never running backwards
        """
        slot = self._advance(now_s)
        got: dict[int, int] = {}
        for latency, count in latencies:
            bucket = _bucket(latency)
            got[bucket] = got.get(bucket, 0) + count
        if not got:
            return
        if not self._slots or self._slots[-1].number != slot:
            self._slots.append(_Slot(slot))
        held = self._slots[-1]
        for bucket, count in got.items():
            held.counts[bucket] = held.counts.get(bucket, 0) + count
            held.total += count
            held.above += count if bucket > self._slo_bucket else 0
        self._all.add(got)
        if slot >= self._first:
            self._since.add(got)

    def read(self, now_s: float, since_s: float = -math.inf) -> LatencyReading:
        """Return the percentile of the window, without requests received before ``since_s``.

        Where the newest requests alone violate the objective beyond chance, theirs: those before would hide it for most
        of the window.
        """
        present = self._advance(now_s)
        if since_s == -math.inf:
            return self._newest(present, since_s) or self._reading(self._all, since_s)
        first = math.ceil(since_s / self._slot_s - 1e-6)
        if first != self._first:
            self._first = first
            self._since = _Tally()
            for slot in self._slots:
                if slot.number >= first:
                    self._since.add(slot.counts)
        return self._newest(present, since_s) or self._reading(self._since, since_s)

    def _newest(self, present: int, since_s: float) -> LatencyReading | None:
        """Return the reading of the newest requests if it is surely violated."""
        after = present - round(NEWEST_S / self._slot_s)
        newest = [
            slot for slot in self._slots if slot.number > after and slot.number >= self._first
        ]
        total = sum(slot.total for slot in newest)
        if total < self._least or not beyond_chance(total, sum(slot.above for slot in newest)):
            return None
        tally = _Tally()
        for slot in newest:
            tally.add(slot.counts)
        return self._reading(tally, since_s)

    def _advance(self, now_s: float) -> int:
        """Drop the slots that have left the window; return the number of the present one."""
        present = math.floor(now_s / self._slot_s + 1e-6)
        while self._slots and self._slots[0].number <= present - self._length:
            slot = self._slots.popleft()
            self._all.add(slot.counts, -1)
            if slot.number >= self._first:
                self._since.add(slot.counts, -1)
        return present

    def _reading(self, tally: _Tally, since_s: float) -> LatencyReading:
        above = tally.above(self._slo_bucket)
        if tally.total < self._least:
            return LatencyReading(None, tally.total, above, since_s)
        return LatencyReading(_middle(tally.quantile()), tally.total, above, since_s)


def _bucket(latency_us: float) -> int:
    clipped = min(max(latency_us, LOWEST_US), HIGHEST_US)
    return min(BUCKETS - 1, int(math.log(clipped / LOWEST_US) / _GROWTH))


def _middle(bucket: int) -> float:
    return LOWEST_US * math.exp((bucket + 0.5) * _GROWTH)
