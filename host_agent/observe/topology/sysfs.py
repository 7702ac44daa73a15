# SPDX-License-Identifier: Apache-2.0
"""Sockets, NUMA nodes, L3 domains, cores and memory of this host, read from sysfs.

Sources (Linux Documentation/ABI): ``devices/system/cpu`` (stable/sysfs-devices-system-cpu, topology and cache), and
``devices/system/node`` (stable/sysfs-devices-node). An L3 domain is what ``shared_cpu_list`` says, never "the node".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from host_agent.model import cpus
from placement_traits.errors import InvalidValueError
from placement_traits.topology import (
    Core,
    HostTopology,
    HugePages,
    L3Domain,
    Matrix,
    NumaNode,
    Socket,
)

_L3 = "3"


@dataclass(frozen=True, slots=True)
class Given:
    """What sysfs does not show, and the operator or the calibration may give.

    :param chassis: server node by socket, for machines of several chassis under one kernel
    :param bandwidth_mbps: memory bandwidth capacity by NUMA node, MB/s
    :param read_bandwidth_mbps: measured bandwidth, MB/s, rows and columns as those of the topology; None: not measured
    """

    chassis: Mapping[int, int] = field(default_factory=dict)
    bandwidth_mbps: Mapping[int, int] = field(default_factory=dict)
    read_bandwidth_mbps: Matrix | None = None


@dataclass(frozen=True, slots=True)
class _Cpu:
    cpu: int
    node: int
    socket: int
    siblings: frozenset[int]
    l3: "_Cache | None"


@dataclass(frozen=True, slots=True)
class _Cache:
    id: int | None
    shared: frozenset[int]
    size_kb: int


def read_topology(sys: Path = Path("/sys")) -> HostTopology:
    """Read the processors and memory of this host; GPUs and RDT are added by others.

    :param sys: root of sysfs; tests relocate it
    :raises InvalidValueError: a file says something that the kernel never says, named by its path
    """
    online = _numbers(sys / "devices/system/cpu/online")
    node_of_cpu, offline = _cpus_by_node(sys, online)
    machine = [_read_cpu(sys, cpu, node_of_cpu.get(cpu, 0)) for cpu in sorted(online)]
    l3_ids = _l3_ids(machine)
    node_ids = sorted({*offline, *node_of_cpu.values()}) or [0]
    return HostTopology(
        sockets=tuple(Socket(socket) for socket in sorted({cpu.socket for cpu in machine})),
        nodes=tuple(
            _read_node(sys, node, machine, offline.get(node, frozenset())) for node in node_ids
        ),
        l3_domains=_l3_domains(machine, l3_ids),
        cores=_cores(machine, l3_ids),
        distances=_distances(sys, node_ids),
    )


def with_given(topology: HostTopology, given: Given) -> HostTopology:
    """Return the topology with what else is known of it."""
    return replace(
        topology,
        sockets=tuple(
            replace(socket, chassis=given.chassis.get(socket.id, 0)) for socket in topology.sockets
        ),
        nodes=tuple(
            replace(node, bandwidth_mbps=given.bandwidth_mbps.get(node.id))
            for node in topology.nodes
        ),
        read_bandwidth_mbps=given.read_bandwidth_mbps,
    )


def _cpus_by_node(
    sys: Path, online: frozenset[int]
) -> tuple[dict[int, int], dict[int, frozenset[int]]]:
    """Return (node of each CPU, offline CPUs of each node); both empty on a kernel without NUMA.

    ``cpulist`` holds online CPUs only; the ``cpuN`` links in the node's folder hold all of them.
    """
    node_of_cpu: dict[int, int] = {}
    offline: dict[int, frozenset[int]] = {}
    for folder in _numbered(sys / "devices/system/node", "node").items():
        node, path = folder
        linked = frozenset(_numbered(path, "cpu"))
        listed = _numbers(path / "cpulist")
        node_of_cpu.update(dict.fromkeys(listed & online, node))
        offline[node] = linked - online
    return node_of_cpu, offline


def _read_cpu(sys: Path, cpu: int, node: int) -> _Cpu:
    folder = sys / f"devices/system/cpu/cpu{cpu}"
    topology = folder / "topology"
    siblings = topology / "core_cpus_list"
    if not siblings.exists():  # the name before Linux 5.3
        siblings = topology / "thread_siblings_list"
    return _Cpu(
        cpu,
        node,
        # -1: the platform does not say (some virtual machines); one package then
        max(0, _integer(topology / "physical_package_id")),
        _sharing(siblings, cpu),
        _read_l3(folder, cpu),
    )


def _read_l3(cpu_folder: Path, cpu: int) -> _Cache | None:
    for index in _numbered(cpu_folder / "cache", "index").values():
        if _text(index / "level") != _L3:
            continue
        number = index / "id"
        size = index / "size"
        return _Cache(
            _integer(number) if number.exists() else None,
            _sharing(index / "shared_cpu_list", cpu),
            _size_kb(size) if size.exists() else 0,
        )
    return None


def _l3_ids(machine: list[_Cpu]) -> dict[frozenset[int], int]:
    """Number of each L3 by its CPUs: the kernel's id, or the order of the lowest CPU where it gives none."""
    caches = {cpu.l3.shared: cpu.l3 for cpu in machine if cpu.l3 is not None}
    ordered = sorted(caches, key=min)
    if all(caches[shared].id is not None for shared in ordered):
        return {shared: int(caches[shared].id or 0) for shared in ordered}
    return {shared: i for i, shared in enumerate(ordered)}


def _l3_domains(machine: list[_Cpu], l3_ids: Mapping[frozenset[int], int]) -> tuple[L3Domain, ...]:
    domains = []
    for shared, l3_id in l3_ids.items():
        members = [cpu for cpu in machine if cpu.l3 is not None and cpu.l3.shared == shared]
        sizes = {cpu.l3.size_kb for cpu in members if cpu.l3 is not None}
        nodes = tuple(sorted({cpu.node for cpu in members}))
        domains.append(L3Domain(l3_id, members[0].socket, nodes, max(sizes) or None))
    return tuple(sorted(domains, key=lambda domain: domain.id))


def _cores(machine: list[_Cpu], l3_ids: Mapping[frozenset[int], int]) -> tuple[Core, ...]:
    by_cpu = {cpu.cpu: cpu for cpu in machine}
    lowest = sorted({min(cpu.siblings & by_cpu.keys()) for cpu in machine})
    return tuple(
        Core(
            i,
            by_cpu[first].node,
            by_cpu[first].socket,
            None if (l3 := by_cpu[first].l3) is None else l3_ids[l3.shared],
            tuple(sorted(by_cpu[first].siblings & by_cpu.keys())),
        )
        for i, first in enumerate(lowest)
    )


def _read_node(sys: Path, node: int, machine: list[_Cpu], offline: frozenset[int]) -> NumaNode:
    folder = sys / f"devices/system/node/node{node}"
    sockets = {cpu.socket for cpu in machine if cpu.node == node}
    return NumaNode(
        node,
        sockets.pop() if len(sockets) == 1 else None,
        _memory_mb(folder / "meminfo"),
        _huge_pages(folder / "hugepages"),
        offline_cpus=tuple(sorted(offline)),
    )


def _memory_mb(meminfo: Path) -> int | None:
    if not meminfo.exists():
        return None
    match = re.search(r"MemTotal:\s+([0-9]{1,18}) kB", _text(meminfo))
    if match is None:
        raise InvalidValueError(str(meminfo), _text(meminfo)[:40], "a line 'MemTotal: N kB'")
    return int(match[1]) // 1024


def _huge_pages(folder: Path) -> tuple[HugePages, ...]:
    pools = []
    for path in sorted(folder.glob("hugepages-*kB")):
        size_kb = int(path.name.removeprefix("hugepages-").removesuffix("kB"))
        pools.append(HugePages(size_kb, _integer(path / "nr_hugepages")))
    return tuple(sorted(pools, key=lambda pool: pool.size_kb))


def _distances(sys: Path, node_ids: list[int]) -> tuple[tuple[int, ...], ...]:
    """SLIT; a row has one number per online node, in order of node number."""
    paths = [sys / f"devices/system/node/node{node}/distance" for node in node_ids]
    if not all(path.exists() for path in paths):
        return ()
    return tuple(tuple(_whole(path, word) for word in _text(path).split()) for path in paths)


def _numbered(folder: Path, prefix: str) -> dict[int, Path]:
    """Entries such as ``node0``, ``node1`` of a folder, by number, ascending; empty when the folder is not there."""
    if not folder.is_dir():
        return {}
    names = {path.name.removeprefix(prefix): path for path in folder.glob(f"{prefix}[0-9]*")}
    return {int(name): names[name] for name in sorted(filter(str.isdecimal, names), key=int)}


def _numbers(path: Path) -> frozenset[int]:
    try:
        return cpus.parse(_text(path))
    except InvalidValueError as error:
        raise InvalidValueError(str(path), error.value, error.allowed) from None


def _sharing(path: Path, cpu: int) -> frozenset[int]:
    """Return the CPUs that share something with one, itself included."""
    numbers = _numbers(path)
    if cpu not in numbers:
        raise InvalidValueError(str(path), cpus.text(numbers), f"a list with CPU {cpu}")
    return numbers


def _integer(path: Path) -> int:
    return _whole(path, _text(path))


def _whole(path: Path, text: str) -> int:
    if re.fullmatch(r"-?[0-9]{1,18}", text) is None:
        raise InvalidValueError(str(path), text, "an integer")
    return int(text)


def _size_kb(path: Path) -> int:
    match = re.fullmatch(r"([0-9]{1,18})([KM]?)", _text(path))
    if match is None:
        raise InvalidValueError(str(path), _text(path), "a size such as 16384K")
    return int(match[1]) * {"K": 1, "M": 1024, "": 0}[match[2]]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise InvalidValueError(str(path), error.strerror, "a readable file of sysfs") from error
    except UnicodeDecodeError as error:
        raise InvalidValueError(str(path), str(error), "a text") from error
