# SPDX-License-Identifier: Apache-2.0
"""Two emulated hosts filled until nothing of a kind is left: all who tell where a server is tell the same.

Three sources for each server: the decision (``numa-ext-explain``), the claim (Placement) and the running domain (kernel
and libvirt of its host).
"""

import json
from dataclasses import dataclass

import pytest

from tests.integration.cloud import Facts, LabCloud, LabHost, ReadBackServer, Server

WAYS = {"CUSTOM_LLC_WAY": "4", "CUSTOM_MEMORY_BANDWIDTH_MBPS": "2000"}
LC = {"hw:cpu_policy": "dedicated", "numa_ext:tier": "LC", "resources:CUSTOM_RDT_CLOS": "1"}
# All dedicated CPUs of one NUMA node, and of two.
NARROW = {**LC, "hw:numa_nodes": "1", **{f"resources_N:{name}": n for name, n in WAYS.items()}}
WIDE = {
    **LC,
    "hw:numa_nodes": "2",
    "group_policy": "isolate",
    **{f"resources_N{cell}:{name}": n for cell in range(2) for name, n in WAYS.items()},
}
GPU_PAIR = {"hw:numa_nodes": "1", "numa_ext:tier": "BE", "pci_passthrough:alias": "gpu:2"}


@dataclass(frozen=True)
class Placed:
    """One server as the three sources tell it.

    :param decided: what the filter noted about the host that nova took, its best candidate first
    :param claimed: amounts by the provider's name
    """

    server: Server
    decided: Facts
    claimed: dict[str, dict[str, int]]
    domain: ReadBackServer

    def l3(self) -> set[str]:
        """L3 domains that it has claimed ways of."""
        return {
            name.rpartition(":l3_")[2]
            for name, amounts in self.claimed.items()
            if "CUSTOM_LLC_WAY" in amounts
        }

    def devices(self) -> list[str]:
        """Addresses of the devices that it has claimed."""
        return sorted(
            name.rpartition("_")[2].lower()
            for name, amounts in self.claimed.items()
            if "CUSTOM_GPU" in amounts
        )


def fill(cloud: LabCloud, flavor: str, number: int) -> list[Server]:
    """Create servers, each when the one before runs: nested guests that start together slow each other down."""
    return [cloud.boot(flavor) for _ in range(number)]


def explained(cloud: LabCloud, server: Server, *words: str) -> str:
    """What ``numa-ext-explain`` says on the controller."""
    conf = str(cloud.settings.etc / "nova" / "nova.conf")
    return cloud.command("numa-ext-explain", "--config-file", conf, server.id, *words).stdout


def decided(cloud: LabCloud, server: Server) -> Facts:
    """What the decision says about the host that nova took."""
    told = json.loads(explained(cloud, server, "-f", "json"))
    noted = [one["filter"] for one in told if one["filter"] and not one["filter"]["alternates"]]
    (host,) = [host for host in noted[-1]["details"] if host["host"] == server.host]
    assert not host["reasons"]
    return host


def assert_agree(placed: Placed, names: dict[str, str]) -> None:
    """Decision, claim and domain name the same L3 domains, NUMA nodes and devices.

    :param names: Placement's providers, name by UUID
    """
    who, domain = f"{placed.server.name} on {placed.server.host}", placed.domain
    best = placed.decided["candidates"][0]
    decided_for = {names[provider] for provider in best["providers"]}
    assert placed.claimed.keys() == decided_for, f"{who}: not claimed as decided"
    assert {str(node) for node in placed.decided["nodes"]} == domain.nodes, f"{who}: other nodes"
    near = sum(domain.memory_share.get(node, 0.0) for node in domain.nodes)
    assert near >= 0.99, f"{who}: memory is at {domain.memory_share}"
    devices = placed.devices()
    assert sorted(domain.facts["hostdevs"]) == devices, f"{who}: other devices than claimed"
    if devices:
        assert sorted(best["gpus"]["addresses"]) == devices
        assert {str(node) for node in best["gpus"]["nodes"]} == domain.nodes
    else:
        assert placed.l3() == {str(l3) for l3 in best["l3"]} == domain.l3, f"{who}: other L3"


def assert_full(host: LabHost, placed: list[Placed]) -> None:
    """Every dedicated CPU and every device of the host has exactly one owner."""
    shape, lcs = host.emulated.shape, [one for one in placed if not one.domain.facts["hostdevs"]]
    cpus = sorted(cpu for one in lcs for cpu in one.domain.cpus)
    assert cpus == shape.dedicated_cpus
    devices = [address for one in placed for address in one.domain.facts["hostdevs"]]
    assert len(devices) == len(set(devices)) == len(shape.gpu_nodes)


def refusal(cloud: LabCloud, flavor: str) -> str:
    """Create one server too many; returns why there is no place for it."""
    server = cloud.settled(cloud.create(flavor))
    assert server.status == "ERROR", f"{flavor} was placed on {server.host}"
    assert "No valid host" in server.fault
    return explained(cloud, server)


@pytest.mark.long
def test_until_full_decisions_claims_and_devices_agree(cloud: LabCloud) -> None:
    """Issue 3: two emulated hosts filled until full; F-000-22 for the pairs of GPUs."""
    if len(cloud.hosts) < 2:
        pytest.skip("the lab runs with one emulated host")
    shapes = [host.emulated.shape for host in cloud.hosts.values()]
    a_node = shapes[0].cpus_per_node - 1  # its dedicated CPUs
    nodes = sum(len(shape.dedicated_cpus) for shape in shapes) // a_node
    wide, pairs = 2, sum(len(shape.gpu_nodes) for shape in shapes) // 2
    of_pairs, of_wide = cloud.flavor(GPU_PAIR), cloud.flavor(WIDE, vcpus=2 * a_node)
    of_narrow = cloud.flavor(NARROW, vcpus=a_node)
    servers = [
        *fill(cloud, of_pairs, pairs),
        *fill(cloud, of_wide, wide),
        *fill(cloud, of_narrow, nodes - 2 * wide),
    ]
    names = cloud.providers()
    for host in cloud.hosts.values():
        here = [server for server in servers if server.host == host.name]
        running = host.all_enforced([server.id for server in here])
        placed = [
            Placed(one, decided(cloud, one), cloud.held(one), domain)
            for one, domain in zip(here, running, strict=True)
        ]
        for one in placed:
            assert_agree(one, names)
        assert_full(host, placed)
    for flavor, lack in ((of_narrow, "dedicated CPUs free: 0"), (of_pairs, "GPUs free")):
        told = refusal(cloud, flavor)
        assert "0 of " in told
        assert lack in told
