# SPDX-License-Identifier: Apache-2.0
"""The state of a simulated cluster, and who would place what where.

A :class:`Strategy` finds places for one job at a time; who is asked when, the queue of the job service decides.
``fcfs`` and ``bf`` (best fit) are the greedy baselines of Amaral 2019, blind to topology; ``pack``, ``spread``,
``topo`` and ``topo_p`` are the policies of :mod:`nova_numa_ext.policy.gpu.placement`, the code that nova-scheduler
runs. On top of it :class:`Ranking` remembers the offers of all machines, so that a decision looks only at machines
that changed since the last one.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from nova_numa_ext.policy.gpu.graph import GpuGraph, join, members
from nova_numa_ext.policy.gpu.job import GpuJob, ProfileStore
from nova_numa_ext.policy.gpu.placement import Choice, Placement, choose, place_parts, preference
from nova_numa_ext.policy.gpu.utility import HostGpus, Neighbour, Scene, UtilityOptions
from nova_numa_ext.policy.jobs.plan import Plan
from nova_numa_ext.policy.jobs.queue_settings import Discipline
from placement_traits.errors import InvalidValueError
from placement_traits.names import GpuPolicy

Counts: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Place:
    """GPUs of one machine for the tasks of one part of a job.

    :param machine: number of the machine
    :param part: number of the part; a part that spans machines has several places
    :param gpus: GPUs on the machine
    """

    machine: int
    part: int
    gpus: tuple[int, ...]

    @property
    def mask(self) -> int:
        """The GPUs as a mask."""
        return sum(1 << gpu for gpu in self.gpus)


class Cluster:
    """Machines with their free GPUs, free memory bandwidth and running jobs.

    :param bandwidth_mbps: memory bandwidth of each machine, MB/s; None when it is not counted
    """

    def __init__(self, graphs: Sequence[GpuGraph], bandwidth_mbps: int | None = None) -> None:
        self.hosts = [HostGpus(graph, graph.all, bandwidth_mbps=bandwidth_mbps) for graph in graphs]
        self.total = np.array([len(graph.gpus) for graph in graphs])
        self.free = self.total.copy()
        self.versions = [0] * len(graphs)
        self.changes: list[int] = list(range(len(graphs)))

    def copy(self) -> "Cluster":
        """Return a cluster of its own in the same state."""
        return self._of(self.hosts)

    def either(self, other: "Cluster") -> "Cluster":
        """Return a cluster in which free is what is free in this state and in another one."""
        pairs = zip(self.hosts, other.hosts, strict=True)
        return self._of([_either(one, two) for one, two in pairs])

    def _of(self, hosts: Sequence[HostGpus]) -> "Cluster":
        found = Cluster([host.graph for host in hosts])
        found.hosts = list(hosts)
        found.free = np.array([host.free.bit_count() for host in hosts])
        return found

    def take(self, job: GpuJob, places: Sequence[Place]) -> None:
        """Put a job on its GPUs."""
        for place in places:
            host = self.hosts[place.machine]
            neighbours = (*host.neighbours, Neighbour(job.profile, place.mask))
            self._set(place.machine, host.free & ~place.mask, neighbours, -job.bandwidth_mbps)

    def give(self, job: GpuJob, places: Sequence[Place]) -> None:
        """Take a job off its GPUs."""
        for place in places:
            host = self.hosts[place.machine]
            gone = Neighbour(job.profile, place.mask)
            neighbours = tuple(other for other in host.neighbours if other != gone)
            self._set(place.machine, host.free | place.mask, neighbours, job.bandwidth_mbps)

    def room(self, job: GpuJob) -> Counts:
        """Return the free GPUs of each machine, 0 where the job's memory bandwidth is not free."""
        room = self.free.copy()
        if job.bandwidth_mbps:
            room[[not host.has_bandwidth(job) for host in self.hosts]] = 0
        return room

    def _set(
        self, machine: int, free: int, neighbours: tuple[Neighbour, ...], given_mbps: int
    ) -> None:
        ordered = tuple(sorted(neighbours, key=lambda neighbour: neighbour.gpus))
        host = self.hosts[machine]
        left_mbps = None if host.bandwidth_mbps is None else host.bandwidth_mbps + given_mbps
        self.hosts[machine] = HostGpus(host.graph, free, ordered, left_mbps)
        self.free[machine] = free.bit_count()
        self.versions[machine] += 1
        self.changes.append(machine)


def _either(one: HostGpus, two: HostGpus) -> HostGpus:
    neighbours = tuple(
        sorted({*one.neighbours, *two.neighbours}, key=lambda neighbour: neighbour.gpus)
    )
    counted = [host.bandwidth_mbps for host in (one, two) if host.bandwidth_mbps is not None]
    return HostGpus(one.graph, one.free & two.free, neighbours, min(counted, default=None))


class Strategy(ABC):
    """A way to place jobs.

    :cvar discipline: what follows when a job finds no place
    :cvar postpones: a job below its minimum utility waits
    """

    discipline = Discipline.FCFS
    postpones = False

    def __init__(self, cluster: Cluster, store: ProfileStore, options: UtilityOptions) -> None:
        self.cluster = cluster
        self.store = store
        self.options = options

    @abstractmethod
    def offer(self, job: GpuJob) -> Plan[Place] | None:
        """Return where the job would run, None when it does not fit."""

    def utility(self, job: GpuJob, places: Sequence[Place]) -> float:
        """U of places that were chosen without looking at it, for reports: that of the worst part."""
        utilities = []
        for place in places:
            scene = Scene(
                job.parts[place.part],
                job.profile,
                self.cluster.hosts[place.machine],
                self.store,
                self.options,
            )
            utilities.append(scene.terms(place.gpus).utility)
        return min(utilities)


class Greedy(Strategy):
    """A machine by number of free GPUs, then GPUs by number."""

    def offer(self, job: GpuJob) -> Plan[Place] | None:
        """Return the first machine that fits, for every part another one."""
        free = self.cluster.room(job)
        places = []
        for number, part in enumerate(job.parts):
            machine = self.machine(free, part.tasks)
            if machine is None:
                return None
            places.append(Place(machine, number, self.gpus(machine, part.tasks)))
            free[machine] = 0
        return Plan(tuple(places), self.utility(job, places))

    @abstractmethod
    def machine(self, free: Counts, tasks: int) -> int | None:
        """Return the machine for a part."""

    @abstractmethod
    def gpus(self, machine: int, tasks: int) -> tuple[int, ...]:
        """Return its GPUs for a part."""


class FirstCome(Greedy):
    """FCFS: the first machine that fits, its first free GPUs."""

    def machine(self, free: Counts, tasks: int) -> int | None:
        """Return the first machine with enough free GPUs."""
        fits = free >= tasks
        first = int(fits.argmax())
        return first if fits[first] else None

    def gpus(self, machine: int, tasks: int) -> tuple[int, ...]:
        """Return the free GPUs with the lowest numbers."""
        return tuple(members(self.cluster.hosts[machine].free))[:tasks]


class BestFit(Greedy):
    """BF: bin packing; the most used machine that fits, and in it the most used socket that fits.

    Where no socket holds the whole job, GPUs of the most used sockets go first. (Amaral writes only that highly
    used domains come first; taking a broken socket's last GPU for a job of two would make a weaker baseline.)
    """

    def machine(self, free: Counts, tasks: int) -> int | None:
        """Return the machine with the smallest free share that fits."""
        share = np.where(free >= tasks, free / self.cluster.total, np.inf)
        best = int(share.argmin())
        return best if share[best] < np.inf else None

    def gpus(self, machine: int, tasks: int) -> tuple[int, ...]:
        """Return free GPUs of the tightest sockets."""
        host = self.cluster.hosts[machine]

        def tightness(mask: int) -> tuple[bool, float, int]:
            room = (mask & host.free).bit_count()
            return (room < tasks, room / mask.bit_count(), mask)

        sockets = sorted(host.graph.socket_masks, key=tightness)
        return tuple(gpu for mask in sockets for gpu in members(mask & host.free))[:tasks]


class FirstComeSkipping(FirstCome):
    """FCFS that lets later jobs pass one that does not fit; separates the gain of order from the gain of
    topology."""

    discipline = Discipline.GREEDY


class BestFitSkipping(BestFit):
    """BF that lets later jobs pass one that does not fit."""

    discipline = Discipline.GREEDY


class ByPolicy(Strategy):
    """The machine whose best placement the policy prefers, ties to the lowest number."""

    policy = GpuPolicy.TOPO

    def __init__(self, cluster: Cluster, store: ProfileStore, options: UtilityOptions) -> None:
        super().__init__(cluster, store, options)
        self._rankings: dict[int, Ranking] = {}

    def offer(self, job: GpuJob) -> Plan[Place] | None:
        """Return the best machine for a job of one part, else all parts or nothing."""
        if len(job.parts) > 1:
            return self._parts(job)
        ranking = self._rankings.get(id(job))
        if ranking is None:
            ranking = self._rankings[id(job)] = Ranking(self, job)
        found = ranking.best()
        if found is not None:
            machine, placement = found
            return Plan((Place(machine, 0, placement.gpus),), placement.utility)
        return None if job.single_node else self._span(job)

    def choose(self, job: GpuJob, machine: int) -> Choice:
        """Return the policy's choice on one machine."""
        return choose(
            job,
            self.cluster.hosts[machine],
            self.policy,
            store=self.store,
            options=self.options,
        )

    def _parts(self, job: GpuJob) -> Plan[Place] | None:
        hosts = {str(number): host for number, host in enumerate(self.cluster.hosts)}
        found = place_parts(job, hosts, self.policy, store=self.store, options=self.options)
        if found is None:
            return None
        places = tuple(Place(int(host), part, p.gpus) for part, (host, p) in sorted(found.items()))
        return Plan(places, min(placement.utility for _, placement in found.values()))

    def _span(self, job: GpuJob) -> Plan[Place] | None:
        """Join the machines with most free GPUs until the job fits: as many tasks as possible on one machine."""
        used: list[int] = []
        free_of = self.cluster.room(job)
        room = 0
        for machine in np.argsort(-free_of, kind="stable"):
            used.append(int(machine))
            room += int(free_of[machine])
            if room >= job.gpus:
                break
        if room < job.gpus:
            return None
        hosts = [self.cluster.hosts[machine] for machine in used]
        graph = join({str(machine): host.graph for machine, host in zip(used, hosts, strict=True)})
        starts = np.cumsum([0, *(len(host.graph.gpus) for host in hosts)])
        free = sum(host.free << int(start) for host, start in zip(hosts, starts, strict=False))
        neighbours = tuple(
            Neighbour(neighbour.profile, neighbour.gpus << int(start))
            for host, start in zip(hosts, starts, strict=False)
            for neighbour in host.neighbours
        )
        joined = HostGpus(graph, free, neighbours)
        best = choose(job, joined, self.policy, store=self.store, options=self.options).ranked[0]
        places = []
        for machine, start, end in zip(used, starts, starts[1:], strict=False):
            gpus = tuple(int(gpu - start) for gpu in best.gpus if start <= gpu < end)
            if gpus:
                places.append(Place(machine, 0, gpus))
        return Plan(tuple(places), best.utility)


class Pack(ByPolicy):
    """Near GPUs first."""

    policy = GpuPolicy.PACK


class Spread(ByPolicy):
    """Different sockets first."""

    policy = GpuPolicy.SPREAD


class FirstComeBackfilling(FirstCome):
    """FCFS with EASY backfill."""

    discipline = Discipline.EASY


class Topo(ByPolicy):
    """TOPO-AWARE: best utility, at once and in order."""


class TopoBackfilling(ByPolicy):
    """Best utility, with EASY backfill."""

    discipline = Discipline.EASY


class TopoPostpone(ByPolicy):
    """TOPO-AWARE-P: best utility, or wait while others pass."""

    policy = GpuPolicy.TOPO_P
    discipline = Discipline.GREEDY
    postpones = True


STRATEGIES: Final[dict[str, type[Strategy]]] = {
    "fcfs": FirstCome,
    "bf": BestFit,
    "fcfs_skip": FirstComeSkipping,
    "bf_skip": BestFitSkipping,
    "fcfs_easy": FirstComeBackfilling,
    "topo_easy": TopoBackfilling,
    "pack": Pack,
    "spread": Spread,
    "topo": Topo,
    "topo_p": TopoPostpone,
}


def strategy_class(name: str) -> type[Strategy]:
    """Return a strategy by name; raises InvalidValueError for a name that is not in :data:`STRATEGIES`."""
    if name not in STRATEGIES:
        raise InvalidValueError("strategy", name, ", ".join(STRATEGIES))
    return STRATEGIES[name]


_Entry: TypeAlias = tuple[tuple[float, ...], int, int]


class Ranking:
    """All machines in order of preference for one kind of job.

    A heap of (preference, machine, version); an entry whose machine has changed since is dropped when it comes up,
    and the machines that changed since the last question are entered again.
    """

    def __init__(self, strategy: ByPolicy, job: GpuJob) -> None:
        self._strategy = strategy
        self._job = job
        self._heap: list[_Entry] = []
        self._seen = 0

    def best(self) -> tuple[int, Placement] | None:
        """Return the preferred machine and its placement, None when the job fits nowhere."""
        cluster, strategy = self._strategy.cluster, self._strategy
        for machine in set(cluster.changes[self._seen :]):
            placement = strategy.choose(self._job, machine).best
            if placement is not None:
                key = preference(placement, cluster.hosts[machine].graph, strategy.policy)
                heapq.heappush(self._heap, (key, machine, cluster.versions[machine]))
        self._seen = len(cluster.changes)
        while self._heap:
            _, machine, version = self._heap[0]
            if version == cluster.versions[machine]:
                placement = strategy.choose(self._job, machine).best
                assert placement is not None
                return machine, placement
            heapq.heappop(self._heap)
        return None
