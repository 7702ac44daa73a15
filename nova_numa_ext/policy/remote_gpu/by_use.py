# SPDX-License-Identifier: Apache-2.0
"""Which running leases go to other GPUs by how busy they keep them, as hosts report it: :mod:`.rebalance`, in a pool.

*consolidate* and *balance* of Prades 2021. The others need what no host reports or no transport can: how fast a GPU is
(promote), and a lease without a GPU for a while (scavenge, swap).

A GPU counts only where the use of each of its leases is known; of another one nothing is taken, and nothing is put
there. A lease goes only to a GPU that its server reaches, with the interface, the cores and the bandwidth that it asked
for, and that has room before any other has gone. Where one lease of a GPU that is to be emptied finds none, all of that
GPU's stay, for only an empty GPU saves power.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from nova_numa_ext.policy.remote_gpu.choosing import ChosenGpu
from nova_numa_ext.policy.remote_gpu.lease_plan import LeaseGang, able_for
from nova_numa_ext.policy.remote_gpu.making_room import (
    MovesTrial,
    SettledLease,
    UsePolicy,
    movable_gpus,
)
from nova_numa_ext.policy.remote_gpu.rebalance import (
    LeaseMove,
    PoolGpuState,
    RebalancePolicy,
    RebalanceSettings,
    RunningLease,
    rebalance,
)
from placement_traits.pools import Pool

_POLICIES: Final[Mapping[UsePolicy, RebalancePolicy]] = MappingProxyType(
    {
        UsePolicy.CONSOLIDATE: RebalancePolicy.CONSOLIDATE,
        UsePolicy.BALANCE: RebalancePolicy.BALANCE,
    }
)


@dataclass(frozen=True, slots=True)
class UsedLease:
    """A lease that holds something of a GPU.

    :param settled: what it holds, and when it was last moved
    :param busy: part of the time in which it kept its GPU busy, in [0, 1]; None: not known
    :param movable: its owner and its state allow a move
    """

    settled: SettledLease
    busy: float | None
    movable: bool


def moves_by_use(
    policy: UsePolicy,
    found: Sequence[Pool],
    used: Sequence[UsedLease],
    asked: Callable[[str], LeaseGang],
    *,
    now: float,
    settings: RebalanceSettings,
) -> dict[str, ChosenGpu]:
    """Return the leases that are to go, and where; none where the policy is :attr:`UsePolicy.NONE`.

    :param found: all pools, with what is free
    :param used: all leases that hold something of their GPUs, whatever their state
    :param asked: lease -> what it asks of another GPU, as a gang of one
    :param now: as :attr:`SettledLease.moved_at` is
    :param settings: how much is moved
    """
    if policy is UsePolicy.NONE:
        return {}
    unknown = {each.settled.gpu for each in used if each.busy is None}
    gpus = movable_gpus(found) - unknown
    leases = {each.settled.uuid: each for each in used if each.settled.gpu in gpus}
    parts = {uuid: asked(uuid) for uuid in leases}
    slices: dict[str, int] = dict.fromkeys(gpus, 0)
    for uuid, each in leases.items():
        slices[each.settled.gpu] += parts[uuid].part.memory_mb
    states = [
        PoolGpuState(gpu.uuid, max(gpu.memory_mb.free, 0) + slices[gpu.uuid])
        for pool in found
        for gpu in pool.gpus
        if gpu.uuid in gpus
    ]
    lenders = {pool.host for pool in found}
    able: dict[Hashable, frozenset[str]] = {}

    def reaches(part: LeaseGang, own: str) -> frozenset[str]:
        """Return the GPUs to which a lease can go, its own or not; one set for all that are alike."""
        any_gpu = replace(part, taken=frozenset())
        kind = any_gpu.kind(lenders)
        if kind not in able:
            able[kind] = able_for(found, any_gpu)
        others = part.taken - {own}
        return able[kind] - others if others else able[kind]

    running = [
        RunningLease(
            uuid,
            each.settled.gpu,
            parts[uuid].part,
            each.busy or 0.0,
            each.settled.priority,
            each.settled.moved_at,
            movable=each.movable,
            reaches=reaches(parts[uuid], each.settled.gpu) if each.movable else frozenset(),
        )
        for uuid, each in leases.items()
    ]
    moves = rebalance(_POLICIES[policy], states, running, now, settings)
    return _carried_out(policy, moves, MovesTrial.of(found), leases, parts)


def _carried_out(
    policy: UsePolicy,
    moves: Sequence[LeaseMove],
    trial: MovesTrial,
    leases: Mapping[str, UsedLease],
    parts: Mapping[str, LeaseGang],
) -> dict[str, ChosenGpu]:
    """Return those of some moves that pools have all for: of a GPU that is to be emptied all or none."""
    by_source: dict[str, list[LeaseMove]] = {}
    for each in moves:
        source = each.source if policy is UsePolicy.CONSOLIDATE else each.lease
        by_source.setdefault(source, []).append(each)
    gpus = {gpu.uuid for pool in trial.now for gpu in pool.gpus}
    for together in by_source.values():
        step: MovesTrial | None = trial
        for each in together:
            if step is not None:
                others = gpus - {each.destination}
                step = step.with_move(leases[each.lease].settled, parts[each.lease], others)
        trial = trial if step is None else step
    return dict(trial.moves)
