# SPDX-License-Identifier: Apache-2.0
"""The mapping of servers to the cores and nodes of one host: arrival, reshuffling, and repair at run time.

::

    new server ──► good slot free? ──yes──► map
                        │ no
                        └─► reshuffle (fewest moves, then cheapest) ──► map; nothing found ──► best slot there is
                            no room at all ──► event host_full, nothing changed

    every interval: servers that deviate from their expectation by the threshold, worst first
                    ──► configuration with the least reshuffling that promises a benefit ──► move
                    ──► after settling: benefit matrix learns what was gained

* *Performance* of a server is IPC (higher is better) or MPI, misses per instruction (lower is better). Its
  *expectation* is the median of a quiet window: no disturbing neighbour in its L3 domains, no move there for a while.
  One that is measured, was never quiet and has a forbidden neighbour counts as just deviating: it moves when it can.
* What a move is worth is looked up in the benefit matrix (class x kind of domain a server gets for itself); moves that
  promise less than ``least_benefit`` are not made, so a matrix that has learnt that moving does not pay stops it.
* All searches of one decision about running servers share ``[mapping]reshuffle_operations``; a server for which
  nothing was found is looked at again when something has changed: a full host costs no more than a quiet one.
* A moved server rests for ``cooldown_s``, and nodes that it left are not tried again for ``memory_s`` (no ping-pong).
* Servers that nova placed (dedicated, or with a NUMA topology) are never moved; a neighbour may be, otherwise a live
  migration is proposed.

Source: Lakew et al., algorithm 1. The source leaves threshold, interval and update rule open; they are options here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from host_agent.conf.mapping import MappingOptions, PerformanceMetric
from host_agent.decide.cores.choose import exact_slots
from host_agent.decide.cores.ranking import SlotRank, good, rank_of
from host_agent.decide.cores.reshuffle import Budget, SearchLimitError, move_cost_mb, reshuffle
from host_agent.decide.cores.slots import CoreLayout, MappedServer, Occupancy, Slot
from host_agent.model.terms import Term
from placement_traits.interference import (
    BENEFIT_MAX,
    BENEFIT_MIN,
    INITIAL_BENEFIT,
    Benefits,
    IsolationLevel,
    penalty,
    updated_benefit,
)
from placement_traits.names import InterferenceClass
from placement_traits.reason import Reason

Reasons = tuple[Reason, ...]

_TRIED_SLOTS: Final = 8
"""Best slots of a server that are tried when one move shall help."""


@dataclass(frozen=True, slots=True)
class MappingObservation:
    """The host at one moment.

    :param now_s: monotonic time, seconds
    :param servers: all servers on the host, those that may not be moved included
    :param actual: where servers are; one without a CPU of its own for each vCPU is missing
    :param measured: IPC or MPI of each server; missing when not known
    :param sampled: a sample was due: a server that is missing in ``measured`` could not be measured
    """

    now_s: float
    servers: Mapping[str, MappedServer]
    actual: Mapping[str, Slot] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    sampled: bool = True


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is known of a server's performance.

    :param value: expected performance; None until learnt
    :param recent: last samples
    :param quiet: samples of the quiet window so far
    :param blind: missing samples in a row
    """

    value: float | None = None
    recent: tuple[float, ...] = ()
    quiet: tuple[float, ...] = ()
    blind: int = 0


@dataclass(frozen=True, slots=True)
class MoveTrial:
    """A move whose gain is not known yet.

    :param domain: what the server got for itself
    :param before: deviation before the move
    :param due_s: when the gain is looked at
    """

    server: str
    domain: IsolationLevel
    before: float
    due_s: float


@dataclass(frozen=True, slots=True)
class LeftNodes:
    """Nodes that a server left, which it shall not return to before ``until_s``."""

    server: str
    nodes: frozenset[int]
    until_s: float


@dataclass(frozen=True, slots=True)
class MappingSituation:
    """All that the search for a better configuration depends on."""

    servers: Mapping[str, MappedServer]
    slots: Mapping[str, Slot]
    resting: frozenset[str]
    left: tuple[LeftNodes, ...]
    benefit: Benefits
    layout: CoreLayout


@dataclass(frozen=True, slots=True)
class ArrivalAttempt:
    """All that the search for a first slot depends on."""

    server: MappedServer
    slots: Mapping[str, Slot]
    layout: CoreLayout


@dataclass(frozen=True, slots=True)
class Searched:
    """What the searches have found out.

    :param situation: the last one
    :param alone: servers that no single move helps in it
    :param exhausted: servers for which there is nothing better in it
    :param unsatisfiable: servers for which nothing better was found when they were looked at last
    """

    situation: MappingSituation | None = None
    alone: frozenset[str] = frozenset()
    exhausted: frozenset[str] = frozenset()
    unsatisfiable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MappingState:
    """What the mapping remembers; the desired slots, expectations and the benefit matrix are kept over restarts.

    :param slots: desired slot of every server
    :param expectations: what is known of each server's performance
    :param benefit: learnt benefit matrix
    :param trials: moves whose gain is not known yet
    :param left: nodes that servers left
    :param moved_s: time of each server's last move
    :param decided_s: time of the last round
    :param searched: what is known to be no use
    :param unplaced: servers for which there was no room, with all that this depended on
    """

    slots: Mapping[str, Slot] = field(default_factory=dict)
    expectations: Mapping[str, Expectation] = field(default_factory=dict)
    benefit: Benefits = field(default_factory=lambda: INITIAL_BENEFIT)
    trials: tuple[MoveTrial, ...] = ()
    left: tuple[LeftNodes, ...] = ()
    moved_s: Mapping[str, float] = field(default_factory=dict)
    decided_s: float = float("-inf")
    searched: Searched = field(default_factory=Searched)
    unplaced: Mapping[str, "ArrivalAttempt"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MappingConfiguration:
    """One way to help a server: new slots for a few servers.

    :param benefit: expected benefit for the server in need, 1 to 10
    :param domain: what it gets for itself
    :param rank: its rank afterwards
    """

    slots: Mapping[str, Slot]
    cost_mb: int
    benefit: float
    domain: IsolationLevel
    rank: SlotRank


def decide(
    observation: MappingObservation,
    state: MappingState,
    options: MappingOptions,
    layout: CoreLayout,
) -> tuple[MappingState, Mapping[str, Reasons]]:
    """Return the new state with the desired slots, and the reasons by server; nothing changed means no reasons.

    :param layout: the host's cells, prepared once per topology
    """
    reasons: dict[str, Reasons] = {}
    state = _forget(observation, state, layout)
    occupancy = Occupancy(layout, observation.servers, state.slots, options.reserve_share)
    moved, unplaced = _arrivals(observation, state.unplaced, occupancy, options, reasons)
    moved |= _make_way(observation, state, occupancy, reasons)
    state = replace(
        state,
        slots=dict(occupancy.slots),
        moved_s={**state.moved_s, **moved},
        unplaced=unplaced,
    )
    state = _learn(observation, state, options, occupancy)
    if observation.now_s - state.decided_s >= options.interval_s:
        state = _judge_trials(observation, state, options, reasons)
        state = _repair(observation, state, options, occupancy, reasons)
        state = replace(state, decided_s=observation.now_s)
    return state, reasons


def deviation(measured: float, expected: float, metric: PerformanceMetric) -> float:
    """Return the relative deviation from the expectation; positive is worse, for IPC and MPI alike."""
    if expected <= 0:
        return 0.0
    drop = (expected - measured) / expected
    return drop if metric is PerformanceMetric.IPC else -drop


def _forget(
    observation: MappingObservation, state: MappingState, layout: CoreLayout
) -> MappingState:
    """Drop servers that have gone, and slots on CPUs that went offline or that a server may use no more."""
    servers, online = observation.servers, layout.group_of_cpu
    slots = {
        name: slot
        for name, slot in state.slots.items()
        if name in servers
        and len(slot.cpus) == servers[name].vcpus
        and all(cpu in online for cpu in slot.cpus)
        and _may_use(servers[name], slot)
    }
    return replace(
        state,
        slots=slots,
        expectations={n: e for n, e in state.expectations.items() if n in servers},
        moved_s={n: s for n, s in state.moved_s.items() if n in servers},
        trials=tuple(trial for trial in state.trials if trial.server in servers),
        left=tuple(
            left
            for left in state.left
            if left.server in servers and left.until_s > observation.now_s
        ),
    )


def _may_use(server: MappedServer, slot: Slot) -> bool:
    return (
        not server.movable
        or server.allowed_cpus is None
        or server.allowed_cpus.issuperset(slot.cpus)
    )


# -- arrival -----------------------------------------------------------------------------------------------------------


def _arrivals(
    observation: MappingObservation,
    refused: Mapping[str, ArrivalAttempt],
    occupancy: Occupancy,
    options: MappingOptions,
    reasons: dict[str, Reasons],
) -> tuple[dict[str, float], dict[str, ArrivalAttempt]]:
    """Place servers without a slot: those that nova placed, those that already sit well, the others, large first.

    :param refused: servers that found no room before: while nothing has changed they are not tried again
    :returns: when servers were moved, and which servers find no room now
    """
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
        reasons[server.name] = _arrive(occupancy, server, options)
        if server.name not in occupancy.slots:
            unplaced[server.name] = attempt
        for name, slot in occupancy.slots.items():
            if before.get(name) != slot:
                moved[name] = observation.now_s
                reasons.setdefault(name, (Reason(Term.RESHUFFLED_FOR, server.name),))
    return moved, unplaced


def _make_way(
    observation: MappingObservation,
    state: MappingState,
    occupancy: Occupancy,
    reasons: dict[str, Reasons],
) -> dict[str, float]:
    """Move servers out of the L3 domains of a latency-critical one that has come, where a slot as good is free.

    By the class matrix a sheep may stay there; it is kept out all the same, as one that comes later would be. The first
    decision moves none: a restart of the agent leaves servers where they are.

    :returns: when servers were moved
    """
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
                where = _nodes_text(occupancy, slot)
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
        return (Reason(Term.MAPPED, _nodes_text(occupancy, slot), "good slot"), *rank.reasons())
    notes: Reasons = ()
    try:
        found = reshuffle(occupancy, server, options)
    except SearchLimitError as limit:
        found, notes = None, (Reason(Term.SEARCH_LIMIT, str(limit)),)
    if found is not None:
        _apply(occupancy, found.slots)
        mapped = Reason(Term.MAPPED, _nodes_text(occupancy, found.slots[server.name]), "reshuffled")
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
        Reason(Term.MAPPED, _nodes_text(occupancy, slot), "best of bad"),
        *notes,
        *rank.reasons(),
    )


def _apply(occupancy: Occupancy, slots: Mapping[str, Slot]) -> None:
    for name in slots:
        if name in occupancy.slots:
            occupancy.take(name)
    for name, slot in slots.items():
        occupancy.put(name, slot)


def _nodes_text(occupancy: Occupancy, slot: Slot) -> str:
    nodes = sorted(_nodes(occupancy.layout, slot))
    return "nodes " + ",".join(map(str, nodes))


def _nodes(layout: CoreLayout, slot: Slot) -> frozenset[int]:
    return frozenset(layout.group_of_cpu[cpu].node for cpu in slot.cpus)


# -- what is known of performance --------------------------------------------------------------------------------------


def _learn(
    observation: MappingObservation,
    state: MappingState,
    options: MappingOptions,
    occupancy: Occupancy,
) -> MappingState:
    """Take samples; a full quiet window sets the expectation, up or down: no neighbour is to blame."""
    if not observation.sampled:
        return state
    known = {
        name: _unseen(was, options) if name not in observation.measured else was
        for name, was in state.expectations.items()
    }
    for name, value in observation.measured.items():
        if name not in state.slots:
            continue
        was = known.get(name, Expectation())
        recent = (*was.recent, value)[-options.smooth_samples :]
        quiet: tuple[float, ...] = ()
        expected = was.value
        if _quiet(observation, state, options, occupancy, name):
            quiet = (*was.quiet, value)[-options.quiet_samples :]
        if len(quiet) == options.quiet_samples:
            expected = median(quiet)
        known[name] = Expectation(expected, recent, quiet)
    return replace(state, expectations=known)


def _unseen(known: Expectation, options: MappingOptions) -> Expectation:
    """Hold for some samples, then forget all but the expectation: an old figure is no reason for a move."""
    if known.blind + 1 < options.blind_samples:
        return replace(known, blind=known.blind + 1)
    return Expectation(known.value, blind=known.blind + 1)


def _quiet(
    observation: MappingObservation,
    state: MappingState,
    options: MappingOptions,
    occupancy: Occupancy,
    name: str,
) -> bool:
    mine = observation.servers[name].interference_class
    around = occupancy.neighbours(occupancy.l3_domains(state.slots[name]))
    for other in around:
        if observation.now_s - state.moved_s.get(other, float("-inf")) < options.settle_s:
            return False
        theirs = observation.servers[other].interference_class
        if other != name and (penalty(mine, theirs) or theirs is InterferenceClass.DEVIL):
            return False
    return True


def deviations(state: MappingState, options: MappingOptions) -> dict[str, float]:
    """Return server -> deviation, for those with an expectation and enough samples."""
    return {
        name: deviation(median(known.recent), known.value, options.metric)
        for name, known in state.expectations.items()
        if known.value is not None
        and not known.blind
        and len(known.recent) == options.smooth_samples
    }


def _judge_trials(
    observation: MappingObservation,
    state: MappingState,
    options: MappingOptions,
    reasons: dict[str, Reasons],
) -> MappingState:
    """Let the benefit matrix learn from moves that have settled."""
    now = deviations(state, options)
    benefit, waiting = state.benefit, []
    for trial in state.trials:
        if trial.due_s > observation.now_s:
            waiting.append(trial)
        elif trial.server in now:
            kind = observation.servers[trial.server].interference_class
            observed = observed_benefit(trial.before - now[trial.server])
            new = updated_benefit(benefit, trial.domain, kind, observed, keep=options.benefit_keep)
            learnt = Reason(
                Term.BENEFIT,
                new[trial.domain][kind],
                benefit[trial.domain][kind],
                f"{kind} with its own {trial.domain}",
            )
            reasons[trial.server] = (*reasons.get(trial.server, ()), learnt)
            benefit = new
    return replace(state, benefit=benefit, trials=tuple(waiting))


def observed_benefit(gain: float) -> float:
    """Put a gain on the scale of the benefit matrix: nothing is 1, half of the expectation or more is 10."""
    return min(BENEFIT_MAX, BENEFIT_MIN + (BENEFIT_MAX - BENEFIT_MIN) * max(0.0, gain) / 0.5)


# -- repair at run time ------------------------------------------------------------------------------------------------


def _repair(
    observation: MappingObservation,
    state: MappingState,
    options: MappingOptions,
    occupancy: Occupancy,
    reasons: dict[str, Reasons],
) -> MappingState:
    deviating = _deviating(state, options, occupancy)
    affected = sorted(
        (name for name, value in deviating.items() if value >= options.threshold),
        key=lambda name: (-deviating[name], name),
    )
    moves = options.moves_per_round
    budget = Budget(options.reshuffle_operations)
    on_trial = {trial.server for trial in state.trials}
    state = replace(state, searched=_searched(observation, state, options, occupancy))
    for name in affected:
        if name in on_trial or _resting(observation, state, options, name):
            continue
        chosen = None
        if moves > 0 and name not in state.searched.exhausted:
            search = _RepairSearch(observation, state, options, occupancy, budget)
            chosen, searched = _best_configuration(search, name)
            state = replace(state, searched=searched)
        seen = Reason(Term.DEVIATION, deviating[name], options.threshold)
        if chosen is not None:
            moves -= len(chosen.slots)
            state = _move(observation, state, options, occupancy, chosen)
            due_s = observation.now_s + 2 * options.settle_s
            trial = MoveTrial(name, chosen.domain, deviating[name], due_s)
            state = replace(state, trials=(*state.trials, trial))
            state = replace(state, searched=_searched(observation, state, options, occupancy))
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
        where = Reason(Term.REMAPPED, _nodes_text(occupancy, slot), f"helps {helped}")
        cost = Reason(Term.COST_MB, chosen.cost_mb)
        reasons[moved] = (*reasons.get(moved, ()), seen, where, benefit, cost)


def _searched(
    observation: MappingObservation,
    state: MappingState,
    options: MappingOptions,
    occupancy: Occupancy,
) -> Searched:
    """Return what is known to be no use now: in another situation everything is worth another look."""
    slots = occupancy.slots
    resting = frozenset(n for n in slots if _resting(observation, state, options, n))
    now = MappingSituation(
        servers=dict(observation.servers),
        slots=dict(slots),
        resting=resting,
        left=state.left,
        benefit=state.benefit,
        layout=occupancy.layout,
    )
    known = state.searched
    if known.situation == now:
        return known
    return Searched(now, unsatisfiable=known.unsatisfiable & slots.keys())


def _resting(
    observation: MappingObservation, state: MappingState, options: MappingOptions, name: str
) -> bool:
    return observation.now_s - state.moved_s.get(name, float("-inf")) < options.cooldown_s


@dataclass(frozen=True, slots=True)
class _RepairSearch:
    """What a search for a better configuration looks at, and how long it may look."""

    observation: MappingObservation
    state: MappingState
    options: MappingOptions
    occupancy: Occupancy
    budget: Budget

    def resting(self, name: str) -> bool:
        return _resting(self.observation, self.state, self.options, name)


def _best_configuration(
    search: _RepairSearch, name: str
) -> tuple[MappingConfiguration | None, Searched]:
    """Return the configuration with the least reshuffling: most benefit of those with one move, else a reshuffle.

    :returns: the configuration, None when there is none or the budget is used up, and what is known now
    """
    server, known = search.observation.servers[name], search.state.searched
    chosen, ended = None, True
    if name not in known.alone:
        chosen = _best_single_move(search, server)
        known = replace(known, alone=known.alone | {name})
    reshuffles = server.movable and rank_of(search.occupancy, name).violations
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
            if configuration.benefit >= search.options.least_benefit
        ),
        key=lambda c: (c.rank.violations, -c.benefit, c.cost_mb, c.rank),
        default=None,
    )


def _single_moves(search: _RepairSearch, server: MappedServer) -> Iterator[MappingConfiguration]:
    """Yield configurations that move the server itself or one neighbour."""
    occupancy, state = search.occupancy, search.state
    l3_domains = occupancy.l3_domains(occupancy.slots[server.name])
    for name in sorted(occupancy.neighbours(l3_domains)):
        mover = search.observation.servers[name]
        if not mover.movable or search.resting(name):
            continue
        before, owned = rank_of(occupancy, server.name), _owned(occupancy, server)
        mover_before = rank_of(occupancy, name)
        old = occupancy.take(name)
        candidates = exact_slots(occupancy, mover)
        for rank, slot in candidates[:_TRIED_SLOTS]:
            if _back(state, occupancy.layout, name, slot) or set(slot.cpus) == set(old.cpus):
                continue
            if name != server.name and not (
                good(occupancy, mover, rank) or rank.violations <= mover_before.violations
            ):
                continue
            occupancy.put(name, slot)
            after, gained = rank_of(occupancy, server.name), _owned(occupancy, server) - owned
            occupancy.take(name)
            found = _gain(state.benefit, server, before, after, gained)
            if found is not None:
                cost = move_cost_mb(mover, search.options)
                yield MappingConfiguration({name: slot}, cost, found[0], found[1], after)
        occupancy.put(name, old)


def _by_reshuffle(
    search: _RepairSearch, server: MappedServer
) -> tuple[MappingConfiguration | None, bool]:
    """Return the best reshuffle, None when there is none, and whether the search came to its own end."""
    occupancy, options = search.occupancy, search.options
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
    if found is None or any(search.resting(name) for name in found.moved):
        return None, True
    previous = {name: occupancy.slots[name] for name in found.slots}
    _apply(occupancy, found.slots)
    after, gained = rank_of(occupancy, server.name), _owned(occupancy, server) - owned
    _apply(occupancy, previous)
    gain = _gain(search.state.benefit, server, before, after, gained)
    if gain is None or gain[0] < search.options.least_benefit:
        return None, True
    cost = found.cost_mb + move_cost_mb(server, options)
    return MappingConfiguration(found.slots, cost, gain[0], gain[1], after), True


def _owned(occupancy: Occupancy, server: MappedServer) -> set[IsolationLevel]:
    """Return the kinds of domain that the server shares with no rabbit and no devil."""
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
        if all(
            occupancy.servers[name].interference_class is InterferenceClass.SHEEP for name in others
        ):
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
    nodes = _nodes(layout, slot)
    return any(left.server == name and left.nodes == nodes for left in state.left)


def _move(
    observation: MappingObservation,
    state: MappingState,
    options: MappingOptions,
    occupancy: Occupancy,
    chosen: MappingConfiguration,
) -> MappingState:
    old = {name: occupancy.slots[name] for name in chosen.slots}
    _apply(occupancy, chosen.slots)
    until = observation.now_s + options.memory_s
    left = tuple(
        LeftNodes(name, _nodes(occupancy.layout, slot), until) for name, slot in old.items()
    )
    cleared = {
        name: replace(state.expectations[name], recent=(), quiet=())
        for name in chosen.slots
        if name in state.expectations
    }
    return replace(
        state,
        slots=dict(occupancy.slots),
        moved_s={**state.moved_s, **dict.fromkeys(chosen.slots, observation.now_s)},
        left=(*state.left, *left),
        expectations={**state.expectations, **cleared},
    )
