# SPDX-License-Identifier: Apache-2.0
"""The first start in enforce: servers that run are taken over one after the other, so that a mistake harms one first.

While a server waits it is left out of decisions, as one that the agent does not manage: nothing of it is written. What
was taken over is seen on the host itself, by the groups that its threads are in and by their pins, so that an agent
that is started again goes on where the one before ended, and an upgrade changes nothing.
"""

import time
from collections.abc import Callable, Collection
from typing import Final

from host_agent.conf.options import Options
from host_agent.decide.takeover import order
from host_agent.model.assignment import Decision, Guest, Observation
from host_agent.model.journal import ActionJournal, Entry, Result
from host_agent.model.modes import Modes
from host_agent.model.round import Round

_ACTION: Final = "takeover"


class Takeover:
    """The servers that wait.

    :param options: the operator's
    :param journal: where each takeover is noted
    :param held: returns the threads in groups of ours; asked once, when enforcing begins
    """

    def __init__(
        self,
        options: Options,
        journal: ActionJournal,
        held: Callable[[], Collection[int]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._journal, self._held, self._clock = options, journal, held, clock
        self._waiting: tuple[str, ...] | None = None
        self._due_s = 0.0
        self._last = ""
        self._moving = False

    @property
    def waiting(self) -> tuple[str, ...]:
        """Servers that are not taken over yet, the next one first."""
        return self._waiting or ()

    def left_out(
        self, decision: Decision, observation: Observation, modes: Modes, *, plan_only: bool
    ) -> frozenset[str]:
        """Return the servers that wait.

        :param modes: in effect; where no feature acts nothing waits, and enforcing later begins from the first server
        :param plan_only: report once in which order servers would be taken over, and leave none out
        """
        if not modes.any_acts:
            self._waiting = None
            return frozenset()
        if self._waiting is None:
            self._begin(decision, observation, modes, plan_only=plan_only)
        if plan_only:
            return frozenset()
        waiting = tuple(uuid for uuid in self.waiting if observation.get(uuid) is not None)
        now = self._clock()
        if waiting and now >= self._due_s and not self._moving:
            self._last, waiting = waiting[0], waiting[1:]
            self._due_s = now + self._options.agent.takeover_interval_s
            self._note(observation.get(self._last), Result.DONE, waiting=len(waiting))
        self._waiting = waiting
        return frozenset(waiting)

    def on_round(self, done: Round) -> None:
        """Take note whether pages of the server that was taken over last are still to be moved."""
        outcome = done.outcomes.get(self._last)
        self._moving = outcome is not None and bool(outcome.remaining_kb) and not outcome.problems

    def _begin(
        self, decision: Decision, observation: Observation, modes: Modes, *, plan_only: bool
    ) -> None:
        interval_s = self._options.agent.takeover_interval_s
        # Only when it is known: whatever fails before, no server is taken over in the next round either.
        self._waiting = (
            order(decision, observation, self._held(), self._options, modes) if interval_s else ()
        )
        if plan_only:
            for position, uuid in enumerate(self._waiting):
                after_s = position * interval_s
                self._note(observation.get(uuid), Result.WOULD, after_s=after_s)

    def _note(self, guest: Guest | None, result: Result, **what: float) -> None:
        if guest is not None:
            self._journal.write(Entry(_ACTION, result, guest.uuid, guest.workload.title, what))
