# SPDX-License-Identifier: Apache-2.0
"""Where each managed server of this host shall be, by the safe and coarse decision: whole home nodes. Pure.

Nova has placed *bound* servers already, CPU by CPU and cell by cell: they are kept there, all their threads where
libvirt pinned them (emulator threads too: moving them to other CPUs would use CPUs that nova did not account for them).

A *floating* server gets the best *wide slot* inside the CPUs that nova lets it share (``cpu_shared_set``): one or
several home nodes, on whose CPUs its threads float. Which one is decided in :mod:`host_agent.decide.cores.choose`. With
``[mapping]enabled`` the decision is refined by :mod:`host_agent.decide.balancing`, which takes an *exact slot* by the
same rule; then these rules hold for servers that find no core for each vCPU.

Memory is granted server by server: what was granted to one before is no room for the next
(:class:`host_agent.decide.pages.policy.Room`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from host_agent.conf.options import Options
from host_agent.decide.cores.choose import best_wide_slot, wide_slot_at
from host_agent.decide.cores.nova_cpus import exclusive_cpus, free_for_floating, quiet_cpus
from host_agent.decide.cores.ranking import Ties, rank
from host_agent.decide.cores.slots import CoreLayout, MappedServer, Occupancy, Slot
from host_agent.decide.pages.policy import Room, desired_shares, fit
from host_agent.decide.partitions.requests import partition_of, reasons_of
from host_agent.model import cpus as cpu_list
from host_agent.model.assignment import Assignment, AssignmentReasons, Decision, Guest, Observation
from host_agent.model.terms import Term
from placement_traits.errors import CapabilityMissingError, InvalidValueError
from placement_traits.interference import may_share
from placement_traits.names import InterferenceClass, MemoryPolicy, RemoteMemory, Tier
from placement_traits.reason import Reason
from placement_traits.topology import HostTopology
from placement_traits.workload_request import WorkloadRequest

HomeNodes = Mapping[str, tuple[int, ...]]


@dataclass(slots=True)
class _Host:
    """The host while servers are placed one by one.

    :param levels: L3 domain with a latency-critical server -> bandwidth level of best-effort ones, per cent
    :param room: memory for the floating servers that have not had theirs
    """

    topology: HostTopology
    levels: Mapping[int, int]
    room: Room
    occupancy: Occupancy


def decide(observation: Observation, home_nodes: HomeNodes, options: Options) -> Decision:
    """Decide where all managed servers shall be.

    :param observation: the host now
    :param home_nodes: where floating servers are by the last decision
    :param options: the operator's
    """
    managed = [guest for guest in observation.guests if guest.workload.request is not None]
    host = _host(observation, managed, options)
    assignments = [_bound(host, guest) for guest in managed if not guest.workload.floating]
    unplaced: dict[str, tuple[Reason, ...]] = {}
    floating = sorted(
        (guest for guest in managed if guest.workload.floating),
        # Those that come choose last, and before the others those whose pages cannot follow them.
        key=lambda g: (g.uuid not in home_nodes, not g.workload.domain.immovable, g.uuid),
    )
    for guest in floating:
        _settle(host, guest, home_nodes.get(guest.uuid, ()))
    for guest in floating:
        home = home_nodes.get(guest.uuid, ())
        if guest.blocked_by and not home:
            continue  # it is just being started: where its memory is will be known when it runs
        try:
            assignments.append(_floating(host, guest, home))
        except CapabilityMissingError as error:
            unplaced[guest.uuid] = (Reason(Term.NO_HOME, str(error)),)
    return Decision(tuple(assignments), unplaced)


def _host(observation: Observation, managed: Sequence[Guest], options: Options) -> _Host:
    topology = observation.topology
    lc_l3 = {
        l3
        for guest in managed
        if guest.workload.tier is Tier.LC
        for cpus in _pins(guest, topology).values()
        for cpu in cpus
        if (l3 := topology.l3_of_cpu(cpu)) is not None
    }
    free = frozenset(topology.cpus) - exclusive_cpus(observation)
    quiet = quiet_cpus(observation)
    servers = {guest.uuid: server_of(guest, free, quiet) for guest in managed}
    return _Host(
        topology,
        dict.fromkeys(lc_l3, options.rdt.be_mba_percent),
        Room(free_for_floating(observation), options.memory.margin_mb),
        Occupancy(CoreLayout(topology, use_siblings=True), servers, {}),
    )


def server_of(guest: Guest, free: frozenset[int], quiet: frozenset[int]) -> MappedServer:
    """Translate a guest for the choice between slots.

    A latency-critical server counts as a rabbit, whatever its flavor declares, unless it is a devil: it is delicate by
    definition, so rabbits and devils keep out of its L3 domains while there is another place.

    :param free: CPUs that nova gave to no server alone: where it restricts nothing, a server may have all of them
    :param quiet: CPUs of L3 domains where a claim keeps rabbits and devils out: a floating one gets none of them,
        unless nova shares no others with it
    """
    domain, request = guest.workload.domain, guest.workload.request
    kind = request.interference_class if request else InterferenceClass.SHEEP
    critical = guest.workload.tier is Tier.LC
    if critical and kind is InterferenceClass.SHEEP:
        kind = InterferenceClass.RABBIT
    allowed = free if domain.vcpu_cpuset is None else domain.vcpu_cpuset
    if guest.workload.floating and not may_share(kind, InterferenceClass.RABBIT):
        allowed = (allowed - quiet) or allowed
    may_move = guest.workload.floating and request is not None and not guest.blocked_by
    return MappedServer(
        guest.uuid,
        domain.vcpus,
        domain.memory_mb,
        kind,
        request is not None and request.remote_memory is RemoteMemory.SENSITIVE,
        may_move and not guest.pages_stay,
        allowed,
        critical,
    )


def _pins(guest: Guest, topology: HostTopology) -> dict[int, frozenset[int]]:
    """Return vCPU -> online CPUs that libvirt pinned it to."""
    online = frozenset(topology.cpus)
    pins = guest.workload.domain.vcpu_pins.items()
    return {vcpu: chosen & online for vcpu, chosen in pins if chosen & online}


# -- servers that nova has placed --------------------------------------------------------------------------------------


def _bound(host: _Host, guest: Guest) -> Assignment:
    domain, request = guest.workload.domain, _request(guest)
    pins = _pins(guest, host.topology)
    cpus = tuple(sorted(frozenset[int]().union(*pins.values())))
    if cpus:
        alone = all(len(chosen) == 1 for chosen in pins.values())
        host.occupancy.put(guest.uuid, Slot(cpus, wide=not alone))
    total = sum(cell.memory_mb for cell in domain.cells)
    shares: dict[int, float] = {}
    for cell in domain.cells:
        for node in cell.host_nodes:
            part = cell.memory_mb / total / len(cell.host_nodes)
            shares[node] = shares.get(node, 0.0) + part
    memory = [Reason(Term.MEMORY_BOUND, MemoryPolicy.LOCAL)]
    if not request.memory_policy_applies:
        memory.append(Reason(Term.MEMORY_POLICY_UNUSED, request.memory_policy))
    partition = partition_of(guest, cpus, pins, host.topology, host.levels)
    return Assignment(
        guest.uuid,
        tuple(sorted({host.topology.node_of_cpu(cpu) for cpu in cpus})),
        pins,
        domain.emulator_pin,
        shares or None,
        bound=True,
        partition=partition,
        why=AssignmentReasons(
            (Reason(Term.NOVA_PINS, cpu_list.text(cpus)),),
            reasons_of(partition, request, host.levels),
            tuple(memory),
        ),
    )


# -- floating servers --------------------------------------------------------------------------------------------------


def _settle(host: _Host, guest: Guest, home: tuple[int, ...]) -> None:
    """Count a server where it is, before any is looked at: those that come first see the others where they are."""
    slot = wide_slot_at(host.occupancy, host.occupancy.servers[guest.uuid], home)
    if slot is not None:
        host.occupancy.put(guest.uuid, slot)


def _floating(host: _Host, guest: Guest, home: tuple[int, ...]) -> Assignment:
    if guest.uuid in host.occupancy.slots:
        host.occupancy.take(guest.uuid)
    domain, request, resident = guest.workload.domain, _request(guest), guest.resident_mb
    held = max(1, int(sum(resident.values())))
    server = replace(host.occupancy.servers[guest.uuid], memory_mb=held)
    ties = Ties(
        home,
        tuple(node for node in guest.gpus.values() if node is not None),
        resident,
        bool(domain.immovable),
    )
    found = best_wide_slot(host.occupancy, server, ties, host.room)
    if found is None:
        raise CapabilityMissingError(f"server {guest.uuid} may run on no online CPU of this host")
    slot = found[1]
    place_reasons = rank(host.occupancy, server, slot).reasons()
    host.occupancy.put(guest.uuid, slot)
    nodes, chosen = host.occupancy.layout.nodes(slot), frozenset(slot.cpus)
    shares, memory_reasons = _memory(host, guest, nodes)
    pins = dict.fromkeys(range(domain.vcpus), chosen)
    partition = partition_of(guest, chosen, pins, host.topology, host.levels)
    if shares is not None and not guest.pages_stay and not guest.blocked_by:
        total = sum(resident.values())
        granted = {node: share * total for node, share in shares.items()}
        host.room = host.room.after(resident, granted)
    return Assignment(
        guest.uuid,
        nodes,
        pins,
        # What the emulator does for a device it does near it; else nova's choice stays.
        chosen if guest.gpus else None,
        shares,
        partition=partition,
        why=AssignmentReasons(
            (Reason(Term.HOME_NODES, ",".join(map(str, nodes))), *place_reasons),
            reasons_of(partition, request, host.levels),
            memory_reasons,
        ),
    )


def _memory(
    host: _Host, guest: Guest, nodes: tuple[int, ...]
) -> tuple[dict[int, float] | None, tuple[Reason, ...]]:
    policy = _request(guest).memory_policy
    vcpus = dict.fromkeys(nodes, 1)
    reasons: list[Reason] = [Reason(Term.MEMORY_POLICY, policy)]
    try:
        shares = desired_shares(policy, vcpus_per_node=vcpus, nodes=host.topology.node_ids)
    except CapabilityMissingError:
        against = f"{policy} needs `numa-host-agent-ctl calibrate`"
        reasons.append(Reason(Term.MEMORY_POLICY_USED, MemoryPolicy.LOCAL, against))
        shares = desired_shares(
            MemoryPolicy.LOCAL, vcpus_per_node=vcpus, nodes=host.topology.node_ids
        )
    resident = guest.resident_mb
    if shares is None or not resident:
        return shares, tuple(reasons)
    try:
        limits = host.room.limits_mb(resident)
        fitting, clipped = fit(shares, sum(resident.values()), limits, nodes, resident)
    except (CapabilityMissingError, InvalidValueError) as error:
        return None, (*reasons, Reason(Term.MEMORY_STAYS, str(error)))
    return fitting, (*reasons, *clipped)


def _request(guest: Guest) -> WorkloadRequest:
    request = guest.workload.request
    assert request is not None, "only managed servers are placed"
    return request
