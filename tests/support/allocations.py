# SPDX-License-Identifier: Apache-2.0
"""Two compute nodes in a real Placement whose servers claim as nova-scheduler does, with hooks for races."""

from keystoneauth1.adapter import Adapter
from nova import context as nova_context
from nova.scheduler.client import report

from emulation.hosts import four_nodes
from emulation.servers import LC_SPECS, Server
from host_agent.decide.amounts.claims import claims
from host_agent.model.assignment import Guest, Observation
from host_agent.model.workload import Activity, parse
from host_agent.report.allocations import Allocations
from host_agent.report.rehome import Rehomer
from placement_traits.client import ALLOCATIONS_MICROVERSION
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree
from tests.support.faults import FaultyAdapter
from tests.support.filled_placement import FilledPlacement
from tests.support.hosts import SETTINGS

SPECS = {**LC_SPECS, "resources_NODE:CUSTOM_MEMORY_BANDWIDTH_MBPS": "2000"}
L3_PART = {"CUSTOM_LLC_WAY": 4, "CUSTOM_MEMORY_BANDWIDTH_MBPS": 2000}


class Lines(list):
    """A journal that keeps its entries."""

    def write(self, entry):
        self.append(entry)


class TwoComputes:
    """h1 with our tree and a PCI provider, h2 beside it; nova's own client, and ours with a hook before each request.

    The ``host`` fixture of ``tests/functional/placement`` draws them.
    """

    def __init__(self, adapter):
        self.cloud = FilledPlacement(adapter)
        for name in ("h1", "h2"):
            self.cloud.compute(name, PCPU=8)
            Reporter(self.cloud.client).sync(desired_tree(name, four_nodes(), SETTINGS))
        self.cloud.child(self.cloud.uuid("h1"), "h1_0000:05:00.0", CUSTOM_PCI_GPU=1)
        self.nova = report.SchedulerReportClient(adapter=_novas(adapter))
        self.context = nova_context.RequestContext("user", "project", is_admin=True)
        self.before_post = None  # called once, right before our write
        self.after_asking = None  # called once, after nova was asked
        self.busy = {}  # server -> what nova says is under way
        self.journal = Lines()
        self.adapter = FaultyAdapter(adapter, self._race)
        client = self.cloud.connect(self.adapter)
        once = self.cloud.connect(self.adapter, 1, ALLOCATIONS_MICROVERSION)
        self.allocations = Allocations(client, once, "h1", self._why_busy)
        self.rehomer = Rehomer(self.allocations, "h1", self.journal)

    def _race(self, method, url):
        if (method, url) == ("POST", "/allocations") and self.before_post:
            race, self.before_post = self.before_post, None
            race()

    def _why_busy(self, server, _host):
        race, self.after_asking = self.after_asking, None
        if race:
            race()
        return self.busy.get(server, "")

    def claim(self, server, l3, host="h1", pci=False, consumer_type="INSTANCE", **resources):
        """Claim as nova-scheduler does."""
        held = {
            host: {"PCPU": 1, "MEMORY_MB": 64},
            f"{host}:rdt": {"CUSTOM_RDT_CLOS": 1},
            f"{host}:l3_{l3}": {**L3_PART, **resources},
        }
        if pci:
            held["h1_0000:05:00.0"] = {"CUSTOM_PCI_GPU": 1}
        body = {
            "allocations": {
                self.cloud.uuid(name): {"resources": amounts} for name, amounts in held.items()
            },
            "project_id": "project",
            "user_id": "user",
            "consumer_generation": None,
            "consumer_type": consumer_type,
        }
        self.cloud.client.put(f"/allocations/{server.uuid}", body)
        return self.held(server.uuid)

    def held(self, consumer):
        """What a consumer holds: amounts by provider name."""
        found = self.cloud.client.get(f"/allocations/{consumer}")["allocations"]
        return {
            self.cloud.client.get(f"/resource_providers/{rp}")["name"]: entry["resources"]
            for rp, entry in found.items()
        }

    def turn(self, *servers):
        """Let the agent look once at servers that run here."""
        return self.rehomer.turn(running(*servers))


def _novas(adapter):
    return Adapter(adapter.session, service_type="placement", raise_exc=False)


def running(*servers, activity=Activity.RUNNING):
    """The claims of servers that run."""
    guests = tuple(Guest(parse(server.xml, activity)) for server in servers)
    return claims(Observation(four_nodes(), guests))


def server_on(node, title="lc", specs=SPECS):
    """A server that nova-compute has put on the first CPU of a node; L3 domains have the nodes' numbers."""
    return Server(title, specs, cpus=(2 * node,), node=node)
