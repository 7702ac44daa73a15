# SPDX-License-Identifier: Apache-2.0
"""Help at run time for servers that run worse than expected, with the least reshuffling that promises a benefit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from host_agent.conf.mapping import MappingOptions
from host_agent.decide.cores.choose import exact_slots
from host_agent.decide.cores.mapping_state import (
    Expectation,
    LeftNodes,
    MappingSituation,
    MappingState,
    MappingTurn,
    MoveTrial,
    Searched,
)
from host_agent.decide.cores.performance import deviations
from host_agent.decide.cores.ranking import SlotRank, rank_of
from host_agent.decide.cores.reshuffle import Budget, SearchLimitError, move_cost_mb, reshuffle
from host_agent.decide.cores.slots import CoreLayout, MappedServer, Occupancy, Slot
from host_agent.model.terms import Term
from placement_traits.interference import Benefits, IsolationLevel
from placement_traits.reason import Reason

Reasons = tuple[Reason, ...]

_TRIED_SLOTS: Final = 8
"""Best slots of a server that are tried when one move shall help."""


@dataclass(frozen=True, slots=True)
class MappingConfiguration:
    """One way to help a server: new slots for a few servers.

    :param benefit: expected benefit for the server in need, 1 to 10
    :param domain: what it gets for itself
    :param remoteness: distance to the memory of the servers that move, until their pages have followed
    :param rank: its rank afterwards
    """

    slots: Mapping[str, Slot]
    cost_mb: int
    benefit: float
    domain: IsolationLevel
    remoteness: float
    rank: SlotRank


def repair(
    turn: MappingTurn,
    state: MappingState,
    reasons: dict[str, Reasons],
) -> MappingState:
    """Help servers that deviate from their expectation, worst first, within the operator's limits."""
    options, occupancy = turn.options, turn.occupancy
    deviating = _deviating(state, options, occupancy)
    affected = sorted(
        (name for name, value in deviating.items() if value >= options.threshold),
        key=lambda name: (-deviating[name], name),
    )
    moves = options.moves_per_round
    budget = Budget(options.reshuffle_operations)
    on_trial = {trial.server for trial in state.trials}
    state = replace(state, searched=_searched(turn, state))
    for name in affected:
        if name in on_trial or turn.resting(state, name):
            continue
        chosen = None
        if moves > 0 and name not in state.searched.exhausted:
            search = _RepairSearch(turn, state, budget)
            chosen, searched = _best_configuration(search, name)
            state = replace(state, searched=searched)
        seen = Reason(Term.DEVIATION, deviating[name], options.threshold)
        if chosen is not None:
            moves -= len(chosen.slots)
            state = _move(turn, state, chosen)
            due_s = turn.observation.now_s + 2 * options.settle_s
            trial = MoveTrial(name, chosen.domain, deviating[name], due_s)
            state = replace(state, trials=(*state.trials, trial))
            state = replace(state, searched=_searched(turn, state))
            why = (seen, Reason(Term.EXPECTED_BENEFIT, chosen.benefit, options.least_benefit))
            _explain_move(reasons, chosen, why, occupancy, name)
        elif name in state.searched.unsatisfiable and rank_of(occupancy, name).violations:
            propose = Reason(Term.PROPOSE_LIVE_MIGRATION, name, "no better slot here")
            reasons.setdefault(name, (seen, propose))
    return state


def _deviating(
    state: MappingState, options: MappingOptions, occupancy: Occupancy
) -> dict[str, float]:
    """Return server -> deviation; one that was never quiet beside a forbidden neighbour is just at the threshold."""
    deviating = deviations(state, options)
    for name in sorted(occupancy.slots):
        known = state.expectations.get(name, Expectation())
        measured = len(known.recent) == options.smooth_samples and not known.blind
        never_quiet = known.value is None and measured
        if never_quiet and rank_of(occupancy, name).violations:
            deviating[name] = options.threshold
    return deviating


def _explain_move(
    reasons: dict[str, Reasons],
    chosen: MappingConfiguration,
    why: Reasons,
    occupancy: Occupancy,
    helped: str,
) -> None:
    seen, benefit = why
    for moved, slot in chosen.slots.items():
        where = Reason(Term.REMAPPED, occupancy.layout.nodes_text(slot), f"helps {helped}")
        cost = Reason(Term.COST_MB, chosen.cost_mb)
        reasons[moved] = (*reasons.get(moved, ()), seen, where, benefit, cost)


def _searched(
    turn: MappingTurn,
    state: MappingState,
) -> Searched:
    """Return what is known to be no use now: in another situation everything is worth another look."""
    slots = turn.occupancy.slots
    resting = frozenset(n for n in slots if turn.resting(state, n))
    now = MappingSituation(
        servers=dict(turn.observation.servers),
        slots=dict(slots),
        resting=resting,
        left=state.left,
        benefit=state.benefit,
        layout=turn.occupancy.layout,
    )
    known = state.searched
    if known.situation == now:
        return known
    return Searched(now, unsatisfiable=known.unsatisfiable & slots.keys())


@dataclass(frozen=True, slots=True)
class _RepairSearch:
    """What a search for a better configuration looks at, and how long it may look."""

    turn: MappingTurn
    state: MappingState
    budget: Budget


def _best_configuration(
    search: _RepairSearch, name: str
) -> tuple[MappingConfiguration | None, Searched]:
    """Return the configuration with the least reshuffling: most benefit of those with one move, else a reshuffle.

    :returns: the configuration, None when there is none or the budget is used up, and what is known now
    """
    server, known = search.turn.observation.servers[name], search.state.searched
    chosen, ended = None, True
    if name not in known.alone:
        chosen = _best_single_move(search, server)
        known = replace(known, alone=known.alone | {name})
    reshuffles = server.movable and rank_of(search.turn.occupancy, name).violations
    if chosen is None and reshuffles:
        chosen, ended = _by_reshuffle(search, server)
    if chosen is not None:
        return chosen, replace(known, unsatisfiable=known.unsatisfiable - {name})
    if not ended:
        return None, known
    return None, replace(
        known, exhausted=known.exhausted | {name}, unsatisfiable=known.unsatisfiable | {name}
    )


def _best_single_move(search: _RepairSearch, server: MappedServer) -> MappingConfiguration | None:
    return min(
        (
            configuration
            for configuration in _single_moves(search, server)
            if configuration.benefit >= search.turn.options.least_benefit
        ),
        key=lambda c: (c.rank.violations, -c.benefit, c.cost_mb, c.remoteness, c.rank),
        default=None,
    )


def _single_moves(search: _RepairSearch, server: MappedServer) -> Iterator[MappingConfiguration]:
    """Yield configurations that move the server itself or one neighbour."""
    occupancy, state = search.turn.occupancy, search.state
    l3_domains = occupancy.l3_domains(occupancy.slots[server.name])
    for name in sorted(occupancy.neighbours(l3_domains)):
        mover = search.turn.observation.servers[name]
        if not mover.movable or search.turn.resting(search.state, name):
            continue
        before, owned = rank_of(occupancy, server.name), _owned(occupancy, server)
        mover_before = rank_of(occupancy, name)
        old = occupancy.take(name)
        candidates = sorted(
            (rank, _remoteness(occupancy.layout, old, slot), slot.cpus, slot)
            for rank, slot in exact_slots(occupancy, mover)
        )
        for rank, remoteness, _, slot in candidates[:_TRIED_SLOTS]:
            if _back(state, occupancy.layout, name, slot) or set(slot.cpus) == set(old.cpus):
                continue
            if name != server.name and not _may_give_way(mover_before, rank):
                continue
            occupancy.put(name, slot)
            after, gained = rank_of(occupancy, server.name), _owned(occupancy, server) - owned
            occupancy.take(name)
            found = _gain(state.benefit, server, before, after, gained)
            if found is not None:
                cost = move_cost_mb(mover, search.turn.options)
                yield MappingConfiguration({name: slot}, cost, *found, remoteness, after)
        occupancy.put(name, old)


def _may_give_way(before: SlotRank, after: SlotRank) -> bool:
    """Tell whether a neighbour may be moved for another server: it is worse off in no term that protects servers.

    A forbidden pair has to end: one that goes on with another server helps one and harms the next.
    """
    return after.violations < max(1, before.violations) and (
        after.chassis <= before.chassis
        and after.nodes <= before.nodes
        and after.memory_away <= before.memory_away
        and after.beside_lc <= before.beside_lc
    )


def _by_reshuffle(
    search: _RepairSearch, server: MappedServer
) -> tuple[MappingConfiguration | None, bool]:
    """Return the best reshuffle, None when there is none, and whether the search came to its own end."""
    occupancy, options = search.turn.occupancy, search.turn.options
    before, owned = rank_of(occupancy, server.name), _owned(occupancy, server)
    # What others have used up may be what it needs: the next decision has all of it for the first.
    whole = search.budget.left == options.reshuffle_operations
    old = occupancy.take(server.name)
    try:
        found = reshuffle(occupancy, server, options, search.budget)
    except SearchLimitError:
        return None, whole
    finally:
        occupancy.put(server.name, old)
    if found is None or any(search.turn.resting(search.state, name) for name in found.moved):
        return None, True
    previous = {name: occupancy.slots[name] for name in found.slots}
    occupancy.put_all(found.slots)
    after, gained = rank_of(occupancy, server.name), _owned(occupancy, server) - owned
    occupancy.put_all(previous)
    gain = _gain(search.state.benefit, server, before, after, gained)
    if gain is None or gain[0] < search.turn.options.least_benefit:
        return None, True
    cost = found.cost_mb + move_cost_mb(server, options)
    layout = occupancy.layout
    remoteness = sum(_remoteness(layout, previous[n], slot) for n, slot in found.slots.items())
    return MappingConfiguration(found.slots, cost, *gain, remoteness, after), True


def _remoteness(layout: CoreLayout, old: Slot, new: Slot) -> float:
    """Return the mean distance from the CPUs of a slot to the memory of another."""
    nodes = layout.nodes(new)
    return sum(
        share * layout.node_distance(node, memory) / len(nodes)
        for memory, share in old.shares.items()
        for node in nodes
    )


def _owned(occupancy: Occupancy, server: MappedServer) -> set[IsolationLevel]:
    """Return the kinds of domain that the server shares with no other.

    Sheep count: a server that runs worse beside sheep alone has a neighbour that is none, whatever its flavor declares.
    """
    layout = occupancy.layout
    touched = {layout.group_of_cpu[cpu] for cpu in occupancy.slots[server.name].cpus}
    keys = {
        IsolationLevel.SOCKET: "socket",
        IsolationLevel.NODE: "node",
        IsolationLevel.CHASSIS: "chassis",
    }
    owned = set()
    for domain, key in keys.items():
        mine = {getattr(cell, key) for cell in touched}
        l3_domains = {cell.l3 for cell in layout.groups if getattr(cell, key) in mine}
        others = occupancy.neighbours(l3_domains) - {server.name}
        if not others:
            owned.add(domain)
    return owned


def _gain(
    benefit: Benefits,
    server: MappedServer,
    before: SlotRank,
    after: SlotRank,
    gained: set[IsolationLevel],
) -> tuple[float, IsolationLevel] | None:
    """Return the expected benefit of a change and the domain it is booked on; None when the change is no improvement.

    Fewer slices count as the domain that is crossed no more, fewer forbidden neighbours as a node of one's own.
    """
    if (after.violations, after.chassis, after.nodes) > (
        before.violations,
        before.chassis,
        before.nodes,
    ):
        return None
    kinds = set(gained)
    if after.chassis < before.chassis:
        kinds.add(IsolationLevel.CHASSIS)
    if after.nodes < before.nodes or after.violations < before.violations:
        kinds.add(IsolationLevel.NODE)
    if not kinds:
        return None
    kind = max(kinds, key=lambda domain: (benefit[domain][server.interference_class], domain))
    return benefit[kind][server.interference_class], kind


def _back(state: MappingState, layout: CoreLayout, name: str, slot: Slot) -> bool:
    nodes = layout.nodes(slot)
    return any(left.server == name and left.nodes == nodes for left in state.left)


def _move(
    turn: MappingTurn,
    state: MappingState,
    chosen: MappingConfiguration,
) -> MappingState:
    occupancy, now_s = turn.occupancy, turn.observation.now_s
    old = {name: occupancy.slots[name] for name in chosen.slots}
    occupancy.put_all(chosen.slots)
    until = now_s + turn.options.memory_s
    left = tuple(LeftNodes(name, occupancy.layout.nodes(slot), until) for name, slot in old.items())
    cleared = {
        name: replace(state.expectations[name], recent=(), quiet=())
        for name in chosen.slots
        if name in state.expectations
    }
    return replace(
        state,
        slots=dict(occupancy.slots),
        moved_s={**state.moved_s, **dict.fromkeys(chosen.slots, now_s)},
        left=(*state.left, *left),
        expectations={**state.expectations, **cleared},
    )
