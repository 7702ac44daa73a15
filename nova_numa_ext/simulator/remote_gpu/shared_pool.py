# SPDX-License-Identifier: Apache-2.0
"""A pool whose leases share GPUs and move, event by event, by the decisions that the service makes.

Leases come, wait in order of their priorities and then of their coming (scavengers last, no priority ages), get slices
by :mod:`~nova_numa_ext.policy.remote_gpu.lease_plan`, and end when their work is done. What moves them is the code of
the service, with its cool-down and its moves a minute: :mod:`~nova_numa_ext.policy.remote_gpu.making_room` for those
that wait, and every 15 s, while none waits or moves, :mod:`~nova_numa_ext.policy.remote_gpu.by_use`, which runs
:mod:`~nova_numa_ext.policy.remote_gpu.rebalance`. *swap* is not simulated, as the service has no use for it.

What that costs and brings is modelled. A lease that moves stands still for the downtime of
:mod:`~nova_numa_ext.policy.remote_gpu.migration`, for all of its slice, and holds both ends meanwhile. A scavenger that
gives way has lost its work and begins again. Those that share a GPU slow each other by :mod:`.sharing`; hosts report
how busy each keeps it at that moment, where those of the service report a mean. Networks are not in the way otherwise,
and servers are on hosts that lend nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from nova_numa_ext.policy.remote_gpu.by_use import UsedLease, moves_by_use
from nova_numa_ext.policy.remote_gpu.choosing import ChosenGpu
from nova_numa_ext.policy.remote_gpu.fabrics import GpuFabric
from nova_numa_ext.policy.remote_gpu.lease_claims import less
from nova_numa_ext.policy.remote_gpu.lease_plan import LeaseGang, LeasePlan, plan
from nova_numa_ext.policy.remote_gpu.making_room import (
    RebalanceRules,
    Rebalancing,
    SettledLease,
    UsePolicy,
    room_by_moves,
    room_by_scavenging,
)
from nova_numa_ext.policy.remote_gpu.migration import downtime_s
from nova_numa_ext.policy.remote_gpu.multi_tenancy import K20
from nova_numa_ext.policy.remote_gpu.rebalance import RebalanceSettings
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from nova_numa_ext.simulator.remote_gpu.cluster import StarvedError
from nova_numa_ext.simulator.remote_gpu.sharing import slowdowns
from placement_traits import names, pools
from placement_traits.claims import Amounts
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.pools import Pool

LOOK_S: Final = 15.0
MINUTE_S: Final = 60.0
REGIONS: Final = 16
"""Regions of GPU memory that a lease has, assumed: programs of Prades 2021 have 3 to 47."""

_MOST_GANGS: Final = 4
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LeaseWork:
    """A lease of a simulated workload.

    :param uuid: its uuid
    :param arrival_s: when it is asked for
    :param run_s: how long its work takes, alone on a GPU of speed 1, seconds
    :param busy: part of that time in which its kernels run, in [0, 1]
    :param part: of a GPU
    :param priority: more is more important
    """

    uuid: str
    arrival_s: float
    run_s: float
    busy: float
    part: GpuSlice
    priority: int = 0

    @property
    def asked(self) -> LeaseGang:
        """What it asks of a GPU."""
        return LeaseGang(
            self.uuid,
            1,
            self.part,
            RemoteGpuApi.OPENCL,
            migratable=True,
            priority=self.priority,
        )


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What became of a lease.

    :param work: the lease
    :param start_s: when it had a GPU, the last time that it began
    :param end_s: when its work was done
    :param moves: how often it moved
    :param paused_s: how long it stood still for that
    :param gave_way: how often it lost its GPU, and what it had done
    :param waited_s: without a GPU, in all
    """

    work: LeaseWork
    start_s: float
    end_s: float
    moves: int
    paused_s: float
    gave_way: int
    waited_s: float

    @property
    def response_s(self) -> float:
        """From asking to the end: all that a user sees."""
        return self.end_s - self.work.arrival_s

    @property
    def slowdown(self) -> float:
        """The same without waiting for a GPU, over the run time alone."""
        return (self.response_s - self.waited_s) / self.work.run_s


@dataclass(frozen=True, slots=True)
class SimulatedMove:
    """A change of a lease's GPU.

    :param at_s: when it began
    :param lease: its uuid
    :param source: the GPU that it left
    :param destination: the one it went to; '' where it gave way
    :param paused_s: for how long it stood still
    """

    at_s: float
    lease: str
    source: str
    destination: str
    paused_s: float


@dataclass(frozen=True, slots=True)
class PoolSample:
    """The pool from one moment to the next event.

    :param at_s: the moment
    :param held: GPUs of which leases hold something
    :param busy: GPUs that compute, in the mean
    :param waiting: leases without a GPU
    """

    at_s: float
    held: int
    busy: float
    waiting: int


@dataclass(frozen=True, slots=True)
class SharedPoolRun:
    """A finished simulation.

    :param records: leases in the order in which they ended
    :param moves: in order
    :param samples: in order
    :param gpus: of the pool
    """

    records: tuple[LeaseRecord, ...]
    moves: tuple[SimulatedMove, ...]
    samples: tuple[PoolSample, ...]
    gpus: int

    @property
    def makespan_s(self) -> float:
        """When the last lease ended."""
        return self.samples[-1].at_s if self.samples else 0.0

    def _total(self, value: Callable[[PoolSample], float]) -> float:
        """Return an integral over the time."""
        spans = zip(self.samples, self.samples[1:], strict=False)
        return sum(value(now) * (then.at_s - now.at_s) for now, then in spans)

    @property
    def gpu_use(self) -> float:
        """Part of the GPUs' time in which they computed."""
        return self._total(lambda each: each.busy) / (self.gpus * self.makespan_s)

    @property
    def gpus_held(self) -> float:
        """Mean number of GPUs of which leases held something."""
        return self._total(lambda each: each.held) / self.makespan_s

    @property
    def energy_j(self) -> float:
        """Of all GPUs to the end, where each draws what a K20 does (Prades 2021, section 4.5.6)."""

        def watts(now: PoolSample) -> float:
            held = now.held * K20.idle + now.busy * (K20.busy - K20.idle)
            return held + (self.gpus - now.held) * K20.unused

        return self._total(watts)


@dataclass(slots=True)
class _Held:
    """A lease that has a GPU.

    :ivar leaving: what it holds of the GPU that it leaves, while it moves
    :ivar for_gang: lease for which it moves, '' of none
    """

    work: LeaseWork
    gpu: str
    amounts: Amounts
    start_s: float
    left_s: float
    rate: float = 1.0
    moved_at: float | None = None
    until_s: float | None = None
    leaving: Amounts = field(default_factory=dict)
    for_gang: str = ""
    moves: int = 0
    paused_s: float = 0.0

    @property
    def next_s(self) -> float:
        """Seconds of its own until it ends, where it runs on as now."""
        return self.left_s / self.rate

    @property
    def settled(self) -> SettledLease:
        """The same as the policies see it."""
        return SettledLease(
            self.work.uuid, self.gpu, self.amounts, self.work.priority, self.moved_at
        )


@dataclass(slots=True)
class _Queued:
    """A lease without a GPU."""

    work: LeaseWork
    since_s: float
    waited_s: float = 0.0
    gave_way: int = 0


@dataclass(slots=True)
class SharedPool:
    """One run of one workload; :meth:`run` may be called once.

    :param pools: when they are empty
    :param works: in order of arrival, uuids unlike
    :param rules: by what leases are moved
    :param network: over which they move
    :param on_end: called with the number of leases that have ended, after each
    """

    pools: tuple[Pool, ...]
    works: Sequence[LeaseWork]
    rules: RebalanceRules
    network: GpuFabric
    on_end: Callable[[int], None] = lambda _ended: None
    now: float = field(init=False, default=0.0)
    held: dict[str, _Held] = field(init=False, default_factory=dict)
    waiting: dict[str, _Queued] = field(init=False, default_factory=dict)
    rooms: dict[str, Sequence[Amounts]] = field(init=False, default_factory=dict)
    records: list[LeaseRecord] = field(init=False, default_factory=list)
    moves: list[SimulatedMove] = field(init=False, default_factory=list)
    samples: list[PoolSample] = field(init=False, default_factory=list)
    speeds: Mapping[str, float] = field(init=False)
    _before: dict[str, _Queued] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        known = self.rules.speeds
        self.speeds = {
            gpu.uuid: min(
                (known.get(each, 1.0) for each in names.gpu_models(gpu.traits)), default=1.0
            )
            for pool in self.pools
            for gpu in pool.gpus
        }

    def run(self) -> SharedPoolRun:
        """Run all leases.

        :raises StarvedError: a lease fits no GPU of an empty pool
        """
        coming = list(reversed(self.works))
        look_s = LOOK_S
        while coming or self.waiting or self.held:
            events = [self.now + each.next_s for each in self.held.values() if each.until_s is None]
            events += [each.until_s for each in self.held.values() if each.until_s is not None]
            if coming:
                events.append(coming[-1].arrival_s)
            if not events:
                raise StarvedError(f"Leases that no GPU has room for: {', '.join(self.waiting)}.")
            soonest = min(events)
            looks = self.rules.mode is not Rebalancing.OFF and self.held
            self._advance(min(soonest, look_s) if looks else soonest)
            while coming and coming[-1].arrival_s <= self.now:
                work = coming.pop()
                self.waiting[work.uuid] = _Queued(work, self.now)
            if looks and self.now >= look_s and not self.waiting:
                self._look()
            look_s = max(look_s, (self.now // LOOK_S + 1) * LOOK_S)
            self._round()
            self._sample()
        gpus = sum(len(pool.gpus) for pool in self.pools)
        return SharedPoolRun(tuple(self.records), tuple(self.moves), tuple(self.samples), gpus)

    def _advance(self, until_s: float) -> None:
        """Let leases run until a time at which something may be over, and end what is."""
        seconds = until_s - self.now
        self.now = until_s
        ended = []
        for each in self.held.values():
            if each.until_s is None:
                over = each.next_s <= seconds + 1e-9
                each.left_s = 0.0 if over else each.left_s - seconds * each.rate
                ended += [each] if over else []
            elif each.until_s <= until_s:
                self._count(each.leaving, released=True)
                each.until_s, each.leaving, each.for_gang = None, {}, ""
        for each in ended:
            self._end(each)
        self._set_rates()

    def _end(self, lease: _Held) -> None:
        self._count(lease.amounts, released=True)
        del self.held[lease.work.uuid]
        was = self._before.pop(lease.work.uuid)
        self.records.append(
            LeaseRecord(
                lease.work,
                lease.start_s,
                self.now,
                lease.moves,
                lease.paused_s,
                was.gave_way,
                was.waited_s,
            )
        )
        self.on_end(len(self.records))

    def _round(self) -> None:
        """Give GPUs to those that wait, then make room for the first that can be made room for."""
        if not self.waiting:
            return
        moving = {each.for_gang for each in self.held.values() if each.for_gang}
        found = self._placed()
        self.rooms = {
            each: room
            for each, room in self.rooms.items()
            if each in moving and each in found.waits
        }
        if found.waits and not any(each.until_s is not None for each in self.held.values()):
            for queued in self._in_order()[:_MOST_GANGS]:
                if self._made_room(queued.work, found):
                    self._placed()
                    break
        self._set_rates()

    def _in_order(self) -> list[_Queued]:
        def place(queued: _Queued) -> tuple[bool, int, float]:
            last = queued.work.part.level is ServiceLevel.SCAVENGER
            return last, -queued.work.priority, queued.since_s

        return sorted(self.waiting.values(), key=place)

    def _placed(self) -> LeasePlan:
        found = plan([each.work.asked for each in self._in_order()], self.pools, None, self.rooms)
        for uuid, (gpu,) in found.chosen.items():
            queued = self.waiting.pop(uuid)
            amounts = queued.work.asked.held(gpu)
            self._count(amounts)
            work = queued.work
            self.held[uuid] = _Held(work, gpu.route.gpu, amounts, self.now, work.run_s)
            queued.waited_s += self.now - queued.since_s
            self._before[uuid] = queued
        return found

    def _made_room(self, work: LeaseWork, found: LeasePlan) -> bool:
        """Make room for a lease that waits; return whether others move for it, or have given way."""
        others = {gpu for uuid, kept in found.kept.items() if uuid != work.uuid for gpu in kept}
        if self.rules.mode is Rebalancing.ENFORCE and (left := self._moves_left()):
            settled = [
                each.settled
                for each in self.held.values()
                if each.work.priority <= work.priority
                and not each.settled.rests(self.now, self.rules.cool_down_s)
            ]
            room = room_by_moves(
                work.asked, self.pools, settled, self._asked, others=others, most=left
            )
            if room is not None:
                self.rooms[work.uuid] = [work.asked.held(gpu) for gpu in room.gpus]
                self._move(room.moves, work.uuid)
                return True
        if self.rules.scavenging is Rebalancing.ENFORCE:
            scavengers = [
                each.settled
                for each in self.held.values()
                if each.work.part.level is ServiceLevel.SCAVENGER
            ]
            gone = room_by_scavenging(work.asked, self.pools, scavengers, others=others)
            for uuid in gone:
                self._give_way(uuid)
            return bool(gone)
        return False

    def _moves_left(self) -> int:
        lately = sum(self.now - each.at_s < MINUTE_S for each in self.moves if each.destination)
        return self.rules.moves_per_minute - lately

    def _asked(self, uuid: str) -> LeaseGang:
        return self.held[uuid].work.asked

    def _look(self) -> None:
        """Move leases by use, where none moves."""
        if any(each.until_s is not None for each in self.held.values()):
            return
        busy = self._busy()
        moves = moves_by_use(
            self.rules.by_use,
            self.pools,
            [UsedLease(each.settled, busy[uuid], True) for uuid, each in self.held.items()],
            self._asked,
            now=self.now,
            settings=RebalanceSettings(
                self.rules.cold, self.rules.moves_per_minute, self.rules.cool_down_s
            ),
            speeds=self.rules.speeds,
        )
        if len(moves) <= self._moves_left():
            self._move(moves)
            self._set_rates()

    def _move(self, moves: Mapping[str, ChosenGpu], gang: str = "") -> None:
        for uuid, gpu in moves.items():
            lease = self.held[uuid]
            amounts = lease.work.asked.held(gpu)
            size = lease.work.part.memory_mb * _MIB // REGIONS
            pause_s = downtime_s(self.network, [size] * REGIONS)
            self.moves.append(SimulatedMove(self.now, uuid, lease.gpu, gpu.route.gpu, pause_s))
            self._count(less(amounts, lease.amounts))
            lease.leaving = less(lease.amounts, amounts)
            lease.amounts, lease.gpu = amounts, gpu.route.gpu
            lease.until_s, lease.moved_at, lease.for_gang = self.now + pause_s, self.now, gang
            lease.moves += 1
            lease.paused_s += pause_s

    def _give_way(self, uuid: str) -> None:
        """Take a scavenger's GPU; it asks again, and begins again."""
        lease, queued = self.held.pop(uuid), self._before.pop(uuid)
        self._count(lease.amounts, released=True)
        self.moves.append(SimulatedMove(self.now, uuid, lease.gpu, "", 0.0))
        queued.gave_way += 1
        queued.since_s = self.now
        self.waiting[uuid] = queued

    def _count(self, amounts: Amounts, *, released: bool = False) -> None:
        self.pools = pools.counted(self.pools, amounts, released=released)

    def _on_gpus(self) -> dict[str, list[_Held]]:
        """Return the leases that run, by GPU."""
        found: dict[str, list[_Held]] = {}
        for each in self.held.values():
            if each.until_s is None:
                found.setdefault(each.gpu, []).append(each)
        return found

    def _set_rates(self) -> None:
        for gpu, leases in self._on_gpus().items():
            slower = slowdowns(tuple(each.work.busy for each in leases), self.speeds[gpu])
            for lease, slowdown in zip(leases, slower, strict=True):
                lease.rate = 1 / slowdown

    def _busy(self) -> dict[str, float]:
        """Return the part of the time in which each lease keeps its GPU busy."""
        return {
            uuid: 0.0
            if each.until_s is not None
            else each.work.busy / self.speeds[each.gpu] * each.rate
            for uuid, each in self.held.items()
        }

    def _sample(self) -> None:
        # What is left by a lease that moves, is held until it has arrived.
        held = sum(gpu.memory_mb.used > 0 for pool in self.pools for gpu in pool.gpus)
        busy = sum(self._busy().values())
        self.samples.append(PoolSample(self.now, held, busy, len(self.waiting)))


POLICIES: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "none": {},
        "room": {"mode": Rebalancing.ENFORCE},
        **{
            str(each): {"mode": Rebalancing.ENFORCE, "by_use": each}
            for each in (UsePolicy.CONSOLIDATE, UsePolicy.BALANCE, UsePolicy.PROMOTE)
        },
        "scavenge": {"scavenging": Rebalancing.ENFORCE},
    }
)
"""Names of policies, and what each sets of :class:`RebalanceRules`; but for *none*, *scavenge* all make room, too."""
