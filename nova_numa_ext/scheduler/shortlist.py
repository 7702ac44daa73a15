# SPDX-License-Identifier: Apache-2.0
"""Which hosts of a request are judged, and which of them nova sees: those that are probably best, in the first pass.

Nova's own filters after ours are slow, so nova gets a list of hosts. The list is ordered by the total of all weighers:
nova's own over all hosts, and our coarse score (:mod:`nova_numa_ext.policy.numa.coarse`). No filter learns that a
later one refused all that it let pass; so ours asks nova's own later filters itself, until enough hosts have passed
them all. A short list thus refuses nothing: where few hosts can take the server, all hosts are judged.
"""

import operator
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from nova.scheduler import filters, weights
from oslo_config import cfg

from nova_numa_ext.policy.numa import coarse, shortlist
from nova_numa_ext.policy.numa.coarse import CoarseRequest, Known, PoolRequest
from nova_numa_ext.policy.numa.coarse_terms import Integers, Mask
from nova_numa_ext.policy.numa.score import Floats
from nova_numa_ext.policy.numa.shortlist import Size
from nova_numa_ext.scheduler import compat, gpus, nova_objects, single_leafs
from nova_numa_ext.scheduler.aggregates import for_each
from nova_numa_ext.scheduler.decision import Judged, ParsedSpec, reorder
from nova_numa_ext.scheduler.judge import DecisionContext, HostVerdict
from placement_traits.fleet_arrays import UNKNOWN
from placement_traits.snapshot import ViewState
from placement_traits.workload_request import WorkloadRequest

_MOST_HOSTS_REMEMBERED: Final = 50_000
_MOST_KINDS_REMEMBERED: Final = 1_000
_NOVAS: Final = "nova.scheduler.filters."
_OURS: Final = "nova_numa_ext."


class SeenHosts:
    """What earlier requests saw of the NUMA cells and devices of hosts: for their order only, never for a verdict.

    A host is read again when the time of its last update or its usage is another one. Safe to use from several threads:
    what :meth:`known` returns is a copy.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._row: dict[str, int] = {}
        self._stamps: list[object] = []
        self._cells = np.zeros((0, 0), coarse.CELL)
        self._pools = np.zeros((0, 0), coarse.POOL)
        self._kinds: dict[Hashable, int] = {}
        self._kind_of: list[Mapping[str, Any]] = []

    def known(
        self, host_states: Sequence[Any], requests: Sequence[Any]
    ) -> tuple[Known, list[PoolRequest]]:
        """Return what is remembered of these hosts, and which of their devices are asked for.

        :param requests: nova's PCI requests
        """
        with self._lock:
            if (
                len(self._row) + len(host_states) > _MOST_HOSTS_REMEMBERED
                and any(state.uuid not in self._row for state in host_states)
            ) or len(self._kinds) > _MOST_KINDS_REMEMBERED:
                self._forget()
            rows = self._rows(host_states)
            stamps, known = map(_stamp, host_states), self._stamps
            changed = {
                row: (state, stamp)
                for row, state, stamp in zip(rows, host_states, stamps, strict=True)
                if known[row] != stamp
            }
            self._write(changed)
            asked = [
                PoolRequest(
                    one.count,
                    np.array(nova_objects.pools_for(one, self._kind_of), bool),
                    nova_objects.numa_policy(one),
                    nova_objects.is_by_alias(one),
                )
                for one in requests
            ]
            return Known(self._cells[rows], self._pools[rows]), asked

    def _rows(self, host_states: Sequence[Any]) -> list[int]:
        for state in host_states:
            if state.uuid not in self._row:
                self._row[state.uuid] = len(self._stamps)
                self._stamps.append(None)
        return [self._row[state.uuid] for state in host_states]

    def _write(self, changed: Mapping[int, tuple[Any, tuple[Any, ...]]]) -> None:
        rows, states = list(changed), [state for state, _ in changed.values()]
        self._cells = _filled(self._cells, len(self._stamps), rows, [*map(_cells, states)])
        self._pools = _filled(self._pools, len(self._stamps), rows, [*map(self._read, states)])
        for row, (_, stamp) in changed.items():
            self._stamps[row] = stamp if stamp[0] is not None else None

    def _read(self, host_state: Any) -> list[tuple[int, int, int]]:
        found = []
        for pool in host_state.pci_stats.pools if host_state.pci_stats else ():
            kind = nova_objects.pool_kind(pool)
            if kind not in self._kinds:
                self._kinds[kind] = len(self._kind_of)
                self._kind_of.append(dict(pool))
            node = pool["numa_node"]
            found.append((self._kinds[kind], UNKNOWN if node is None else node, pool["count"]))
        return found


_stamp = operator.attrgetter("updated", "num_instances", "vcpus_used", "free_ram_mb")


def _cells(host_state: Any) -> list[tuple[Any, ...]]:
    free = nova_objects.pci_free(host_state) or {}
    return [(*cell, free.get(cell[0], 0), True) for cell in nova_objects.cell_counts(host_state)]


def _filled(
    table: npt.NDArray[Any], height: int, rows: list[int], read: Sequence[Sequence[Any]]
) -> npt.NDArray[Any]:
    """Return a table of so many rows with some rows written; what a row has less than the widest is zero."""
    missing = height - len(table), max(map(len, read), default=0) - table.shape[1]
    if max(missing) > 0:
        table = np.pad(table, [(0, max(0, each)) for each in missing])
    if read:
        absent = (np.zeros((), table.dtype).item(),)
        filled = [[*each, *absent * (table.shape[1] - len(each))] for each in read]
        table[rows] = np.array(filled, table.dtype).reshape(len(read), -1)
    return table


class NovaWeighers:
    """The weighers that nova is configured with, ours left out.

    :param conf: nova's configuration
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        handler = weights.HostWeightHandler()
        classes = handler.get_matching_classes(conf.filter_scheduler.weight_classes)
        self._weighers = [each() for each in classes if not each.__module__.startswith(_OURS)]

    def weigh(self, host_states: Sequence[Any], spec: Any) -> tuple[list[Floats], Floats]:
        """Return what each weigher says that counts on any host, and the total of all, one number per host."""
        weighed = [weights.WeighedHost(state, 0.0) for state in host_states]
        multipliers = for_each(
            host_states, lambda state: [each.weight_multiplier(state) for each in self._weighers]
        )
        total, raw_weights = np.zeros(len(weighed)), []
        for number, weigher in enumerate(self._weighers):
            if multipliers[:, number].any():
                raw = np.array(weigher.weigh_objects(weighed, spec), float)
                total += multipliers[:, number] * _stretched(raw, weigher.minval, weigher.maxval)
                raw_weights.append(raw)
        return raw_weights, total


def _stretched(raw: Floats, least: float | None, most: float | None) -> Floats:
    """:func:`nova.weights.normalize` for an array, in a tenth of the time."""
    low, high = raw.min() if least is None else least, raw.max() if most is None else most
    return (raw - low) / (high - low) if high != low else np.zeros(len(raw))


@dataclass(frozen=True, slots=True)
class Ahead:
    """Hosts that pass nova's filters after ours.

    :param by_first: with their first candidate alone
    :param by_another: with another one only
    """

    by_first: list[Any]
    by_another: list[Any]


class LaterFilters:
    """Nova's filters that stand after ours in ``enabled_filters``.

    :param conf: nova's configuration
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        handler = filters.HostFilterHandler()
        classes = handler.get_matching_classes(conf.filter_scheduler.available_filters)
        class_of = {each.__name__: each for each in classes}
        enabled = [class_of[name] for name in conf.filter_scheduler.enabled_filters]
        ours = [at for at, each in enumerate(enabled) if each.__module__.startswith(_OURS)]
        later = enabled[ours[-1] + 1 :] if ours else []
        self.foreign = tuple(
            each.__name__ for each in later if not each.__module__.startswith(_NOVAS)
        )
        self._filters = () if self.foreign else tuple(each() for each in later)

    def passed(self, host_states: Sequence[Any], spec: Any) -> Ahead:
        """Return the hosts that pass all of them.

        A host passes if one of its candidates does. What nova asks of each candidate is expensive where devices are
        requested, so hosts show their best candidate first, and all only where that one is refused.
        """
        offered = {state.uuid: state.allocation_candidates for state in host_states}
        try:
            for state in host_states:
                state.allocation_candidates = offered[state.uuid][:1]
            through = self._through(host_states, spec)
        finally:  # a filter that fails leaves nova the hosts as they were
            for state in host_states:
                state.allocation_candidates = offered[state.uuid]
        known = {state.uuid for state in through}
        others = [
            state
            for state in host_states
            if state.uuid not in known and len(state.allocation_candidates) > 1
        ]
        return Ahead(through, self._through(others, spec))

    def _through(self, host_states: Sequence[Any], spec: Any) -> list[Any]:
        left = list(host_states)
        for each in self._filters:
            if left and each.run_filter_for_index(0):
                left = list(each.filter_all(left, spec))
        return left


@dataclass(frozen=True, slots=True)
class Question:
    """The first pass of a request.

    :param spec: nova's RequestSpec
    :param parsed: what we read from it
    :param context: what the decision knows besides
    :param host_states: all hosts
    """

    spec: Any
    parsed: ParsedSpec
    context: DecisionContext
    host_states: Sequence[Any]


@dataclass(frozen=True, slots=True)
class HostOrder:
    """In which order hosts are judged: positions among the hosts.

    :param first: judged in any case
    :param rest: judged only while too few hosts have passed
    """

    first: Integers
    rest: Integers


class ListMaker(Protocol):
    """A way to make the list; the first of :class:`Shortlist` that answers decides."""

    def __call__(self, question: Question, size: Size) -> HostOrder | None:
        """Return the order, None for requests that are others' to order."""


class ByScore:
    """Orders hosts by the total of all weighers: nova's own, and ours by a coarse score.

    :param conf: nova's configuration
    :param multipliers: returns those of our weigher and of its terms for each host
    """

    def __init__(
        self, conf: cfg.ConfigOpts, multipliers: Callable[[Sequence[Any]], Floats]
    ) -> None:
        self._seen = SeenHosts()
        self._weighers = NovaWeighers(conf)
        self._multipliers = multipliers

    def __call__(self, question: Question, size: Size) -> HostOrder | None:
        """Return the best hosts and those that nova's way of choosing needs, then the others."""
        if question.parsed.request is None:
            return None
        ordered, possible, raw_weights = self.ranked(question, question.parsed.request)
        cells = [state.cell_uuid for state in question.host_states]
        first = shortlist.chosen(ordered, possible, raw_weights, cells, size)
        return HostOrder(first, ordered[~np.isin(ordered, first)])

    def ranked(
        self, question: Question, request: WorkloadRequest
    ) -> tuple[Integers, Mask, list[Floats]]:
        """Return all hosts, the best first, which of them are possible, and what each of nova's weighers says."""
        host_states = question.host_states
        snapshot, planner = question.context.snapshot, question.context.planner
        row_of = snapshot.arrays.rows.get
        rows = np.array([row_of(state.uuid, UNKNOWN) for state in host_states], np.int64)
        multipliers = self._multipliers(host_states)
        known, devices = self._seen.known(host_states, nova_objects.pci_requests(question.spec))
        asked = CoarseRequest(
            request,
            question.parsed.guest,
            fresh=snapshot.state is ViewState.FRESH,
            pack=question.context.pack,
            devices=tuple(devices),
            device_order=compat.device_order(requested=bool(devices)),
            gpus=planner.request_and_rules(request, question.spec)
            if gpus.asked(question.spec)
            else None,
            net_block=single_leafs.column(
                question.context.net_block, [state.uuid for state in host_states]
            )
            if question.context.net_block
            else None,
        )
        guess = coarse.coarse(asked, snapshot.arrays, rows, known, multipliers[:, 1:])
        raw_weights, novas = self._weighers.weigh(host_states, question.spec)
        ordered = shortlist.order(novas + multipliers[:, 0] * guess.scores, guess.possible)
        return ordered, guess.possible, raw_weights


class Shortlist:
    """Decides which hosts of a first pass are judged and returned.

    :param conf: nova's configuration
    :param option: returns ``[numa_ext]shortlist``; 0 for all hosts
    :param makers: ways to make the list, the most special first
    :param later: nova's filters after ours
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        option: Callable[[], int],
        makers: Sequence[ListMaker],
        later: LaterFilters,
    ) -> None:
        self._conf = conf
        self._option = option
        self._makers = makers
        self._later = later

    def applies(self, question: Question) -> bool:
        """Return whether hosts may be left out."""
        size = self._size(question)
        return (
            self._option() > 0
            and not self._later.foreign
            and question.parsed.request is not None
            and len(question.host_states) > size.hosts
        )

    def _size(self, question: Question) -> Size:
        return Size.of(self._option(), _servers(question.spec), self._conf.scheduler.max_attempts)

    def judge(
        self, question: Question, verdict: Callable[[Any], HostVerdict]
    ) -> tuple[Judged, list[Any]]:
        """Judge hosts until enough of them pass; returns what was decided, and the hosts for nova in its own order.

        Hosts that only their mode spares pass where all hosts had to be judged. For a single server, hosts that pass
        nova's filters with their best candidate keep no other: nova claims that one, but its filters would try all, for
        milliseconds each with devices. Where this holds of all that were asked, it is taken to hold of the others on
        which the guest's cells are predicted, too.

        :param verdict: judges one host
        """
        size, host_states = self._size(question), question.host_states
        listed = self._listed(question, size)
        verdicts: dict[str, HostVerdict] = {}
        by_first: list[Any] = []
        by_another: list[Any] = []
        unasked: list[Any] = []
        stopped: list[Any] = []
        spared: list[Any] = []
        least = shortlist.enough(_servers(question.spec))
        exhausted = False
        for chunk in _chunks(listed, size.hosts):
            passing: list[Any] = []
            for state in (host_states[at] for at in chunk):
                judged = verdicts[state.uuid] = verdict(state)
                if not judged.refused:
                    reorder(state, judged)
                    (spared if judged.spared else passing).append(state)
            while passing and (missing := least - len(by_first) - len(by_another)) > 0:
                some, passing = passing[:missing], passing[missing:]
                ahead = self._later.passed(some, question.spec)
                by_first += ahead.by_first
                by_another += ahead.by_another
                passed = {state.uuid for state in (*ahead.by_first, *ahead.by_another)}
                stopped += [state for state in some if state.uuid not in passed]
            if len(by_first) + len(by_another) >= least:
                unasked = passing
                break
        else:
            exhausted = True
            unasked = spared
        if not exhausted and _servers(question.spec) == 1:
            predicted = [state for state in unasked if _is_predicted(verdicts[state.uuid])]
            _keep_best((*by_first, *(() if by_another else predicted)), verdicts)
        # With nothing left, nova asks the later filter itself and can say which one it was.
        left = [*by_first, *by_another, *unasked] or stopped[: size.hosts]
        kept = {state.uuid for state in left}
        decided = Judged(question.parsed, verdicts, len(host_states), exhausted)
        return decided, [state for state in host_states if state.uuid in kept]

    def observe(self, question: Question, verdict: Callable[[Any], HostVerdict]) -> Judged:
        """Judge hosts, for the record only, until enough would pass; neither they nor their candidates are touched."""
        size, host_states = self._size(question), question.host_states
        verdicts: dict[str, HostVerdict] = {}
        for chunk in _chunks(self._listed(question, size), size.hosts):
            verdicts |= {host_states[at].uuid: verdict(host_states[at]) for at in chunk}
            passing = sum(not each.reasons for each in verdicts.values())
            if passing >= shortlist.enough(_servers(question.spec)):
                break
        return Judged(question.parsed, verdicts, hosts=len(host_states))

    def _listed(self, question: Question, size: Size) -> HostOrder:
        return next(found for make in self._makers if (found := make(question, size)) is not None)


def _keep_best(host_states: Sequence[Any], verdicts: dict[str, HostVerdict]) -> None:
    """Leave hosts their best candidate alone, and note that in their verdicts."""
    for state in host_states:
        del state.allocation_candidates[1:]
        verdicts[state.uuid] = replace(verdicts[state.uuid], best_only=True)


def _is_predicted(judged: HostVerdict) -> bool:
    return judged.offer is not None and judged.offer.home is not None


def _chunks(listed: HostOrder, size: int) -> Iterator[list[int]]:
    yield listed.first.tolist()
    rest = listed.rest.tolist()
    for begin in range(0, len(rest), size):
        yield rest[begin : begin + size]


def _servers(spec: Any) -> int:
    """Servers of a request; on moves nova keeps the number of the old create, which makes the list only longer."""
    return spec.num_instances if "num_instances" in spec and spec.num_instances else 1
