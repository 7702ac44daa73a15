# SPDX-License-Identifier: Apache-2.0
"""The latencies of all latency-critical servers, from their ports, from other feeds, or guessed at.

A port is preferred. Other feeds (:data:`~host_agent.observe.latency.feeds.FEEDS`) are asked while it is silent: it may
be plugged in while the guest knows nothing of it. A server is *reporting* while its 99th percentile was known within
the last minute. One that is not (no port, no query, too few requests) keeps the fixed protection of
``[rdt]be_mba_percent``, also where a feed guesses.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Final

from host_agent.model.latency import LatencyReading, LcServer, RequestHistogram
from host_agent.observe.latency.channel import ChannelFeed, has_port
from host_agent.observe.latency.feeds import LatencyFeed
from host_agent.observe.latency.protocol import FeedCounts
from placement_traits.names import SloSource

SILENCE_S: Final = 60.0
REQUESTS_SILENCE_S: Final = 25.0
"""Counts of requests are unknown after so long: a reporter speaks every ten seconds, also of no requests."""

_LOOK_S: Final = 10.0
_MISBEHAVIOUR: Final = {
    "malformed": "it sends lines that are none",
    "implausible": "it sends values that cannot be",
    "dropped_bytes": "it floods its port",
}


class SloSources:
    """All latencies of a host.

    :param ports: what guests report
    :param feeds: further sources, best first
    """

    def __init__(self, ports: ChannelFeed, feeds: Sequence[LatencyFeed] = ()) -> None:
        self._ports = ports
        self._feeds = tuple(feeds)
        self._lcs: dict[str, LcServer] = {}
        self._known: dict[str, float] = {}
        self._reported: dict[str, float] = {}
        self._sources: dict[str, str] = {}
        self._guessed: frozenset[str] = frozenset()
        self._looked_s = -math.inf
        self._counted: dict[str, FeedCounts] = {}
        self._faults: dict[str, tuple[str, ...]] = {}

    def restore(self, reporting: Iterable[str], now_s: float) -> None:
        """Take servers for reporting that were so before the agent was restarted."""
        self._known = dict.fromkeys(reporting, now_s)

    def serve(self, lcs: Iterable[LcServer], now_s: float) -> None:
        """Listen to exactly these servers."""
        self._lcs = {lc.uuid: lc for lc in lcs if lc.slo_p99_us is not None}
        self._ports.serve(self._lcs.values())
        silent = [lc for lc in self._lcs.values() if not self._reports(lc, now_s)]
        for feed in self._feeds:
            feed.serve(silent)
        self._known = {uuid: at for uuid, at in self._known.items() if uuid in self._lcs}
        self._reported = {uuid: at for uuid, at in self._reported.items() if uuid in self._lcs}

    def _reports(self, lc: LcServer, now_s: float) -> bool:
        """Tell whether something came through its port lately."""
        return has_port(lc) and now_s - self._reported.get(lc.uuid, -math.inf) <= SILENCE_S

    def receive(self, timeout_s: float, clock: Callable[[], float]) -> None:
        """Wait for reports at most so long; see :meth:`ChannelFeed.receive`."""
        self._ports.receive(timeout_s, clock)

    def read(self, now_s: float, since_s: float) -> dict[str, LatencyReading]:
        """Return the latency of reporting servers, of requests received after ``since_s``, and guesses for others."""
        readings = self._ports.read(now_s, since_s)
        found = dict.fromkeys(
            (uuid for uuid, reading in readings.items() if reading.p99_us is not None),
            SloSource.CHANNEL.value,
        )
        self._reported |= dict.fromkeys(found, now_s)
        for feed in self._feeds:
            if not feed.guess:
                for uuid in readings.keys() - found.keys():
                    readings[uuid] = feed.read(self._lcs[uuid], now_s, since_s)
                    # An answer that is too early to judge an action by is no silence.
                    if feed.read(self._lcs[uuid], now_s, -math.inf).p99_us is not None:
                        found[uuid] = feed.name
        self._known |= dict.fromkeys(found, now_s)
        self._known = {u: at for u, at in self._known.items() if now_s - at <= SILENCE_S}
        known = {uuid: reading for uuid, reading in readings.items() if uuid in self._known}
        guesses, guessed = self._guess(now_s, since_s)
        sources = self._sources | found | guessed
        self._sources = {uuid: source for uuid, source in sources.items() if uuid in self._lcs}
        return known | guesses

    def _guess(
        self, now_s: float, since_s: float
    ) -> tuple[dict[str, LatencyReading], dict[str, str]]:
        """Return readings and feeds of the servers that do not report and are, or were, guessed at."""
        readings: dict[str, LatencyReading] = {}
        feeds: dict[str, str] = {}
        for feed in self._feeds:
            if feed.guess:
                for uuid, lc in self._lcs.items():
                    if uuid not in self._known and uuid not in feeds:
                        readings[uuid] = feed.read(lc, now_s, since_s)
                        if readings[uuid].p99_us is not None:
                            feeds[uuid] = feed.name
        self._guessed = frozenset((self._guessed | feeds.keys()) & readings.keys())
        kept = {uuid: reading for uuid, reading in readings.items() if uuid in self._guessed}
        return kept, feeds

    @property
    def reporting(self) -> frozenset[str]:
        """Servers whose latency is known, or was a minute ago."""
        return frozenset(self._known)

    @property
    def guessed(self) -> frozenset[str]:
        """Servers whose latency is a guess: only its ratio to the objective means something."""
        return self._guessed

    @property
    def sources(self) -> Mapping[str, str]:
        """UUID -> name of the feed that its latency was last read from."""
        return self._sources

    @property
    def counts(self) -> dict[str, FeedCounts]:
        """UUID -> what came through its port so far."""
        return self._ports.counts

    def requests(self, now_s: float) -> dict[str, RequestHistogram]:
        """Return UUID -> all requests that came through its port so far, where they are known."""
        return self._ports.requests(now_s - REQUESTS_SILENCE_S)

    @property
    def problems(self) -> Mapping[str, str]:
        """UUID -> why its port's socket cannot be opened."""
        return self._ports.problems

    def faults(self, now_s: float) -> list[tuple[str, FeedCounts, str]]:
        """Return what has changed in how guests behave: (UUID, what came so far, problem or "").

        Looked at every ten seconds, so that a guest that misbehaves all the time fills no journal.
        """
        if now_s - self._looked_s < _LOOK_S:
            return []
        self._looked_s = now_s
        found = []
        counts = self.counts
        for uuid, now in counts.items():
            before = self._counted.get(uuid, FeedCounts())
            faults = tuple(
                sentence
                for name, sentence in _MISBEHAVIOUR.items()
                if getattr(now, name) > getattr(before, name)
            )
            if sum(astuple(now)) < sum(astuple(before)):  # a new feed
                faults = ()
            if faults != self._faults.get(uuid, ()):
                self._faults[uuid] = faults
                found.append((uuid, now, "; ".join(faults)))
        self._counted = counts
        self._faults = {uuid: faults for uuid, faults in self._faults.items() if uuid in counts}
        return found

    def close(self) -> None:
        """Let go of sockets and threads."""
        self._ports.close()
        for feed in self._feeds:
            feed.close()
