# SPDX-License-Identifier: Apache-2.0
"""How many more servers of a flavor fit, and what is in the way?

Each amount that a request needs lets so many servers onto a host; the smallest of these numbers is how many fit, and
whatever has that number is in the way of one more. What a host is not able to do at all
(:func:`.requirements.capabilities`) lets in none.

It is an upper bound: NUMA cells are not in Placement, so CPUs and memory may be free and yet scattered over nodes.

L3 domains: a request group takes its amounts from one domain, and the groups of one server take different ones. For
alike groups, n servers fit exactly when the domains hold n times as many, each domain at most one group of each server
(McNaughton 1959). Groups that differ are dealt out server by server, to the emptiest domains first: a lower bound.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from nova_numa_ext.policy.numa import requirements
from nova_numa_ext.policy.numa.whatif import GpusAsked, gpus_asked, holding, own_amounts
from nova_numa_ext.policy.terms import Term
from placement_traits.fleet import Amount, HostView, L3View
from placement_traits.snapshot import FleetSnapshot
from placement_traits.workload_request import L3Amount, WorkloadRequest

_L3_TERMS: Final = MappingProxyType(
    {
        Term.L3_WAYS: "ways",
        Term.MEMORY_BANDWIDTH: "bandwidth_mbps",
        Term.LLC_NEIGHBOURHOOD: "neighbourhood",
    }
)


@dataclass(frozen=True, slots=True)
class HostCapacity:
    """How many more servers fit on one host.

    :param host: the host
    :param limits: how many each thing alone would let in; never empty
    """

    host: HostView
    limits: Mapping[Term, int]

    @property
    def fits(self) -> int:
        """Servers that fit."""
        return min(self.limits.values())

    @property
    def in_the_way(self) -> tuple[Term, ...]:
        """What keeps one more out."""
        return tuple(term for term, limit in self.limits.items() if limit == self.fits)

    def without(self, term: Term) -> int:
        """Return how many more would fit if one thing were there in plenty."""
        others = [limit for other, limit in self.limits.items() if other is not term]
        return min(others, default=self.fits) - self.fits


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps one more server out, over the fleet.

    :param term: what it is
    :param hosts: how many hosts it is in the way on
    :param more: how many more servers would fit in all if it alone were there in plenty
    """

    term: Term
    hosts: int
    more: int


def of_fleet(
    request: WorkloadRequest,
    fleet: FleetSnapshot,
    free: Mapping[str, Mapping[str, int]],
    aliases: Mapping[str, frozenset[str]],
    disabled: Set[str] = frozenset(),
) -> tuple[HostCapacity, ...]:
    """Return how many more servers fit on each host, the most first, then by name.

    :param free: free amounts of nova's own resource classes by root provider; a host that is missing has none
    :param aliases: resource classes of PCI aliases; devices of one that is not among them are not counted
    :param disabled: root providers of hosts whose nova-compute is disabled
    """
    gpus = gpus_asked(request, fleet, aliases)
    found = []
    for host in fleet.hosts.values():
        each = of_host(request, host, free.get(host.root_uuid, {}), gpus)
        if host.root_uuid in disabled:
            each = HostCapacity(host, {**each.limits, Term.COMPUTE_DISABLED: 0})
        found.append(each)
    return tuple(sorted(found, key=lambda each: (-each.fits, each.host.name)))


def obstacles(hosts: Sequence[HostCapacity]) -> tuple[Obstacle, ...]:
    """Return what is in the way, that of most hosts first."""
    counts = Counter(term for each in hosts for term in each.in_the_way)
    return tuple(
        Obstacle(term, count, sum(each.without(term) for each in hosts if term in each.limits))
        for term, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )


def of_host(
    request: WorkloadRequest, host: HostView, free: Mapping[str, int], gpus: GpusAsked
) -> HostCapacity:
    """Return how many more servers fit on one host.

    :param free: free amounts of nova's own resource classes
    :param gpus: the GPUs that the request asks for
    """
    limits = {Term(reason.term): 0 for reason in requirements.capabilities(request, host)}
    found = {
        term: _times(free.get(resource, 0), amount)
        for term, resource, amount in own_amounts(request)
    }
    if request.clos:
        clos = host.rdt.clos if host.rdt else None
        found[Term.CLASSES_OF_SERVICE] = _times(_free(clos), request.clos)
    if gpus.parts:
        devices = [each for each in host.devices if each.resource_class in gpus.classes]
        found[Term.GPUS_FREE] = _times(sum(_free(d.amount) for d in devices), sum(gpus.parts))
    return HostCapacity(host, found | _of_domains(request.l3, host.l3) | limits)


def _of_domains(groups: Sequence[L3Amount], domains: Sequence[L3View]) -> dict[Term, int]:
    if not groups:
        return {}
    found = {}
    for term, field in _L3_TERMS.items():
        alone = [_only(group, field) for group in groups]
        if any(getattr(group, field) for group in groups):
            found[term] = servers(alone, domains)
    together = servers(groups, domains)
    if together < min(found.values(), default=0):
        found[Term.L3_DOMAINS] = together
    return found


def servers(groups: Sequence[L3Amount], domains: Sequence[L3View]) -> int:
    """Return for how many servers the domains hold the groups, each group of one server in a domain of its own.

    :param groups: of one server; at least one of them asks for something
    """
    if all(replace(group, group=groups[0].group) == groups[0] for group in groups):
        holds = [_held(domain, groups[0]) for domain in domains]
        most = sum(holds) // len(groups)
        while most and sum(min(each, most) for each in holds) < most * len(groups):
            most -= 1
        return most
    count, left = 0, list(domains)
    while (chosen := next(holding(groups, _emptiest_first(left)), None)) is not None:
        taken = {d.uuid: _less(d, group) for d, group in zip(chosen, groups, strict=True)}
        left = [taken.get(domain.uuid, domain) for domain in left]
        count += 1
    return count


def _held(domain: L3View, group: L3Amount) -> int:
    return min(
        _times(_free(getattr(domain, field)), asked)
        for field in _L3_TERMS.values()
        if (asked := getattr(group, field))
    )


def _emptiest_first(domains: Sequence[L3View]) -> list[L3View]:
    return sorted(
        domains,
        key=lambda each: tuple(-_free(getattr(each, field)) for field in _L3_TERMS.values()),
    )


def _only(group: L3Amount, field: str) -> L3Amount:
    others: dict[str, Any] = {each: 0 for each in _L3_TERMS.values() if each != field}
    return replace(group, **others)


def _less(domain: L3View, group: L3Amount) -> L3View:
    left: dict[str, Any] = {
        field: Amount(amount.capacity, amount.used + getattr(group, field))
        for field in _L3_TERMS.values()
        if (amount := getattr(domain, field)) is not None
    }
    return replace(domain, **left)


def _times(free: int, asked: int) -> int:
    return max(0, free) // asked


def _free(amount: Amount | None) -> int:
    return amount.free if amount is not None else 0
