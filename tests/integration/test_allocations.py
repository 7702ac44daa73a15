# SPDX-License-Identifier: Apache-2.0
"""What Placement counts for a server is where the server runs, however it came there; what was lost is given back."""

from collections.abc import Iterator

import pytest

from tests.integration.cloud import LabCloud, LabHost, Server, eventually


@pytest.fixture(scope="module")
def forced(running_cloud: LabCloud) -> Iterator[list[Server]]:
    """Two servers on h1, where ``az:host`` has put them."""
    cloud = running_cloud.of_one_test()
    try:
        made = [cloud.create("lc.small", "--availability-zone", "nova:h1") for _ in range(2)]
        yield [cloud.active(server) for server in made]
    finally:
        cloud.end()


def l3_held(cloud: LabCloud, server: Server) -> set[str]:
    """L3 domains that a server has allocated from."""
    return {name.partition(":l3_")[2] for name in cloud.held(server) if ":l3_" in name}


def counted(cloud: LabCloud, host: LabHost, *servers: Server) -> None:
    """Wait until each server is counted in the L3 domains where it runs."""
    for server, domain in zip(servers, host.all_enforced([s.id for s in servers]), strict=True):
        eventually(
            f"{server.name} is counted in L3 {domain.l3}",
            lambda s=server, runs=domain.l3: l3_held(cloud, s) == runs,
        )


def test_servers_forced_to_a_host_are_counted_where_they_run(
    cloud: LabCloud, h1: LabHost, forced: list[Server]
) -> None:
    """Issue 3: ``az:host`` skips filters in nova, so there the agent re-homes."""
    counted(cloud, h1, *forced)


def test_heal_gives_back_what_was_lost(cloud: LabCloud, h1: LabHost, forced: list[Server]) -> None:
    """Issue 3: ``heal`` rebuilds nested allocations that ``heal_allocations`` cannot."""
    server = forced[0]
    counted(cloud, h1, *forced)
    before = cloud.held(server)
    cloud.openstack("resource", "provider", "allocation", "delete", server.id)
    assert cloud.held(server) == {}
    (told,) = [row for row in h1.ctl("heal", "--dry-run") if row["uuid"] == server.id]
    assert (told["result"], told["should_hold"]) == ("would", before)
    assert cloud.held(server) == {}
    (done,) = [row for row in h1.ctl("heal") if row["uuid"] == server.id]
    assert done["result"] == "done"
    assert cloud.held(server) == before
