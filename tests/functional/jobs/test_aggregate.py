# SPDX-License-Identifier: Apache-2.0
"""The queue on hosts of its own, in the real Placement."""

import uuid

from emulation.hosts import four_nodes
from emulation.placement_service import PlacementInProcess
from nova_numa_ext.orchestrator.cloud.fleet import PlacementHosts
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree
from placement_traits.view import ViewSettings
from tests.support.filled_placement import FilledPlacement
from tests.support.hosts import SETTINGS


def test_only_hosts_of_the_aggregate_are_seen():
    """Three hosts with agents; h2 and h3 are in the aggregate, then h3 alone; one of no host is empty."""
    own, empty = str(uuid.uuid4()), str(uuid.uuid4())
    now = 0.0
    with PlacementInProcess() as placement:
        cloud = FilledPlacement(placement.adapter)
        roots = {name: cloud.compute(name) for name in ("h1", "h2", "h3")}
        for name in roots:
            Reporter(cloud.client).sync(desired_tree(name, four_nodes(), SETTINGS))

        def set_aggregates(name, *aggregates):
            path = f"/resource_providers/{roots[name]}"
            generation = cloud.client.get(path)["generation"]
            body = {"aggregates": aggregates, "resource_provider_generation": generation}
            cloud.client.put(f"{path}/aggregates", body)

        def seen(hosts):
            view = hosts.read()
            return {view.host_name(row) for row in range(len(view.roots))}

        set_aggregates("h2", own)
        set_aggregates("h3", own, str(uuid.uuid4()))
        settings = ViewSettings(interval_s=10.0)
        hosts = PlacementHosts(cloud.adapter, settings, clock=lambda: now, aggregate=own)
        assert seen(hosts) == {"h2", "h3"}
        set_aggregates("h2")
        now = 11.0
        assert seen(hosts) == {"h3"}
        assert seen(PlacementHosts(cloud.adapter, settings, aggregate=empty)) == set()
        assert seen(PlacementHosts(cloud.adapter, settings)) == set(roots)
