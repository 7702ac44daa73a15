# SPDX-License-Identifier: Apache-2.0
"""In which L3 domains will a guest run, and which of its request groups belongs where?

The agent counts each request group of a flavor in the L3 domain of one guest cell: groups in order of name, cells in
order of number, and of several domains the one that holds most of the CPUs that the cell has for its own, or shares
(:func:`host_agent.decide.partitions.requests.l3_amounts`). This says beforehand which one that will be. Where a NUMA
node has one domain, the node is enough; where it has several, the CPUs that nova-compute pins decide.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nova_numa_ext.policy.numa.cells import GuestCell, HostCell, Pinning, Prediction
from placement_traits.fleet import L3View


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
    taken: set[str] = set()
    for node, pinning, guest_cell in zip(prediction.nodes, prediction.pinnings, guest, strict=True):
        shared = cell_of[node].cpuset if guest_cell.cpus else ()
        cpus = frozenset(pinning.vcpus).union(shared)
        if cpus <= l3_of.keys():
            held = Counter(l3_of[cpu].uuid for cpu in pinning.vcpus or shared)
            free = [d for d in domains if d.uuid in held and d.uuid not in taken]
            best = min(free, key=lambda d: (-held[d.uuid], d.l3_id), default=None)
            group = frozenset({best.uuid}) if best is not None else frozenset()
            taken |= group
            used |= {l3_of[cpu].uuid for cpu in cpus}
        else:
            where = _pinned_on(pinning, host, node)
            group = frozenset(domain.uuid for domain in domains if where in domain.nodes)
            used |= group
        groups.append(group)
    return Home(prediction.nodes, tuple(groups), frozenset(used))


def _pinned_on(pinning: Pinning, host: Sequence[HostCell], node: int) -> int:
    """Return the host cell of a guest cell's own CPUs, which is not always the one whose number nova gives it."""
    own = frozenset(pinning.vcpus)
    if not own:
        return node
    found = (c.id for c in host if not all(own.isdisjoint(core) for core in c.free_siblings))
    return next(found, node)
