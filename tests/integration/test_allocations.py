# SPDX-License-Identifier: Apache-2.0
"""What Placement counts for a server is where the server runs, however it came there; what was lost is given back."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cloud import LabCloud, LabHost, Server, eventually


@pytest.fixture(scope="module")
def forced(running_cloud: LabCloud) -> Iterator[list[Server]]:
    """Two servers on h1, where ``az:host`` has put them::

    h1
    ├─ lc.small    made with --availability-zone nova:h1
    └─ lc.small    the same
    """
    cloud = running_cloud.of_one_test()
    try:
        made = [cloud.create("lc.small", "--availability-zone", "nova:h1") for _ in range(2)]
        yield [cloud.active(server) for server in made]
    finally:
        cloud.end()


def l3_held(cloud: LabCloud, server: Server) -> set[str]:
    """L3 domains that a server has allocated from."""
    return {name.partition(":l3_")[2] for name in cloud.held(server) if ":l3_" in name}


def heal(cloud: LabCloud, *words: str) -> list[dict[str, Any]]:
    """Run ``numa-ext-heal WORDS`` as an operator does on a controller."""
    conf = f"--config-file={cloud.settings.etc}/nova/nova.conf"
    return json.loads(
        cloud.command("numa-ext-heal", conf, "-f", "json", *words, check=False).stdout
    )


def counted(cloud: LabCloud, host: LabHost, *servers: Server) -> None:
    """Heal until each server is counted in the L3 domains where it runs."""

    def right() -> bool:
        heal(cloud)
        return all(
            l3_held(cloud, server) == domain.l3
            for server, domain in zip(servers, domains, strict=True)
        )

    domains = host.all_enforced([server.id for server in servers])
    eventually("all servers are counted where they run", right)


def test_servers_forced_to_a_host_are_counted_where_they_run(
    cloud: LabCloud, h1: LabHost, forced: list[Server]
) -> None:
    """Issue 3: ``az:host`` skips filters in nova, so there it takes ``heal``."""
    counted(cloud, h1, *forced)
    assert heal(cloud) == []


def test_heal_gives_back_what_was_lost(cloud: LabCloud, h1: LabHost, forced: list[Server]) -> None:
    """Issue 3: ``heal`` rebuilds nested allocations that ``heal_allocations`` cannot."""
    server = forced[0]
    counted(cloud, h1, *forced)
    before = cloud.held(server)
    cloud.openstack("resource", "provider", "allocation", "delete", server.id)
    assert cloud.held(server) == {}
    (told,) = [row for row in heal(cloud, "--dry-run") if row["uuid"] == server.id]
    assert (told["result"], told["should_hold"]) == ("would", before)
    assert cloud.held(server) == {}
    (done,) = [row for row in heal(cloud) if row["uuid"] == server.id]
    assert done["result"] == "done"
    assert cloud.held(server) == before
