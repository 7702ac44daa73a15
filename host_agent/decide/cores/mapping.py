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

The parts: :mod:`.arrival`, :mod:`.repair`, :mod:`.performance`.

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

from collections.abc import Mapping
from dataclasses import replace

from host_agent.conf.mapping import MappingOptions
from host_agent.decide.cores import arrival, performance, repair
from host_agent.decide.cores.mapping_state import MappingObservation, MappingState, MappingTurn
from host_agent.decide.cores.slots import CoreLayout, MappedServer, Occupancy, Slot
from placement_traits.reason import Reason


def decide(
    observation: MappingObservation,
    state: MappingState,
    options: MappingOptions,
    layout: CoreLayout,
) -> tuple[MappingState, Mapping[str, tuple[Reason, ...]]]:
    """Return the new state with the desired slots, and the reasons by server; nothing changed means no reasons.

    :param layout: the host's cells, prepared once per topology
    """
    reasons: dict[str, tuple[Reason, ...]] = {}
    state = _forget(observation, state, layout)
    occupancy = Occupancy(layout, observation.servers, state.slots, options.reserve_share)
    turn = MappingTurn(observation, options, occupancy)
    moved, unplaced = arrival.place(turn, state.unplaced, reasons)
    moved |= arrival.make_way(turn, state, reasons)
    state = replace(
        state,
        slots=dict(occupancy.slots),
        moved_s={**state.moved_s, **moved},
        unplaced=unplaced,
    )
    state = performance.learn(turn, state)
    if observation.now_s - state.decided_s >= options.interval_s:
        state = performance.judge_trials(turn, state, reasons)
        state = repair.repair(turn, state, reasons)
        state = replace(state, decided_s=observation.now_s)
    return state, reasons


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
