# SPDX-License-Identifier: Apache-2.0
"""What a server requests of resource control, where its CPUs are: ways for an LC, bandwidth levels for a BE. Pure.

A latency-critical server requests its ways in the L3 domains of its cells, in as many as its flavor has groups of
them; a best-effort server requests a bandwidth level in the L3 domains it shares with one, and all bandwidth elsewhere.
"""

from collections.abc import Collection, Iterable, Mapping

from host_agent.decide.partitions.l3_groups import distribute
from host_agent.model.assignment import Guest
from host_agent.model.levels import FULL
from host_agent.model.partition import PartitionRequest
from host_agent.model.terms import Term
from host_agent.model.workload import Activity
from placement_traits.names import Tier
from placement_traits.reason import Reason
from placement_traits.request import WorkloadRequest
from placement_traits.topology import HostTopology


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
        amounts = distribute(topology, guest.workload.domain.cells, pins, request.l3)
        ways = {l3: amount.ways for l3, amount in amounts.items() if amount.ways}
    else:
        percent = bandwidth_levels(domains, levels)
    running = guest.workload.activity is Activity.RUNNING
    return PartitionRequest(guest.uuid, request.tier, domains, ways, percent, running)


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
