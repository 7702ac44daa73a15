# SPDX-License-Identifier: Apache-2.0
"""What a server requests of resource control, where its CPUs are: ways for an LC, bandwidth levels for a BE. Pure.

A latency-critical server requests its ways in the L3 domains of its cells, in as many as its flavor has groups of
them; a best-effort server requests a bandwidth level in the L3 domains it shares with one, and all bandwidth elsewhere.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping

from host_agent.model.assignment import Guest
from host_agent.model.levels import FULL
from host_agent.model.partition import PartitionRequest
from host_agent.model.terms import Term
from host_agent.model.workload import Activity, Cell
from placement_traits.matching import matched
from placement_traits.names import Tier
from placement_traits.reason import Reason
from placement_traits.topology import HostTopology
from placement_traits.workload_request import L3Amount, WorkloadRequest


def partition_of(
    guest: Guest,
    cpus: Iterable[int],
    pins: Mapping[int, frozenset[int]],
    topology: HostTopology,
    levels: Mapping[int, int],
) -> PartitionRequest | None:
    """Return what a managed server requests of resource control; None: the default group.

    :param cpus: CPUs it runs on
    :param pins: vCPU -> CPUs
    :param levels: L3 domain with a latency-critical server -> bandwidth level of best-effort ones, per cent
    """
    request = guest.workload.request
    if request is None or request.tier is None:
        return None
    domains = tuple(sorted({l3 for cpu in cpus if (l3 := topology.l3_of_cpu(cpu)) is not None}))
    ways: dict[int, int] = {}
    percent: dict[int, int] = {}
    if request.tier is Tier.LC:
        amounts = l3_amounts(topology, guest.workload.domain.cells, pins, request.l3)
        ways = {l3: amount.ways for l3, amount in amounts.items() if amount.ways}
    else:
        percent = bandwidth_levels(domains, levels)
    running = guest.workload.activity is Activity.RUNNING
    return PartitionRequest(guest.uuid, request.tier, domains, ways, percent, running)


def l3_amounts(
    topology: HostTopology,
    cells: Iterable[Cell],
    pins: Mapping[int, frozenset[int]],
    amounts: Iterable[L3Amount],
) -> dict[int, L3Amount]:
    """Distribute a flavor's groups, in order of name, to the guest's cells; Placement counts each in one L3 domain.

    Where the CPUs of a cell are in several domains, its group is counted in the one that holds most of those that it
    has for its own, then in the one with the lowest id; without any own, in the one that holds most of those that it
    shares; never in one that another cell has. A group that finds no cell or no domain is left out.

    :param cells: the guest's cells, of a guest that nova has placed
    :param pins: vCPU -> host CPUs
    :param amounts: the flavor's groups
    :returns: L3 domain -> group, ascending
    """
    pairs = list(zip(sorted(cells, key=lambda cell: cell.id), amounts, strict=False))
    taken: dict[int, L3Amount] = {}
    for cpus_of in (
        own_cpus,
        _only_shared,
    ):  # own first: what has none may be counted elsewhere as well
        found = matched([_by_cpus(topology, cpus_of(cell, pins), taken) for cell, _ in pairs])
        of_group = zip(found, pairs, strict=True)
        taken |= {l3: amount for l3, (_, amount) in of_group if l3 is not None}
    return dict(sorted(taken.items()))


def _by_cpus(topology: HostTopology, cpus: Iterable[int], taken: Container[int]) -> list[int]:
    """Return the L3 domains that are not taken, the one with most of the CPUs first."""
    held = Counter(topology.l3_of_cpu(cpu) for cpu in cpus)
    free = [l3 for l3 in held if l3 is not None and l3 not in taken]
    return sorted(free, key=lambda l3: (-held[l3], l3))


def own_cpus(cell: Cell, pins: Mapping[int, frozenset[int]]) -> list[int]:
    """Return the host CPUs that one vCPU of a cell has for its own."""
    return [cpu for vcpu in cell.vcpus for cpu in pins.get(vcpu, ()) if len(pins[vcpu]) == 1]


def shared_cpus(cell: Cell, pins: Mapping[int, frozenset[int]]) -> list[int]:
    """Return the host CPUs that vCPUs of a cell may run on beside others."""
    return [cpu for vcpu in cell.vcpus for cpu in pins.get(vcpu, ()) if len(pins[vcpu]) > 1]


def _only_shared(cell: Cell, pins: Mapping[int, frozenset[int]]) -> list[int]:
    return [] if own_cpus(cell, pins) else shared_cpus(cell, pins)


def bandwidth_levels(domains: Iterable[int], levels: Mapping[int, int]) -> dict[int, int]:
    """Return L3 domain and bandwidth level of a best-effort server in each; see :func:`partition_of`."""
    return {l3: levels.get(l3, FULL) for l3 in domains}


def reasons_of(
    partition: PartitionRequest | None, request: WorkloadRequest, lc_l3: Collection[int]
) -> tuple[Reason, ...]:
    """Return why resource control is requested as it is.

    :param lc_l3: L3 domains with a latency-critical server
    """
    if partition is None:
        return (Reason(Term.NO_TIER, "default group"),)
    if partition.tier is Tier.LC:
        return tuple(
            Reason(Term.WAYS, partition.ways[domain], where=f"L3 {domain}")
            if domain in partition.ways
            else Reason(Term.NOT_EXCLUSIVE, 0, len(partition.ways), f"L3 {domain}")
            for domain in partition.domains
            if request.ways
        )
    return level_reasons(partition.mba_percent, lc_l3)


def level_reasons(levels: Mapping[int, int], lc_l3: Collection[int]) -> tuple[Reason, ...]:
    """Say why a best-effort server has its bandwidth levels; see :func:`reasons_of`."""
    return tuple(
        Reason(Term.MBA_PERCENT, level, "an LC lives there" if l3 in lc_l3 else "no LC", f"L3 {l3}")
        for l3, level in levels.items()
    )
