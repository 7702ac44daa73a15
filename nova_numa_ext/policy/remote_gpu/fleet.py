# SPDX-License-Identifier: Apache-2.0
"""What a round of DRMaestro sees: work that waits, hosts with what is free of them, and where work was placed.

A host may run servers, have GPUs of a pool, or both. What is free is counted for each resource by itself; the books
here (:class:`FleetRoom`) are what a round takes from, never more than there is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nova_numa_ext.policy.remote_gpu.completion import Goal
from nova_numa_ext.policy.remote_gpu.network import Integers
from nova_numa_ext.policy.remote_gpu.slices import GpuChoice, GpuRoom, GpuSlice, choose_gpu
from placement_traits.errors import InvalidValueError
from placement_traits.names import RemoteGpu

NO_GOAL: Final = Goal(1.0, 10.0)
_Taken: TypeAlias = tuple[Integers, int, int]


@dataclass(frozen=True, slots=True)
class GpuWork:
    """A job of equal servers with GPUs that starts as a whole or not at all.

    :param uuid: its uuid
    :param cores: of each server
    :param memory_mb: of each server, MiB
    :param gpus: of each server; each may be of another host
    :param part: what it takes of each GPU
    :param servers: how many
    :param api: what it programs the GPUs with
    :param network_mbps: bandwidth that each GPU's lease is promised, MB/s; 0 shares what there is
    :param remote: may the GPUs be on other hosts
    :param goal: when it should have ended
    :param alone_s: expected run time with GPUs of its own host, seconds
    :param remote_slowdown: run time with GPUs of another host over that, at least 1
    :param network_factor: run time under full load of the network over that alone, less 1
    :param network_always: it uses the network of its own host wherever its GPUs are
    :param rounds: rounds that it has waited
    :param postponed: how often it was left out because the network was too busy
    :param preferred: hosts that its servers should be on; none: all are alike
    :raises InvalidValueError: a number that has no meaning
    """

    uuid: str
    cores: int
    memory_mb: int
    gpus: int
    part: GpuSlice
    servers: int = 1
    api: str = "opencl"
    network_mbps: int = 0
    remote: RemoteGpu = RemoteGpu.ALLOWED
    goal: Goal = NO_GOAL
    alone_s: float = 1.0
    remote_slowdown: float = 1.0
    network_factor: float = 0.0
    network_always: bool = False
    rounds: int = 0
    postponed: int = 0
    preferred: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if min(self.cores, self.memory_mb) < 0 or min(self.gpus, self.servers) < 1:
            asked = (self.cores, self.memory_mb, self.gpus, self.servers)
            allowed = "cores and memory >= 0, at least one GPU and one server"
            raise InvalidValueError(f"job {self.uuid}", asked, allowed)


@dataclass(frozen=True, slots=True)
class FleetHost:
    """What is free of a host.

    :param name: its name
    :param cores: for servers
    :param memory_mb: for servers, MiB
    :param network_mbps: of the network interface for leases, MB/s
    :param lease_cores: for the processes that serve leases, one each
    :param gpus: its GPUs of the pool
    :param fabrics: networks that it is in
    :param apis: what its GPUs are programmed with
    :param load: of its network interface, as a share of what it carries
    """

    name: str
    cores: int = 0
    memory_mb: int = 0
    network_mbps: int = 0
    lease_cores: int = 0
    gpus: tuple[GpuRoom, ...] = ()
    fabrics: frozenset[str] = frozenset()
    apis: frozenset[str] = frozenset({"opencl"})
    load: float = 0.0


@dataclass(frozen=True, slots=True)
class LeasedGpu:
    """A GPU for a server.

    :param host: the GPU's host
    :param gpu: uuid of its provider
    """

    host: str
    gpu: str


@dataclass(frozen=True, slots=True)
class PlacedServer:
    """Where a server runs and its GPUs are.

    :param host: its host
    :param gpus: its GPUs
    """

    host: str
    gpus: tuple[LeasedGpu, ...]

    @property
    def remote(self) -> int:
        """GPUs that are on another host."""
        return sum(leased.host != self.host for leased in self.gpus)


@dataclass(slots=True)
class FleetRoom:
    """What is free while a round takes from it; arrays over the hosts, and over all GPUs in order of their hosts.

    :param hosts: the hosts
    """

    hosts: Sequence[FleetHost]
    index: dict[str, int] = field(init=False)
    cores: Integers = field(init=False)
    memory_mb: Integers = field(init=False)
    network_mbps: Integers = field(init=False)
    lease_cores: Integers = field(init=False)
    load: NDArray[np.float64] = field(init=False)
    gpu_host: Integers = field(init=False)
    gpu_memory_mb: Integers = field(init=False)
    gpu_shares: Integers = field(init=False)
    first_gpu: list[int] = field(init=False)

    def __post_init__(self) -> None:
        def column(values: Sequence[int]) -> Integers:
            return np.array(values, dtype=np.int64)

        self.index = {host.name: number for number, host in enumerate(self.hosts)}
        self.cores = column([host.cores for host in self.hosts])
        self.memory_mb = column([host.memory_mb for host in self.hosts])
        self.network_mbps = column([host.network_mbps for host in self.hosts])
        self.lease_cores = column([host.lease_cores for host in self.hosts])
        self.load = np.array([host.load for host in self.hosts], dtype=np.float64)
        gpus = [(n, room) for n, host in enumerate(self.hosts) for room in host.gpus]
        self.gpu_host = column([number for number, _ in gpus])
        self.gpu_memory_mb = column([room.memory_mb for _, room in gpus])
        self.gpu_shares = column([room.shares for _, room in gpus])
        self.first_gpu = [0]
        for host in self.hosts:
            self.first_gpu.append(self.first_gpu[-1] + len(host.gpus))

    def for_servers(self, work: GpuWork) -> Integers:
        """Return how many servers of a job each host has cores and memory for."""
        room = np.full(len(self.hosts), np.iinfo(np.int32).max, dtype=np.int64)
        if work.cores:
            room = np.minimum(room, self.cores // work.cores)
        if work.memory_mb:
            room = np.minimum(room, self.memory_mb // work.memory_mb)
        return room

    def slices(self, part: GpuSlice) -> Integers:
        """Return how many equal slices of GPUs each host has, and processes to serve them."""
        of_gpu = np.minimum(self.gpu_memory_mb // part.memory_mb, self.gpu_shares // part.shares)
        of_host = np.bincount(self.gpu_host, weights=of_gpu, minlength=len(self.hosts))
        return np.minimum(of_host.astype(np.int64), self.lease_cores)

    def take(
        self, work: GpuWork, at: Sequence[tuple[int, Sequence[int]]], choice: GpuChoice
    ) -> tuple[PlacedServer, ...] | None:
        """Take what a job needs, or nothing where one resource of one host is short.

        :param at: for each server its host and the hosts of its GPUs
        :return: where it is, or None
        """
        taken: list[_Taken] = []
        placed = []
        for host, gpu_hosts in at:
            server = self._take_server(work, host, gpu_hosts, choice, taken)
            if server is None:
                for amounts, place, amount in taken:
                    amounts[place] += amount
                return None
            placed.append(server)
        return tuple(placed)

    def _take_server(
        self,
        work: GpuWork,
        host: int,
        gpu_hosts: Sequence[int],
        choice: GpuChoice,
        taken: list[_Taken],
    ) -> PlacedServer | None:
        if not _take(taken, self.cores, host, work.cores):
            return None
        if not _take(taken, self.memory_mb, host, work.memory_mb):
            return None
        leased = []
        for gpu_host in gpu_hosts:
            gpu = self._take_gpu(work, host, gpu_host, choice, taken)
            if gpu is None:
                return None
            leased.append(LeasedGpu(self.hosts[gpu_host].name, gpu))
        return PlacedServer(self.hosts[host].name, tuple(leased))

    def _take_gpu(
        self, work: GpuWork, host: int, gpu_host: int, choice: GpuChoice, taken: list[_Taken]
    ) -> str | None:
        first = self.first_gpu[gpu_host]
        rooms = [
            GpuRoom(room.gpu, int(self.gpu_memory_mb[gpu]), int(self.gpu_shares[gpu]))
            for gpu, room in enumerate(self.hosts[gpu_host].gpus, first)
        ]
        chosen = choose_gpu(rooms, work.part, choice)
        if chosen is None or not _take(taken, self.lease_cores, gpu_host, 1):
            return None
        if host != gpu_host:
            for end in (host, gpu_host):
                if not _take(taken, self.network_mbps, end, work.network_mbps):
                    return None
        gpu = first + rooms.index(chosen)
        _take(taken, self.gpu_memory_mb, gpu, work.part.memory_mb)
        _take(taken, self.gpu_shares, gpu, work.part.shares)
        return chosen.gpu


def _take(taken: list[_Taken], amounts: Integers, place: int, amount: int) -> bool:
    """Take an amount where there is so much, and remember it."""
    if amounts[place] < amount:
        return False
    amounts[place] -= amount
    taken.append((amounts, place, amount))
    return True
