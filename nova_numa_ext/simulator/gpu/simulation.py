# SPDX-License-Identifier: Apache-2.0
"""The event loop: arrivals, the scheduling round of algorithm 1, and jobs whose speed follows their neighbours.

A job runs at rate 1 / (stretch * slowdown): the stretch comes from the distance of its GPUs and stays, the slowdown
is that of the strongest job it shares a socket with and is computed again for all jobs of a machine whenever one of
them starts or ends. GPUs are never shared, nothing is moved or preempted.

A round is one of the job service's queue (:mod:`nova_numa_ext.policy.jobs.queue`): the waiting jobs in order of
arrival, under the strategy's discipline. Rounds follow arrivals and ends; in between nothing changes, so Amaral's
periodic wake-up would find nothing new. A job may be postponed for ever, as in TOPO-AWARE-P; the bound that the service
has is DRMaestro's.
"""

import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nova_numa_ext.policy.gpu.graph import GpuGraph
from nova_numa_ext.policy.gpu.job import ProfileStore
from nova_numa_ext.policy.gpu.placement import spread_stretch
from nova_numa_ext.policy.gpu.utility import THIRDS, UtilityOptions, slowdowns
from nova_numa_ext.policy.jobs.job import ActiveJob, Job
from nova_numa_ext.policy.jobs.plan import Plan
from nova_numa_ext.policy.jobs.queue import Fleet, decide
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.simulator.gpu.cluster import Cluster, Place, strategy_class
from nova_numa_ext.simulator.gpu.planner import ClusterClaims, StrategyPlanner, queued
from nova_numa_ext.simulator.gpu.workload import Submission
from placement_traits.errors import NumaExtError


class NeverPlacedError(NumaExtError):
    """Jobs are left that the strategy does not place even on an empty cluster."""


@dataclass(frozen=True, slots=True)
class Record:
    """What happened to one job.

    :param submission: the job
    :param start_s: time it was placed
    :param end_s: time it ended
    :param places: its GPUs
    :param utility: U of its placement, as the strategy saw it
    """

    submission: Submission
    start_s: float
    end_s: float
    places: tuple[Place, ...]
    utility: float

    @property
    def waiting_s(self) -> float:
        """Time in the queue."""
        return self.start_s - self.submission.arrival_s

    @property
    def slowdown(self) -> float:
        """Run time over the best possible: what the placement did."""
        return (self.end_s - self.start_s) / self.submission.solo_s

    @property
    def slowdown_with_waiting(self) -> float:
        """Time from arrival to end over the best possible run time."""
        return (self.end_s - self.submission.arrival_s) / self.submission.solo_s

    @property
    def violates_slo(self) -> bool:
        """The run was slower than its owner accepts."""
        return self.slowdown > self.submission.slo_slowdown * (1 + 1e-9)

    @property
    def below_minimum(self) -> bool:
        """The placement did not reach the job's minimum utility."""
        return self.utility < self.submission.job.min_utility


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """A finished simulation.

    :param strategy: name of the strategy
    :param graphs: the machines
    :param records: jobs in order of number
    :param decision_s: wall-clock seconds of each answer for one job
    :param round_s: wall-clock seconds of each scheduling round
    :param busy_gpu_s: GPU-seconds in use
    :param broken_gpu_s: free GPU-seconds on sockets that were partly in use
    :param free_gpu_s: free GPU-seconds until the last job ended
    """

    strategy: str
    graphs: tuple[GpuGraph, ...]
    records: tuple[Record, ...]
    decision_s: tuple[float, ...]
    round_s: tuple[float, ...]
    busy_gpu_s: float
    broken_gpu_s: float
    free_gpu_s: float


@dataclass(slots=True)
class _Running:
    submission: Submission
    plan: Plan[Place]
    start_s: float
    stretch: float
    left_s: float
    since_s: float
    rate: float = 0.0
    version: int = 0


@dataclass(frozen=True, slots=True)
class StrategyView:
    """What a strategy knows, and how it weighs; by default it knows all as it is.

    :param bandwidth_mbps: memory bandwidth of each machine, MB/s; None when it is not counted
    :param graphs: machines as it sees them (a wrong map is a negative control); None: as they are
    :param profiles: how jobs run as it believes it; None: as they do
    :param options: what a placement is worth to it
    """

    bandwidth_mbps: int | None = None
    graphs: Sequence[GpuGraph] | None = None
    profiles: ProfileStore | None = None
    options: UtilityOptions = THIRDS


_ALL: Final = StrategyView()


class Simulation:
    """One run of one strategy over one workload; :meth:`run` may be called once.

    :param graphs: the machines
    :param submissions: the workload in order of arrival
    :param strategy: name of the strategy
    :param profiles: how jobs run
    :param view: what the strategy knows of both
    :param clock: wall clock for decision times, seconds
    :param on_end: called with the number of ended jobs, for progress
    """

    def __init__(
        self,
        graphs: Sequence[GpuGraph],
        submissions: Sequence[Submission],
        strategy: str,
        profiles: ProfileStore,
        view: StrategyView = _ALL,
        *,
        clock: Callable[[], float] = lambda: 0.0,
        on_end: Callable[[int], None] = lambda ended: None,
    ) -> None:
        self._graphs = tuple(graphs)
        self._submissions = submissions
        self._name = strategy
        self._profiles = profiles
        self._clock = clock
        self._on_end = on_end
        self._cluster = Cluster(view.graphs or graphs, view.bandwidth_mbps)
        placing = strategy_class(strategy)(self._cluster, view.profiles or profiles, view.options)
        self._planner = StrategyPlanner(submissions, clock)
        claims = ClusterClaims(placing, self._planner.jobs)
        self._fleet: Fleet[Place, None, ClusterClaims, int | None] = Fleet(
            None, claims, self._planner, None
        )
        self._settings = QueueSettings(placing.discipline, ageing_per_hour=0.0)
        self._queue: dict[int, Job] = {}
        self._waiting: dict[int, Submission] = {}
        self._waiting_kinds: Counter[Hashable] = Counter()
        self._running: dict[int, _Running] = {}
        self._active: dict[int, ActiveJob[Plan[Place]]] = {}
        self._on_machine: dict[int, dict[int, int]] = defaultdict(dict)
        self._ends: list[tuple[float, int, int]] = []
        self._records: list[Record] = []
        self._round_s: list[float] = []
        self._usage = _Usage(self._cluster)
        self._now = 0.0

    def run(self) -> SimulationRun:
        """Simulate until the last job has ended.

        :raises NeverPlacedError: when jobs are left that are not placed even on an empty cluster
        """
        arrivals = iter(self._submissions)
        following = next(arrivals, None)
        while following is not None or self._running or self._queue:
            arrives_s = following.arrival_s if following is not None else math.inf
            self._now = min(self._next_end(), arrives_s)
            if self._now == math.inf:
                raise NeverPlacedError(
                    f"jobs that find no place under {self._name} on an empty cluster: {len(self._queue)}; "
                    "give the fleet larger machines or more of them, or lower their minimum utility"
                )
            self._usage.until(self._now)
            while self._next_end() <= self._now:
                self._end(heapq.heappop(self._ends)[1])
            while following is not None and following.arrival_s <= self._now:
                self._queue[following.number] = queued(following)
                self._waiting[following.number] = following
                self._waiting_kinds[id(following.job)] += 1
                following = next(arrivals, None)
            before = self._clock()
            self._round()
            self._round_s.append(self._clock() - before)
        return SimulationRun(
            self._name,
            self._graphs,
            tuple(sorted(self._records, key=lambda record: record.submission.number)),
            tuple(self._planner.decision_s),
            tuple(self._round_s),
            self._usage.busy,
            self._usage.broken,
            self._usage.free,
        )

    def _round(self) -> None:
        """Algorithm 1: offer places to the waiting jobs, oldest first."""
        found = decide(
            self._queue.values(),
            self._active.values(),
            self._fleet,
            self._now,
            self._settings,
            kinds=self._waiting_kinds,
        )
        for start in found.starts:
            number = int(start.job.uuid)
            del self._queue[number]
            self._start(self._waiting.pop(number), start.job, start.plan)

    def _start(self, submission: Submission, job: Job, plan: Plan[Place]) -> None:
        kind = id(submission.job)
        self._waiting_kinds[kind] -= 1
        if not self._waiting_kinds[kind]:
            del self._waiting_kinds[kind]
        running = _Running(
            submission,
            plan,
            self._now,
            self._stretch(submission, plan.places),
            submission.solo_s,
            self._now,
        )
        self._running[submission.number] = running
        self._active[submission.number] = ActiveJob(job, plan, self._now)
        for place in plan.places:
            self._on_machine[place.machine][submission.number] = place.mask
        self._pace(plan.places)

    def _stretch(self, submission: Submission, places: Sequence[Place]) -> float:
        """Stretch of the worst part; a part that spans machines runs as if its GPUs were as far as possible."""
        spread = self._profiles.get(submission.job.profile).spread
        by_part = itertools.groupby(places, key=lambda place: place.part)
        return max(self._part_stretch(submission, list(part), spread) for _, part in by_part)

    def _part_stretch(self, submission: Submission, part: list[Place], spread: float) -> float:
        if len(part) > 1:
            return spread
        graph = self._graphs[part[0].machine]
        return spread_stretch(graph, submission.job.parts[part[0].part], part[0].gpus, spread)

    def _next_end(self) -> float:
        """Time of the next end, infinity when nothing runs; drops ends predicted at an older rate."""
        while self._ends:
            end_s, number, version = self._ends[0]
            if number in self._running and self._running[number].version == version:
                return end_s
            heapq.heappop(self._ends)
        return math.inf

    def _end(self, number: int) -> None:
        running = self._running.pop(number)
        del self._active[number]
        places = running.plan.places
        self._cluster.give(running.submission.job, places)
        for place in places:
            del self._on_machine[place.machine][number]
        self._records.append(
            Record(running.submission, running.start_s, self._now, places, running.plan.utility)
        )
        self._pace(places)
        self._on_end(len(self._records))

    def _pace(self, places: Sequence[Place]) -> None:
        """Give all jobs that run on the machines of ``places`` their new rate and end."""
        for number in dict.fromkeys(self._numbers(places)):
            running = self._running[number]
            slowdown = max(self._slowdown(number, place.machine) for place in running.plan.places)
            rate = 1.0 / (running.stretch * slowdown)
            if rate == running.rate:
                continue
            running.left_s -= (self._now - running.since_s) * running.rate
            running.since_s = self._now
            running.rate = rate
            running.version += 1
            end_s = self._now + max(0.0, running.left_s) / rate
            heapq.heappush(self._ends, (end_s, number, running.version))

    def _numbers(self, places: Sequence[Place]) -> Iterator[int]:
        for place in places:
            yield from self._on_machine[place.machine]

    def _slowdown(self, number: int, machine: int) -> float:
        host = self._cluster.hosts[machine]
        mask = self._on_machine[machine][number]
        own = next(i for i, other in enumerate(host.neighbours) if other.gpus == mask)
        return slowdowns(self._graphs[machine], host.neighbours, self._profiles)[own]


class _Usage:
    """Integrals over time of busy GPUs, free GPUs, and free GPUs on broken sockets."""

    def __init__(self, cluster: Cluster) -> None:
        self.busy = self.free = self.broken = 0.0
        self._cluster = cluster
        self._total = int(cluster.total.sum())
        self._free_now = 0
        self._broken_now = 0
        self._known: dict[int, tuple[int, int]] = {}
        self._seen = 0
        self._now = 0.0

    def until(self, now: float) -> None:
        """Add the time since the last call, in the state that the cluster had all the while."""
        for machine in set(self._cluster.changes[self._seen :]):
            before = self._known.get(machine, (0, 0))
            after = self._state(machine)
            self._free_now += after[0] - before[0]
            self._broken_now += after[1] - before[1]
            self._known[machine] = after
        self._seen = len(self._cluster.changes)
        span = now - self._now
        self.free += self._free_now * span
        self.broken += self._broken_now * span
        self.busy += (self._total - self._free_now) * span
        self._now = now

    def _state(self, machine: int) -> tuple[int, int]:
        host = self._cluster.hosts[machine]
        broken = sum(
            (mask & host.free).bit_count() for mask in host.graph.socket_masks if mask & ~host.free
        )
        return host.free.bit_count(), broken
