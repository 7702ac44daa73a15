# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a host as a weighted graph, and how far they are from each other.

Levels from the top: machine, socket, NUMA node (where a socket has several), PCIe switch, GPU. The edge directly above
a GPU weighs 1, edges higher up weigh 20 (Amaral 2019, figure 15); NVLinks are edges between two GPUs and weigh 1 too.
The distance of two GPUs is the smallest sum of weights on a path that no third GPU lies on: a GPU does not forward peer
traffic, which is why on a DGX-1 two GPUs without a common NVLink communicate through switches and sockets (chapter 4,
introduction)::

    Minsky             M0                       distances    0    1   42   42
                 20 /     \\ 20                               1    0   42   42
                 S0        S1                               42   42    0    1
              1 / \\ 1    1 / \\ 1                            42   42    1    0
               0---1      2---3
                 1          1

Where copies between GPUs have been measured, the measured matrix replaces the qualitative one
(:mod:`nova_numa_ext.policy.gpu.distances`).

A set of GPUs is written as a bit mask in inner loops (bit i = GPU i) and as a tuple of positions elsewhere.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from placement_traits.errors import InvalidValueError
from placement_traits.names import GpuLink
from placement_traits.topology import Gpu, GpuEdge, HostTopology, NumaNode, Socket

Vertex: TypeAlias = Hashable
Edge: TypeAlias = tuple[Vertex, Vertex, float]
Distances: TypeAlias = tuple[tuple[float, ...], ...]

NVLINKS: Final = frozenset(link for link in GpuLink if link.startswith("NV"))


@dataclass(frozen=True, slots=True)
class LevelWeights:
    """Qualitative weights of edges.

    :param gpu: edges that end at a GPU: to its switch or socket, and NVLinks
    :param upper: edges between higher levels
    """

    gpu: float = 1.0
    upper: float = 20.0


LEVEL_WEIGHTS: Final = LevelWeights()


@dataclass(frozen=True, slots=True, eq=False)
class GpuGraph:
    """The GPUs of one host (or of several, see :func:`join`); compared and hashed by identity, so keep one per host
    shape.

    :param gpus: name of each GPU, such as its PCI address; the position is the GPU's number everywhere else
    :param sockets: socket of each GPU, numbered from 0 in order of first appearance
    :param distances: shortest path between each two GPUs, 0 on the diagonal
    :param uplinks: shortest path from each GPU to the machine vertex
    :raises InvalidValueError: for sizes that do not fit together, or a matrix that is not symmetric and positive
    """

    gpus: tuple[str, ...]
    sockets: tuple[int, ...]
    distances: Distances
    uplinks: tuple[float, ...]
    nearest: float = field(init=False)
    farthest: float = field(init=False)
    socket_masks: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        size = len(self.gpus)
        if len(self.sockets) != size or len(self.uplinks) != size:
            raise InvalidValueError(
                "sockets, uplinks", (self.sockets, self.uplinks), f"{size} each"
            )
        check_distances(self.distances, size, "distances")
        pairs = [self.distances[a][b] for a in range(size) for b in range(a)]
        object.__setattr__(self, "nearest", min(pairs, default=1.0))
        object.__setattr__(self, "farthest", max(pairs, default=1.0))
        count = max(self.sockets, default=-1) + 1
        masks = tuple(
            mask_of(gpu for gpu, socket in enumerate(self.sockets) if socket == number)
            for number in range(count)
        )
        object.__setattr__(self, "socket_masks", masks)

    @property
    def all(self) -> int:
        """Mask of all GPUs."""
        return (1 << len(self.gpus)) - 1

    def touched(self, mask: int) -> int:
        """Mask of the sockets that have a GPU in ``mask``."""
        return mask_of(s for s, gpus in enumerate(self.socket_masks) if gpus & mask)


def check_distances(distances: Distances, size: int, where: str) -> None:
    """Make sure that a matrix is one of distances.

    :param size: number of GPUs
    :raises InvalidValueError: when its size is another, or it is not symmetric and positive
    """
    square = [len(row) for row in distances] == [size] * size
    if not square or any(
        distances[a][b] != distances[b][a] or not 0 < distances[a][b] < math.inf
        for a in range(size)
        for b in range(a)
    ):
        allowed = f"a symmetric matrix of {size} rows, with numbers > 0 off the diagonal"
        raise InvalidValueError(where, [list(row) for row in distances], allowed)


def mask_of(numbers: Iterable[int]) -> int:
    """Return the mask with the given bits."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def members(mask: int) -> Iterator[int]:
    """Yield the bits of a mask, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def shortest_paths(
    edges: Iterable[Edge], source: Vertex, closed: frozenset[Vertex]
) -> dict[Vertex, float]:
    """Return the distance from ``source`` to every vertex that can be reached (Dijkstra).

    :param edges: undirected weighted edges
    :param closed: vertices that a path may end at but not go through
    """
    neighbours: dict[Vertex, list[tuple[Vertex, float]]] = defaultdict(list)
    for a, b, weight in edges:
        neighbours[a].append((b, weight))
        neighbours[b].append((a, weight))
    distances: dict[Vertex, float] = {}
    heap: list[tuple[float, int, Vertex]] = [(0.0, 0, source)]
    pushed = 0
    while heap:
        distance, _, vertex = heapq.heappop(heap)
        if vertex in distances:
            continue
        distances[vertex] = distance
        if vertex in closed and vertex != source:
            continue
        for other, weight in neighbours[vertex]:
            pushed += 1
            heapq.heappush(heap, (distance + weight, pushed, other))
    return distances


def from_edges(
    edges: Sequence[Edge], gpus: Sequence[str], sockets: Sequence[int], machine: Vertex
) -> GpuGraph:
    """Build the graph from the edges of a topology.

    :param edges: undirected weighted edges between GPUs, switches, sockets and ``machine``
    :param gpus: vertices that are GPUs, in order of number
    :param sockets: socket of each GPU, any numbers
    :param machine: the vertex at the top
    :raises InvalidValueError: when a GPU cannot be reached
    """
    closed = frozenset(gpus)
    rows = [shortest_paths(edges, gpu, closed) for gpu in gpus]
    order: dict[int, int] = {}
    return GpuGraph(
        gpus=tuple(gpus),
        sockets=tuple(order.setdefault(socket, len(order)) for socket in sockets),
        distances=tuple(tuple(row.get(gpu, math.inf) for gpu in gpus) for row in rows),
        uplinks=tuple(row.get(machine, math.inf) for row in rows),
    )


def edges_of(topology: HostTopology, weights: LevelWeights = LEVEL_WEIGHTS) -> list[Edge]:
    """Return the weighted edges of a host: machine - socket - node - switch - GPU, and direct links.

    A node is a level of its own only where its socket has several. A PXB link (several PCIe bridges, none of them a
    host bridge) is shorter than the way over the node and becomes a direct edge; PHB, NODE and SYS repeat the
    levels.
    """
    edges: list[Edge] = [("machine", ("socket", s), weights.upper) for s in _sockets(topology)]
    for node in topology.nodes:
        if _has_level(topology, node.id):
            edges.append((_above(topology, node.id), ("node", node.id), weights.upper))
    switches: dict[int, int | None] = {}
    for gpu in topology.gpus:
        parent: Vertex = _attached(topology, gpu.node)
        if gpu.switch is not None:
            parent = ("switch", gpu.switch)
            switches.setdefault(gpu.switch, gpu.node)
        edges.append((parent, gpu.address, weights.gpu))
    edges += [
        (_attached(topology, node), ("switch", switch), weights.upper)
        for switch, node in switches.items()
    ]
    direct = dict.fromkeys(NVLINKS, weights.gpu) | {
        GpuLink.PIX: 2 * weights.gpu,
        GpuLink.PXB: 2 * weights.gpu + weights.upper,
    }
    edges += [(e.a, e.b, direct[e.link]) for e in topology.gpu_links if e.link in direct]
    return edges


def from_topology(
    topology: HostTopology,
    weights: LevelWeights = LEVEL_WEIGHTS,
    measured: Distances | None = None,
) -> GpuGraph:
    """Build the graph of a host's GPUs, in order of address.

    :param weights: qualitative weights
    :param measured: distances that were measured (for example microseconds per MiB copied), one row per GPU; they
        override the qualitative ones
    """
    gpus = [gpu.address for gpu in topology.gpus]
    sockets = [_socket(topology, gpu.node) for gpu in topology.gpus]
    graph = from_edges(edges_of(topology, weights), gpus, sockets, "machine")
    if measured is None:
        return graph
    return GpuGraph(graph.gpus, graph.sockets, measured, graph.uplinks)


def shared(topology: HostTopology, measured: Distances | None = None) -> GpuGraph:
    """Return one graph object for all hosts whose GPUs look alike, so that they share remembered decisions.

    :param measured: see :func:`from_topology`
    """
    nodes = tuple(NumaNode(node.id, node.socket) for node in topology.nodes)
    return _by_shape(topology.sockets, nodes, topology.gpus, topology.gpu_links, measured)


@lru_cache(maxsize=4096)
def _by_shape(
    sockets: tuple[Socket, ...],
    nodes: tuple[NumaNode, ...],
    gpus: tuple[Gpu, ...],
    links: tuple[GpuEdge, ...],
    measured: Distances | None,
) -> GpuGraph:
    topology = HostTopology(sockets, nodes, gpus=gpus, gpu_links=links)
    return from_topology(topology, measured=measured)


def join(graphs: Mapping[str, GpuGraph], weight: float = LEVEL_WEIGHTS.upper) -> GpuGraph:
    """Put the GPUs of several hosts into one graph, for a job that may span hosts.

    GPUs are named ``host/gpu``; the way between hosts goes up to both machine vertices and over two edges of
    ``weight`` (the network level of section 4.1.1.2).
    """
    names, sockets, uplinks, origin = [], [], [], []
    first_socket = 0
    for number, (host, graph) in enumerate(graphs.items()):
        names += [f"{host}/{gpu}" for gpu in graph.gpus]
        sockets += [first_socket + socket for socket in graph.sockets]
        uplinks += [uplink + weight for uplink in graph.uplinks]
        origin += [(number, graph, gpu) for gpu in range(len(graph.gpus))]
        first_socket += len(graph.socket_masks)
    size = range(len(origin))

    def distance(a: int, b: int) -> float:
        (host_a, graph, gpu_a), (host_b, _, gpu_b) = origin[a], origin[b]
        return graph.distances[gpu_a][gpu_b] if host_a == host_b else uplinks[a] + uplinks[b]

    return GpuGraph(
        tuple(names),
        tuple(sockets),
        tuple(tuple(distance(a, b) for b in size) for a in size),
        tuple(uplinks),
    )


_UNKNOWN: Final = -1


def _socket(topology: HostTopology, node: int | None) -> int:
    """Socket of a node; nodes without a socket (and GPUs without a node) share one unknown socket."""
    socket = None if node is None else topology.node(node).socket
    return _UNKNOWN if socket is None else socket


def _sockets(topology: HostTopology) -> list[int]:
    return sorted({_socket(topology, gpu.node) for gpu in topology.gpus})


def _has_level(topology: HostTopology, node: int) -> bool:
    socket = topology.node(node).socket
    return socket is not None and len(topology.nodes_of_socket(socket)) > 1


def _above(topology: HostTopology, node: int | None) -> Vertex:
    return ("socket", _socket(topology, node))


def _attached(topology: HostTopology, node: int | None) -> Vertex:
    if node is not None and _has_level(topology, node):
        return ("node", node)
    return _above(topology, node)
