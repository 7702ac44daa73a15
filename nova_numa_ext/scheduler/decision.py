# SPDX-License-Identifier: Apache-2.0
"""One decision about one server: hosts judged, their candidates ranked, those that pass scored against each other.

:func:`decide` is pure but for the HostStates it reads; the session around it supplies the view, the picks and the
clock, and hands the result to nova and to the journal. What decides about a host is what explains it
(:class:`.judge.HostVerdict`).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from nova_numa_ext.policy.modes import Mode
from nova_numa_ext.policy.numa import score
from nova_numa_ext.policy.numa.cells import GuestCell
from nova_numa_ext.policy.numa.score import SCORED, Floats, HostOffer, Scores
from nova_numa_ext.policy.picks import Pick, each_part
from nova_numa_ext.policy.terms import Term
from nova_numa_ext.scheduler import groups, moves, nova_objects
from nova_numa_ext.scheduler.group_plan import GroupPlaces
from nova_numa_ext.scheduler.groups import ServerGroup
from nova_numa_ext.scheduler.judge import DecisionContext, HostVerdict, Judge, verdict
from nova_numa_ext.scheduler.planned import Planned, has_hint
from placement_traits.reason import Reason
from placement_traits.request import InvalidRequestError, concerns_us, parse
from placement_traits.snapshot import ViewState
from placement_traits.workload_request import WorkloadRequest

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ParsedSpec:
    """What a RequestSpec requests of us.

    :param server: uuid of the server
    :param request: the parsed flavor; None when it is invalid
    :param problems: what is wrong with the flavor, one sentence each
    :param guest: the guest's NUMA cells
    :param planned: what the plan of a job says about it; None: it belongs to no job
    :param group: of which it is, where something is requested of the network
    """

    server: str
    request: WorkloadRequest | None
    problems: tuple[str, ...] = ()
    guest: tuple[GuestCell, ...] = ()
    planned: Planned | None = None
    group: ServerGroup | None = None


def asks_us(spec: Any) -> bool:
    """Return whether a RequestSpec has a key of ours in flavor or image, or is a job's; no other may cost anything."""
    if has_hint(spec) or groups.has_hint(spec):
        return True
    extra_specs = spec.flavor.extra_specs if "extra_specs" in spec.flavor else {}
    return concerns_us(extra_specs, nova_objects.image_traits(spec))


def parse_spec(
    spec: Any, host_states: Sequence[Any] = (), planned: Planned | None = None
) -> ParsedSpec:
    """Read a RequestSpec that has a key of ours, or belongs to a job.

    :param host_states: the hosts among which nova looks for one
    :param planned: what the plan of its job says
    """
    extra_specs = dict(spec.flavor.extra_specs) if "extra_specs" in spec.flavor else {}
    if planned is not None:
        extra_specs = {**planned.extra_specs, **extra_specs}
    traits = nova_objects.image_traits(spec)
    try:
        request = parse(
            extra_specs,
            vcpus=spec.flavor.vcpus,
            memory_mb=spec.flavor.memory_mb,
            image_traits=traits,
            image_properties=nova_objects.image_properties(spec),
        )
    except InvalidRequestError as error:
        if moves.keeps_its_flavor(spec, host_states):
            LOG.warning(
                "Server %s may move although its flavor is wrong: %s", spec.instance_uuid, error
            )
            return ParsedSpec(spec.instance_uuid, None, planned=planned)
        return ParsedSpec(spec.instance_uuid, None, error.problems, planned=planned)
    if planned is not None and planned.any_utility:
        request = replace(request, min_utility=0.0)
    guest = nova_objects.guest_cells(spec)
    group = groups.read(spec, host_states)
    return ParsedSpec(spec.instance_uuid, request, guest=guest, planned=planned, group=group)


@dataclass(frozen=True)
class Judged:
    """What was decided about hosts for one server.

    :param parsed: what we read from the RequestSpec
    :param verdicts: by root provider, in the order in which they were judged
    :param hosts: how many hosts there were; those that were not judged are not refused, either
    :param exhausted: a short list was tried, but too few hosts passed; None: all were judged from the beginning
    :param group: where the servers of its group go that have no host yet
    """

    parsed: ParsedSpec
    verdicts: Mapping[str, HostVerdict]
    hosts: int
    exhausted: bool | None = None
    group: GroupPlaces | None = None

    @cached_property
    def passed(self) -> list[HostVerdict]:
        """Hosts that are not refused."""
        return [each for each in self.verdicts.values() if not each.refused]

    @cached_property
    def refused(self) -> list[HostVerdict]:
        """Hosts that are refused."""
        return [each for each in self.verdicts.values() if each.refused]

    @cached_property
    def spared(self) -> list[HostVerdict]:
        """Hosts that pass only because of their mode."""
        return [each for each in self.verdicts.values() if each.spared]

    @cached_property
    def left_as_they_came(self) -> list[HostVerdict]:
        """Observed hosts of which nova would else claim another candidate."""
        return [
            each
            for each in self.verdicts.values()
            if not each.mode.acts and each.claimed != next(iter(each.candidates), None)
        ]

    def pick(self, root_uuid: str) -> Pick:
        """Return the pick that it is when nova takes this host; of one that was not judged little is known."""
        request, chosen = self.parsed.request, self.verdicts.get(root_uuid)
        if request is None:
            raise ValueError("a server without a request of ours is no pick")
        offer = (chosen.offer if chosen else None) or HostOffer()
        best = chosen.claimed if chosen else None
        gpus = best.gpus if best else None
        parts = (
            {uuid: best.candidate.parts[uuid] for uuid in gpus.providers} if best and gpus else {}
        )
        return Pick(
            self.parsed.server,
            root_uuid,
            request.tier,
            request.interference_class,
            l3=best.candidate.l3 if best else (),
            nodes=offer.home.nodes if offer.home is not None else None,
            gpus=each_part(parts),
            gpu_comm=request.gpu_comm,
        )

    def scores(self, root_uuids: Sequence[str], weights: Floats) -> Scores:
        """Score hosts against each other; of one that was not judged nothing is known, one with reasons comes last.

        :param weights: weight of each term for each host, shape (hosts, terms)
        """
        request = self.parsed.request
        verdicts = [self.verdicts.get(uuid) for uuid in root_uuids]
        offers = [(found.offer if found else None) or HostOffer() for found in verdicts]
        most = score.most_spare(map(score.spare, offers))
        rows = np.full((len(offers), len(SCORED)), np.nan)
        silent = [request is not None and score.comes_last(request, offer) for offer in offers]
        refused = [found is not None and bool(found.reasons) for found in verdicts]
        if request is not None:
            for row, offer in enumerate(offers):
                values = score.terms(request, offer, most)
                rows[row] = [np.nan if values[term] is None else values[term] for term in SCORED]
        last = {Term.SILENT: silent, Term.REFUSED: refused}
        planned = self.parsed.planned
        if planned is not None and planned.spare:
            last[Term.SPARE] = [uuid in planned.spare for uuid in root_uuids]
        return Scores.made(rows, weights, last)


def judge(parsed: ParsedSpec, spec: Any, context: DecisionContext) -> Callable[[Any], HostVerdict]:
    """Return what judges a host for one server; candidates are not touched yet."""
    one, modes = _judge(parsed, spec, context), context.modes
    if not modes:
        return one

    def with_mode(state: Any) -> HostVerdict:
        return replace(one(state), mode=modes.get(state.uuid, Mode.ENFORCE))

    return with_mode


def _judge(parsed: ParsedSpec, spec: Any, context: DecisionContext) -> Callable[[Any], HostVerdict]:

    def all_alike(*reasons: Reason) -> Callable[[Any], HostVerdict]:
        return lambda state: verdict(state, reasons)

    if parsed.planned is not None and parsed.planned.problem:
        return all_alike(Reason(Term.JOB_HINT, parsed.planned.problem))
    if parsed.group is not None and parsed.group.problem:
        return all_alike(Reason(Term.GROUP, parsed.group.problem))
    if parsed.request is None:
        return all_alike(*(Reason(Term.FLAVOR, problem) for problem in parsed.problems))
    state = context.snapshot.state
    if state is not ViewState.FRESH and context.refuse_stale and parsed.request.tier:
        return all_alike(Reason(Term.VIEW, state, "refuse"))
    return Judge(parsed.request, parsed.guest, spec, context).verdict


def decide(
    parsed: ParsedSpec, spec: Any, host_states: Sequence[Any], context: DecisionContext
) -> Judged:
    """Judge all hosts for one server; their candidates are not touched yet."""
    one = judge(parsed, spec, context)
    return Judged(parsed, {state.uuid: one(state) for state in host_states}, len(host_states))


def reorder(host_state: Any, found: HostVerdict) -> None:
    """Give nova the candidates of a host that passes, best first.

    A host without candidates (nova asked for none) is left as it is.
    """
    offered = host_state.allocation_candidates
    best = [offered[ranked.candidate.index] for ranked in found.candidates]
    if best:
        host_state.allocation_candidates = best
