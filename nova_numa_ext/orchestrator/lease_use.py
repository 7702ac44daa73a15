# SPDX-License-Identifier: Apache-2.0
"""Moves of leases while none waits, a few a minute, by how busy their GPUs are, or how fast others are.

Which ones says :mod:`nova_numa_ext.policy.remote_gpu.by_use`.

It begins a move by storing it with its lease, as :mod:`.lease_rebalance` does; :mod:`.lease_moves` carries it out.
Nothing is begun while a lease waits or moves: what is free may be kept for it. What the host of a GPU says of its own
leases counts, of no others.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nova_numa_ext.orchestrator.lease_moves import transfer
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.stored_lease import LeaseTransfer, StoredLease
from nova_numa_ext.policy.remote_gpu.by_use import UsedLease, moves_by_use
from nova_numa_ext.policy.remote_gpu.choosing import ChosenGpu
from nova_numa_ext.policy.remote_gpu.lease_plan import LeaseGang
from nova_numa_ext.policy.remote_gpu.lease_terms import LeaseTerm
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from nova_numa_ext.policy.remote_gpu.making_room import (
    RebalanceRules,
    Rebalancing,
    SettledLease,
    UsePolicy,
)
from nova_numa_ext.policy.remote_gpu.rebalance import RebalanceSettings
from placement_traits.pools import Pool
from placement_traits.reason import Reason

_LOG: Final = logging.getLogger(__name__)

MINUTE_S: Final = 60.0
LOOK_S: Final = 15.0
"""Seconds between two looks: hosts report how busy leases are as often."""

Busy = Mapping[str, Mapping[str, float]]
"""Host that answers -> lease -> part of the time in which it kept its GPU busy."""


class UseRebalance:
    """Begins such moves; for one thread at a time.

    :param asked: what a lease asks of another GPU
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        rules: RebalanceRules,
        stored: Leases,
        asked: Callable[[StoredLease], LeaseGang],
        clock: Callable[[], float],
    ) -> None:
        self._rules, self._leases, self._asked, self._clock = rules, stored, asked, clock
        self._looked_s: float | None = None
        self._observed: Mapping[str, ChosenGpu] = {}

    def round(
        self,
        living: Sequence[StoredLease],
        busy: Busy,
        lent: Callable[[], Sequence[Pool]],
        actor: Actor,
    ) -> int:
        """Begin the moves that are due, where no lease waits; return how many.

        :param living: all leases
        :param lent: returns the pools, with what is free
        :raises LostRaceError: a lease has changed since it was read; no move has begun
        """
        rules = self._rules
        if rules.mode is Rebalancing.OFF or rules.by_use is UsePolicy.NONE:
            return 0
        now_s = self._clock()
        early = self._looked_s is not None and now_s - self._looked_s < LOOK_S
        if early or any(each.move is not None for each in living):
            return 0
        self._looked_s = now_s
        leases = {each.uuid: each for each in living if each.claimed and each.gpu}
        moves = moves_by_use(
            rules.by_use,
            lent(),
            [_used(each, busy) for each in leases.values()],
            lambda uuid: self._asked(leases[uuid]),
            now=self._leases.now(),
            settings=RebalanceSettings(rules.cold, rules.moves_per_minute, rules.cool_down_s),
            speeds=rules.speeds,
        )
        return self._begun(moves, leases, actor)

    def _begun(
        self, moves: Mapping[str, ChosenGpu], leases: Mapping[str, StoredLease], actor: Actor
    ) -> int:
        shown = ", ".join(f"{uuid} to {gpu.host} {gpu.route.gpu}" for uuid, gpu in moves.items())
        if self._rules.mode is Rebalancing.OBSERVE:
            if moves and moves != self._observed:
                _LOG.info("by %s these leases would move: %s", self._rules.by_use, shown)
            self._observed = moves
            return 0
        if not moves:
            return 0
        if self._leases.moved_lately(MINUTE_S) + len(moves) > self._rules.moves_per_minute:
            return 0
        _LOG.info("by %s these leases move: %s", self._rules.by_use, shown)
        begun = [
            (leases[uuid], transfer(leases[uuid], gpu, LeaseTransfer(gpu.host)))
            for uuid, gpu in moves.items()
        ]
        self._leases.begin_moves(begun, Reason(LeaseTerm.BY_USE, ""), actor)
        return len(begun)


def _used(stored: StoredLease, busy: Busy) -> UsedLease:
    refused = LeaseTerm.NO_MOVE in {why.term for why in stored.reasons}
    return UsedLease(
        SettledLease(
            stored.uuid, stored.gpu, stored.amounts, stored.asked.priority, stored.moved_at
        ),
        busy.get(stored.lease.gpu_host, {}).get(stored.uuid),
        movable=stored.state is LeaseState.ATTACHED and stored.asked.migratable and not refused,
    )
