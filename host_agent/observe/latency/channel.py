# SPDX-License-Identifier: Apache-2.0
"""Latencies that guests report through their ports: streams of bytes in, readings out.

One :class:`SloFeed` per server joins the line protocol (:mod:`~host_agent.observe.latency.protocol`) to the sliding
window (:mod:`~host_agent.observe.latency.window`). A server that reports nothing has an unknown latency, never a good
one.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from host_agent.conf.latency import FeedOptions
from host_agent.model.latency import LatencyReading, LcServer
from host_agent.observe.latency.protocol import FeedCounts, Parser
from host_agent.observe.latency.sockets import PortSockets
from host_agent.observe.latency.window import LatencyWindow
from placement_traits.names import SloSource

_DEFAULTS: Final = FeedOptions()


class SloFeed:
    """What one server reports.

    :param slo_p99_us: its objective, microseconds
    :param options: window and limits
    """

    def __init__(self, slo_p99_us: float, options: FeedOptions = _DEFAULTS) -> None:
        self.slo_p99_us = slo_p99_us
        self._parser = Parser(options.limits)
        self._window = LatencyWindow(
            slo_p99_us, options.window_s, least_samples=options.least_samples
        )

    @property
    def counts(self) -> FeedCounts:
        """What came so far."""
        return self._parser.counts

    def received(self, data: bytes, now_s: float) -> None:
        """Take bytes from the server's port."""
        self._window.add(self._parser.feed(data, now_s), now_s)

    def read(self, now_s: float, since_s: float = -math.inf) -> LatencyReading:
        """Return its latency now, without requests received before ``since_s``."""
        return self._window.read(now_s, since_s)


class ChannelFeed:
    """The ports of all latency-critical servers of a host.

    :param options: window and limits, for each of them
    :param sockets: the host's ends
    """

    def __init__(self, options: FeedOptions, sockets: PortSockets) -> None:
        self._options = options
        self._sockets = sockets
        self._feeds: dict[str, SloFeed] = {}

    def serve(self, lcs: Iterable[LcServer]) -> None:
        """Keep exactly the feeds of these servers; a changed objective starts a new window."""
        watched = {lc.uuid: lc for lc in lcs if lc.slo_p99_us}
        self._feeds = {
            uuid: self._feed(uuid, float(lc.slo_p99_us))
            for uuid, lc in watched.items()
            if lc.slo_p99_us
        }
        self._sockets.serve({uuid: lc.socket for uuid, lc in watched.items() if has_port(lc)})

    def _feed(self, uuid: str, slo_p99_us: float) -> SloFeed:
        found = self._feeds.get(uuid)
        if found is not None and found.slo_p99_us == slo_p99_us:
            return found
        return SloFeed(slo_p99_us, self._options)

    def receive(self, timeout_s: float, clock: Callable[[], float]) -> None:
        """Wait for reports at most so long, and take them.

        :param clock: tells when they came: the wait may have been long
        """
        got = self._sockets.receive(timeout_s)
        now_s = clock()
        for uuid, data in got:
            feed = self._feeds.get(uuid)
            if feed is not None:
                feed.received(data, now_s)

    def read(self, now_s: float, since_s: float = -math.inf) -> dict[str, LatencyReading]:
        """Return UUID -> latency of every server, also of those that report nothing."""
        return {uuid: feed.read(now_s, since_s) for uuid, feed in self._feeds.items()}

    @property
    def counts(self) -> dict[str, FeedCounts]:
        """UUID -> what came through its port so far."""
        return {uuid: feed.counts for uuid, feed in self._feeds.items()}

    @property
    def problems(self) -> Mapping[str, str]:
        """UUID -> why its port's socket cannot be opened."""
        return self._sockets.problems

    def close(self) -> None:
        """Close all sockets."""
        self._sockets.close()


def has_port(lc: LcServer) -> bool:
    """Tell whether a server's latency may come through a port, and there is one."""
    return bool(lc.reads(SloSource.CHANNEL) and lc.socket)
