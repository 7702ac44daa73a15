# SPDX-License-Identifier: Apache-2.0
"""The latencies of all latency-critical servers, from whatever tells them: their port, Prometheus, or a guess by IPC.

A port is preferred. Where both may be used (``auto``) Prometheus is asked while the port is silent: it may be plugged
in while the guest knows nothing of it. A server is *reporting* while its 99th percentile was known within the last
minute. One that is not (no port, no query, too few requests) keeps the fixed protection of ``[rdt]be_mba_percent``.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple
from typing import Final

from host_agent.model.latency import LatencyReading, LcServer
from host_agent.observe.latency.channels import SloChannels
from host_agent.observe.latency.feeds import FeedSettings, SloFeeds
from host_agent.observe.latency.ipc_proxy import IpcProxy
from host_agent.observe.latency.prometheus import PrometheusFeeds
from host_agent.observe.latency.protocol import FeedCounts
from placement_traits.names import SloSource

SILENCE_S: Final = 60.0
GUESS: Final = "ipc"
"""Source of a latency that is guessed at."""

_LOOK_S: Final = 10.0
_MISBEHAVIOUR: Final = {
    "malformed": "it sends lines that are none",
    "implausible": "it sends values that cannot be",
    "dropped_bytes": "it floods its port",
}


class SloSources:
    """All feeds of a host.

    :param settings: of the feeds through ports
    :param channels: the ports' sockets
    :param prometheus: None without one
    :param proxy: guesses for servers that nothing is known of; None guesses nothing
    """

    def __init__(
        self,
        settings: FeedSettings,
        channels: SloChannels,
        prometheus: PrometheusFeeds | None = None,
        proxy: IpcProxy | None = None,
    ) -> None:
        self._feeds = SloFeeds(settings)
        self._channels = channels
        self._prometheus = prometheus
        self._proxy = proxy
        self._lcs: dict[str, LcServer] = {}
        self._known: dict[str, float] = {}
        self._spoken: dict[str, float] = {}
        self._sources: dict[str, str] = {}
        self._guessed: frozenset[str] | set[str] = frozenset()
        self._looked_s = -math.inf
        self._counted: dict[str, FeedCounts] = {}
        self._faults: dict[str, tuple[str, ...]] = {}

    def restore(self, reporting: Iterable[str], now_s: float) -> None:
        """Take servers for reporting that were so before the agent was restarted."""
        self._known = dict.fromkeys(reporting, now_s)

    def serve(self, lcs: Iterable[LcServer], now_s: float) -> None:
        """Listen to exactly these servers."""
        self._lcs = {lc.uuid: lc for lc in lcs if lc.slo_p99_us is not None}
        self._feeds.serve(
            {uuid: float(lc.slo_p99_us) for uuid, lc in self._lcs.items() if lc.slo_p99_us}
        )
        self._channels.serve(
            {
                uuid: lc.socket
                for uuid, lc in self._lcs.items()
                if lc.reads(SloSource.CHANNEL) and lc.socket
            }
        )
        if self._prometheus is not None:
            asked = [
                lc
                for lc in self._lcs.values()
                if lc.reads(SloSource.PROMETHEUS) and not self._speaks(lc, now_s)
            ]
            self._prometheus.serve((lc.uuid, lc.flavor, lc.title) for lc in asked)
        self._known = {uuid: at for uuid, at in self._known.items() if uuid in self._lcs}
        self._spoken = {uuid: at for uuid, at in self._spoken.items() if uuid in self._lcs}

    def _speaks(self, lc: LcServer, now_s: float) -> bool:
        spoken = self._spoken.get(lc.uuid, -math.inf)
        return bool(lc.reads(SloSource.CHANNEL) and lc.socket) and now_s - spoken <= SILENCE_S

    def receive(self, timeout_s: float, clock: Callable[[], float]) -> bool:
        """Wait for reports at most so long; tell whether some came.

        :param clock: tells when they came: the wait may have been long
        """
        got = self._channels.receive(timeout_s)
        now_s = clock()
        for uuid, data in got:
            self._feeds.received(uuid, data, now_s)
        return bool(got)

    def read(self, now_s: float, since_s: float) -> dict[str, LatencyReading]:
        """Return the latency of reporting servers, of requests received after ``since_s``, and guesses for others."""
        readings = self._feeds.read(now_s, since_s)
        told = {uuid for uuid, reading in readings.items() if reading.p99_us is not None}
        self._spoken |= dict.fromkeys(told, now_s)
        if self._prometheus is not None:
            for uuid, reading in readings.items():
                if reading.p99_us is None:
                    readings[uuid] = self._prometheus.read(uuid, now_s, since_s)
        for uuid, reading in readings.items():
            if reading.p99_us is not None:
                self._known[uuid] = now_s
                self._sources[uuid] = SloSource.CHANNEL if uuid in told else SloSource.PROMETHEUS
        self._known = {u: at for u, at in self._known.items() if now_s - at <= SILENCE_S}
        found = {uuid: reading for uuid, reading in readings.items() if uuid in self._known}
        guesses = self._guesses(now_s, since_s)
        sources = self._sources | dict.fromkeys(guesses, GUESS)
        self._sources = {uuid: source for uuid, source in sources.items() if uuid in self._lcs}
        return found | guesses

    def _guesses(self, now_s: float, since_s: float) -> dict[str, LatencyReading]:
        if self._proxy is None:
            return {}
        found = {
            uuid: self._proxy.read(uuid, float(lc.slo_p99_us), now_s, since_s)
            for uuid, lc in self._lcs.items()
            if lc.slo_p99_us and uuid not in self._known
        }
        known = {uuid for uuid, reading in found.items() if reading.p99_us is not None}
        self._guessed = (self._guessed | known) & found.keys()
        return {uuid: reading for uuid, reading in found.items() if uuid in self._guessed}

    @property
    def reporting(self) -> frozenset[str]:
        """Servers whose latency is known, or was a minute ago."""
        return frozenset(self._known)

    @property
    def sources(self) -> Mapping[str, str]:
        """UUID -> what its latency was last read from: a value of ``SloSource``, or :data:`GUESS`."""
        return self._sources

    @property
    def counts(self) -> dict[str, FeedCounts]:
        """UUID -> what came through its port so far."""
        return self._feeds.counts()

    @property
    def problems(self) -> Mapping[str, str]:
        """UUID -> why its port's socket cannot be opened."""
        return self._channels.problems

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
        self._channels.close()
        if self._prometheus is not None:
            self._prometheus.close()
