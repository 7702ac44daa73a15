# SPDX-License-Identifier: Apache-2.0
"""Which allocation candidate of a host is the best?

Nova claims the first candidate of the chosen host and tries no other, so the order decides which L3 domain and which
PCI devices a server gets. The order is total and depends on nothing but its arguments: see :class:`CandidateRank`.

No candidate is refused here: nova filters the same list again for the next server of the request (``--min/--max``),
when free CPUs and so the predicted nodes have moved on, and who lives in an L3 domain is known too late to refuse one.
Only a request for one server is left with the first one, once nova's filters have let hosts pass with it
(``nova_numa_ext/scheduler/shortlist.py``).
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from nova_numa_ext.policy.gpu.candidate_sets import GpuSet, lacking
from nova_numa_ext.policy.numa.home import Home
from nova_numa_ext.policy.numa.requirements import CLASS_OF_TRAIT, holds
from nova_numa_ext.policy.terms import Term
from placement_traits.fleet import HostView, L3View
from placement_traits.interference import penalty
from placement_traits.matching import matched
from placement_traits.names import WHOLE_NEIGHBOURHOOD, InterferenceClass, NeighbourTrait, Tier
from placement_traits.reason import Reason
from placement_traits.workload_request import L3Amount, WorkloadRequest

OTHER_TIER: Final[Mapping[Tier | None, frozenset[NeighbourTrait]]] = {
    Tier.LC: frozenset({NeighbourTrait.BE}),
    Tier.BE: frozenset({NeighbourTrait.LC}),
    None: frozenset({NeighbourTrait.LC}),
}

_NO_GPUS: Final = (math.inf,)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One allocation candidate of Placement, as far as we look at it.

    :param index: position in nova's list
    :param l3: amounts by L3 provider, in order of provider
    :param providers: all providers it takes something from, ascending
    :param fallback_cpus: it allocates VCPU for a guest that asks for dedicated CPUs
    :param parts: how much it takes from each provider, over all resource classes; a device has one
    """

    index: int
    l3: tuple[tuple[str, L3Amount], ...]
    providers: tuple[str, ...]
    fallback_cpus: bool = False
    parts: Mapping[str, int] = field(default_factory=dict, hash=False)


class CandidateRank(NamedTuple):
    """Why a candidate comes where it does: lower is better, the first field that differs decides.

    1. NUMA cells: nova drops a candidate with which it finds none, devices near them included
    2. dedicated CPUs from dedicated inventory, not from nova's VCPU fallback
    3. domains and devices whose amounts earlier servers of the same request have already taken (the claim would fail)
    4. GPU sets below the server's minimum utility: with nothing better the host is refused
    5. request groups away from the L3 domain of the guest cell that they are for, once for the domain and once for the
       cell, and GPUs away from the NUMA nodes that nova-compute will pick
    6. worst class penalty among the neighbours (two devils: allowed, but better apart)
    7. L3 domains that a strict devil would be the first to take from strict rabbits: those devils are better together
    8. L3 domains in which the other tier lives (LC beside BE)
    9. the GPU set in the order of the server's policy (:func:`nova_numa_ext.policy.gpu.placement.preference`)
    10. most free ways, then 11. most free bandwidth: servers spread over domains until none is empty
    12. lowest cache ids, 13. lowest GPU addresses, then 14. lowest provider uuids: never left to chance
    """

    no_cells: int
    fallback_cpus: int
    taken: int
    gpu_below: int
    off_node: int
    class_penalty: int
    devil_packing: int
    shared_tiers: int
    gpu: tuple[float, ...]
    ways_free: int
    bandwidth_free_mbps: int
    l3_ids: tuple[int, ...]
    gpu_addresses: tuple[str, ...]
    providers: tuple[str, ...]

    def loses_to(self, better: "CandidateRank") -> Reason:
        """Return the first field on which this rank is worse than ``better``."""
        for name, mine, theirs in zip(self._fields, self, better, strict=True):
            if mine != theirs:
                return Reason(name, _plain(mine), _plain(theirs))
        return Reason(Term.PROVIDERS, "same", "same")


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with its rank and its GPUs, None without."""

    candidate: Candidate
    rank: CandidateRank
    gpus: GpuSet | None = None


def order(
    request: WorkloadRequest,
    host: HostView,
    candidates: Sequence[Candidate],
    home_of: Callable[[Candidate], Home | None],
    *,
    taken: frozenset[str] = frozenset(),
    left: Mapping[str, int] = MappingProxyType({}),
    gpus: Callable[[Candidate], GpuSet | None] = lambda _: None,
) -> tuple[Ranked, ...]:
    """Order the candidates of one host, best first.

    :param host: the host, with the neighbours and amounts of this scheduler's own recent picks already in it
    :param home_of: where nova-compute will put the server with this candidate; None when that is not known
    :param taken: L3 providers from which earlier servers of this request have taken something
    :param left: free parts of the devices from which they have taken some
    :param gpus: the candidate's GPU set, judged
    """
    domains = {domain.uuid: domain for domain in host.l3}
    expected_of = [home_of(candidate) for candidate in candidates]
    known = any(expected is not None for expected in expected_of)
    ranked = []
    for candidate, expected in zip(candidates, expected_of, strict=True):
        used = [(domains[uuid], amount) for uuid, amount in candidate.l3 if uuid in domains]
        places = [domain for domain, _ in used]
        chosen = gpus(candidate)
        rank = CandidateRank(
            int(known and expected is None),
            int(candidate.fallback_cpus),
            sum([d.uuid in taken and not holds(d, amount) for d, amount in used])
            + len(lacking(left, candidate.parts)),
            int(chosen is not None and not chosen.enough),
            _off_node(request, used, expected)
            + (chosen.away(expected.nodes) if chosen and expected else 0),
            class_penalty(request, places),
            newly_taken(request, places),
            shared_tiers(request, places),
            chosen.preference if chosen else _NO_GPUS,
            -sum([d.ways.free for d in places if d.ways]),
            -sum([d.bandwidth_mbps.free for d in places if d.bandwidth_mbps]),
            tuple(sorted([domain.l3_id for domain in places])),
            chosen.addresses if chosen else (),
            candidate.providers,
        )
        ranked.append(Ranked(candidate, rank, chosen))
    ranked.sort(key=lambda each: (each.rank, each.candidate.index))
    return tuple(ranked)


def class_penalty(request: WorkloadRequest, domains: Sequence[L3View]) -> int:
    """Worst penalty of the request's class with what runs in the domains; strict devils do not mind devils."""
    mine = request.interference_class
    worst = max([_worst_penalty(mine, domain.neighbours) for domain in domains], default=0)
    return 0 if packs_devils(request) and worst == penalty(mine, mine) else worst


@functools.cache
def _worst_penalty(mine: InterferenceClass, neighbours: frozenset[NeighbourTrait]) -> int:
    """Worst penalty of a class with the neighbours in one L3 domain."""
    there = [other for trait, other in CLASS_OF_TRAIT.items() if trait in neighbours]
    return max([penalty(mine, other) for other in there], default=0)


def packs_devils(request: WorkloadRequest) -> bool:
    """Return whether a server is better where devils are already: Placement counts it, and one shuts rabbits out."""
    return request.strict and request.interference_class is InterferenceClass.DEVIL


def newly_taken(request: WorkloadRequest, domains: Sequence[L3View]) -> int:
    """Number of domains in which a strict devil would be the first devil; 0 for all other servers."""
    return sum([not _has_devil(domain) for domain in domains]) if packs_devils(request) else 0


def _has_devil(domain: L3View) -> bool:
    """Placement's count shows devils earlier than the agent does, and those that nova bound without a claim as well."""
    taken = domain.neighbourhood is not None and domain.neighbourhood.free < WHOLE_NEIGHBOURHOOD
    return taken or NeighbourTrait.DEVIL in domain.neighbours


def shared_tiers(request: WorkloadRequest, domains: Sequence[L3View]) -> int:
    """Number of domains in which servers of the other tier run."""
    other = OTHER_TIER[request.tier]
    return sum([not other.isdisjoint(domain.neighbours) for domain in domains])


def _off_node(
    request: WorkloadRequest, used: Sequence[tuple[L3View, L3Amount]], expected: Home | None
) -> int:
    """Twice the number of request groups that are not where their guest cells will be; equal groups may be swapped."""
    if expected is None or not used:
        return 0
    at_home = [
        [
            place
            for place, (domain, taken) in enumerate(used)
            if replace(asked, group=taken.group) == taken and domain.uuid in domains
        ]
        for asked, domains in zip(request.l3, expected.groups, strict=False)
    ]
    return 2 * matched(at_home).count(None)


def _plain(value: object) -> str | float:
    if isinstance(value, tuple) and value and isinstance(value[0], float):
        return ", ".join(f"{number:.4g}" for number in value)
    return value if isinstance(value, int | float | str) else str(value)
