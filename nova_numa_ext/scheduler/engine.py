# SPDX-License-Identifier: Apache-2.0
"""The state around decisions in one nova-scheduler process: view, recent picks, journal, counters.

Nova calls, per server of a request and in one thread: the filter with all hosts, then (with two hosts or more) the
weigher with those that are left. It never says which host it took. But it adds one to ``num_instances`` of the
HostState it consumed, so the next look at the same HostStates tells for sure; until then the best host by all
weights so far is our guess.
"""

import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nova.scheduler import utils as scheduler_utils
from oslo_config import cfg
from oslo_context import context as oslo_context

from nova_numa_ext.conf import GROUP, register_opts
from nova_numa_ext.journal import Journal
from nova_numa_ext.policy.picks import Pick
from nova_numa_ext.policy.score import SCORED, Offer, Score, scores
from nova_numa_ext.policy.terms import Term
from nova_numa_ext.request import concerns_us
from nova_numa_ext.scheduler import facts, fleet, gpus, records
from nova_numa_ext.scheduler.decision import Surroundings, Verdict, Wish, decide, wish
from nova_numa_ext.scheduler.ledger import Ledger

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the filter decided last in this thread, for the weigher and for the next server of the request.

    :param spec: the RequestSpec object; nova uses one object for all servers of a request
    :param wanted: what it asks
    :param around: what the decision knew
    :param verdicts: by root provider of the host
    :param settled: nova has already placed the server; it only wants alternates
    """

    spec: Any
    wanted: Wish
    around: Surroundings
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    settled: bool = False


class Engine:
    """Decides for the filter and the weigher.

    :param conf: configuration with ``[numa_ext]`` registered
    :param view: the view of Placement
    :param journal: where decisions are noted, None for nowhere
    :param clock_s: monotonic clock
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        view: fleet.Fleet,
        journal: Journal | None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conf = conf
        self._view = view
        self._journal = journal
        self._clock_s = clock_s
        self._ledger = Ledger(conf[GROUP].pick_ttl, conf[GROUP].pick_limit)
        self._host_cells = facts.HostCells()
        self._planner = gpus.planner(conf)
        self._current = threading.local()
        self.faults: Counter[str] = Counter()

    # Filter -----------------------------------------------------------------------------------------------------------

    def filter(self, host_states: Sequence[Any], spec: Any) -> list[Any]:
        """Return the hosts that pass, with their candidates ordered; never raises."""
        if scheduler_utils.request_is_rebuild(spec):
            return list(host_states)
        try:
            return self._filter(host_states, spec)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the request
            self._fault("filter", spec, error)
            refuse = self._conf[GROUP].on_error == "refuse" and _speaks_to_us(spec)
            return [] if refuse else list(host_states)

    def _filter(self, host_states: Sequence[Any], spec: Any) -> list[Any]:
        wanted = wish(spec)
        around, settled = self._surroundings(spec, wanted)
        with _collector_paused():
            verdicts = decide(wanted, spec, host_states, around, self._host_cells)
        decision = Decision(spec, wanted, around, {v.host_state.uuid: v for v in verdicts}, settled)
        passed = [verdict for verdict in verdicts if not verdict.reasons]
        for verdict in passed:
            _reorder(verdict)
        self._current.decision = decision
        if len(passed) == 1:
            self._guess(decision, passed[0])
        self._note(
            records.filter_entry(
                _request_id(), spec, wanted, around, verdicts, settled=settled, limit=self._limit
            )
        )
        return [verdict.host_state for verdict in passed]

    def _surroundings(self, spec: Any, wanted: Wish) -> tuple[Surroundings, bool]:
        """Return what this decision knows, and whether nova has already placed the server."""
        now_s = self._clock_s()
        last: Decision | None = getattr(self._current, "decision", None)
        if last is not None and last.spec is spec:
            picks = self._settle(last)
            snapshot = last.around.snapshot
        else:
            picks = ()
            snapshot = self._view.snapshot()
        settled = any(pick.server == wanted.server for pick in picks)
        around = Surroundings(
            snapshot=snapshot,
            recent=self._ledger.by_host(now_s, without="" if settled else wanted.server),
            request_picks=picks,
            refuse_stale=self._conf[GROUP].on_stale == "refuse",
            pack=bool(self._conf.compute.packing_host_numa_cells_allocation_strategy),
            planner=self._planner,
        )
        return around, settled

    def _settle(self, last: Decision) -> tuple[Pick, ...]:
        """Find the host that nova took for the last server of this request; return all picks of the request."""
        picks = last.around.request_picks
        if last.settled or last.wanted.request is None:
            return picks
        for verdict in last.verdicts.values():
            if verdict.offer and verdict.host_state.num_instances > verdict.instances:
                pick = replace(_pick(last.wanted, verdict), certain=True)
                self._ledger.record(pick, self._clock_s())
                return (*picks, pick)
        return picks

    def _guess(self, decision: Decision, verdict: Verdict) -> None:
        if decision.wanted.request is not None and not decision.settled:
            self._ledger.record(_pick(decision.wanted, verdict), self._clock_s())

    # Weigher ----------------------------------------------------------------------------------------------------------

    def weigh(self, weighed: Sequence[Any], spec: Any) -> list[float]:
        """Return the score of each WeighedHost in [0, 1]; never raises, equal scores are no opinion."""
        try:
            return self._weigh(weighed, spec)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the request
            self._fault("weigher", spec, error)
            return [0.0] * len(weighed)

    def _weigh(self, weighed: Sequence[Any], spec: Any) -> list[float]:
        decision: Decision | None = getattr(self._current, "decision", None)
        if decision is None or decision.spec is not spec:
            # The filter is not enabled, or nova skipped filters for this request (az:host): judge without refusing.
            wanted = wish(spec)
            around, settled = self._surroundings(spec, wanted)
            verdicts = decide(wanted, spec, [w.obj for w in weighed], around, self._host_cells)
            decision = Decision(
                spec, wanted, around, {v.host_state.uuid: v for v in verdicts}, settled
            )
            self._current.decision = decision
        request = decision.wanted.request
        if request is None:
            return [0.0] * len(weighed)
        judged = [decision.verdicts.get(w.obj.uuid) for w in weighed]
        offers = [verdict.offer if verdict and verdict.offer else Offer() for verdict in judged]
        with _collector_paused():
            result = scores(request, offers, self._multipliers([w.obj for w in weighed]))
        self._guess_best(decision, weighed, result)
        self._note(records.weigh_entry(_request_id(), spec, weighed, result, self._limit))
        return [score.value for score in result]

    def weight_multiplier(self, host_state: Any) -> float:
        """Return the multiplier of our weigher for one host, aggregates considered."""
        return _multiplier(host_state, "weight", self._conf[GROUP].weight_multiplier)

    def _multipliers(self, host_states: Sequence[Any]) -> list[Mapping[Term, float]]:
        """Weight of each term for each host; most hosts are in no aggregate and share the options."""
        options = {term: float(self._conf[GROUP][f"{term}_multiplier"]) for term in SCORED}
        return [
            {term: _multiplier(state, term, option) for term, option in options.items()}
            if state.aggregates
            else options
            for state in host_states
        ]

    def _guess_best(
        self, decision: Decision, weighed: Sequence[Any], result: Sequence[Score]
    ) -> None:
        totals = [
            weight.weight + self.weight_multiplier(weight.obj) * score.value
            for weight, score in zip(weighed, result, strict=True)
        ]
        best = weighed[totals.index(max(totals))].obj
        verdict = decision.verdicts.get(best.uuid)
        if verdict is not None and not verdict.reasons:
            self._guess(decision, verdict)

    # Faults and notes -------------------------------------------------------------------------------------------------

    @property
    def _limit(self) -> int:
        limit: int = self._conf[GROUP].journal_hosts
        return limit

    def _note(self, entry: Mapping[str, Any]) -> None:
        if self._journal is not None:
            self._journal.append(entry)

    def _fault(self, where: str, spec: Any, error: Exception) -> None:
        self.faults[where] += 1
        self._current.decision = None
        LOG.exception(
            "NumaExt %s failed for request %s, server %s (fault %d of this process); the answer is %r.",
            where,
            _request_id(),
            getattr(spec, "instance_uuid", None),
            self.faults.total(),
            self._conf[GROUP].on_error if where == "filter" else "no opinion",
        )
        try:
            self._note(records.fault_entry(_request_id(), spec, where, error))
        except Exception:
            LOG.exception("The fault could not be noted in the decision journal.")


def _multiplier(host_state: Any, name: str, option: float) -> float:
    """Return ``option``, or what the host's aggregates say instead."""
    if not host_state.aggregates:
        return option
    value: float = scheduler_utils.get_weight_multiplier(
        host_state, f"numa_ext_{name}_multiplier", option
    )
    return value if name == "weight" else max(0.0, value)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector out of a decision.

    A decision about thousands of hosts makes many small objects and no cycles; a full collection in its middle walks
    all of nova's objects for nothing, which on 6,000 hosts takes longer than the decision.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _reorder(verdict: Verdict) -> None:
    """Give nova the candidates best first; a host without candidates (nova asked for none) is left as it is."""
    state, kept = verdict.host_state, verdict.ordering.kept
    if kept:
        state.allocation_candidates = [
            state.allocation_candidates[ranked.candidate.index] for ranked in kept
        ]


def _pick(wanted: Wish, verdict: Verdict) -> Pick:
    assert wanted.request is not None and verdict.offer is not None
    candidate = verdict.offer.candidate
    chosen = verdict.ordering.kept[0].gpus if verdict.ordering.kept else None
    return Pick(
        server=wanted.server,
        host=verdict.host_state.uuid,
        tier=wanted.request.tier,
        interference_class=wanted.request.interference_class,
        l3=candidate.l3 if candidate else (),
        nodes=verdict.offer.nodes,
        gpus=chosen.providers if chosen else (),
        gpu_comm=wanted.request.gpu_comm,
    )


def _speaks_to_us(spec: Any) -> bool:
    extra_specs = spec.flavor.extra_specs if "extra_specs" in spec.flavor else {}
    return concerns_us(extra_specs, facts.image_traits(spec))


def _request_id() -> str | None:
    current = oslo_context.get_current()
    return current.request_id if current is not None else None


_engine: Engine | None = None
_engine_lock = threading.Lock()


def engine() -> Engine:
    """Return the engine of this process, made at the first decision: nova-scheduler forks its workers before that."""
    global _engine  # noqa: PLW0603 - nova makes filters and weighers itself, without arguments
    with _engine_lock:
        if _engine is None:
            from nova import conf

            register_opts(conf.CONF)
            options = conf.CONF[GROUP]
            journal = (
                Journal(
                    Path(options.journal_path),
                    options.journal_max_mb * 1024 * 1024,
                    options.journal_backups,
                )
                if options.journal_path
                else None
            )
            _engine = Engine(conf.CONF, fleet.from_nova(conf.CONF), journal)
        return _engine


def use(replacement: Engine | None) -> None:
    """Make nova's filter and weigher use another engine; None makes a new one at the next decision."""
    global _engine  # noqa: PLW0603
    with _engine_lock:
        _engine = replacement
