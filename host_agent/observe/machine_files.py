# SPDX-License-Identifier: Apache-2.0
"""What the kernel's files show of the machine: its topology, free memory, and where devices are."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from host_agent.observe.topology.pci import numa_node
from placement_traits.errors import InvalidValueError
from placement_traits.topology import HostTopology

_LOG: Final = logging.getLogger(__name__)


class MachineFiles:
    """Reads them; the topology, which is expensive, only when it is time or may have changed.

    :param discover: reads the topology
    :param node_root: ``/sys/devices/system/node``
    :param device_root: ``/sys/bus/pci/devices``
    :param online_cpus: ``/sys/devices/system/cpu/online``
    """

    def __init__(
        self,
        discover: Callable[[], HostTopology],
        node_root: Path,
        device_root: Path = Path("/sys/bus/pci/devices"),
        online_cpus: Path = Path("/sys/devices/system/cpu/online"),
    ) -> None:
        self._discover = discover
        self._node_root = node_root
        self._device_root = device_root
        self._online_cpus = online_cpus
        self._online = ""
        self._topology: HostTopology | None = None

    def topology(self, *, full: bool) -> HostTopology:
        """Read the topology when it is time or a CPU came or went: nova wakes CPUs right before a server starts."""
        online = self._read_online()
        if self._topology is not None and not full and online == self._online:
            return self._topology
        try:
            found = self._discover()
        except InvalidValueError:
            if self._topology is None or self._read_online() == online:
                raise
            return self._topology  # a CPU went while its files were read: again in the next round
        self._online, self._topology = online, found
        return found

    def free_mb(self, node: int) -> int:
        """Free memory of a node, with the page cache that the kernel gives up easily."""
        try:
            text = (self._node_root / f"node{node}" / "meminfo").read_text()
        except OSError as error:
            _LOG.debug("node %s: %s", node, error)
            return 0
        kib = {}
        for line in text.splitlines():
            words = line.split()
            if len(words) >= 4:
                kib[words[2].rstrip(":")] = int(words[3])
        return (kib.get("MemFree", 0) + kib.get("Inactive(file)", 0)) // 1024

    def node_of(self, device: str) -> int | None:
        """Return the NUMA node that a PCI device is at, by its address; None: the kernel does not know."""
        return numa_node(self._device_root / device)

    def _read_online(self) -> str:
        try:
            return self._online_cpus.read_text()
        except OSError as error:
            _LOG.debug("CPUs that are online: %s", error)
            return ""
