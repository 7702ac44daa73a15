# SPDX-License-Identifier: Apache-2.0
"""Nova's objects as the plain data that ``policy/`` decides on."""

import copy
import functools
import operator
from collections import Counter
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from nova import exception, objects
from nova.objects import fields
from nova.pci.stats import PciDeviceStats
from nova.virt import hardware

from nova_numa_ext.policy.numa.candidates import Candidate
from nova_numa_ext.policy.numa.cells import (
    AllocationRatios,
    CpuPolicy,
    GuestCell,
    HostCell,
    PagePool,
    ThreadPolicy,
)
from placement_traits import names
from placement_traits.guest_topology import IMAGE_PROPERTIES
from placement_traits.workload_request import L3Amount

_OF_ONE_DEVICE: Final = frozenset({"rp_uuid", "devices", "address"})
_OF_ONE_POOL: Final = _OF_ONE_DEVICE | {"count", "numa_node", "card_serial_number"}
_WAY: Final = names.LLC_WAY
_BANDWIDTH: Final = names.MEMORY_BANDWIDTH_MBPS
_NEIGHBOURHOOD: Final = names.LLC_NEIGHBOURHOOD


def image_traits(spec: Any) -> frozenset[str]:
    """Traits that the image of a RequestSpec requires."""
    image = spec.image if "image" in spec else None
    properties = image.properties if image is not None and "properties" in image else None
    required = (
        properties.traits_required
        if properties is not None and "traits_required" in properties
        else None
    )
    return frozenset(required or ())


def image_properties(spec: Any) -> dict[str, str]:
    """Properties of the image of a RequestSpec that a guest's NUMA topology depends on."""
    image = spec.image if "image" in spec else None
    if image is None or "properties" not in image:
        return {}
    found = ((name, image.properties.get(name)) for name in IMAGE_PROPERTIES)
    return {name: str(value) for name, value in found if value is not None}


def pci_requests(spec: Any) -> list[Any]:
    """PCI requests of a RequestSpec, empty without."""
    requests = spec.pci_requests if "pci_requests" in spec else None
    return list(requests.requests) if requests is not None else []


def guest_topology(spec: Any) -> Any:
    """Return nova's NUMA topology of a server before any host was chosen, None for a floating guest.

    The RequestSpec's own is bound to the host of the server before, page size and all, where one request makes several
    servers (``HostState.consume_from_request``); nova-compute starts from what nova-api made of flavor and image.
    """
    image = spec.image if "image" in spec else None
    try:
        return hardware.numa_get_constraints(spec.flavor, image or objects.ImageMeta.from_dict({}))
    except exception.NovaException:
        # A flavor that nova has learnt to refuse since the server was made.
        return spec.numa_topology if "numa_topology" in spec else None


def guest_cells(spec: Any) -> tuple[GuestCell, ...]:
    """NUMA cells that a RequestSpec asks for, empty for a floating guest."""
    topology = guest_topology(spec)
    if topology is None:
        return ()
    return tuple(
        GuestCell(
            cpus=len(cell.cpuset),
            pcpus=len(cell.pcpuset),
            memory_mb=cell.memory,
            policy=CpuPolicy(cell.cpu_policy) if cell.cpu_policy else None,
            thread_policy=ThreadPolicy(cell.cpu_thread_policy) if cell.cpu_thread_policy else None,
            page_size_kb=cell.pagesize if "pagesize" in cell else None,
        )
        for cell in topology.cells
    )


def isolated_emulator(spec: Any) -> bool:
    """True when emulator threads get a dedicated CPU of their own."""
    extra_specs = spec.flavor.extra_specs if "extra_specs" in spec.flavor else {}
    policy = extra_specs.get("hw:emulator_threads_policy")
    return bool(policy == fields.CPUEmulatorThreadsPolicy.ISOLATE)


def limits(host_state: Any) -> AllocationRatios:
    """Overcommit of a HostState."""
    return AllocationRatios(host_state.cpu_allocation_ratio, host_state.ram_allocation_ratio)


def pci_free(host_state: Any) -> dict[int | None, int] | None:
    """Free PCI devices of a HostState by NUMA node, None when it reports no PCI."""
    if not host_state.pci_stats:
        return None
    free: dict[int | None, int] = {}
    for pool in host_state.pci_stats.pools:
        free[pool["numa_node"]] = free.get(pool["numa_node"], 0) + pool["count"]
    return free


def pool_kind(pool: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return what pools of devices of the same kind have in common, wherever they are."""
    return tuple([(key, str(pool[key])) for key in sorted(pool) if key not in _OF_ONE_POOL])


def pools_for(request: Any, pools: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Ask nova which pools have the devices that a PCI request names."""
    stats = PciDeviceStats.__new__(PciDeviceStats)  # the answer depends on no host
    matching = {id(pool) for pool in stats._filter_pools_for_spec(pools, request)}
    return [id(pool) in matching for pool in pools]


def free_pci_providers(host_state: Any) -> tuple[str, ...]:
    """Placement's providers of the free PCI devices of a HostState, as far as it reports them."""
    pools = host_state.pci_stats.pools if host_state.pci_stats else ()
    return tuple([pool["rp_uuid"] for pool in pools if pool["count"] and "rp_uuid" in pool])


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a prediction needs of a HostState.

    :param cells: its NUMA cells, empty when nova knows no NUMA topology of the host
    :param limits: overcommit
    :param pci_free: free PCI devices by NUMA node (None: node unknown), None when it reports no PCI
    :param free_devices: Placement's providers of free PCI devices
    """

    cells: tuple[HostCell, ...]
    limits: AllocationRatios
    pci_free: Mapping[int | None, int] | None
    free_devices: tuple[str, ...] = ()


def host_facts(host_state: Any) -> HostFacts:
    """Read a HostState."""
    topology = host_state.numa_topology
    return HostFacts(
        tuple([_host_cell(cell) for cell in topology.cells]) if topology else (),
        limits(host_state),
        pci_free(host_state),
        free_pci_providers(host_state),
    )


_size_kb = operator.attrgetter("size_kb")


def room(host_state: Any, pcpus: int, cells: int) -> bool:
    """Return whether so many NUMA cells of a HostState have so many dedicated CPUs free; True where nova knows none.

    Read again, but in a small fraction of the time of :func:`host_facts`.
    """
    topology = host_state.numa_topology
    if not topology or not host_state.allocation_candidates:
        return True
    found = 0
    for cell in topology.cells:
        found += len(cell.pcpuset - cell.pinned_cpus) >= pcpus
    return found >= cells


def cell_counts(host_state: Any) -> list[tuple[int, int, int, int, int, int, int]]:
    """Read little of each NUMA cell of a HostState: enough to guess, in a fraction of the time of :func:`host_facts`.

    :returns: node, socket (-1 unknown), shared CPUs, their usage, free dedicated CPUs, memory and free memory in MiB
    """
    topology = host_state.numa_topology
    found = []
    for cell in topology.cells if topology else ():
        memory_mb = cell.memory
        found.append(
            (
                cell.id,
                socket if "socket" in cell and (socket := cell.socket) is not None else -1,
                len(cell.cpuset),
                cell.cpu_usage,
                len(cell.pcpuset) - len(cell.pinned_cpus),
                memory_mb,
                memory_mb - cell.memory_usage,
            )
        )
    return found


def _host_cell(cell: Any) -> HostCell:
    """Read one of nova's cells; each access to a field of a versioned object is a slow call."""
    cpus, pcpus, siblings = cell.cpuset, cell.pcpuset, cell.siblings
    free = pcpus - cell.pinned_cpus
    pages = [_page_pool(pool) for pool in cell.mempages]
    pages.sort(key=_size_kb, reverse=True)
    return HostCell(
        id=cell.id,
        socket=cell.socket if "socket" in cell else None,
        cpuset=frozenset(cpus),
        cpu_usage=cell.cpu_usage,
        pcpus=len(pcpus),
        free_pcpus=len(free),
        # Nova's own expression: Python iterates over the result in an order of its own, and nova pins in that order.
        free_siblings=tuple([tuple(core & free) for core in siblings]),
        threads_per_core=max(map(len, siblings), default=1) or 1,
        legacy_pinning=pcpus == cpus,
        memory_mb=cell.memory,
        memory_usage_mb=cell.memory_usage,
        pages=tuple(pages),
    )


def _page_pool(pool: Any) -> PagePool:
    size_kb = pool.size_kb
    return PagePool(size_kb, pool.free * size_kb, pool.total * size_kb)


def candidate(
    index: int, raw: Mapping[str, Any], domains: Container[str], dedicated: bool
) -> Candidate:
    """Return what we look at in one of nova's allocation candidates.

    :param index: its position in the host's list
    :param raw: ``{"allocations": {provider: {"resources": {class: amount}}}, "mappings": …}``
    :param domains: L3 providers of the host
    :param dedicated: the guest asks for dedicated CPUs only
    """
    allocations = raw["allocations"]
    providers = tuple(sorted(allocations))
    l3 = tuple(
        (uuid, _l3_amount(allocations[uuid]["resources"])) for uuid in providers if uuid in domains
    )
    fallback = dedicated and not any(
        names.PCPU in taken["resources"] for taken in allocations.values()
    )
    parts = {uuid: sum(taken["resources"].values()) for uuid, taken in allocations.items()}
    return Candidate(index, l3, providers, fallback, parts)


@functools.lru_cache(maxsize=1024)
def _amount(ways: int, bandwidth_mbps: int, neighbourhood: int) -> L3Amount:
    return L3Amount("", ways, bandwidth_mbps, neighbourhood)


def _l3_amount(resources: Mapping[str, int]) -> L3Amount:
    return _amount(
        resources.get(_WAY, 0), resources.get(_BANDWIDTH, 0), resources.get(_NEIGHBOURHOOD, 0)
    )


def numa_policy(request: Any) -> str:
    """NUMA affinity of a PCI request; nova's default where it has none."""
    policy = request.numa_policy if "numa_policy" in request else None
    return str(policy or fields.PCINUMAAffinityPolicy.LEGACY)


def is_by_alias(request: Any) -> bool:
    """Return whether the flavor makes a PCI request, and not a port."""
    return bool("alias_name" in request and request.alias_name)


def networks(spec: Any) -> Any:
    """Physical networks that a RequestSpec requests near its NUMA cells, None without."""
    return (spec.network_metadata if "network_metadata" in spec else None) or None


class LastWord:
    """Nova's own last word on host cells that fit: are the devices and physical networks asked for near them?

    Asking nova costs more than all else in a decision. Its answer depends on the requests, the pools of devices, the
    sockets of the cells, and which pools the candidate uses; on uuids of providers only as far as they are the same. So
    hosts with the same devices in use share the answers while the request lasts.

    :param spec: a RequestSpec
    """

    def __init__(self, spec: Any) -> None:
        self._networks = networks(spec)
        self._requests = pci_requests(spec)
        self._ids = [str(request.request_id) for request in self._requests]
        # A spec with providers in it was made for one host.
        self._alike = not any("rp_uuids" in each for one in self._requests for each in one.spec)
        self._answers: dict[Hashable, bool] = {}
        named = {key for one in self._requests for each in one.spec for key in each}
        self._nameless = _OF_ONE_DEVICE - named

    def shape(self, host_state: Any) -> tuple[dict[str, int], Hashable]:
        """Return all that nova's answers about a host's devices depend on.

        Pools that are empty or match no request change no answer. For a single request their order does not, either:
        it takes what it can from any.

        :returns: a number for each of Placement's providers, the same for pools that are alike; pools with numbers
        """
        stats = host_state.pci_stats
        filled = [pool for pool in stats.pools if pool["count"]] if stats else []
        matching = {
            id(pool)
            for one in self._requests
            for pool in (stats._filter_pools_for_spec(filled, one) if stats else ())
        }
        pools = [pool for pool in filled if id(pool) in matching]
        found = [
            (tuple([(k, repr(pool[k])) for k in sorted(pool) if k not in self._nameless]), pool)
            for pool in pools
        ]
        if len(self._requests) == 1:
            found.sort(key=operator.itemgetter(0))
            number = {items: at for at, (items, _) in reversed([*enumerate(found)])}
        else:
            number = {}
        number_of = {
            pool["rp_uuid"]: number.get(items, at)
            for at, (items, pool) in enumerate(found)
            if pool.get("rp_uuid") is not None
        }
        shape = tuple([(number_of.get(pool.get("rp_uuid")), items) for items, pool in found])
        topology = host_state.numa_topology
        cells = topology.cells if topology else ()
        sockets = tuple([(cell.id, cell.socket if "socket" in cell else None) for cell in cells])
        return number_of, (sockets, shape)

    def providers(self, raw: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
        """Return the PCI providers that an allocation candidate uses for each request for devices."""
        groups = raw["mappings"].items() if self._ids else ()
        return tuple(
            [
                tuple([uuids[0] for group, uuids in groups if group.startswith(request_id)])
                for request_id in self._ids
            ]
        )

    def on(self, host_state: Any) -> "HostLastWord | None":
        """Return the last word on one host, None when nothing is asked that nova would look for near its cells."""
        if not self._requests and not self._networks:
            return None
        return HostLastWord(self, host_state)

    def devices_near(self, key: Hashable, ask: Callable[[], bool]) -> bool:
        """Return nova's answer about devices.

        :param key: all that it depends on
        :param ask: asks nova
        """
        if not self._requests:
            return True
        if not self._alike:
            return ask()
        near = self._answers.get(key)
        if near is None:
            near = self._answers[key] = ask()
        return near

    def ask(self, stats: Any, raw: Mapping[str, Any], ids: tuple[int, ...]) -> bool:
        """Ask nova whether the devices of a candidate are near host cells."""
        return _devices_near(stats, self._requests, raw["mappings"], ids)

    def networks_near(self, topology: Any, ids: tuple[int, ...]) -> bool:
        """Ask nova whether the physical networks are near host cells."""
        if not self._networks:
            return True
        by_id = {cell.id: cell for cell in topology.cells}
        return bool(
            hardware._numa_cells_support_network_metadata(
                topology, [by_id[host_id] for host_id in ids], self._networks
            )
        )


class HostLastWord:
    """:class:`LastWord` on the cells of one host.

    :param word: of the request
    """

    def __init__(self, word: LastWord, host_state: Any) -> None:
        self._word = word
        self._stats = host_state.pci_stats
        self._topology = host_state.numa_topology
        self._number_of, self._shape = word.shape(host_state)

    def about(self, raw: Mapping[str, Any]) -> Callable[[tuple[int, ...]], bool]:
        """Return the question about host cells with one allocation candidate, which names the providers it uses."""
        used = tuple([self._used(each) for each in self._word.providers(raw)])

        def accepts(ids: tuple[int, ...]) -> bool:
            return self._word.devices_near(
                (self._shape, used, ids), lambda: self._word.ask(self._stats, raw, ids)
            ) and self._word.networks_near(self._topology, ids)

        return accepts

    def _used(self, providers: Sequence[str]) -> Hashable:
        """Numbers of providers, and how often each is used: two that are alike are not one that is used twice."""
        often = Counter(providers)
        return tuple(sorted([(self._number_of.get(uuid, -1), often[uuid]) for uuid in often]))


def _devices_near(
    stats: Any, requests: list[Any], mappings: Mapping[str, Any], ids: tuple[int, ...]
) -> bool:
    """``PciDeviceStats.support_requests`` without its deep copy of pools and topology: only counts of pools change.

    Like nova, a host that reports no devices at all is not asked.
    """
    if not stats:
        return True
    trial = copy.copy(stats)
    trial.pools = [dict(pool) for pool in stats.pools]
    try:
        trial.apply_requests(requests, mappings, [_Cell(host_id) for host_id in ids])
    except exception.PciDeviceRequestFailed:
        return False
    return True


class _Cell(NamedTuple):
    """What nova reads of a guest's cell when it looks for devices near it."""

    id: int
