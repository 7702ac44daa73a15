# SPDX-License-Identifier: Apache-2.0
"""What Placement counts for a server is where the server runs, however it came there; what was lost is given back."""

import json

from tests.integration.cloud import Cloud, Server, eventually


def held(cloud: Cloud, server: Server) -> dict[str, dict[str, int]]:
    """What a server has allocated: amounts by provider name."""
    words = ("resource", "provider", "allocation", "show", server.id, "-f", "json")
    rows = json.loads(cloud.openstack(*words).stdout)
    names = {
        row["uuid"]: row["name"]
        for row in json.loads(cloud.openstack("resource", "provider", "list", "-f", "json").stdout)
    }
    return {names[row["resource_provider"]]: row["resources"] for row in rows}


def l3_held(cloud: Cloud, server: Server) -> set[str]:
    """L3 domains that a server has allocated from."""
    return {name.partition(":l3_")[2] for name in held(cloud, server) if ":l3_" in name}


def test_servers_forced_to_a_host_are_counted_where_they_run(cloud: Cloud) -> None:
    """Issue 3: ``az:host`` skips filters in nova, so there the agent re-homes."""
    servers = [
        cloud.boot("lc.small", "--availability-zone", "nova:h1"),
        cloud.boot("lc.small", "--availability-zone", "nova:h1"),
    ]
    for server in servers:
        runs = cloud.hosts["h1"].enforced(server.id).l3
        eventually(
            f"{server.name} is counted in L3 {runs}",
            lambda s=server, r=runs: l3_held(cloud, s) == r,
        )


def test_heal_gives_back_what_was_lost(cloud: Cloud) -> None:
    """Issue 3: ``heal`` rebuilds nested allocations that ``heal_allocations`` cannot."""
    server = cloud.boot("lc.small")
    host = cloud.hosts[server.host]
    domains = host.enforced(server.id).l3
    eventually(f"{server.name} is counted where it runs", lambda: l3_held(cloud, server) == domains)
    before = held(cloud, server)
    cloud.openstack("resource", "provider", "allocation", "delete", server.id)
    assert held(cloud, server) == {}
    (told,) = [row for row in host.ctl("heal", "--dry-run") if row["uuid"] == server.id]
    assert (told["result"], told["should_hold"]) == ("would", before)
    assert held(cloud, server) == {}
    (done,) = [row for row in host.ctl("heal") if row["uuid"] == server.id]
    assert done["result"] == "done"
    assert held(cloud, server) == before
