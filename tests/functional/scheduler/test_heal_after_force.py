# SPDX-License-Identifier: Apache-2.0
"""``az:host`` skips filters in nova: Placement's first candidate is claimed, and ``heal`` puts it right afterwards."""

import dataclasses

from emulation.servers import Server
from nova_numa_ext.cli.fleet import one_reading
from nova_numa_ext.heal.healer import Healer
from nova_numa_ext.heal.nova_servers import NovaServers
from placement_traits.client import ALLOCATIONS_MICROVERSION, PlacementClient, RetrySettings
from tests.functional.scheduler.conftest import LC
from tests.support.nova_api import NovaApi


def test_a_server_forced_to_a_host_is_counted_in_the_cell_it_got(cloud):
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
    api = NovaApi()
    api.add(server)
    once = PlacementClient(
        cloud.adapter, RetrySettings(attempts=1), microversion=ALLOCATIONS_MICROVERSION
    )
    healer = Healer(NovaServers(api), cloud.placement, once, lambda: one_reading(cloud.adapter))
    assert [row.result for row in healer.run(write=True)] == ["done"]
    assert cloud.domains(server.uuid) == [f"l3_{node}"]
