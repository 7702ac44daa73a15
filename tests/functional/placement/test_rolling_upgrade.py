# SPDX-License-Identifier: Apache-2.0
"""Agents and controllers of two releases in one cloud, in either order, and back again.

The old release's own code writes and reads the same real Placement, as processes of its own.
"""

import json
import uuid

import pytest

from emulation.hosts import four_nodes
from nova_numa_ext.cli.fleet import one_reading
from placement_traits import formats, names
from placement_traits.names import TierTrait
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree
from tests.support.hosts import SETTINGS
from tests.support.old_release import OldRelease
from tests.support.placement_over_http import placement_over_http

pytestmark = pytest.mark.long

_CONNECT = """
import json, sys
from keystoneauth1 import adapter, session, token_endpoint
from placement_traits.client import PlacementClient
endpoint = adapter.Adapter(
    session.Session(token_endpoint.Token(sys.argv[1], "admin")), service_type="placement"
)
"""
_PUBLISH = f"""{_CONNECT}
from placement_traits.names import PackingTrait
from placement_traits.reporter import Reporter
from placement_traits.topology import HostTopology
from placement_traits.tree import TreeSettings, wanted_tree
tree = wanted_tree("h1", HostTopology.from_json(sys.argv[2]), TreeSettings(PackingTrait.SPREAD))
print(json.dumps(Reporter(PlacementClient(endpoint)).sync(tree).problems))
"""
_READ = f"""{_CONNECT}
from placement_traits.view import FleetView
view = FleetView(endpoint, background=False)
view.refresh()
print(json.dumps([
    [host.name, len(host.l3), [l3.ways.used for l3 in host.l3], sorted(host.traits)]
    for host in view.snapshot().hosts.values()
]))
"""


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """The release before this one."""
    return OldRelease(tmp_path_factory.mktemp("old"))


@pytest.fixture
def cloud(old):
    """What nova-compute makes at its first start, over HTTP::

    h1    VCPU 8, MEMORY_MB 8192; HW_CPU_X86_AVX2
    """
    with placement_over_http() as placement:
        cloud = placement.cloud
        cloud.root = cloud.compute("h1")
        cloud.old_publishes = lambda: json.loads(  # type: ignore[attr-defined]
            old.run(_PUBLISH, placement.url, four_nodes().to_json())
        )
        cloud.old_reads = lambda: json.loads(old.run(_READ, placement.url))  # type: ignore[attr-defined]
        cloud.publishes = lambda: Reporter(cloud.client).sync(  # type: ignore[attr-defined]
            desired_tree("h1", four_nodes(), SETTINGS)
        )
        yield cloud


def claim(cloud, **more):
    """Let a server hold four ways of the first domain."""
    held = {
        cloud.uuid("h1:rdt"): {"CUSTOM_RDT_CLOS": 1},
        cloud.uuid("h1:l3_0"): {"CUSTOM_LLC_WAY": 4, **more},
    }
    consumer = str(uuid.uuid4())
    cloud.claim(consumer, allocations=held)
    return lambda: cloud.client.get(f"/allocations/{consumer}")["allocations"].keys() == held.keys()


def providers(cloud):
    return {
        each["name"]: each["uuid"]
        for each in cloud.client.get(f"/resource_providers?in_tree={cloud.root}")[
            "resource_providers"
        ]
    }


def test_controllers_first_new_readers_understand_hosts_of_old_agents(cloud):
    assert cloud.old_publishes() == []
    held = claim(cloud)
    (host,) = one_reading(cloud.adapter).hosts.values()
    assert (host.name, formats.of(host.traits)) == ("h1", formats.FIRST)
    assert frozenset(TierTrait) <= host.traits
    assert [domain.ways.used for domain in host.l3] == [4, 0, 0, 0]
    assert [domain.neighbourhood for domain in host.l3] == [None] * 4
    assert host.rdt.clos.used == 1
    assert held()


def test_agents_first_old_readers_understand_hosts_of_new_agents(cloud):
    cloud.publishes()
    claim(cloud)
    ((name, domains, ways, traits),) = cloud.old_reads()
    assert (name, domains, ways) == ("h1", 4, [4, 0, 0, 0])
    assert {*TierTrait, formats.TRAIT} <= set(traits)


def test_an_agent_that_is_upgraded_keeps_its_providers_and_what_servers_hold(cloud):
    cloud.old_publishes()
    held, before = claim(cloud), providers(cloud)
    report = cloud.publishes()
    assert (report.problems, providers(cloud), held()) == ((), before, True)
    fresh = cloud.everything()
    root_traits, l3 = fresh["h1"][1], fresh["h1:l3_0"][2]
    assert formats.of(root_traits) == formats.CURRENT
    assert names.LLC_NEIGHBOURHOOD in l3
    assert cloud.publishes().writes == 0, "it is complete after one pass"


@pytest.mark.parametrize("strict", [False, True])
def test_an_agent_that_is_downgraded_keeps_its_providers_and_what_servers_hold(cloud, strict):
    cloud.publishes()
    held = claim(cloud, **({"CUSTOM_LLC_NEIGHBOURHOOD": 1000} if strict else {}))
    before = providers(cloud)
    problems = cloud.old_publishes()
    assert (problems, providers(cloud), held()) == ([], before, True)
    root_traits = cloud.everything()["h1"][1]
    assert formats.of(root_traits) == formats.FIRST, "the old agent takes the trait away"
    assert frozenset(TierTrait) <= root_traits
    ((name, domains, ways, _),) = cloud.old_reads()
    assert (name, domains, ways) == ("h1", 4, [4, 0, 0, 0])


def test_up_and_down_and_up_ends_as_a_first_installation_does(cloud):
    cloud.publishes()
    first = cloud.everything()
    cloud.old_publishes()
    assert cloud.publishes().problems == ()
    assert cloud.everything() == first
