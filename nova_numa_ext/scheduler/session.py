# SPDX-License-Identifier: Apache-2.0
"""The state around decisions in one nova-scheduler process: view, recent picks, journal, counters.

Nova calls, per server of a request and in one thread: the filter with all hosts, then (with two hosts or more) the
weigher with those that are left. It does not report which host it took, but it adds one to
``num_instances`` of the HostState it consumed: the next look at the same HostStates shows it. Until then the best host
by all weights so far is assumed.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from nova.scheduler import utils as scheduler_utils
from oslo_config import cfg
from oslo_context import context as oslo_context

from nova_numa_ext.conf import SchedulerOptions, read, register_opts
from nova_numa_ext.policy.numa.multipliers import aggregate_key
from nova_numa_ext.policy.numa.score import SCORED, Floats
from nova_numa_ext.policy.picks import Pick
from nova_numa_ext.scheduler import fleet, gpus, nova_objects, records
from nova_numa_ext.scheduler.decision import Judged, ParsedSpec, decide, parse_spec, reorder
from nova_numa_ext.scheduler.judge import Surroundings
from nova_numa_ext.scheduler.ledger import Ledger
from placement_traits.journal import Journal
from placement_traits.request import concerns_us

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LastDecision:
    """What the filter decided last in this thread, for the weigher and for the next server of the request.

    :param spec: the RequestSpec object; nova uses one object for all servers of a request
    :param parsed: what we read from it
    :param around: what the decision knew
    :param judged: what was decided about the hosts
    :param instances: HostStates with the servers they had when we looked; nova adds one when it picks the host
    :param settled: nova has already placed the server and asks for alternates only
    """

    spec: Any
    parsed: ParsedSpec
    around: Surroundings
    judged: Judged
    instances: Sequence[tuple[Any, int]]
    settled: bool = False


class Engine:
    """Decides for the filter and the weigher.

    :param conf: nova's configuration
    :param options: ours in it
    :param view: the view of Placement
    :param journal: where decisions are recorded, None for nowhere
    :param clock_s: monotonic clock
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        options: SchedulerOptions,
        view: fleet.Fleet,
        journal: Journal | None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conf = conf
        self._options = options
        self._view = view
        self._journal = journal
        self._clock_s = clock_s
        self._ledger = Ledger(options.pick_ttl, options.pick_limit)
        self._planner = gpus.planner(options)
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
            refuse = self._options.on_error == "refuse" and _may_concern_us(spec)
            return [] if refuse else list(host_states)

    def _filter(self, host_states: Sequence[Any], spec: Any) -> list[Any]:
        parsed = parse_spec(spec)
        around, settled = self._surroundings(spec, parsed)
        decision = self._decide(spec, parsed, around, host_states, settled)
        judged = decision.judged
        self._record(
            lambda: records.filter_entry(
                _request_id(), spec, around, judged, settled=settled, limit=self._limit
            )
        )
        self._current.decision = decision
        left = [state for state in host_states if not judged.verdicts[state.uuid].reasons]
        for state in left:
            reorder(state, judged.verdicts[state.uuid])
        if len(left) == 1:
            self._guess(decision, left[0].uuid)
        return left

    def _decide(
        self,
        spec: Any,
        parsed: ParsedSpec,
        around: Surroundings,
        host_states: Sequence[Any],
        settled: bool,
    ) -> LastDecision:
        judged = decide(parsed, spec, host_states, around)
        instances = [(state, state.num_instances) for state in host_states]
        return LastDecision(spec, parsed, around, judged, instances, settled)

    def _surroundings(self, spec: Any, parsed: ParsedSpec) -> tuple[Surroundings, bool]:
        """Return what this decision knows, and whether nova has already placed the server."""
        now_s = self._clock_s()
        last: LastDecision | None = getattr(self._current, "decision", None)
        if last is not None and last.spec is spec:
            picks = self._settle(last)
            snapshot = last.around.snapshot
        else:
            picks = ()
            snapshot = self._view.snapshot()
        settled = any(pick.server == parsed.server for pick in picks)
        around = Surroundings(
            snapshot=snapshot,
            recent=self._ledger.by_host(now_s, without=parsed.server),
            request_picks=picks,
            refuse_stale=self._options.on_stale == "refuse",
            pack=bool(self._conf.compute.packing_host_numa_cells_allocation_strategy),
            planner=self._planner,
        )
        return around, settled

    def _settle(self, last: LastDecision) -> tuple[Pick, ...]:
        """Find the host that nova took for the last server of this request; return all picks of the request."""
        picks = last.around.request_picks
        if last.settled or last.parsed.request is None:
            return picks
        for state, instances in last.instances:
            if state.num_instances > instances:
                pick = replace(last.judged.pick(state.uuid), certain=True)
                self._ledger.record(pick, self._clock_s())
                return (*picks, pick)
        return picks

    def _guess(self, decision: LastDecision, root_uuid: str) -> None:
        if decision.parsed.request is not None and not decision.settled:
            self._ledger.record(decision.judged.pick(root_uuid), self._clock_s())

    # Weigher ----------------------------------------------------------------------------------------------------------

    def weigh(self, weighed: Sequence[Any], spec: Any) -> list[float]:
        """Return the score of each WeighedHost in [0, 1]; never raises, equal scores are no opinion."""
        self._current.multipliers = {}
        try:
            return self._weigh(weighed, spec)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the request
            self._fault("weigher", spec, error)
            return [0.0] * len(weighed)

    def _weigh(self, weighed: Sequence[Any], spec: Any) -> list[float]:
        decision: LastDecision | None = getattr(self._current, "decision", None)
        if decision is None or decision.spec is not spec:
            # The filter is not enabled, or nova skipped filters for this request (az:host): judge without refusing.
            parsed = parse_spec(spec)
            around, settled = self._surroundings(spec, parsed)
            decision = self._decide(spec, parsed, around, [w.obj for w in weighed], settled)
            self._current.decision = decision
        if decision.parsed.request is None:
            return [0.0] * len(weighed)
        judged, host_states = decision.judged, [w.obj for w in weighed]
        multipliers = self._multipliers(host_states)
        self._current.multipliers = dict(
            zip([state.uuid for state in host_states], multipliers[:, 0].tolist(), strict=True)
        )
        result = judged.scores([state.uuid for state in host_states], multipliers[:, 1:])
        totals = np.array([each.weight for each in weighed]) + multipliers[:, 0] * result.values
        best = host_states[int(totals.argmax())].uuid
        if (found := judged.verdicts.get(best)) is not None and not found.reasons:
            self._guess(decision, best)
        self._record(
            lambda: records.weigh_entry(
                _request_id(), spec, weighed, result, totals=totals, limit=self._limit
            )
        )
        values: list[float] = result.values.tolist()
        return values

    def weight_multiplier(self, host_state: Any) -> float:
        """Return the multiplier of our weigher for one host, aggregates considered.

        Nova asks for it host by host, right after :meth:`weigh`, which has looked for all of them.
        """
        known: Mapping[str, float] = getattr(self._current, "multipliers", {})
        found = known.get(host_state.uuid)
        if found is None:
            found = _multiplier(host_state, "weight", self._options.weight_multiplier)
        return found

    def _multipliers(self, host_states: Sequence[Any]) -> Floats:
        """Multiplier of the weigher and of each of its terms for each host; hosts of the same aggregates share them."""
        options = {name: self._options.multiplier(name) for name in ("weight", *SCORED)}
        if not _any_aggregate_sets(host_states, map(aggregate_key, options)):
            return np.tile([*options.values()], (len(host_states), 1))
        rows: list[list[float]] = []
        row_of: dict[tuple[int, ...], int] = {}
        chosen = []
        for state in host_states:
            key = tuple([id(aggregate) for aggregate in state.aggregates])
            row = row_of.get(key)
            if row is None:
                row = row_of[key] = len(rows)
                rows.append([_multiplier(state, name, each) for name, each in options.items()])
            chosen.append(row)
        return np.array(rows).reshape(-1, len(options))[chosen]

    # Faults and records -----------------------------------------------------------------------------------------------

    @property
    def _limit(self) -> int:
        return self._options.journal_hosts

    def _record(self, entry: Callable[[], Mapping[str, Any]]) -> None:
        if self._journal is not None:
            self._journal.append(entry())

    def _fault(self, where: str, spec: Any, error: Exception) -> None:
        self.faults[where] += 1
        self._current.decision = None
        LOG.exception(
            "NumaExt %s failed for request %s, server %s (fault %d of this process); the answer is %r.",
            where,
            _request_id(),
            getattr(spec, "instance_uuid", None),
            self.faults.total(),
            self._options.on_error if where == "filter" else "no opinion",
        )
        try:
            self._record(lambda: records.fault_entry(_request_id(), spec, where, error))
        except Exception:
            LOG.exception("The fault could not be recorded in the decision journal.")


def _any_aggregate_sets(host_states: Iterable[Any], keys: Iterable[str]) -> bool:
    """Return whether the aggregates of any of the hosts have one of these keys."""
    watched = frozenset(keys)
    every = list(chain.from_iterable([state.aggregates for state in host_states]))
    different = dict(zip(map(id, every), every, strict=True)).values()
    return not all(watched.isdisjoint(aggregate.metadata) for aggregate in different)


def _multiplier(host_state: Any, name: str, option: float) -> float:
    """Return ``option``, or what the host's aggregates set instead."""
    if not host_state.aggregates:
        return option
    value: float = scheduler_utils.get_weight_multiplier(host_state, aggregate_key(name), option)
    return value if name == "weight" else max(0.0, value)


def _may_concern_us(spec: Any) -> bool:
    """Return whether a request concerns us, after a fault; True when the fault was in reading the request."""
    try:
        extra_specs = spec.flavor.extra_specs if "extra_specs" in spec.flavor else {}
        return concerns_us(extra_specs, nova_objects.image_traits(spec))
    except Exception:
        LOG.exception(
            "Whether the request concerns NumaExt is unknown; it is refused as if it did."
        )
        return True


def _request_id() -> str | None:
    current = oslo_context.get_current()
    return current.request_id if current is not None else None


_engine: Engine | None = None
_engine_lock = threading.Lock()


def engine() -> Engine:
    """Return the engine of this process, made at the first decision: nova-scheduler forks its workers before that."""
    global _engine  # noqa: PLW0603 - nova makes filters and weighers itself, without arguments
    current = _engine
    if current is not None:  # nova's weighing asks once per host
        return current
    with _engine_lock:
        if _engine is None:
            from nova import conf

            register_opts(conf.CONF)
            options = read(conf.CONF)
            journal = (
                Journal(
                    Path(options.journal_path),
                    options.journal_max_mb * 1024 * 1024,
                    options.journal_backups,
                    name=f"decision journal {options.journal_path}",
                )
                if options.journal_path
                else None
            )
            _engine = Engine(conf.CONF, options, fleet.from_nova(conf.CONF, options), journal)
        return _engine


def use(replacement: Engine | None) -> None:
    """Make nova's filter and weigher use another engine; None makes a new one at the next decision."""
    global _engine  # noqa: PLW0603
    with _engine_lock:
        _engine = replacement
