# SPDX-License-Identifier: Apache-2.0
"""The seam for run-time controllers: each takes the safe, coarse decision and replaces what it knows better.

::

    observe ──► placement.decide ──► refiner 1 ──► refiner 2 ──► executor         every round
                    kept ─────────► refiner 1 ──► refiner 2 ──► executor         when a ``turn`` between rounds asks

A round lists domains, looks at all guests and takes the coarse decision; it comes every ``[agent]interval_s`` and
after libvirt events. Controllers that are faster get their ``turn`` between the rounds: they read their own sensors and
think. When one reports that its part has changed, servers that were touched last are looked at cheaply (threads and
sampled pages; libvirt is not asked), all refiners go over the *kept coarse* decision again, in order, and the executor
applies the result. So a refiner never sees its own output, and what it does not return again in the next ``refine``
is undone.

Controllers stay pure: a refiner is the thin part around one that holds its state, its sensors and its clock readings. A
refiner that wants to know what was done implements :class:`host_agent.control.agent.Listener`, too.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from host_agent.conf.configuration import Configuration
from host_agent.machine.libvirt import DomainSource
from host_agent.machine.privileged.api import Privileged
from host_agent.model.assignment import Decision, Observation
from host_agent.model.journal import ActionJournal
from host_agent.model.modes import Feature
from host_agent.observe.latency.feeds import LatencyFeed
from host_agent.report.metrics import Metrics

LOG = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


class Refiner(Protocol):
    """A run-time controller as the loop sees it. All calls come from the loop's thread, one at a time.

    While an operator has paused the agent none of them is called. A call that raises is counted, logged once per
    change of the error, and leaves this refiner out until the next round. Its last answer holds for this one, for
    each server of which the decision before it is the same, so that pages do not go home and back; then the coarse
    decision holds for its part. A refiner keeps its state valid over its own exceptions.
    """

    @property
    def name(self) -> str:
        """A word for log and metrics, such as ``balancing`` or ``balm``."""

    def refine(self, decision: Decision, observation: Observation) -> Decision:
        """Return the decision with its own part replaced; quick, and without side effects on the host.

        :param decision: of the simple rule, as far as earlier refiners have replaced it
        :param observation: what this decision was made for, or what was seen just now between two rounds
        """

    def turn(self, now_s: float) -> bool:
        """Read own sensors and think; must not block. True: my part has changed, refine and apply again now.

        Called at least as often as :meth:`pause_s` asks, and sometimes earlier: due times are the refiner's own.

        :param now_s: monotonic time, seconds
        """

    def pause_s(self, now_s: float) -> float:
        """Return the longest time until ``turn`` must be called again, seconds; ``math.inf``: none is needed.

        While it is finite and shorter than ``[memory]slice_s``, a round spends at most ``[memory]polled_slice_s`` on
        page moves, so that turns come in time.
        """


@dataclass(frozen=True, slots=True)
class RefinerHost:
    """What a refiner is made of.

    :param conf: loaded configuration
    :param source: libvirt
    :param privileged: the seam
    :param journal: gets every action
    :param metrics: count actions and state files that could not be written
    :param feeds: sources of latencies beside the ports, best first; empty where objectives are not watched
    :param throttles: bandwidth levels may be written: resource control is on, and this is no dry run
    :param lapsed: returns whether the dead-man switch takes all throttles off
    :param acts: returns whether what a feature decides is carried out now
    :param balancers: returns why memory must not be spread on this host, "" where nothing is against it; one for all,
        because it looks at all processes
    """

    conf: Configuration
    source: DomainSource
    privileged: Privileged
    journal: ActionJournal
    metrics: Metrics
    feeds: tuple[LatencyFeed, ...] = ()
    throttles: bool = True
    lapsed: Callable[[], bool] = lambda: False
    acts: Callable[[Feature], bool] = lambda _feature: True
    balancers: Callable[[], str] = lambda: ""


@dataclass(frozen=True, slots=True)
class _Answered:
    """What a refiner made of a decision, and in which round."""

    round: int
    before: Decision
    after: Decision


class Refiners:
    """All refiners, in order; one that fails is left out until the next round, and its last answer holds for one.

    :param refiners: the first sees the simple rule's decision, the last has the last word
    :param on_failure: called with the name of a refiner for each call that failed
    """

    def __init__(
        self,
        refiners: Sequence[Refiner] = (),
        on_failure: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._refiners = tuple(refiners)
        self._on_failure = on_failure
        self._left_out: set[str] = set()
        self._round = 0
        self._answers: dict[str, _Answered] = {}
        self._problems: dict[tuple[str, str], str] = {}

    def new_round(self) -> None:
        """Give refiners that have failed another chance."""
        self._left_out.clear()
        self._round += 1

    def refine(self, decision: Decision, observation: Observation) -> Decision:
        """Return the decision after all refiners."""
        for refiner in self._refiners:
            refine = partial(refiner.refine, decision, observation)
            refined = self._guarded(refiner, "refine", refine, None)
            if refined is None:
                decision = self._held(refiner.name, decision)
            else:
                self._answers[refiner.name] = _Answered(self._round, decision, refined)
                decision = refined
        return decision

    def _held(self, name: str, decision: Decision) -> Decision:
        """Return the decision with the last answer of a refiner that fails now, as far as it still applies."""
        last = self._answers.get(name)
        if last is None or self._round - last.round > 1:
            return decision
        return replace(
            decision,
            assignments=tuple(
                last.after.get(assignment.uuid) or assignment
                if last.before.get(assignment.uuid) == assignment
                else assignment
                for assignment in decision.assignments
            ),
        )

    def turn(self, now_s: float) -> bool:
        """Give every refiner its turn; tell whether any part has changed."""
        answers = [
            self._guarded(refiner, "turn", partial(refiner.turn, now_s), False)
            for refiner in self._refiners
        ]
        return any(answers)

    def pause_s(self, now_s: float) -> float:
        """Return the longest time until the next turn, seconds; ``math.inf`` when no refiner wants one."""
        pauses = [
            self._guarded(refiner, "pause", partial(refiner.pause_s, now_s), math.inf)
            for refiner in self._refiners
        ]
        return max(0.0, min(pauses, default=math.inf))

    def _guarded(
        self, refiner: Refiner, what: str, call: Callable[[], _Answer], instead: _Answer
    ) -> _Answer:
        if refiner.name in self._left_out:
            return instead
        key = (refiner.name, what)
        try:
            answer = call()
        except Exception as error:  # a controller's fault must not take the others' control away
            self._left_out.add(refiner.name)
            self._on_failure(refiner.name)
            problem = repr(error)
            if self._problems.get(key) != problem:
                LOG.exception(
                    "%s fails (%s); without it the coarse decision holds", refiner.name, what
                )
            self._problems[key] = problem
            return instead
        if self._problems.pop(key, None) is not None:
            LOG.info("%s works again (%s)", refiner.name, what)
        return answer
