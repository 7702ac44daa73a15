# SPDX-License-Identifier: Apache-2.0
"""What best-effort servers pay for the objectives of others: how long they were throttled, and by how much.

A level of 40 per cent for ten seconds withholds six seconds of a server's memory bandwidth. That is the most that it
may have lost: a server that would not have used it has lost less.
"""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from host_agent.model.levels import FULL
from host_agent.model.modes import Feature
from host_agent.model.round import Round
from host_agent.report import costs_store
from host_agent.report.costs_store import Cost
from host_agent.report.metrics import Sample
from placement_traits.best_effort import BestEffortWriter, ignore_loss
from placement_traits.names import Tier

_KEEP_S: Final = 60.0
_GAP_S: Final = 60.0  # a longer time between two rounds is not counted whole: the dead-man switch has acted meanwhile


class Costs:
    """A :class:`~host_agent.control.agent.Listener` that has metrics.

    :param file: state file for the console; None keeps nothing
    :param lost: called with "costs" for each write that failed
    """

    def __init__(
        self,
        file: Path | None = None,
        lost: Callable[[str], None] = ignore_loss,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = costs_store.store(file) if file else None
        self._writer = BestEffortWriter("costs", lost)
        self._kept_s = -math.inf
        self._clock = clock
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
        seconds, withheld = self._total
        withheld += sum(costs[u].withheld_s - self._costs[u].withheld_s for u in costs)
        self._total = seconds + passed * len(costs), withheld
        if not done.paused:
            self._levels = _levels(done)
        guests = {guest.uuid: guest.workload.title for guest in done.observation.guests}
        known = {**self._costs, **costs}
        self._levels = {u: level for u, level in self._levels.items() if u in guests}
        self._costs = {
            u: known.get(u) or Cost(guests[u]) for u in guests if u in self._levels or u in known
        }
        self._keep(now)

    def _keep(self, now: float) -> None:
        store, costs = self._store, self._costs
        if store is not None and now - self._kept_s >= _KEEP_S:
            self._kept_s = now
            self._writer.attempt(lambda: store.save(costs))

    @property
    def total(self) -> tuple[float, float]:
        """Seconds that best-effort servers ran, and seconds of their bandwidth that were withheld; both only grow."""
        return self._total

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics."""
        for uuid, cost in sorted(self._costs.items()):
            who = (uuid, cost.name)
            yield "numa_ext_server_throttled_seconds", who, cost.throttled_s
            yield "numa_ext_server_withheld_seconds", who, cost.withheld_s


def _levels(done: Round) -> dict[str, int]:
    """Return the lowest level of each best-effort server that runs, per cent; none where none is written."""
    if not done.modes.act(Feature.RDT):
        return {}
    return {
        assignment.uuid: min(request.levels.values(), default=FULL)
        for assignment in done.decision.assignments
        if (request := assignment.partition) and request.tier is Tier.BE and request.running
    }
