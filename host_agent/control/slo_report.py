# SPDX-License-Identifier: Apache-2.0
"""What the SLO controller reports: journal, status for the console, metrics, proposals to a higher layer."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from host_agent.conf.slo import SloOptions
from host_agent.control.slo_store import PAUSED, UNWATCHED
from host_agent.decide.slo.floor import LevelHour
from host_agent.decide.slo.leaf import LeafHold
from host_agent.decide.slo.shapes import (
    AccountSpent,
    BalmDecision,
    BalmPhase,
    BeTarget,
    CannotFixSloViolation,
    Event,
    FloorReached,
    Released,
    ShouldLeave,
    SloView,
    Taken,
)
from host_agent.decide.slo.uplink import UplinkUse
from host_agent.decide.slo.violation import SloState, states
from host_agent.model.journal import ActionJournal, Entry, Result
from host_agent.model.latency import LcServer, RequestHistogram
from host_agent.model.terms import Term
from host_agent.model.traffic import Traffic
from host_agent.observe.latency.protocol import FeedCounts
from host_agent.observe.latency.sources import SloSources
from host_agent.report.metrics import HistogramSample, Sample
from placement_traits import names
from placement_traits.reason import Reason

LOG = logging.getLogger(__name__)

_ACTIONS: Final = 10
_FORESEEN_AGAIN_S: Final = 60.0
_ROUND_MBPS: Final = 100
_LOOK_MAX_S: Final = 5.0  # objectives are looked at more often, but not while the agent is paused

Escalate = Callable[[CannotFixSloViolation | ShouldLeave, Mapping[str, str]], None]


def _ignore_count(_action: str, _result: Result) -> None:
    """Count nothing."""


def _ignore_event(_event: CannotFixSloViolation | ShouldLeave, _titles: Mapping[str, str]) -> None:
    """Escalate nothing."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """Latencies of whole windows, for status and metrics.

    :param lcs: UUID -> server with its reading
    :param states: UUID -> how far it is from its objective
    :param sources: UUID -> where its latency was read
    :param guessed: servers whose latency is a guess
    :param watched: servers whose latency is known or guessed, or was a minute ago
    """

    lcs: Mapping[str, LcServer] = field(default_factory=dict)
    states: Mapping[str, SloState] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    guessed: frozenset[str] = frozenset()
    watched: frozenset[str] = frozenset()

    def state(self, lc: LcServer) -> str | None:
        """How its objective stands, in a word; None where it has none."""
        if lc.slo_p99_us is None:
            return None
        if lc.uuid not in self.watched:
            return UNWATCHED
        found = self.states.get(lc.uuid)
        return None if found is None else found.name.lower()

    def measured(self, uuid: str) -> dict[str, Any]:
        return _measured(self.lcs.get(uuid), self.sources.get(uuid), uuid in self.guessed)


def _measured(lc: LcServer | None, source: str | None, guessed: bool) -> dict[str, Any]:
    """Return percentile and ratio to the objective; of what is guessed at the ratio alone."""
    if lc is None or lc.ratio is None or lc.reading is None:
        return {"p99_us": None, "ratio": None, "source": source}
    p99_us = None if guessed else lc.reading.p99_us
    return {"p99_us": p99_us, "ratio": round(lc.ratio, 3), "source": source}


class SloReport:
    """Reports for :class:`~host_agent.control.slo.SloController`; its thread writes, others may read.

    :param options: the operator's
    :param journal: gets every action
    :param count: counts actions for the metrics
    :param escalate: called when nothing on this host helps enough, with the names of the servers; must not block
    """

    def __init__(
        self,
        options: SloOptions,
        journal: ActionJournal,
        *,
        count: Callable[[str, Result], None] = _ignore_count,
        escalate: Escalate = _ignore_event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._journal, self._clock = options, journal, clock
        self.count, self._escalate = count, escalate
        self._actions: deque[dict[str, Any]] = deque(maxlen=_ACTIONS)
        self._titles: Mapping[str, str] = {}
        self._flavors: Mapping[str, str] = {}
        self._shown = _Shown()
        self._violated: dict[str, float] = {}
        self._unsatisfiable: frozenset[str] = frozenset()
        self._violation_s: Mapping[str, float] = {}
        self._looked_s = clock()
        self._foreseen: Mapping[str, int] = {}
        self._foreseen_s = self._foreseen_uplink_s = -math.inf

    def restore(self, status: Mapping[str, Any]) -> None:
        """Go on with the last actions of the agent before."""
        self._actions.extend(status.get("actions", ()))

    @property
    def unsatisfiable(self) -> frozenset[str]:
        """Servers whose objective was found impossible to keep here and has been violated since."""
        return self._unsatisfiable

    def write(self, entry: Entry) -> None:
        """Write to the journal."""
        self._journal.write(entry)

    def violations(self, seen: SloView, sources: SloSources) -> None:
        """Write when an objective begins and ceases to be violated."""
        self._titles = seen.titles
        self._flavors = {lc.uuid: lc.flavor for lc in seen.lcs}
        found = states(seen.objectives, self._options.balm)
        self._charge(seen)
        for lc in seen.objectives:
            uuid, state = lc.uuid, found[lc.uuid]
            measured = _measured(lc, sources.sources.get(uuid), uuid in sources.guessed)
            if state is SloState.VIOLATED and uuid not in self._violated:
                self._violated[uuid] = self._clock()
                self._note("violated", uuid, measured=measured)
            elif state.good and uuid in self._violated:
                seconds = round(self._clock() - self._violated.pop(uuid), 3)
                self._note("met", uuid, what={"violated_s": seconds}, measured=measured)
        self._violated = {uuid: since for uuid, since in self._violated.items() if uuid in found}
        self._unsatisfiable = self._unsatisfiable.intersection(self._violated)

    def _charge(self, seen: SloView) -> None:
        """Count the time since the last look for the servers that were violated then and are still here."""
        now = self._clock()
        passed, self._looked_s = min(now - self._looked_s, _LOOK_MAX_S), now
        before = self._violation_s
        counted = {uuid: before.get(uuid, 0.0) + passed for uuid in self._violated}
        here = {lc.uuid for lc in seen.lcs}
        after = {**before, **counted}
        self._violation_s = {uuid: after[uuid] for uuid in here.intersection(after)}

    def decision(self, seen: SloView, decision: BalmDecision, result: Result) -> None:
        """Write what was decided.

        :param result: of writing the levels
        """
        reasons = tuple(map(str, decision.reasons))
        phase = decision.state.phase.value
        ratios = {lc.uuid: round(lc.ratio, 3) for lc in seen.objectives if lc.ratio is not None}
        for uuid, target in decision.changes.items():
            what: dict[str, Any] = {"level": target.level}
            if target.shares is not None:
                what["shares"] = {node: round(share, 4) for node, share in target.shares.items()}
            measured = {"ratios": ratios, "phase": phase}
            self._note("balm", uuid, what=what, reasons=reasons, measured=measured, result=result)
        if reasons and not decision.changes:
            self._note("balm", "", what={"phase": phase}, reasons=reasons)
        for event in decision.events:
            self._event(event)

    def foreseen(self, seen: SloView, decision: BalmDecision) -> None:
        """Write what would be done, and again now and then for as long as it would be."""
        levels = {uuid: target.level for uuid, target in decision.changes.items()}
        now = self._clock()
        if levels == self._foreseen and now - self._foreseen_s < _FORESEEN_AGAIN_S:
            return
        self._foreseen, self._foreseen_s = levels, now
        self.decision(seen, replace(decision, events=()), Result.WOULD)

    def uplink(
        self,
        seen: SloView,
        decision: BalmDecision,
        use: UplinkUse,
        what: Mapping[str, Any],
        tries: str,
    ) -> None:
        """Write what was decided about an uplink.

        :param what: how best-effort servers are held now
        :param tries: what was tried, a clause that goes on with the uplink's name
        """
        self._uplink_decided(seen, decision, use, what, Result.DONE)
        for event in decision.events:
            match event:
                case CannotFixSloViolation():
                    problem = f"{tries} {use.device} does not keep the objective"
                    for uuid in event.lcs:
                        self._note("uplink_in_vain", uuid, problem=problem)
                case AccountSpent():
                    problem = (
                        f"best-effort servers lost {event.seconds:.0f} s of what they send over {use.device} to it, "
                        "or of their memory traffic, beyond what is its own; it gets that, no more: for the network "
                        "[lanes]strict_cap"
                    )
                    LOG.warning("server %s: %s", event.lc, problem)
                    self._note("account_spent", event.lc, problem=problem)
                case ShouldLeave() | Released() | FloorReached():
                    self._event(event)

    def foreseen_uplink(
        self, seen: SloView, decision: BalmDecision, use: UplinkUse, what: Mapping[str, Any]
    ) -> None:
        """Write what would be done about an uplink, and again now and then for as long as it would be."""
        now = self._clock()
        if decision.changes and now - self._foreseen_uplink_s >= _FORESEEN_AGAIN_S:
            self._foreseen_uplink_s = now
            self._uplink_decided(seen, decision, use, what, Result.WOULD)

    def leaf(self, use: UplinkUse, held: LeafHold) -> None:
        """Write how far best-effort servers are slowed for the sake of other hosts of the leaf now."""
        what = {"uplink": use.device, "best_effort_mbps": held.mbps}
        problem = ""
        if held.spared:
            least = self._options.balm.be_floor_percent
            problem = (
                f"best-effort servers had {held.hour.mean_level:.0f} % of {use.device} in the mean of the last hour, "
                f"and [slo]be_floor_percent allows {least:g}: they are not slowed for other hosts for a while"
            )
            LOG.warning("%s", problem)
        self._note("leaf", "", what=what, problem=problem, result=Result.DONE)

    def _uplink_decided(
        self,
        seen: SloView,
        decision: BalmDecision,
        use: UplinkUse,
        what: Mapping[str, Any],
        result: Result,
    ) -> None:
        if not (decision.changes or decision.reasons):
            return
        phase = decision.state.phase.value
        written = {"uplink": use.device, "phase": phase}
        if decision.changes:
            written |= what
        measured = {
            "ratios": {
                lc.uuid: round(lc.ratio, 3) for lc in seen.objectives if lc.ratio is not None
            },
            "sent_mbps": round(use.sent_mbps, 1),
            "best_effort_sent_mbps": round(sum(use.best_effort_mbps.values()), 1),
        }
        reasons = tuple(map(str, decision.reasons))
        for uuid in decision.changes or ("",):
            self._note(
                "uplink", uuid, what=written, reasons=reasons, measured=measured, result=result
            )

    def rest(self) -> None:
        """Write that the controller has no targets any more."""
        reason = Reason(Term.LATENCY_UNKNOWN, "the fixed levels hold")
        self._note("rest", "", reasons=(str(reason),))

    def _event(self, event: Event) -> None:
        match event:
            case CannotFixSloViolation():
                leave = ", ".join(event.leave)
                problem = f"nothing on this host keeps the objectives; live-migrate one of: {leave}"
                what = {"nodes": list(event.nodes), "leave": list(event.leave)}
                LOG.warning("%s", problem)
                reasons = tuple(map(str, event.reasons))
                for uuid in event.lcs:
                    self._note("cannot_fix", uuid, what=what, reasons=reasons, problem=problem)
                self._unsatisfiable = self._unsatisfiable.union(
                    self._violated.keys() & set(event.lcs)
                )
                self._escalate(event, self._titles)
            case ShouldLeave():
                what = {"in_favour_of": list(event.lcs)}
                problem = "throttling it helps, though not enough: its live migration would"
                self._note("should_leave", event.leave[0], what=what, problem=problem)
                self._escalate(event, self._titles)
            case Released():
                what = {"what": event.what.value, "in_vain_for": list(event.lcs)}
                self._note("release", event.be, what=what)
            case AccountSpent():
                self._account_spent(event)
            case FloorReached():
                least = self._options.balm.be_floor_percent
                problem = (
                    f"its mean level of the last hour is {event.mean_level:.0f} %, and "
                    f"[slo]be_floor_percent allows {least:g}: it is not throttled for a while"
                )
                LOG.warning("server %s: %s", event.be, problem)
                self._note("floor", event.be, what={"for": list(event.lcs)}, problem=problem)

    def _account_spent(self, event: AccountSpent) -> None:
        flavor = self._flavors.get(event.lc, "")
        declares = (
            f"{names.MEMORY_BANDWIDTH_MBPS} of its flavor {flavor} ({event.declared_mbps:.0f})"
        )
        if event.needed_mbps is None:
            advice = f"if it tells the truth, raise {declares}"
        else:
            needed = math.ceil(event.needed_mbps / _ROUND_MBPS) * _ROUND_MBPS
            advice = f"if it tells the truth, raise {declares} to {needed}"
        how = "by their traffic" if event.measured else "by their levels"
        problem = (
            f"best-effort servers lost {event.seconds:.0f} s of their memory traffic to it ({how}) beyond what it "
            f"declares; it gets what it declares, no more; {advice}"
        )
        LOG.warning("server %s: %s", event.lc, problem)
        self._note("account_spent", event.lc, problem=problem)

    def guests(
        self, titles: Mapping[str, str], faults: Iterable[tuple[str, FeedCounts, str]]
    ) -> None:
        """Write how guests misuse their ports, and that they ceased to.

        :param faults: (UUID, what came so far, what is wrong or "")
        """
        for uuid, counts, problem in faults:
            text = problem or "it keeps to the protocol again"
            LOG.warning("latency port of server %s: %s", uuid, text)
            entry = Entry("listen", Result.NOTED, uuid, titles.get(uuid, ""), problem=text)
            self._journal.write(replace(entry, measured=asdict(counts)))

    def _note(
        self, action: str, server: str, *, result: Result = Result.NOTED, **more: Any
    ) -> None:
        self._journal.write(Entry(action, result, server, self._titles.get(server, ""), **more))
        self.count(action, result)
        what = more.get("what") or more.get("measured") or {}
        self._actions.append({"time": _now(), "server": server, "action": action, "what": what})

    # -- status and metrics --------------------------------------------------------------------------------------------

    def show(self, whole: SloView, sources: SloSources) -> None:
        """Take the latencies of whole windows, for status and metrics."""
        self._shown = _Shown(
            {lc.uuid: lc for lc in whole.lcs},
            states(whole.objectives, self._options.balm),
            sources.sources,
            sources.guessed,
            sources.reporting | sources.guessed,
        )

    def status(
        self,
        view: SloView,
        targets: Mapping[str, BeTarget],
        phase: BalmPhase | None,
        sources: SloSources,
        *,
        paused: bool,
    ) -> dict[str, Any]:
        """Return how things stand, for the console.

        :param phase: None while no latency is known
        :param paused: an operator has paused the agent, and nothing is done any more
        """
        shown, counts, problems = self._shown, sources.counts, sources.problems
        lcs = {
            lc.uuid: {
                "name": lc.title,
                "slo_p99_us": lc.slo_p99_us,
                **shown.measured(lc.uuid),
                "samples": found.reading.samples
                if (found := shown.lcs.get(lc.uuid)) and found.reading
                else 0,
                "window_s": self._options.feed.window_s,
                "state": shown.state(lc),
                "feed": asdict(counts[lc.uuid]) if lc.uuid in counts else {},
                "problem": problems.get(lc.uuid, ""),
            }
            for lc in view.lcs
        }
        bes = {
            be.uuid: {
                "name": be.title,
                "level": target.level if (target := targets.get(be.uuid)) else None,
                "shares": target.shares if target else None,
            }
            for be in view.bes
        }
        return {
            "time": _now(),
            "phase": PAUSED if paused else phase.value if phase else "rest",
            "lcs": lcs,
            "bes": bes,
            "actions": list(self._actions),
        }

    def samples(
        self,
        view: SloView,
        phase: BalmPhase | None,
        traffic: Mapping[str, Traffic],
        counts: Mapping[str, FeedCounts],
        taken: Taken,
    ) -> Iterator[Sample]:
        """Yield the metrics."""
        for one in BalmPhase:
            yield "numa_ext_balm_phase", (one.value,), float(one is phase)
        shown, titles = self._shown, view.titles
        for lc in view.lcs:
            if lc.slo_p99_us is not None:
                seconds = self._violation_s.get(lc.uuid, 0.0)
                yield "numa_ext_server_slo_violation_seconds", (lc.uuid, lc.title), seconds
                unwatched = float(lc.uuid not in shown.watched)
                yield "numa_ext_server_slo_unwatched", (lc.uuid, lc.title), unwatched
                in_vain = float(lc.uuid in self._unsatisfiable)
                yield "numa_ext_server_slo_unsatisfiable", (lc.uuid, lc.title), in_vain
        for lc in view.lcs:
            who, measured = (lc.uuid, lc.title), shown.measured(lc.uuid)
            if measured["p99_us"] is not None:
                yield "numa_ext_server_slo_p99_us", who, measured["p99_us"]
            if measured["ratio"] is not None:
                source = measured["source"] or ""
                yield "numa_ext_server_slo_ratio", (*who, source), measured["ratio"]
            if lc.uuid in shown.states:
                yield "numa_ext_server_slo_state", who, float(shown.states[lc.uuid])
            if lc.slo_p99_us is not None:
                spent = self._options.balm.budget_s_per_hour * taken.spent(lc.uuid, self._clock())
                yield "numa_ext_server_account_spent_seconds", who, spent
        for be in view.bes:
            level = taken.hours.get(be.uuid, LevelHour()).mean_level
            yield "numa_ext_server_hour_level_percent", (be.uuid, be.title), level
        for uuid, port in sorted(counts.items()):
            for kind, number in asdict(port).items():
                yield "numa_ext_slo_feed", (uuid, titles.get(uuid, ""), kind), float(number)
        for uuid in sorted(traffic.keys() & titles.keys()):  # others have gone
            found, who = traffic[uuid], (uuid, titles[uuid])
            yield "numa_ext_server_traffic_mbps", (*who, "local"), found.local_mbps
            yield "numa_ext_server_traffic_mbps", (*who, "total"), found.total_mbps

    def histograms(
        self, view: SloView, requests: Mapping[str, RequestHistogram]
    ) -> Iterator[HistogramSample]:
        """Yield the metrics that are histograms.

        :param requests: of servers that report them
        """
        for lc in view.lcs:
            found = requests.get(lc.uuid)
            if found is not None:
                who = (lc.uuid, lc.title, lc.project)
                yield "numa_ext_server_request_seconds", who, found.buckets, found.total_s


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
