# SPDX-License-Identifier: Apache-2.0
"""A real Placement, nova's real scheduler manager, host manager, filters and weighers, in one process.

What is not real is nova's database: HostStates come from ComputeNode objects that the tests make, and requests from
RequestSpec objects. Claims are made in the real Placement.
"""

import hashlib
import uuid
from types import SimpleNamespace
from unittest import mock

import pytest
from keystoneauth1 import adapter
from nova import context as nova_context
from nova import objects
from nova.conf import CONF
from nova.scheduler import host_manager, manager
from nova.scheduler import utils as scheduler_utils
from nova.scheduler.client import report
from nova.virt import hardware
from oslo_context import context as oslo_context
from oslo_messaging import ExpectedException
from oslo_serialization import jsonutils

from emulation.hosts import four_nodes
from emulation.placement_service import PlacementInProcess
from nova_numa_ext import conf as our_conf
from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.scheduler import nova_objects, process, remote_gpus, session
from placement_traits import journal
from placement_traits.client import PlacementClient
from placement_traits.names import PackingTrait
from placement_traits.offers import TreeSettings
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree
from placement_traits.view import FleetView, ViewSettings

FILTERS = ["NumaExtFilter", "NUMATopologyFilter", "PciPassthroughFilter"]
LC = {
    "numa_ext:tier": "LC",
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "resources:CUSTOM_RDT_CLOS": "1",
    "resources_NODE:CUSTOM_LLC_WAY": "4",
}
BE = {"numa_ext:tier": "BE"}
STRICT_RABBIT = {
    **LC,
    "numa_ext:interference_class": "rabbit",
    "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000",
}
STRICT_DEVIL = {
    **BE,
    "hw:numa_nodes": "1",
    "numa_ext:interference_class": "devil",
    "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1",
}

KEPT_IMAGES = 100
IMAGES = {}
"""Databases of Placement, by the one before and what was written: most stories begin with the same hosts."""


class KeepsContext(adapter.Adapter):
    """Placement runs in nova's thread here and would leave its own request as the current one."""

    def request(self, *args, **kwargs):
        current = oslo_context.get_current()
        try:
            return super().request(*args, **kwargs)
        finally:
            if current is not None:
                current.update_store()


class ListedHosts(host_manager.HostManager):
    """Nova's host manager with compute nodes from a list instead of a database."""

    def __init__(self):
        self.computes = []
        self.servers = {}  # host -> {server uuid: instance}
        super().__init__()
        self.aggregates = {}

    def refresh_cells_caches(self):
        self.cells = {}

    def _init_aggregates(self):
        pass

    def _init_instance_info(self, computes_by_cell=None):
        pass

    def get_host_states_by_uuids(self, context, compute_uuids, spec_obj):
        for compute in self.computes:
            if compute_uuids is None or compute.uuid in compute_uuids:
                state = host_manager.HostState(compute.host, compute.hypervisor_hostname, "cell1")
                state.update(
                    compute=compute,
                    service={"host": compute.host},
                    aggregates=self.aggregates.get(compute.host, []),
                    inst_dict=self.servers.get(compute.host, {}),
                )
                yield state


class SchedulerCloud:
    """Nova's scheduler and Placement with a story's hosts; :meth:`boot` schedules a server."""

    def __init__(self, placement, path):
        self.service = placement
        self.adapter = placement.adapter
        self.placement = PlacementClient(placement.adapter)
        self.journal_path = path
        self.novas = KeepsContext(
            placement.adapter.session, service_type="placement", raise_exc=False
        )
        report.PLACEMENTCLIENT = report.SchedulerReportClient(adapter=self.novas)
        self.hosts = ListedHosts()
        self.context = nova_context.RequestContext("user", "project", is_admin=True)
        self.scheduler = manager.SchedulerManager.__new__(manager.SchedulerManager)
        self.scheduler.host_manager = self.hosts
        self.scheduler.notifier = mock.Mock()
        self.view = FleetView(placement.adapter, ViewSettings(max_age_s=3600.0), background=False)
        self.configure()

    def configure(self, **options):
        """Start our part of nova-scheduler anew with these options of ``[numa_ext]``."""
        told = journal.Journal(self.journal_path, 2**20, 1)
        remote = remote_gpus.RemoteGpuSource(self.novas, 0.0, 3600.0)
        options = SchedulerOptions(**options)
        process.use(
            session.Engine(
                CONF, options, self.view, told, beyond=session.BeyondHosts(remote=remote)
            )
        )

    def host(self, name, topology=None, agent=True, rdt=True, node=None, **compute):
        """Add a host as nova-compute and our agent leave it: by default the lab's host of 4 nodes with 2 CPUs each.

        ::

            h1                      VCPU 16, PCPU 8, MEMORY_MB 8192, DISK_GB 100
            ├─ h1:rdt               CUSTOM_RDT_CLOS
            └─ h1:l3_0 … h1:l3_3    CUSTOM_LLC_WAY, CUSTOM_MEMORY_BANDWIDTH_MBPS, CUSTOM_LLC_NEIGHBOURHOOD

        :param node: what nova-compute reports, in place of a :func:`compute_node` of these other arguments
        """
        topology = topology or (four_nodes() if rdt else four_nodes(rdt=None))
        cpus = node.vcpus if node is not None else 8
        node = node or compute_node(name, **compute)
        self.hosts.computes.append(node)
        self.once((name, node.uuid, cpus), lambda: self.root_provider(name, node.uuid, cpus))
        if agent:
            self.publish(name, topology)
        return node

    def root_provider(self, name, root, cpus):
        """Make a root provider as nova-compute does."""
        self.placement.post("/resource_providers", {"name": name, "uuid": root})
        totals = {"VCPU": cpus, "PCPU": cpus, "MEMORY_MB": 8192, "DISK_GB": 100}
        ratios = {"VCPU": 4.0}
        self.placement.put(
            f"/resource_providers/{root}/inventories",
            {
                "resource_provider_generation": 0,
                "inventories": {
                    rc: {"total": total, "allocation_ratio": ratios.get(rc, 1.0)}
                    for rc, total in totals.items()
                },
            },
        )

    def once(self, what, write):
        """Let Placement be as ``write`` leaves it, which is called once for the same database and arguments."""
        key = hashlib.sha256(self.service.image()).digest(), what
        if key in IMAGES:
            self.service.restore(IMAGES[key])
            return
        write()
        if len(IMAGES) < KEPT_IMAGES:
            IMAGES[key] = self.service.image()

    def aggregate(self, aggregate_uuid, *nodes):
        """Make hosts members of an aggregate in Placement, as nova-api does."""
        for node in nodes:
            path = f"/resource_providers/{node.uuid}"
            generation = self.placement.get(path)["generation"]
            members = {"resource_provider_generation": generation, "aggregates": [aggregate_uuid]}
            self.placement.put(f"{path}/aggregates", members)

    def publish(self, name, topology=None, state=None, **settings):
        """Let the host's agent report, with ``state`` as what runs in each L3 domain; then let the scheduler see it."""
        settings = TreeSettings(PackingTrait.SPREAD, **settings)
        tree = desired_tree(name, topology or four_nodes(), settings, state or {})
        self.once(repr(tree), lambda: Reporter(self.placement).sync(tree))
        self.view.refresh()

    def older_agent(self, name):
        """Leave a host as an agent published it that knew no cache neighbourhoods."""
        for l3 in range(4):
            path = f"/resource_providers/{self.provider(f'{name}:l3_{l3}')}/inventories"
            body = self.placement.get(path)
            del body["inventories"]["CUSTOM_LLC_NEIGHBOURHOOD"]
            self.placement.put(path, body)
        self.view.refresh()

    def boot(self, extra_specs, count=1, vcpus=1, memory_mb=512, servers=(), **spec):
        """Schedule servers of one request; returns [(host name, L3 domains)] or raises NoValidHost.

        :param servers: their uuids, where they exist already
        """
        spec = request_spec(extra_specs, vcpus=vcpus, memory_mb=memory_mb, **spec)
        self.last_servers = list(servers) or [str(uuid.uuid4()) for _ in range(count)]
        with (
            mock.patch("nova.scheduler.request_filter.process_reqspec"),
            mock.patch("nova.compute.utils.notify_about_scheduler_action"),
            mock.patch("nova.objects.RequestSpec.save"),
        ):
            self.context.update_store()
            try:
                chosen = self.scheduler.select_destinations(
                    self.context,
                    spec_obj=spec,
                    instance_uuids=self.last_servers,
                    return_objects=True,
                    return_alternates=True,
                )
            except ExpectedException as expected:
                raise expected.exc_info[1] from None
        self.last_selections = chosen
        return [
            (selections[0].service_host, self.domains(server))
            for selections, server in zip(chosen, self.last_servers, strict=True)
        ]

    def claim_alternate(self, server, alternate):
        """Claim another host of the last selection for a server, as the cell's conductor does after a failed build."""
        request = jsonutils.loads(alternate.allocation_request)
        spec = request_spec({})
        assert scheduler_utils.claim_resources(
            self.context,
            report.PLACEMENTCLIENT,
            spec,
            server,
            request,
            allocation_request_version=alternate.allocation_request_version,
        )

    def provider(self, name):
        """Uuid of a provider."""
        found = self.placement.get(f"/resource_providers?name={name}")["resource_providers"]
        return found[0]["uuid"]

    def domains(self, server):
        """Names of the L3 providers that a server has allocated from."""
        allocations = self.placement.get(f"/allocations/{server}")["allocations"]
        names = [self.placement.get(f"/resource_providers/{rp}")["name"] for rp in allocations]
        return sorted(name.partition(":")[2] for name in names if ":l3_" in name)

    def entries(self, kind):
        return [entry for entry in journal.read(self.journal_path) if entry["kind"] == kind]


def compute_node(name, *, nodes=4, cpus_per_node=2, memory_mb=2048, used=None, shared=True):
    """A ComputeNode; ``used`` gives pinned CPUs and used memory by NUMA node.

    With ``shared`` every CPU also serves shared guests (as without cpu_dedicated_set in old nova), so that one small
    host takes LC and BE guests.
    """
    cells = []
    for node in range(nodes):
        cpus = set(range(node * cpus_per_node, (node + 1) * cpus_per_node))
        pinned, memory = (used or {}).get(node, (0, 0))
        cells.append(
            objects.NUMACell(
                id=node,
                socket=node // 2,
                cpuset=cpus if shared else set(),
                pcpuset=cpus,
                memory=memory_mb,
                cpu_usage=0,
                memory_usage=memory,
                pinned_cpus=set(sorted(cpus)[:pinned]),
                siblings=[{cpu} for cpu in cpus],
                mempages=[
                    objects.NUMAPagesTopology(size_kb=4, total=memory_mb * 256, used=memory * 256)
                ],
                network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
            )
        )
    return objects.ComputeNode(
        id=1,
        uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
        host=name,
        hypervisor_hostname=name,
        host_ip="127.0.0.1",
        hypervisor_type="QEMU",
        hypervisor_version=7002022,
        cpu_info="{}",
        supported_hv_specs=[],
        memory_mb=nodes * memory_mb,
        free_ram_mb=nodes * memory_mb,
        local_gb=100,
        local_gb_used=0,
        free_disk_gb=100,
        disk_available_least=100,
        vcpus=nodes * cpus_per_node,
        vcpus_used=0,
        numa_topology=objects.NUMATopology(cells=cells)._to_json(),
        pci_device_pools=objects.PciDevicePoolList(objects=[]),
        metrics="[]",
        stats={},
        ram_allocation_ratio=1.0,
        cpu_allocation_ratio=4.0,
        disk_allocation_ratio=1.0,
        updated_at=None,
    )


def request_spec(
    extra_specs,
    vcpus=1,
    memory_mb=512,
    *,
    image_traits=(),
    image_properties=None,
    hints=None,
    **fields,
):
    """A RequestSpec as nova-api makes it."""
    flavor = objects.Flavor(
        id=1,
        name="flavor",
        flavorid="f",
        vcpus=vcpus,
        memory_mb=memory_mb,
        root_gb=1,
        ephemeral_gb=0,
        swap=0,
        extra_specs=dict(extra_specs),
    )
    traits = {f"trait:{trait}": "required" for trait in image_traits}
    properties = {**traits, **(image_properties or {})}
    image = objects.ImageMeta.from_dict({"id": str(uuid.uuid4()), "properties": properties})
    values = {
        "instance_uuid": str(uuid.uuid4()),
        "num_instances": 1,
        "project_id": "project",
        "user_id": "user",
        "availability_zone": None,
        "ignore_hosts": None,
        "force_hosts": None,
        "force_nodes": None,
        "instance_group": None,
        "requested_destination": None,
        "requested_resources": [],
        "requested_networks": objects.NetworkRequestList(objects=[]),
        "security_groups": objects.SecurityGroupList(objects=[]),
        "scheduler_hints": hints or {},
        "limits": objects.SchedulerLimits(),
        "retry": None,
        "is_bfv": False,
        "pci_requests": objects.InstancePCIRequests(requests=[]),
        "numa_topology": hardware.numa_get_constraints(flavor, image),
    }
    return objects.RequestSpec(flavor=flavor, image=image, **{**values, **fields})


@pytest.fixture(autouse=True)
def nova_configuration():
    """nova's options with our filter before nova's slow two, our weigher after all of nova's."""
    objects.register_all()
    our_conf.register_opts(CONF)
    CONF([], project="nova", default_config_files=[])
    scheduler = "filter_scheduler"
    CONF.set_override(
        "available_filters",
        ["nova.scheduler.filters.all_filters", "nova_numa_ext.scheduler.NumaExtFilter"],
        scheduler,
    )
    CONF.set_override("enabled_filters", FILTERS, scheduler)
    CONF.set_override(
        "weight_classes",
        ["nova.scheduler.weights.all_weighers", "nova_numa_ext.scheduler.NumaExtWeigher"],
        scheduler,
    )
    CONF.set_override("shuffle_best_same_weighed_hosts", False, scheduler)
    CONF.set_override("track_instance_changes", False, scheduler)
    yield SimpleNamespace(set=CONF.set_override)
    process.use(None)
    CONF.reset()
    CONF.clear()


@pytest.fixture
def drawn_guests(monkeypatch):
    """Guests are what a test draws, also those that no flavor makes."""
    monkeypatch.setattr(nova_objects, "guest_topology", lambda spec: spec.numa_topology)


@pytest.fixture(scope="session")
def no_providers():
    """The database of a Placement without providers."""
    with PlacementInProcess() as placement:
        return placement.image()


@pytest.fixture
def cloud(nova_configuration, no_providers, tmp_path):
    """Nova's scheduler over an empty Placement; a story adds its hosts with :meth:`SchedulerCloud.host`.

    ::

        nova-scheduler   NumaExtFilter, NUMATopologyFilter, PciPassthroughFilter; all of nova's weighers, NumaExtWeigher
        ├─ HostStates    from the list of ComputeNodes that the story has added
        └─ Placement     in process; no providers yet
           h1 …          VCPU 8 × 4, PCPU 8, MEMORY_MB 8192, DISK_GB 100
           ├─ h1:rdt, h1:l3_0 … h1:l3_3   as the host's agent publishes them
    """
    with PlacementInProcess() as placement:
        placement.restore(no_providers)
        yield SchedulerCloud(placement, tmp_path / "decisions.jsonl")
    report.PLACEMENTCLIENT = None
