# SPDX-License-Identifier: Apache-2.0
"""Random requests and hosts of every kind that nova's choice of cells, CPUs and page sizes knows.

A request is a flavor and an image, and what nova's own :func:`nova.virt.hardware.numa_get_constraints` makes of them; a
host is what nova-compute reports of it. Both come from one :class:`random.Random`, so a seed names a run.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from nova import exception, objects
from nova.conf import CONF
from nova.objects import service
from nova.pci import stats as pci_stats
from nova.virt import hardware

from placement_traits.topology import Core, HostTopology, L3Domain, NumaNode, Socket

CPUS_PER_NODE = 64
_PAGES = (None, None, None, "small", "any", "large", "any", "large", "4", "2048", "1048576", "2MB")
_THREADS = (None, None, "prefer", "isolate", "require")
_PRODUCTS = ("0001", "0001", "0002")
_NUMA_POLICIES = (None, "legacy", "required", "preferred", "socket")


@dataclass(frozen=True)
class Request:
    """What a user boots.

    :param flavor: nova's object
    :param image: nova's object
    :param topology: what nova makes of both
    :param devices: its requests for devices
    :param networks: physical networks and tunnels that it wants near, None for none
    """

    flavor: Any
    image: Any
    topology: Any
    devices: list[Any]
    networks: Any = None

    def spec(self, **more: Any) -> "Spec":
        """Return the RequestSpec that nova-api makes."""
        fields = {
            "instance_uuid": "server",
            "flavor": self.flavor,
            "image": self.image,
            "numa_topology": self.topology.obj_clone() if self.topology else None,
            "network_metadata": self.networks,
            "pci_requests": objects.InstancePCIRequests(requests=self.devices),
        }
        return Spec({**fields, **more})


class Spec:
    """A RequestSpec: making nova's own costs as much as a prediction."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__


@dataclass
class Host:
    """What a HostState shows of one host.

    :param text: its NUMA topology as it is in the database, from which scheduler and compute host both read it
    :param ratios: overcommit of CPUs and of memory
    :param pools: its PCI devices
    :param pack: its packing strategy
    :param topology: its cores and L3 domains as the agent finds them
    :param allocation_candidates: what Placement offers of it; a story draws them with :meth:`candidate`
    """

    text: str
    ratios: tuple[float, float]
    pools: list[Any]
    pack: bool
    topology: HostTopology
    allocation_candidates: list[dict[str, Any]] = field(default_factory=list)
    uuid: str = "host"

    def __post_init__(self) -> None:
        # Scheduler and compute host read the same text, so that their sets of integers are alike.
        self.numa_topology = objects.NUMATopology.obj_from_db_obj(self.text)
        self._at_compute = objects.NUMATopology.obj_from_db_obj(self.text)
        self.cpu_allocation_ratio, self.ram_allocation_ratio = self.ratios
        devices = objects.PciDevicePoolList(objects=self.pools)
        self.pci_stats = pci_stats.PciDeviceStats(self.numa_topology, stats=devices)

    def candidate(self, rng: random.Random, request: "Request") -> dict[str, Any]:
        """Draw an allocation candidate; where Placement counts devices, it names a provider for each."""
        mappings = {"": ["host"]}
        free = [pool for pool in self.pools if pool.count and "rp_uuid" in pool.tags]
        rng.shuffle(free)
        for one in request.devices:
            for position in range(one.count):
                like = [pool for pool in free if pool.product_id == one.spec[0]["product_id"]]
                if like:
                    free.remove(like[0])
                    mappings[f"{one.request_id}-{position}"] = [like[0].tags["rp_uuid"]]
        return {"allocations": {"host": {"resources": {"PCPU": 1}}}, "mappings": mappings}

    def claim(self, request: "Request", candidate: dict[str, Any]) -> Any:
        """Return what nova-compute's claim gives the request, None when it does not fit."""
        limits = objects.NUMATopologyLimits(
            cpu_allocation_ratio=self.ratios[0], ram_allocation_ratio=self.ratios[1]
        )
        if request.networks is not None:
            limits.network_metadata = request.networks
        CONF.set_override("packing_host_numa_cells_allocation_strategy", self.pack, group="compute")
        return hardware.numa_fit_instance_to_host(
            self._at_compute,
            request.topology.obj_clone() if request.topology else None,
            None,
            limits=limits,
            pci_requests=[_placed(one, candidate["mappings"]) for one in request.devices],
            # Of nova/compute/claims.py: until nova 33 devices are looked at only for a guest that requests one.
            pci_stats=self.pci_stats if request.devices or service.SERVICE_VERSION > 72 else None,
        )


def _l3(rng: random.Random, cells: list[Any]) -> HostTopology:
    """Draw which cores share a cache: those of a cell all, or a few each; sometimes two cells have one cache."""
    cores: list[Core] = []
    domain = -1
    for cell in cells:
        size = rng.choice((2, 4, 99))
        for position, cpus in enumerate(sorted(map(sorted, filter(None, cell.siblings)))):
            if position % size == 0 and (position or domain < 0 or rng.random() < 0.8):
                domain += 1
            cores.append(Core(len(cores), cell.id, 0, domain, tuple(cpus)))
    nodes: dict[int, set[int]] = {}
    for core in cores:
        if core.l3 is not None:
            nodes.setdefault(core.l3, set()).add(core.node)
    return HostTopology(
        sockets=(Socket(0),),
        nodes=tuple(NumaNode(cell.id, 0) for cell in cells),
        l3_domains=tuple(L3Domain(l3, 0, tuple(sorted(on))) for l3, on in nodes.items()),
        cores=tuple(cores),
    )


def _placed(one: Any, mappings: dict[str, Any]) -> Any:
    """Return a request for devices as the compute host gets it: with the providers that Placement has chosen."""
    placed = one.obj_clone()
    uuids = [found[0] for group, found in mappings.items() if group.startswith(one.request_id)]
    if uuids:
        placed.spec[0]["rp_uuids"] = ",".join(uuids)
    return placed


def request(rng: random.Random) -> Request:
    """Draw a request that nova's API would take."""
    while True:
        flavor, image = flavor_and_image(rng)
        try:
            topology = hardware.numa_get_constraints(flavor, image)
        except exception.NovaException:
            continue
        networks = None
        if rng.random() < 0.1:
            physnets = {name for name in ("a", "b") if rng.random() < 0.5}
            networks = objects.NetworkMetadata(physnets=physnets, tunneled=rng.random() < 0.4)
        return Request(flavor, image, topology, requests_for_devices(rng), networks)


def flavor_and_image(rng: random.Random) -> tuple[Any, Any]:
    """Draw a flavor and an image; nova may well find that they contradict each other."""
    cells = rng.choice((1, 1, 1, 2, 2, 3, 4))
    specs = {"numa_ext:tier": "BE"}
    properties: dict[str, str] = {}

    def say(name: str, value: str | None) -> None:
        if value is not None and rng.random() < 0.8:
            specs[f"hw:{name}"] = value
        elif value is not None:
            properties[f"hw_{name}"] = value

    cpus = [rng.randint(1, 6)] * cells
    memory = [rng.choice((256, 512, 1000, 1024, 2048, 4096))] * cells
    unlike = cells > 1 and rng.random() < 0.5
    if unlike:
        cpus = [rng.randint(1, 6) for _ in range(cells)]
        memory = [rng.choice((256, 512, 1000, 1024, 2048)) for _ in range(cells)]
        first = 0
        for cell, (count, size) in enumerate(zip(cpus, memory, strict=True)):
            specs[f"hw:numa_cpus.{cell}"] = f"{first}-{first + count - 1}"
            specs[f"hw:numa_mem.{cell}"] = str(size)
            first += count
    if cells > 1 or rng.random() < 0.4:
        say("numa_nodes", str(cells))
    vcpus = sum(cpus)
    policy = rng.choice((None, None, "shared", "dedicated", "dedicated", "mixed", "resources"))
    if rng.random() < 0.05:
        specs["resources:VCPU"] = str(vcpus)

    if policy == "resources":
        specs["resources:PCPU"] = str(vcpus)
    else:
        say("cpu_policy", policy)
    if policy == "mixed":
        pinned = rng.sample(range(vcpus), rng.randint(1, max(1, vcpus - 1)))
        specs["hw:cpu_dedicated_mask"] = ",".join(map(str, pinned))
    if policy not in (None, "shared"):
        say("cpu_thread_policy", rng.choice(_THREADS))
        if rng.random() < 0.2:
            specs["hw:emulator_threads_policy"] = rng.choice(("isolate", "share"))
            if specs.get("resources:PCPU") and specs["hw:emulator_threads_policy"] == "isolate":
                specs["resources:PCPU"] = str(vcpus + 1)
    _ask_for_pages(rng, specs, properties)
    flavor = objects.Flavor(
        name="f", flavorid="f", vcpus=vcpus, memory_mb=sum(memory), extra_specs=specs
    )
    return flavor, objects.ImageMeta.from_dict({"name": "i", "properties": properties})


def _ask_for_pages(rng: random.Random, specs: dict[str, str], properties: dict[str, str]) -> None:
    pages = rng.choice(_PAGES)
    if pages is not None:
        specs["hw:mem_page_size"] = pages
        if rng.random() < 0.15:
            properties["hw_mem_page_size"] = rng.choice(("large", "2048", "4"))
    if rng.random() < 0.05:
        specs["hw:pmem"] = rng.choice(("4GB", "4GB, 6GB", " , ", ""))


def requests_for_devices(rng: random.Random) -> list[Any]:
    """Draw requests for devices, as nova makes them of aliases and ports; most often none."""
    if rng.random() < 0.6:
        return []
    return [
        objects.InstancePCIRequest(
            count=rng.choice((1, 1, 2)),
            request_id=f"10000000-0000-0000-0000-{number:012d}",
            alias_name="alias",
            numa_policy=rng.choice(_NUMA_POLICIES),
            spec=[
                {
                    "vendor_id": "8086",
                    "product_id": rng.choice(_PRODUCTS),
                    "dev_type": "type-PCI",
                }
            ],
        )
        for number in range(rng.choice((1, 1, 2)))
    ]


def host(rng: random.Random) -> Host:
    """Draw a host."""
    count = rng.choice((1, 2, 2, 3, 4, 4))
    nodes = list(range(count)) if rng.random() < 0.8 else sorted(rng.sample(range(12), count))
    threads = rng.choice((1, 2, 2, 4))
    topology = objects.NUMATopology(cells=[_cell(rng, node, threads) for node in nodes])
    ratios = (1.0, 1.0, 1.5, 4.0)
    return Host(
        topology._to_json(),
        (rng.choice(ratios), rng.choice(ratios)),
        _device_pools(rng, nodes),
        rng.random() < 0.3,
        _l3(rng, topology.cells),
    )


def _device_pools(rng: random.Random, nodes: list[int]) -> list[Any]:
    counted = rng.random() < 0.5  # by Placement, each device by a provider of its own
    pools = []
    for number in range(rng.choice((0, 2, 4, 8))):
        tags = {"dev_type": rng.choice(("type-PCI", "type-PCI", "type-PCI", "type-PF"))}
        if counted:
            tags["rp_uuid"] = f"00000000-0000-0000-0000-{number:012d}"
        pools.append(
            objects.PciDevicePool(
                vendor_id="8086",
                product_id=rng.choice(_PRODUCTS),
                numa_node=rng.choice((None, *nodes, *nodes)),
                count=rng.choice((0, 1, 1)) if counted else rng.choice((0, 1, 2, 4)),
                tags=tags,
            )
        )
    return pools


def _cell(rng: random.Random, node: int, threads: int) -> Any:
    cores = rng.choice((4, 6, 8, 12)) if rng.random() < 0.8 else rng.randint(0, 8)
    # Threads far apart share a slot of Python's small sets: then the order of insertion decides.
    stride = rng.choice((1, 1024))
    first = node * CPUS_PER_NODE
    siblings = [
        {
            first + core * (threads if stride == 1 else 1) + stride * thread
            for thread in range(threads)
        }
        for core in range(cores)
    ]
    cpus = set().union(*siblings)
    kind = rng.choice(("dedicated", "shared", "legacy", "split", "uneven"))
    dedicated = {
        "dedicated": cpus,
        "shared": set(),
        "legacy": cpus,
        "split": set().union(*siblings[::2]),
        "uneven": {cpu for cpu in cpus if rng.random() < 0.6},
    }[kind]
    busy = rng.choice((0.0, 0.3, 0.6))
    memory = rng.choice((2048, 4096, 8192, 8191, 16384))
    return objects.NUMACell(
        id=node,
        socket=rng.choice((node // 2, node // 2, None)),
        cpuset=cpus if kind == "legacy" else cpus - dedicated,
        pcpuset=dedicated,
        memory=memory,
        memory_usage=rng.choice((0, 0, 512, 1024, 2048, memory)),
        cpu_usage=rng.randrange(12),
        pinned_cpus={cpu for cpu in dedicated if rng.random() < busy},
        siblings=siblings or [set()],
        mempages=_pages(rng, memory),
        network_metadata=objects.NetworkMetadata(
            physnets={name for name in ("a", "b") if rng.random() < 0.15},
            tunneled=rng.random() < 0.1,
        ),
    )


def _pages(rng: random.Random, memory_mb: int) -> list[Any]:
    def pool(size_kb: int, total: int, reserved: int) -> Any:
        used = rng.choice((0, 0, rng.randrange(total)))
        return objects.NUMAPagesTopology(size_kb=size_kb, total=total, used=used, reserved=reserved)

    if rng.random() < 0.3:
        return []
    pages = [pool(4, memory_mb * 256, rng.choice((0, 1000)))]
    if rng.random() < 0.6:
        pages.append(pool(2048, rng.choice((64, 512, 1024)), rng.choice((0, 5))))
    if rng.random() < 0.5:
        pages.append(pool(1048576, rng.choice((1, 2, 4)), 0))
    if rng.random() < 0.3:
        rng.shuffle(pages)
    return pages
