# SPDX-License-Identifier: Apache-2.0
"""Moves of leases that make room for others, a few a minute: :mod:`nova_numa_ext.policy.remote_gpu.making_room`.

It begins a move by storing it with its lease; :mod:`.lease_moves` carries it out, as one that an administrator asked
for. A lease is begun to move only while it is attached, and says so; the one that waits says how many leases move for
it. Where moves are only observed, nothing is stored but that, and each plan is logged once.

All moves of a plan are stored in one transaction, each with the gang for which it is, and with the leases of that gang
the room that it is to have. By these rows, whichever process reads them, that room is no one else's
(:func:`nova_numa_ext.policy.remote_gpu.lease_plan.plan`). It is kept until the gang has GPUs, there or elsewhere. Where
no move is under way any more and the gang still waits, as when one was refused, it is kept no longer.

Where that is asked for and no moves make room, scavengers are released and asked for again, in one transaction; while
they wait for their hosts to end them, no other one gives way. What they leave is had in the order of those that wait,
of which they are the last (:mod:`.lease_rounds`).
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from nova_numa_ext.orchestrator.lease_moves import transfer
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.stored_lease import LeaseTransfer, StoredLease
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
    room_by_scavenging,
)
from placement_traits import pools
from placement_traits.names import ServiceLevel
from placement_traits.pools import Pool
from placement_traits.reason import Reason

_LOG: Final = logging.getLogger(__name__)

MINUTE_S: Final = 60.0
_GIVE_WAY: Final = frozenset(
    {LeaseState.STARTING, LeaseState.READY, LeaseState.ATTACHED, LeaseState.DETACHED}
)
MOST_GANGS: Final = 4
"""Gangs that wait for which room is looked for in a round, the first ones in order."""


@dataclass(frozen=True, slots=True)
class RoomRound:
    """What one round did for gangs that wait, by their uuids.

    :param said: of the moves that make room for one
    :param changed: leases of gangs as they are stored now
    """

    said: Mapping[str, Reason] = field(default_factory=dict)
    changed: Mapping[str, list[StoredLease]] = field(default_factory=dict)


class LeaseRebalance:
    """Makes room for leases that wait; for one thread at a time.

    :param asked: what a lease asks of another GPU
    """

    def __init__(
        self,
        rules: RebalanceRules,
        stored: Leases,
        asked: Callable[[StoredLease], LeaseGang],
    ) -> None:
        self._rules, self._leases, self._asked = rules, stored, asked
        self._observed: RoomForGang | None = None

    def round(
        self,
        found: LeasePlan,
        waiting: Sequence[LeaseGang],
        members: Mapping[str, Sequence[StoredLease]],
        living: Iterable[StoredLease],
        lent: Callable[[], Sequence[Pool]],
        *,
        actor: Actor,
    ) -> RoomRound:
        """Begin the moves that make room for the first gang that can be made room for; return what is so now.

        :param found: what was decided of leases that wait; of those that are not in its ``waits`` nothing is begun
        :param waiting: all of these, in order
        :param members: their leases, by gang
        :param living: all leases, as of this round
        :param lent: returns the pools, with what is free before that decision
        :raises LostRaceError: a lease has changed since it was read; no move has begun
        """
        leases = {each.uuid: each for each in living}
        moving = Counter(each.move.gang for each in leases.values() if each.move is not None)
        kept_in_vain = {
            uuid: self._leases.forget_room(members[uuid], actor)
            for uuid in found.waits
            if uuid not in moving and any(each.room for each in members[uuid])
        }
        said = {
            gang: Reason(LeaseTerm.MOVES_FOR_IT, number)
            for gang, number in moving.items()
            if gang in found.waits
        }
        # What those leave that move is not free yet, and may be all that is needed.
        modes = (self._rules.mode, self._rules.scavenging)
        off = all(each is Rebalancing.OFF for each in modes)
        if off or not found.waits or moving or kept_in_vain or _giving_way(leases.values()):
            return RoomRound(said, kept_in_vain)
        there, promised = tuple(lent()), Counter[str]()
        for gang in waiting:
            for gpu in found.chosen.get(gang.uuid, ()):
                there = pools.counted(there, gang.held(gpu))
                promised[gpu.route.client_nic] += gang.network_mbps
        settled = self._settled(leases.values(), movable_gpus(there))
        short = [each for each in waiting if each.uuid in found.waits][:MOST_GANGS]
        now = self._leases.now()
        for each in short:
            if found.waits[each.uuid].term == LeaseTerm.CLIENT_NETWORK:
                continue
            gang = _beside(each, promised)
            room = self._room(gang, found, there, [*settled(gang, now)], leases)
            if room is not None:
                return self._begin(room, gang, members[gang.uuid], leases, actor)
            if give := self._scavenged(gang, found, there, leases):
                return self._give_way(give, gang, leases, actor)
        self._observed = None
        return RoomRound()

    def _scavenged(
        self,
        gang: LeaseGang,
        found: LeasePlan,
        there: Sequence[Pool],
        leases: Mapping[str, StoredLease],
    ) -> tuple[str, ...]:
        """Return the scavengers that make room for a gang if they give their GPUs up, none where they do not."""
        if self._rules.scavenging is Rebalancing.OFF:
            return ()
        scavengers = [
            SettledLease(each.uuid, each.gpu, each.amounts)
            for each in leases.values()
            if each.asked.level is ServiceLevel.SCAVENGER and each.claimed and each.move is None
            if each.state in _GIVE_WAY
        ]
        others = {gpu for uuid, kept in found.kept.items() if uuid != gang.uuid for gpu in kept}
        return room_by_scavenging(gang, there, scavengers, others=others)

    def _give_way(
        self, give: Sequence[str], gang: LeaseGang, leases: Mapping[str, StoredLease], actor: Actor
    ) -> RoomRound:
        if self._rules.scavenging is Rebalancing.OBSERVE:
            return RoomRound({gang.uuid: Reason(LeaseTerm.ROOM_BY_SCAVENGERS, len(give))})
        _LOG.info("these leases give way to gang %s: %s", gang.uuid, ", ".join(give))
        self._leases.give_way([leases[uuid] for uuid in give], actor)
        return RoomRound({gang.uuid: Reason(LeaseTerm.GIVE_WAY_TO_IT, len(give))})

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
        if self._rules.mode is Rebalancing.OFF:
            return None
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
        self,
        room: RoomForGang,
        gang: LeaseGang,
        members: Sequence[StoredLease],
        leases: Mapping[str, StoredLease],
        actor: Actor,
    ) -> RoomRound:
        found = RoomRound({room.gang: Reason(LeaseTerm.ROOM_BY_MOVES, len(room.moves))})
        if self._rules.mode is Rebalancing.OBSERVE:
            if room != self._observed:
                _LOG.info("gang %s would have room if these moved: %s", room.gang, _shown(room))
            self._observed = room
            return found
        lately = self._leases.moved_lately(MINUTE_S)
        if lately + len(room.moves) > self._rules.moves_per_minute:
            return found
        _LOG.info("these leases move, to make room for gang %s: %s", room.gang, _shown(room))
        moves = [
            (leases[uuid], transfer(leases[uuid], gpu, LeaseTransfer(gpu.host, gang=room.gang)))
            for uuid, gpu in room.moves.items()
        ]
        held = [gang.held(gpu) for gpu in room.gpus]
        waits = self._leases.make_room(moves, members, held, actor)
        said = Reason(LeaseTerm.MOVES_FOR_IT, len(moves))
        return RoomRound({room.gang: said}, {room.gang: waits})


def _giving_way(living: Iterable[StoredLease]) -> bool:
    """Return whether some lease is giving its GPU up: what it leaves may be all that is needed."""
    return any(
        each.state is LeaseState.RELEASING
        and LeaseTerm.GIVES_WAY in {why.term for why in each.reasons}
        for each in living
    )


def _beside(gang: LeaseGang, promised: Mapping[str, int]) -> LeaseGang:
    """Return a gang with what its client's NIC has left beside those that are given theirs in this round.

    :param promised: to these, by provider, MB/s
    """
    if gang.nic is None:
        return gang
    mbps = gang.nic.mbps
    used = mbps.used + promised.get(gang.nic.uuid, 0)
    return replace(gang, nic=replace(gang.nic, mbps=replace(mbps, used=used)))


def _shown(room: RoomForGang) -> str:
    return ", ".join(f"{uuid} to {gpu.host} {gpu.route.gpu}" for uuid, gpu in room.moves.items())
