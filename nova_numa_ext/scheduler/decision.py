# SPDX-License-Identifier: Apache-2.0
"""One decision about one server: every host judged, every candidate ranked.

:func:`decide` is pure but for the HostStates it reads; the engine around it supplies the view, the picks and the
clock, and hands the result to nova and to the journal. Most hosts of most requests are decided together, over arrays
(:mod:`nova_numa_ext.policy.numa.batch`); a request for physical networks, or for devices near several guest cells,
and the rare host that does not fit into arrays, is judged host by host (:mod:`.judge`), with the same result.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from nova_numa_ext.policy.numa import batch, batch_score, score
from nova_numa_ext.policy.numa.arrays import Floats, HostArrays, Integers
from nova_numa_ext.policy.numa.batch import Batch, Offered, Question
from nova_numa_ext.policy.numa.cells import GuestCell
from nova_numa_ext.policy.numa.score import SCORED, HostOffer, Scores
from nova_numa_ext.policy.picks import Pick, each_part
from nova_numa_ext.policy.terms import Term
from nova_numa_ext.scheduler import host_table, nova_objects
from nova_numa_ext.scheduler.host_table import HostTable
from nova_numa_ext.scheduler.judge import HostVerdict, Judge, Surroundings
from placement_traits.fleet import HostView, ViewState
from placement_traits.reason import Reason
from placement_traits.request import (
    InvalidRequestError,
    L3Amount,
    WorkloadRequest,
    concerns_us,
    parse,
)


@dataclass(frozen=True, slots=True)
class ParsedSpec:
    """What a RequestSpec requests of us.

    :param server: uuid of the server
    :param request: the parsed flavor; None when it is invalid or has no key of ours
    :param problems: what is wrong with the flavor, one sentence each
    :param guest: the guest's NUMA cells
    """

    server: str
    request: WorkloadRequest | None
    problems: tuple[str, ...] = ()
    guest: tuple[GuestCell, ...] = ()

    @property
    def concerned(self) -> bool:
        """False when neither flavor nor image has a key of this project."""
        return self.request is not None or bool(self.problems)


def parse_spec(spec: Any) -> ParsedSpec:
    """Read a RequestSpec."""
    extra_specs = dict(spec.flavor.extra_specs) if "extra_specs" in spec.flavor else {}
    traits = nova_objects.image_traits(spec)
    if not concerns_us(extra_specs, traits):
        return ParsedSpec(spec.instance_uuid, None)
    try:
        request = parse(
            extra_specs,
            vcpus=spec.flavor.vcpus,
            memory_mb=spec.flavor.memory_mb,
            image_traits=traits,
        )
    except InvalidRequestError as error:
        return ParsedSpec(spec.instance_uuid, None, error.problems)
    return ParsedSpec(spec.instance_uuid, request, guest=nova_objects.guest_cells(spec))


@dataclass(frozen=True, slots=True)
class Arrays:
    """Hosts that were decided together.

    :param question: what was decided about
    :param hosts: H hosts, in nova's order
    :param offered: their candidates
    :param batch: what was decided
    """

    question: Question
    hosts: HostArrays
    offered: Offered
    batch: Batch

    def order(self, at: int) -> list[int]:
        """Return a host's possible candidates as positions in nova's list, best first."""
        begin = self.batch.first[at]
        best = self.batch.order[begin : begin + self.batch.kept[at]]
        found: list[int] = self.offered.index[best].tolist()
        return found

    def orders(self) -> dict[int, list[int]]:
        """Return :meth:`order` of the hosts where it is another one than nova's."""
        batch, host = self.batch, self.offered.host
        index = self.offered.index[batch.order]
        other = batch.kept < np.bincount(host, minlength=len(batch.kept))
        other[host[index != self.offered.index]] = True
        rows = np.flatnonzero(other)
        bounds = zip(batch.first[rows].tolist(), batch.kept[rows].tolist(), strict=True)
        best = index.tolist()
        return {
            row: best[first : first + kept]
            for row, (first, kept) in zip(rows.tolist(), bounds, strict=True)
        }


@dataclass(frozen=True)
class Judged:
    """What was decided about all hosts for one server; a host is named by its position in nova's list.

    :param parsed: what we read from the RequestSpec
    :param host_states: nova's HostStates
    :param reasons: why hosts are refused; a host that passes is not in it
    :param instances: servers on each host when we looked (nova adds one when it picks the host)
    :param judge: judges one host; None when nothing was judged
    :param arrays: what was decided about most hosts together; None when every host was judged alone
    :param verdicts: hosts that were judged alone
    """

    parsed: ParsedSpec
    host_states: Sequence[Any]
    reasons: Mapping[int, tuple[Reason, ...]]
    instances: Integers
    judge: Judge | None = None
    arrays: Arrays | None = None
    verdicts: Mapping[int, HostVerdict] = field(default_factory=dict)

    @cached_property
    def passed(self) -> list[int]:
        """Hosts that are not refused."""
        return [at for at in range(len(self.host_states)) if at not in self.reasons]

    @cached_property
    def position(self) -> dict[str, int]:
        """Position of each host by root provider."""
        return {state.uuid: at for at, state in enumerate(self.host_states)}

    def positions(self, host_states: Iterable[Any]) -> list[int | None]:
        """Return the position of each of these HostStates, None for one that was not judged.

        Nova hands its weighers the very objects that passed its filters.
        """
        at = dict(zip(map(id, self.host_states), range(len(self.host_states)), strict=True))
        return list(map(at.get, map(id, host_states)))

    def verdict(self, at: int) -> HostVerdict:
        """Explain one host, before its candidates are put in order."""
        if at in self.verdicts:
            return self.verdicts[at]
        if self.judge is not None:
            return self.judge.verdict(self.host_states[at])
        return HostVerdict(self.host_states[at], self.reasons.get(at, ()), offer=HostOffer())

    def reorder(self) -> None:
        """Give nova the candidates of hosts that pass, best first.

        A host without candidates (nova asked for none) is left as it is.
        """
        orders: dict[int, Sequence[int]] = {}
        if self.arrays is not None:
            orders.update(self.arrays.orders())
        orders.update((at, self.order(at)) for at in self.verdicts)
        for at, order in orders.items():
            if order and at not in self.reasons:
                state = self.host_states[at]
                offered = state.allocation_candidates
                state.allocation_candidates = [offered[index] for index in order]

    def order(self, at: int) -> Sequence[int]:
        """Return a host's possible candidates as positions in nova's list, best first."""
        if at in self.verdicts:
            return [ranked.candidate.index for ranked in self.verdicts[at].ordering.kept]
        return self.arrays.order(at) if self.arrays is not None else ()

    def pick(self, at: int) -> Pick:
        """Return the pick that it is when nova takes this host."""
        request = self.parsed.request
        if request is None:
            raise ValueError("a server without a request of ours is no pick")
        base = Pick(
            self.parsed.server,
            self.host_states[at].uuid,
            request.tier,
            request.interference_class,
            gpu_comm=request.gpu_comm,
        )
        if at not in self.verdicts and self.arrays is not None and self.judge is not None:
            (view,) = self.judge.views([self.host_states[at]])
            return _with_arrays(base, self.arrays, at, view)
        verdict = self.verdict(at)
        offer, kept = verdict.offer or HostOffer(), verdict.ordering.kept
        gpus = kept[0].gpus if kept else None
        parts = {uuid: kept[0].candidate.parts[uuid] for uuid in gpus.providers} if gpus else {}
        return replace(
            base,
            l3=offer.candidate.l3 if offer.candidate else (),
            nodes=offer.nodes,
            gpus=each_part(parts),
        )

    def scores(self, positions: Sequence[int | None], weights: Floats) -> Scores:
        """Score hosts against each other.

        :param positions: the hosts; None for one that was not judged: nothing is known of it
        :param weights: weight of each term for each host, shape (hosts, terms)
        """
        at = np.array([-1 if one is None else one for one in positions], np.int64)
        at[np.isin(at, list(self.reasons))] = -1
        alone = {
            row: verdict.offer
            for row, one in enumerate(at.tolist() if self.verdicts else ())
            if (verdict := self.verdicts.get(one)) is not None and verdict.offer is not None
        }
        together = at >= 0
        together[list(alone)] = False
        rows = np.full((len(at), len(SCORED)), np.nan)
        spare = [score.spare(offer) for offer in alone.values()]
        offers = None
        if self.arrays is not None and together.any():
            offers = batch_score.offers(
                self.arrays.hosts, self.arrays.offered, self.arrays.batch, at[together]
            )
            spare.append(offers.spare.most())
        most = score.most_spare(spare)
        if self.arrays is not None and offers is not None:
            terms = batch_score.terms(self.arrays.question, offers, most)
            rows[together] = np.stack([terms[term] for term in SCORED], axis=1)
        request = self.parsed.request
        if request is not None:
            for row, offer in alone.items():
                values = score.terms(request, offer, most)
                rows[row] = [np.nan if values[t] is None else values[t] for t in SCORED]
        return Scores(score.combine(rows, weights), rows)


def decide(
    parsed: ParsedSpec,
    spec: Any,
    host_states: Sequence[Any],
    around: Surroundings,
    table: HostTable,
) -> Judged:
    """Judge every host for one server; the candidates of the hosts are not touched yet."""
    instances = np.array([state.num_instances for state in host_states], np.int64)

    def all_alike(*reasons: Reason) -> Judged:
        everywhere = dict.fromkeys(range(len(host_states)), reasons) if reasons else {}
        return Judged(parsed, host_states, everywhere, instances)

    if parsed.problems:
        return all_alike(*(Reason(Term.FLAVOR, problem) for problem in parsed.problems))
    if parsed.request is None:
        return all_alike()
    state = around.snapshot.state
    if state is not ViewState.FRESH and around.refuse_stale and parsed.request.tier:
        return all_alike(Reason(Term.VIEW, state, "refuse"))
    judge = Judge(parsed.request, parsed.guest, spec, around, table.known)
    arrays, left = (
        _together(judge, parsed.request, host_states, table)
        if judge.many_at_once
        else (None, range(len(host_states)))
    )
    verdicts = {at: judge.verdict(host_states[at]) for at in left}
    reasons = dict(arrays.batch.reasons) if arrays is not None else {}
    for at, verdict in verdicts.items():
        reasons.pop(at, None)
        if verdict.reasons:
            reasons[at] = verdict.reasons
    return Judged(parsed, host_states, reasons, instances, judge, arrays, verdicts)


def _together(
    judge: Judge, request: WorkloadRequest, host_states: Sequence[Any], table: HostTable
) -> tuple[Arrays, list[int]]:
    """Decide all hosts over arrays; returns the positions of those that must be judged alone, too."""
    views = judge.views(host_states)
    hosts, columns, complete = table.read(host_states, views)
    offered = host_table.offered(
        host_states,
        columns,
        dedicated=request.dedicated,
        taken=judge.taken,
        devices=judge.devices_of(host_states, views),
    )
    decided = batch.decide(judge.question, hosts, offered)
    left = np.union1d(np.flatnonzero(~complete), decided.tied).tolist()
    return Arrays(judge.question, hosts, offered, decided), left


def _with_arrays(base: Pick, arrays: Arrays, at: int, view: HostView | None) -> Pick:
    """Return the pick with the best candidate of a host that was decided over arrays."""
    decided, offered = arrays.batch, arrays.offered
    if not decided.kept[at]:
        return base
    best = decided.order[decided.first[at]]
    l3 = [
        (view.l3[column].uuid, L3Amount("", ways, bandwidth))
        for column, ways, bandwidth in zip(
            offered.domain[best].tolist(),
            offered.ways[best].tolist(),
            offered.bandwidth[best].tolist(),
            strict=True,
        )
        if view is not None and column >= 0
    ]
    nodes = [
        int(bits).bit_length() - 1 for bits in arrays.hosts.cells["node"][at][decided.chosen[at]]
    ]
    gpus = each_part(offered.devices.parts[best]) if offered.devices is not None else ()
    return replace(base, l3=tuple(l3), nodes=tuple(nodes) or None, gpus=gpus)
