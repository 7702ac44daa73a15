# SPDX-License-Identifier: Apache-2.0
"""A round of DRMaestro: which of the jobs that wait start now, on which hosts, with which GPUs.

Algorithms 4 and 5 of Amaral 2019 (section 5.3). Each kind of resource that may be apart has a phase, a flow network of
its own (:mod:`~nova_numa_ext.policy.remote_gpu.network`):

1. servers to hosts, by cores and memory;
2. GPUs to hosts with GPUs, each by itself. The host of phase 1 is preferred; arcs lead only where programming
   interface, fabric, slice and bandwidth fit.

A job starts when all its servers and GPUs have a place (*gang*), else none of it does, and what the phases had set
aside for it is free at once. Then each resource of each host is counted by itself, oldest job first. What was free
again is offered in further passes; where gangs only stood in each other's way, to the older half of them, down to the
oldest alone. Work that runs is not in the network: a round never changes it.

A job whose GPUs must be on its own host, or all where ``disaggregated`` is off, has one phase: its hosts are those with
both.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nova_numa_ext.policy.jobs.postponing import MOST_POSTPONEMENTS
from nova_numa_ext.policy.remote_gpu.completion import (
    OTHER,
    PREFERRED,
    expected_s,
    network_cost,
    place_cost,
    postpones,
    queue_cost,
)
from nova_numa_ext.policy.remote_gpu.fleet import FleetHost, FleetRoom, GpuWork, PlacedServer
from nova_numa_ext.policy.remote_gpu.network import Integers, Solver, TaskNode, solve_phase
from nova_numa_ext.policy.remote_gpu.slices import GpuChoice
from placement_traits.names import RemoteGpu

# What a host without a free GPU costs a server more than one with: of equal hosts the one with GPUs is better.
_NO_GPU_HERE: Final = 0.01
_MOST_PREFERRED: Final = 16
_MOST_PASSES: Final = 16


class WaitsFor(StrEnum):
    """What a job that was not placed lacks."""

    HOST = "host"  # a server found no host
    GPU = "gpu"  # one of its GPUs found no place, or only one that costs more than waiting
    ROOM = "room"  # of several resources of a host one was short
    NETWORK = "network"  # it would miss its goal on networks as busy as now
    TURN = "turn"  # older jobs ask for all that is free


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """How rounds decide.

    :param disaggregated: GPUs may be on other hosts
    :param network_aware: networks in use cost, and a job that would miss its goal on them waits
    :param most_postponements: after how many of those a job takes any place
    :param most_jobs: the oldest jobs that one round looks at
    :param choice: which GPU of a host is taken
    """

    disaggregated: bool = True
    network_aware: bool = False
    most_postponements: int = MOST_POSTPONEMENTS
    most_jobs: int = 3000
    choice: GpuChoice = GpuChoice.PERFORMANCE


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round decided.

    :param placed: where the servers of each job are that starts
    :param waiting: what each of the others lacks
    """

    placed: Mapping[str, tuple[PlacedServer, ...]]
    waiting: Mapping[str, WaitsFor]


def plan_round(
    queue: Sequence[GpuWork],
    hosts: Sequence[FleetHost],
    solve: Solver,
    settings: RoundSettings,
) -> RoundResult:
    """Decide which jobs start.

    :param queue: jobs that wait, oldest first, uuids unlike
    :param hosts: the fleet with what is free
    :param solve: of flow networks
    """
    return _Round(hosts, solve, settings).run(queue)


def asking_no_more_than(shares: int, queue: Iterable[GpuWork]) -> list[GpuWork]:
    """Return jobs, oldest first, that together ask for no more shares of GPUs than these (algorithm 4)."""
    found: list[GpuWork] = []
    for work in queue:
        asked = work.servers * work.gpus * work.part.shares
        if asked <= shares:
            shares -= asked
            found.append(work)
    return found


class _Round:
    def __init__(self, hosts: Sequence[FleetHost], solve: Solver, settings: RoundSettings) -> None:
        self.hosts, self.solve, self.settings = hosts, solve, settings
        self.room = FleetRoom(hosts)
        self.placed: dict[str, tuple[PlacedServer, ...]] = {}
        self.waiting: dict[str, WaitsFor] = {}
        codes: dict[frozenset[str], int] = {}
        self.fabric_code = np.array(
            [codes.setdefault(host.fabrics, len(codes)) for host in hosts], dtype=np.int64
        )
        self.fabrics = list(codes)
        self.serves: dict[str, NDArray[np.bool_]] = {}

    def run(self, queue: Sequence[GpuWork]) -> RoundResult:
        self.waiting = {work.uuid: WaitsFor.TURN for work in queue}
        free = int(self.room.gpu_shares.sum())
        left = asking_no_more_than(free, queue[: self.settings.most_jobs])
        for _ in range(_MOST_PASSES):
            if not left:
                break
            before = len(self.placed)
            crowded = self._pass(left)
            rest = [work for work in left if work.uuid not in self.placed]
            rest = [w for w in rest if self.waiting[w.uuid] is not WaitsFor.NETWORK]
            if not crowded:
                break
            if len(self.placed) == before:
                rest = rest[: len(rest) // 2]
            left = rest
        waiting = {uuid: why for uuid, why in self.waiting.items() if uuid not in self.placed}
        return RoundResult(self.placed, waiting)

    def _pass(self, jobs: Sequence[GpuWork]) -> bool:
        """Place what both phases and the books agree on; return whether jobs stood in each other's way."""
        servers = self._servers(jobs)
        for number, work in enumerate(jobs):
            if None in servers[number]:
                self.waiting[work.uuid] = WaitsFor.HOST
        hosted = {n: [h for h in found if h is not None] for n, found in servers.items()}
        whole = [n for n, work in enumerate(jobs) if len(hosted[n]) == work.servers]
        crowded = any(0 < len(hosted[n]) < work.servers for n, work in enumerate(jobs))
        gpus = self._gpus([jobs[n] for n in whole], [hosted[n] for n in whole])
        for number, found in zip(whole, gpus, strict=True):
            work = jobs[number]
            places = [gpu for gpu in found if gpu is not None]
            if len(places) < len(found):
                self.waiting[work.uuid] = WaitsFor.GPU
                crowded = crowded or bool(places)
                continue
            crowded = not self._start(work, hosted[number], places) or crowded
        return crowded

    def _start(self, work: GpuWork, hosts: list[int], gpus: list[int]) -> bool:
        """Put a job on its places; return False where one resource was short."""
        if self._postponed(work, hosts, gpus):
            self.waiting[work.uuid] = WaitsFor.NETWORK
            return True
        each = work.gpus
        at = [(host, gpus[n * each : (n + 1) * each]) for n, host in enumerate(hosts)]
        placed = self.room.take(work, at, self.settings.choice)
        if placed is None:
            self.waiting[work.uuid] = WaitsFor.ROOM
            return False
        self.placed[work.uuid] = placed
        return True

    def _postponed(self, work: GpuWork, hosts: list[int], gpus: list[int]) -> bool:
        if not self.settings.network_aware:
            return False
        owners = np.repeat(hosts, work.gpus)
        ends = [
            end for pair in zip(owners, gpus, strict=True) if pair[0] != pair[1] for end in pair
        ]
        ends += hosts if work.network_always else []
        if not ends:
            return False
        load = float(self.room.load[ends].max())
        alone_s = work.alone_s * work.remote_slowdown
        expected = expected_s(alone_s, load, 1.0, work.network_factor)
        return postpones(work.goal, expected, work.postponed, self.settings.most_postponements)

    def _network_cost(self, work: GpuWork) -> NDArray[np.float64]:
        if not self.settings.network_aware:
            return np.zeros(len(self.hosts))
        return self.room.load * network_cost(1.0, 1.0, work.network_factor)

    def _stays(self, work: GpuWork) -> bool:
        """Whether the GPUs of a job must be on its own host."""
        return not self.settings.disaggregated or work.remote is RemoteGpu.NEVER

    def _servers(self, jobs: Sequence[GpuWork]) -> dict[int, list[int | None]]:
        """Phase 1: return the host of each server of each job, by the job's number."""
        kinds: dict[Hashable, int] = {}
        room: list[Integers] = []
        cost: list[NDArray[np.float64]] = []
        tasks = []
        for number, work in enumerate(jobs):
            stays = self._stays(work)
            what = (
                *(work.cores, work.memory_mb, work.gpus, work.part, work.api),
                *(stays, work.network_factor, work.network_always),
            )
            kind = kinds.setdefault(what, len(kinds))
            if kind == len(room):
                here = self._slices(work) // work.gpus
                found = self.room.for_servers(work)
                room.append(np.minimum(found, here) if stays else found)
                network = self._network_cost(work)
                local = network if work.network_always else 0.0
                cost.append(np.where(here == 0, network + _NO_GPU_HERE, local))
            utility = work.goal.utility(work.alone_s)
            preferred = [self.room.index[h] for h in work.preferred if h in self.room.index]
            here_cost = place_cost(utility, PREFERRED)
            node = TaskNode(
                number,
                kind,
                place_cost(utility, OTHER if preferred else PREFERRED),
                queue_cost(work.rounds),
                tuple(
                    (host, here_cost + float(cost[kind][host]))
                    for host in preferred[:_MOST_PREFERRED]
                    if room[kind][host] > 0
                ),
            )
            tasks += [node] * work.servers
        tables = np.array(room)
        machine_room = tables.max(axis=0)
        machines = solve_phase(tasks, tables, np.array(cost), machine_room, self.solve)
        found_by: dict[int, list[int | None]] = {number: [] for number in range(len(jobs))}
        for task, machine in zip(tasks, machines, strict=True):
            found_by[task.job].append(machine)
        return found_by

    def _slices(self, work: GpuWork) -> Integers:
        """Return how many slices for a job each host has."""
        if work.api not in self.serves:
            self.serves[work.api] = np.array([work.api in host.apis for host in self.hosts])
        return np.where(self.serves[work.api], self.room.slices(work.part), 0)

    def _gpus(
        self, jobs: Sequence[GpuWork], hosts: Sequence[Sequence[int]]
    ) -> list[list[int | None]]:
        """Phase 2: return the host of each GPU of each job, in the order of its servers."""
        kinds: dict[Hashable, int] = {}
        room: list[Integers] = []
        cost: list[NDArray[np.float64]] = []
        slices: list[Integers] = []
        tasks = []
        for number, work in enumerate(jobs):
            for host in hosts[number]:
                fabrics = self.hosts[host].fabrics
                what = (work.part, work.api, work.network_mbps, fabrics, work.network_factor)
                kind = kinds.setdefault(what, len(kinds))
                if kind == len(room):
                    slices.append(self._slices(work))
                    room.append(self._reachable(slices[kind], work, fabrics))
                    cost.append(self._network_cost(work))
                here = host if slices[kind][host] > 0 else None
                tasks += [self._gpu_task(number, kind, work, here)] * work.gpus
        if not tasks:
            return []
        machine_room = np.max(slices, axis=0)
        machines = solve_phase(tasks, np.array(room), np.array(cost), machine_room, self.solve)
        found: list[list[int | None]] = [[] for _ in jobs]
        for task, machine in zip(tasks, machines, strict=True):
            found[task.job].append(machine)
        return found

    def _reachable(self, slices: Integers, work: GpuWork, fabrics: frozenset[str]) -> Integers:
        """Return how many of the slices of each host a server can use that is in some fabrics."""
        shared = np.array([not fabrics.isdisjoint(other) for other in self.fabrics])
        slices = np.where(shared[self.fabric_code], slices, 0)
        if work.network_mbps:
            slices = np.minimum(slices, self.room.network_mbps // work.network_mbps)
        return slices

    def _gpu_task(self, number: int, kind: int, work: GpuWork, here: int | None) -> TaskNode:
        """Return the node of one GPU; its server's host is preferred where it has GPUs."""
        preferred = []
        if here is not None:
            preferred = [(here, place_cost(work.goal.utility(work.alone_s), PREFERRED))]
        remote_s = work.alone_s * work.remote_slowdown
        elsewhere = place_cost(work.goal.utility(remote_s), OTHER)
        cost_elsewhere = None if self._stays(work) else elsewhere
        return TaskNode(number, kind, cost_elsewhere, queue_cost(work.rounds), tuple(preferred))
