# SPDX-License-Identifier: Apache-2.0
"""Which L3 domain each request group of a flavor belongs to, once nova has chosen its cells' CPUs. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from host_agent.model.workload import Cell
from placement_traits.request import L3Amount
from placement_traits.topology import HostTopology


def distribute(
    topology: HostTopology,
    cells: Iterable[Cell],
    pins: Mapping[int, frozenset[int]],
    amounts: Iterable[L3Amount],
) -> dict[int, L3Amount]:
    """Distribute a flavor's groups, in order of name, to the guest's cells; Placement counts each in one L3 domain.

    Where the CPUs of a cell are in several domains, its group is counted in the one that holds most of them, then in
    the one with the lowest id; never in one that another cell has. A group that finds no cell or no domain is left out.

    :param cells: the guest's cells, of a guest that nova has placed
    :param pins: vCPU -> host CPUs
    :param amounts: the flavor's groups
    :returns: L3 domain -> group, ascending
    """
    taken: dict[int, L3Amount] = {}
    for cell, amount in zip(sorted(cells, key=lambda cell: cell.id), amounts, strict=False):
        held = Counter(
            l3
            for vcpu in cell.vcpus
            for cpu in pins.get(vcpu, ())
            if (l3 := topology.l3_of_cpu(cpu)) is not None and l3 not in taken
        )
        if held:
            taken[min(held, key=lambda l3: (-held[l3], l3))] = amount
    return dict(sorted(taken.items()))
