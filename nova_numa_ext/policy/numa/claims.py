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
from placement_traits.request import L3Amount, WorkloadRequest

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
    found: list[tuple[L3View, ...]] = []
    taken: set[str] = set()
    for group, cell in zip(groups, cells, strict=False):
        on_node = tuple(domain for domain in host.l3 if cell.node in domain.nodes)
        if len(on_node) > 1 and cell.cpus:
            on_node = _with_most(cell.cpus, [each for each in on_node if each.uuid not in taken])
        if not on_node:
            raise CapabilityMissingError(
                f"{host.name} publishes no L3 domain of node {cell.node} for resources{group.group}"
            )
        if len(on_node) == 1:
            taken.add(on_node[0].uuid)
        found.append(on_node)
    return found


def _with_most(cpus: Sequence[int], domains: Sequence[L3View]) -> tuple[L3View, ...]:
    held = Counter(
        domain.l3_id
        for cpu in cpus
        for domain in domains
        if any(first <= cpu <= last for first, last in domain.cpus)
    )
    if not held:  # an agent that does not publish the CPUs of its domains
        return tuple(domains)
    return (min(domains, key=lambda each: (-held[each.l3_id], each.l3_id)),)


def _chosen(
    groups: Sequence[L3Amount],
    choices: Sequence[Collection[L3View]],
    there: Resources,
    declared: Mapping[str, int],
) -> Iterator[tuple[str, dict[str, int]]]:
    """Choose a domain for each group: those with one first, then where it is counted, then the emptiest."""
    if len(choices) < len(groups):
        raise CapabilityMissingError(
            "its flavor has more groups of L3 amounts than the server has cells"
        )
    wanting = {
        number: [domain.uuid for domain in sorted(domains, key=lambda each: each.l3_id)]
        for number, domains in enumerate(choices)
    }
    taken: set[str] = set()
    for kept in (True, False):
        for number in sorted(wanting, key=lambda each: len(wanting[each])):
            free = [domain for domain in wanting[number] if domain not in taken]
            if kept and len(wanting[number]) > 1:
                free = [each for each in free if there.get(each) == groups[number].resources]
                if not free:
                    continue
            if not free:
                raise CapabilityMissingError(
                    "its flavor has more groups of L3 amounts than there are L3 domains"
                )
            chosen = min(free, key=lambda each: declared.get(each, 0))
            taken.add(chosen)
            del wanting[number]
            yield chosen, groups[number].resources
