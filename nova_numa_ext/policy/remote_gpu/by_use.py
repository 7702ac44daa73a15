# SPDX-License-Identifier: Apache-2.0
"""Which running leases go to other GPUs while none waits: :mod:`.rebalance`, in a pool.

*consolidate* and *balance* of Prades 2021 go by how busy leases keep their GPUs, as hosts report it. A GPU counts only
where the use of each of its leases is known; of another one nothing is taken, and nothing is put there.

*promote* goes by how fast the operator says that models of GPUs are, and by priority: a lease with one goes to a faster
GPU that has room. Where none has, one lease of a lower priority goes off the fastest that it reaches, to a slower one
that has; that is *demotion*, and the lease for which it is follows at the next look. GPUs whose model has no speed are
left alone. Use that is not reported counts as none, for shares bound it.

*swap* has no place here, for a lease holds all of its slice from its claim on, and Placement lets slices of a GPU not
be more than its memory: none is short of memory that another lease has. What goes beyond a slice is refused where the
transport enforces slices; where it does not, no transport tells that memory was short, so there is nothing to go by.

A lease goes only to a GPU that its server reaches, with the interface, the cores and the bandwidth that it asked
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
    make_room,
    rebalance,
)
from placement_traits import names
from placement_traits.pools import Pool

_POLICIES: Final[Mapping[UsePolicy, RebalancePolicy]] = MappingProxyType(
    {
        UsePolicy.CONSOLIDATE: RebalancePolicy.CONSOLIDATE,
        UsePolicy.BALANCE: RebalancePolicy.BALANCE,
        UsePolicy.PROMOTE: RebalancePolicy.PROMOTE,
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
    speeds: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, ChosenGpu]:
    """Return the leases that are to go, and where; none where the policy is :attr:`UsePolicy.NONE`.

    :param found: all pools, with what is free
    :param used: all leases that hold something of their GPUs, whatever their state
    :param asked: lease -> what it asks of another GPU, as a gang of one
    :param now: as :attr:`SettledLease.moved_at` is
    :param settings: how much is moved
    :param speeds: of models of GPUs, for :attr:`UsePolicy.PROMOTE`
    """
    if policy is UsePolicy.NONE:
        return {}
    gpus, speed = movable_gpus(found), _speeds(found, speeds)
    if policy is UsePolicy.PROMOTE:
        gpus &= speed.keys()
    else:
        gpus -= {each.settled.gpu for each in used if each.busy is None}
    leases = {each.settled.uuid: each for each in used if each.settled.gpu in gpus}
    parts = {uuid: asked(uuid) for uuid in leases}
    slices: dict[str, int] = dict.fromkeys(gpus, 0)
    for uuid, each in leases.items():
        slices[each.settled.gpu] += parts[uuid].part.memory_mb
    states = [
        PoolGpuState(
            gpu.uuid, max(gpu.memory_mb.free, 0) + slices[gpu.uuid], speed.get(gpu.uuid, 1.0)
        )
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
    if policy is UsePolicy.PROMOTE and not moves:
        moves = _demotion(states, running, now, settings)
    return _carried_out(policy, moves, MovesTrial.of(found), leases, parts)


def _speeds(found: Sequence[Pool], speeds: Mapping[str, float]) -> dict[str, float]:
    """Return the speed of each GPU whose model has one; of several models the slowest counts."""
    known = {
        gpu.uuid: [speeds[model] for model in names.gpu_models(gpu.traits) if model in speeds]
        for pool in found
        for gpu in pool.gpus
    }
    return {uuid: min(each) for uuid, each in known.items() if each}


def _demotion(
    gpus: Sequence[PoolGpuState],
    running: Sequence[RunningLease],
    now: float,
    settings: RebalanceSettings,
) -> tuple[LeaseMove, ...]:
    """Return the move that makes room on a faster GPU for the lease of highest priority that lacks it."""
    speed = {gpu.uuid: gpu.speed for gpu in gpus}
    for lease in sorted(running, key=lambda each: (-each.priority, each.uuid)):
        rests = lease.moved_at is not None and now - lease.moved_at < settings.cool_down_s
        if lease.priority <= 0 or not lease.movable or rests:
            continue
        faster = frozenset(uuid for uuid in speed if speed[uuid] > speed[lease.gpu])
        reached = faster if lease.reaches is None else faster & lease.reaches
        if not reached:
            continue
        found = make_room(
            gpus, running, lease.part, lease.priority, now=now, settings=settings, reaches=reached
        )
        if found is not None:
            return (found,)
    return ()


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
