# SPDX-License-Identifier: Apache-2.0
"""Which running leases move to another GPU, or give theirs up for a while (Prades 2021, sections 6.1, 7.5.3 and 7.6).

Rounds never touch a lease that runs; only these policies do, few moves at a time and each lease at most once in a
cool-down:

consolidate
    GPUs below a threshold of utilisation are emptied, the coldest first, onto the fullest that take their leases: all
    or none, because only an empty GPU saves power
balance
    leases of the most loaded GPU go to an idle one, where the larger of both loads falls by it
promote
    the lease of highest priority on a slower GPU goes to a faster one that has room
scavenge
    scavengers give up a GPU while a lease of a higher level is active on it, and come back when none is
swap
    a lease that has allocated more than its GPU has left is moved to one with room; where none has, its GPU memory is
    parked in the host's memory until there is

:func:`make_room` demotes: it moves a lease of lower priority off a fast GPU for one that comes.

A destination must have memory, shares and utilisation left, and be of an architecture for which the lease has code.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from nova_numa_ext.policy.remote_gpu.slices import GpuRoom, GpuSlice
from placement_traits.errors import InvalidValueError
from placement_traits.names import GPU_SHARES, ServiceLevel


@dataclass(frozen=True, slots=True)
class RunningLease:
    """A lease as a policy sees it.

    :param uuid: its uuid
    :param gpu: uuid of its GPU's provider; '' while it is parked
    :param part: its slice
    :param utilisation: share of the time in which its kernels run, alone, in [0, 1]
    :param priority: more is more important
    :param moved_at: when it was last moved or parked; None: never
    :param architectures: GPUs that it has code for; None: any, it is compiled when it starts (PTX)
    :param lacks_mb: memory that it has asked for beyond what its GPU had left, MiB
    :param movable: its transport can move it, and its owner allows it
    :param reaches: GPUs that its server can use; None: any
    """

    uuid: str
    gpu: str
    part: GpuSlice
    utilisation: float = 0.0
    priority: int = 0
    moved_at: float | None = None
    architectures: frozenset[str] | None = None
    lacks_mb: int = 0
    movable: bool = True
    reaches: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class PoolGpuState:
    """A GPU of the pool.

    :param uuid: its provider
    :param memory_mb: all its memory, MiB
    :param speed: relative to the others; more is faster
    :param architecture: its generation
    """

    uuid: str
    memory_mb: int
    speed: float = 1.0
    architecture: str = ""


class RebalancePolicy(StrEnum):
    """Names of the policies, as they are configured."""

    CONSOLIDATE = "consolidate"
    BALANCE = "balance"
    PROMOTE = "promote"
    SCAVENGE = "scavenge"
    SWAP = "swap"


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """How much is moved.

    :param cold: utilisation of a GPU below which it is emptied
    :param most_moves: in one call
    :param cool_down_s: seconds in which a lease is not moved again
    :param most_sources: GPUs off which something is tried to be moved in one call: of those that are to be emptied the
        coldest, of those that are to be relieved the most loaded
    """

    cold: float = 0.5
    most_moves: int = 4
    cool_down_s: float = 60.0
    most_sources: int = 64


@dataclass(frozen=True, slots=True)
class LeaseMove:
    """A change of one lease.

    :param lease: its uuid
    :param source: its GPU; '' where it was parked
    :param destination: the GPU it goes to; '' where it is parked
    """

    lease: str
    source: str
    destination: str


@dataclass(slots=True)
class _Pool:
    """GPUs and leases while a policy changes them."""

    gpus: Mapping[str, PoolGpuState]
    leases: dict[str, RunningLease]
    now: float
    settings: RebalanceSettings
    moves: list[LeaseMove] = field(default_factory=list)
    _here: dict[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        here: dict[str, list[str]] = {}
        for lease in self.leases.values():
            here.setdefault(lease.gpu, []).append(lease.uuid)
        self._here = {gpu: tuple(uuids) for gpu, uuids in here.items()}

    def on(self, gpu: str) -> list[RunningLease]:
        """Return the leases of a GPU."""
        return [self.leases[uuid] for uuid in self._here.get(gpu, ())]

    def load(self, gpu: str) -> float:
        """Return the sum of the utilisations of a GPU's leases."""
        return sum(lease.utilisation for lease in self.on(gpu))

    def room(self, gpu: str) -> GpuRoom:
        """Return what is free of a GPU."""
        here = self.on(gpu)
        memory_mb = self.gpus[gpu].memory_mb - sum(lease.part.memory_mb for lease in here)
        return GpuRoom(gpu, memory_mb, GPU_SHARES - sum(lease.part.shares for lease in here))

    def takes(self, gpu: str, lease: RunningLease) -> bool:
        """Return whether a lease may go to a GPU, its utilisation left aside."""
        reached = lease.reaches is None or gpu in lease.reaches
        fits = lease.gpu != gpu and reached and self.room(gpu).fits(_asked(lease))
        runs_on = lease.architectures
        return fits and (runs_on is None or self.gpus[gpu].architecture in runs_on)

    def may_move(self, lease: RunningLease) -> bool:
        """Return whether a lease may be changed now: its cool-down is over and there are moves left."""
        cool = lease.moved_at is None or self.now - lease.moved_at >= self.settings.cool_down_s
        return lease.movable and cool and len(self.moves) < self.settings.most_moves

    def move(self, lease: RunningLease, to: str) -> None:
        """Change a lease; '' parks it."""
        self.moves.append(LeaseMove(lease.uuid, lease.gpu, to))
        part = _asked(lease) if to else lease.part
        lacks_mb = 0 if to else lease.lacks_mb
        changed = replace(lease, gpu=to, part=part, lacks_mb=lacks_mb, moved_at=self.now)
        self.leases[lease.uuid] = changed
        left = tuple(uuid for uuid in self._here[lease.gpu] if uuid != lease.uuid)
        self._here[lease.gpu] = left
        self._here[to] = (*self._here.get(to, ()), lease.uuid)


def _asked(lease: RunningLease) -> GpuSlice:
    """Return the slice that a lease needs, with what it lacks."""
    return replace(lease.part, memory_mb=lease.part.memory_mb + lease.lacks_mb)


def rebalance(
    policy: RebalancePolicy,
    gpus: Iterable[PoolGpuState],
    leases: Iterable[RunningLease],
    now: float,
    settings: RebalanceSettings,
) -> tuple[LeaseMove, ...]:
    """Return what one policy changes now, in the order in which it must happen.

    :param now: seconds, of the same clock as ``moved_at``
    """
    pool = _pool(gpus, leases, now, settings)
    _POLICIES[policy](pool)
    return tuple(pool.moves)


def make_room(
    gpus: Iterable[PoolGpuState],
    leases: Iterable[RunningLease],
    part: GpuSlice,
    priority: int,
    *,
    now: float,
    settings: RebalanceSettings,
    reaches: Container[str] | None = None,
) -> LeaseMove | None:
    """Return the demotion that makes room on the fastest GPUs for a lease that comes (section 7.5.3.3).

    None where one of them has room anyway, or no lease of lower priority has a slower GPU to go to.

    :param part: what the lease that comes takes
    :param priority: its priority
    :param reaches: GPUs that its server can use; None: any
    """
    pool = _pool(gpus, leases, now, settings)
    able = [gpu for gpu in pool.gpus.values() if reaches is None or gpu.uuid in reaches]
    fastest = max((gpu.speed for gpu in able), default=0.0)
    fast = [gpu.uuid for gpu in able if gpu.speed == fastest]
    if any(pool.room(gpu).fits(part) for gpu in fast):
        return None
    lower = [lease for gpu in fast for lease in pool.on(gpu) if lease.priority < priority]
    for lease in sorted(lower, key=lambda lease: (lease.priority, lease.part.memory_mb)):
        room = pool.room(lease.gpu)
        given = replace(
            room,
            memory_mb=room.memory_mb + lease.part.memory_mb,
            shares=room.shares + lease.part.shares,
        )
        if given.fits(part) and pool.may_move(lease):
            slower = [uuid for uuid, gpu in pool.gpus.items() if gpu.speed < fastest]
            for to in _by_load(pool, slower):
                if pool.takes(to, lease):
                    return LeaseMove(lease.uuid, lease.gpu, to)
    return None


def policy_named(name: str) -> RebalancePolicy:
    """Return the policy of a name.

    :raises InvalidValueError: there is none
    """
    if name not in RebalancePolicy.__members__.values():
        raise InvalidValueError("rebalance policy", name, ", ".join(RebalancePolicy))
    return RebalancePolicy(name)


def _pool(
    gpus: Iterable[PoolGpuState],
    leases: Iterable[RunningLease],
    now: float,
    settings: RebalanceSettings,
) -> _Pool:
    by_uuid = {lease.uuid: lease for lease in leases}
    return _Pool({gpu.uuid: gpu for gpu in gpus}, by_uuid, now, settings)


def _by_load(pool: _Pool, gpus: Iterable[str]) -> list[str]:
    """Return GPUs, the least loaded first."""
    return sorted(gpus, key=lambda gpu: (pool.load(gpu), gpu))


def _consolidate(pool: _Pool) -> None:
    used = [gpu for gpu in pool.gpus if pool.on(gpu)]
    for source in _by_load(pool, used)[: pool.settings.most_sources]:
        if len(pool.moves) >= pool.settings.most_moves:
            break
        if pool.load(source) >= pool.settings.cold:
            continue
        others = [gpu for gpu in used if gpu != source and pool.on(gpu)]
        for lease, destination in _all_elsewhere(pool, source, others):
            pool.move(lease, destination)


def _all_elsewhere(
    pool: _Pool, source: str, others: Sequence[str]
) -> list[tuple[RunningLease, str]]:
    """Return where each lease of a GPU goes, the fullest GPU first; nothing where one finds no room."""
    trial = replace(pool, leases=dict(pool.leases), moves=list(pool.moves))
    planned = []
    for lease in sorted(pool.on(source), key=lambda lease: -lease.part.memory_mb):
        fitting = [
            gpu
            for gpu in reversed(_by_load(trial, others))
            if trial.takes(gpu, lease) and trial.load(gpu) + lease.utilisation <= 1 + 1e-9
        ]
        if not fitting or not trial.may_move(lease):
            return []
        trial.move(lease, fitting[0])
        planned.append((lease, fitting[0]))
    return planned


def _balance(pool: _Pool) -> None:
    idle = sorted(gpu for gpu in pool.gpus if not pool.on(gpu))
    busy = _most_loaded(pool)
    for gpu in idle:
        if len(pool.moves) >= pool.settings.most_moves:
            break
        for source in busy:
            load = pool.load(source)
            movable = [
                lease
                for lease in pool.on(source)
                if pool.may_move(lease) and pool.takes(gpu, lease) and lease.utilisation > 0
            ]
            best = min(
                movable,
                key=lambda lease: (max(load - lease.utilisation, lease.utilisation), lease.uuid),
                default=None,
            )
            if best is not None:
                pool.move(best, gpu)
                busy = _most_loaded(pool)
                break


def _most_loaded(pool: _Pool) -> list[str]:
    """Return the GPUs that more than one lease shares, the most loaded first, as many as are looked at."""
    shared = [gpu for gpu in pool.gpus if len(pool.on(gpu)) > 1]
    return _by_load(pool, shared)[::-1][: pool.settings.most_sources]


def _promote(pool: _Pool) -> None:
    for lease in sorted(pool.leases.values(), key=lambda lease: (-lease.priority, lease.uuid)):
        if not lease.gpu or lease.priority <= 0 or not pool.may_move(lease):
            continue
        speed = pool.gpus[lease.gpu].speed
        faster = [uuid for uuid, gpu in pool.gpus.items() if gpu.speed > speed]
        for gpu in sorted(faster, key=lambda uuid: (-pool.gpus[uuid].speed, pool.load(uuid))):
            if pool.takes(gpu, lease) and pool.load(gpu) + lease.utilisation <= 1 + 1e-9:
                pool.move(lease, gpu)
                break


def _scavenge(pool: _Pool) -> None:
    scavengers = [
        lease for lease in pool.leases.values() if lease.part.level is ServiceLevel.SCAVENGER
    ]
    higher = {
        lease.gpu
        for lease in pool.leases.values()
        if lease.part.level is not ServiceLevel.SCAVENGER and lease.utilisation > 0
    }
    for lease in sorted(scavengers, key=lambda lease: lease.uuid):
        if lease.gpu in higher:  # at once: what has precedence does not wait for a cool-down
            pool.move(lease, "")
        elif not lease.gpu and pool.may_move(lease):
            for gpu in _by_load(pool, pool.gpus.keys() - higher):
                if pool.takes(gpu, lease):
                    pool.move(lease, gpu)
                    break


def _swap(pool: _Pool) -> None:
    short = [lease for lease in pool.leases.values() if lease.lacks_mb or not lease.gpu]
    for lease in sorted(short, key=lambda lease: (bool(lease.gpu), -lease.priority, lease.uuid)):
        fitting = [gpu for gpu in _by_load(pool, pool.gpus) if pool.takes(gpu, lease)]
        if fitting and pool.may_move(lease):
            pool.move(lease, fitting[0])
        elif lease.gpu and not fitting:  # its allocation waits: it cannot go on where it is
            pool.move(lease, "")


_Change: TypeAlias = Callable[[_Pool], None]
_POLICIES: Final[Mapping[RebalancePolicy, _Change]] = MappingProxyType(
    {
        RebalancePolicy.CONSOLIDATE: _consolidate,
        RebalancePolicy.BALANCE: _balance,
        RebalancePolicy.PROMOTE: _promote,
        RebalancePolicy.SCAVENGE: _scavenge,
        RebalancePolicy.SWAP: _swap,
    }
)
