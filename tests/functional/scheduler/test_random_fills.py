# SPDX-License-Identifier: Apache-2.0
"""Clouds filled and emptied at random: how often does nova-compute pick other cells than Placement was asked for?

The scheduler decides with nova's code and ours over a real Placement; then nova-compute's own functions pick the cells
and account for them, as its resource tracker does.
"""

import random
from dataclasses import dataclass
from typing import Any

import pytest
from nova import exception, objects
from nova.pci.stats import PciDeviceStats
from nova.virt import hardware

from tests.functional.scheduler.conftest import LC, request_spec

WIDE = {key: value for key, value in LC.items() if not key.startswith("resources_")} | {
    "hw:numa_nodes": "2",
    "resources_N0:CUSTOM_LLC_WAY": "3",
    "resources_N1:CUSTOM_LLC_WAY": "3",
    "group_policy": "isolate",
}
# Extra specs, vCPUs, MiB, ways in each domain; the third takes a domain's ways, but not its node's CPUs.
SIZES = (
    (LC, 1, 512, 4),
    (LC, 2, 1024, 4),
    ({**LC, "resources_NODE:CUSTOM_LLC_WAY": "10"}, 1, 256, 10),
    (WIDE, 2, 512, 3),
)
WAYS = 13


@dataclass
class Running:
    """A server: its host, the cells that nova-compute gave it, and the L3 domains that it claimed."""

    uuid: str
    host: str
    guest: Any
    claimed: set[int]
    ways: int

    @property
    def nodes(self):
        return {cell.id for cell in self.guest.cells}


def account(cloud, host, guest, *, free=False):
    """Count a guest on its host, as nova-compute's resource tracker does; returns it with its cells."""
    [compute] = [each for each in cloud.hosts.computes if each.host == host]
    topology = objects.NUMATopology.obj_from_db_obj(compute.numa_topology)
    if not free:
        devices = PciDeviceStats(topology)
        guest = hardware.numa_fit_instance_to_host(
            topology, guest, None, pci_requests=[], pci_stats=devices
        )
    used = hardware.numa_usage_from_instance_numa(topology, guest, free=free)
    compute.numa_topology = used._to_json()
    return guest


def start(cloud, dice):
    """Create a server of a random size; None when there is no place for it."""
    specs, vcpus, memory_mb, ways = dice.choice(SIZES)
    try:
        [(host, domains)] = cloud.boot(specs, vcpus=vcpus, memory_mb=memory_mb)
    except exception.NoValidHost:
        return None
    asked = request_spec(specs, vcpus=vcpus, memory_mb=memory_mb).numa_topology
    claimed = {int(name.removeprefix("l3_")) for name in domains}
    return Running(cloud.last_servers[0], host, account(cloud, host, asked), claimed, ways)


def has_room(servers, new):
    """Whether the L3 domains of a new server's cells had the ways that it asked for."""
    taken = dict.fromkeys(range(4), 0)
    for server in servers:
        for l3 in server.claimed if server.host == new.host else ():
            taken[l3] += server.ways
    return all(WAYS - taken[node] >= new.ways for node in new.nodes)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3))])
def test_claims_and_cells_agree_wherever_the_domain_has_room(cloud, seed):
    """Issue 3: the disagreements are counted; each is one that no order of candidates could have avoided."""
    dice = random.Random(seed)
    for name in ("h1", "h2"):
        cloud.host(name)
    servers, agreed, full = [], 0, 0
    for _ in range(30):
        if servers and dice.random() < 0.25:
            gone = servers.pop(dice.randrange(len(servers)))
            cloud.placement.delete(f"/allocations/{gone.uuid}")
            account(cloud, gone.host, gone.guest, free=True)
            continue
        new = start(cloud, dice)
        if new is None:
            continue
        agrees, room = new.claimed == new.nodes, has_room(servers, new)
        assert agrees or not room, f"claimed {new.claimed}, runs on {new.nodes}"
        agreed, full = agreed + agrees, full + (not agrees)
        servers.append(new)
    assert agreed > 3 * full, f"{agreed} agreed, {full} ran where no ways were left"
