# SPDX-License-Identifier: Apache-2.0
"""What best-effort servers pay for the objectives of others: how long they were throttled, and by how much.

A level of 40 per cent for ten seconds withholds six seconds of a server's memory bandwidth. That is the most that it
may have lost: a server that would not have used it has lost less.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from host_agent.model.levels import FULL
from host_agent.model.modes import Feature
from host_agent.model.round import Round
from host_agent.report.metrics import Sample
from placement_traits.names import Tier

_GAP_S: Final = 60.0  # a longer time between two rounds is not counted whole: the dead man's switch has acted meanwhile


@dataclass(frozen=True, slots=True)
class Cost:
    """What one server has paid since the agent's start.

    :param name: of the server
    :param seconds: time that it ran
    :param throttled_s: part of it with a level below all
    :param withheld_s: seconds of its whole bandwidth that were withheld
    """

    name: str
    seconds: float = 0.0
    throttled_s: float = 0.0
    withheld_s: float = 0.0

    def after(self, passed_s: float, level: int) -> "Cost":
        """Return the cost after some more time at a level, per cent."""
        return Cost(
            self.name,
            self.seconds + passed_s,
            self.throttled_s + (passed_s if level < FULL else 0.0),
            self.withheld_s + passed_s * (FULL - level) / FULL,
        )


class Costs:
    """A :class:`~host_agent.control.agent.Listener` that has metrics."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at: float | None = None
        self._levels: dict[str, int] = {}
        self._costs: dict[str, Cost] = {}
        self._taken = (0.0, 0.0)
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

    def withheld_permille(self) -> int | None:
        """Return the part of their bandwidth that was withheld from best-effort servers since the last call, per mille.

        None where none ran.
        """
        total, before, self._taken = self._total, self._taken, self._total
        seconds = total[0] - before[0]
        return round(1000 * (total[1] - before[1]) / seconds) if seconds > 0 else None

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
