# SPDX-License-Identifier: Apache-2.0
"""The GPU machines of Amaral 2019, and fleets of them.

``minsky`` is IBM's POWER8 S822LC: two sockets with two GPUs each, joined by two NVLinks. ``dgx1`` is NVIDIA's
DGX-1: a hybrid cube mesh of 16 NVLinks (12 cube edges and the diagonals of two faces), two GPUs per PCIe switch,
four per socket.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final

from nova_numa_ext.policy.gpu.graph import GpuGraph, from_topology
from placement_traits.errors import InvalidValueError
from placement_traits.names import GpuLink
from placement_traits.topology import Gpu, GpuEdge, HostTopology, NumaNode, Socket

_DGX1_LINKS: Final = (
    *("0-1", "0-2", "0-3", "1-2", "1-3", "2-3"),  # first quad, its two diagonals included
    *("4-5", "4-6", "4-7", "5-6", "5-7", "6-7"),  # second quad
    *("0-4", "1-5", "2-6", "3-7"),  # between them
)


def minsky() -> HostTopology:
    """Return the topology of a POWER8 S822LC with four P100."""
    return _machine([None, None, None, None], ["0-1", "2-3"], GpuLink.NV2)


def dgx1() -> HostTopology:
    """Return the topology of a DGX-1 with eight GPUs."""
    return _machine([0, 0, 1, 1, 2, 2, 3, 3], _DGX1_LINKS, GpuLink.NV1)


def cube16() -> HostTopology:
    """Return the topology of a host with sixteen GPUs on four PCIe switches, linked as a hypercube (assumed)."""
    links = [f"{a}-{a | bit}" for a in range(16) for bit in (1, 2, 4, 8) if not a & bit]
    return _machine([number // 4 for number in range(16)], links, GpuLink.NV1)


def _machine(switches: list[int | None], links: Sequence[str], link: GpuLink) -> HostTopology:
    """Two sockets of one node each; the first half of the GPUs on socket 0."""
    addresses = [
        f"{node:04x}:{slot + 1:02x}:00.0" for node in (0, 1) for slot in range(len(switches) // 2)
    ]
    gpus = tuple(
        Gpu(address, node=number // (len(switches) // 2), switch=switch)
        for number, (address, switch) in enumerate(zip(addresses, switches, strict=True))
    )
    ends = [tuple(map(int, pair.split("-"))) for pair in links]
    return HostTopology(
        sockets=(Socket(0), Socket(1)),
        nodes=(NumaNode(0, socket=0), NumaNode(1, socket=1)),
        distances=((10, 40), (40, 10)),
        gpus=gpus,
        gpu_links=tuple(GpuEdge(addresses[a], addresses[b], link) for a, b in ends),
    )


MACHINES: Final[Mapping[str, Callable[[], HostTopology]]] = {
    "minsky": minsky,
    "dgx1": dgx1,
    "cube16": cube16,
}


@cache
def graph(machine: str) -> GpuGraph:
    """Return the GPU graph of a machine type, one object per type.

    :raises InvalidValueError: for a type that is not in :data:`MACHINES`
    """
    if machine not in MACHINES:
        raise InvalidValueError("machine", machine, ", ".join(MACHINES))
    return from_topology(MACHINES[machine]())


def fleet(text: str) -> tuple[GpuGraph, ...]:
    """Return one graph per machine for a text like ``minsky:5`` or ``minsky:800,dgx1:200``.

    :raises InvalidValueError: for an unknown type or a count that is not a number > 0
    """
    graphs: list[GpuGraph] = []
    for item in text.split(","):
        kind, _, count = item.strip().partition(":")
        if not count.isdecimal() or int(count) == 0:
            raise InvalidValueError("fleet", item, "TYPE:COUNT, such as minsky:5")
        graphs += [graph(kind)] * int(count)
    return tuple(graphs)
