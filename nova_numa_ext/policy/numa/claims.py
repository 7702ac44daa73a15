# SPDX-License-Identifier: Apache-2.0
"""What a server should hold in Placement, by where nova has put it. Pure.

Placement's candidate names an L3 domain; nova-compute then picks the host's cells itself, and may pick others. The host
wins: a server's ways, declared bandwidth and cache neighbourhood belong to the L3 domains of its cells. Its request
groups, in order of name, belong to its cells, in order of number, each in one domain of the cell:

1. the one domain of the cell's NUMA node; of several
2. the one with most of the CPUs that nova gave the cell for its own, then the one with the lowest id;
3. where the cell has no CPUs of its own, any: the one where it is counted already, else the one of which servers have
   declared least.

No domain counts two cells of a server. A server without cells may be counted in any domain of its host.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from placement_traits import names
from placement_traits.errors import CapabilityMissingError
from placement_traits.fleet import HostView, L3View
from placement_traits.matching import matched
from placement_traits.workload_request import L3Amount, WorkloadRequest

Resources = Mapping[str, Mapping[str, int]]
"""Amounts by resource class by provider (uuid)."""


@dataclass(frozen=True, slots=True)
class ServerCell:
    """One NUMA cell of a server, as nova has placed it.

    :param node: NUMA node of the host
    :param cpus: host CPUs that belong to one of its vCPUs alone
    """

    node: int
    cpus: tuple[int, ...]


def healed(
    request: WorkloadRequest,
    cells: Sequence[ServerCell],
    host: HostView,
    held: Resources,
    declared: Mapping[str, int],
) -> dict[str, dict[str, int]]:
    """Return what a server should hold: its part of our providers made right, all else as it is.

    Amounts of other hosts are left alone, too: after an evacuation nova removes them.

    :param cells: of the server, in order of number; none for a floating one
    :param host: where it is
    :param held: what it holds
    :param declared: bandwidth that servers have declared, MB/s by provider
    :returns: amounts by provider; equal to ``held`` when all is right
    :raises CapabilityMissingError: the host does not have what the server's flavor asks for
    """
    ours = {domain.uuid for domain in host.l3} | ({host.rdt.uuid} if host.rdt else set())
    whole: dict[str, dict[str, int]] = {}
    there: dict[str, dict[str, int]] = {}
    for provider, amounts in held.items():
        for name, number in amounts.items():
            mine = provider in ours and name in names.RESOURCE_CLASSES
            (there if mine else whole).setdefault(provider, {})[name] = number
    for provider, amounts in _desired(request, cells, host, there, declared):
        whole.setdefault(provider, {}).update(amounts)
    return whole


def _desired(
    request: WorkloadRequest,
    cells: Sequence[ServerCell],
    host: HostView,
    there: Resources,
    declared: Mapping[str, int],
) -> Iterator[tuple[str, dict[str, int]]]:
    if request.clos:
        if host.rdt is None:
            raise CapabilityMissingError(f"{host.name} has no cache allocation")
        yield host.rdt.uuid, {names.RDT_CLOS: request.clos}
    yield from _chosen(request.l3, _choices(request.l3, cells, host), there, declared)


def _choices(
    groups: Sequence[L3Amount], cells: Sequence[ServerCell], host: HostView
) -> list[tuple[L3View, ...]]:
    """Return for each group the domains in one of which it may be counted."""
    if not cells:
        return [host.l3] * len(groups)
    pairs = list(zip(groups, cells, strict=False))
    on_node = [
        tuple(domain for domain in host.l3 if cell.node in domain.nodes) for _, cell in pairs
    ]
    for (group, cell), domains in zip(pairs, on_node, strict=True):
        if not domains:
            raise CapabilityMissingError(
                f"{host.name} publishes no L3 domain of node {cell.node} for resources{group.group}"
            )
    bound = matched([_by_cpus(each.cpus, on_node[n]) for n, (_, each) in enumerate(pairs)])
    return [
        (home,) if home else tuple(each for each in domains if each not in bound)
        for home, domains in zip(bound, on_node, strict=True)
    ]


def _by_cpus(cpus: Sequence[int], domains: Sequence[L3View]) -> list[L3View]:
    """Return the domains with some of the CPUs, that with most first; none where an agent does not publish CPUs."""
    if len(domains) == 1:
        return list(domains) if cpus else []
    held = Counter(
        domain.l3_id
        for cpu in cpus
        for domain in domains
        if any(first <= cpu <= last for first, last in domain.cpus)
    )
    with_cpus = (each for each in domains if each.l3_id in held)
    return sorted(with_cpus, key=lambda each: (-held[each.l3_id], each.l3_id))


def _chosen(
    groups: Sequence[L3Amount],
    choices: Sequence[Collection[L3View]],
    there: Resources,
    declared: Mapping[str, int],
) -> Iterator[tuple[str, dict[str, int]]]:
    """Choose a domain for each group: where it is counted, for as many as can be, else the emptiest."""
    if len(choices) < len(groups):
        raise CapabilityMissingError(
            "its flavor has more groups of L3 amounts than the server has cells"
        )
    emptiest = [
        sorted(
            (domain.uuid for domain in sorted(domains, key=lambda each: each.l3_id)),
            key=lambda each: declared.get(each, 0),
        )
        for domains in choices
    ]
    kept = matched(
        [
            [domain for domain in domains if there.get(domain) == group.resources]
            for group, domains in zip(groups, emptiest, strict=True)
        ]
    )
    first = sorted(range(len(groups)), key=lambda n: (len(emptiest[n]) > 1, kept[n] is None))
    found = matched([[each for each in (kept[n],) if each] + emptiest[n] for n in first])
    for number, domain in zip(first, found, strict=True):
        if domain is None:
            raise CapabilityMissingError(
                "its flavor has more groups of L3 amounts than there are L3 domains"
            )
        yield domain, groups[number].resources
