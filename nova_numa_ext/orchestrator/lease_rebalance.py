# SPDX-License-Identifier: Apache-2.0
"""Moves of leases that make room for others, a few a minute: :mod:`nova_numa_ext.policy.remote_gpu.making_room`.

It begins a move by storing it with its lease; :mod:`.lease_moves` carries it out, as one that an administrator asked
for. A lease is begun to move only while it is attached, and says so; the one that waits says how many leases move for
it. Where moves are only observed, nothing is stored but that, and each plan is logged once.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from nova_numa_ext.orchestrator.lease_moves import LeaseMoves
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.stored_lease import StoredLease
from nova_numa_ext.policy.remote_gpu.lease_plan import LeaseGang, LeasePlan
from nova_numa_ext.policy.remote_gpu.lease_terms import LeaseTerm
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from nova_numa_ext.policy.remote_gpu.making_room import (
    RebalanceRules,
    Rebalancing,
    RoomForGang,
    SettledLease,
    movable_gpus,
    room_by_moves,
)
from placement_traits import pools
from placement_traits.pools import Pool
from placement_traits.reason import Reason

_LOG: Final = logging.getLogger(__name__)

MINUTE_S: Final = 60.0
MOST_GANGS: Final = 4
"""Gangs that wait for which room is looked for in a round, the first ones in order."""


class LeaseRebalance:
    """Makes room for leases that wait; for one thread at a time.

    :ivar begun: moves so far, of this process
    :param asked: what a lease asks of another GPU
    """

    def __init__(
        self,
        rules: RebalanceRules,
        moves: LeaseMoves,
        asked: Callable[[StoredLease], LeaseGang],
    ) -> None:
        self._rules, self._moves, self._asked = rules, moves, asked
        self._observed: RoomForGang | None = None
        self._under_way: dict[str, Reason] = {}
        self.begun = 0

    def round(
        self,
        found: LeasePlan,
        waiting: Sequence[LeaseGang],
        living: Iterable[StoredLease],
        lent: Callable[[], Sequence[Pool]],
        *,
        now: float,
        actor: Actor,
    ) -> Mapping[str, Reason]:
        """Begin the moves that make room for the first gang that can be made room for; return what is said of it.

        :param found: what was decided of leases that wait
        :param waiting: all of these, in order
        :param living: all leases, as of this round
        :param lent: returns the pools, with what is free before that decision
        :param now: the database's time
        :raises LostRaceError: a lease has changed since it was read
        """
        if self._rules.mode is Rebalancing.OFF or not found.waits:
            return {}
        leases = {each.uuid: each for each in living}
        if any(each.move is not None for each in leases.values()):
            return (
                self._under_way
            )  # what these leave is not free yet, and may be all that is needed
        self._under_way = {}
        there = tuple(lent())
        for gang in waiting:
            for gpu in found.chosen.get(gang.uuid, ()):
                there = pools.counted(there, gang.held(gpu))
        settled = self._settled(leases.values(), movable_gpus(there))
        short = [each for each in waiting if each.uuid in found.waits][:MOST_GANGS]
        for gang in short:
            if found.waits[gang.uuid].term == LeaseTerm.CLIENT_NETWORK:
                continue
            room = self._room(gang, found, there, [*settled(gang, now)], leases)
            if room is not None:
                return self._begin(room, leases, now, actor)
        self._observed = None
        return {}

    def _settled(
        self, living: Iterable[StoredLease], gpus: frozenset[str]
    ) -> Callable[[LeaseGang, float], Iterable[SettledLease]]:
        """Return what yields the leases that may move for a gang, at a time."""
        may = [
            (
                each,
                SettledLease(each.uuid, each.gpu, each.amounts, each.asked.priority, each.moved_at),
            )
            for each in living
            if each.state is LeaseState.ATTACHED and each.move is None
            if each.claimed and each.asked.migratable and each.gpu in gpus
            if LeaseTerm.NO_MOVE not in {why.term for why in each.reasons}
        ]

        def of(gang: LeaseGang, now: float) -> Iterable[SettledLease]:
            for _stored, each in may:
                if each.priority <= gang.priority and not each.rests(now, self._rules.cool_down_s):
                    yield each

        return of

    def _room(
        self,
        gang: LeaseGang,
        found: LeasePlan,
        there: Sequence[Pool],
        settled: Sequence[SettledLease],
        leases: Mapping[str, StoredLease],
    ) -> RoomForGang | None:
        others = {gpu for uuid, kept in found.kept.items() if uuid != gang.uuid for gpu in kept}
        return room_by_moves(
            gang,
            there,
            settled,
            lambda uuid: self._asked(leases[uuid]),
            others=others,
            most=self._rules.moves_per_minute,
        )

    def _begin(
        self, room: RoomForGang, leases: Mapping[str, StoredLease], now: float, actor: Actor
    ) -> Mapping[str, Reason]:
        found = {room.gang: Reason(LeaseTerm.ROOM_BY_MOVES, len(room.moves))}
        if self._rules.mode is Rebalancing.OBSERVE:
            if room != self._observed:
                _LOG.info("gang %s would have room if these moved: %s", room.gang, _shown(room))
            self._observed = room
            return found
        moved = [each.moved_at for each in leases.values() if each.moved_at is not None]
        lately = sum(now - each < MINUTE_S for each in moved)
        if lately + len(room.moves) > self._rules.moves_per_minute:
            return found
        _LOG.info("these leases move, to make room for gang %s: %s", room.gang, _shown(room))
        why = (Reason(LeaseTerm.MAKES_ROOM, ""),)
        for uuid, gpu in room.moves.items():
            self._moves.plan(leases[uuid], gpu, actor, why)
            self.begun += 1
        self._under_way = {room.gang: Reason(LeaseTerm.MOVES_FOR_IT, len(room.moves))}
        return self._under_way


def _shown(room: RoomForGang) -> str:
    return ", ".join(f"{uuid} to {gpu.host} {gpu.route.gpu}" for uuid, gpu in room.moves.items())
