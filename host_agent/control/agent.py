# SPDX-License-Identifier: Apache-2.0
"""observe -> decide -> refine -> apply -> report, again and again; controllers get turns between the rounds."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from host_agent.apply import own_threads
from host_agent.apply.executor import Executor
from host_agent.conf.options import Options
from host_agent.control import home_nodes_store
from host_agent.control.pipeline import Refiners
from host_agent.control.rollout import Rollout
from host_agent.decide.cores.placement import CoarseDecision, place
from host_agent.decide.cores.standing import Standing, standing
from host_agent.machine.libvirt import AgentEndsError, DomainSource
from host_agent.model.assignment import Decision, Observation
from host_agent.model.round import Round
from host_agent.observe.snapshot import Observer
from host_agent.util.acting import acting
from placement_traits.best_effort import BestEffortWriter, ignore_loss
from placement_traits.errors import ServiceUnavailableError

LOG = logging.getLogger(__name__)


@runtime_checkable
class Listener(Protocol):
    """What is called after each round: metrics, Placement, the dead-man switch."""

    def on_round(self, done: Round) -> None:
        """Take note; must neither block nor raise."""


@dataclass(frozen=True, slots=True)
class Stages:
    """What a round goes through, in order.

    :param source: libvirt
    :param observer: the sensors
    :param executor: the writer
    :param refiners: run-time controllers, between the coarse decision and the writer
    """

    source: DomainSource
    observer: Observer
    executor: Executor
    refiners: Refiners = field(default_factory=Refiners)


@dataclass(frozen=True, slots=True)
class AgentFiles:
    """The loop's own files.

    :param home_nodes: state file; None keeps nothing (dry run)
    :param paused: the agent is paused while this file exists
    :param lost: called with "state" for each state file that could not be written
    :param acting: locked while a round acts; None: no command waits for that (dry run)
    """

    home_nodes: Path | None
    paused: Path
    lost: Callable[[str], None] = ignore_loss
    acting: Path | None = None


def _ignore(_listener: str) -> None:
    """Count nothing."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who is called about rounds.

    :param done: after each round; one that fails neither undoes the round nor keeps it from the others
    :param failed: for each round that failed as a whole
    :param listener_failed: for each failure of a listener, with its name
    :param without_libvirt: for each round that could not begin, because libvirt has not answered yet
    """

    done: tuple[Listener, ...] = ()
    failed: tuple[Callable[[], None], ...] = ()
    listener_failed: Callable[[str], None] = _ignore
    without_libvirt: Callable[[], None] = lambda: None


_NO_LISTENERS: Final = Listeners()


class Agent:
    """The loop.

    :param stages: of a round
    :param options: the operator's
    :param files: its own
    :param listeners: called about rounds
    :param rollout: the modes; None: as the options say
    :param write: false: not even the agent's own threads are moved
    """

    def __init__(
        self,
        stages: Stages,
        options: Options,
        files: AgentFiles,
        listeners: Listeners = _NO_LISTENERS,
        *,
        rollout: Rollout | None = None,
        write: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._observer = stages.source, stages.observer
        self._executor, self._refiners = stages.executor, stages.refiners
        self._options = options
        self._store = home_nodes_store.store(files.home_nodes) if files.home_nodes else None
        self._paused_mark, self._lock = files.paused, files.acting
        self._listeners = listeners
        self._rollout = rollout or Rollout(options)
        self._modes = self._rollout.modes
        self._write = write
        self._own_cpus = frozenset(os.sched_getaffinity(0))
        self._clock = clock
        self._home_nodes: home_nodes_store.HomeNodes = (
            self._store.load() if self._store else None
        ) or {}
        self._kept = self._home_nodes
        self._writer = BestEffortWriter("state", files.lost)
        self._libvirt_lost = False
        self._standing: Standing | None = None
        self._placed: CoarseDecision | None = None
        self._coarse: Decision | None = None
        self._touched: frozenset[str] = frozenset()
        self._listener_problems: dict[str, str] = {}

    def round(self, *, full: bool, relist: bool) -> Round:
        """Take one turn.

        :param full: everything is read again, but libvirt's domains
        :param relist: libvirt is asked for its domains
        :raises ServiceUnavailableError: libvirt does not answer, and has not yet since the start
        :raises AgentEndsError: the agent was asked to end before anything was done
        """
        started = self._clock()
        self._coarse = None
        self._modes = self._rollout.modes  # until the next round: what waits was decided with them
        observation = self._observe(full=full, relist=relist)
        with self._acting() as may_act:
            if not may_act:
                seconds, listed = self._clock() - started, not self._libvirt_lost
                return self._notify(
                    Round(
                        observation, seconds=seconds, paused=True, listed=listed, modes=self._modes
                    )
                )
            decided = self._decide(observation, full=full)
            coarse = decided.without(self._rollout.left_out(decided, observation, self._modes))
            self._refiners.new_round()
            done = self._apply(coarse, observation, started)
        self._coarse = coarse
        return done

    @contextmanager
    def _acting(self) -> Iterator[bool]:
        """Whether an operator has not paused the agent; who does so now can wait until the context ends."""
        with acting(self._lock) if self._lock else nullcontext(True) as free:
            yield free and not self._paused_mark.exists()

    def reapply(self) -> Round | None:
        """Let the refiners go over the last coarse decision and apply it, between two rounds.

        Only servers that were touched at the last application are looked at again: it may come many times a second.

        :returns: what was done; None when the last round took no decision or an operator has paused the agent since
        """
        with self._acting() as may_act:
            if self._coarse is None or not may_act:
                return None
            started = self._clock()
            observation = self._observer.again(self._touched)
            return self._apply(self._coarse, observation, started)

    def _decide(self, observation: Observation, *, full: bool) -> Decision:
        kept = self._standing
        if kept and not full and kept.holds(observation, self._options.memory.margin_mb):
            decision = kept.decision
        else:
            decision = self._decide_again(observation)
        # Before it is carried out: after a crash in the middle the same ones are chosen again.
        self._keep(self._home_nodes)
        if self._write:
            own_threads.stay_on(own_threads.quiet_cpus(observation, self._own_cpus))
        return decision

    def _decide_again(self, observation: Observation) -> Decision:
        self._placed = place(observation, self._home_nodes, self._options, self._placed)
        decision = self._placed.decision
        home_nodes = {
            assignment.uuid: assignment.nodes
            for assignment in decision.assignments
            if not assignment.bound
        }
        at_rest = home_nodes == self._home_nodes
        self._standing = standing(observation, decision) if at_rest else None
        self._home_nodes = home_nodes
        return decision

    def _apply(self, coarse: Decision, observation: Observation, started: float) -> Round:
        decision = self._refiners.refine(coarse, observation)
        modes = self._modes
        outcomes = self._executor.apply(decision, observation, self._slice_s(), modes)
        self._touched = frozenset(uuid for uuid, done in outcomes.items() if done.touched)
        seconds = self._clock() - started
        return self._notify(
            Round(
                observation, decision, outcomes, seconds, listed=not self._libvirt_lost, modes=modes
            )
        )

    def _slice_s(self) -> float:
        """Time for page moves: short while a refiner polls, or its turns would come late."""
        memory = self._options.memory
        polled = self._refiners.pause_s(self._clock()) < memory.slice_s
        return min(memory.slice_s, memory.polled_slice_s) if polled else memory.slice_s

    def _notify(self, done: Round) -> Round:
        for listener in self._listeners.done:
            name, problem = type(listener).__name__, ""
            try:
                listener.on_round(done)
            except (
                Exception
            ) as error:  # the outermost guard: the round itself is done, and the others hear of it
                problem = f"{type(error).__name__}: {error}"
                if problem != self._listener_problems.get(name):
                    LOG.exception("%s could not take note of a round", name)
                self._listeners.listener_failed(name)
            self._listener_problems[name] = problem
        return done

    def _failed(self) -> None:
        for call in self._listeners.failed:
            call()

    def _keep(self, home_nodes: home_nodes_store.HomeNodes) -> None:
        store = self._store
        if store is None or home_nodes == self._kept:
            return
        if self._writer.attempt(lambda: store.save(home_nodes)):
            self._kept = home_nodes

    def _observe(self, *, full: bool, relist: bool) -> Observation:
        try:
            observation = self._observer.observe(full=full, relist=relist)
        except ServiceUnavailableError as error:
            if isinstance(error, AgentEndsError) or not self._observer.has_looked:
                raise
            if not self._libvirt_lost:
                LOG.warning("%s; going on with the servers known so far", error)
            self._libvirt_lost = True
            return self._observer.observe(full=full, relist=False)
        if relist and self._libvirt_lost:
            LOG.info("libvirt answers again")
            self._libvirt_lost = False
        return observation

    def run(self, stop: threading.Event) -> None:
        """Turn until ``stop`` is set; whatever fails, the next round comes."""
        full_due = self._clock()
        while not stop.is_set():
            full = self._clock() >= full_due
            if full:
                full_due = self._clock() + self._options.agent.resync_s
            pause = self._options.agent.interval_s
            try:
                events = self._source.has_events()
                done = self.round(full=full, relist=full or events or self._libvirt_lost)
                if done.unfinished:
                    pause = 0.0
            except AgentEndsError:
                return  # nothing was begun in this round
            except ServiceUnavailableError as error:
                LOG.warning("%s; trying again", error)
                self._listeners.without_libvirt()
                full_due = self._clock()
            except Exception:  # the outermost guard: counted and logged, and the loop goes on
                LOG.exception("a round failed")
                self._failed()
                full_due = self._clock()
            self._wait(pause, stop)

    def _wait(self, pause_s: float, stop: threading.Event) -> None:
        """Give the refiners their turns until the next round is due or the loop is woken."""
        due = self._clock() + pause_s
        while not stop.is_set():
            until_turn = self._turn()
            rest = max(0.0, due - self._clock())
            if self._source.wait(min(rest, until_turn)) or rest <= until_turn:
                return

    def _turn(self) -> float:
        """Give the refiners a turn; return the longest time until the next one, seconds."""
        if self._coarse is None or self._paused_mark.exists():  # or nothing is known
            return math.inf
        try:
            if self._refiners.turn(self._clock()):
                self.reapply()
        except Exception:  # as in a round: counted and logged, and the loop goes on
            LOG.exception("a turn between two rounds failed")
            self._failed()
            return math.inf  # a refiner that still wants something would ask at once, for ever
        return self._refiners.pause_s(self._clock())
