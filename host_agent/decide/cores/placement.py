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

Pages move and free memory changes all the time, and ranking slots is what a decision costs: a server that is the same
as in the last decision keeps its slot while all before it have theirs and each question about room has the same answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from host_agent.conf.options import Options
from host_agent.decide.cores.choose import best_wide_slot, wide_slot_at
from host_agent.decide.cores.nova_cpus import exclusive_cpus, free_for_floating, quiet_cpus
from host_agent.decide.cores.ranking import Ties, rank
from host_agent.decide.cores.slots import CoreLayout, MappedServer, Occupancy, Slot
from host_agent.decide.pages.policy import Room, desired_shares, fit
from host_agent.decide.partitions.requests import partition_of, reasons_of
from host_agent.model import cpus as cpu_list
from host_agent.model.assignment import Assignment, AssignmentReasons, Decision, Guest, Observation
from host_agent.model.process import RamRange
from host_agent.model.terms import Term
from placement_traits.errors import CapabilityMissingError, InvalidValueError
from placement_traits.interference import may_share
from placement_traits.names import InterferenceClass, MemoryPolicy, RemoteMemory, Tier
from placement_traits.reason import Reason
from placement_traits.topology import HostTopology
from placement_traits.workload_request import WorkloadRequest

HomeNodes = Mapping[str, tuple[int, ...]]
_Question = tuple[tuple[int, ...], bool]


@dataclass(frozen=True, slots=True)
class CoarsePart:
    """One floating server's part of a decision.

    :param ram: its memory then
    :param room: (nodes, whether it lives there) that were looked at -> whether they had room for it
    :param slot: that was taken
    """

    ram: tuple[RamRange, ...]
    room: Mapping[_Question, bool]
    slot: Slot
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class CoarseDecision:
    """A decision, and what the next one may keep of it.

    :param observation: what it was made for
    :param home_nodes: where floating servers were then
    :param layout: of the host
    :param parts: UUID -> part of each floating server that found a place
    """

    decision: Decision
    observation: Observation
    home_nodes: HomeNodes
    options: Options
    layout: CoreLayout
    parts: Mapping[str, CoarsePart]

    @property
    def bound(self) -> dict[str, Assignment]:
        """UUID -> assignment of servers that nova has placed: memory changes none of it."""
        return {found.uuid: found for found in self.decision.assignments if found.bound}

    def alike(
        self, observation: Observation, home_nodes: HomeNodes, options: Options
    ) -> "CoarseDecision | None":
        """Return itself where another decision differs by memory at most, of the host or of servers."""
        before = self.observation
        same = (
            self.options is options
            and before.topology == observation.topology
            and self.home_nodes == home_nodes
            and len(before.guests) == len(observation.guests)
            and all(map(_but_for_memory, before.guests, observation.guests))
        )
        return self if same else None


def _but_for_memory(before: Guest, now: Guest) -> bool:
    return (
        before.workload == now.workload
        and (before.process is None) == (now.process is None)
        and before.gpus == now.gpus
    )


@dataclass(slots=True)
class _Host:
    """The host while servers are placed one by one.

    :param levels: L3 domain with a latency-critical server -> bandwidth level of best-effort ones, per cent
    :param room: memory for the floating servers that have not had theirs
    :param bound: UUID -> what the last decision says of servers that nova has placed, where it is still so
    :param last: parts of the last decision, while all servers so far have the slots that they had in it
    :param parts: of this one
    """

    topology: HostTopology
    levels: Mapping[int, int]
    room: Room
    occupancy: Occupancy
    bound: Mapping[str, Assignment]
    last: Mapping[str, CoarsePart]
    parts: dict[str, CoarsePart] = field(default_factory=dict)


@dataclass(slots=True)
class _Asked:
    """Remembers what was asked of the room for one server."""

    room: Room
    answers: dict[_Question, bool] = field(default_factory=dict)

    def covers(
        self,
        memory_mb: float,
        resident_mb: Mapping[int, float],
        nodes: tuple[int, ...],
        home: bool,
    ) -> bool:
        """See :meth:`Room.covers`."""
        answer = self.room.covers(memory_mb, resident_mb, nodes, home)
        self.answers[nodes, home] = answer
        return answer


def decide(observation: Observation, home_nodes: HomeNodes, options: Options) -> Decision:
    """Decide where all managed servers shall be; see :func:`place`."""
    return place(observation, home_nodes, options).decision


def place(
    observation: Observation,
    home_nodes: HomeNodes,
    options: Options,
    last: CoarseDecision | None = None,
) -> CoarseDecision:
    """Decide where all managed servers shall be.

    :param observation: the host now
    :param home_nodes: where floating servers are by the last decision
    :param options: the operator's
    :param last: the last decision: what is the same in this one is the same object
    """
    managed = [guest for guest in observation.guests if guest.workload.request is not None]
    known = last.alike(observation, home_nodes, options) if last else None
    host = _host(observation, managed, options, known)
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
    decision = Decision(tuple(assignments), unplaced)
    if known is not None and known.decision == decision:
        decision = known.decision
    return CoarseDecision(
        decision, observation, home_nodes, options, host.occupancy.layout, host.parts
    )


def _host(
    observation: Observation,
    managed: Sequence[Guest],
    options: Options,
    known: CoarseDecision | None,
) -> _Host:
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
        Occupancy(known.layout if known else CoreLayout(topology, use_siblings=True), servers, {}),
        known.bound if known else {},
        known.parts if known else {},
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
    if guest.uuid in host.bound:
        return host.bound[guest.uuid]
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
    before = host.last.get(guest.uuid)
    part = before if before and _stays(host, guest, before) else _chosen(host, guest, home)
    resident = guest.resident_mb
    host.occupancy.put(guest.uuid, part.slot)
    shares, reasons = _memory(host, guest, part.assignment.nodes)
    if shares is not None and not guest.pages_stay and not guest.blocked_by:
        total = sum(resident.values())
        granted = {node: share * total for node, share in shares.items()}
        host.room = host.room.after(resident, granted)
    found = part.assignment
    if (found.memory_shares, found.why.memory) != (shares, reasons):
        found = replace(found, memory_shares=shares, why=replace(found.why, memory=reasons))
    if before and before.assignment == found:
        found = before.assignment
    host.parts[guest.uuid] = replace(part, assignment=found)
    return found


def _held_mb(guest: Guest) -> int:
    return max(1, int(sum(guest.resident_mb.values())))


def _stays(host: _Host, guest: Guest, part: CoarsePart) -> bool:
    """Tell whether the same slot would be chosen again, with all other servers where they were."""
    if part.ram != guest.ram:
        return False
    held, resident = _held_mb(guest), guest.resident_mb
    return all(
        host.room.covers(held, resident, nodes, at_home) is answer
        for (nodes, at_home), answer in part.room.items()
    )


def _chosen(host: _Host, guest: Guest, home: tuple[int, ...]) -> CoarsePart:
    """Choose a slot; what the memory's shares are is still to be seen."""
    domain, request = guest.workload.domain, _request(guest)
    server = replace(host.occupancy.servers[guest.uuid], memory_mb=_held_mb(guest))
    ties = Ties(
        home,
        tuple(node for node in guest.gpus.values() if node is not None),
        guest.resident_mb,
        bool(domain.immovable),
    )
    asked = _Asked(host.room)
    best = best_wide_slot(host.occupancy, server, ties, asked)
    before = host.last.get(guest.uuid)
    if best is None or before is None or before.slot.cpus != best[1].cpus:
        host.last = {}  # for those that follow this one is a new neighbour
    if best is None:
        raise CapabilityMissingError(f"server {guest.uuid} may run on no online CPU of this host")
    slot = best[1]
    place_reasons = rank(host.occupancy, server, slot).reasons()
    nodes, chosen = host.occupancy.layout.nodes(slot), frozenset(slot.cpus)
    pins = dict.fromkeys(range(domain.vcpus), chosen)
    partition = partition_of(guest, chosen, pins, host.topology, host.levels)
    assignment = Assignment(
        guest.uuid,
        nodes,
        pins,
        # What the emulator does for a device it does near it; else nova's choice stays.
        chosen if guest.gpus else None,
        partition=partition,
        why=AssignmentReasons(
            (Reason(Term.HOME_NODES, ",".join(map(str, nodes))), *place_reasons),
            reasons_of(partition, request, host.levels),
        ),
    )
    return CoarsePart(guest.ram, asked.answers, slot, assignment)


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
