# SPDX-License-Identifier: Apache-2.0
"""Latency-critical (LC) servers and what is known of their latency: the shapes that sensors and controller share."""

import math
from dataclasses import dataclass
from typing import Final

from placement_traits.names import SloSource

PORT: Final = "org.numa_ext.slo.0"
"""Name of the virtio-serial port in which a guest reports latencies."""

QUANTILE: Final = 0.99


@dataclass(frozen=True, slots=True)
class LatencyReading:
    """What is known of one server's latency.

    :param p99_us: 99th percentile, microseconds; None when there are too few samples: unknown, not good
    :param samples: requests it is made of
    :param above: of these, requests slower than the objective
    :param since_s: no sample received before this time is in it, host's monotonic clock
    """

    p99_us: float | None
    samples: int
    above: int
    since_s: float

    @property
    def surely_violated(self) -> bool:
        """More slow requests than chance explains if the percentile met the objective."""
        return self.p99_us is not None and beyond_chance(self.samples, self.above)


def beyond_chance(samples: int, above: int) -> bool:
    """Tell whether more requests were slow than chance explains (three standard deviations)."""
    allowed = (1.0 - QUANTILE) * samples
    return above > allowed + 3.0 * math.sqrt(allowed)


@dataclass(frozen=True, slots=True)
class RequestHistogram:
    """All requests of one server that were counted so far, by how long they took.

    :param buckets: upper end, seconds, and requests up to it; ascending, the last end is infinite
    :param total_s: sum of their times, seconds
    """

    buckets: tuple[tuple[float, int], ...]
    total_s: float


@dataclass(frozen=True, slots=True)
class LcServer:
    """One latency-critical server that runs.

    :param uuid: of the server
    :param nodes: NUMA nodes its memory is on
    :param slo_p99_us: objective, microseconds; None where its flavor has none
    :param reading: its latency, of requests received since the time the controller asked for; None: it is not listened
        to
    :param title: its name
    :param flavor: name of its flavor
    :param project: uuid of its project, "" when unknown
    :param domains: L3 domains of its CPUs
    :param source: where its latency is read
    :param socket: host's end of its port, "" without one
    :param pluggable: a port can be plugged in
    :param declared_mbps: memory bandwidth that its flavor declares (``CUSTOM_MEMORY_BANDWIDTH_MBPS``), MB/s
    """

    uuid: str
    nodes: frozenset[int]
    slo_p99_us: float | None = None
    reading: LatencyReading | None = None
    title: str = ""
    flavor: str = ""
    project: str = ""
    domains: frozenset[int] = frozenset()
    source: SloSource = SloSource.AUTO
    socket: str = ""
    pluggable: bool = False
    declared_mbps: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Latency over objective; None when unknown."""
        reading = self.reading
        if reading is None or reading.p99_us is None or not self.slo_p99_us:
            return None
        return reading.p99_us / self.slo_p99_us

    def reads(self, source: SloSource) -> bool:
        """Tell whether its latency may be read from a source: its flavor names it, or leaves the choice to us."""
        return self.slo_p99_us is not None and self.source in (SloSource.AUTO, source)
