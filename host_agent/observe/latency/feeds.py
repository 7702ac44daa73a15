# SPDX-License-Identifier: Apache-2.0
"""The latency of latency-critical servers as they report it: streams of bytes in, readings out.

One :class:`SloFeed` per server joins the line protocol (:mod:`~host_agent.observe.latency.protocol`) to the sliding
window (:mod:`~host_agent.observe.latency.window`). Whoever owns the sockets calls :meth:`SloFeeds.received`; the
controller is given :meth:`SloFeeds.read` at every poll. A server that says nothing has an unknown latency, never a
good one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from host_agent.model.latency import LatencyReading
from host_agent.observe.latency.protocol import FeedCounts, Limits, Parser
from host_agent.observe.latency.window import LatencyWindow


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """Options of the feed.

    :param window_s: n of the source: length of the sliding window, seconds
    :param poll_s: m of the source: seconds between two looks
    :param least_samples: fewer requests make no percentile
    :param limits: how much one guest may say
    """

    window_s: float = 3.0
    poll_s: float = 0.02
    least_samples: int = 200
    limits: Limits = field(default_factory=Limits)


class SloFeed:
    """What one server says.

    :param slo_p99_us: its objective, microseconds
    :param settings: window and limits
    """

    def __init__(self, slo_p99_us: float, settings: FeedSettings = FeedSettings()) -> None:
        self.slo_p99_us = slo_p99_us
        self._parser = Parser(settings.limits)
        self._window = LatencyWindow(
            slo_p99_us, settings.window_s, least_samples=settings.least_samples
        )

    @property
    def counts(self) -> FeedCounts:
        """What came so far."""
        return self._parser.counts

    def received(self, data: bytes, now_s: float) -> None:
        """Take bytes from the server's channel."""
        self._window.add(self._parser.feed(data, now_s), now_s)

    def read(self, now_s: float, since_s: float = -math.inf) -> LatencyReading:
        """Return its latency now, without requests received before ``since_s``."""
        return self._window.read(now_s, since_s)


class SloFeeds:
    """The feeds of all latency-critical servers of a host.

    :param settings: window and limits, for each of them
    """

    def __init__(self, settings: FeedSettings = FeedSettings()) -> None:
        self._settings = settings
        self._feeds: dict[str, SloFeed] = {}

    def serve(self, objectives: Mapping[str, float]) -> None:
        """Keep exactly the feeds of these servers; a changed objective starts a new window.

        :param objectives: UUID -> 99th percentile objective, microseconds
        """
        self._feeds = {
            uuid: found
            if (found := self._feeds.get(uuid)) is not None and found.slo_p99_us == slo
            else SloFeed(slo, self._settings)
            for uuid, slo in objectives.items()
        }

    def received(self, uuid: str, data: bytes, now_s: float) -> None:
        """Take bytes from a server's channel; those of unknown servers are dropped."""
        feed = self._feeds.get(uuid)
        if feed is not None:
            feed.received(data, now_s)

    def read(self, now_s: float, since_s: float = -math.inf) -> dict[str, LatencyReading]:
        """Return UUID -> latency of every server, also of those that say nothing."""
        return {uuid: feed.read(now_s, since_s) for uuid, feed in self._feeds.items()}

    def counts(self) -> dict[str, FeedCounts]:
        """Return UUID -> what came through its port."""
        return {uuid: feed.counts for uuid, feed in self._feeds.items()}
