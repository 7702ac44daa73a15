# SPDX-License-Identifier: Apache-2.0
"""What nova has given away: CPUs of one server alone, quiet L3 domains, memory promised to bound servers. Pure."""

from collections import Counter
from collections.abc import Iterable

from host_agent.model.assignment import Guest, Observation
from placement_traits.names import InterferenceClass


def exclusive_cpus(observation: Observation) -> frozenset[int]:
    """Return the CPUs that nova has given to one server alone, whether it is managed by us or not."""
    return frozenset(cpu for guest in observation.guests for cpu in _exclusive(guest))


def _exclusive(guest: Guest) -> Iterable[int]:
    """Return CPUs that nova gives to no other server.

    Those are pinned one to one; a NUMA guest with shared CPUs has each vCPU pinned to all shared CPUs of its cell.
    """
    alone = Counter(
        next(iter(chosen))
        for chosen in guest.workload.domain.vcpu_pins.values()
        if len(chosen) == 1
    )
    return (cpu for cpu, vcpus in alone.items() if vcpus == 1)


def quiet_cpus(observation: Observation) -> frozenset[int]:
    """Return the CPUs of L3 domains whose whole cache neighbourhood a bound server has claimed.

    Its flavor was promised that no rabbit and no devil lives there, so floating ones keep off.
    """
    topology = observation.topology
    quiet = {
        topology.l3_of_cpu(cpu)
        for guest in observation.guests
        if (request := guest.workload.request) is not None
        and request.strict
        and request.interference_class is InterferenceClass.RABBIT
        for chosen in guest.workload.domain.vcpu_pins.values()
        for cpu in chosen & frozenset(topology.cpus)
    } - {None}
    return frozenset(cpu for cpu in topology.cpus if topology.l3_of_cpu(cpu) in quiet)


def free_for_floating(observation: Observation) -> dict[int, float]:
    """MiB per node for floating servers: free, less what nova promised to bound servers and is not resident yet."""
    room = {node: float(observation.free_mb.get(node, 0)) for node in observation.topology.node_ids}
    for guest in observation.guests:
        for cell in guest.workload.domain.cells:
            if len(cell.host_nodes) == 1:
                (node,) = cell.host_nodes
                resident = guest.resident_mb.get(node, 0.0)
                room[node] = room.get(node, 0.0) - max(0.0, cell.memory_mb - resident)
    return room
