# SPDX-License-Identifier: Apache-2.0
"""A host drawn as SVG: boxes in boxes for chassis, sockets and nodes, bars for L3 domains, arcs for GPU links.

Every box knows its size before its place: :func:`_grid` works from the inside out, :func:`_place` from the outside in.
An L3 domain that serves several nodes is a bar of the same colour in each of them. Distances are a heat map.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from math import ceil, log, sqrt
from typing import Final

from placement_traits.draw import numbers_text, size_text
from placement_traits.names import GpuLink
from placement_traits.topology import Core, Gpu, HostTopology, L3Domain, NumaNode

_PAD: Final = 8
_GAP: Final = 10
_LINE: Final = 16  # height of a line of text
_CORE_W: Final = 46
_CORE_H: Final = 30
_CORES_PER_ROW: Final = 8
_GPU_W: Final = 104
_GPU_H: Final = 34
_CELL: Final = 30
_SCREEN: Final = 1.5  # width to height
_LOCAL: Final = 10  # SLIT
_UNREACHABLE: Final = 255  # SLIT

_FONT: Final = "font-family='DejaVu Sans,Helvetica,Arial,sans-serif'"
_CHASSIS: Final = "#f4f5f7"
_SOCKET: Final = "#e3e9f2"
_NODE: Final = "#ffffff"
_STROKE: Final = "#5b6b80"
_CORE_FILL: Final = "#dfe7d8"
_GPU_FILL: Final = "#d9c9ec"
# L3 domains take these in turn; neighbours differ.
_L3_FILLS: Final = ("#f6d8a8", "#f2c1b0", "#cfe3f0", "#d5e8c5", "#ecd3e6", "#efe3a4")
_LINK_COLOURS: Final[Mapping[str, str]] = {
    "NV": "#3f8f3f",
    "PIX": "#2b6cb0",
    "PXB": "#6b46c1",
    "PHB": "#b7791f",
}


@dataclass(frozen=True, slots=True)
class _Box:
    """A drawn rectangle with what is inside; children are placed relative to it."""

    label: str
    fill: str
    width: float
    height: float
    inside: tuple[tuple[float, float, "_Box"], ...] = ()
    bold: bool = False
    gpu: str = ""  # PCI address, where links end


def draw_svg(topology: HostTopology, title: str = "") -> str:
    """Draw a host as one SVG document.

    :param topology: a discovered host, a preset, or what was read back from Placement (then without cores)
    :param title: the host's name
    """
    boxes = [_chassis(topology, chassis) for chassis in topology.chassis_ids] + _homeless(topology)
    machine = _best_grid(title or "host", "none", boxes, bold=True)
    ends = dict(_gpu_centres(machine, 0.0, 0.0))
    edges = _drawn_links(topology)
    arcs_height = _arcs_height(edges, ends, machine.height)
    parts = [*_place(machine, 0.0, 0.0), *_arcs(edges, ends)]
    below = machine.height + arcs_height
    legend, legend_height = _legend(edges, below)
    matrix, width, height = _heat_map(topology, below + legend_height)
    parts += [*legend, *matrix]
    total_w = max(machine.width, width, 320) + _PAD
    total_h = below + legend_height + height + _PAD
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{total_w:.0f}' height='{total_h:.0f}' "
        f"viewBox='0 0 {total_w:.0f} {total_h:.0f}'>\n"
        f"<rect width='100%' height='100%' fill='#ffffff'/>\n" + "\n".join(parts) + "\n</svg>\n"
    )


# Boxes, from the inside out ------------------------------------------------------------------------------------------


def _grid(label: str, fill: str, boxes: list[_Box], columns: int, bold: bool = False) -> _Box:
    """Put boxes into rows of ``columns`` below a label; columns are as wide as their widest box."""
    top = _PAD + _LINE if label else 0
    side = _PAD if label else 0
    rows = [boxes[i : i + columns] for i in range(0, len(boxes), columns)]
    widths = [
        max(row[i].width for row in rows if i < len(row)) for i in range(min(columns, len(boxes)))
    ]
    inside = []
    y: float = top
    for row in rows:
        x: float = side
        for box, width in zip(row, widths, strict=False):
            inside.append((x, y, box))
            x += width + _GAP
        y += max(box.height for box in row) + _GAP
    width = max(sum(widths) + _GAP * (len(widths) - 1), len(label) * 6.6) + 2 * side
    return _Box(label, fill, width, (y - _GAP if rows else y) + side, tuple(inside), bold)


def _best_grid(label: str, fill: str, boxes: list[_Box], bold: bool = False) -> _Box:
    """Put boxes into as many columns as bring the whole nearest to the shape of a screen."""
    grids = [_grid(label, fill, boxes, columns, bold) for columns in range(1, len(boxes) + 1)]
    return min(grids, key=lambda grid: abs(log(grid.width / grid.height / _SCREEN)))


def _chassis(topology: HostTopology, chassis: int) -> _Box:
    sockets = []
    for socket in topology.sockets:
        if socket.chassis == chassis:
            nodes = [_node(topology, node) for node in topology.nodes_of_socket(socket.id)]
            sockets.append(_grid(f"socket {socket.id}", _SOCKET, nodes, 2))
    if _drawn_links(topology):  # arcs need all GPUs on one line
        return _grid(f"chassis {chassis}", _CHASSIS, sockets, len(sockets))
    return _best_grid(f"chassis {chassis}", _CHASSIS, sockets)


def _homeless(topology: HostTopology) -> list[_Box]:
    """Nodes without a socket and GPUs without a node."""
    nodes = [_node(topology, node) for node in topology.nodes if node.socket is None]
    gpus = [_gpu(gpu) for gpu in topology.gpus if gpu.node is None]
    boxes = []
    if nodes:
        boxes.append(_grid("nodes of no single socket", _CHASSIS, nodes, 2))
    if gpus:
        boxes.append(_grid("GPUs of unknown node", _CHASSIS, gpus, 4))
    return boxes


def _node(topology: HostTopology, node: NumaNode) -> _Box:
    label = [f"node {node.id}"]
    if node.memory_mb is not None:
        label.append(f"{node.memory_mb / 1024:.4g} GB")
    if node.bandwidth_mbps is not None:
        label.append(f"{node.bandwidth_mbps / 1000:.4g} GB/s")
    cores = topology.cores_of_node(node.id)
    inside = [
        _l3(domain, node, [core for core in cores if core.l3 == domain.id])
        for domain in topology.l3_of_node(node.id)
    ]
    bare = [_core(core) for core in cores if core.l3 is None]
    if bare:
        inside.append(_grid("no L3", "#eeeeee", bare, _CORES_PER_ROW))
    # POWER has an L3 region per core: a square of them rather than a tower.
    columns = ceil(sqrt(len(inside) * 2)) if len(inside) > 4 else 1
    gpus = topology.gpus_of_node(node.id)
    if gpus:
        row = _grid("", "none", [_gpu(gpu) for gpu in gpus], 4)
        caches = _grid("", "none", inside, columns)
        return _grid(", ".join(label), _NODE, [caches, row] if inside else [row], 1)
    return _grid(", ".join(label), _NODE, inside, columns)


def _l3(domain: L3Domain, node: NumaNode, cores: list[Core]) -> _Box:
    parts = [f"L3 {domain.id}"]
    if domain.size_kb:
        parts.append(size_text(domain.size_kb))
    others = [n for n in domain.nodes if n != node.id]
    if others:
        parts.append(f"with node {numbers_text(others)}")
    fill = _L3_FILLS[domain.id % len(_L3_FILLS)]
    return _grid(", ".join(parts), fill, [_core(core) for core in cores], _CORES_PER_ROW)


def _core(core: Core) -> _Box:
    cpus = [str(cpu) for cpu in core.cpus]
    label = (",".join(cpus) if len(cpus) <= 2 else numbers_text(core.cpus)) or "offline"
    return _Box(label, _CORE_FILL, _CORE_W, _CORE_H)


def _gpu(gpu: Gpu) -> _Box:
    label = gpu.address if gpu.switch is None else f"{gpu.address} sw{gpu.switch}"
    return _Box(label, _GPU_FILL, max(_GPU_W, len(label) * 6.6 + 8), _GPU_H, gpu=gpu.address)


# Boxes, from the outside in ------------------------------------------------------------------------------------------


def _place(box: _Box, x: float, y: float) -> Iterator[str]:
    if box.fill != "none":
        yield (
            f"<rect x='{x:.1f}' y='{y:.1f}' width='{box.width:.1f}' height='{box.height:.1f}' rx='3' "
            f"fill='{box.fill}' stroke='{_STROKE}' stroke-width='0.8'/>"
        )
    if box.label:
        yield _label(box, x, y)
    for dx, dy, child in box.inside:
        yield from _place(child, x + dx, y + dy)


def _label(box: _Box, x: float, y: float) -> str:
    if box.inside or box.height > _GPU_H:
        return _text(x + _PAD, y + _PAD + 6, box.label, 13 if box.bold else 11, bold=box.bold)
    return _text(x + box.width / 2, y + box.height / 2 + 4, box.label, 10, anchor="middle")


def _text(
    x: float, y: float, text: str, size: int, *, anchor: str = "start", bold: bool = False
) -> str:
    weight = " font-weight='bold'" if bold else ""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' {_FONT} text-anchor='{anchor}'{weight} "
        f"fill='#1f2933'>{escape(text)}</text>"
    )


# GPU links -----------------------------------------------------------------------------------------------------------


def _gpu_centres(box: _Box, x: float, y: float) -> Iterator[tuple[str, tuple[float, float]]]:
    """Lower middle of each GPU's box."""
    if box.gpu:
        yield box.gpu, (x + box.width / 2, y + box.height)
    for dx, dy, child in box.inside:
        yield from _gpu_centres(child, x + dx, y + dy)


def _drawn_links(topology: HostTopology) -> list[tuple[str, str, GpuLink]]:
    """Every pair that has more than a path through the memory of both nodes."""
    links: list[tuple[str, str, GpuLink]] = []
    for i, a in enumerate(topology.gpus):
        for b in topology.gpus[i + 1 :]:
            link = topology.gpu_link(a.address, b.address)
            if link not in (GpuLink.NODE, GpuLink.SYS):
                links.append((a.address, b.address, link))
    return links


def _depth(start: tuple[float, float], end: tuple[float, float]) -> float:
    """How far an arc hangs below its ends; longer ones hang deeper, so that they do not cover each other."""
    return 18 + 0.16 * abs(end[0] - start[0]) + abs(end[1] - start[1]) * 0.5


def _arcs_height(
    edges: Iterable[tuple[str, str, GpuLink]],
    ends: Mapping[str, tuple[float, float]],
    bottom: float,
) -> float:
    """How far the lowest arc hangs below ``bottom``; a Bézier curve reaches three quarters of its control points."""
    lowest = max(
        (max(ends[a][1], ends[b][1]) + 0.75 * _depth(ends[a], ends[b]) for a, b, _ in edges),
        default=0.0,
    )
    return max(0.0, lowest - bottom) + _PAD if lowest else 0.0


def _arcs(
    edges: Iterable[tuple[str, str, GpuLink]], ends: Mapping[str, tuple[float, float]]
) -> Iterator[str]:
    for a, b, link in edges:
        (x1, y1), (x2, y2) = ends[a], ends[b]
        low = max(y1, y2) + _depth(ends[a], ends[b])
        yield (
            f"<path d='M{x1:.1f},{y1:.1f} C{x1:.1f},{low:.1f} {x2:.1f},{low:.1f} {x2:.1f},{y2:.1f}' "
            f"fill='none' stroke='{_colour(link)}' stroke-width='{_width(link)}'>"
            f"<title>{a} {link} {b}</title></path>"
        )


def _colour(link: GpuLink) -> str:
    return _LINK_COLOURS["NV" if link.startswith("NV") else link.value]


def _width(link: GpuLink) -> float:
    """NVLinks are as thick as they are many."""
    return min(1.2 + 0.6 * int(link.removeprefix("NV")), 4.0) if link.startswith("NV") else 1.2


def _legend(edges: Iterable[tuple[str, str, GpuLink]], top: float) -> tuple[list[str], float]:
    kinds = sorted({link for _, _, link in edges}, key=list(GpuLink).index)
    parts, x = [], float(_PAD)
    for link in kinds:
        parts.append(
            f"<line x1='{x:.1f}' y1='{top + 10:.1f}' x2='{x + 24:.1f}' y2='{top + 10:.1f}' "
            f"stroke='{_colour(link)}' stroke-width='{_width(link)}'/>"
        )
        parts.append(_text(x + 30, top + 14, link.value, 11))
        x += 80
    return parts, 26.0 if kinds else 0.0


# Distances -----------------------------------------------------------------------------------------------------------


def _heat_map(topology: HostTopology, top: float) -> tuple[list[str], float, float]:
    """Draw the SLIT; returns (elements, width, height)."""
    rows = topology.distances
    if not rows:
        return [], 0.0, 0.0
    parts = [_text(_PAD, top + 18, "distance (SLIT), row = node of the CPU", 11)]
    left, first = _PAD + 28.0, top + 44.0
    for i, node in enumerate(topology.node_ids):
        parts.append(_text(left + (i + 0.5) * _CELL, first - 6, str(node), 10, anchor="middle"))
        parts.append(_text(left - 6, first + (i + 0.5) * _CELL + 4, str(node), 10, anchor="end"))
        for j, value in enumerate(rows[i]):
            x, y = left + j * _CELL, first + i * _CELL
            parts.append(
                f"<rect x='{x:.1f}' y='{y:.1f}' width='{_CELL}' height='{_CELL}' "
                f"fill='{_shade(value)}' stroke='#ffffff'/>"
            )
            parts.append(_text(x + _CELL / 2, y + _CELL / 2 + 4, str(value), 10, anchor="middle"))
    size = len(rows) * _CELL
    return parts, left + size + _PAD, 44.0 + size + _PAD


def _shade(distance: int) -> str:
    """From pale green (local) to red (the largest distance of a SLIT), by the logarithm: one scale for all machines."""
    share = min(log(max(distance, _LOCAL) / _LOCAL) / log(_UNREACHABLE / _LOCAL), 1.0)
    near, far = (214, 236, 208), (236, 120, 100)
    return "#" + "".join(
        f"{round(a + (b - a) * share):02x}" for a, b in zip(near, far, strict=True)
    )
