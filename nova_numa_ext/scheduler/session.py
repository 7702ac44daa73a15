# SPDX-License-Identifier: Apache-2.0
"""The state around decisions in one nova-scheduler process: view, recent picks, journal, counters.

Nova calls, per server of a request and in one thread: the filter with all hosts, then (with two hosts or more) the
weigher with those that are left. It does not report which host it took, but it adds one to
``num_instances`` of the HostState it consumed: the next look at the same HostStates shows it. Until then the best host
by all weights so far is assumed, for ranking only: a claim may fail, ``[filter_scheduler]host_subset_size`` and
alternates take another host, and a request that gets no host gives back what its earlier servers had.

What is known of a request hangs on its RequestSpec, which nova uses for all servers of the request and drops with its
answer: nothing of a request outlives it but counts and picks. nova-scheduler decides in up to 64 threads at once.
"""

import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from nova.scheduler import utils as scheduler_utils
from oslo_config import cfg
from oslo_context import context as oslo_context

from nova_numa_ext.conf import GROUP, SchedulerOptions
from nova_numa_ext.gpu_options import rules
from nova_numa_ext.job_hint import hint_keys
from nova_numa_ext.policy.modes import Mode
from nova_numa_ext.policy.network.singles import Singles
from nova_numa_ext.policy.numa.score import SCORED, Floats, Scores
from nova_numa_ext.policy.picks import Pick
from nova_numa_ext.scheduler import (
    aggregates,
    fleet,
    gpus,
    moves,
    planned,
    records,
    remote_gpus,
)
from nova_numa_ext.scheduler.decision import (
    Judged,
    ParsedSpec,
    asks_us,
    decide,
    judge,
    parse_spec,
    reorder,
)
from nova_numa_ext.scheduler.group_plan import GroupPlaces, GroupPlanner
from nova_numa_ext.scheduler.group_shortlist import GroupShortlist
from nova_numa_ext.scheduler.judge import DecisionContext
from nova_numa_ext.scheduler.ledger import Ledger
from nova_numa_ext.scheduler.measures import Measures
from nova_numa_ext.scheduler.shortlist import ByScore, LaterFilters, Question, Shortlist
from nova_numa_ext.scheduler.single_leafs import SingleLeafs
from placement_traits.errors import NumaExtError
from placement_traits.journal import Journal
from placement_traits.snapshot import FleetSnapshot

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pass:
    """What was decided about one server of a request, for the weigher and for the request's next server.

    :param parsed: what we read from the RequestSpec
    :param context: what the decision knew
    :param judged: what was decided about the hosts
    :param instances: HostStates with the servers they had when we looked; nova adds one when it picks the host
    :param settled: nova has already placed the server and asks for alternates only
    """

    parsed: ParsedSpec
    context: DecisionContext
    judged: Judged
    instances: Sequence[tuple[weakref.ref[Any], int]]
    settled: bool = False


@dataclass(frozen=True, slots=True)
class _Lists:
    """What makes the lists of hosts for nova.

    :param shortlist: for all requests
    :param groups: for server groups, None where these are not planned
    """

    shortlist: Shortlist
    groups: GroupShortlist | None


@dataclass(frozen=True, slots=True)
class BeyondHosts:
    """What decides beside the hosts themselves; None where it decides nothing.

    :param groups: plans server groups on the fabric
    :param remote: pools and leases of remote GPUs
    :param singles: leafs as servers of no group find them
    """

    groups: GroupPlanner | None = None
    remote: remote_gpus.RemoteGpuSource | None = None
    singles: SingleLeafs | None = None


_HOSTS_ALONE: Final = BeyondHosts()


class Engine:
    """Decides for the filter and the weigher.

    :param conf: nova's configuration
    :param options: ours in it
    :param view: the view of Placement
    :param journal: where decisions are recorded, None for nowhere
    :param clock_s: monotonic clock
    :param measures: what is counted of decisions, None for nothing
    :param beyond: groups, fabrics and remote GPUs
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        options: SchedulerOptions,
        view: fleet.ViewSource,
        journal: Journal | None,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        measures: Measures | None = None,
        beyond: BeyondHosts = _HOSTS_ALONE,
    ) -> None:
        self._conf = conf
        self._options = options
        self._view = view
        self._groups, self._remote, self._singles = beyond.groups, beyond.remote, beyond.singles
        self._journal = journal
        self._clock_s = clock_s
        self._measures = measures or Measures()
        self._ledger = Ledger(options.pick_ttl, options.pick_limit)
        self._planner = gpus.GpuPlanner(rules(options.gpu, GROUP))
        self._hint_keys = hint_keys(options.job_hint_keys, GROUP)
        self._passes: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()
        # .asks_us: the request that this thread weighs has a key of ours; .planned: a plan orders its hosts
        self._thread = threading.local()
        self._lists: _Lists | None = None
        self._lock = threading.Lock()
        self.faults: Counter[str] = Counter()

    def configure(self, options: SchedulerOptions) -> None:
        """Take mutable options as they are now; decisions that run may see both the old and the new ones."""
        self._options = options
        self._ledger.keep(options.pick_ttl, options.pick_limit)

    def begin(self) -> None:
        """Begin to keep the view of Placement, before a request needs it."""
        self._view.snapshot()

    # Filter -----------------------------------------------------------------------------------------------------------

    def filter(self, host_states: Sequence[Any], spec: Any) -> Sequence[Any]:
        """Return the hosts that pass, with their candidates ordered; never raises.

        A request that has no key of ours gets back the very list it came with.
        """
        try:
            if scheduler_utils.request_is_rebuild(spec) or not asks_us(spec):
                return host_states
            return self._filter(host_states, spec)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the request
            self._passes.pop(spec, None)
            self._fault("filter", spec, error)
            return aggregates.unjudged(host_states, self._options)

    def _filter(self, host_states: Sequence[Any], spec: Any) -> Sequence[Any]:
        began = time.perf_counter()
        first = spec not in self._passes
        question, settled = self._question(host_states, spec)
        modes = question.context.modes
        observed = {uuid for uuid, mode in modes.items() if not mode.acts}
        judged, left = (
            self._act_beside(question, observed, first=first)
            if observed
            else self._act(question, first=first)
        )
        if not left and not settled and judged.group is not None:
            self._undo(judged.group)
        found = self._remember(question, judged, left, settled)
        self._record(
            lambda: records.filter_entry(
                _request_id(), spec, found, offered=len(host_states), limit=self._limit
            ),
            spec,
        )
        if len(left) == 1:
            self._guess(found, left[0].uuid)
        elif not left and not found.settled:  # nova gives the request up, with all its servers
            self._ledger.forget(pick.server for pick in found.context.request_picks)
        took = time.perf_counter() - began
        self._measures.filtered(judged, len(left), settled=settled, seconds=took)
        return left

    def _act(self, question: Question, *, first: bool) -> tuple[Judged, list[Any]]:
        """Judge hosts and order their candidates; returns those that pass.

        :param first: it is the first pass of the request
        """
        planned = self._act_on_group(question, first=first)
        if planned is not None:
            return planned
        shortlist = self._made_lists().shortlist
        if first and shortlist.applies(question):
            return shortlist.judge(
                question, judge(question.parsed, question.spec, question.context)
            )
        judged = self._judged(question)
        left = [state for state in question.host_states if not judged.verdicts[state.uuid].refused]
        for state in left:
            reorder(state, judged.verdicts[state.uuid])
        return judged, left

    def _act_on_group(self, question: Question, *, first: bool) -> tuple[Judged, list[Any]] | None:
        """As :meth:`_act` for the servers of a group; None where they are placed like all others."""
        group, lists = question.parsed.group, self._made_lists().groups
        if group is None or group.problem or lists is None:
            return None
        if first:
            one = judge(question.parsed, question.spec, question.context)
            return lists.judge(question, group, one)
        last = self._passes[question.spec]
        plan, picks = last.judged.group, question.context.request_picks
        if plan is None:
            return None
        if len(picks) > len(last.context.request_picks):
            in_order = self._conf.filter_scheduler.host_subset_size == 1
            plan = plan.after(picks[-1].host, in_order=in_order)
        return lists.next(plan, question, last.judged, self._judged)

    def _act_beside(
        self, question: Question, observed: Set[str], *, first: bool
    ) -> tuple[Judged, Sequence[Any]]:
        """As :meth:`_act`, where some hosts are only observed: all of these pass untouched.

        :param observed: their root providers
        """
        host_states = question.host_states
        seen = replace(
            question, host_states=[state for state in host_states if state.uuid in observed]
        )
        shortlist = self._made_lists().shortlist
        verdict = judge(question.parsed, question.spec, question.context)
        judged = shortlist.observe(seen, verdict) if shortlist.applies(seen) else self._judged(seen)
        if len(seen.host_states) == len(host_states):
            return judged, host_states
        acting = [state for state in host_states if state.uuid not in observed]
        acted, passing = self._act(replace(question, host_states=acting), first=first)
        left = observed | {state.uuid for state in passing}
        verdicts = {**acted.verdicts, **judged.verdicts}
        both = Judged(question.parsed, verdicts, len(host_states), acted.exhausted, acted.group)
        return both, [state for state in host_states if state.uuid in left]

    @staticmethod
    def _judged(question: Question) -> Judged:
        return decide(question.parsed, question.spec, question.host_states, question.context)

    def _question(self, host_states: Sequence[Any], spec: Any) -> tuple[Question, bool]:
        plan = planned.read(spec, host_states, self._hint_keys, time.time())
        among = host_states if plan is None else plan.among(host_states)
        parsed = parse_spec(spec, among, plan)
        context, settled = self._decision_context(among, spec, parsed)
        return Question(spec, parsed, context, among), settled

    def _remember(
        self, question: Question, judged: Judged, left: Sequence[Any], settled: bool
    ) -> Pass:
        """Keep a decision for the weigher and the next server, as long as nova keeps the RequestSpec."""
        instances = [(weakref.ref(state), state.num_instances) for state in left]
        found = Pass(question.parsed, question.context, judged, instances, settled)
        self._passes[question.spec] = found
        return found

    def _made_lists(self) -> "_Lists":
        """Return what makes lists; made at the first request, when nova has loaded its own filters and weighers."""
        with self._lock:
            if self._lists is None:
                by_score, later = ByScore(self._conf, self._multipliers), LaterFilters(self._conf)
                makers = (remote_gpus.ByNearness(by_score), by_score)
                groups = self._groups
                self._lists = _Lists(
                    Shortlist(self._conf, lambda: self._options.shortlist, makers, later),
                    GroupShortlist(by_score, later, groups, self._measures) if groups else None,
                )
            return self._lists

    def _decision_context(
        self, host_states: Sequence[Any], spec: Any, parsed: ParsedSpec
    ) -> tuple[DecisionContext, bool]:
        """Return what this decision knows, and whether nova has already placed the server."""
        last = self._passes.get(spec)
        picks = self._settle(last) if last is not None else ()
        snapshot = last.context.snapshot if last is not None else self._view.snapshot()
        settled = any(pick.server == parsed.server for pick in picks)
        net_block, closed = self._leafs_of_single(host_states, spec, parsed, snapshot)
        context = DecisionContext(
            snapshot=snapshot,
            recent=self._ledger.by_host(self._clock_s(), without=parsed.server),
            request_picks=picks,
            refuse_stale=self._options.on_stale == "refuse",
            refuse_silent=self._options.on_silent == "refuse",
            pack=bool(self._conf.compute.packing_host_numa_cells_allocation_strategy),
            planner=self._planner,
            modes=aggregates.gentle(host_states, self._options.mode),
            reach=remote_gpus.reach(
                self._remote, spec, parsed.request, host_states, len(picks) - settled
            ),
            net_block=net_block,
            closed=closed,
        )
        return context, settled

    def _leafs_of_single(
        self, host_states: Sequence[Any], spec: Any, parsed: ParsedSpec, snapshot: FleetSnapshot
    ) -> tuple[Mapping[str, float], frozenset[str]]:
        """Return how well hosts suit a server of no group by their leafs, and those that are refused to it."""
        if self._singles is None or parsed.group is not None or parsed.request is None:
            return {}, frozenset()
        found = self._singles.of(host_states, snapshot.arrays)
        refuses = self._options.net.singles is Singles.REFUSE
        if not refuses or not found or moves.is_move(spec, host_states):
            return found, frozenset()
        return found, self._singles.closed(found)

    def _settle(self, last: Pass) -> tuple[Pick, ...]:
        """Find the host that nova took for the last server of this request; return all picks of the request."""
        picks = last.context.request_picks
        if last.settled or last.parsed.request is None:
            return picks
        for reference, instances in last.instances:
            state = reference()
            if state is not None and state.num_instances > instances:
                pick = last.judged.pick(state.uuid)
                self._ledger.record(pick, self._clock_s())
                return (*picks, pick)
        return picks

    def _undo(self, plan: GroupPlaces) -> None:
        """Give back a group's claim; where that fails the sweep does it later."""
        if self._groups is None:
            return
        try:
            self._groups.release(plan)
        except NumaExtError as error:
            LOG.warning("Server group %s holds leafs without a server: %s", plan.group.uuid, error)

    def _guess(self, decision: Pass, root_uuid: str) -> None:
        if decision.parsed.request is not None and not decision.settled:
            self._ledger.record(decision.judged.pick(root_uuid), self._clock_s())

    # Weigher ----------------------------------------------------------------------------------------------------------

    def weigh(self, weighed: Sequence[Any], spec: Any) -> list[float]:
        """Return the score of each WeighedHost in [0, 1]; never raises, equal scores are no opinion."""
        self._thread.asks_us = self._thread.planned = False
        try:
            if asks_us(spec):
                self._thread.asks_us = True
                return self._weigh(weighed, spec)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the request
            self._passes.pop(spec, None)
            self._fault("weigher", spec, error)
        return [0.0] * len(weighed)

    def _weigh(self, weighed: Sequence[Any], spec: Any) -> list[float]:
        began = time.perf_counter()
        host_states = [each.obj for each in weighed]
        decision = self._passes.get(spec)
        if decision is None:
            # The filter is not enabled, or nova skipped filters for this request (az:host): judge without refusing.
            question, settled = self._question(host_states, spec)
            judged = self._judged(question)
            decision = self._remember(question, judged, host_states, settled)
        if decision.parsed.request is None:
            return [0.0] * len(weighed)
        judged = decision.judged
        multipliers = self._multipliers(host_states)
        result = judged.scores([state.uuid for state in host_states], multipliers[:, 1:])
        others = np.array([each.weight for each in weighed])
        given = self._given(host_states, result)
        if judged.group is not None:
            self._thread.planned = True
            given = judged.group.weights([state.uuid for state in host_states], others)
            multipliers[:, 0] = 1.0
        totals = others + multipliers[:, 0] * given
        best = int(totals.argmax())
        found = judged.verdicts.get(host_states[best].uuid)
        if found is None or not found.refused:
            self._guess(decision, host_states[best].uuid)
        enforced = best
        if judged.group is None:
            enforced = int((others + multipliers[:, 0] * result.values).argmax())
        self._record(
            lambda: {
                **records.weigh_entry(
                    _request_id(),
                    spec,
                    weighed,
                    result,
                    judged=judged,
                    totals=totals,
                    limit=self._limit,
                ),
                **records.would_choose(host_states, best, enforced),
            },
            spec,
        )
        took = time.perf_counter() - began
        self._measures.weighed(other_first=best != enforced, seconds=took)
        values: list[float] = given.tolist()
        return values

    def _given(self, host_states: Sequence[Any], result: Scores) -> Floats:
        """Return the scores that nova gets: no opinion of observed hosts, which among others is the mean of these."""
        modes = aggregates.gentle(host_states, self._options.mode)
        acting = np.array([modes.get(state.uuid, Mode.ENFORCE).acts for state in host_states], bool)
        neutral = result.values[acting].mean() if acting.any() else 0.0
        return np.where(acting, result.values, neutral)

    def weight_multiplier(self, host_state: Any) -> float:
        """Return the multiplier of our weigher for one host, aggregates considered.

        Nova asks for it host by host, right after :meth:`weigh`; for scores that are all 0 it is not looked up.
        """
        option = self._options.weight_multiplier
        if not getattr(self._thread, "asks_us", False):
            return option
        if getattr(self._thread, "planned", False):
            return 1.0
        return self._weight(host_state, option)

    def _weight(self, host_state: Any, option: float) -> float:
        """Multiplier of the weigher for one host; observed hosts have the same, so that nova's own order stays."""
        acts = aggregates.mode(host_state, self._options.mode).acts
        return aggregates.multiplier(host_state, "weight", option) if acts else option

    def _multipliers(self, host_states: Sequence[Any]) -> Floats:
        """Multiplier of the weigher and of each of its terms for each host."""
        weight = self._options.weight_multiplier
        options = {name: self._options.multiplier(name) for name in SCORED}
        return aggregates.for_each(
            host_states,
            lambda state: [
                self._weight(state, weight),
                *(aggregates.multiplier(state, name, each) for name, each in options.items()),
            ],
        )

    # Faults and records -----------------------------------------------------------------------------------------------

    @property
    def _limit(self) -> int:
        return self._options.journal_hosts

    def _record(self, entry: Callable[[], Mapping[str, Any]], spec: Any) -> None:
        """Keep an entry for people; whatever goes wrong with it, the decision stands."""
        if self._journal is None:
            return
        try:
            self._journal.append({**entry(), "controller": self._conf.host})
        except Exception:
            self._count("record")
            LOG.exception(
                "The decision about server %s is not in the journal.",
                getattr(spec, "instance_uuid", None),
            )

    def _fault(self, where: str, spec: Any, error: Exception) -> None:
        count = self._count(where)
        LOG.exception(
            "NumaExt %s failed for request %s, server %s (fault %d of this process); the answer is %r.",
            where,
            _request_id(),
            getattr(spec, "instance_uuid", None),
            count,
            self._options.on_error if where == "filter" else "no opinion",
        )
        self._record(lambda: records.fault_entry(_request_id(), spec, where, error), spec)

    def _count(self, where: str) -> int:
        self._measures.failed(where)
        with self._lock:
            self.faults[where] += 1
            return self.faults.total()


def _request_id() -> str | None:
    current = oslo_context.get_current()
    return current.request_id if current is not None else None
