# SPDX-License-Identifier: Apache-2.0
"""What servers should hold of L3 domains, and what of it is counted elsewhere."""

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.decide.amounts.claims import DomainPart, ServerClaim, claimed_elsewhere, claims
from host_agent.model.assignment import Guest, Observation
from host_agent.model.workload import Activity, parse

SPECS = {**LC_SPECS, "resources_NODE:CUSTOM_MEMORY_BANDWIDTH_MBPS": "2000"}
WAYS = {"CUSTOM_LLC_WAY": 4}


def claims_of(server: Server, activity: Activity = Activity.RUNNING) -> tuple[ServerClaim, ...]:
    return claims(Observation(four_nodes(), (Guest(parse(server.xml, activity)),)))


def test_a_server_claims_where_nova_has_bound_it() -> None:
    server = Server("lc", SPECS, cpus=(5,), node=2)
    assert claims_of(server) == (ServerClaim(server.uuid, "lc", (DomainPart(2, 4, 2_000),)),)


@pytest.mark.parametrize(
    ("activity", "server"),
    [
        (Activity.PAUSED, Server("lc", SPECS, (4,), node=2)),  # also an incoming live migration
        (Activity.OFF, Server("lc", SPECS, (4,), node=2)),
        (Activity.RUNNING, Server("be", BE_SPECS)),  # asks for nothing of ours
        (Activity.RUNNING, Server("left", {**SPECS, "numa_ext:managed": "false"}, (4,))),
    ],
)
def test_who_makes_no_claim(activity: Activity, server: Server) -> None:
    assert claims_of(server, activity) == ()


def test_only_what_is_missing_where_a_server_runs_counts_as_elsewhere() -> None:
    """Two groups, one of them where it should be; of the other Placement counts half there."""
    claim = ServerClaim("a", "a", (DomainPart(0, 4, 2_000), DomainPart(1, 4, 2_000)))
    half = {"CUSTOM_LLC_WAY": 4, "CUSTOM_MEMORY_BANDWIDTH_MBPS": 500}
    whole = {"CUSTOM_LLC_WAY": 4, "CUSTOM_MEMORY_BANDWIDTH_MBPS": 2_000}
    held = {0: {"a": whole}, 1: {"a": half}, 3: {"a": whole}}
    assert claimed_elsewhere([claim], held) == {1: {"CUSTOM_MEMORY_BANDWIDTH_MBPS": 1_500}}


def test_servers_in_each_others_domain_are_reserved_where_they_run() -> None:
    a, b = (
        ServerClaim("a", "a", (DomainPart(0, 4, 0),)),
        ServerClaim("b", "b", (DomainPart(1, 2, 0),)),
    )
    held = {0: {"b": {"CUSTOM_LLC_WAY": 2}}, 1: {"a": WAYS}}
    assert claimed_elsewhere([a, b], held) == {0: WAYS, 1: {"CUSTOM_LLC_WAY": 2}}


def test_a_server_that_holds_nothing_here_is_left_out() -> None:
    """It is being moved, and a migration holds its part; or it has lost its allocation, and heal gives it back."""
    claim = ServerClaim("a", "a", (DomainPart(0, 4, 0),))
    assert claimed_elsewhere([claim], {0: {"migration": WAYS}}) == {}


def test_what_no_cpu_binds_may_be_counted_in_any_domain_of_its_cell_once() -> None:
    claim = ServerClaim(
        "a", "a", (DomainPart(0, 4, 0, also=frozenset({1, 2})), DomainPart(1, 4, 0))
    )
    assert claimed_elsewhere([claim], {1: {"a": WAYS}, 2: {"a": WAYS}}) == {}
    assert claimed_elsewhere([claim], {1: {"a": WAYS}}) == {0: WAYS}
    assert claimed_elsewhere([claim], {1: {"a": WAYS}, 3: {"a": WAYS}}) == {0: WAYS}
