# SPDX-License-Identifier: Apache-2.0
"""May a server go to a host at all? Each answer names what is lacking.

Two kinds of requirement, because they are known from different places and age differently:

* *capabilities*: traits of the host's root; they do not change while servers come and go;
* *amounts*: classes of service, ways, bandwidth and cache neighbourhoods. Placement counts them, exactly and
  atomically, before any filter runs and again when nova claims. So the filter does not judge them by our older view; a
  what-if over the whole fleet does, to explain why Placement offers no host.

Who is seen in an L3 domain refuses nothing: it is known late, and what a flavor only states, it does not require. It
ranks (:mod:`.candidates`, :mod:`.score`).

The bandwidth rule: the sum of what is declared, plus what is measured beyond the
declarations of running servers, must not exceed the capacity; equality is accepted. The measured excess is the
*reserved* part of the inventory, kept by the agent, so that Placement's own count is that rule.
"""

from collections.abc import Sequence
from typing import Final

from nova_numa_ext.policy.numa.cells import HostCell
from nova_numa_ext.policy.terms import Term
from placement_traits import names
from placement_traits.fleet import Amount, HostView, L3View
from placement_traits.matching import matched
from placement_traits.names import (
    CLASS_TRAITS,
    RdtTrait,
    RemoteMemory,
    Tier,
    TierTrait,
)
from placement_traits.reason import Reason
from placement_traits.workload_request import L3Amount, WorkloadRequest

CLASS_OF_TRAIT: Final = {trait: each for each, trait in CLASS_TRAITS.items()}


def capabilities(request: WorkloadRequest, host: HostView | None) -> tuple[Reason, ...]:
    """Return what the host is not able to do for the request; a request without tier needs nothing.

    :param host: our part of the host's provider tree; None when no agent has published it
    """
    return lacking_traits(request, host.traits if host is not None else None)


def lacking_traits(request: WorkloadRequest, traits: frozenset[str] | None) -> tuple[Reason, ...]:
    """Return what a host with these traits of its root is not able to do; None where no agent has published it."""
    if request.tier is None:
        return ()
    if traits is None:
        return (Reason(Term.AGENT, "absent"),)
    if names.DRAINED in traits:
        return (Reason(Term.DRAINED, "present", names.DRAINED),)
    needed: list[tuple[Term, str]] = [(Term.TIER, TierTrait[request.tier.name])]
    if request.tier is Tier.LC and request.ways:
        needed.append((Term.CACHE_ALLOCATION, RdtTrait.L3_CAT))
    return tuple(Reason(term, "absent", trait) for term, trait in needed if trait not in traits)


def is_missed(request: WorkloadRequest, traits: frozenset[str] | None) -> bool:
    """Return whether a server would count on an agent that is silent: it ranks behind all other hosts.

    :param traits: of the host's root; None where no agent has published it
    """
    return request.tier is Tier.LC and traits is not None and names.SILENT in traits


def local_memory(request: WorkloadRequest, cells: Sequence[HostCell]) -> tuple[Reason, ...]:
    """Refuse a host where a floating, remote-memory-sensitive guest would have to spread over nodes.

    A guest with a NUMA topology is bound to the cells nova gives it, so its memory is local by construction.
    """
    if request.remote_memory is not RemoteMemory.SENSITIVE or not request.floating or not cells:
        return ()
    if any(
        cell.cpus >= request.vcpus and cell.free_memory_mb >= request.memory_mb for cell in cells
    ):
        return ()
    return (Reason(Term.LOCAL_MEMORY, request.vcpus, f"{request.memory_mb} MiB"),)


def amounts(request: WorkloadRequest, host: HostView | None) -> tuple[Reason, ...]:
    """Return what Placement would find lacking on the host, by the view.

    :param host: our part of the host's provider tree; None when no agent has published it
    """
    if not request.clos and not request.l3:
        return ()
    if host is None:
        return (Reason(Term.AGENT, "absent"),)
    reasons = []
    clos = _free(host.rdt.clos if host.rdt else None)
    if clos < request.clos:
        reasons.append(Reason(Term.CLASSES_OF_SERVICE, clos, request.clos))
    return (*reasons, *_domain_amounts(request.l3, host.l3))


def holds(domain: L3View, amount: L3Amount) -> bool:
    """Return whether one L3 domain has the amounts of one request group free; equality is enough."""
    return (
        _free(domain.ways) >= amount.ways
        and _free(domain.bandwidth_mbps) >= amount.bandwidth_mbps
        and _free(domain.neighbourhood) >= amount.neighbourhood
    )


def _domain_amounts(groups: Sequence[L3Amount], domains: Sequence[L3View]) -> tuple[Reason, ...]:
    reasons = []
    ways = max((_free(domain.ways) for domain in domains), default=0)
    bandwidth = max((_free(domain.bandwidth_mbps) for domain in domains), default=0)
    neighbourhood = max((_free(domain.neighbourhood) for domain in domains), default=0)
    for group in groups:
        if group.ways > ways:
            reasons.append(Reason(Term.L3_WAYS, ways, group.ways))
        if group.bandwidth_mbps > bandwidth:
            reasons.append(Reason(Term.MEMORY_BANDWIDTH, bandwidth, group.bandwidth_mbps))
        if group.neighbourhood > neighbourhood:
            reasons.append(Reason(Term.LLC_NEIGHBOURHOOD, neighbourhood, group.neighbourhood))
    if reasons:
        return tuple(dict.fromkeys(reasons))
    found = placeable(groups, domains)
    if found < len(groups):
        reasons.append(Reason(Term.L3_DOMAINS, found, len(groups)))
    return tuple(reasons)


def placeable(groups: Sequence[L3Amount], domains: Sequence[L3View]) -> int:
    """Return the largest number of groups that can each have a domain of its own."""
    fitting = [[each.uuid for each in domains if holds(each, group)] for group in groups]
    return sum(each is not None for each in matched(fitting))


def _free(amount: Amount | None) -> int:
    return amount.free if amount is not None else 0
