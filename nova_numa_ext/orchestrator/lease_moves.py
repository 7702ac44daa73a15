# SPDX-License-Identifier: Apache-2.0
"""Moves of leases to other GPUs, step by step; what is to be done is in the row before it is done.

::

    ATTACHED, asked to move     a GPU is chosen and stored, with the second consumer; where none has room, it stays
    ATTACHED, chosen            one write in Placement: the lease holds the destination, the second consumer what it
                                left. Refused, or the GPU gone: the lease stays. Granted: MOVING, and no client may
                                connect
    MOVING, not carried         its GPU's host ends its process, and acknowledges that
    MOVING, carried             the other host takes images, its GPU's host sends them, and ends its process when they
                                run there, which it acknowledges; or it reports that the process goes on: one write in
                                Placement takes everything back, and it is STARTING where it was
    MOVING, acknowledged        the second consumer is released; STARTING at the destination
    another state, chosen       the server stopped or moved meanwhile: one write takes everything back

A lease is carried, with all that its process has, where both hosts report that they can; else the process starts empty
at the destination, as it does where the one that was carried died on the way. One that could be carried does not move
to a GPU of another model, for which its process has no code. A lease whose source is silent stays MOVING, as one that
is lost, until that reports or an operator says that it is off: only that host knows whether the process has gone.
"""

import logging
import uuid as uuids
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.stored_lease import LeaseTransfer, StoredLease
from nova_numa_ext.policy.remote_gpu import lease_claims, leases
from nova_numa_ext.policy.remote_gpu.choosing import ChosenGpu
from nova_numa_ext.policy.remote_gpu.lease_plan import LeaseGang
from nova_numa_ext.policy.remote_gpu.lease_terms import LeaseTerm
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from nova_numa_ext.policy.remote_gpu.making_room import MovesTrial, SettledLease
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from placement_traits import names
from placement_traits.claim_store import ClaimStore, NoRoomError
from placement_traits.claims import emptied
from placement_traits.pools import Pool
from placement_traits.reason import Reason

_LOG: Final = logging.getLogger(__name__)


class MovingHosts(Protocol):
    """What moves have to know of hosts."""

    def can_carry(self, host: str) -> bool:
        """Return whether leases come to a host, and leave it, with all that their processes have."""

    def is_silent(self, host: str) -> bool:
        """Return whether a host that once reported does so no more."""


class LeaseMoves:
    """Takes their steps; for one thread at a time.

    :param stored: the leases
    :param claims: what they hold
    :param asked: what a lease asks of another GPU
    :param nic: lease -> provider of its client's NIC, '' where nothing is counted there
    :param hosts: whether a host can carry leases, and whether one reports
    """

    def __init__(
        self,
        stored: Leases,
        claims: ClaimStore,
        asked: Callable[[StoredLease], LeaseGang],
        nic: Callable[[StoredLease], str],
        hosts: MovingHosts,
    ) -> None:
        self._leases, self._claims, self._asked, self._nic = stored, claims, asked, nic
        self._hosts = hosts

    def step(
        self,
        stored: StoredLease,
        lent: Callable[[], Sequence[Pool]],
        actor: Actor,
        may: Callable[[], None],
    ) -> StoredLease:
        """Let a lease that is to move, or moves, take its next step, if it has one.

        :param lent: returns the pools that may take it
        :param may: called right before each write to Placement
        :raises LostRaceError: it has changed since it was read
        """
        move = stored.move
        if move is None:
            return stored
        if stored.state is LeaseState.MOVING:
            return self._arrived(stored, move, actor, may)
        if stored.state is not LeaseState.ATTACHED:
            return self._taken_back(stored, move, actor, may)
        if not move.second:
            return self._chosen(stored, move, lent(), actor)
        return self._left(stored, move, lent, actor, may)

    def release(self, stored: StoredLease, may: Callable[[], None]) -> None:
        """Release what the second consumer of a lease holds, if it has one."""
        if stored.move is not None and stored.move.second:
            kept = self._claims.read(stored.move.second)
            if kept is not None:
                self._claims.write(emptied(kept), may=may)

    def _chosen(
        self, stored: StoredLease, move: LeaseTransfer, lent: Sequence[Pool], actor: Actor
    ) -> StoredLease:
        asked = self._asked(stored)
        settled = SettledLease(stored.uuid, stored.gpu, stored.amounts)
        there = MovesTrial.of(lent).with_move(
            settled, replace(asked, pool=move.asked or asked.pool), kept=()
        )
        if there is None:
            return self._stays(stored, actor)
        chosen = transfer(stored, there.moves[stored.uuid], move)
        return self._leases.plan_move(stored, chosen, actor)

    def _left(
        self,
        stored: StoredLease,
        move: LeaseTransfer,
        lent: Callable[[], Sequence[Pool]],
        actor: Actor,
        may: Callable[[], None],
    ) -> StoredLease:
        held = self._claims.read(stored.uuid)
        if held is None:
            return self._stays(stored, actor)  # by an operator's hand: it is claimed again first
        if held.amounts != move.amounts:
            there = {uuid for pool in lent() for uuid in pool.providers} | {self._nic(stored)}
            if not move.amounts.keys() <= there:
                return self._stays(stored, actor)  # that GPU is lent no more, or its host silent
            if self._can(stored, move) and _models(lent(), stored.gpu) != _models(lent(), move.gpu):
                _LOG.info("lease %s does not move: the other GPU is of another model", stored.uuid)
                return self._stays(stored, actor)
            try:
                self._claims.write(*lease_claims.moved(held, move.amounts, move.second), may=may)
            except NoRoomError as error:
                _LOG.info("lease %s does not move: %s", stored.uuid, error)
                return self._stays(stored, actor)
        return self._leases.change(
            self._carried(stored, move, actor),
            leases.move,
            actor,
            (Reason(LeaseTerm.MOVING, ""),),
            moved=True,
        )

    def _carried(self, stored: StoredLease, move: LeaseTransfer, actor: Actor) -> StoredLease:
        """Say that the process of a lease goes along, where it can."""
        if not self._can(stored, move) or move.carried:
            return stored
        carried = replace(move, carried=True, left_gpu=stored.gpu, left=stored.amounts)
        return self._leases.plan_move(stored, carried, actor)

    def _can(self, stored: StoredLease, move: LeaseTransfer) -> bool:
        """Return whether the process of a lease can go along."""
        source = stored.lease.gpu_host
        return source != move.host and all(map(self._hosts.can_carry, (source, move.host)))

    def _arrived(
        self, stored: StoredLease, move: LeaseTransfer, actor: Actor, may: Callable[[], None]
    ) -> StoredLease:
        if not stored.lease.fenced:
            return self._on_its_way(stored, move, actor, may) if move.carried else stored
        self.release(stored, may)
        step = partial(leases.arrive, gpu_host=move.host)
        why = Reason(LeaseTerm.CARRIED if move.carried else LeaseTerm.MOVED, "")
        return self._leases.change(stored, step, actor, (why,), arrived=True)

    def _on_its_way(
        self, stored: StoredLease, move: LeaseTransfer, actor: Actor, may: Callable[[], None]
    ) -> StoredLease:
        if move.stays:
            held, kept = self._claims.read(stored.uuid), self._claims.read(move.second)
            if held is not None and kept is not None:
                self._claims.write(*lease_claims.moved_back(held, kept, move.left), may=may)
            why = Reason(LeaseTerm.MOVE_FAILED, move.trouble)
            return self._leases.change(stored, leases.restart, actor, (why,), stayed=True)
        if not move.trouble and self._hosts.is_silent(move.host):
            silent = replace(move, trouble="the host that it was to go to is silent")
            return self._leases.plan_move(stored, silent, actor)
        return stored

    def _taken_back(
        self, stored: StoredLease, move: LeaseTransfer, actor: Actor, may: Callable[[], None]
    ) -> StoredLease:
        """Undo what Placement may have granted: it is not MOVING, so its source never ended it."""
        held = self._claims.read(stored.uuid)
        kept = self._claims.read(move.second) if move.second else None
        if held is not None and kept is not None:
            back = lease_claims.moved_back(held, kept, stored.amounts)
            self._claims.write(*back, may=may)
        return self._stays(stored, actor)

    def _stays(self, stored: StoredLease, actor: Actor) -> StoredLease:
        return self._leases.plan_move(stored, None, actor, (Reason(LeaseTerm.NO_MOVE, ""),))


def _models(lent: Sequence[Pool], gpu: str) -> frozenset[str]:
    """Return the models of a GPU, as its host names them."""
    traits = (each.traits for pool in lent for each in pool.gpus if each.uuid == gpu)
    return names.gpu_models(next(traits, ()))


def transfer(stored: StoredLease, to: ChosenGpu, move: LeaseTransfer) -> LeaseTransfer:
    """Return a move of a lease with the GPU that was chosen for it; its next steps are those of any move.

    :param to: that, and by which NICs it is reached
    :param move: what is known of it before
    """
    part = GpuSlice(stored.asked.memory_mb, stored.asked.level)
    return replace(
        move,
        second=str(uuids.uuid4()),
        host=to.host,
        gpu=to.route.gpu,
        amounts=lease_claims.amounts(part, to.route, stored.asked.network_mbps),
    )
