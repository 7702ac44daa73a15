# SPDX-License-Identifier: Apache-2.0
"""The sources of latencies beside the ports, each in a file of its own: this is the one place that lists them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, runtime_checkable

from host_agent.conf.slo import SloOptions
from host_agent.model.counters import ServerCounters
from host_agent.model.latency import LatencyReading, LcServer
from host_agent.observe.latency import ipc_proxy, prometheus


class LatencyFeed(Protocol):
    """A source of latencies; called by the controller's thread up to 50 times a second, so it must not block."""

    @property
    def name(self) -> str:
        """A word for status and metrics: the value of ``numa_ext:slo_source`` that asks for it, if there is one."""

    @property
    def guess(self) -> bool:
        """Its readings are guesses: asked last, and a server that has no others keeps its fixed protection."""

    def serve(self, lcs: Iterable[LcServer]) -> None:
        """Look after exactly these servers, as far as they want this source."""

    def read(self, lc: LcServer, now_s: float, since_s: float) -> LatencyReading:
        """Return a server's latency; unknown where nothing is known of the time after ``since_s``."""

    def close(self) -> None:
        """Let go of sockets and threads."""


@runtime_checkable
class CounterReader(Protocol):
    """A feed that needs performance counters."""

    def take(self, counters: Mapping[str, ServerCounters], now_s: float) -> None:
        """Take a reading, in the thread that reads the counters; must not block."""


FEEDS: Final[tuple[Callable[[SloOptions], LatencyFeed | None], ...]] = (
    prometheus.build,
    ipc_proxy.build,
)
"""Makers, best first; None: the operator has not configured it."""


def build(options: SloOptions) -> tuple[LatencyFeed, ...]:
    """Return the configured feeds, best first."""
    return tuple(feed for make in FEEDS if (feed := make(options)) is not None)
