# SPDX-License-Identifier: Apache-2.0
"""The shape of one host: what is where, and how far apart.

The levels are chassis > socket > NUMA node > core > thread. L3 domains stand beside the nodes, not under them, because
the relation is many-to-many: with sub-NUMA clusters one L3 serves several nodes, on EPYC one node holds several L3::

    chassis 0
      socket 0                         socket 1
        node 0        node 1             node 2
         cores 0 1     cores 2 3          cores 4 5      cores 6 7      each core: node, socket, L3, threads (CPUs)
        └─────── L3 0 ───────┘           └─ L3 1 ─┘     └─ L3 2 ─┘

Identifiers are the kernel's: CPU, node and package numbers, and the cache id that resctrl also uses as domain id. An
offline CPU has no cache and core files: it belongs to a core when it was seen online before, else its node alone is
known.

The JSON form mirrors the dataclasses key by key and is described by ``schemas/host_topology.json``.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from placement_traits.errors import InvalidValueError
from placement_traits.names import GpuLink
from placement_traits.rdt_capability import RdtCapability
from placement_traits.topology_json import first_error, json_of, schema_error, shape_of

Matrix: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Socket:
    """One processor package.

    :param id: the kernel's ``physical_package_id``
    :param chassis: server node that holds it; 0 on a machine of one chassis
    """

    id: int
    chassis: int = 0


@dataclass(frozen=True, slots=True)
class HugePages:
    """A pool of huge pages of one size on one node.

    :param size_kb: page size, KiB
    :param total: pages in the pool
    """

    size_kb: int
    total: int


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node: a memory and the CPUs nearest to it.

    :param id: the kernel's node number
    :param socket: its package; None for a memory-only node, or where firmware interleaves one node over sockets
    :param memory_mb: memory, MiB; None when only read back from Placement
    :param huge_pages: pools of huge pages
    :param bandwidth_mbps: memory bandwidth capacity, MB/s; None when neither configured nor measured
    :param offline_cpus: CPUs of the node that are offline now
    """

    id: int
    socket: int | None
    memory_mb: int | None = None
    huge_pages: tuple[HugePages, ...] = ()
    bandwidth_mbps: int | None = None
    offline_cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class L3Domain:
    """The CPUs that share one last-level cache.

    :param id: the kernel's cache id, which is resctrl's domain id
    :param socket: its package
    :param nodes: NUMA nodes that have a CPU in the domain, ascending
    :param size_kb: cache size, KiB; None when only read back from Placement
    """

    id: int
    socket: int
    nodes: tuple[int, ...]
    size_kb: int | None = None


@dataclass(frozen=True, slots=True)
class Core:
    """One physical core.

    :param id: number unique on the host, in order of the lowest CPU
    :param node: NUMA node
    :param socket: package
    :param l3: L3 domain; None on a machine whose kernel shows no L3
    :param cpus: online logical CPUs (threads), ascending; none of a core that is offline as a whole
    :param offline: threads that are offline now, as far as it is known that they belong here, ascending
    """

    id: int
    node: int
    socket: int
    l3: int | None
    cpus: tuple[int, ...]
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or a PCI device that stands in for one.

    :param address: PCI address, ``dddd:bb:dd.f`` in lower case
    :param node: NUMA node it is attached to; None when firmware does not report it
    :param switch: number of the PCI switch or bridge above it, from 0 in order of address; GPUs with equal numbers
        share one; None when it sits directly on a root port of its own
    :param product: ``vendor:product`` in hexadecimal; None when only read back from Placement
    """

    address: str
    node: int | None
    switch: int | None = None
    product: str | None = None


@dataclass(frozen=True, slots=True)
class GpuEdge:
    """A link between two GPUs that switch and node numbers alone do not imply.

    :param a: address of one end; ``a < b``
    :param b: address of the other end
    :param link: nominal class
    """

    a: str
    b: str
    link: GpuLink


@dataclass(frozen=True, slots=True)
class HostTopology:
    """One host.

    :param sockets: packages, ascending by id
    :param nodes: NUMA nodes, ascending by id; rows of the matrices are in this order
    :param l3_domains: L3 domains, ascending by id
    :param cores: cores, ascending by id; empty when only read back from Placement
    :param distances: SLIT, one row per node, 10 = local; empty when unknown
    :param latency_ns: measured read latency, row = node of the CPU, column = node of the memory; None when not measured
    :param read_bandwidth_mbps: measured bandwidth, same rows and columns, MB/s; None when not measured
    :param gpus: GPUs, ascending by address
    :param gpu_links: links that :meth:`gpu_link` cannot derive, ascending by ends
    :param rdt: resource control; None when the host has none or its tree is not mounted
    :raises InvalidValueError: for a reference to something that is not there, or a matrix of the wrong shape
    """

    sockets: tuple[Socket, ...]
    nodes: tuple[NumaNode, ...]
    l3_domains: tuple[L3Domain, ...] = ()
    cores: tuple[Core, ...] = ()
    distances: Matrix = ()
    latency_ns: Matrix | None = None
    read_bandwidth_mbps: Matrix | None = None
    gpus: tuple[Gpu, ...] = ()
    gpu_links: tuple[GpuEdge, ...] = ()
    rdt: RdtCapability | None = None
    _cpus: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _node_row: Mapping[int, int] = field(init=False, repr=False, compare=False)
    _core_of_cpu: Mapping[int, Core] = field(init=False, repr=False, compare=False)
    _link_of_pair: Mapping[tuple[str, str], GpuLink] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_cpus", _cpus(self.cores))
        object.__setattr__(self, "_node_row", {node.id: i for i, node in enumerate(self.nodes)})
        object.__setattr__(
            self,
            "_core_of_cpu",
            {cpu: core for core in self.cores for cpu in (*core.cpus, *core.offline)},
        )
        object.__setattr__(
            self, "_link_of_pair", {(edge.a, edge.b): edge.link for edge in self.gpu_links}
        )
        _check(self)

    # Levels ---------------------------------------------------------------------------------------------------------

    @property
    def node_ids(self) -> tuple[int, ...]:
        """NUMA nodes, in row order."""
        return tuple(self._node_row)

    @property
    def chassis_ids(self) -> tuple[int, ...]:
        """Chassis, ascending."""
        return tuple(sorted({socket.chassis for socket in self.sockets}))

    @property
    def cpus(self) -> tuple[int, ...]:
        """All online CPUs, ascending."""
        return self._cpus

    def node(self, node_id: int) -> NumaNode:
        """Return the node; raises InvalidValueError when there is none."""
        return self.nodes[self._row(node_id)]

    def socket(self, socket_id: int) -> Socket:
        """Return the socket; raises InvalidValueError when there is none."""
        return self.sockets[_position("socket", [socket.id for socket in self.sockets], socket_id)]

    def gpu(self, address: str) -> Gpu:
        """Return the GPU at a PCI address; raises InvalidValueError when there is none."""
        return self.gpus[_position("GPU", [gpu.address for gpu in self.gpus], address)]

    # From one level to another --------------------------------------------------------------------------------------

    def core_of_cpu(self, cpu: int) -> Core:
        """Return the core of a CPU; raises InvalidValueError for an unknown one, or whose core is not known."""
        try:
            return self._core_of_cpu[cpu]
        except KeyError:
            raise InvalidValueError("CPU", cpu, f"an online CPU of {list(self.cpus)}") from None

    def siblings(self, cpu: int) -> tuple[int, ...]:
        """Online threads of the core of ``cpu``, itself included."""
        return self.core_of_cpu(cpu).cpus

    def node_of_cpu(self, cpu: int) -> int:
        """NUMA node of a CPU; errors as :meth:`core_of_cpu`."""
        return self.core_of_cpu(cpu).node

    def l3_of_cpu(self, cpu: int) -> int | None:
        """L3 domain of a CPU; None without L3, and where it is not known: servers stay pinned to offline CPUs."""
        core = self._core_of_cpu.get(cpu)
        return None if core is None else core.l3

    def cores_of_node(self, node_id: int) -> tuple[Core, ...]:
        """Cores of a node, ascending."""
        return tuple(core for core in self.cores if core.node == node_id)

    def cpus_of_node(self, node_id: int) -> tuple[int, ...]:
        """Online CPUs of a node, ascending."""
        return _cpus(core for core in self.cores if core.node == node_id)

    def l3_of_node(self, node_id: int) -> tuple[L3Domain, ...]:
        """L3 domains with a CPU in the node, ascending."""
        return tuple(domain for domain in self.l3_domains if node_id in domain.nodes)

    def sleeps(self, l3_id: int) -> bool:
        """Tell whether an L3 domain is there, but all its CPUs are offline: the kernel does not show it then."""
        cores = [core for core in self.cores if core.l3 == l3_id]
        return bool(cores) and not any(core.cpus for core in cores)

    def nodes_of_socket(self, socket_id: int) -> tuple[NumaNode, ...]:
        """NUMA nodes of a socket, ascending."""
        return tuple(node for node in self.nodes if node.socket == socket_id)

    def chassis_of_node(self, node_id: int) -> int | None:
        """Chassis of a node, None when its socket is unknown."""
        socket_id = self.node(node_id).socket
        return None if socket_id is None else self.socket(socket_id).chassis

    def gpus_of_node(self, node_id: int) -> tuple[Gpu, ...]:
        """GPUs attached to a node, by address."""
        return tuple(gpu for gpu in self.gpus if gpu.node == node_id)

    # How far apart --------------------------------------------------------------------------------------------------

    def distance(self, node_a: int, node_b: int) -> int:
        """SLIT distance; 10 for a node to itself and 20 to another where firmware gives no table (as Linux does)."""
        row, column = self._row(node_a), self._row(node_b)
        if not self.distances:
            return 10 if row == column else 20
        return self.distances[row][column]

    def nodes_by_distance(self, node_id: int) -> tuple[int, ...]:
        """All nodes, nearest to ``node_id`` first, ties by number."""
        return tuple(
            sorted(self._node_row, key=lambda other: (self.distance(node_id, other), other))
        )

    def gpu_link(self, address_a: str, address_b: str) -> GpuLink:
        """Nominal link of two different GPUs.

        A listed link wins; else GPUs under one switch are PIX, on one node NODE, otherwise SYS
        (names and order are those of ``nvidia-smi topo -m``).
        """
        a, b = self.gpu(min(address_a, address_b)), self.gpu(max(address_a, address_b))
        listed = self._link_of_pair.get((a.address, b.address))
        if listed is not None:
            return listed
        return implied_link(a, b)

    def _row(self, node_id: int) -> int:
        try:
            return self._node_row[node_id]
        except KeyError:
            raise InvalidValueError(
                "NUMA node", node_id, f"one of {list(self._node_row)}"
            ) from None

    # JSON -----------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; members that hold their default value are left out."""
        encoded = json_of(self)
        assert isinstance(encoded, dict)
        return encoded

    def to_json(self, indent: int | None = None) -> str:
        """Return the JSON text."""
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "topology") -> Self:
        """Build a topology from plain JSON types.

        :param data: what :meth:`to_dict` returns
        :param where: name of the source, the start of the path in an error
        :raises InvalidValueError: naming the path of the first wrong key
        """
        error = first_error(data)
        if error is not None:
            raise schema_error(where, error)
        try:
            decoded = shape_of(cls, data)
        except InvalidValueError as inner:
            raise InvalidValueError(f"{where}.{inner.where}", inner.value, inner.allowed) from None
        assert isinstance(decoded, cls)
        return decoded

    @classmethod
    def from_json(cls, text: str, where: str = "topology") -> Self:
        """Build a topology from JSON text; errors as :meth:`from_dict`."""
        try:
            return cls.from_dict(json.loads(text), where)
        except ValueError as error:
            raise InvalidValueError(where, text[:40], f"JSON text ({error})") from None
        except RecursionError:
            raise InvalidValueError(where, text[:40], "JSON text that is not nested deep") from None


def implied_link(a: Gpu, b: Gpu) -> GpuLink:
    """Link class that follows from switch and node numbers alone."""
    if a.switch is not None and a.switch == b.switch:
        return GpuLink.PIX
    if a.node is not None and a.node == b.node:
        return GpuLink.NODE
    return GpuLink.SYS


def _cpus(cores: Iterable[Core]) -> tuple[int, ...]:
    return tuple(sorted(cpu for core in cores for cpu in core.cpus))


def _position(what: str, ids: list[Any], value: Any) -> int:
    try:
        return ids.index(value)
    except ValueError:
        raise InvalidValueError(what, value, f"one of {ids}") from None


def _check(topology: HostTopology) -> None:
    """Raise InvalidValueError for the first reference or shape that does not hold."""
    sockets = _unique("sockets", [socket.id for socket in topology.sockets])
    nodes = _unique("nodes", [node.id for node in topology.nodes])
    l3_ids = _unique("l3_domains", [domain.id for domain in topology.l3_domains])
    gpus = _unique("gpus", [gpu.address for gpu in topology.gpus])
    _unique("cores", [core.id for core in topology.cores])
    _unique("cores[].cpus", [c for core in topology.cores for c in (*core.cpus, *core.offline)])
    for i, node in enumerate(topology.nodes):
        _refers(f"nodes[{i}].socket", node.socket, sockets, optional=True)
    for i, domain in enumerate(topology.l3_domains):
        _refers(f"l3_domains[{i}].socket", domain.socket, sockets)
        for node_id in domain.nodes:
            _refers(f"l3_domains[{i}].nodes", node_id, nodes)
    for i, core in enumerate(topology.cores):
        _refers(f"cores[{i}].node", core.node, nodes)
        _refers(f"cores[{i}].socket", core.socket, sockets)
        _refers(f"cores[{i}].l3", core.l3, l3_ids, optional=True)
    if topology.cores:
        _check_l3_nodes(topology)
    for i, gpu in enumerate(topology.gpus):
        _refers(f"gpus[{i}].node", gpu.node, nodes, optional=True)
    for i, edge in enumerate(topology.gpu_links):
        _refers(f"gpu_links[{i}].a", edge.a, gpus)
        _refers(f"gpu_links[{i}].b", edge.b, gpus)
        if edge.a >= edge.b:
            raise InvalidValueError(f"gpu_links[{i}].b", edge.b, f"an address above {edge.a}")
    for name in ("distances", "latency_ns", "read_bandwidth_mbps"):
        _check_square(name, getattr(topology, name), len(nodes))


def _check_l3_nodes(topology: HostTopology) -> None:
    nodes_of: dict[int, set[int]] = {domain.id: set() for domain in topology.l3_domains}
    for core in topology.cores:
        if core.l3 is not None:
            nodes_of[core.l3].add(core.node)
    for i, domain in enumerate(topology.l3_domains):
        if list(domain.nodes) != sorted(nodes_of[domain.id]):
            allowed = f"the nodes of its cores, {sorted(nodes_of[domain.id])}"
            raise InvalidValueError(f"l3_domains[{i}].nodes", list(domain.nodes), allowed)


def _unique(where: str, ids: list[Any]) -> set[Any]:
    seen: set[Any] = set()
    for each in ids:
        if each in seen:
            raise InvalidValueError(where, each, "each identifier once")
        seen.add(each)
    return seen


def _refers(where: str, value: Any, there: set[Any], optional: bool = False) -> None:
    if value is None and optional:
        return
    if value not in there:
        raise InvalidValueError(where, value, f"one of {sorted(there)}")


def _check_square(where: str, matrix: Matrix | None, size: int) -> None:
    if not matrix:
        return
    if len(matrix) != size or any(len(row) != size for row in matrix):
        shape = "x".join(str(n) for n in (len(matrix), *{len(row) for row in matrix}))
        raise InvalidValueError(where, shape, f"{size} rows of {size} numbers, one per node")
