# SPDX-License-Identifier: Apache-2.0
"""This host's complete topology: sysfs, PCI, NVML and resctrl put together."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from host_agent.machine.rdt.reader import ResctrlReader
from host_agent.observe.topology.nvidia import Links, parse_topo_matrix, read_nvml, with_links
from host_agent.observe.topology.pci import read_gpus
from host_agent.observe.topology.rdt import read_rdt
from host_agent.observe.topology.sysfs import Given, read_topology, with_given
from placement_traits.errors import InvalidValueError
from placement_traits.topology import HostTopology

_NVIDIA: Final = "10de:"


def discover(
    sys: Path = Path("/sys"),
    resctrl: ResctrlReader | None = None,
    given: Callable[[HostTopology], Given] = lambda _seen: Given(),
    gpu_products: Iterable[str] = (),
    gpu_matrix: Path | None = None,
    *,
    complete: Callable[[HostTopology], HostTopology] = lambda seen: seen,
) -> HostTopology:
    """Read everything about this host.

    :param sys: root of sysfs
    :param resctrl: the resctrl tree; default the kernel's
    :param given: returns what only the operator knows of a machine: chassis of sockets, bandwidth of nodes
    :param gpu_products: ``vendor:product`` of devices to take as GPUs beside PCI display controllers
    :param gpu_matrix: recorded ``nvidia-smi topo -m``; without one NVML is asked where there are NVIDIA GPUs
    :param complete: adds what is known of CPUs that are offline
    :raises InvalidValueError: a file says something that the kernel never says, named by its path
    """
    seen = complete(read_topology(sys))
    gpus, edges = read_gpus(sys, gpu_products)
    links: Links = {}
    if gpu_matrix is not None:
        addresses = [gpu.address for gpu in gpus]
        links = parse_topo_matrix(_text(gpu_matrix), addresses, str(gpu_matrix))
    elif any((gpu.product or "").startswith(_NVIDIA) for gpu in gpus):
        links = read_nvml()
    return dataclasses.replace(
        with_given(seen, given(seen)),
        gpus=gpus,
        gpu_links=with_links(gpus, edges, links),
        rdt=read_rdt(resctrl or ResctrlReader()),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError("GPU matrix", str(path), f"a readable file ({error})") from error
