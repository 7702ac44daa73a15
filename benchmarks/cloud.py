# SPDX-License-Identifier: Apache-2.0
"""A large cloud as nova-scheduler meets it: hosts with a random fill, what Placement offers of them, our view of them.

Hosts have 4 NUMA nodes of 16 dedicated CPUs, 4 L3 domains and 30 servers each; a third of them have 4 to 8 GPUs, half
of them have virtual functions of a NIC on a physical network.
"""

import copy
import datetime
import itertools
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nova import objects
from nova.pci.stats import PciDeviceStats
from nova.scheduler import host_manager
from nova.virt import hardware
from oslo_utils import timeutils

from placement_traits import names
from placement_traits.fleet import Amount, DeviceView, GpuView, HostView, L3View, RdtView
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.names import GpuLink, NeighbourTrait, PackingTrait, RdtTrait, TierTrait
from placement_traits.snapshot import FleetSnapshot, ViewState

NODES, CPUS, MEMORY_MB, SERVERS, HOSTS_PER_AGGREGATE = 4, 16, 65_536, 30, 500
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
GPU_CLASS = "CUSTOM_PCI_10DE_20B0"
GPU = {"vendor_id": "10de", "product_id": "20b0"}
PHYSNET = "physnet0"
CELL = str(uuid.UUID(int=0))
_RDT, _L3, _OURS, _NOVAS = 1, 16, 32, 64  # numbers of a host's providers
MOST_GPU_SETS = 8  # that Placement offers of one host, breadth-first and limited
_HINDERED_CELL = 1  # CPUs free in each cell of a host that is sold out

_DEDICATED = {"hw:cpu_policy": "dedicated"}
_BE = {"numa_ext:tier": "BE", **_DEDICATED}
_LC = {"numa_ext:tier": "LC", **_DEDICATED, "resources:CUSTOM_RDT_CLOS": "1"}
_ONE = {"hw:numa_nodes": "1"}
_ONE_LC = {**_LC, **_ONE, "resources_NODE:CUSTOM_LLC_WAY": "2"}


@dataclass(frozen=True, slots=True)
class Flavor:
    """What a server asks for.

    :param gpus: of ``extra_specs``' alias
    :param vf: it has a port on a virtual function
    """

    name: str
    vcpus: int
    memory_mb: int
    extra_specs: Mapping[str, str]
    gpus: int = 0
    vf: bool = False

    @property
    def l3_groups(self) -> tuple[str, ...]:
        """Suffixes of the request groups that ask for cache ways."""
        found = [key for key in self.extra_specs if key.endswith(":CUSTOM_LLC_WAY")]
        return tuple(key.partition(":")[0].removeprefix("resources") for key in found)


FLAVORS = (
    Flavor("LC one node", 2, 4096, _ONE_LC),
    Flavor(
        "LC two nodes",
        4,
        8192,
        {
            **_LC,
            "hw:numa_nodes": "2",
            "resources_N0:CUSTOM_LLC_WAY": "2",
            "resources_N1:CUSTOM_LLC_WAY": "2",
            "group_policy": "isolate",
        },
    ),
    Flavor("LC rabbit", 4, 8192, {**_ONE_LC, "numa_ext:interference_class": "rabbit"}),
    Flavor("BE", 2, 2048, {**_BE, **_ONE}),
    Flavor("BE two nodes", 4, 4096, {**_BE, "hw:numa_nodes": "2"}),
    Flavor(
        "one GPU",
        2,
        2048,
        {**_BE, **_ONE, "pci_passthrough:alias": "gpu:1", "numa_ext:gpu_comm": "2"},
        gpus=1,
    ),
    Flavor(
        "four GPUs",
        4,
        4096,
        {
            **_BE,
            "hw:numa_nodes": "2",
            "pci_passthrough:alias": "gpu:4",
            "numa_ext:gpu_comm": "4",
            "numa_ext:gpu_policy": "topo",
        },
        gpus=4,
    ),
    Flavor("SR-IOV", 2, 4096, _ONE_LC, vf=True),
)


def request(number: int, asked: Flavor, servers: int = 1) -> Any:
    """The ``number``-th RequestSpec, for a flavor like ``asked``; no two are equal."""
    flavor = objects.Flavor(
        name=f"f{number}",
        flavorid=f"f{number}",
        vcpus=asked.vcpus,
        memory_mb=asked.memory_mb + number % 500 * 4,
        root_gb=1,
        ephemeral_gb=0,
        swap=0,
        extra_specs=dict(asked.extra_specs),
    )
    image = objects.ImageMeta.from_dict({"properties": {}})
    requests = []
    if asked.gpus:
        requests.append(
            objects.InstancePCIRequest(
                count=asked.gpus,
                alias_name="gpu",
                spec=[dict(GPU)],
                request_id=str(uuid.UUID(int=number + 1)),
                numa_policy="legacy",
            )
        )
    if asked.vf:
        requests.append(
            objects.InstancePCIRequest(
                count=1,
                alias_name=None,
                spec=[{"physical_network": PHYSNET, "remote_managed": "False"}],
                request_id=str(uuid.UUID(int=number + 1)),
                requester_id=str(uuid.UUID(int=number + 2)),
                numa_policy="legacy",
            )
        )
    return objects.RequestSpec(
        flavor=flavor,
        image=image,
        is_bfv=False,
        num_instances=servers,
        project_id="project",
        user_id="user",
        availability_zone=None,
        instance_uuid=str(uuid.UUID(int=number + 1)),
        instance_group=None,
        ignore_hosts=None,
        force_hosts=None,
        force_nodes=None,
        requested_destination=None,
        requested_resources=[],
        request_level_params=objects.RequestLevelParams(),
        limits=objects.SchedulerLimits(),
        retry=None,
        security_groups=objects.SecurityGroupList(),
        numa_topology=hardware.numa_get_constraints(flavor, image),
        pci_requests=objects.InstancePCIRequests(requests=requests),
        network_metadata=objects.NetworkMetadata(
            physnets={PHYSNET} if asked.vf else set(), tunneled=False
        ),
        scheduler_hints={},
    )


@dataclass(frozen=True, slots=True)
class Shown:
    """A host as it could be.

    :param state: its HostState
    :param view: what Placement has of it
    """

    state: Any
    view: HostView


@dataclass
class Cloud:
    """Hosts, of which some change between requests.

    :param count: of hosts
    :param seed: of their random fill
    :param fitting: None, or the number of hosts that are left when all others are nearly sold out: Placement counts
        free CPUs of the whole host and goes on offering them, but no NUMA node has two
    """

    count: int
    seed: int
    fitting: int | None = None
    traits: Callable[[int], frozenset[str]] = lambda _number: frozenset()
    views: dict[str, HostView] = field(default_factory=dict)
    version: int = 0

    def __post_init__(self) -> None:
        """Fill all hosts."""
        self._random = random.Random(self.seed)
        self._aggregates = [
            objects.Aggregate(id=number, name=f"zone{number}", metadata={}, hosts=[])
            for number in range(self.count // HOSTS_PER_AGGREGATE + 1)
        ]
        up = {"disabled": False, "last_seen_up": timeutils.utcnow(), "host": "", "uuid": ""}
        self._service = host_manager.ReadOnlyDict(up)
        fitting = self.count if self.fitting is None else self.fitting
        self._open = set(self._random.sample(range(self.count), fitting))
        self._states = [self._state(number) for number in range(self.count)]
        self._arrays = FleetArrays.of(self.views.values())

    def snapshot(self) -> FleetSnapshot:
        """The view of Placement, fresh; this makes a Cloud what the plug-ins ask for their view."""
        return FleetSnapshot(self._arrays, 1.0, ViewState.FRESH, self.version)

    def churn(self, share: float) -> None:
        """Give ``share`` of the hosts another fill, as nova-compute and the agent would report it."""
        self.version += 1
        chosen = self._random.sample(range(self.count), int(self.count * share))
        for number in chosen:
            self._fill(number, self._states[number])
        roots = [self._states[number].uuid for number in chosen]
        changed = {root: self.views[root] for root in roots}
        self._arrays = self._arrays.with_changes(changed, self.version)

    def look(self, number: int, *, fits: bool) -> Shown:
        """Fill one host again, with room or without, and return how it looks; the snapshot stays as it is."""
        (self._open.add if fits else self._open.discard)(number)
        state = copy.copy(self._states[number])
        self._fill(number, state)
        return Shown(state, self.views[state.uuid])

    def show(self, looks: Mapping[int, Shown], *, read: bool) -> None:
        """Let hosts look like this; ``read``: the view has been read since."""
        for number, shown in looks.items():
            self._states[number] = shown.state
            self.views[shown.state.uuid] = shown.view
        if read:
            self.version += 1
            changed = {shown.view.root_uuid: shown.view for shown in looks.values()}
            self._arrays = self._arrays.with_changes(changed, self.version)

    def host_states(self, roots: Iterable[str]) -> list[Any]:
        """New HostStates of these hosts, as nova makes them for each request; what never changes is shared."""
        requested = set(roots)
        return [_new(state) for state in self._states if state.uuid in requested]

    def computes(self, count: int) -> Iterator[tuple[Any, Any]]:
        """Some hosts as nova's database has them, each with its HostState: (ComputeNode, HostState)."""
        for state in self._states[:count]:
            pools = [dict(pool) for pool in state.pci_stats.pools]
            yield (
                objects.ComputeNode(
                    uuid=state.uuid,
                    host=state.host,
                    hypervisor_hostname=state.nodename,
                    free_disk_gb=state.free_disk_mb // 1024,
                    disk_available_least=None,
                    local_gb=state.total_usable_disk_gb,
                    local_gb_used=0,
                    memory_mb=state.total_usable_ram_mb,
                    free_ram_mb=state.free_ram_mb,
                    vcpus=state.vcpus_total,
                    vcpus_used=state.vcpus_used,
                    updated_at=state.updated,
                    numa_topology=state.numa_topology._to_json(),
                    pci_device_pools=objects.PciDevicePoolList(objects=[*map(_pool, pools)]),
                    host_ip=None,
                    hypervisor_type="QEMU",
                    hypervisor_version=state.hypervisor_version,
                    cpu_info="",
                    supported_hv_specs=[],
                    stats={"num_instances": str(SERVERS)},
                    metrics="[]",
                    cpu_allocation_ratio=1.0,
                    ram_allocation_ratio=1.0,
                    disk_allocation_ratio=1.0,
                ),
                state,
            )

    def offer(self, spec: Any, asked: Flavor) -> "Offered":
        """Placement's answer without a limit: candidates by root provider, hosts without any left out."""
        found = Offered()
        for state in self._states:
            candidates = Unchanged(self._candidates(state, spec, asked))
            if candidates:
                found[state.uuid] = candidates
        return found

    def _candidates(self, state: Any, spec: Any, asked: Flavor) -> Iterator[dict[str, Any]]:
        if state.free_pcpus < asked.vcpus or state.free_ram_mb < asked.memory_mb:
            return
        view, root = self.views[state.uuid], state.uuid
        amounts = {names.PCPU: asked.vcpus, names.MEMORY_MB: spec.flavor.memory_mb}
        base: dict[str, Any] = {root: {"resources": amounts}}
        rooted = [root]
        groups = asked.l3_groups
        if groups:
            assert view.rdt is not None
            assert view.rdt.clos is not None
            if view.rdt.clos.free < 1:
                return
            base[view.rdt.uuid] = {"resources": {"CUSTOM_RDT_CLOS": 1}}
            rooted.append(view.rdt.uuid)
        domains = [d.uuid for d in view.l3 if d.ways is not None and d.ways.free >= 2]
        free = [pool["rp_uuid"] for pool in state.pci_stats.pools if pool.get("rp_uuid")]
        gpus = [one for one, left in zip(free, state.gpus_left, strict=True) if left]
        ways = itertools.permutations(domains, len(groups))
        sets = itertools.islice(itertools.combinations(gpus, asked.gpus), MOST_GPU_SETS)
        ids = [r.request_id for r in spec.pci_requests.requests]
        for chosen, devices in itertools.product(ways, sets):
            yield {
                "allocations": {
                    **base,
                    **{uuid: {"resources": {"CUSTOM_LLC_WAY": 2}} for uuid in chosen},
                    **{uuid: {"resources": {GPU_CLASS: 1}} for uuid in devices},
                },
                "mappings": {
                    "": rooted,
                    **{group: [uuid] for group, uuid in zip(groups, chosen, strict=True)},
                    **{f"{ids[0]}-{n}": [uuid] for n, uuid in enumerate(devices)},
                },
            }

    def _state(self, number: int) -> Any:
        state = host_manager.HostState(f"host{number:05}", f"host{number:05}", CELL)
        state.uuid = _uuid(number)
        state.cpu_allocation_ratio = state.ram_allocation_ratio = 1.0
        state.disk_allocation_ratio = 1.0
        state.total_usable_ram_mb = NODES * MEMORY_MB
        state.vcpus_total = NODES * CPUS
        state.total_usable_disk_gb = 4000
        state.hypervisor_version = 10_000_000
        state.metrics = objects.MonitorMetricList(objects=[])
        state.service = self._service
        state.aggregates = [self._aggregates[number // HOSTS_PER_AGGREGATE]]
        state.instances = {f"{number}-{server}": None for server in range(SERVERS)}
        state.gpus = self._random.choice((4, 6, 8)) if number % 3 == 0 else 0
        self._fill(number, state)
        return state

    def _fill(self, number: int, state: Any) -> None:
        """Fill the cells and devices of a host and its L3 domains."""
        cells = []
        for node in range(NODES):
            first = node * CPUS
            cpus = set(range(first, first + CPUS))
            busy = self._random.randint(8, CPUS) if number in self._open else CPUS - _HINDERED_CELL
            used = self._random.randint(4, 15) * 4096
            cells.append(
                objects.NUMACell(
                    id=node,
                    socket=node // 2,
                    cpuset=set(),
                    pcpuset=cpus,
                    memory=MEMORY_MB,
                    cpu_usage=0,
                    memory_usage=used,
                    pinned_cpus=set(self._random.sample(sorted(cpus), busy)),
                    siblings=[{cpu, cpu + 1} for cpu in range(first, first + CPUS, 2)],
                    mempages=[
                        objects.NUMAPagesTopology(
                            size_kb=4, total=MEMORY_MB * 256, used=used * 256, reserved=0
                        )
                    ],
                    network_metadata=objects.NetworkMetadata(
                        physnets={PHYSNET} if node == 0 and number % 2 else set(), tunneled=False
                    ),
                )
            )
        self.views[state.uuid] = view = self._view(number, state.host, state.gpus)
        state.numa_topology = objects.NUMATopology(cells=cells)
        state.free_pcpus = sum(CPUS - len(cell.pinned_cpus) for cell in cells)
        state.vcpus_used = state.vcpus_total - state.free_pcpus
        state.free_ram_mb = sum(MEMORY_MB - cell.memory_usage for cell in cells)
        state.free_disk_mb = self._random.randint(100, 4000) * 1024
        state.gpus_left = [self._random.randint(0, 2) > 0 for _ in view.gpus]
        state.pci_stats = PciDeviceStats(state.numa_topology)
        state.pci_stats.pools = [
            {
                **GPU,
                "dev_type": "type-PCI",
                "numa_node": gpu.node,
                "address": gpu.address,
                "rp_uuid": device.uuid,
                "count": int(left),
            }
            for gpu, device, left in zip(view.gpus, view.devices, state.gpus_left, strict=True)
        ]
        if number % 2:
            state.pci_stats.pools.append(
                {
                    "vendor_id": "8086",
                    "product_id": "154c",
                    "dev_type": "type-VF",
                    "numa_node": 0,
                    "physical_network": PHYSNET,
                    "remote_managed": "false",
                    "count": self._random.randint(0, 16),
                }
            )
        state.num_instances = SERVERS
        state.num_io_ops = self._random.randint(0, 3)
        state.updated = START + datetime.timedelta(seconds=self._random.random() * 1e6)

    def _view(self, number: int, name: str, gpus: int) -> HostView:
        traits = frozenset({TierTrait.LC, TierTrait.BE, RdtTrait.L3_CAT, PackingTrait.SPREAD})
        neighbours = (
            NeighbourTrait.RABBIT,
            NeighbourTrait.DEVIL,
            NeighbourTrait.LC,
            NeighbourTrait.BE,
        )
        domains = tuple(
            L3View(
                _uuid(number, _L3 + node),
                node,
                (node,),
                node // 2,
                0,
                Amount(16, self._random.randint(0, 14)),
                Amount(60_000, self._random.randint(0, 50) * 1000),
                frozenset(t for t in neighbours if self._random.random() < 0.2),
            )
            for node in range(NODES)
        )
        addresses = [f"0000:{gpu:02x}:00.0" for gpu in range(gpus)]
        links = {
            address: {addresses[gpu ^ 1]: GpuLink.NV2} for gpu, address in enumerate(addresses)
        }
        return HostView(
            _uuid(number),
            name,
            traits | self.traits(number),
            RdtView(_uuid(number, _RDT), Amount(14, 6)),
            domains,
            tuple(
                GpuView(_uuid(number, _OURS + gpu), address, gpu % NODES, None, links[address])
                for gpu, address in enumerate(addresses)
            ),
            tuple(
                DeviceView(_uuid(number, _NOVAS + gpu), address, Amount(1, 0))
                for gpu, address in enumerate(addresses)
            ),
        )


def _uuid(number: int, provider: int = 0) -> str:
    """Uuid of one of a host's providers; 0 is nova's root."""
    return str(uuid.UUID(int=(number + 1) << 8 | provider))


class Unchanged(list[Any]):
    """Candidates that were made for one request only: nova's deep copy of them is not made once more."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Unchanged":
        return self


class Offered(dict[str, Unchanged]):
    """Candidates by root provider."""

    def limited(self, limit: int, source: random.Random) -> "Offered":
        """``limit`` candidates, any: Placement keeps candidates in a set before it cuts, in no order of hosts."""
        every = [(root, one) for root, candidates in self.items() for one in candidates]
        found = Offered()
        for root, one in source.sample(every, min(limit, len(every))):
            found.setdefault(root, Unchanged()).append(one)
        return found


def _new(state: Any) -> Any:
    made = host_manager.HostState.__new__(host_manager.HostState)
    made.__dict__.update(state.__dict__)
    made.numa_topology = copy.copy(state.numa_topology)
    made.pci_stats = copy.copy(state.pci_stats)
    made.pci_stats.numa_topology = made.numa_topology
    made.pci_stats.pools = [dict(pool) for pool in state.pci_stats.pools]
    made.limits = {}
    return made


_POOL_FIELDS: Sequence[str] = ("vendor_id", "product_id", "numa_node", "count")


def _pool(pool: dict[str, Any]) -> Any:
    fixed = {name: pool.pop(name) for name in _POOL_FIELDS}
    return objects.PciDevicePool(**fixed, tags={k: str(v) for k, v in pool.items()})
