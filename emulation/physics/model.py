# SPDX-License-Identifier: Apache-2.0
"""Contention on a NUMA host: cores, L3 caches, memory controllers, links between nodes, fabric between chassis.

A guest's vCPUs are grouped into *slices*: those of one guest on one node and L3 domain. For each slice:

* cycles per instruction = core + L3 accesses x (L3 latency + miss ratio x memory latency / parallelism);
* the miss ratio falls in proportion to the part of its working set that the slice holds in the cache; co-runners share
  a cache (or the ways their masks allow) in proportion to their insertions, as under LRU;
* memory latency is the mean over the nodes that hold the guest's pages: idle latency grows with SLIT distance, and
  every memory controller, node-to-node link and chassis adapter on the way adds a queueing delay that explodes near
  its capacity. At saturation this is the time model of BWAP (equation 4.4): the busiest transfer decides;
* a core that runs several vCPUs divides itself among them and loses a little; busy SMT siblings slow each other down;
* a bandwidth level (MBA) below 100 % bounds the traffic of each core to that part of what a core can draw.

Rates, misses and delays depend on each other; :meth:`HostModel.measure` iterates them to a fixed point. It is
deterministic: noise is a random source that the caller passes in.
"""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from emulation.physics.parameters import Parameters
from emulation.physics.programs import Workload
from placement_traits.topology import Core, HostTopology

LINE_BYTES: Final = 64
DEFAULT_L3_KB: Final = 6144
WAYS: Final = 20
KNEE: Final = 0.9
STEEPNESS: Final = 6.0
ITERATIONS: Final = 200
TOLERANCE: Final = 2e-4

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Guest:
    """True state of one guest.

    :param name: unique on the host
    :param workload: what runs in it
    :param cpus: host CPU of each vCPU; CPUs may repeat within and between guests (overbooking)
    :param pages: NUMA node -> fraction of the resident memory, sums to 1
    :param demand: part of the time the vCPUs are busy, 0.0 to 1.0
    :param ways: L3 domain -> capacity bit mask; domains that are missing are open
    :param mba: L3 domain -> bandwidth level, per cent; domains that are missing are at 100
    """

    name: str
    workload: Workload
    cpus: tuple[int, ...]
    pages: Mapping[int, float]
    demand: float = 1.0
    ways: Mapping[int, int] | None = None
    mba: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Signals:
    """What sensors show of one guest.

    :param ipc: instructions per cycle
    :param mpi: L3 misses per instruction
    :param stall_rate: stalled cycles per second and vCPU
    :param local_mbps: memory traffic to the node of the vCPU, MB/s
    :param total_mbps: memory traffic, MB/s
    :param node_mbps: memory node -> traffic, MB/s
    :param llc_bytes: L3 domain -> occupancy, bytes
    :param progress: useful instructions per second of the whole guest: what the owner sees
    """

    ipc: float
    mpi: float
    stall_rate: float
    local_mbps: float
    total_mbps: float
    node_mbps: Mapping[int, float]
    llc_bytes: Mapping[int, float]
    progress: float


@dataclass(frozen=True, slots=True)
class _Slices:
    """The guests as arrays; one row per slice."""

    guest: npt.NDArray[np.intp]
    node: npt.NDArray[np.intp]
    l3: npt.NDArray[np.intp]
    threads: Array
    speed: Array
    slowest: Array
    pages: Array
    core_cpi: Array
    accesses: Array
    working_set: Array
    floor: Array
    parallelism: Array
    mba_cpi: Array


@dataclass(frozen=True, slots=True)
class _Solution:
    """The fixed point; one row per slice, and the exact signals of each guest."""

    slices: _Slices
    rate: Array
    cpi: Array
    miss: Array
    flow: Array
    held: Array
    signals: tuple[Signals, ...] = ()


class HostModel:
    """The model of one host.

    :param topology: shape, distances and, where known, bandwidths of the host
    :param parameters: physical constants
    """

    def __init__(self, topology: HostTopology, parameters: Parameters) -> None:
        self._topology = topology
        self._parameters = parameters
        ids = topology.node_ids
        self._row = {node: row for row, node in enumerate(ids)}
        distance = np.array([[topology.distance(a, b) for b in ids] for a in ids], dtype=float)
        self._latency_ns = parameters.local_latency_ns * distance / 10.0
        self._controller = np.array(
            [float(n.bandwidth_mbps or parameters.node_bandwidth_mbps) for n in topology.nodes]
        )
        if topology.read_bandwidth_mbps is not None:
            self._link = np.array(topology.read_bandwidth_mbps, dtype=float)
        else:
            self._link = self._controller[None, :] * (10.0 / distance) ** parameters.link_exponent
        np.fill_diagonal(self._link, np.inf)
        chassis = [topology.chassis_of_node(node) or 0 for node in ids]
        numbers = {name: i for i, name in enumerate(sorted(set(chassis)))}
        self._crosses = np.array([[a != b for b in chassis] for a in chassis])
        self._in_chassis = np.zeros((len(numbers), len(ids)))
        for row, name in enumerate(chassis):
            self._in_chassis[numbers[name], row] = 1.0
        self._l3_ids = sorted(
            {core.l3 if core.l3 is not None else -core.node - 1 for core in topology.cores}
        )
        self._l3_row = {l3: row for row, l3 in enumerate(self._l3_ids)}
        size = {domain.id: domain.size_kb or DEFAULT_L3_KB for domain in topology.l3_domains}
        self._l3_bytes = np.array([1024.0 * size.get(l3, DEFAULT_L3_KB) for l3 in self._l3_ids])
        self._last: tuple[Hashable, _Solution] | None = None

    def measure(
        self,
        guests: Sequence[Guest],
        noise: random.Random | None = None,
        noise_share: float = 0.0,
    ) -> dict[str, Signals]:
        """Return the signals of every guest.

        :param guests: all guests of the host
        :param noise: random source of measurement noise, None for exact figures
        :param noise_share: standard deviation of each figure, as a share of it
        """
        if not guests:
            return {}
        solution = self._solved(guests)

        def seen(value: float) -> float:
            if noise is None or noise_share == 0.0:
                return float(value)
            return float(value) * max(0.01, noise.gauss(1.0, noise_share))

        return {
            guest.name: _disturbed(exact, seen)
            for guest, exact in zip(guests, solution.signals, strict=True)
        }

    def _solved(self, guests: Sequence[Guest]) -> _Solution:
        """Return the fixed point; a host on which nothing has moved since the last measurement has the same one."""
        slices = self._slices(guests)
        columns = (getattr(slices, field.name).tobytes() for field in fields(slices))
        ways = (tuple(sorted((guest.ways or {}).items())) for guest in guests)
        state = (*columns, *ways, *(guest.workload for guest in guests))
        if self._last is None or self._last[0] != state:
            self._last = (state, self._fixed_point(slices, guests))
        return self._last[1]

    def _slices(self, guests: Sequence[Guest]) -> _Slices:
        load = Counter[int]()
        for guest in guests:
            for cpu, count in Counter(guest.cpus).items():
                load[cpu] += count
        rows: list[tuple[Any, ...]] = []
        p = self._parameters
        for number, guest in enumerate(guests):
            groups: dict[tuple[int, int], list[float]] = {}
            for cpu in guest.cpus:
                core = self._topology.core_of_cpu(cpu)
                l3 = _cache_of(core)
                busy_siblings = sum(1 for other in core.cpus if load[other] > 0)
                speed = guest.demand / load[cpu]
                if load[cpu] > 1:
                    speed *= 1.0 - min(0.9, p.overbooking_cost)
                if busy_siblings > 1:
                    speed *= min(1.0, p.smt_yield)
                groups.setdefault((core.node, l3), []).append(speed)
            w = guest.workload
            for (node, l3), speeds in sorted(groups.items()):
                level = (guest.mba or {}).get(l3, 100)
                bound = np.inf if level >= 100 else p.mba_core_bandwidth_mbps * level / 100.0
                accesses = p.access_scale * w.l3_accesses_pki / 1000.0
                rows.append(
                    (
                        number,
                        self._row[node],
                        self._l3_row[l3],
                        len(speeds),
                        sum(speeds) / len(speeds),
                        min(speeds),
                        [guest.pages.get(n, 0.0) for n in self._row],
                        p.core_cpi_scale * w.core_cpi,
                        accesses,
                        1024.0 * p.working_set_scale * w.working_set_kb * len(speeds),
                        w.least_miss_ratio,
                        max(1.0, p.parallelism_scale * w.parallelism),
                        p.core_ghz * 1e3 * accesses * LINE_BYTES / bound,
                    )
                )
        columns = list(zip(*rows, strict=True))
        index = (np.array(column, dtype=np.intp) for column in columns[:3])
        figures = (np.array(column, dtype=float) for column in columns[3:])
        return _Slices(*chain[Any](index, figures))

    def _cache_groups(self, slices: _Slices, guests: Sequence[Guest]) -> tuple[Array, Array]:
        """Return which slice may use which part of which cache, and the size of each part in bytes.

        Ways with the same set of users are one part; without masks each cache is one part.
        """
        members: list[npt.NDArray[np.bool_]] = []
        sizes: list[float] = []
        for row, l3 in enumerate(self._l3_ids):
            here = np.flatnonzero(slices.l3 == row)
            if not len(here):
                continue
            masks = [(guests[slices.guest[s]].ways or {}).get(l3) for s in here]
            ways = max([mask.bit_length() for mask in masks if mask], default=0)
            ways = max(ways, WAYS) if ways else 1
            users = Counter(
                tuple(mask is None or bool(mask >> way & 1) for mask in masks)
                for way in range(ways)
            )
            for allowed, count in users.items():
                member = np.zeros(len(slices.guest), dtype=bool)
                member[here] = allowed
                members.append(member)
                sizes.append(self._l3_bytes[row] * count / ways)
        return np.array(members, dtype=float).T, np.array(sizes)

    def _fixed_point(self, slices: _Slices, guests: Sequence[Guest]) -> _Solution:
        p = self._parameters
        ghz = p.core_ghz * 1e9
        may_use, part_bytes = self._cache_groups(slices, guests)
        on_node = np.zeros((len(self._row), len(slices.guest)))
        on_node[slices.node, np.arange(len(slices.guest))] = 1.0
        idle = self._latency_ns[slices.node]
        rate = ghz / slices.core_cpi
        miss = np.ones(len(slices.guest))
        cpi = slices.core_cpi
        flow = np.zeros_like(slices.pages)
        held = np.zeros(len(slices.guest))
        for _ in range(ITERATIONS):
            accesses = slices.threads * rate * slices.speed * slices.accesses
            held = _occupancy(accesses * miss, slices.working_set, may_use, part_bytes)
            hit = (1.0 - slices.floor) * np.minimum(1.0, held / np.maximum(slices.working_set, 1.0))
            miss = 0.5 * miss + 0.5 * (1.0 - hit)
            traffic = accesses * miss * LINE_BYTES / 1e6
            flow = traffic[:, None] * slices.pages
            delay = self._delays(flow, on_node)[slices.node]
            latency = (slices.pages * (idle + p.local_latency_ns * p.queue_gain * delay)).sum(
                axis=1
            )
            exposed = p.l3_latency_ns / slices.parallelism + miss * latency / slices.parallelism
            cpi = slices.core_cpi + slices.accesses * exposed * p.core_ghz
            cpi = np.maximum(cpi, slices.mba_cpi)
            new = rate**0.85 * (ghz / cpi) ** 0.15
            change = float(np.max(np.abs(new / rate - 1.0)))
            rate = new
            if change < TOLERANCE:
                break
        solution = _Solution(slices, rate, ghz / rate, miss, flow, held)
        exact = (self._signals(number, guest, solution) for number, guest in enumerate(guests))
        return replace(solution, signals=tuple(exact))

    def _delays(self, flow: Array, on_node: Array) -> Array:
        """Return the queueing delay from each node of vCPUs to each memory node, in units of the queue gain."""
        pairs = on_node @ flow
        controller = _queue(pairs.sum(axis=0) / self._controller)
        link = _queue(pairs / self._link)
        remote = pairs * self._crosses
        capacity = self._parameters.fabric_bandwidth_mbps
        inbound = self._in_chassis @ remote.sum(axis=1)
        outbound = self._in_chassis @ remote.sum(axis=0)
        into = self._in_chassis.T @ _queue(inbound / capacity)
        out_of = self._in_chassis.T @ _queue(outbound / capacity)
        fabric = (into[:, None] + out_of[None, :]) * self._crosses
        relative = self._latency_ns / self._parameters.local_latency_ns
        total: Array = controller[None, :] + relative * (link + fabric)
        return total

    def _signals(self, number: int, guest: Guest, solution: _Solution) -> Signals:
        slices, rate, cpi = solution.slices, solution.rate, solution.cpi
        mine = slices.guest == number
        threads = slices.threads[mine]
        run = threads * slices.speed[mine]
        instructions = rate[mine] * run
        cycles = instructions * cpi[mine]
        misses = instructions * slices.accesses[mine] * solution.miss[mine]
        stalled = (cycles * (1.0 - slices.core_cpi[mine] / cpi[mine])).sum()
        to_nodes = solution.flow[mine].sum(axis=0)
        local = solution.flow[mine, slices.node[mine]].sum()
        coupling = min(1.0, self._parameters.coupling_scale * guest.workload.coupling)
        slowest = float((rate[mine] * slices.slowest[mine]).min()) * threads.sum()
        llc: dict[int, float] = {}
        for l3, occupied in zip(slices.l3[mine], solution.held[mine], strict=True):
            llc[self._l3_ids[l3]] = llc.get(self._l3_ids[l3], 0.0) + float(occupied)
        total = float(instructions.sum())
        busy = float(cycles.sum())
        return Signals(
            ipc=total / busy if busy else 0.0,
            mpi=float(misses.sum()) / total if total else 0.0,
            stall_rate=float(stalled / threads.sum()),
            local_mbps=float(local),
            total_mbps=float(to_nodes.sum()),
            node_mbps={n: float(v) for n, v in zip(self._row, to_nodes, strict=True) if v > 0},
            llc_bytes=llc,
            progress=(1.0 - coupling) * total + coupling * slowest,
        )


def _disturbed(exact: Signals, seen: Callable[[float], float]) -> Signals:
    """Return signals as they are measured; one that does not run shows no noise in its ratios."""
    return replace(
        exact,
        ipc=seen(exact.ipc) if exact.ipc else 0.0,
        mpi=seen(exact.mpi) if exact.ipc else 0.0,
        stall_rate=seen(exact.stall_rate),
        local_mbps=seen(exact.local_mbps),
        total_mbps=seen(exact.total_mbps),
    )


def _cache_of(core: Core) -> int:
    """The core's L3 domain; a host without L3 files is treated as if each node had one, numbered below zero."""
    return core.l3 if core.l3 is not None else -core.node - 1


def _queue(load: Array) -> Array:
    """Delay of a resource at a load: r/(1-r) up to the knee, a steep power above, so that demand cannot run away."""
    below = np.minimum(load, KNEE)
    delay: Array = below / (1.0 - below) * np.maximum(1.0, load / KNEE) ** STEEPNESS
    return delay


def _occupancy(insertions: Array, working_set: Array, may_use: Array, part_bytes: Array) -> Array:
    """Share each part of the caches among its users by insertions; what one cannot fill goes to the others."""
    weight = may_use * np.maximum(insertions, 1.0)[:, None]
    held = np.zeros(len(working_set))
    free = part_bytes.copy()
    for _ in range(3):
        hungry = weight * (held < 0.999 * working_set)[:, None]
        total = hungry.sum(axis=0)
        given = hungry * (free / np.where(total > 0, total, 1.0))[None, :]
        offered = given.sum(axis=1)
        kept = np.minimum(offered, working_set - held)
        scale = np.divide(kept, offered, out=np.zeros_like(kept), where=offered > 0)
        held += kept
        free -= (given * scale[:, None]).sum(axis=0)
    return held
