# SPDX-License-Identifier: Apache-2.0
"""Days of a host with one latency-critical server that is honest, declares too little, or lies (modelled).

Arithmetic, so that a day takes seconds: best-effort servers in eight classes use a node's bandwidth as their levels
let them, each in phases of its own; the latency-critical server needs more of it by day than by night, and its latency
rises ever faster as the rest is used. Its latency is known at once (a report through its port) or as a Prometheus
server knows it: the slowest in the range that the query looks back, asked at an interval. Constants are assumed.
"""

import math
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from host_agent.conf.latency import PrometheusOptions
from host_agent.conf.slo import BalmOptions
from host_agent.decide.slo import balm
from host_agent.decide.slo.shapes import AccountSpent, BalmPhase, BalmState, BeServer, SloView
from host_agent.model.latency import LatencyReading, LcServer
from host_agent.model.traffic import Traffic

CAPACITY_MBPS: Final = 100_000.0
PEAK_MBPS: Final = 40_000.0
DEMAND_MBPS: Final = 95_000.0
SLO_US: Final = 1000.0
LEVELS: Final = tuple(range(10, 101, 10))
CLASSES: Final = 8
HOUR_S: Final = 3600.0
BUDGET_S: Final = BalmOptions().budget_s_per_hour
FLOOR: Final = BalmOptions().be_floor_percent
_SAMPLES: Final = 1000
_QUIET_S: Final = 5.0


class Conduct(StrEnum):
    """What the latency-critical server declares and reports."""

    HONEST = "honest"
    UNDER_DECLARED = "under-declared"
    LIAR = "liar"

    @property
    def declared_mbps(self) -> float:
        """Bandwidth that its flavor declares, MB/s."""
        return PEAK_MBPS if self is Conduct.HONEST else PEAK_MBPS / 4.0


class Source(StrEnum):
    """Where its latency is read."""

    CHANNEL = "channel"
    PROMETHEUS_15 = "prometheus 15 s"
    PROMETHEUS_60 = "prometheus 60 s"

    @property
    def window_s(self) -> float:
        """Range that a query looks back, seconds; 0 for reports through a port."""
        return {Source.CHANNEL: 0.0, Source.PROMETHEUS_15: 15.0, Source.PROMETHEUS_60: 60.0}[self]


@dataclass(slots=True)
class Day:
    """What came of it.

    :param seconds: simulated
    :param violated_s: its latency was above its objective
    :param level_s: mean level of best-effort servers, per cent, times seconds
    :param hour_level: least mean level of a best-effort server over a sliding hour, per cent
    :param beyond_s: seconds of all best-effort traffic that were taken beyond what it declares
    :param spent: events that its account is used up
    """

    seconds: float = 0.0
    violated_s: float = 0.0
    level_s: float = 0.0
    hour_level: float = 100.0
    beyond_s: float = 0.0
    spent: list[AccountSpent] = field(default_factory=list)

    @property
    def violated_share(self) -> float:
        """Part of the time in which its objective was violated."""
        return self.violated_s / self.seconds

    @property
    def level_mean(self) -> float:
        """Mean level of best-effort servers, per cent."""
        return self.level_s / self.seconds

    @property
    def beyond_share(self) -> float:
        """Part of best-effort traffic that was taken beyond what it declares."""
        return self.beyond_s / self.seconds


class _Host:
    """The host at a moment.

    :param count: best-effort servers
    """

    def __init__(self, conduct: Conduct, count: int, seed: int) -> None:
        self.conduct, self._chance = conduct, random.Random(seed)
        self.names = tuple(f"be{number:02d}" for number in range(count))
        self._began = {name: self._chance.uniform(0.0, HOUR_S) for name in self.names}
        self.levels = dict.fromkeys(self.names, 100)
        self.now_s = 0.0

    def demand_mbps(self, name: str) -> float:
        """Traffic of a best-effort server that is not throttled: less in every other phase."""
        odd = int((self.now_s + self._began[name]) / 2400.0) % 2
        return DEMAND_MBPS / len(self.names) * (0.85 if odd else 1.0)

    def traffic_mbps(self, name: str) -> float:
        """Its traffic now."""
        return min(
            self.demand_mbps(name), DEMAND_MBPS / len(self.names) * self.levels[name] / 100.0
        )

    def ratio(self) -> float:
        """True latency over the objective: 0.9 where what the server needs is left, ever higher above."""
        load = 0.65 - 0.35 * math.cos(2.0 * math.pi * self.now_s / (24.0 * HOUR_S))
        left = CAPACITY_MBPS - load * PEAK_MBPS
        full = 0.5 * sum(map(self.traffic_mbps, self.names)) / left
        return 0.45 / max(0.05, 1.0 - full)

    def reported(self) -> float:
        """What is reported: by a liar that nothing but the strongest throttles for all will do."""
        if self.conduct is Conduct.LIAR:
            return 0.85 if max(self.levels.values()) <= LEVELS[0] else 1.5
        return self.ratio() * math.exp(self._chance.gauss(0.0, 0.01))


class _Port:
    """Reports through the port: the latency now."""

    pause_s = 0.25

    def __init__(self, host: _Host) -> None:
        self._host = host

    def look(self) -> None:
        """A report comes whenever it is read."""

    def read(self, since_s: float) -> LatencyReading:
        """Return the latency of requests received after a moment."""
        if self._host.now_s <= since_s:
            return LatencyReading(None, 0, 0, since_s)
        ratio = self._host.reported()
        return LatencyReading(ratio * SLO_US, _SAMPLES, _SAMPLES if ratio > 1.1 else 0, since_s)


class _Prometheus:
    """Answers of a Prometheus server: the slowest of the range, asked at an interval."""

    def __init__(self, host: _Host, window_s: float) -> None:
        self.pause_s = 1.0
        self._interval_s = PrometheusOptions().interval_s
        self._at, self._worst = 0.0, 0.0
        self._host, self._window_s = host, window_s
        self._seen: deque[tuple[float, float]] = deque()

    def look(self) -> None:
        """Take note of the latency now."""
        now = self._host.now_s
        self._seen.append((now, self._host.reported()))
        while self._seen[0][0] < now - self._window_s:
            self._seen.popleft()

        if now - self._at >= self._interval_s:
            self._at, self._worst = now, max(ratio for _, ratio in self._seen)

    def read(self, since_s: float) -> LatencyReading:
        """Return the last answer; unknown while its range begins before the moment that is asked for."""
        if self._at - self._window_s < since_s:
            return LatencyReading(None, 0, 0, since_s)
        return LatencyReading(self._worst * SLO_US, _SAMPLES, 0, since_s)


def day(
    conduct: Conduct,
    source: Source,
    count: int,
    *,
    begin_h: float = 0.0,
    hours: float = 24.0,
    seed: int = 1,
) -> Day:
    """Run the controller for so many hours.

    :param count: best-effort servers
    :param begin_h: hour of the day at which it begins; the server needs most at 12
    """
    host, found, options = _Host(conduct, count, seed), Day(), BalmOptions()
    host.now_s = begin_h * HOUR_S
    feed = _Prometheus(host, source.window_s) if source.window_s else _Port(host)
    lc = LcServer("lc", frozenset({0}), SLO_US, declared_mbps=conduct.declared_mbps)
    node = {0: 1.0}
    bes = tuple(
        BeServer(name, frozenset(node), node, node, movable=False, group=f"class{n % CLASSES}")
        for n, name in enumerate(host.names)
    )
    view = SloView((lc,), bes, (0, 1), LEVELS, {0: CAPACITY_MBPS, 1: CAPACITY_MBPS})
    state, hours_of = BalmState(), _Hours(host.names)
    own = CAPACITY_MBPS - conduct.declared_mbps
    while host.now_s < (begin_h + hours) * HOUR_S:
        pause = _pause_s(state, host.now_s, options, feed.pause_s)
        host.now_s += pause
        _count(found, host, own, pause)
        found.hour_level = min(found.hour_level, hours_of.least(host, pause))
        feed.look()
        seen = replace(
            view,
            lcs=(replace(lc, reading=feed.read(state.judge_from_s)),),
            bes=tuple(replace(be, traffic=_traffic(host.traffic_mbps(be.uuid))) for be in bes),
        )
        decision = balm.decide(seen, state, options, host.now_s)
        state = decision.state
        found.spent += [one for one in decision.events if isinstance(one, AccountSpent)]
        host.levels |= {uuid: target.level for uuid, target in decision.changes.items()}
    return found


def _pause_s(state: BalmState, now_s: float, options: BalmOptions, feed_s: float) -> float:
    """Time until something can be decided: shorter where actions are judged by each report."""
    until = state.judge_from_s + options.judge_s - now_s
    quiet = state.phase in (BalmPhase.WATCH, BalmPhase.TRIAL) and until < 0.0
    return max(feed_s, until, _QUIET_S if quiet and not state.taken.payers else 0.0)


def _traffic(mbps: float) -> Traffic:
    return Traffic(mbps, mbps)


def _count(found: Day, host: _Host, own_mbps: float, seconds: float) -> None:
    used = sum(map(host.traffic_mbps, host.names))
    demand = sum(map(host.demand_mbps, host.names))
    found.seconds += seconds
    found.violated_s += seconds * (host.ratio() > 1.0)
    found.level_s += seconds * sum(host.levels.values()) / len(host.levels)
    found.beyond_s += seconds * max(0.0, min(demand, own_mbps) - used) / demand


class _Hours:
    """Mean levels over a sliding hour, counted apart from the controller."""

    def __init__(self, names: Iterable[str]) -> None:
        self._last: deque[tuple[float, float, dict[str, int]]] = deque()
        self._sums = dict.fromkeys(names, 0.0)
        self._seconds = self._passed_s = 0.0

    def least(self, host: _Host, seconds: float) -> float:
        """Count levels that held for so long; return the least mean, 100 before an hour has passed."""
        self._last.append((host.now_s, seconds, dict(host.levels)))
        self._seconds += seconds
        self._passed_s += seconds
        for name, level in host.levels.items():
            self._sums[name] += seconds * level
        while self._last[0][0] <= host.now_s - HOUR_S:
            _, gone, levels = self._last.popleft()
            self._seconds -= gone
            for name, level in levels.items():
                self._sums[name] -= gone * level
        return min(self._sums.values()) / self._seconds if self._passed_s >= HOUR_S else 100.0
