# SPDX-License-Identifier: Apache-2.0
"""What runs in another L3 domain than it is counted in is sold to no other server, until ``heal`` has moved it."""

import uuid

import pytest

from emulation.hosts import four_nodes
from host_agent.conf.options import Options
from host_agent.conf.placement import PlacementOptions
from host_agent.model.assignment import Assignment, Decision, Guest, Observation
from host_agent.model.round import Round
from host_agent.model.workload import Activity, parse
from host_agent.report.claimed import ClaimReader
from host_agent.report.metrics import Metrics
from host_agent.report.publisher import PublishedFacts, Publisher
from placement_traits.client import PlacementError
from placement_traits.reporter import Reporter
from tests.support.allocations import L3_PART, SPECS, server_on
from tests.support.placement_side import GivenPlacement

FULL = {**SPECS, "resources_NODE:CUSTOM_LLC_WAY": "13"}


class Nothing:
    """Traffic that nothing but declarations makes."""

    def reserved_mbps(self, _topology, _claims):
        return dict.fromkeys(range(4), 0)


@pytest.fixture
def agent(host):
    """The agent of h1: one pass over a round with these servers; returns whether Placement is up to date."""
    client = host.cloud.client
    publisher = Publisher(
        Options(placement=PlacementOptions(cell_packing="pack")),
        GivenPlacement(Reporter(client), "h1", ClaimReader(client, "h1")),
        Metrics(),
        PublishedFacts(reservation=Nothing()),
    )

    def publish(*servers):
        guests = tuple(Guest(parse(server.xml, Activity.RUNNING)) for server in servers)
        decided = tuple(
            Assignment(server.uuid, vcpu_cpus={0: frozenset(server.cpus)}) for server in servers
        )
        publisher.on_round(Round(Observation(four_nodes(), guests), Decision(decided)))
        return publisher.publish_once()

    return publish


def test_what_runs_elsewhere_is_reserved_until_it_is_healed(host, agent):
    server, late = server_on(2, specs=FULL), server_on(2, "late")
    host.claim(server, l3=0, CUSTOM_LLC_WAY=13)
    assert agent(server)
    assert host.reserved("h1:l3_2") == {**L3_PART, "CUSTOM_LLC_WAY": 13}
    with pytest.raises(PlacementError, match="CUSTOM_LLC_WAY"):
        host.claim(late, l3=2)
    assert [row.result for row in host.heal(server)] == ["done"]
    assert host.held(server.uuid)["h1:l3_2"] == {**L3_PART, "CUSTOM_LLC_WAY": 13}
    assert agent(server)
    assert [host.reserved(f"h1:l3_{l3}") for l3 in range(4)] == [{}] * 4
    host.claim(late, l3=0)  # the other domain is for sale again


def test_the_agent_counts_again_what_heal_did_not_give_back(host, agent):
    """The transaction takes what was missing only: the rest goes with the agent's next pass."""
    server = server_on(2)
    host.claim(server, l3=0)
    agent(server)
    host.heal(server)
    assert host.reserved("h1:l3_2") == L3_PART  # there was room
    agent(server)
    assert host.reserved("h1:l3_2") == {}


def test_two_servers_in_each_others_full_domain_are_reserved_and_swap(host, agent):
    a, b = server_on(2, "a", FULL), server_on(3, "b", FULL)
    host.claim(a, l3=3, CUSTOM_LLC_WAY=13)
    host.claim(b, l3=2, CUSTOM_LLC_WAY=13)
    assert agent(a, b)
    assert [row.result for row in host.heal(a, b)] == ["done", "done"]
    assert agent(a, b)
    assert "h1:l3_2" in host.held(a.uuid)
    assert [host.reserved(f"h1:l3_{l3}") for l3 in range(4)] == [{}] * 4


def test_a_server_that_leaves_is_counted_once(host, agent):
    """A live migration from here: the migration holds its part, and nothing is reserved beside."""
    server = server_on(2)
    host.claim(server, l3=2)
    host.nova.move_allocations(host.context, server.uuid, str(uuid.uuid4()))
    assert agent(server)
    assert host.reserved("h1:l3_2") == {}


def test_claims_are_read_again_only_where_something_has_changed(host):
    asked = []
    reader = ClaimReader(host.cloud.client, "h1")
    server = server_on(1)
    host.claim(server, l3=1)
    get = host.cloud.client.get
    host.cloud.client.get = lambda path: (asked.append(path), get(path))[1]
    assert reader.read()[1] == {server.uuid: L3_PART}
    assert sum(path.endswith("/allocations") for path in asked) == 4
    asked.clear()
    reader.read()
    assert len(asked) == 1
    host.claim(server_on(3), l3=3)
    asked.clear()
    reader.read()
    assert sum(path.endswith("/allocations") for path in asked) == 1


def test_a_tree_that_nova_makes_again_is_found_again(host):
    reader = ClaimReader(host.cloud.client, "h1")
    assert len(reader.read()) == 4
    for provider in ("h1:rdt", *(f"h1:l3_{n}" for n in range(4)), "h1_0000:05:00.0"):
        host.cloud.client.delete(f"/resource_providers/{host.cloud.uuid(provider)}")
    gpus = host.cloud.client.get(f"/resource_providers?in_tree={host.cloud.uuid('h1')}")
    for provider in sorted(gpus["resource_providers"], key=lambda p: p["name"], reverse=True):
        host.cloud.client.delete(f"/resource_providers/{provider['uuid']}")
    assert reader.read() == {}
    host.cloud.compute("h1")
    assert reader.read() == {}
    host.cloud.child(host.cloud.uuid("h1"), "h1:l3_0")
    assert reader.read() == {0: {}}
