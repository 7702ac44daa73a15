# SPDX-License-Identifier: Apache-2.0
"""Keep latency objectives: the thin, impure part around the BALM controller.

Two clocks, two ways to the host::

    guests' ports ──► feeds ──► balm.decide ──► levels ──► resctrl, at once       own thread, up to 50 times a second
                                      │
                                      └──────► shares of pages, levels ──► refine ──► executor      the agent's rounds

A round may walk page tables or move pages for a second, so the controller has a thread of its own and is never kept
waiting. Bandwidth levels go to resctrl the short way; which group is whose, cache ways, threads and pages stay the
executor's. What :meth:`BandwidthQos.refine` tells the executor is what was written the short way, and where the two
overtook each other the newer level is written again (:meth:`BandwidthQos.placed`).

Only best-effort servers of this host are ever changed. Without any server whose latency is known the simple rule's
fixed levels stand.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from host_agent.conf.slo import SloSettings
from host_agent.control.slo_store import PAUSED, Kept, QosStore
from host_agent.decide.slo import balm, shapes
from host_agent.decide.slo.shapes import (
    BudgetExhausted,
    CannotFixSloViolation,
    Event,
    Phase,
    Released,
    ShouldLeave,
    State,
)
from host_agent.decide.slo.unwatched import unwatched
from host_agent.decide.slo.view import Lc, View, levels, look, observe, of_groups, refined
from host_agent.decide.slo.violation import Colour, colour_of
from host_agent.model.assignment import Decision, Observation
from host_agent.model.journal import ActionJournal, Entry, Result
from host_agent.model.process import GroupLevel, PartitionPlace
from host_agent.model.round import Round
from host_agent.model.traffic import Traffic
from host_agent.observe.bandwidth import Bandwidth
from host_agent.observe.latency.ports import SloPorts
from host_agent.observe.latency.sources import GUESS, SloSources
from host_agent.observe.latency.window import LatencyReading
from placement_traits.errors import NumaExtError
from placement_traits.topology import HostTopology

LOG = logging.getLogger(__name__)

_QUIET_S: Final = 0.2
_NOBODY_S: Final = 1.0
_RETRY_S: Final = 1.0
_ACTIONS: Final = 10

Sample = tuple[str, tuple[str, ...], float]
"""Metric, label values, value."""


@dataclass(frozen=True, slots=True)
class Host:
    """What the controller needs of the host.

    :param throttle: writes levels of groups; one sentence each about what went wrong, "" for nothing
    :param limit: takes CPU time instead, where levels are that: by server, per cent; one sentence each about what went
        wrong
    :param traffic: reads the memory traffic of servers
    :param levels: tells the legal levels on a host, per cent, ascending
    :param wake: starts a round of the agent now
    """

    throttle: Callable[[Sequence[GroupLevel]], Sequence[str]]
    limit: Callable[[Sequence[tuple[str, int]]], Sequence[str]]
    traffic: Callable[[Iterable[PartitionPlace]], Mapping[str, Bandwidth]]
    levels: Callable[[HostTopology], tuple[int, ...]]
    wake: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Heard:
    """The readings of whole windows, for status and metrics: server -> reading, colour, where it was read."""

    readings: Mapping[str, LatencyReading]
    colours: Mapping[str, Colour]
    sources: Mapping[str, str]

    def measured(self, lc: Lc) -> dict[str, Any]:
        """Return percentile and ratio to the objective; of what is guessed at the ratio alone."""
        reading = self.readings.get(lc.uuid)
        source = self.sources.get(lc.uuid)
        if reading is None or reading.p99_us is None or not lc.slo_p99_us:
            return {"p99_us": None, "ratio": None, "source": source}
        p99_us = None if source == GUESS else reading.p99_us
        ratio = round(reading.p99_us / lc.slo_p99_us, 3)
        return {"p99_us": p99_us, "ratio": ratio, "source": source}


class BandwidthQos:
    """A :class:`~.pipeline.Refiner` and :class:`~.agent.Listener` with a thread of its own.

    :param settings: the operator's choices
    :param sources: latencies
    :param host: sensors and actuators
    :param store: what survives a restart
    :param journal: told about every action
    :param ports: plugs ports; None plugs none
    :param count: counts actions for the metrics
    :param escalate: told when nothing on this host helps enough, with the names of the servers; must not block
    :param margin_mb: MiB that stay free on every node
    :param paused: tells whether an operator has paused the agent
    """

    name = "balm"

    def __init__(
        self,
        settings: SloSettings,
        sources: SloSources,
        host: Host,
        store: QosStore,
        journal: ActionJournal,
        *,
        ports: SloPorts | None = None,
        count: Callable[[str, Result], None] = lambda _action, _result: None,
        escalate: Callable[[CannotFixSloViolation | ShouldLeave, Mapping[str, str]], None] = (
            lambda _event, _names: None
        ),
        margin_mb: float = 0.0,
        paused: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._sources, self._host, self._store = settings, sources, host, store
        self._journal, self._ports, self._count, self._escalate = journal, ports, count, escalate
        self._margin_mb, self._pausing, self._clock = margin_mb, paused, clock
        kept = store.load()
        self._state = State(wanted=kept.wanted)
        sources.restore(kept.fed, clock())
        self._fed = sources.fed
        self._acts = bool(self._fed)
        self._actions: deque[dict[str, Any]] = deque(kept.told.get("actions", ()), _ACTIONS)
        self._view, self._served = View(), View()
        self._topology: HostTopology | None = None
        self._legal: tuple[int, ...] = ()
        self._places: Mapping[str, PartitionPlace] = {}
        self._traffic: Mapping[str, Traffic] = {}
        self._heard = _Heard({}, {}, {})
        self._red: dict[str, float] = {}
        self._unsatisfiable: frozenset[str] = frozenset()
        self._refined: Mapping[str, Mapping[int, int]] = {}
        self._refined_s = -math.inf
        self._refined_shares: Mapping[str, shapes.Shares] = {}
        self._in_force: dict[str, tuple[tuple[int, int], ...]] = {}
        self._problem, self._retry_s, self._suspect = "", 0.0, False
        self._decided_s = self._traffic_s = self._heard_s = -math.inf
        self._writing = threading.Lock()
        self._paused = self._heard_pause = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # -- the agent's rounds --------------------------------------------------------------------------------------------

    def refine(self, decision: Decision, observation: Observation) -> Decision:
        """Return the decision with the levels and shares that are wanted now; remember the host for the thread."""
        if observation.topology is not self._topology:
            self._legal = self._host.levels(observation.topology)
            self._topology = observation.topology
        view = look(decision, observation, self._margin_mb)
        self._view = view
        if self._ports is not None:
            self._ports.serve(view.lcs)
        state = self._state
        self._refined_s = self._clock()
        self._refined = levels(view, state.wanted, self._fed, acts=self._acts)
        self._refined_shares = self._shares(view, state)
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
        """Take note of which group is whose; write levels again that changed since the executor was told."""
        with self._writing:
            self._places = places
            self._in_force = self._told_executor()
        self._enforce(self._view)

    def unsatisfiable(self) -> frozenset[str]:
        """Tell the servers whose objective was found impossible to keep here and has been violated since."""
        return self._unsatisfiable

    def superseded(self) -> frozenset[str]:
        """Tell the groups whose levels in force are not those that the executor was told."""
        with self._writing:
            told = self._told_executor()
            return frozenset(
                group for group, level in self._in_force.items() if told.get(group) != level
            )

    def suspect(self) -> bool:
        """Tell, once, that a level could not be written: its group may have to be made anew."""
        suspect, self._suspect = self._suspect, False
        return suspect

    def _told_executor(self) -> dict[str, tuple[tuple[int, int], ...]]:
        return {level.group: level.mba_percent for level in of_groups(self._refined, self._places)}

    def on_round(self, done: Round) -> None:
        """Take note of a round."""
        self._heard_pause = done.paused
        self._save()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen and to act."""
        self._thread = threading.Thread(target=self._run, name="balm", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; no search is left half done."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0 * _NOBODY_S)
        self._leave()
        self._sources.close()

    def _leave(self) -> None:
        """Put into force what may stand while nobody watches."""
        coarse = {be.uuid: be.seen.level for be in self._view.bes}
        self._state = unwatched(self._state, coarse)
        self._enforce(self._view)
        if not self._allocates and self._legal:
            self._limit(self._view)
        self._save()

    def _limit(self, view: View) -> None:
        """Write CPU time, which in a round is the executor's: none comes any more."""
        wanted = levels(view, self._state.wanted, self._fed, acts=self._acts)
        todo = [(uuid, min(found.values())) for uuid, found in sorted(wanted.items()) if found]
        try:
            problems = self._host.limit(todo)
        except (NumaExtError, OSError) as error:
            problems = [str(error)]
        for problem in problems:
            LOG.warning("CPU time cannot be limited: %s", problem)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll(self._patience_s())
            except Exception:  # the outermost guard: counted and logged, and control goes on
                LOG.exception("a poll of the bandwidth controller failed")
                self._count("balm", Result.FAILED)
                self._stop.wait(_RETRY_S)

    def _patience_s(self) -> float:
        """Longest wait for reports: a search goes on by the clock, a quiet host only by what is reported."""
        if not self._acts:
            return _NOBODY_S
        quiet = self._state.phase is Phase.WATCH and self._state.moving is None
        return _QUIET_S if quiet else self._settings.feed.poll_s

    def poll(self, patience_s: float = 0.0) -> None:
        """Wait for reports, decide, act: one turn of the thread.

        :param patience_s: longest wait
        """
        view = self._view
        if view is not self._served:
            self._sources.serve(view.lcs, self._clock())
            self._served = view
        self._sources.receive(patience_s, self._clock)
        early = self._decided_s + self._settings.feed.poll_s - self._clock()
        if early > 0.0 and not self._stop.wait(early):
            self._sources.receive(0.0, self._clock)
        self._decided_s = now = self._clock()
        if self._rests():
            return
        self._decide(view, now)
        self._look_around(now)

    def _rests(self) -> bool:
        """Tell whether an operator has paused the agent: rounds may be long, so the mark is looked at here."""
        paused = self._pausing()
        before, self._paused = self._paused, paused
        if paused and not before:
            self._leave()
        elif before and not paused:
            self._heard_pause = False
            self._save()
        return paused

    def _decide(self, view: View, now: float) -> None:
        readings = self._sources.read(now, self._state.judge_from_s)
        self._fed = self._sources.fed
        before = self._state
        self._acts = bool(readings)
        if not self._acts:
            self._tell_violations(view, readings)
            self._rest()
            return
        seen = observe(view, readings, self._traffic, self._legal)
        decision = balm.decide(seen, before, self._settings.balm, now)
        self._state = decision.state
        if decision.changes:
            self._enforce(view)
        self._tell_violations(view, readings)
        self._tell(view, readings, before, decision)

    def _rest(self) -> None:
        """No latency is known: the simple rule's levels stand, and pages go where their own policies want them."""
        state = self._state
        if state.wanted:
            self._note("rest", "", what={"reason": "no latency is known; the fixed levels hold"})
            self._state = State(parked=state.parked, ignored=state.ignored, spent_s=state.spent_s)
            self._enforce(self._view)
            self._save()

    def _enforce(self, view: View) -> None:
        """Write the levels that differ from those in force; leave the rest to a round."""
        with self._writing:
            wanted = of_groups(
                levels(view, self._state.wanted, self._fed, acts=self._acts), self._places
            )
            todo = [
                level for level in wanted if self._in_force.get(level.group) != level.mba_percent
            ]
            if todo and self._allocates:
                self._write(todo)
            elif self._problem:
                self._well("no level is left that could not be written")
        if self._overdue(view):
            self._host.wake()

    @property
    def _allocates(self) -> bool:
        """Levels are bandwidth, so that there is a short way; else they are CPU time, which is the executor's."""
        rdt = self._topology.rdt if self._topology else None
        return rdt is not None and rdt.mba is not None and not rdt.mba.mbps

    def _overdue(self, view: View) -> bool:
        state = self._state
        if self._shares(view, state) != self._refined_shares:
            return True
        return (
            not self._allocates
            and levels(view, state.wanted, self._fed, acts=self._acts) != self._refined
        )

    def _write(self, todo: Sequence[GroupLevel]) -> None:
        try:
            problems: Sequence[str] = self._host.throttle(todo)
        except (NumaExtError, OSError) as error:
            problems = [str(error)] * len(todo)
        for level, problem in zip(todo, problems, strict=True):
            if not problem:
                self._in_force[level.group] = level.mba_percent
        problem = next(filter(None, problems), "")
        self._retry_s = self._clock() + _RETRY_S if problem else 0.0
        if problem and problem != self._problem:
            LOG.warning("bandwidth levels cannot be written: %s", problem)
            self._journal.write(Entry("throttle", Result.FAILED, problem=problem))
            self._host.wake()
        self._count("throttle", Result.FAILED if problem else Result.DONE)
        if problem:
            self._problem, self._suspect = problem, True
        elif self._problem:
            self._well("bandwidth levels are written again")

    def _well(self, news: str) -> None:
        LOG.info("%s", news)
        self._problem, self._retry_s = "", 0.0

    def _look_around(self, now: float) -> None:
        """What has time after the reaction: traffic, failed writes, guests that misbehave."""
        if self._retry_s and now >= self._retry_s:
            self._enforce(self._view)
        if now - self._heard_s >= _QUIET_S:
            self._heard_s = now
            window = self._sources.read(now, -math.inf)
            colours = self._colours(self._view, window)
            self._heard = _Heard(window, colours, self._sources.sources)
        every = _QUIET_S if self._state.phase is not Phase.WATCH else _NOBODY_S
        if self._acts and now - self._traffic_s >= every:
            self._traffic_s = now
            bes = {be.uuid for be in self._view.bes}
            places = [place for uuid, place in self._places.items() if uuid in bes]
            found = self._host.traffic(places)
            self._traffic = {uuid: bandwidth.traffic for uuid, bandwidth in found.items()}
        titles = self._titles()
        for uuid, told, problem in self._sources.news(now):
            text = problem or "it keeps to the protocol again"
            LOG.warning("latency port of server %s: %s", uuid, text)
            entry = Entry("listen", Result.NOTED, uuid, titles.get(uuid, ""), problem=text)
            self._journal.write(replace(entry, measured=_plain(told)))

    # -- telling -------------------------------------------------------------------------------------------------------

    def _colours(self, view: View, readings: Mapping[str, LatencyReading]) -> dict[str, Colour]:
        slo = {lc.uuid: float(lc.slo_p99_us) for lc in view.lcs if lc.slo_p99_us}
        return {
            uuid: colour_of(
                None if reading.p99_us is None else reading.p99_us / slo[uuid],
                self._settings.balm.thresholds,
            )
            for uuid, reading in readings.items()
            if uuid in slo
        }

    def _tell_violations(self, view: View, readings: Mapping[str, LatencyReading]) -> None:
        """Let the journal hear when an objective begins and ceases to be violated."""
        colours = self._colours(view, readings)
        heard = _Heard(readings, colours, self._sources.sources)
        measurements = {lc.uuid: heard.measured(lc) for lc in view.lcs if lc.uuid in colours}
        for uuid, colour in colours.items():
            measured = measurements[uuid]
            if colour is Colour.RED and uuid not in self._red:
                self._red[uuid] = self._clock()
                self._note("violated", uuid, measured=measured)
            elif colour.good and uuid in self._red:
                seconds = round(self._clock() - self._red.pop(uuid), 3)
                self._note("met", uuid, what={"violated_s": seconds}, measured=measured)
        self._red = {uuid: since for uuid, since in self._red.items() if uuid in colours}
        self._unsatisfiable = self._unsatisfiable.intersection(self._red)

    def _tell(
        self,
        view: View,
        readings: Mapping[str, LatencyReading],
        before: State,
        decision: shapes.Decision,
    ) -> None:
        reasons = tuple(map(str, decision.reasons))
        measured = {"ratios": _ratios(view, readings), "phase": decision.state.phase.value}
        for uuid, wish in decision.changes.items():
            what: dict[str, Any] = {"level": wish.level}
            if wish.shares is not None:
                what["shares"] = {node: round(share, 4) for node, share in wish.shares.items()}
            result = Result.FAILED if self._problem else Result.DONE
            self._note("balm", uuid, what=what, reasons=reasons, measured=measured, result=result)
        if reasons and not decision.changes:
            self._note("balm", "", what={"phase": decision.state.phase.value}, reasons=reasons)
        for event in decision.events:
            self._tell_event(event)
        if decision.changes or decision.events or before.phase is not decision.state.phase:
            self._save()

    def _tell_event(self, event: Event) -> None:
        match event:
            case CannotFixSloViolation():
                leave = ", ".join(event.leave)
                problem = f"nothing on this host keeps the objectives; live-migrate one of: {leave}"
                what = {"nodes": list(event.nodes), "leave": list(event.leave)}
                LOG.warning("%s", problem)
                for uuid in event.lcs:
                    self._note(
                        "cannot_fix",
                        uuid,
                        what=what,
                        reasons=tuple(map(str, event.reasons)),
                        problem=problem,
                    )
                self._unsatisfiable = self._unsatisfiable.union(self._red.keys() & set(event.lcs))
                self._escalate(event, self._titles())
            case ShouldLeave():
                what = {"in_favour_of": list(event.lcs)}
                problem = "throttling it helps, though not enough: its live migration would"
                self._note("should_leave", event.leave[0], what=what, problem=problem)
                self._escalate(event, self._titles())
            case Released():
                what = {"what": event.what.value, "in_vain_for": list(event.lcs)}
                self._note("release", event.be, what=what)
            case BudgetExhausted():
                ignored = self._settings.balm.ignore_s
                problem = (
                    f"others were throttled for {event.seconds:.0f} s while it was violated or silent all the same; "
                    f"it is not listened to for {ignored:.0f} s"
                )
                LOG.warning("server %s: %s", event.lc, problem)
                self._note("ignore", event.lc, problem=problem)

    def _note(
        self, action: str, server: str, *, result: Result = Result.NOTED, **more: Any
    ) -> None:
        title = self._titles().get(server, "")
        self._journal.write(Entry(action, result, server, title, **more))
        self._count(action, result)
        what = more.get("what") or more.get("measured") or {}
        self._actions.append({"time": _now(), "server": server, "action": action, "what": what})

    def _titles(self) -> dict[str, str]:
        lcs = {lc.uuid: lc.title for lc in self._view.lcs}
        return lcs | {be.uuid: be.title for be in self._view.bes}

    @staticmethod
    def _shares(view: View, state: State) -> dict[str, shapes.Shares]:
        """Servers whose pages the controller has an opinion about."""
        return {
            be.uuid: wish.shares
            for be in view.bes
            if be.seen.movable
            and (wish := state.wanted.get(be.uuid)) is not None
            and wish.shares is not None
        }

    def _save(self) -> None:
        self._store.save(self._kept)

    def _kept(self) -> Kept:
        state, heard, told = self._state, self._heard, self._sources.told
        problems = self._sources.problems
        lcs = {
            lc.uuid: {
                "name": lc.title,
                "slo_p99_us": lc.slo_p99_us,
                **heard.measured(lc),
                "samples": reading.samples if (reading := heard.readings.get(lc.uuid)) else 0,
                "window_s": self._settings.feed.window_s,
                "colour": heard.colours[lc.uuid].name.lower() if lc.uuid in heard.colours else None,
                "feed": _plain(told[lc.uuid]) if lc.uuid in told else {},
                "problem": problems.get(lc.uuid, ""),
            }
            for lc in self._view.lcs
        }
        bes = {
            be.uuid: {
                "name": be.title,
                "level": wish.level if (wish := state.wanted.get(be.uuid)) else None,
                "shares": wish.shares if wish else None,
            }
            for be in self._view.bes
        }
        phase = state.phase.value if self._acts else "rest"
        if self._paused and self._heard_pause:  # both threads have come to rest
            phase = PAUSED
        status = {
            "time": _now(),
            "phase": phase,
            "lcs": lcs,
            "bes": bes,
            "actions": list(self._actions),
        }
        return Kept(state.wanted, self._fed, status)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics."""
        phase = self._state.phase if self._acts else None
        for one in Phase:
            yield "numa_ext_balm_phase", (one.value,), float(one is phase)
        heard, titles = self._heard, self._titles()
        for lc in self._view.lcs:
            who, measured = (lc.uuid, lc.title), heard.measured(lc)
            if measured["p99_us"] is not None:
                yield "numa_ext_server_slo_p99_us", who, measured["p99_us"]
            if measured["ratio"] is not None:
                source = measured["source"] or ""
                yield "numa_ext_server_slo_ratio", (*who, source), measured["ratio"]
            if lc.uuid in heard.colours:
                yield "numa_ext_server_slo_colour", who, float(heard.colours[lc.uuid])
        for uuid, told in sorted(self._sources.told.items()):
            for kind, number in _plain(told).items():
                yield "numa_ext_slo_feed", (uuid, titles.get(uuid, ""), kind), float(number)
        for uuid, traffic in sorted(self._traffic.items()):
            who = (uuid, titles.get(uuid, ""))
            yield "numa_ext_server_traffic_mbps", (*who, "local"), traffic.local_mbps
            yield "numa_ext_server_traffic_mbps", (*who, "total"), traffic.total_mbps


def _ratios(view: View, readings: Mapping[str, LatencyReading]) -> dict[str, float]:
    return {
        lc.uuid: round(p99 / lc.slo_p99_us, 3)
        for lc in view.lcs
        if lc.slo_p99_us and lc.uuid in readings and (p99 := readings[lc.uuid].p99_us)
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _plain(told: Any) -> dict[str, int]:
    return {
        name: getattr(told, name) for name in ("lines", "rubbish", "implausible", "dropped_bytes")
    }
