# SPDX-License-Identifier: Apache-2.0
"""In which L3 domains will a guest run, and which of its request groups belongs where?

The agent counts each request group of a flavor in the L3 domain of one guest cell: groups in order of name, cells in
order of number, and of several domains the one that holds most of the CPUs that the cell has for its own, or shares
(:func:`host_agent.decide.partitions.requests.l3_amounts`). This says beforehand which one that will be. Where a NUMA
node has one domain, the node is enough; where it has several, the CPUs that nova-compute pins decide.
"""

import itertools
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from nova_numa_ext.policy.numa.cells import GuestCell, HostCell, Pinning, Prediction
from placement_traits.fleet import L3View
from placement_traits.matching import matched


@dataclass(frozen=True, slots=True)
class Home:
    """Where a guest will run.

    :param nodes: host cell of each guest cell
    :param groups: for each guest cell, the providers of L3 domains in one of which its request group belongs; several
        where they cannot be told apart, none where other cells of the guest have them all
    :param domains: providers of all L3 domains with CPUs of the guest
    """

    nodes: tuple[int, ...]
    groups: tuple[frozenset[str], ...]
    domains: frozenset[str]


def home(
    prediction: Prediction,
    guest: Sequence[GuestCell],
    host: Sequence[HostCell],
    domains: Sequence[L3View],
) -> Home:
    """Return where a guest will run.

    :param prediction: what nova-compute will give it
    :param guest: its cells
    :param host: the host's cells
    :param domains: the host's L3 domains
    """
    l3_of = {
        cpu: domain
        for domain in domains
        for first, last in domain.cpus
        for cpu in range(first, last + 1)
    }
    for cell in host:
        on_node = [domain for domain in domains if cell.id in domain.nodes]
        if len(on_node) == 1:
            l3_of |= dict.fromkeys(
                [*cell.cpuset, *itertools.chain(*cell.free_siblings)], on_node[0]
            )
    cell_of = {cell.id: cell for cell in host}
    groups: list[frozenset[str]] = []
    used: set[str] = set()
    held: list[Counter[str]] = []
    for node, pinning, guest_cell in zip(prediction.nodes, prediction.pinnings, guest, strict=True):
        shared = cell_of[node].cpuset if guest_cell.cpus else ()
        cpus = frozenset(pinning.vcpus).union(shared)
        where = _pinned_on(pinning, host, node)
        known = cpus <= l3_of.keys()
        held.append(Counter(l3_of[cpu].uuid for cpu in pinning.vcpus or shared if known))
        of_node = frozenset(domain.uuid for domain in domains if where in domain.nodes)
        groups.append(frozenset() if known else of_node)
        used |= {l3_of[cpu].uuid for cpu in cpus} if known else of_node
    number_of = {domain.uuid: domain.l3_id for domain in domains}
    taken: set[str] = set()
    for has_own in (True, False):  # as the agent counts
        choices = [
            _with_most(each, taken, number_of) if bool(pinning.vcpus) is has_own else []
            for each, pinning in zip(held, prediction.pinnings, strict=True)
        ]
        for number, domain in enumerate(matched(choices)):
            if domain is not None:
                groups[number] = frozenset({domain})
                taken.add(domain)
    return Home(prediction.nodes, tuple(groups), frozenset(used))


def _with_most(
    held: Counter[str], taken: Container[str], number_of: Mapping[str, int]
) -> list[str]:
    free = [domain for domain in held if domain not in taken]
    return sorted(free, key=lambda domain: (-held[domain], number_of[domain]))


def _pinned_on(pinning: Pinning, host: Sequence[HostCell], node: int) -> int:
    """Return the host cell of a guest cell's own CPUs, which is not always the one whose number nova gives it."""
    own = frozenset(pinning.vcpus)
    if not own:
        return node
    found = (c.id for c in host if not all(own.isdisjoint(core) for core in c.free_siblings))
    return next(found, node)
