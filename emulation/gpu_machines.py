# SPDX-License-Identifier: Apache-2.0
"""Random GPU hosts and jobs for tests and benchmarks of GPU placement; equal seeds give equal scenes."""

import random
from collections.abc import Hashable

from nova_numa_ext.policy.gpu.graph import GpuGraph, from_edges, mask_of
from nova_numa_ext.policy.gpu.job import COMM_PROFILES, JobGraph, comm_profile
from nova_numa_ext.policy.gpu.utility import THIRDS, HostGpus, Neighbour, Scene


def random_graph(draw: random.Random) -> GpuGraph:
    """2 to 8 GPUs on 1, 2 or 4 sockets, any density of direct links."""
    gpus = [f"g{number}" for number in range(draw.randint(2, 8))]
    count = draw.choice([1, 2, 2, 4])
    sockets = [draw.randrange(count) for _ in gpus]
    edges: list[tuple[Hashable, Hashable, float]] = [
        ("machine", ("socket", socket), 20.0) for socket in set(sockets)
    ]
    edges += [(gpu, ("socket", socket), 1.0) for gpu, socket in zip(gpus, sockets, strict=True)]
    density = draw.random()
    edges += [
        (a, b, draw.choice([0.25, 0.5, 1.0]))
        for i, a in enumerate(gpus)
        for b in gpus[:i]
        if draw.random() < density
    ]
    return from_edges(edges, gpus, sockets, "machine")


def random_part(draw: random.Random, tasks: int) -> JobGraph:
    """Half of the jobs data-parallel, half with any communication."""
    if draw.random() < 0.5 or tasks < 3:
        return JobGraph.complete(tasks, draw.randint(0, 4))
    pairs = [(a, b) for a in range(tasks) for b in range(a + 1, tasks)]
    edges = [(a, b, float(draw.randint(1, 4))) for a, b in pairs if draw.random() < 0.5]
    return JobGraph(tasks, tuple(edges))


def random_host(draw: random.Random, graph: GpuGraph) -> HostGpus:
    """Any set of busy GPUs, cut into jobs of up to four."""
    gpus = list(range(len(graph.gpus)))
    draw.shuffle(gpus)
    busy = gpus[: draw.randint(0, len(gpus) - 1)]
    free = mask_of(set(gpus) - set(busy))
    neighbours = []
    while busy:
        size = draw.randint(1, min(4, len(busy)))
        neighbours.append(Neighbour(comm_profile(draw.randint(0, 4)), mask_of(busy[:size])))
        busy = busy[size:]
    return HostGpus(graph, free, tuple(neighbours))


def random_scene(draw: random.Random, graph: GpuGraph | None = None) -> Scene:
    """A job that fits looking at a host."""
    host = random_host(draw, graph if graph is not None else random_graph(draw))
    most = min(host.free.bit_count(), 6 if draw.random() < 0.9 else 8)
    part = random_part(draw, draw.randint(1, most))
    return Scene(part, comm_profile(draw.randint(0, 4)), host, COMM_PROFILES, THIRDS)
