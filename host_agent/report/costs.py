# SPDX-License-Identifier: Apache-2.0
"""What best-effort servers pay for the objectives of others: how long they were throttled, by how much, and for whom.

A level of 40 per cent for ten seconds withholds six seconds of a server's memory bandwidth. That is the most that it
may have lost: a server that would not have used it has lost less. The latency-critical servers for whose sake BALM has
throttled it answer for equal parts; where it was not BALM, those that run in L3 domains where it is throttled.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from host_agent.model.levels import FULL
from host_agent.model.modes import Feature
from host_agent.model.round import Round
from host_agent.report import costs_store
from host_agent.report.beat import Paid
from host_agent.report.costs_store import Cost
from host_agent.report.metrics import Sample
from placement_traits.best_effort import BestEffortWriter, ignore_loss
from placement_traits.names import Tier

Causes = Mapping[str, Collection[str]]
"""Best-effort server -> latency-critical ones for whose sake it is throttled."""

_KEEP_S: Final = 60.0
_GAP_S: Final = 60.0  # a longer time between two rounds is not counted whole: the dead-man switch has acted meanwhile


class Costs:
    """A :class:`~host_agent.control.agent.Listener` that has metrics.

    :param file: state file for the console; None keeps nothing
    :param lost: called with "costs" for each write that failed
    :param causes: returns for whose sake best-effort servers are throttled, as far as that was decided
    """

    def __init__(
        self,
        file: Path | None = None,
        lost: Callable[[str], None] = ignore_loss,
        clock: Callable[[], float] = time.monotonic,
        causes: Callable[[], Causes] = dict,
    ) -> None:
        self._store = costs_store.store(file) if file else None
        self._writer = BestEffortWriter("costs", lost)
        self._kept_s = -math.inf
        self._clock = clock
        self._causes = causes
        self._caused_by: Causes = {}
        self._for_server_s: dict[str, float] = {}
        self._titles: Mapping[str, str] = {}
        self._at: float | None = None
        self._levels: dict[str, int] = {}
        self._costs: dict[str, Cost] = {}
        self._total = (0.0, 0.0)

    def on_round(self, done: Round) -> None:
        """Charge the time since the last round at its levels."""
        now = self._clock()
        passed = 0.0 if self._at is None else min(now - self._at, _GAP_S)
        self._at = now
        costs = {u: self._costs[u].after(passed, level) for u, level in self._levels.items()}
        seconds, total = self._total
        withheld = {u: costs[u].withheld_s - self._costs[u].withheld_s for u in costs}
        self._total = seconds + passed * len(costs), total + sum(withheld.values())
        self._charge(withheld)
        guests = {guest.uuid: guest.workload.title for guest in done.observation.guests}
        if not done.paused:
            self._levels = _levels(done)
            self._caused_by = _caused_by(done, self._causes())
        self._titles = guests
        critical = dict.fromkeys(_critical(done), 0.0)
        charged = {**critical, **self._for_server_s}
        self._for_server_s = {u: s for u, s in charged.items() if u in guests}
        known = {**self._costs, **costs}
        self._levels = {u: level for u, level in self._levels.items() if u in guests}
        self._costs = {
            u: known.get(u) or Cost(guests[u]) for u in guests if u in self._levels or u in known
        }
        self._keep(now)

    def _charge(self, withheld: Mapping[str, float]) -> None:
        """Share out what was withheld from each best-effort server."""
        for uuid, seconds in withheld.items():
            for lc in (lcs := self._caused_by.get(uuid, frozenset())):
                self._for_server_s[lc] = self._for_server_s.get(lc, 0.0) + seconds / len(lcs)

    def _keep(self, now: float) -> None:
        store, costs = self._store, self._costs
        if store is not None and now - self._kept_s >= _KEEP_S:
            self._kept_s = now
            self._writer.attempt(lambda: store.save(costs))

    @property
    def paid(self) -> Paid:
        """What best-effort servers have paid since the agent's start."""
        charged = {u: s for u, s in self._for_server_s.copy().items() if s}
        return Paid(*self._total, charged)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics."""
        for uuid, cost in sorted(self._costs.items()):
            who = (uuid, cost.name)
            yield "numa_ext_server_throttled_seconds", who, cost.throttled_s
            yield "numa_ext_server_withheld_seconds", who, cost.withheld_s
        titles = self._titles
        for uuid, seconds in sorted(self._for_server_s.copy().items()):
            yield "numa_ext_server_withholds_seconds", (uuid, titles.get(uuid, "")), seconds


def _levels(done: Round) -> dict[str, int]:
    """Return the lowest level of each best-effort server that runs, per cent; none where none is written."""
    if not done.modes.act(Feature.RDT):
        return {}
    return {
        assignment.uuid: min(request.levels.values(), default=FULL)
        for assignment in done.decision.assignments
        if (request := assignment.partition) and request.tier is Tier.BE and request.running
    }


def _critical(done: Round) -> dict[str, frozenset[int]]:
    """Return the L3 domains of each latency-critical server."""
    requests = [one.partition for one in done.decision.assignments if one.partition]
    return {r.uuid: frozenset(r.domains) for r in requests if r.tier is Tier.LC}


def _caused_by(done: Round, decided: Causes) -> Causes:
    """Return for whose sake each best-effort server that is throttled is so."""
    requests = [one.partition for one in done.decision.assignments if one.partition]
    critical = _critical(done)
    found = {}
    for request in requests:
        throttled = {domain for domain, level in request.levels.items() if level < FULL}
        if request.tier is Tier.BE and throttled:
            mine = critical.keys() & frozenset(decided.get(request.uuid, ()))
            beside = {lc for lc, domains in critical.items() if domains & throttled}
            found[request.uuid] = frozenset(mine or beside)
    return found
