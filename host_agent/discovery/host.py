# SPDX-License-Identifier: Apache-2.0
"""This host's complete topology: sysfs, PCI and resctrl put together."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from host_agent.discovery.pci import read_gpus
from host_agent.discovery.rdt import read_rdt
from host_agent.discovery.sysfs import Given, read_topology
from host_agent.rdt.resctrl import Resctrl
from placement_traits.topology import HostTopology


def discover(
    sys: Path = Path("/sys"),
    resctrl: Resctrl | None = None,
    given: Given | None = None,
    gpu_products: Iterable[str] = (),
) -> HostTopology:
    """Read everything about this host.

    :param sys: root of sysfs
    :param resctrl: the resctrl tree; default the kernel's
    :param given: what only the operator knows: chassis of sockets, bandwidth of nodes
    :param gpu_products: ``vendor:product`` of devices to take as GPUs beside PCI display controllers
    :raises InvalidValueError: a file says something that the kernel never says, named by its path
    """
    gpus, links = read_gpus(sys, gpu_products)
    return dataclasses.replace(
        read_topology(sys, given),
        gpus=gpus,
        gpu_links=links,
        rdt=read_rdt(resctrl or Resctrl()),
    )
