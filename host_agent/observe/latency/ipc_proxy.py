# SPDX-License-Identifier: Apache-2.0
"""Instructions per cycle as a stand-in for the latency of a server that reports none.

The reference is the best IPC seen lately: it decays with a half-life of an hour, so that a program that has changed
finds a new one. The deviation from it over the tolerated one stands for latency over objective: a server that runs a
quarter slower than it could (at 25 per cent) counts as violated. That is a guess, for a program may also have changed
what it computes; so a server that is only guessed at keeps the fixed protection of ``[rdt]be_mba_percent``, too.

Readings of less than a second and a half are taken together: the best of many short ones would be luck.

Source: Gureya 2021, section 5.3, lets a plug-in report any metric; IPC because it needs nothing of the guest.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from host_agent.conf.slo import SloOptions
from host_agent.model.counters import ServerCounters
from host_agent.model.latency import LatencyReading, LcServer

_HALF_LIFE_S: Final = 3600.0
_LEAST: Final = 20
_FRESH_S: Final = 15.0
_RECENT: Final = 3
_SAMPLE_S: Final = 1.5


@dataclass(slots=True)
class _Server:
    """What was seen of one: samples, reference and when it held, newest figures with their times, readings since."""

    samples: int = 0
    reference: float = 0.0
    at_s: float = -math.inf
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    readings: list[float] = field(default_factory=list)


def build(options: SloOptions) -> "IpcProxy | None":
    """Return the feed, None where the operator wants no guesses."""
    return IpcProxy(options.ipc_tolerance) if options.ipc_tolerance else None


class IpcProxy:
    """A :class:`~host_agent.observe.latency.feeds.LatencyFeed`; one thread takes counters, another may read.

    :param tolerance: tolerated deviation from the reference, above 0.0 and below 1.0
    """

    name: Final = "ipc"
    guess: Final = True

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._servers: dict[str, _Server] = {}

    def take(self, counters: Mapping[str, ServerCounters], now_s: float) -> None:
        """Take a reading: UUID -> counters since the last one. Who is missing is forgotten after an hour."""
        for uuid, found in counters.items():
            if found.ipc is None:
                continue
            server = self._servers.setdefault(uuid, _Server())
            server.readings.append(found.ipc)
            if now_s - server.at_s < _SAMPLE_S:
                continue
            value = fmean(server.readings)
            server.readings.clear()
            decay = 0.5 ** ((now_s - server.at_s) / _HALF_LIFE_S) if server.samples else 0.0
            server.reference = max(value, server.reference * decay)
            server.samples += 1
            server.at_s = now_s
            server.recent.append((now_s, value))
        self._servers = {u: s for u, s in self._servers.items() if now_s - s.at_s <= _HALF_LIFE_S}

    def serve(self, lcs: Iterable[LcServer]) -> None:
        """Do nothing: the counters of all managed servers are read."""

    def read(self, lc: LcServer, now_s: float, since_s: float = -math.inf) -> LatencyReading:
        """Return the stand-in for a server's latency; unknown before enough samples, and without fresh ones.

        :param since_s: samples of before do not count
        """
        server = self._servers.get(lc.uuid)
        if (
            server is None
            or not lc.slo_p99_us
            or server.samples < _LEAST
            or now_s - server.at_s > _FRESH_S
        ):
            return LatencyReading(None, 0, 0, since_s)
        # tuple() first: the other thread appends meanwhile.
        newest = [value for at, value in tuple(server.recent) if at >= since_s]
        if not newest or server.reference <= 0.0:
            return LatencyReading(None, 0, 0, since_s)
        deviation = max(0.0, 1.0 - sum(newest) / len(newest) / server.reference)
        return LatencyReading(lc.slo_p99_us * deviation / self._tolerance, len(newest), 0, since_s)

    def close(self) -> None:
        """Do nothing: it holds neither sockets nor threads."""
