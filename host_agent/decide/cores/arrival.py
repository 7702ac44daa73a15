# SPDX-License-Identifier: Apache-2.0
"""Servers that come: which slot each gets, and who makes way for a latency-critical one."""

from collections.abc import Mapping

from host_agent.conf.mapping import MappingOptions
from host_agent.decide.cores.choose import exact_slots
from host_agent.decide.cores.mapping_state import ArrivalAttempt, MappingState, MappingTurn
from host_agent.decide.cores.ranking import good, rank_of
from host_agent.decide.cores.reshuffle import SearchLimitError, reshuffle
from host_agent.decide.cores.slots import MappedServer, Occupancy, Slot
from host_agent.model.terms import Term
from placement_traits.reason import Reason

Reasons = tuple[Reason, ...]


def place(
    turn: MappingTurn,
    refused: Mapping[str, ArrivalAttempt],
    reasons: dict[str, Reasons],
) -> tuple[dict[str, float], dict[str, ArrivalAttempt]]:
    """Place servers without a slot: those that nova placed, those that already sit well, the others, large first.

    :param refused: servers that found no room before: while nothing has changed they are not tried again
    :returns: when servers were moved, and which servers find no room now
    """
    observation, occupancy = turn.observation, turn.occupancy
    moved: dict[str, float] = {}
    unplaced: dict[str, ArrivalAttempt] = {}
    new = [server for name, server in observation.servers.items() if name not in occupancy.slots]
    for server in sorted(
        new, key=lambda s: (s.movable, s.name not in observation.actual, -s.vcpus, s.name)
    ):
        found = observation.actual.get(server.name)
        if found is not None and (not server.movable or _adoptable(occupancy, server, found)):
            occupancy.put(server.name, found)
            continue
        if not server.movable:
            continue
        before = dict(occupancy.slots)
        attempt = ArrivalAttempt(server, before, occupancy.layout)
        if refused.get(server.name) == attempt:
            unplaced[server.name] = attempt
            continue
        reasons[server.name] = _arrive(occupancy, server, turn.options)
        if server.name not in occupancy.slots:
            unplaced[server.name] = attempt
        for name, slot in occupancy.slots.items():
            if before.get(name) != slot:
                moved[name] = observation.now_s
                reasons.setdefault(name, (Reason(Term.RESHUFFLED_FOR, server.name),))
    return moved, unplaced


def make_way(
    turn: MappingTurn,
    state: MappingState,
    reasons: dict[str, Reasons],
) -> dict[str, float]:
    """Move servers out of the L3 domains of a latency-critical one that has come, where a slot as good is free.

    By the class matrix a sheep may stay there; it is kept out all the same, as one that comes later would be. The first
    decision moves none: a restart of the agent leaves servers where they are.

    :returns: when servers were moved
    """
    observation, occupancy = turn.observation, turn.occupancy
    moved: dict[str, float] = {}
    if state.decided_s == float("-inf"):
        return moved
    servers = observation.servers
    come = [n for n in occupancy.slots if n not in state.slots and servers[n].latency_critical]
    for critical in sorted(come):
        l3_domains = occupancy.l3_domains(occupancy.slots[critical])
        for name in sorted(occupancy.neighbours(l3_domains)):
            if not servers[name].movable or servers[name].latency_critical:
                continue
            before = rank_of(occupancy, name)
            old = occupancy.take(name)
            best = next(iter(exact_slots(occupancy, servers[name])), None)
            leaves = best is not None and best[0] < before and best[0].beside_lc < before.beside_lc
            slot = best[1] if best is not None and leaves else old
            occupancy.put(name, slot)
            if leaves:
                moved[name] = observation.now_s
                where = occupancy.layout.nodes_text(slot)
                why = Reason(Term.REMAPPED, where, f"makes way for {critical}")
                reasons[name] = (*reasons.get(name, ()), why)
    return moved


def _adoptable(occupancy: Occupancy, server: MappedServer, slot: Slot) -> bool:
    """A running server is left where it is when each vCPU has a CPU of its own (restart of the agent)."""
    free = {cpu for cpus in occupancy.free(server).values() for cpu in cpus}
    return len(set(slot.cpus)) == server.vcpus and set(slot.cpus) <= free


def _arrive(occupancy: Occupancy, server: MappedServer, options: MappingOptions) -> Reasons:
    free = sum(map(len, occupancy.free(server).values()))
    if free < server.vcpus:
        return (Reason(Term.HOST_FULL, f"{free} free CPUs", f"{server.vcpus} vCPUs"),)
    candidates = exact_slots(occupancy, server)
    if candidates and good(occupancy, server, candidates[0][0]):
        rank, slot = candidates[0]
        occupancy.put(server.name, slot)
        return (
            Reason(Term.MAPPED, occupancy.layout.nodes_text(slot), "good slot"),
            *rank.reasons(),
        )
    notes: Reasons = ()
    try:
        found = reshuffle(occupancy, server, options)
    except SearchLimitError as limit:
        found, notes = None, (Reason(Term.SEARCH_LIMIT, str(limit)),)
    if found is not None:
        occupancy.put_all(found.slots)
        mapped = Reason(
            Term.MAPPED, occupancy.layout.nodes_text(found.slots[server.name]), "reshuffled"
        )
        return (
            mapped,
            Reason(Term.MOVED_SERVERS, ", ".join(found.moved)),
            Reason(Term.COST_MB, found.cost_mb),
        )
    if not candidates:
        total = sum(occupancy.free_mb(node) for node in occupancy.layout.memory_mb)
        return (*notes, Reason(Term.HOST_FULL, f"{total} MiB free", f"{server.memory_mb} MiB"))
    rank, slot = candidates[0]
    occupancy.put(server.name, slot)
    return (
        Reason(Term.MAPPED, occupancy.layout.nodes_text(slot), "best of bad"),
        *notes,
        *rank.reasons(),
    )
