# SPDX-License-Identifier: Apache-2.0
"""What Placement counts for a server is where the server runs, however it came there; what was lost is given back."""

from tests.integration.cloud import Cloud, Server, eventually


def l3_held(cloud: Cloud, server: Server) -> set[str]:
    """L3 domains that a server has allocated from."""
    return {name.partition(":l3_")[2] for name in cloud.held(server) if ":l3_" in name}


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
    before = cloud.held(server)
    cloud.openstack("resource", "provider", "allocation", "delete", server.id)
    assert cloud.held(server) == {}
    (told,) = [row for row in host.ctl("heal", "--dry-run") if row["uuid"] == server.id]
    assert (told["result"], told["should_hold"]) == ("would", before)
    assert cloud.held(server) == {}
    (done,) = [row for row in host.ctl("heal") if row["uuid"] == server.id]
    assert done["result"] == "done"
    assert cloud.held(server) == before
