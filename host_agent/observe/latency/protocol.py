# SPDX-License-Identifier: Apache-2.0
"""``numa-ext-slo``, the line protocol in which a guest reports the latencies of its requests. Pure.

One direction, guest to host, over the virtio-serial port ``org.numa_ext.slo.0`` (or any byte stream). ASCII lines that
end in a line feed, at most ``MAX_LINE`` bytes; fields are parted by spaces; latencies are in microseconds, above 0::

    numa-ext-slo 1                  first line; optional, for people and later versions
    s 812 640.5 1203                single requests, one latency each
    h 500:120 1000:31 2000:2        histogram since the last line: latency of a bucket (its upper end) : requests in it
    # anything                      ignored; a heartbeat

Lines carry no time: a request counts from when the host *received* it, because clocks of guests are not trusted. There
is no answer and no state between lines, so a reporter may start, stop, be restarted or migrated at any time.

The host believes nothing. What it cannot parse is counted and skipped, over-long lines are skipped up to their end, and
a line is used as a whole or not at all. A guest that sends more than it may is cut off for the rest of the moment, so
the work and the memory it can cause are bounded. All it can reach with lies is what its own tier allows: throttling
best-effort servers of its own host, within the throttle budget of the controller.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from host_agent.conf.latency import FeedLimits
from host_agent.observe.latency.window import HIGHEST_US

MAX_LINE: Final = 4096
MAX_COUNT: Final = 1_000_000
_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?", re.ASCII)
_COUNT: Final = re.compile(r"[0-9]{1,7}", re.ASCII)

_DEFAULTS: Final = FeedLimits()

Latencies = tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class FeedCounts:
    """What came through a guest's port so far, for journal and metrics.

    :param lines: lines understood
    :param malformed: lines that were none, or too long
    :param implausible: lines with values that cannot be
    :param dropped_bytes: bytes beyond the limit, not looked at
    """

    lines: int = 0
    malformed: int = 0
    implausible: int = 0
    dropped_bytes: int = 0


class Parser:
    """The receiving end of one guest's stream.

    :param limits: how much it may send
    """

    def __init__(self, limits: FeedLimits = _DEFAULTS) -> None:
        self._limits = limits
        self._rest = b""
        self._skipping = False
        self._allowance = limits.burst_bytes
        self._requests = limits.requests_per_s
        self._filled_s: float | None = None
        # Plain numbers: a guest may send a line feed 65,536 times a second.
        self._understood = self._malformed = self._implausible = self._dropped_bytes = 0

    @property
    def counts(self) -> FeedCounts:
        """What came so far."""
        return FeedCounts(self._understood, self._malformed, self._implausible, self._dropped_bytes)

    def feed(self, data: bytes, now_s: float) -> Latencies:
        """Take bytes as they came and return the latencies of all complete, credible lines.

        :param data: any bytes
        :param now_s: host's monotonic clock
        """
        self._refill(now_s)
        usable = min(len(data), int(self._allowance))
        self._allowance -= usable
        found: list[tuple[float, int]] = []
        for line in self._lines(data[:usable]):
            found.extend(self._line(line))
        if usable < len(data):
            # What follows the cut would be joined to the wrong half of a line.
            self._rest, self._skipping = b"", not data.endswith(b"\n")
            self._dropped_bytes += len(data) - usable
        return tuple(found)

    def _refill(self, now_s: float) -> None:
        limits = self._limits
        if self._filled_s is not None:
            passed = max(0.0, now_s - self._filled_s)
            self._allowance = min(limits.burst_bytes, self._allowance + passed * limits.bytes_per_s)
            self._requests = min(
                limits.requests_per_s, self._requests + passed * limits.requests_per_s
            )
        self._filled_s = now_s

    def _lines(self, data: bytes) -> Iterator[bytes]:
        *whole, rest = (self._rest + data).split(b"\n")
        for line in whole:
            if self._skipping or len(line) > MAX_LINE:
                self._skipping = False
                self._malformed += 1
            else:
                yield line
        if len(rest) > MAX_LINE:
            rest, self._skipping = b"", True
        self._rest = b"" if self._skipping else rest

    def _line(self, line: bytes) -> Latencies:
        try:
            kind, *fields = line.decode("ascii").split() or ["#"]
        except UnicodeDecodeError:
            kind, fields = "", []
        if kind.startswith("#") or (kind == "numa-ext-slo" and fields == ["1"]):
            self._understood += 1
            return ()
        pairs = _samples(fields) if kind == "s" else _buckets(fields) if kind == "h" else None
        if pairs is None:
            self._malformed += 1
            return ()
        requests = sum(count for _, count in pairs)
        sane = all(0.0 < latency <= HIGHEST_US and count <= MAX_COUNT for latency, count in pairs)
        if not sane or requests > self._requests:
            self._implausible += 1
            return ()
        self._requests -= requests
        self._understood += 1
        return pairs


def _samples(fields: list[str]) -> Latencies | None:
    if not fields or not all(_NUMBER.fullmatch(field) for field in fields):
        return None
    return tuple((float(field), 1) for field in fields)


def _buckets(fields: list[str]) -> Latencies | None:
    pairs = [field.partition(":") for field in fields]
    if not pairs or not all(_NUMBER.fullmatch(a) and _COUNT.fullmatch(b) for a, _, b in pairs):
        return None
    return tuple((float(latency), int(count)) for latency, _, count in pairs)
