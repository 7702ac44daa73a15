# SPDX-License-Identifier: Apache-2.0
"""Two compute nodes in a real Placement whose servers claim as nova-scheduler does, with hooks for races."""

from keystoneauth1.adapter import Adapter
from nova import context as nova_context
from nova.scheduler.client import report

from emulation.hosts import four_nodes
from emulation.servers import LC_SPECS, Server
from nova_numa_ext.cli.fleet import one_reading
from nova_numa_ext.heal.healer import Healer
from nova_numa_ext.heal.nova_servers import NovaServers
from placement_traits.client import ALLOCATIONS_MICROVERSION
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree
from tests.support.faults import FaultyAdapter
from tests.support.filled_placement import FilledPlacement
from tests.support.hosts import SETTINGS
from tests.support.nova_api import NovaApi

SPECS = {**LC_SPECS, "resources_NODE:CUSTOM_MEMORY_BANDWIDTH_MBPS": "2000"}
L3_PART = {"CUSTOM_LLC_WAY": 4, "CUSTOM_MEMORY_BANDWIDTH_MBPS": 2000}


def put_two_computes(adapter):
    """Make the providers of :class:`TwoComputes`."""
    cloud = FilledPlacement(adapter)
    for name in ("h1", "h2"):
        cloud.compute(name, PCPU=8)
        Reporter(cloud.client).sync(desired_tree(name, four_nodes(), SETTINGS))
    cloud.child(cloud.uuid("h1"), "h1_0000:05:00.0", CUSTOM_PCI_GPU=1)


class TwoComputes:
    """h1 with our tree and a PCI provider, h2 beside it; nova's own client, and ours with hooks.

    The ``host`` fixture of ``tests/functional/placement`` draws them.

    :ivar api: nova's API
    :ivar fault: when set, called with (method, path) of each of our requests to Placement; returns a fault or None
    :ivar before_post: called once, right before our write
    :ivar after_asking: called once, when nova has been asked whether something is under way
    """

    def __init__(self, adapter):
        self.cloud = FilledPlacement(adapter)
        self.nova = report.SchedulerReportClient(adapter=_novas(adapter))
        self.context = nova_context.RequestContext("user", "project", is_admin=True)
        self.fault = None
        self.before_post = None
        self.after_asking = None
        self.api = NovaApi()
        self.api.fault = self._asked
        self.adapter = FaultyAdapter(adapter, self._race)
        once = self.cloud.connect(self.adapter, 1, ALLOCATIONS_MICROVERSION)
        self.healer = Healer(
            NovaServers(self.api),
            self.cloud.connect(self.adapter),
            once,
            lambda: one_reading(adapter),
        )

    def _race(self, method, url):
        if (method, url) in (("POST", "/allocations"), ("POST", "/reshaper")) and self.before_post:
            race, self.before_post = self.before_post, None
            race()
        return self.fault and self.fault(method, url)

    def _asked(self, path):
        if path.startswith("/os-migrations?instance_uuid=") and self.after_asking:
            race, self.after_asking = self.after_asking, None
            race()

    def claim(self, server, l3, host="h1", pci=False, consumer_type="INSTANCE", **resources):
        """Claim as nova-scheduler does."""
        held = {
            host: {"PCPU": 1, "MEMORY_MB": 64},
            f"{host}:rdt": {"CUSTOM_RDT_CLOS": 1},
            f"{host}:l3_{l3}": {**L3_PART, **resources},
        }
        if pci:
            held["h1_0000:05:00.0"] = {"CUSTOM_PCI_GPU": 1}
        return self.allocate(server.uuid, held, consumer_type)

    def allocate(self, consumer, held, consumer_type="INSTANCE"):
        """Let a new consumer hold amounts by provider name."""
        body = {
            "allocations": {
                self.cloud.uuid(name): {"resources": amounts} for name, amounts in held.items()
            },
            "project_id": "project",
            "user_id": "user",
            "consumer_generation": None,
            "consumer_type": consumer_type,
        }
        self.cloud.client.put(f"/allocations/{consumer}", body)
        return self.held(consumer)

    def held(self, consumer):
        """What a consumer holds: amounts by provider name."""
        found = self.cloud.client.get(f"/allocations/{consumer}")["allocations"]
        return {
            self.cloud.client.get(f"/resource_providers/{rp}")["name"]: entry["resources"]
            for rp, entry in found.items()
        }

    def reserve(self, provider, **amounts):
        """Reserve as the agent does."""
        path = f"/resource_providers/{self.cloud.uuid(provider)}/inventories"
        body = self.cloud.client.get(path)
        for name, amount in amounts.items():
            body["inventories"][name]["reserved"] = amount
        self.cloud.client.put(path, body)

    def reserved(self, provider):
        """What is reserved of a provider, by class."""
        path = f"/resource_providers/{self.cloud.uuid(provider)}/inventories"
        found = self.cloud.client.get(path)["inventories"]
        return {name: stock["reserved"] for name, stock in found.items() if stock["reserved"]}

    def heal(self, *servers, write=True):
        """Let nova have these servers on h1, where they are, and heal; returns the rows."""
        for server in servers:
            if server.uuid not in self.api.servers:
                self.api.add(server)
        return list(self.healer.run(write=write))


def _novas(adapter):
    return Adapter(adapter.session, service_type="placement", raise_exc=False)


def server_on(node, title="lc", specs=SPECS):
    """A server that nova-compute has put on the first CPU of a node; L3 domains have the nodes' numbers."""
    return Server(title, specs, cpus=(2 * node,), node=node)
