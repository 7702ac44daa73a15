# SPDX-License-Identifier: Apache-2.0
"""Days of a host with latency-critical servers that are honest, declare too little, or lie in several ways (modelled).

Arithmetic, so that a day takes seconds: best-effort servers in eight classes use their node's bandwidth as their levels
let them, each in phases of its own; an honest latency-critical server needs more of it by day than by night, and its
latency rises ever faster as the rest is used. The bandwidth that the host publishes may be wrong, so that what a server
has paid for is not what it needs. Latencies are known at once (a report through a port) or as a Prometheus server knows
them: the slowest in the range that the query looks back, asked at an interval. Constants are assumed.

*What an account cannot know.* It is charged in seconds of the traffic that best-effort servers would use, D, as they
used it when they were last not throttled. Of D they lose s(D) = (min(D, own) - used) / D beyond what is declared. Where
D changes unseen, what they lose is up to max s / min s of what is charged: :func:`unseen`, 1.06 to 1.18 with the phases
here.
"""

import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
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
"""Of all best-effort servers of a node."""
PHASE: Final = 0.85
"""Part of its demand that a best-effort server has in every other phase."""
BURSTS: Final = 0.02
"""The same for servers that are idle in between."""
SLO_US: Final = 1000.0
LEVELS: Final = tuple(range(10, 101, 10))
CLASSES: Final = 8
HOUR_S: Final = 3600.0
BUDGET_S: Final = BalmOptions().budget_s_per_hour
FLOOR: Final = BalmOptions().be_floor_percent
HONEST_VIOLATED: Final = 0.10
"""Most of the time in which an honest server that declares its need may be violated."""
_SAMPLES: Final = 1000
_QUIET_S: Final = 5.0
_PHASE_S: Final = 2400.0
_TRICK_S: Final = 300.0


class Conduct(StrEnum):
    """What a latency-critical server declares, reports and does; all liars want the strongest throttles for all."""

    HONEST = "honest"
    UNDER_DECLARED = "under-declared"
    LIAR = "liar"
    PAUSING = "liar that pauses"
    AT_RISK = "liar at risk"
    EVEN = "liar by turns"
    ODD = "liar by other turns"

    @property
    def declared_mbps(self) -> float:
        """Bandwidth that its flavor declares, MB/s."""
        return PEAK_MBPS if self is Conduct.HONEST else PEAK_MBPS / 4.0

    @property
    def lies(self) -> bool:
        """What it reports is not its latency."""
        return self not in (Conduct.HONEST, Conduct.UNDER_DECLARED)

    def away(self, now_s: float) -> bool:
        """Tell whether it has paused itself: a minute in five."""
        return self is Conduct.PAUSING and now_s % _TRICK_S < 60.0

    def lie(self, strongest: float, now_s: float) -> float:
        """Return what a liar reports.

        :param strongest: level of the best-effort server that is throttled least
        """
        turn = int(now_s / _TRICK_S) % 2
        mine = {Conduct.EVEN: turn == 0, Conduct.ODD: turn == 1}.get(self, True)
        if strongest <= LEVELS[0] or not mine:
            return 0.85
        return 0.97 if self is Conduct.AT_RISK else 1.5


class Source(StrEnum):
    """Where latencies are read."""

    CHANNEL = "channel"
    PROMETHEUS_15 = "prometheus 15 s"
    PROMETHEUS_60 = "prometheus 60 s"

    @property
    def window_s(self) -> float:
        """Range that a query looks back, seconds; 0 for reports through a port."""
        return {Source.CHANNEL: 0.0, Source.PROMETHEUS_15: 15.0, Source.PROMETHEUS_60: 60.0}[self]


@dataclass(frozen=True, slots=True)
class Case:
    """A host.

    :param lcs: latency-critical servers: what they do, and the node of each
    :param source: of their latencies
    :param count: best-effort servers, evenly over the nodes of these
    :param published: bandwidth that the host publishes over what it has
    :param phase: part of its demand that a best-effort server has in every other phase
    """

    lcs: tuple[tuple[Conduct, int], ...]
    source: Source
    count: int
    published: float = 1.0
    phase: float = PHASE

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes in use."""
        return tuple(sorted({node for _, node in self.lcs}))

    @property
    def title(self) -> str:
        """Who is there."""
        return " + ".join(f"{conduct} @{node}" for conduct, node in self.lcs)

    def needs_nothing_more(self, conduct: Conduct) -> bool:
        """Tell whether a server has paid for all that it needs: it is honest, and so is what the host publishes."""
        return conduct is Conduct.HONEST and self.published <= 1.0

    def own_mbps(self, node: int) -> float:
        """Bandwidth of a node that is best-effort servers' own, MB/s."""
        declared = sum(conduct.declared_mbps for conduct, home in self.lcs if home == node)
        return max(0.0, self.published * CAPACITY_MBPS - declared)


@dataclass(slots=True)
class Day:
    """What came of it.

    :param case: of which host
    :param seconds: simulated
    :param violated_s: honest and under-declared latency-critical server -> its latency was above its objective
    :param level_s: mean level of best-effort servers, per cent, times seconds
    :param hour_level: least mean level of a best-effort server over a sliding hour, per cent
    :param beyond_s: node -> seconds of all its best-effort traffic that were taken beyond what is declared there
    :param spent: events that an account is used up
    """

    case: Case
    seconds: float = 0.0
    violated_s: Counter[str] = field(default_factory=Counter)
    level_s: float = 0.0
    hour_level: float = 100.0
    beyond_s: Counter[int] = field(default_factory=Counter)
    spent: list[AccountSpent] = field(default_factory=list)

    @property
    def violated_share(self) -> float:
        """Part of the time in which the objective of an honest server was violated: of the one that fared worst."""
        return max(self.violated_s.values(), default=0.0) / self.seconds

    @property
    def level_mean(self) -> float:
        """Mean level of best-effort servers, per cent."""
        return self.level_s / self.seconds

    @property
    def beyond_share(self) -> float:
        """Part of best-effort traffic that was taken beyond what is declared: of the node that fared worst."""
        return max(self.beyond_s.values(), default=0.0) / self.seconds

    @property
    def bound_share(self) -> float:
        """Most of :attr:`beyond_share` by arithmetic: accounts, one period more of each, and what they cannot know.

        The account of a server that has paid for what it needs is no excuse for what others take.
        """
        payers = sum(not self.case.needs_nothing_more(conduct) for conduct, _ in self.case.lcs)
        accounts = max(1, payers) * BUDGET_S * (self.seconds / HOUR_S + 1.0)
        return unseen(self.case) * accounts / self.seconds

    def missed(self) -> Iterator[str]:
        """Yield each bound that was missed."""
        if self.hour_level < FLOOR:
            yield f"mean level of an hour {self.hour_level:.1f} < {FLOOR:g}"
        if self.beyond_share > self.bound_share:
            yield f"beyond entitlement {self.beyond_share:.4f} > {self.bound_share:.4f}"
        paid = {event.lc for event in self.spent}
        for number, (conduct, _) in enumerate(self.case.lcs):
            if self.case.needs_nothing_more(conduct):
                share = self.violated_s[f"lc{number}"] / self.seconds
                if share > HONEST_VIOLATED:
                    yield f"an honest server is violated {share:.3f} > {HONEST_VIOLATED:g}"
                if f"lc{number}" in paid:
                    yield "an honest server has paid its account away"


def alone(source: Source, count: int) -> Iterator[Case]:
    """Yield hosts with one server that is honest, declares too little, or lies."""
    for conduct in (Conduct.HONEST, Conduct.UNDER_DECLARED, Conduct.LIAR):
        yield Case(((conduct, 0),), source, count)


def trying(source: Source, count: int) -> Iterator[Case]:
    """Yield hosts that publish what they have not, with two servers, and with liars that try more than one thing."""
    for published in (0.85, 1.15):
        yield Case(((Conduct.HONEST, 0),), source, count, published)
    yield Case(((Conduct.HONEST, 0),), source, count, 1.05, BURSTS)
    for conduct in (Conduct.PAUSING, Conduct.AT_RISK):
        yield Case(((conduct, 0),), source, count)
    yield Case(((Conduct.EVEN, 0), (Conduct.ODD, 0)), source, count)
    for node, conduct in itertools.product((0, 1), (Conduct.LIAR, Conduct.PAUSING)):
        yield Case(((Conduct.HONEST, 0), (conduct, node)), source, count)


def unseen(case: Case) -> float:
    """Return how much more than is charged best-effort servers may lose while their demand changes unseen."""
    most = 1.0
    for node in case.nodes:
        own, used = case.own_mbps(node), DEMAND_MBPS * LEVELS[0] / 100.0
        demands = [case.phase * DEMAND_MBPS, DEMAND_MBPS]
        if demands[0] < own < demands[1]:
            demands.append(own)
        lost = [(min(demand, own) - used) / demand for demand in demands]
        most = max(most, max(lost) / min(lost) if min(lost) > 0.0 else math.inf)
    return most


class _Host:
    """The host at a moment."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self._chance = case, random.Random(seed)
        nodes = case.nodes
        self.homes = {f"be{n:02d}": nodes[n % len(nodes)] for n in range(case.count)}
        self._full_mbps = DEMAND_MBPS * len(nodes) / case.count
        self._began = {name: self._chance.uniform(0.0, HOUR_S) for name in self.homes}
        self.levels = dict.fromkeys(self.homes, 100)
        self.now_s = 0.0

    def demand_mbps(self, name: str) -> float:
        """Traffic of a best-effort server that is not throttled: less in every other phase."""
        odd = int((self.now_s + self._began[name]) / _PHASE_S) % 2
        return self._full_mbps * (self.case.phase if odd else 1.0)

    def traffic_mbps(self, name: str) -> float:
        """Its traffic now."""
        return min(self.demand_mbps(name), self._full_mbps * self.levels[name] / 100.0)

    def ratio(self, node: int) -> float:
        """True latency over the objective: 0.9 where what honest servers need is left, ever higher above."""
        load = 0.65 - 0.35 * math.cos(2.0 * math.pi * self.now_s / (24.0 * HOUR_S))
        here = sum(1 for conduct, home in self.case.lcs if home == node and not conduct.lies)
        left = CAPACITY_MBPS - here * load * PEAK_MBPS
        used = sum(self.traffic_mbps(name) for name, home in self.homes.items() if home == node)
        return 0.45 / max(0.05, 1.0 - 0.5 * used / left)

    def reported(self, number: int) -> float:
        """What a latency-critical server reports."""
        conduct, node = self.case.lcs[number]
        if conduct.lies:
            return conduct.lie(max(self.levels.values()), self.now_s)
        return self.ratio(node) * math.exp(self._chance.gauss(0.0, 0.01))


class _Port:
    """Reports through the port: the latency now."""

    pause_s = 0.25

    def __init__(self, host: _Host, number: int) -> None:
        self._host, self._number = host, number

    def look(self) -> None:
        """A report comes whenever it is read."""

    def read(self, since_s: float) -> LatencyReading:
        """Return the latency of requests received after a moment."""
        if self._host.now_s <= since_s:
            return LatencyReading(None, 0, 0, since_s)
        ratio = self._host.reported(self._number)
        return LatencyReading(ratio * SLO_US, _SAMPLES, _SAMPLES if ratio > 1.1 else 0, since_s)


class _Prometheus:
    """Answers of a Prometheus server: the slowest of the range, asked at an interval."""

    def __init__(self, host: _Host, number: int, window_s: float) -> None:
        self.pause_s = 1.0
        self._interval_s = PrometheusOptions().interval_s
        self._at, self._worst = 0.0, 0.0
        self._host, self._number, self._window_s = host, number, window_s
        self._seen: deque[tuple[float, float]] = deque()

    def look(self) -> None:
        """Take note of the latency now."""
        now = self._host.now_s
        self._seen.append((now, self._host.reported(self._number)))
        while self._seen[0][0] < now - self._window_s:
            self._seen.popleft()

        if now - self._at >= self._interval_s:
            self._at, self._worst = now, max(ratio for _, ratio in self._seen)

    def read(self, since_s: float) -> LatencyReading:
        """Return the last answer; unknown while its range begins before the moment that is asked for."""
        if self._at - self._window_s < since_s:
            return LatencyReading(None, 0, 0, since_s)
        return LatencyReading(self._worst * SLO_US, _SAMPLES, 0, since_s)


def day(case: Case, *, begin_h: float = 0.0, hours: float = 24.0, seed: int = 1) -> Day:
    """Run the controller for so many hours.

    :param begin_h: hour of the day at which it begins; honest servers need most at 12
    """
    host, found, options = _Host(case, seed), Day(case), BalmOptions()
    host.now_s = begin_h * HOUR_S
    window_s = case.source.window_s
    feeds = [
        _Prometheus(host, number, window_s) if window_s else _Port(host, number)
        for number in range(len(case.lcs))
    ]
    lcs = [
        LcServer(f"lc{n}", frozenset({node}), SLO_US, declared_mbps=conduct.declared_mbps)
        for n, (conduct, node) in enumerate(case.lcs)
    ]
    bes = tuple(
        BeServer(
            name,
            frozenset({node}),
            {node: 1.0},
            {node: 1.0},
            movable=False,
            group=f"class{n % CLASSES}",
        )
        for n, (name, node) in enumerate(host.homes.items())
    )
    capacity = dict.fromkeys((0, 1), case.published * CAPACITY_MBPS)
    view = SloView((), bes, (0, 1), LEVELS, capacity)
    state, hours_of = BalmState(), _Hours(host.homes)
    while host.now_s < (begin_h + hours) * HOUR_S:
        pause = _pause_s(state, host.now_s, options, feeds[0].pause_s)
        host.now_s += pause
        _count(found, host, pause)
        found.hour_level = min(found.hour_level, hours_of.least(host, pause))
        for feed in feeds:
            feed.look()
        seen = replace(
            view,
            lcs=tuple(
                replace(lc, reading=feed.read(state.judge_from_s))
                for lc, feed, (conduct, _) in zip(lcs, feeds, case.lcs, strict=True)
                if not conduct.away(host.now_s)
            ),
            bes=tuple(replace(be, traffic=_traffic(host.traffic_mbps(be.uuid))) for be in bes),
        )
        if not seen.lcs:
            # No latency is known: the levels of the simple rule hold, none here.
            state = state.resting({})
            host.levels = dict.fromkeys(host.homes, 100)
            continue
        decision = balm.decide(seen, state, options, host.now_s)
        state = decision.state
        found.spent += [one for one in decision.events if isinstance(one, AccountSpent)]
        host.levels |= {uuid: target.level for uuid, target in decision.changes.items()}
    return found


def _pause_s(state: BalmState, now_s: float, options: BalmOptions, feed_s: float) -> float:
    """Time until something can be decided: shorter where actions are judged by each report."""
    until = state.judge_from_s + options.judge_s - now_s
    quiet = state.phase in (BalmPhase.WATCH, BalmPhase.TRIAL) and until < 0.0
    return max(feed_s, until, _QUIET_S if quiet and not state.taken.causes else 0.0)


def _traffic(mbps: float) -> Traffic:
    return Traffic(mbps, mbps)


def _count(found: Day, host: _Host, seconds: float) -> None:
    case = host.case
    found.seconds += seconds
    found.level_s += seconds * sum(host.levels.values()) / len(host.levels)
    for number, (conduct, node) in enumerate(case.lcs):
        if not conduct.lies:
            found.violated_s[f"lc{number}"] += seconds * (host.ratio(node) > 1.0)
    for node in case.nodes:
        names = [name for name, home in host.homes.items() if home == node]
        used = sum(map(host.traffic_mbps, names))
        demand = sum(map(host.demand_mbps, names))
        lost = max(0.0, min(demand, case.own_mbps(node)) - used)
        found.beyond_s[node] += seconds * lost / demand


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
