# SPDX-License-Identifier: Apache-2.0
"""Keep latency objectives: the thin, impure part around the BALM controller.

Two clocks, two ways to the host::

    guests' ports ──► feeds ──► balm.decide ──► levels ──► resctrl, at once       own thread, up to 50 times a second
                                      │
                                      └──────► shares of pages, levels ──► refine ──► executor      the agent's rounds

A round may walk page tables or move pages for a second, so the controller has a thread of its own and is never kept
waiting. Bandwidth levels go to resctrl the short way; which group is whose, cache ways, threads and pages stay the
executor's. What :meth:`SloController.refine` hands to the executor is what was written the short way, and where one
superseded the other the newer level is written again (:meth:`SloController.placed`).

Only best-effort servers of this host are ever changed. Without any server whose latency is known the simple rule's
fixed levels stand.

Where the operator has uplinks throttled or tuned (``[lanes]throttle``, ``tune``), that has the same latencies and
accounts and its turn before memory: while one of both tries something, the other one waits
(:mod:`~host_agent.decide.slo.uplink`).
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from host_agent.conf.slo import SloOptions
from host_agent.control.slo_host import SloHost
from host_agent.control.slo_report import SloReport
from host_agent.control.slo_store import Kept, SloStore
from host_agent.control.uplink_throttle import UplinkThrottle
from host_agent.decide.slo import account, balm
from host_agent.decide.slo.levels import of_groups, of_servers
from host_agent.decide.slo.shapes import BalmPhase, BalmState, BeTarget, SloView
from host_agent.decide.slo.unwatched import unwatched
from host_agent.decide.slo.view import look, refined
from host_agent.model.assignment import Decision, Observation
from host_agent.model.journal import Entry, Result
from host_agent.model.pages import Shares
from host_agent.model.partition import PartitionPlace
from host_agent.model.process import GroupLevel
from host_agent.model.round import Round
from host_agent.model.traffic import Traffic
from host_agent.observe.latency.sources import SloSources
from host_agent.report.metrics import HistogramSample, Sample
from placement_traits.errors import NumaExtError
from placement_traits.topology import HostTopology

LOG = logging.getLogger(__name__)

_QUIET_S: Final = 0.2
_IDLE_S: Final = 1.0
_RETRY_S: Final = 1.0


class SloController:
    """A :class:`~.pipeline.Refiner` and :class:`~.agent.Listener` with a thread of its own.

    :param options: the operator's
    :param sources: latencies
    :param host: sensors and actuators
    :param store: what survives a restart
    :param report: journal, metrics and status of what is done here
    :param uplink: throttles uplinks; None: nothing does
    """

    name = "balm"

    def __init__(
        self,
        options: SloOptions,
        sources: SloSources,
        host: SloHost,
        store: SloStore,
        report: SloReport,
        *,
        uplink: UplinkThrottle | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._sources, self._host, self._store = options, sources, host, store
        self._report, self._uplink, self._clock = report, uplink, clock
        kept = store.load()
        report.restore(kept.report)
        self._state = BalmState(targets=kept.targets, taken=kept.taken.since_boot(clock()))
        sources.restore(kept.reporting, clock())
        self._reporting = sources.reporting
        self._acts = bool(self._reporting)
        self._view, self._served = SloView(), SloView()
        self._topology: HostTopology | None = None
        self._legal: tuple[int, ...] = ()
        self._places: Mapping[str, PartitionPlace] = {}
        self._traffic: Mapping[str, Traffic] = {}
        self._refined: Mapping[str, Mapping[int, int]] = {}
        self._refined_s = -math.inf
        self._refined_shares: Mapping[str, Shares] = {}
        self._effective: dict[str, tuple[tuple[int, int], ...]] = {}
        self._problem, self._retry_s, self._suspect = "", 0.0, False
        self._decided_s = self._traffic_s = self._shown_s = -math.inf
        self._writing = threading.Lock()
        self._paused = self._round_paused = self._lapsed = False
        self._observes = not host.permission.acts()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # -- the agent's rounds --------------------------------------------------------------------------------------------

    def refine(self, decision: Decision, observation: Observation) -> Decision:
        """Return the decision with the levels and shares that hold now; remember the host for the thread."""
        if observation.topology is not self._topology:
            self._legal = self._host.legal.of(observation.topology)
            self._topology = observation.topology
        moves = not self._host.permission.balancers()
        view = look(decision, observation, self._host.margin_mb, self._legal, moves=moves)
        self._view = view
        if self._uplink:
            self._uplink.watch(
                {guest.uuid: guest.workload.domain.interfaces for guest in observation.guests}
            )
        if self._host.ports and not self._observes:
            self._host.ports.serve(view.lcs)
        state = self._state
        self._refined_s = self._clock()
        self._refined = self._levels(view)
        self._refined_shares = _shares(view, state)
        return refined(decision, self._refined, self._refined_shares, state.phase)

    def turn(self, now_s: float) -> bool:
        """Tell whether the executor has to do something, or pages are under way and have to be looked at."""
        looked = now_s - self._refined_s >= _QUIET_S
        return self._overdue(self._view) or (self._state.moving is not None and looked)

    def pause_s(self, now_s: float) -> float:
        """Turns are needed while pages are under way only; for all else the thread wakes the loop."""
        if self._state.moving is None:
            return math.inf
        return max(0.0, self._refined_s + _QUIET_S - now_s)

    def placed(self, places: Mapping[str, PartitionPlace]) -> None:
        """Take note of which group is whose; write levels again that changed since the executor got them."""
        with self._writing:
            self._places = places
            self._effective = self._handed_over()
        self._enforce(self._view)

    def unsatisfiable(self) -> frozenset[str]:
        """Return the servers whose objective was found impossible to keep here and has been violated since."""
        return self._report.unsatisfiable

    def causes(self) -> Mapping[str, frozenset[str]]:
        """Return for whose sake each best-effort server is throttled; nothing while fixed levels stand."""
        return self._state.taken.causes if self._acts else {}

    def superseded(self) -> frozenset[str]:
        """Return the groups whose effective levels are not those that the executor got."""
        with self._writing:
            handed = self._handed_over()
            return frozenset(
                group for group, level in self._effective.items() if handed.get(group) != level
            )

    def suspect(self) -> bool:
        """Tell, once, that a level could not be written: its group may have to be made again."""
        suspect, self._suspect = self._suspect, False
        return suspect

    def _handed_over(self) -> dict[str, tuple[tuple[int, int], ...]]:
        return {level.group: level.mba_percent for level in of_groups(self._refined, self._places)}

    def _levels(self, view: SloView) -> dict[str, dict[int, int]]:
        """Return the levels that should hold now; those of the simple rule while no latency is known or guessed."""
        targets: Mapping[str, BeTarget] = self._state.targets if self._acts else {}
        groups, spared = self._groups(), self._state.taken.spared
        classes = {groups.get(uuid, uuid) for uuid in spared}
        mates = frozenset(be.uuid for be in view.bes if groups.get(be.uuid, be.uuid) in classes)
        return of_servers(view, targets, self._reporting, mates)

    def on_round(self, done: Round) -> None:
        """Take note of a round."""
        self._round_paused = done.paused
        self._save()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="balm", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Shut down gracefully; no search is left half done."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0 * _IDLE_S)
        if not self._observes:
            self._settle()
        if self._uplink:
            self._uplink.close()
        self._sources.close()

    def _settle(self) -> None:
        """Write what may stand while objectives are not watched."""
        if self._uplink:
            self._uplink.release()
        coarse = {be.uuid: be.level for be in self._view.bes}
        self._state = unwatched(self._state, coarse)
        self._enforce(self._view)
        if not self._allocates and self._legal:
            self._limit(self._view)
        self._save()

    def _limit(self, view: SloView) -> None:
        """Write CPU time, which in a round is the executor's: none comes any more."""
        levels = self._levels(view)
        todo = [(uuid, min(found.values())) for uuid, found in sorted(levels.items()) if found]
        try:
            report = self._host.writer.limit_cpu_time(todo, True)
            problems = [problem for _, problem in report.problems]
        except (NumaExtError, OSError) as error:
            problems = [str(error)]
        for problem in problems:
            LOG.warning("CPU time cannot be limited: %s", problem)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll(self._patience_s())
            except Exception:  # the outermost guard: counted and logged, and control goes on
                LOG.exception("a poll of the SLO controller failed")
                self._report.count("balm", Result.FAILED)
                self._stop.wait(_RETRY_S)

    def _patience_s(self) -> float:
        """Longest wait for reports: a search goes on by the clock, a quiet host only by what is reported."""
        if not self._acts:
            return _IDLE_S
        quiet = self._state.phase is BalmPhase.WATCH and self._state.moving is None
        quiet = quiet and not (self._uplink and self._uplink.at_work)
        return _QUIET_S if quiet else self._options.feed.poll_s

    def poll(self, patience_s: float = 0.0) -> None:
        """Wait for reports, decide, act: one turn of the thread.

        :param patience_s: longest wait
        """
        view = self._view
        if view is not self._served:
            self._sources.serve(view.lcs, self._clock())
            self._served = view
        self._sources.receive(patience_s, self._clock)
        early = self._decided_s + self._options.feed.poll_s - self._clock()
        if early > 0.0 and not self._stop.wait(early):
            self._sources.receive(0.0, self._clock)
        self._decided_s = now = self._clock()
        if self._on_hold():
            return
        if self._only_observes():
            self._foresee(view, now)
        elif self._released():
            return
        else:
            self._decide(view, now)
            if self._uplink:
                self._uplink.follow(now)
        self._look_around(now)

    def _on_hold(self) -> bool:
        """Tell whether an operator has paused the agent: rounds may be long, so the mark is looked at here."""
        paused = self._host.permission.paused()
        before, self._paused = self._paused, paused
        if paused and not before:
            self._settle()
        elif before and not paused:
            self._round_paused = False
            self._save()
        return paused

    def _released(self) -> bool:
        """Tell whether the dead-man switch has the last word: what is written now, it would not take off again."""
        before, self._lapsed = self._lapsed, self._host.permission.lapsed()
        if self._lapsed and not before:
            problem = "no round ends: the dead-man switch takes all throttles off"
            LOG.warning("%s", problem)
            self._report.write(Entry("throttle", Result.FAILED, problem=problem))
        if self._lapsed and self._uplink:
            self._uplink.release()
        if self._lapsed or before:
            # Nothing is held, so nothing is charged.
            self._state = replace(self._state, seen_s=None)
            self._enforce(self._view)
        return self._lapsed

    def _only_observes(self) -> bool:
        """Tell whether nothing may be changed; when that begins, what may stand so is written before."""
        observes = not self._host.permission.acts()
        before, self._observes = self._observes, observes
        if observes and not before:
            self._settle()
            self._acts = False
            self._forget_targets()
            self._save()
        return observes

    def _foresee(self, view: SloView, now: float) -> None:
        """Report what would be done first. Nothing is done, so nothing can be judged and nothing more be foreseen."""
        readings = self._sources.read(now, self._judge_from_s)
        self._reporting = self._sources.reporting
        seen = view.measured(readings, self._traffic, self._groups(), {})
        self._report.violations(seen, self._sources)
        if not readings:
            return
        if self._uplink:
            self._uplink.turn(seen, self._state.taken, now, may_begin=True, acts=False)
        decision = balm.decide(seen, self._state, self._options.balm, now)
        # Nothing is held, so nothing is charged.
        self._state = replace(decision.state, taken=self._state.taken)
        if decision.changes:
            self._report.foreseen(seen, decision)
            self._forget_targets()

    def _forget_targets(self) -> None:
        self._state = self._state.resting({})

    @property
    def _judge_from_s(self) -> float:
        """What was received before the last action of any kind says nothing of now."""
        mine = self._state.judge_from_s
        return max(mine, self._uplink.state.judge_from_s) if self._uplink else mine

    def _uplink_first(self, seen: SloView, now: float) -> bool:
        """Give uplinks their turn; return whether memory has to wait for them."""
        if self._uplink is None:
            return False
        idle = self._state.phase is BalmPhase.WATCH
        self._uplink.turn(seen, self._state.taken, now, may_begin=idle, acts=True)
        taken = account.joined(self._state.taken, self._uplink.state.taken)
        self._state = replace(self._state, taken=taken)
        return self._uplink.at_work

    def _decide(self, view: SloView, now: float) -> None:
        readings = self._sources.read(now, self._judge_from_s)
        self._reporting = self._sources.reporting
        seen = view.measured(readings, self._traffic, self._groups(), self._in_effect(view))
        self._acts = bool(readings)
        if not self._acts:
            self._report.violations(seen, self._sources)
            self._rest()
            return
        if self._uplink_first(seen, now):
            self._report.violations(seen, self._sources)
            return
        before = self._state
        decision = balm.decide(seen, before, self._options.balm, now)
        self._state = decision.state
        if decision.changes:
            self._enforce(view)
        self._report.violations(seen, self._sources)
        self._report.decision(seen, decision, Result.FAILED if self._problem else Result.DONE)
        if decision.changes or decision.events or before.phase is not decision.state.phase:
            self._save()

    def _groups(self) -> dict[str, str]:
        """Return best-effort server -> control group; levels of CPU time are each server's own."""
        if not self._allocates:
            return {}
        return {uuid: place.group for uuid, place in self._places.items()}

    def _in_effect(self, view: SloView) -> dict[str, int]:
        """Return best-effort server -> strongest level in effect for its CPUs, where it is known what was written."""
        if not self._allocates:
            return {uuid: min(levels.values()) for uuid, levels in self._refined.items() if levels}
        found = {}
        for be in view.bes:
            place = self._places.get(be.uuid)
            written = dict(self._effective.get(place.group, ())) if place else {}
            levels = [level for domain, level in written.items() if domain in be.fixed]
            if levels:
                found[be.uuid] = min(levels)
        return found

    def _rest(self) -> None:
        """No latency is known: the simple rule's levels stand, and pages go where their own policies want them."""
        if self._uplink:
            self._uplink.rest()
        if self._state.targets:
            self._report.rest()
            self._forget_targets()
            self._enforce(self._view)
            self._save()

    def _enforce(self, view: SloView) -> None:
        """Write the levels that differ from the effective ones; leave the rest to a round."""
        with self._writing:
            if self._host.permission.lapsed():
                self._effective, self._suspect = {}, True
                return
            levels = of_groups(self._levels(view), self._places)
            todo = [
                level for level in levels if self._effective.get(level.group) != level.mba_percent
            ]
            if todo and self._allocates:
                self._write(todo)
            elif self._problem:
                self._recovered("no level is left that could not be written")
        if self._overdue(view):
            self._host.rounds.wake()

    @property
    def _allocates(self) -> bool:
        """Levels are bandwidth, so that there is a short way; else they are CPU time, which is the executor's."""
        rdt = self._topology.rdt if self._topology else None
        return rdt is not None and rdt.mba is not None and not rdt.mba.mbps

    def _overdue(self, view: SloView) -> bool:
        state = self._state
        if _shares(view, state) != self._refined_shares:
            return True
        return not self._allocates and self._levels(view) != self._refined

    def _write(self, todo: Sequence[GroupLevel]) -> None:
        try:
            problems: Sequence[str] = self._host.writer.throttle(todo)
        except (NumaExtError, OSError) as error:
            problems = [str(error)] * len(todo)
        for level, problem in zip(todo, problems, strict=True):
            if not problem:
                self._effective[level.group] = level.mba_percent
        problem = next(filter(None, problems), "")
        self._retry_s = self._clock() + _RETRY_S if problem else 0.0
        if problem and problem != self._problem:
            LOG.warning("bandwidth levels cannot be written: %s", problem)
            self._report.write(Entry("throttle", Result.FAILED, problem=problem))
            self._host.rounds.wake()
        self._report.count("throttle", Result.FAILED if problem else Result.DONE)
        if problem:
            self._problem, self._suspect = problem, True
        elif self._problem:
            self._recovered("bandwidth levels are written again")

    def _recovered(self, how: str) -> None:
        LOG.info("%s", how)
        self._problem, self._retry_s = "", 0.0

    def _look_around(self, now: float) -> None:
        """What has time after the reaction: traffic, failed writes, guests that misbehave."""
        if self._retry_s and now >= self._retry_s:
            self._enforce(self._view)
        if now - self._shown_s >= _QUIET_S:
            self._shown_s = now
            whole = self._view.measured(self._sources.read(now, -math.inf), {}, {}, {})
            self._report.show(whole, self._sources)
        every = _QUIET_S if self._state.phase is not BalmPhase.WATCH else _IDLE_S
        if self._acts and now - self._traffic_s >= every:
            self._traffic_s = now
            bes = {be.uuid for be in self._view.bes}
            places = [place for uuid, place in self._places.items() if uuid in bes]
            found = self._host.traffic.servers(places)
            self._traffic = {uuid: bandwidth.traffic for uuid, bandwidth in found.items()}
        self._report.guests(self._view.titles, self._sources.faults(now))

    # -- what survives a restart, and what is shown --------------------------------------------------------------------

    def _save(self) -> None:
        self._store.save(self._kept)

    def _kept(self) -> Kept:
        state = self._state
        phase = state.phase if self._acts else None
        held = self._paused and self._round_paused  # neither thread does anything any more
        status = self._report.status(self._view, state.targets, phase, self._sources, paused=held)
        return Kept(state.targets, self._reporting, status, state.taken)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics."""
        phase = self._state.phase if self._acts else None
        yield from self._report.samples(
            self._view, phase, self._traffic, self._sources.counts, self._state.taken
        )
        if self._uplink:
            yield from self._uplink.samples()

    def histograms(self) -> Iterator[HistogramSample]:
        """Yield the metrics that are histograms."""
        yield from self._report.histograms(self._view, self._sources.requests(self._clock()))


def _shares(view: SloView, state: BalmState) -> dict[str, Shares]:
    """Return best-effort server -> shares of its pages, where the controller has an opinion about them."""
    return {
        be.uuid: target.shares
        for be in view.bes
        if be.movable
        and (target := state.targets.get(be.uuid)) is not None
        and target.shares is not None
    }
