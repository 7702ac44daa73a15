# SPDX-License-Identifier: Apache-2.0
"""``az:host`` skips filters in nova: Placement's first candidate is claimed, and the agent puts it right afterwards."""

import dataclasses

from emulation.hosts import four_nodes
from emulation.servers import Server
from host_agent.decide.amounts.claims import claims
from host_agent.model.assignment import Guest, Observation
from host_agent.model.workload import Activity, parse
from host_agent.report.allocations import Allocations
from host_agent.report.rehome import Rehomer
from placement_traits.client import ALLOCATIONS_MICROVERSION, PlacementClient, RetrySettings
from tests.functional.scheduler.conftest import LC
from tests.support.allocations import Lines


def test_a_server_forced_to_a_host_is_re_homed_to_the_cell_it_got(cloud):
    """Nova's own scheduler code claims any L3 domain without us; nova-compute then takes another cell."""
    cloud.host("h1")
    # The one question of nova's to its database on this way.
    cloud.hosts.get_compute_nodes_by_host_or_node = lambda *_args, **_names: cloud.hosts.computes
    ((host, (claimed,)),) = cloud.boot(LC, force_hosts=["h1"])
    assert cloud.entries("decision") == []  # our filter was not asked
    assert host == "h1"
    node = (int(claimed.removeprefix("l3_")) + 1) % 4
    runs = Server("lc", LC, cpus=(2 * node,), node=node)
    server = dataclasses.replace(runs, uuid=cloud.last_servers[0])
    guest = Guest(parse(server.xml, Activity.RUNNING))
    once = PlacementClient(
        cloud.adapter, RetrySettings(attempts=1), microversion=ALLOCATIONS_MICROVERSION
    )
    allocations = Allocations(cloud.placement, once, "h1", lambda *_: "")
    journal = Lines()
    placed = claims(Observation(four_nodes(), (guest,)))
    assert Rehomer(allocations, "h1", journal).turn(placed) == ()
    assert cloud.domains(server.uuid) == [f"l3_{node}"]
    assert [entry.result for entry in journal] == ["done"]
