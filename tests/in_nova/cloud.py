# SPDX-License-Identifier: Apache-2.0
"""A cloud in one process: nova's API, conductor, scheduler, computes over a fake libvirt, and a real Placement.

Requests go through nova's API, so every RequestSpec is the one that nova's conductor makes for that operation, and
every server ends on the NUMA node that nova-compute picks.
"""

import io
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fixtures
from nova import context, objects
from nova.tests import fixtures as nova_fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional import integrated_helpers
from nova.tests.functional.libvirt import base

from emulation.hosts import four_nodes
from nova_numa_ext import endpoints
from nova_numa_ext.cli import explain_command
from nova_numa_ext.fabrics import PlacementFabrics
from nova_numa_ext.scheduler import process
from placement_traits import journal, names
from placement_traits.client import PlacementClient
from placement_traits.names import PackingTrait
from placement_traits.offers import L3State, TreeSettings
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree
from placement_traits.view import FleetView, ViewSettings
from tests.support.fabric_in_placement import put_fabric
from tests.support.group_hosts import leaf_trait

LC = {
    "numa_ext:tier": "LC",
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "resources:CUSTOM_RDT_CLOS": "1",
    "resources_NODE:CUSTOM_LLC_WAY": "4",
}
BE = {"numa_ext:tier": "BE"}
RABBIT = {
    **LC,
    "numa_ext:interference_class": "rabbit",
    "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000",
}

_PATIENCE = 240  # tries, two a second


class LiveView:
    """The fleet as Placement has it at the moment of each question."""

    def __init__(self, adapter):
        self.adapter = adapter
        self._view = FleetView(adapter, ViewSettings(max_age_s=3600.0), background=False)

    def snapshot(self):
        self._view.refresh()
        return self._view.snapshot()


class Requests:
    """What all clouds here have: servers by nova's API, and hosts on the leafs of a fabric."""

    client: Any
    api: Any
    host: Any
    _build_server: Any
    _create_flavor: Any
    _get_provider_uuid_by_name: Any
    _wait_for_state_change: Any

    def _wait_for_server_parameter(self, server, expected, max_retries=10, **more):
        """Wait as nova's own tests do, and on a busy machine longer: their 5 s are for one server and an idle one."""
        patience = max(max_retries, _PATIENCE)
        return super()._wait_for_server_parameter(server, expected, patience, **more)  # type: ignore[misc]

    def cabled(self, plan):
        """Write a fabric and start its hosts, each with the trait of its leaf."""
        put_fabric(self.client, plan)
        for host, leaf in plan.hosts.items():
            self.host(host)
            path = f"/resource_providers/{self._get_provider_uuid_by_name(host)}/traits"
            there = self.client.get(path)
            self.client.put(path, {**there, "traits": [*there["traits"], leaf_trait(leaf)]})
        self.fabrics = PlacementFabrics(self.client)

    def flavor(self, extra_specs, vcpus=1, memory_mb=512):
        """Make a flavor; returns its id."""
        return self._create_flavor(
            vcpu=vcpus, memory_mb=memory_mb, disk=1, ephemeral=0, extra_spec=extra_specs
        )

    def boot(self, extra_specs, vcpus=1, state="ACTIVE", hints=None, **body):
        """Create servers of one request and wait for them; returns the one, or a list when several were asked for.

        :param state: the state that they must come to
        :param hints: scheduler hints
        :param body: more of the request's body: ``host``, ``availability_zone``, ``min_count``, ``imageRef``
        """
        flavor = self.flavor(extra_specs, vcpus)
        server = self._build_server(flavor_id=flavor, networks="none") | body
        request = {"server": server} | ({"os:scheduler_hints": hints} if hints else {})
        count = body.get("min_count", 1)
        if count > 1:
            server["return_reservation_id"] = True
            reservation = self.api.post_server(request)["reservation_id"]
            made = self.api.get_servers(search_opts={"reservation_id": reservation})
        else:
            made = [self.api.post_server(request)]
        ready = [self._wait_for_state_change(each, state) for each in made]
        return ready if count > 1 else ready[0]

    def host_of(self, server):
        """The host that nova says it is on."""
        return self.api.get_server(server["id"])["OS-EXT-SRV-ATTR:host"]


class FakeCloud(Requests, integrated_helpers.ProviderUsageBaseTestCase):
    """Nova's API, conductor, scheduler and computes with nova's fake driver: many hosts that start soon.

    What is cast is waited for: the database of nova's fixtures stands few threads at once. ::

        l000-00         VCPU, MEMORY_MB, DISK_GB   (nova-compute's); CUSTOM_NUMA_EXT_HOST
        └─ l000-00:rdt  (our agent's)              CUSTOM_NUMA_EXT_OWNER
    """

    compute_driver = "fake.MediumFakeDriver"

    def setUp(self):
        super().setUp()
        self.useFixture(nova_fixtures.CastAsCallFixture(self))
        self.flags(
            rpc_response_timeout=600
        )  # one such call is all of a group's scheduling and building
        for limit in ("instances", "cores", "ram", "server_groups", "server_group_members"):
            self.flags(**{limit: -1}, group="quota")
        self.client = PlacementClient(process.engine()._view.adapter)
        for trait in (names.HOST, names.OWNER):
            self.client.put(f"/traits/{trait}")

    def host(self, name):
        """Start nova-compute, and publish as much as our agent does where there is nothing to publish."""
        self._start_compute(name)
        root = self._get_provider_uuid_by_name(name)
        self._publish(root, names.HOST)
        child = {"name": f"{name}:rdt", "parent_provider_uuid": root}
        self._publish(self.client.post("/resource_providers", child)["uuid"], names.OWNER)

    def _publish(self, provider, trait):
        path = f"/resource_providers/{provider}/traits"
        there = self.client.get(path)
        self.client.put(path, {**there, "traits": [*there["traits"], trait]})


class NovaCloud(Requests, base.LibvirtMigrationMixin, base.ServersTestBase):
    """Hosts of four NUMA nodes, each with two dedicated CPUs, a shared one, 2 GB and an L3 cache of its own.

    ::

        h1                      VCPU 4 × 4, PCPU 8, MEMORY_MB 8192, DISK_GB   (nova-compute's)
        ├─ h1:rdt               CUSTOM_RDT_CLOS 6                             (our agent's)
        └─ h1:l3_0 … h1:l3_3    CUSTOM_LLC_WAY 13, CUSTOM_MEMORY_BANDWIDTH_MBPS 10000,
                                CUSTOM_LLC_NEIGHBOURHOOD 1000
    """

    ADMIN_API = True
    microversion = "latest"
    ADDITIONAL_FILTERS = ("NUMATopologyFilter", "PciPassthroughFilter")

    def setUp(self):
        super().setUp()
        self.flags(cpu_dedicated_set="0-1,3-4,6-7,9-10", cpu_shared_set="2,5,8,11", group="compute")
        self.flags(reserved_host_memory_mb=0)
        self.flags(shuffle_best_same_weighed_hosts=False, group="filter_scheduler")
        self.useFixture(  # there are no disks to copy
            fixtures.MockPatch(
                "nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off",
                return_value="{}",
            )
        )
        self.client = PlacementClient(process.engine()._view.adapter)

    # Hosts ------------------------------------------------------------------------------------------------------------

    def host(self, name, agent=True, **compute):
        """Start nova-compute on a host, and our agent unless told otherwise."""
        info = fakelibvirt.HostInfo(cpu_nodes=4, cpu_sockets=1, cpu_cores=3, kB_mem=8 * 1024**2)
        self.start_compute(hostname=name, host_info=info, **compute)
        if agent:
            self.publish(name)

    def publish(self, name, neighbours=(), reserved=0, **settings):
        """Let the host's agent report.

        :param neighbours: what runs in each of its L3 domains
        :param reserved: units of each domain's cache neighbourhood that servers hold there without a claim
        """
        state = {
            l3: L3State(frozenset(neighbours), reserved_neighbourhood=reserved) for l3 in range(4)
        }
        tree = desired_tree(
            name, four_nodes(), TreeSettings(PackingTrait.SPREAD, **settings), state
        )
        assert Reporter(self.client).sync(tree).problems == ()

    # Servers ----------------------------------------------------------------------------------------------------------

    def nodes_of(self, server):
        """NUMA nodes that nova-compute picked."""
        topology = objects.InstanceNUMATopology.get_by_instance_uuid(
            context.get_admin_context(), server["id"]
        )
        return [cell.id for cell in topology.cells]

    def claims(self, consumer):
        """What Placement has allocated to a consumer: provider name -> {class: amount}."""
        allocations = self.client.get(f"/allocations/{consumer}")["allocations"]
        name_of = {
            uuid: self.client.get(f"/resource_providers/{uuid}")["name"] for uuid in allocations
        }
        return {name_of[uuid]: entry["resources"] for uuid, entry in allocations.items()}

    def assert_agrees(self, server, host, node=None):
        """Nova, Placement and the instance name the same host and the same NUMA node; the CPUs are dedicated ones."""
        assert self.host_of(server) == host
        [picked] = self.nodes_of(server)
        claimed = self.claims(server["id"])
        assert set(claimed) == {host, f"{host}:rdt", f"{host}:l3_{picked}"}
        assert "PCPU" in claimed[host] and "VCPU" not in claimed[host]
        assert node is None or node == picked
        return picked

    # What was decided -------------------------------------------------------------------------------------------------

    def entries(self, kind="filter"):
        """Journal entries of a kind, oldest first."""
        return [e for e in journal.read(process.engine()._journal._path) if e["kind"] == kind]

    def reasons(self):
        """Sentences of the last decision's refusals, by host."""
        return {
            host["node"]: [reason["text"] for reason in host["reasons"]]
            for host in self.entries()[-1]["details"]
            if host["reasons"]
        }

    def explain(self, server):
        """What ``numa-ext-explain`` prints about a server, with nova's API as it is."""
        said = io.StringIO()
        with (
            mock.patch.object(endpoints, "placement", lambda _conf: self.client._adapter),
            mock.patch.object(endpoints, "compute", lambda _conf: self),
            mock.patch.object(endpoints, "image", lambda _conf: self),
            redirect_stdout(said),
        ):
            explain_command.main([server["id"], "--journal", str(process.engine()._journal._path)])
        return said.getvalue()

    def get(self, url, **_options):
        """Answer a GET as the compute endpoint of a catalog does; images are not known here."""
        known = not url.startswith("/v2/")
        return SimpleNamespace(
            status_code=200 if known else 404,
            json=lambda: self.api.api_get(url).body,
        )
