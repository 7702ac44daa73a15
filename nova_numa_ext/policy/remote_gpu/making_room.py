# SPDX-License-Identifier: Apache-2.0
"""Which running leases move to other GPUs so that leases that wait have room.

*Consolidation* of Prades 2021, section 7.6.1, by what is allocated: that needs no sensor of GPUs. Nothing is moved but
for a lease that waits, and only where that then has all of its GPUs. How busy GPUs are does not count here: by that
:mod:`.by_use` moves leases, while none waits.

For each GPU that a gang lacks, one is looked for off which a few leases can go, such that it then has room. Those off
which the fewest have to go come first, then those off which the least memory goes. A lease may move whose owner allows
it and whose GPU's transport loses nothing by it, once in a cool-down, and never for one that waits at a lower
priority. It goes to a GPU that has room now, reached by its server, and none that is kept for leases that wait.

*Scavenging* of Prades 2021, section 7.5.3.3: where no moves make room for a lease of a higher service level, leases of
the level ``scavenger`` give theirs up, as few as may be and whatever their priority. They are asked for again, and come
back when there is room.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from typing import Final

from nova_numa_ext.policy.remote_gpu.choosing import ChosenGpu
from nova_numa_ext.policy.remote_gpu.lease_claims import less
from nova_numa_ext.policy.remote_gpu.lease_plan import LeaseGang, able_for, places
from placement_traits import pools
from placement_traits.claims import Amounts
from placement_traits.names import (
    MIGRATABLE,
    REMOTE_GPU_MEMORY_MB,
    REMOTE_GPU_SHARE,
    ServiceLevel,
)
from placement_traits.pools import Pool, PoolGpu

MOST_GPUS: Final = 16
"""GPUs that are looked at for each one that a gang lacks, the nearest first."""


class Rebalancing(StrEnum):
    """What the service does where leases that run could make room for one that waits."""

    OFF = "off"
    OBSERVE = "observe"
    ENFORCE = "enforce"


class UsePolicy(StrEnum):
    """By which policy of :mod:`.by_use` leases move while none waits."""

    NONE = "none"
    CONSOLIDATE = "consolidate"
    BALANCE = "balance"
    PROMOTE = "promote"


@dataclass(frozen=True, slots=True)
class RebalanceRules:
    """By what leases are moved.

    :param mode: whether they are
    :param moves_per_minute: of all leases together, those that move included
    :param cool_down_s: seconds after a move in which a lease is not moved again
    :param by_use: by which policy, while none waits
    :param cold: part of the time in which a GPU is busy, below which *consolidate* empties it
    :param speeds: of models of GPUs relative to each other, by which *promote* knows the faster ones
    :param scavenging: whether scavengers give their GPUs to leases of higher levels that wait
    """

    mode: Rebalancing = Rebalancing.OFF
    moves_per_minute: int = 2
    cool_down_s: float = 3600.0
    by_use: UsePolicy = UsePolicy.NONE
    cold: float = 0.5
    speeds: Mapping[str, float] = field(default_factory=dict)
    scavenging: Rebalancing = Rebalancing.OFF


@dataclass(frozen=True, slots=True)
class SettledLease:
    """A lease that is used on its GPU and may move.

    :param uuid: its uuid
    :param gpu: provider of its GPU
    :param amounts: of its claim
    :param priority: as its owner has asked; more is more important
    :param moved_at: when it was last moved, seconds since 1970; None: never
    """

    uuid: str
    gpu: str
    amounts: Amounts
    priority: int = 0
    moved_at: float | None = None

    def rests(self, now: float, cool_down_s: float) -> bool:
        """Return whether it was moved so lately that it stays."""
        return self.moved_at is not None and now - self.moved_at < cool_down_s


@dataclass(frozen=True, slots=True)
class RoomForGang:
    """What makes room for a gang that waits.

    :param gang: its uuid
    :param moves: lease -> the GPU it goes to; each has room there before any other has gone
    :param gpus: that the gang can have when all have gone
    """

    gang: str
    moves: Mapping[str, ChosenGpu]
    gpus: tuple[ChosenGpu, ...]


def room_by_moves(
    gang: LeaseGang,
    found: Sequence[Pool],
    settled: Sequence[SettledLease],
    asked: Callable[[str], LeaseGang],
    *,
    others: Collection[str],
    most: int,
) -> RoomForGang | None:
    """Return which leases have to move so that a gang has all of its GPUs, None where no few moves do that.

    :param gang: that waits
    :param found: all pools, with what is free
    :param settled: leases that may move now
    :param asked: lease -> what it asks of another GPU, as a gang of one
    :param others: GPUs that are kept for other gangs
    :param most: moves
    """
    trial = MovesTrial.of(found)
    for count in range(1, gang.count + 1):
        part = replace(gang, count=count)
        if places(trial.after, part, others, _mbps_left(part)) is not None:
            continue
        left = [each for each in settled if each.uuid not in trial.moves]
        step = _one_more(part, trial, left, asked, others={*others}, most=most - len(trial.moves))
        if step is None:
            return None
        trial = step
    gpus = places(trial.after, gang, others, _mbps_left(gang))
    return RoomForGang(gang.uuid, trial.moves, gpus) if trial.moves and gpus else None


def room_by_scavenging(
    gang: LeaseGang,
    found: Sequence[Pool],
    scavengers: Sequence[SettledLease],
    *,
    others: Collection[str],
) -> tuple[str, ...]:
    """Return which scavengers have to give their GPUs up so that a gang has all it needs, none where that does not do.

    :param gang: that waits
    :param found: all pools, with what is free
    :param scavengers: leases of that level that hold something
    :param others: GPUs that are kept for other gangs
    """
    if gang.part.level is ServiceLevel.SCAVENGER:
        return ()
    after, gone = tuple(found), list[SettledLease]()
    for count in range(1, gang.count + 1):
        part = replace(gang, count=count)
        if places(after, part, others, _mbps_left(part)) is not None:
            continue
        left = [each for each in scavengers if each not in gone]
        for some in _ways(part, after, left, others={*others}, most=len(left)):
            without = after
            for each in some:
                without = pools.counted(without, each.amounts, released=True)
            if places(without, part, others, _mbps_left(part)) is not None:
                after = without
                gone += some
                break
        else:
            return ()
    return tuple(each.uuid for each in gone)


@dataclass(frozen=True, slots=True)
class MovesTrial:
    """Moves that are being planned.

    :param now: pools while all leases move: what they leave is not free yet
    :param after: pools when all have gone
    :param moves: lease -> the GPU it goes to
    :param emptied: GPUs off which leases go
    """

    now: tuple[Pool, ...]
    after: tuple[Pool, ...]
    moves: Mapping[str, ChosenGpu]
    emptied: frozenset[str]

    @classmethod
    def of(cls, found: Sequence[Pool]) -> "MovesTrial":
        """Return one in which nothing moves yet."""
        return cls(tuple(found), tuple(found), {}, frozenset())

    def with_move(
        self, lease: SettledLease, need: LeaseGang, kept: Collection[str]
    ) -> "MovesTrial | None":
        """Return what is so when one more lease goes, None where it has nowhere to go."""
        # What it needs at both ends, such as the same NIC of its client, it holds once.
        free = pools.counted(self.now, lease.amounts, released=True)
        found = places(free, need, kept, _mbps_left(need, lease))
        if found is None:
            return None
        held = need.held(found[0])
        return MovesTrial(
            pools.counted(pools.counted(free, held), less(lease.amounts, held)),
            pools.counted(pools.counted(self.after, lease.amounts, released=True), held),
            {**self.moves, lease.uuid: found[0]},
            self.emptied | {lease.gpu},
        )


def _one_more(
    gang: LeaseGang,
    trial: MovesTrial,
    settled: Sequence[SettledLease],
    asked: Callable[[str], LeaseGang],
    *,
    others: set[str],
    most: int,
) -> MovesTrial | None:
    """Return what is so when leases have gone off another GPU, such that a gang has one more; None where none can."""
    for leases in _ways(gang, trial.after, settled, others=others, most=most):
        found: MovesTrial | None = trial
        kept = others | trial.emptied | {leases[0].gpu}
        for each in leases:
            if found is not None:
                found = found.with_move(each, asked(each.uuid), kept)
        if found is None:
            continue
        if places(found.after, gang, others, _mbps_left(gang)) is not None:
            return found
    return None


def _ways(
    gang: LeaseGang,
    found: Sequence[Pool],
    leases: Sequence[SettledLease],
    *,
    others: set[str],
    most: int,
) -> Iterator[tuple[SettledLease, ...]]:
    """Yield leases of one GPU without which it has enough for one more of a gang, the fewest and smallest first."""
    of_gpus: dict[str, list[SettledLease]] = {}
    for each in leases:
        of_gpus.setdefault(each.gpu, []).append(each)
    able = able_for(found, gang) - others
    rooms = {gpu.uuid: gpu for pool in found for gpu in pool.gpus if gpu.uuid in able}
    ways = sorted(
        (
            (len(some), sum(_memory_mb(each) for each in some), gpu, some)
            for gpu in rooms.keys() & of_gpus.keys()
            for some in _enough(rooms[gpu], of_gpus[gpu], gang, most)
        ),
        key=lambda way: way[:3],
    )
    looked_at: set[str] = set()
    for _number, _mb, gpu, some in ways:
        looked_at.add(gpu)
        if len(looked_at) > MOST_GPUS:
            return
        yield some


def _enough(
    gpu: PoolGpu, leases: Sequence[SettledLease], gang: LeaseGang, most: int
) -> Iterator[tuple[SettledLease, ...]]:
    """Yield the leases of a GPU that leave enough of it when they go, as few as may be."""
    for number in range(1, min(most, len(leases)) + 1):
        enough = [
            some
            for some in combinations(leases, number)
            if gpu.memory_mb.free + sum(map(_memory_mb, some)) >= gang.part.memory_mb
            and gpu.share.free + sum(map(_shares, some)) >= gang.part.shares
        ]
        if enough:
            yield from enough
            return


def _mbps_left(gang: LeaseGang, lease: SettledLease | None = None) -> int | None:
    """Return what the NIC of a gang's client has for it; None where nothing is counted.

    :param lease: that it is, with what it holds there; None: one that waits
    """
    if gang.nic is None or not gang.network_mbps:
        return None
    holds = gang.network_mbps if lease is not None and gang.nic.uuid in lease.amounts else 0
    return gang.nic.mbps.free + holds


def _memory_mb(lease: SettledLease) -> int:
    return lease.amounts[lease.gpu][REMOTE_GPU_MEMORY_MB]


def _shares(lease: SettledLease) -> int:
    return lease.amounts[lease.gpu][REMOTE_GPU_SHARE]


def movable_gpus(found: Sequence[Pool]) -> frozenset[str]:
    """Return the GPUs whose leases lose nothing by a move."""
    return frozenset(gpu.uuid for pool in found for gpu in pool.gpus if MIGRATABLE in gpu.traits)
