# SPDX-License-Identifier: Apache-2.0
"""The shapes in which the scheduler sees one host: data only, so that pure decisions can be made on them.

:mod:`placement_traits.view` fills them from Placement; :mod:`placement_traits.fleet_arrays` holds those of all hosts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from placement_traits import names
from placement_traits.names import GpuLink, NeighbourTrait


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of one resource a provider offers.

    :param capacity: what may be allocated in all: (total - reserved) x allocation ratio
    :param used: what is allocated
    """

    capacity: int
    used: int

    @property
    def free(self) -> int:
        """What is left; negative when capacity shrank below what is allocated."""
        return self.capacity - self.used


@dataclass(frozen=True, slots=True)
class RdtView:
    """The provider of host-wide RDT resources.

    :param uuid: its provider
    :param clos: classes of service that may be given to LC servers; None without an inventory
    """

    uuid: str
    clos: Amount | None


@dataclass(frozen=True, slots=True)
class L3View:
    """The provider of one L3 domain.

    :param uuid: its provider
    :param l3_id: the kernel's cache id
    :param nodes: NUMA nodes with a CPU in the domain, ascending
    :param socket: package
    :param chassis: server node
    :param ways: ways for LC servers; None without an inventory (no cache allocation)
    :param bandwidth_mbps: memory bandwidth, MB/s; None without an inventory (capacity unknown)
    :param neighbours: what runs in the domain now
    :param neighbourhood: units of the cache neighbourhood; None without an inventory (an older agent)
    :param cpus: its CPUs as ranges, first and last; empty where its nodes have no other domain, and where the host's
        agent does not publish them
    """

    uuid: str
    l3_id: int
    nodes: tuple[int, ...]
    socket: int
    chassis: int
    ways: Amount | None
    bandwidth_mbps: Amount | None
    neighbours: frozenset[NeighbourTrait]
    neighbourhood: Amount | None = None
    cpus: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class GpuView:
    """A provider that locates one GPU: ours, or a device's own provider with such traits.

    :param uuid: its provider
    :param address: PCI address, by which it belongs to a :class:`DeviceView`
    :param node: NUMA node; None when firmware does not report it
    :param switch: number of the PCI switch; None when it has none
    :param links: nominal link to each other GPU of the host that has a listed link, by address
    """

    uuid: str
    address: str
    node: int | None
    switch: int | None
    links: Mapping[str, GpuLink]


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A provider that nova (or the operator) makes for a device and from which servers allocate.

    :param uuid: its provider
    :param address: PCI address that its name contains, else the name without the host's
    :param amount: its one inventory when the whole tree was last read; allocations from it alone cause no new reading
    :param resource_class: of that inventory; empty without one
    """

    uuid: str
    address: str
    amount: Amount
    resource_class: str = ""


@dataclass(frozen=True, slots=True)
class HostView:
    """Our part of one compute node's provider tree.

    :param root_uuid: nova's root provider, equal to ``HostState.uuid``
    :param name: the root's name
    :param traits: our traits of the root (RDT capability, shape, packing strategy, tiers), and
        :data:`~placement_traits.names.SILENT`
    :param rdt: host-wide RDT resources; None when the host has none
    :param l3: L3 domains, ascending by id
    :param gpus: GPUs and other devices whose place is published, ascending by address
    :param devices: providers of devices below the root, ascending by address
    """

    root_uuid: str
    name: str
    traits: frozenset[str]
    rdt: RdtView | None
    l3: tuple[L3View, ...]
    gpus: tuple[GpuView, ...] = ()
    devices: tuple[DeviceView, ...] = ()

    @property
    def silent(self) -> bool:
        """The host's tiers are offered, but its agent has not beaten for a long time."""
        return names.SILENT in self.traits
