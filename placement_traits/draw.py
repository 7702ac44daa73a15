# SPDX-License-Identifier: Apache-2.0
"""A host drawn as text, in the manner of ``numactl --hardware`` and ``lstopo``."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from placement_traits.topology import Core, Gpu, HostTopology, NumaNode, Socket


def draw_text(topology: HostTopology, title: str = "") -> str:
    """Draw a host as lines of text.

    :param topology: a discovered host, a preset, or what was read back from Placement (then without cores)
    :param title: the host's name
    """
    lines = [
        _summary(topology, title),
        *_levels(topology),
        *_distances(topology),
        *_gpu_links(topology),
        *_rdt(topology),
    ]
    return "\n".join(lines) + "\n"


def _summary(topology: HostTopology, title: str) -> str:
    cpus = len(topology.cpus)
    parts = [
        _count(len(topology.chassis_ids), "chassis", "chassis"),
        _count(len(topology.sockets), "socket"),
        _count(len(topology.nodes), "NUMA node"),
        _count(len(topology.l3_domains), "L3 domain"),
        *([_count(len(topology.cores), "core"), _count(cpus, "CPU")] if cpus else []),
        *([_count(len(topology.gpus), "GPU")] if topology.gpus else []),
    ]
    return (f"{title}: " if title else "") + ", ".join(parts)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _levels(topology: HostTopology) -> Iterator[str]:
    for chassis in topology.chassis_ids:
        yield f"chassis {chassis}"
        for socket in topology.sockets:
            if socket.chassis == chassis:
                yield from _socket(topology, socket)
    for node in topology.nodes:
        if node.socket is None:
            yield from _node(topology, node, "  ")
    for gpu in topology.gpus:
        if gpu.node is None:
            yield f"  {_gpu(gpu)}, node unknown"


def _socket(topology: HostTopology, socket: Socket) -> Iterator[str]:
    yield f"  socket {socket.id}"
    for node in topology.nodes_of_socket(socket.id):
        yield from _node(topology, node, "    ")


def _node(topology: HostTopology, node: NumaNode, indent: str) -> Iterator[str]:
    facts = [f"node {node.id}"]
    if node.memory_mb is not None:
        facts.append(f"{node.memory_mb} MB")
    if node.bandwidth_mbps is not None:
        facts.append(f"{node.bandwidth_mbps} MB/s")
    facts += [f"{p.total} huge pages of {size_text(p.size_kb)}" for p in node.huge_pages if p.total]
    if node.offline_cpus:
        facts.append(f"offline CPUs {numbers_text(node.offline_cpus)}")
    yield indent + ", ".join(facts)
    for domain in topology.l3_of_node(node.id):
        parts = [f"L3 {domain.id}"]
        if domain.size_kb:
            parts.append(size_text(domain.size_kb))
        others = [str(n) for n in domain.nodes if n != node.id]
        if others:
            parts.append(f"shared with node {', '.join(others)}")
        cores = [c for c in topology.cores_of_node(node.id) if c.l3 == domain.id]
        yield f"{indent}  {', '.join(parts)}{_cores(cores)}"
    bare = [core for core in topology.cores_of_node(node.id) if core.l3 is None]
    if bare:
        yield f"{indent}  no L3{_cores(bare)}"
    for gpu in topology.gpus_of_node(node.id):
        yield f"{indent}  {_gpu(gpu)}"


def _cores(cores: Sequence[Core]) -> str:
    if not cores:
        return ""
    ids, cpus = [core.id for core in cores], [cpu for core in cores for cpu in core.cpus]
    return f": cores {numbers_text(ids)}, {f'CPUs {numbers_text(cpus)}' if cpus else 'all offline'}"


def _gpu(gpu: Gpu) -> str:
    parts = [f"GPU {gpu.address}"]
    if gpu.product:
        parts.append(gpu.product)
    if gpu.switch is not None:
        parts.append(f"switch {gpu.switch}")
    return ", ".join(parts)


def _distances(topology: HostTopology) -> Iterator[str]:
    for name, matrix in (
        ("distance (SLIT)", topology.distances),
        ("latency, ns (measured)", topology.latency_ns),
        ("read bandwidth, MB/s (measured)", topology.read_bandwidth_mbps),
    ):
        if not matrix:
            continue
        cells = [
            ["node", *map(str, topology.node_ids)],
            *(
                [f"{node}:", *map(str, row)]
                for node, row in zip(topology.node_ids, matrix, strict=True)
            ),
        ]
        yield name
        yield from _table(cells)


def _gpu_links(topology: HostTopology) -> Iterator[str]:
    if len(topology.gpus) < 2:
        return
    yield "GPU links (classes of nvidia-smi topo -m)"
    numbers = range(len(topology.gpus))
    cells = [["", *(f"GPU{i}" for i in numbers)]]
    for i, a in enumerate(topology.gpus):
        row = [
            "X" if a is b else topology.gpu_link(a.address, b.address).value for b in topology.gpus
        ]
        cells.append([f"GPU{i} {a.address}", *row])
    yield from _table(cells)


def _table(cells: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  " + " ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _rdt(topology: HostTopology) -> Iterator[str]:
    rdt = topology.rdt
    if rdt is None:
        return
    parts = [f"{rdt.num_closids} classes of service"]
    if rdt.cat is not None:
        parts.append(
            f"L3 allocation of {rdt.cat.cbm_len} ways, {rdt.cat.shareable_ways} shareable"
            + (", code and data apart" if rdt.cat.cdp else "")
        )
    if rdt.mba is not None:
        parts.append(
            f"bandwidth throttling from {rdt.mba.min_bandwidth} in steps of {rdt.mba.bandwidth_gran}"
        )
    if rdt.monitoring is not None:
        parts.append(f"monitoring with {rdt.monitoring.num_rmids} ids")
    yield f"RDT: {'; '.join(parts)}"


def size_text(size_kb: int) -> str:
    """Return a size in the largest unit that leaves no fraction: ``2 MB``, ``17920 KB``."""
    for unit, kb in (("GB", 1024**2), ("MB", 1024)):
        if size_kb % kb == 0 and size_kb >= kb:
            return f"{size_kb // kb} {unit}"
    return f"{size_kb} KB"


def numbers_text(numbers: Iterable[int]) -> str:
    """Return numbers as the kernel lists them: ``0-3,8``."""
    runs = []
    for _, group in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        runs.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(runs)
