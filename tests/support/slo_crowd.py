# SPDX-License-Identifier: Apache-2.0
"""Two latency-critical and three best-effort servers on a host with four nodes: loads with room, and without a cloud.

The integration tests put this crowd on an emulated host; :class:`Simulated` runs the same controller against the same
law (:mod:`emulation.slo_guests`) in process, with what is slow there: a round of the agent takes seconds,
pages move meanwhile, and a report tells of a state that is up to a second old.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from emulation.slo_guests import REQUESTS, BeState, p99_us
from host_agent.conf.slo import BalmOptions
from host_agent.decide.slo import balm
from host_agent.decide.slo.shapes import BalmPhase, BalmState, BeServer, BeTarget, Event, SloView
from host_agent.model.latency import LcServer
from host_agent.model.traffic import Traffic
from host_agent.observe.latency.window import LatencyWindow

SLO_US: Final = 1000
GAIN: Final = 2.0
QUIET: Final = 0.25
"""Ample wherever the pages are: 0.75 of the objective with all of them on the other two nodes and one's own."""
BUSY: Final = 0.6
"""Violated with levels of 50 % and pages everywhere (1.05), ample with the lowest one (0.69) or without pages (0.6)."""
UNSATISFIABLE: Final = 1.5
"""Violated whatever is done."""
REPORT_S: Final = 0.25

NODES: Final = (0, 1, 2, 3)
LEVELS: Final = tuple(range(10, 101, 10))
POLL_S: Final = 0.02
_EVERYWHERE: Final = dict.fromkeys(NODES, 0.25)


class Simulated:
    """The crowd without a cloud.

    :param seed: decides where servers are, how slow everything is, and what the counters say
    :param start: level of best-effort servers at the start, per cent
    """

    def __init__(self, seed: int, start: int = 100) -> None:
        chance = self._chance = random.Random(seed)
        self.lcs = {f"lc{n}": node for n, node in enumerate(chance.choices(NODES, k=2))}
        self.loads = dict.fromkeys(self.lcs, QUIET)
        self._homes = {f"be{n}": chance.choice(NODES) for n in range(3)}
        self.shares: dict[str, Mapping[int, float]] = dict.fromkeys(self._homes, _EVERYWHERE)
        self.seen_shares = dict(self.shares)
        self.levels = dict.fromkeys(self._homes, start)
        self._mbps = {be: chance.choice((None, chance.uniform(10, 20_000))) for be in self._homes}
        self._round_s = chance.uniform(0.3, 4.0)
        self._pages_per_s = chance.uniform(0.02, 0.3)
        self._old_s = chance.uniform(0.0, 1.0)
        self._report_s = REPORT_S + self._old_s
        self._pending: deque[tuple[float, dict[str, float]]] = deque()
        self._next_look_s = chance.uniform(0.0, self._report_s)
        self._next_round_s = chance.uniform(0.0, self._round_s)
        self._windows = {lc: LatencyWindow(SLO_US) for lc in self.lcs}
        self.now_s = 0.0
        self.state = BalmState(targets={be: BeTarget(start) for be in self._homes})
        self.events: list[Event] = []

    def true_ratio(self, lc: str) -> float:
        """Latency over objective by the law, now."""
        bes = [BeState(self.shares[be], self.levels[be]) for be in self._homes]
        return p99_us(SLO_US, self.loads[lc], GAIN, self.lcs[lc], bes) / SLO_US

    def near(self, lc: str) -> float:
        """Share of the best-effort servers' pages on the node of a latency-critical one, summed."""
        return sum(shares.get(self.lcs[lc], 0.0) for shares in self.shares.values())

    def until(self, what: Callable[[], bool], seconds: float) -> None:
        """Poll until something is so.

        :raises AssertionError: it was not so within that time
        """
        end = self.now_s + seconds
        while not what():
            assert self.now_s < end, f"not within {seconds} s: {self.levels} {self.state}"
            self._poll()

    def rests(self) -> bool:
        """Nothing is searched and all objectives are met."""
        met = all(self.true_ratio(lc) <= 0.95 for lc in self.lcs)
        return met and self.state.phase is BalmPhase.WATCH

    def _poll(self) -> None:
        self.now_s += POLL_S
        self._report()
        decision = balm.decide(self._observe(), self.state, BalmOptions(), self.now_s)
        self.state = decision.state
        self.events.extend(decision.events)
        self.levels |= {be: target.level for be, target in decision.changes.items()}
        self._move_pages()

    def _report(self) -> None:
        if self.now_s >= self._next_look_s:
            seen = {lc: self.true_ratio(lc) * SLO_US for lc in self.lcs}
            self._pending.append((self.now_s + self._old_s, seen))
            self._next_look_s = self.now_s + self._report_s
        while self._pending and self._pending[0][0] <= self.now_s:
            for lc, p99 in self._pending.popleft()[1].items():
                slow = REQUESTS // 20
                reported = [(p99 / 2, REQUESTS - slow), (p99, slow)]
                self._windows[lc].add(reported, self.now_s)

    def _observe(self) -> SloView:
        since = self.state.judge_from_s
        lcs = (
            LcServer(lc, frozenset({node}), SLO_US, self._windows[lc].read(self.now_s, since))
            for lc, node in self.lcs.items()
        )
        return SloView(tuple(lcs), tuple(map(self._seen, self._homes)), NODES, LEVELS)

    def _seen(self, be: str) -> BeServer:
        home, shares, mbps = self._homes[be], self.seen_shares[be], self._mbps[be]
        total = None if mbps is None else mbps * self.levels[be] / 100
        traffic = None if total is None else Traffic(total * shares.get(home, 0.0), total)
        return BeServer(be, frozenset({home}), shares, _EVERYWHERE, self.levels[be], traffic)

    def _move_pages(self) -> None:
        budget = self._pages_per_s * POLL_S
        for be, target in self.state.targets.items():
            goal = _EVERYWHERE if target.shares is None else target.shares
            now = self.shares[be]
            gap = {n: goal.get(n, 0.0) - now.get(n, 0.0) for n in NODES}
            left = sum(value for value in gap.values() if value > 0)
            if left > 1e-9:
                part = min(1.0, budget / left)
                self.shares[be] = {n: now.get(n, 0.0) + part * gap[n] for n in NODES}
        if self.now_s >= self._next_round_s:
            self.seen_shares = dict(self.shares)
            self._next_round_s = self.now_s + self._round_s
