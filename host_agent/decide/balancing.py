# SPDX-License-Identifier: Apache-2.0
"""From the simple placement rule to the full one: cores by the mapping, memory by BWAP. Pure.

``refine`` takes the decision of :mod:`host_agent.decide.cores.placement`, which is safe and coarse (home nodes,
threads float on their CPUs), and replaces what the run-time controllers know better, for *floating managed* servers
only:

* each vCPU gets a core of its own from :mod:`host_agent.decide.cores.mapping`; a server that finds no room there (an
  overcommitted host) keeps the coarse placement, and the reason says so;
* memory shares follow its memory policy over the nodes of those cores, at the point where BWAP's search stands;
* resource control follows the cores: bandwidth levels are for the L3 domains shared with a latency-critical server.

A latency-critical server counts as a rabbit, whatever its flavor declares, unless it is a devil: it is delicate by
definition, so rabbits and devils keep out of its L3 domains while there is another place.

Reasons stay what they are until something changes: a decision that is repeated is the same decision.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from host_agent.conf.mapping import MappingOptions, PerformanceMetric
from host_agent.conf.options import Options
from host_agent.decide.cores import mapping
from host_agent.decide.cores.mapping_state import MappingObservation, MappingState
from host_agent.decide.cores.nova_cpus import exclusive_cpus, free_for_floating, quiet_cpus
from host_agent.decide.cores.placement import server_of
from host_agent.decide.cores.slots import CoreLayout, MappedServer, Slot
from host_agent.decide.pages.policy import Room, desired_shares
from host_agent.decide.pages.shares import Before, Cores, Memory, memory
from host_agent.decide.pages.turns import turns
from host_agent.decide.partitions.requests import bandwidth_levels, level_reasons
from host_agent.model.assignment import (
    Assignment,
    AssignmentReasons,
    Decision,
    Guest,
    Observation,
)
from host_agent.model.balancing import BalancingInputs
from host_agent.model.counters import ServerCounters
from host_agent.model.pages import apportion
from host_agent.model.partition import PartitionRequest
from host_agent.model.terms import Term
from placement_traits.names import MemoryPolicy, Tier
from placement_traits.reason import Reason
from placement_traits.topology import HostTopology

Reasons = tuple[Reason, ...]

_NOTHING: Final = Memory()  # what is known of a server at first


@dataclass(frozen=True, slots=True)
class PlaceReasons:
    """Why a server is where it is.

    :param slot: its slot then
    :param reasons: of the mapping
    """

    slot: Slot | None
    reasons: Reasons


@dataclass(frozen=True, slots=True)
class Refined:
    """One server's part of a decision, and what it was made of: while that is the same, so is the part.

    :param coarse: of the simple rule
    :param lc_l3: L3 domains of latency-critical servers
    :param placed: ``coarse`` on the cores of the slot
    :param cores: those
    :param result: the same with its memory and all reasons
    :param room: that the servers before it left
    :param left: what it leaves
    """

    coarse: Assignment
    slot: Slot | None
    lc_l3: frozenset[int]
    topology: HostTopology
    placed: Assignment
    cores: Cores
    result: Assignment
    room: Room
    left: Room

    def made_of(
        self,
        coarse: Assignment,
        slot: Slot | None,
        lc_l3: frozenset[int],
        topology: HostTopology,
    ) -> bool:
        """Tell whether it would be placed the same again."""
        same = self.coarse is coarse and self.topology is topology
        return same and self.slot == slot and self.lc_l3 == lc_l3


@dataclass(frozen=True, slots=True)
class Basis:
    """What a decision is made of, but for what was counted.

    :param decision: of the simple rule
    :param inputs: those, with any counters
    :param room: before the first server
    :param lc_l3: L3 domains of latency-critical servers
    """

    decision: Decision
    inputs: BalancingInputs
    room: Room
    lc_l3: frozenset[int]


@dataclass(frozen=True, slots=True)
class BalancingState:
    """What the controllers remember.

    :param mapper: of the mapping
    :param memory: UUID -> what was decided about its pages, with its search
    :param place_reasons: UUID -> why it is where it is
    :param settled: the host for which the mapping found nothing to change last, None where it changed something
    :param refined: UUID -> its part of the last decision
    :param basis: what all parts of that were made of
    """

    mapper: MappingState = field(default_factory=MappingState)
    memory: Mapping[str, Memory] = field(default_factory=dict)
    place_reasons: Mapping[str, PlaceReasons] = field(default_factory=dict)
    settled: Observation | None = None
    refined: Mapping[str, Refined] = field(default_factory=dict)
    basis: Basis | None = None


def refine(
    decision: Decision,
    inputs: BalancingInputs,
    state: BalancingState,
    options: Options,
    layout: CoreLayout,
) -> tuple[Decision, BalancingState]:
    """Return the decision with exact cores and memory shares for floating servers, and the new state.

    :param decision: of the simple rule
    :param layout: the host's cells, prepared once per topology
    """
    mapped, explained, settled = _mapped(inputs, state, options.mapping, layout)
    basis = _basis(decision, inputs, state, options)
    stands = explained is state.place_reasons and basis is state.basis
    turn = turns(state.memory, options.bwap)
    room, lc_l3, topology = basis.room, basis.lc_l3, inputs.observation.topology
    memories: dict[str, Memory] = {}
    refined: list[Assignment] = []
    parts: dict[str, Refined] = {}
    for assignment in decision.assignments:
        known = state.memory.get(assignment.uuid, _NOTHING)
        part = state.refined.get(assignment.uuid) if stands else None
        same = part and (part.room is room or part.room == room)
        if part and same and inputs.counters_of(assignment.uuid) is None:
            memories[assignment.uuid], parts[assignment.uuid], room = known, part, part.left
            refined.append(part.result)
            continue
        guest = inputs.observation.get(assignment.uuid)
        reasons = explained[assignment.uuid].reasons if assignment.uuid in explained else ()
        if guest is None or not _balanced(guest):
            if not assignment.bound and known.search is not None:
                memories[assignment.uuid] = replace(known, held=True)
            place = (*assignment.why.place, *reasons)
            refined.append(_with_reasons(assignment, place=place) if reasons else assignment)
            continue
        slot = mapped.slots.get(assignment.uuid) if options.mapping.enabled else None
        part = state.refined.get(assignment.uuid)
        if part is None or not part.made_of(assignment, slot, lc_l3, topology):
            part = _part(assignment, slot, basis, room, options)
        may_begin = turn.may_begin(assignment.uuid)
        found = memory(guest, part.cores, inputs, Before(room, known, may_begin), options)
        turn = turn.after(assignment.uuid, known, found)
        memories[assignment.uuid] = found
        part = _with_memory(part, found, (*part.placed.why.place, *reasons))
        left = _left(room, guest, found)
        part, room = replace(part, room=room, left=left), left
        parts[assignment.uuid] = part
        refined.append(part.result)
    state = BalancingState(mapped, memories, explained, settled, parts, basis)
    return Decision(tuple(refined), decision.unplaced), state


def _basis(
    decision: Decision, inputs: BalancingInputs, state: BalancingState, options: Options
) -> Basis:
    """Return that of the last decision where it is still the same."""
    before = state.basis
    if before and before.decision is decision and inputs.same_host(before.inputs):
        return before
    room = Room(free_for_floating(inputs.observation), options.memory.margin_mb)
    return Basis(decision, inputs, room, _lc_domains(decision))


def _mapped(
    inputs: BalancingInputs, state: BalancingState, options: MappingOptions, layout: CoreLayout
) -> tuple[MappingState, Mapping[str, PlaceReasons], Observation | None]:
    """Return the mapping, why each server is where it is, and the host for which all of that stays as it is."""
    if not options.enabled or _at_rest(inputs, state, options):
        return state.mapper, state.place_reasons, state.settled
    seen = _mapping_observation(inputs, state, options, layout)
    mapped, why = mapping.decide(seen, state.mapper, options, layout)
    judged = mapped.decided_s != state.mapper.decided_s
    explained = {
        uuid: _still_true(
            state.place_reasons.get(uuid), server, mapped, why.get(uuid, ()), judged=judged
        )
        for uuid, server in seen.servers.items()
    }
    changed = any(why.values()) or mapped.slots != state.mapper.slots
    return mapped, explained, None if changed else inputs.observation


def _at_rest(inputs: BalancingInputs, state: BalancingState, options: MappingOptions) -> bool:
    """Tell whether the mapping would change nothing: the same host as before, nothing new measured, nothing due."""
    waits = inputs.now_s - state.mapper.decided_s < options.interval_s
    return waits and inputs.performance is None and _alike(state.settled, inputs.observation)


def _alike(before: Observation | None, now: Observation) -> bool:
    """Tell whether two looks at a host are the same to the mapping."""
    if before is None or before is now:
        return before is now
    return (
        before.topology == now.topology
        and len(before.guests) == len(now.guests)
        and all(map(_same_guest, before.guests, now.guests))
    )


def _same_guest(before: Guest, now: Guest) -> bool:
    """The same, but for where its pages are when they may be moved."""
    if before is now:
        return True
    same = (before.workload, before.process, before.problem) == (
        now.workload,
        now.process,
        now.problem,
    )
    return same and (_balanced(now) or before.resident_mb == now.resident_mb)


def _part(
    assignment: Assignment, slot: Slot | None, basis: Basis, room: Room, options: Options
) -> Refined:
    inputs, lc_l3, topology = basis.inputs, basis.lc_l3, basis.inputs.observation.topology
    placed = assignment if slot is None else _with_cores(assignment, slot, inputs, lc_l3, options)
    cores = _cores(placed, slot, topology)
    return Refined(assignment, slot, lc_l3, topology, placed, cores, placed, room, room)


def _with_memory(part: Refined, found: Memory, place: Reasons) -> Refined:
    """Return the part with its memory; what is the same as in the last decision is the same object."""
    why, reasons = part.result.why, found.reasons
    if (why.place, why.memory) == (place, reasons) and part.result.memory_shares == found.shares:
        return part
    reasoned = replace(part.placed.why, place=place, memory=reasons)
    return replace(part, result=replace(part.placed, why=reasoned, memory_shares=found.shares))


def _balanced(guest: Guest) -> bool:
    return guest.workload.floating and guest.workload.request is not None and not guest.blocked_by


def _still_true(
    before: PlaceReasons | None,
    server: MappedServer,
    mapped: MappingState,
    why: Reasons,
    *,
    judged: bool,
) -> PlaceReasons:
    """Keep the reasons of the last change; the same reasons with other figures are no change."""
    slot = mapped.slots.get(server.name)
    if before is None:
        found = (_as_found(slot),) if slot is not None and server.movable else ()
        return PlaceReasons(slot, why or found)
    same_place = _cpus(before.slot) == _cpus(slot)
    if same_place and _subjects(why) == _subjects(before.reasons):
        return before
    if why or not same_place:
        return PlaceReasons(slot, why)
    if judged and any(r.term == Term.PROPOSE_LIVE_MIGRATION for r in before.reasons):
        return PlaceReasons(slot, ())
    return before


def _as_found(slot: Slot) -> Reason:
    return Reason(Term.MAPPED, f"CPUs {','.join(map(str, slot.cpus))}", "as found")


def _cpus(slot: Slot | None) -> tuple[int, ...]:
    return slot.cpus if slot is not None else ()


def _subjects(reasons: Reasons) -> list[tuple[str, str]]:
    return [(reason.term, reason.where) for reason in reasons]


def _with_reasons(assignment: Assignment, **parts: Reasons) -> Assignment:
    return replace(assignment, why=replace(assignment.why, **parts))


def _lc_domains(decision: Decision) -> frozenset[int]:
    return frozenset(
        l3
        for assignment in decision.assignments
        if assignment.partition is not None and assignment.partition.tier == Tier.LC
        for l3 in assignment.partition.domains
    )


# -- cores -------------------------------------------------------------------------------------------------------------


def _mapping_observation(
    inputs: BalancingInputs,
    state: BalancingState,
    options: MappingOptions,
    layout: CoreLayout,
) -> MappingObservation:
    """Translate; servers that float unmanaged have no place of their own and are left out."""
    servers, actual, measured = {}, {}, {}
    free = frozenset(inputs.observation.topology.cpus) - exclusive_cpus(inputs.observation)
    quiet = quiet_cpus(inputs.observation)
    for guest in inputs.observation.guests:
        slot = _own_cores(guest, layout)
        # One that cannot be seen or touched now keeps the cores it was given.
        if slot is None and not _balanced(guest) and guest.uuid not in state.mapper.slots:
            continue
        servers[guest.uuid] = server_of(guest, free, quiet)
        if slot is not None:
            actual[guest.uuid] = slot
        counters = (inputs.performance or {}).get(guest.uuid, ServerCounters())
        value = counters.ipc if options.metric is PerformanceMetric.IPC else counters.mpi
        if value is not None:
            measured[guest.uuid] = value
    sampled = inputs.performance is not None
    return MappingObservation(inputs.now_s, servers, actual, measured, sampled)


def _own_cores(guest: Guest, layout: CoreLayout) -> Slot | None:
    """Return where a guest sits when each of its vCPUs is pinned to one CPU.

    The memory of one that may be balanced belongs with its cores, wherever it is now: it is brought there.
    """
    cpus = guest.vcpu_cpus
    pins = [next(iter(cpus[vcpu])) for vcpu in sorted(cpus) if len(cpus[vcpu]) == 1]
    if len(pins) < guest.workload.domain.vcpus or any(p not in layout.group_of_cpu for p in pins):
        return None
    if not _balanced(guest):
        return Slot(tuple(pins), {node: round(mb) for node, mb in guest.resident_mb.items()})
    nodes = Counter(layout.group_of_cpu[cpu].node for cpu in pins)
    shares = {node: count / len(pins) for node, count in nodes.items()}
    return Slot(tuple(pins), apportion(guest.workload.domain.memory_mb, shares))


def _with_cores(
    assignment: Assignment,
    slot: Slot,
    inputs: BalancingInputs,
    lc_l3: frozenset[int],
    options: Options,
) -> Assignment:
    topology = inputs.observation.topology
    domains = tuple(
        sorted({l3 for cpu in slot.cpus if (l3 := topology.l3_of_cpu(cpu)) is not None})
    )
    partition: PartitionRequest | None = assignment.partition
    why = AssignmentReasons(partition=assignment.why.partition, objective=assignment.why.objective)
    if partition is not None and partition.tier == Tier.BE:
        percent = bandwidth_levels(domains, dict.fromkeys(lc_l3, options.rdt.be_mba_percent))
        partition = replace(partition, domains=domains, mba_percent=percent)
        why = replace(why, partition=level_reasons(percent, lc_l3))
    return replace(
        assignment,
        nodes=tuple(sorted({topology.node_of_cpu(cpu) for cpu in slot.cpus})),
        vcpu_cpus={vcpu: frozenset({cpu}) for vcpu, cpu in enumerate(slot.cpus)},
        partition=partition,
        why=why,
    )


# -- memory ------------------------------------------------------------------------------------------------------------


def _cores(placed: Assignment, slot: Slot | None, topology: HostTopology) -> Cores:
    if slot is not None:
        return Cores(Counter(topology.node_of_cpu(cpu) for cpu in slot.cpus), slot.shares)
    vcpus = dict.fromkeys(placed.nodes, 1)
    near = desired_shares(MemoryPolicy.LOCAL, vcpus_per_node=vcpus, nodes=topology.node_ids)
    return Cores(vcpus, near or {})


def _left(room: Room, guest: Guest, found: Memory) -> Room:
    """Room for the next server; pages that are not moved now neither take nor give any."""
    if found.shares is None:
        return room
    resident = guest.resident_mb
    total = sum(resident.values())
    return room.after(resident, {node: share * total for node, share in found.shares.items()})
