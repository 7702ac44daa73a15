# SPDX-License-Identifier: Apache-2.0
"""Where could a flavor go now, and what does each other host lack?

When Placement offers no host, nova never asks a filter, so no decision is noted anywhere. This asks the same
requirements of the whole fleet, amounts included, from the view, and compares the hosts that could take the server.

The view knows no NUMA cells: which ones nova-compute would pick, and the terms of the score that need them, only the
scheduler tells. The score is the mean of the terms that are known, weighted by :mod:`.multipliers`.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import nan
from types import MappingProxyType
from typing import Final

import numpy as np

from nova_numa_ext.policy.gpu.candidate_sets import (
    DEFAULT_RULES,
    GpuRequest,
    GpuRules,
    GpuSet,
    best_of_host,
)
from nova_numa_ext.policy.numa import nova_part, requirements
from nova_numa_ext.policy.numa.candidates import Candidate, Ranked, order
from nova_numa_ext.policy.numa.multipliers import Multipliers
from nova_numa_ext.policy.numa.score import (
    SCORED,
    HostOffer,
    Score,
    Scores,
    comes_last,
    most_spare,
    spare,
    terms,
)
from nova_numa_ext.policy.terms import Term
from placement_traits import names
from placement_traits.devices import By
from placement_traits.fleet import HostView, L3View
from placement_traits.reason import Reason
from placement_traits.snapshot import FleetSnapshot
from placement_traits.workload_request import L3Amount, WorkloadRequest

DISABLED: Final = Reason(Term.COMPUTE_DISABLED, "set", names.COMPUTE_DISABLED)
_MOST_CANDIDATES: Final = 1_000
_NOVAS: Final = MappingProxyType(
    {
        names.PCPU: Term.DEDICATED_CPUS,
        names.VCPU: Term.SHARED_CPUS,
        names.MEMORY_MB: Term.MEMORY,
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    """How one host answers a flavor.

    :param host: the host
    :param reasons: what it lacks, empty when it could take the server
    :param gpus: the best GPUs that are free there; None without
    :param l3: ids of the L3 domains that it would claim from
    :param score: how good the host is among those that could take the server; None when it lacks something
    """

    host: HostView
    reasons: tuple[Reason, ...]
    gpus: GpuSet | None = None
    l3: tuple[int, ...] = ()
    score: Score | None = None


@dataclass(frozen=True, slots=True)
class GpusAsked:
    """GPUs that a request asks for: parts of each, and the resource classes that will do."""

    parts: tuple[int, ...]
    classes: frozenset[str]


def ask(
    request: WorkloadRequest,
    fleet: FleetSnapshot,
    free: Mapping[str, Mapping[str, int]] | None = None,
    *,
    multipliers: Multipliers,
    flavor: str = "",
    rules: GpuRules = DEFAULT_RULES,
    aliases: Mapping[str, frozenset[str]] = MappingProxyType({}),
    disabled: Set[str] = frozenset(),
) -> tuple[Answer, ...]:
    """Ask every host of the view; those that could take the server come first, best first, then the others by name.

    :param free: free amounts of nova's own resource classes by root provider, where they are known
    :param multipliers: weights of the terms
    :param flavor: name of the flavor, which may have a GPU profile of its own
    :param rules: how GPUs are judged
    :param aliases: resource classes of PCI aliases; devices of one that is not among them are not judged
    :param disabled: root providers of hosts whose nova-compute is disabled
    """
    asked = gpus_asked(request, fleet, aliases)
    answers = []
    for host in fleet.hosts.values():
        off = (DISABLED,) if host.root_uuid in disabled else ()
        reasons = (*off, *lacking(request, host, (free or {}).get(host.root_uuid)))
        gpus, more = _gpus(request, host, flavor, rules, asked)
        answers.append(Answer(host, (*reasons, *more), gpus))
    possible = _scored(request, [answer for answer in answers if not answer.reasons], multipliers)
    refused = [answer for answer in answers if answer.reasons]
    return (*possible, *sorted(refused, key=lambda answer: answer.host.name))


def _scored(
    request: WorkloadRequest, answers: Sequence[Answer], multipliers: Multipliers
) -> list[Answer]:
    """Return the answers of hosts that could take the server with domains and scores, best first, then by name."""
    if not answers:
        return []
    best = [_best(request, answer.host) for answer in answers]
    offers = [
        HostOffer(
            answer.host,
            candidate=chosen.candidate if chosen else None,
            gpu_utility=answer.gpus.utility if answer.gpus else None,
        )
        for answer, chosen in zip(answers, best, strict=True)
    ]
    most = most_spare(map(spare, offers))
    found = [terms(request, offer, most) for offer in offers]
    rows = np.array(
        [[nan if (value := row[term]) is None else value for term in SCORED] for row in found]
    )
    weights = np.array([multipliers.of(answer.host.root_uuid) for answer in answers])
    silent = [comes_last(request, offer) for offer in offers]
    scores = Scores.made(rows, weights, {Term.SILENT: silent})
    scored = [
        replace(answer, l3=chosen.rank.l3_ids if chosen else (), score=scores.of(row))
        for row, (answer, chosen) in enumerate(zip(answers, best, strict=True))
    ]
    return sorted(scored, key=lambda each: (-each.score.value if each.score else 0, each.host.name))


def _best(request: WorkloadRequest, host: HostView) -> Ranked | None:
    """Return the best way to claim what a request asks of L3 domains, a domain of its own for each group."""
    if not request.l3:
        return None
    candidates = list(itertools.islice(_candidates(request, host), _MOST_CANDIDATES))
    return next(iter(order(request, host, candidates, lambda _: None)), None)


def _candidates(request: WorkloadRequest, host: HostView) -> Iterator[Candidate]:
    for index, domains in enumerate(holding(request.l3, host.l3)):
        l3 = tuple((d.uuid, amount) for d, amount in zip(domains, request.l3, strict=True))
        yield Candidate(index, l3, tuple(sorted(uuid for uuid, _ in l3)))


def holding(groups: Sequence[L3Amount], domains: Sequence[L3View]) -> Iterator[tuple[L3View, ...]]:
    """Yield domains that hold the groups, one each; no way is gone on with that leaves a later group without one."""
    if not groups:
        yield ()
        return
    first, *others = groups
    for domain in domains:
        rest = [other for other in domains if other is not domain]
        if requirements.holds(domain, first) and requirements.placeable(others, rest) == len(
            others
        ):
            for more in holding(others, rest):
                yield (domain, *more)


def lacking(
    request: WorkloadRequest, host: HostView, free: Mapping[str, int] | None
) -> tuple[Reason, ...]:
    """Return everything that one host lacks for a request."""
    return (
        *requirements.capabilities(request, host),
        *requirements.amounts(request, host),
        *(() if free is None else _own_resources(request, free)),
    )


def _gpus(
    request: WorkloadRequest, host: HostView, flavor: str, rules: GpuRules, asked: GpusAsked
) -> tuple[GpuSet | None, tuple[Reason, ...]]:
    if not asked.parts:
        return None, ()
    fitting = tuple(each for each in host.devices if each.resource_class in asked.classes)
    gpu_request = GpuRequest.of(request, flavor, rules)
    return best_of_host(gpu_request, rules, replace(host, devices=fitting), asked.parts)


def gpus_asked(
    request: WorkloadRequest, fleet: FleetSnapshot, aliases: Mapping[str, frozenset[str]]
) -> GpusAsked:
    """Return which of the devices that a request asks for are GPUs: those whose class GPUs of some host have.

    Devices of an alias whose class no host has at all are lacking everywhere, so they count, too.
    """
    known = _classes_of_gpus(fleet)
    every = {each.resource_class for host in fleet.hosts.values() for each in host.devices}
    parts: list[int] = []
    classes: frozenset[str] = frozenset()
    for each in request.devices:
        named = frozenset({each.name}) if each.by is By.RESOURCE_CLASS else frozenset()
        mine = aliases.get(each.name, named) if each.by is By.ALIAS else named
        if mine & known or (mine and each.by is By.ALIAS and not mine & every):
            parts += each.parts
            classes |= mine
    return GpusAsked(tuple(parts), classes)


def _classes_of_gpus(fleet: FleetSnapshot) -> frozenset[str]:
    """Resource classes by which Placement counts the GPUs whose places are published, and nova's own of GPUs."""
    found = {names.VGPU, names.PGPU}
    for host in fleet.hosts.values():
        addresses = {gpu.address for gpu in host.gpus}
        found |= {each.resource_class for each in host.devices if each.address in addresses}
    return frozenset(found - {""})


def own_amounts(request: WorkloadRequest) -> tuple[tuple[Term, str, int], ...]:
    """Return what a request asks of nova's own provider: term, resource class and amount."""
    amounts = nova_part.cpus(
        request.vcpus, request.pinned, isolated_emulator=request.isolated_emulator
    )
    amounts[names.MEMORY_MB] = request.memory_mb
    return tuple(
        (term, resource, amounts[resource])
        for resource, term in _NOVAS.items()
        if amounts[resource]
    )


def _own_resources(request: WorkloadRequest, free: Mapping[str, int]) -> tuple[Reason, ...]:
    return tuple(
        Reason(term, free.get(resource, 0), amount)
        for term, resource, amount in own_amounts(request)
        if free.get(resource, 0) < amount
    )
