# SPDX-License-Identifier: Apache-2.0
"""By the shipped policy file the role ``numa_ext_host`` may do what publishing needs, and nothing else."""

import uuid

import pytest

from emulation.hosts import four_nodes
from host_agent.report.claimed import ClaimReader
from placement_traits.beats import BeatWriter
from placement_traits.client import PlacementError
from placement_traits.names import NeighbourTrait
from placement_traits.offers import L3State
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree
from tests.support.filled_placement import FilledPlacement
from tests.support.hosts import SETTINGS
from tests.support.placement_roles import PlacementWithRoles, granted, operations, rules_of

ROLE = "numa_ext_host"
HEADERS = {"OpenStack-API-Version": "placement 1.39", "Accept": "application/json"}


@pytest.fixture(scope="module", params=[False, True], ids=["old-defaults", "new-defaults"])
def placement(request):
    """A Placement with our policy file, and nothing in it."""
    with PlacementWithRoles(new_defaults=request.param) as found:
        yield found


@pytest.fixture(scope="module")
def without_file():
    """A Placement of an operator who has not installed the policy file."""
    with PlacementWithRoles(policy_file=None) as found:
        yield found


def ask(adapter, method, path):
    """Send a request that names nothing that is there; return the status."""
    names = {"uuid": uuid.uuid4(), "consumer_uuid": uuid.uuid4()}
    path = path.format(**names, name="CUSTOM_X", resource_class="CUSTOM_X")
    body = {} if method in ("PUT", "POST") else None
    return adapter.request(path, method, json=body, headers=HEADERS, raise_exc=False).status_code


def test_every_rule_of_the_file_is_one_of_placements():
    """A rule that Placement does not know grants nothing, silently."""
    assert granted() <= {rule for rule, _, _ in operations()}


@pytest.mark.parametrize(("rule", "method", "path"), operations())
def test_each_rule(placement, rule, method, path):
    status = ask(placement.adapter(ROLE), method, path)
    assert (status != 403) == (rule in granted())
    assert ask(placement.adapter("another"), method, path) == 403
    assert ask(placement.adapter("service"), method, path) != 403


@pytest.mark.parametrize("rule", sorted(granted()))
def test_admins_keep_their_rights(placement, rule):
    """Of what the file spells again; for the rest the file changes nothing."""
    for each, method, path in operations():
        if each == rule:
            assert ask(placement.adapter("admin"), method, path) != 403


@pytest.mark.parametrize(("rule", "method", "path"), operations())
def test_without_the_file_the_role_may_nothing(without_file, rule, method, path):
    assert ask(without_file.adapter(ROLE), method, path) == 403


# What the agent asks Placement for ------------------------------------------------------------------------------------


class Counted:
    """An agent whose Keystone user has the host's role alone, and all that it does in Placement."""

    def __init__(self, placement):
        self.adapter = placement.adapter(ROLE)
        client = FilledPlacement(self.adapter).client
        self.novas = FilledPlacement(placement.adapter("service"))
        self.reporter = Reporter(client)
        self.beats = BeatWriter(client, "h1")
        self.claims = ClaimReader(client, "h1")

    def sync(self, **changes):
        topology = four_nodes(**changes)
        report = self.reporter.sync(desired_tree("h1", topology, SETTINGS, LIVED_IN))
        assert report.problems == ()


LIVED_IN = {1: L3State(frozenset({NeighbourTrait.LC}), reserved_bandwidth_mbps=500)}


def test_the_role_may_what_an_agent_does_and_nothing_more(placement):
    """First start, changes, a device that is gone, an end; a rule that none of it needs is not granted."""
    agent = Counted(placement)
    agent.novas.compute("h1")
    agent.sync()
    agent.beats.age_minutes()
    agent.beats.beat()
    assert agent.claims.read() == {l3: {} for l3 in range(4)}
    agent.sync(gpus=(), gpu_links=())
    assert agent.reporter.withdraw_tiers("h1").problems == ()
    # Another's provider is in the way.
    agent.novas.client.delete(f"/resource_providers/{agent.novas.uuid('h1:rdt')}")
    agent.novas.client.post("/resource_providers", {"name": "h1:rdt", "uuid": str(uuid.uuid4())})
    report = agent.reporter.sync(desired_tree("h1", four_nodes(), SETTINGS))
    assert report.problems == (
        "Provider h1:rdt cannot be created: the name is taken outside this host's tree.",
    )
    assert rules_of(agent.adapter.log) == granted()


def test_what_servers_hold_is_out_of_reach(placement):
    """Read by provider, which is what the agent does; not by consumer, not changed, not deleted."""
    cloud = FilledPlacement(placement.adapter("service"))
    compute = cloud.compute("h7")
    server = str(uuid.uuid4())
    cloud.claim(server, allocations={compute: {"VCPU": 1}})
    before = cloud.client.get(f"/allocations/{server}")
    host = FilledPlacement(placement.adapter(ROLE)).client
    found = host.get(f"/resource_providers/{compute}/allocations")["allocations"]
    assert found[server]["resources"] == {"VCPU": 1}
    generation = cloud.generation(compute)
    inventories = {compute: {"resource_provider_generation": generation, "inventories": {}}}
    for method, path, body in (
        ("GET", f"/allocations/{server}", None),
        ("PUT", f"/allocations/{server}", before),
        ("PUT", f"/allocations/{server}", {**before, "allocations": {}}),
        ("POST", "/allocations", {server: before}),
        ("DELETE", f"/allocations/{server}", None),
        ("POST", "/reshaper", {"inventories": inventories, "allocations": {server: before}}),
        ("GET", "/allocation_candidates?resources=VCPU:1", None),
        ("PUT", f"/resource_providers/{compute}/aggregates", {"aggregates": []}),
    ):
        with pytest.raises(PlacementError, match="403"):
            host.call(method, path, body)
    assert cloud.client.get(f"/allocations/{server}") == before
