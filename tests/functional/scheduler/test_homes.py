# SPDX-License-Identifier: Apache-2.0
"""Servers claim their ways in the L3 domain where nova-compute then pins the guest cell that they are for.

After each decision nova-compute's own functions pin the server and account for it, as its resource tracker does; the
agent's own function says where it will count each request group.
"""

import itertools

import pytest
from nova import exception, objects
from nova.pci.stats import PciDeviceStats
from nova.virt import hardware

from emulation.hosts import four_nodes
from host_agent.decide.partitions.requests import l3_amounts
from host_agent.model.workload import Cell
from placement_traits import presets
from placement_traits.request import parse
from tests.functional.scheduler.conftest import LC, compute_node, request_spec

UNEQUAL = {key: value for key, value in LC.items() if not key.startswith("resources_")} | {
    "hw:numa_nodes": "2",
    "resources_N0:CUSTOM_LLC_WAY": "6",
    "resources_N1:CUSTOM_LLC_WAY": "2",
    "group_policy": "isolate",
}


def node_of(name, topology):
    """A ComputeNode that reports a topology whose CPUs are all for dedicated guests."""
    node = compute_node(name)
    cells = [
        objects.NUMACell(
            id=each.id,
            socket=each.socket,
            cpuset=set(),
            pcpuset={cpu for core in topology.cores_of_node(each.id) for cpu in core.cpus},
            memory=8192,
            cpu_usage=0,
            memory_usage=0,
            pinned_cpus=set(),
            siblings=[set(core.cpus) for core in topology.cores_of_node(each.id)],
            mempages=[objects.NUMAPagesTopology(size_kb=4, total=8192 * 256, used=0)],
            network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
        )
        for each in topology.nodes
    ]
    node.numa_topology = objects.NUMATopology(cells=cells)._to_json()
    node.vcpus = len(topology.cpus)
    return node


def request_of(flavor, vcpus):
    return parse(flavor, vcpus=vcpus, memory_mb=512)


def claim(cloud, host, flavor, vcpus, memory_mb):
    """Pin a server on a host as nova-compute does; returns its cells."""
    [compute] = [each for each in cloud.hosts.computes if each.host == host]
    there = objects.NUMATopology.obj_from_db_obj(compute.numa_topology)
    guest = request_spec(flavor, vcpus=vcpus, memory_mb=memory_mb).numa_topology
    got = hardware.numa_fit_instance_to_host(
        there, guest, None, pci_requests=[], pci_stats=PciDeviceStats(there)
    )
    compute.numa_topology = hardware.numa_usage_from_instance_numa(there, got)._to_json()
    return got.cells


def claimed_ways(cloud):
    """Ways that the last server has claimed, by L3 domain."""
    held = cloud.placement.get(f"/allocations/{cloud.last_servers[0]}")["allocations"]
    names = {rp: cloud.placement.get(f"/resource_providers/{rp}")["name"] for rp in held}
    return {
        int(name.rpartition("_")[2]): held[rp]["resources"]["CUSTOM_LLC_WAY"]
        for rp, name in names.items()
        if ":l3_" in name
    }


def counted_ways(topology, pinned, groups):
    """Ways that the agent will count for a server, by L3 domain."""
    cells = [
        Cell(number, frozenset(cell.pcpuset), cell.memory, frozenset({cell.id}))
        for number, cell in enumerate(pinned)
    ]
    pins = {v: frozenset({cpu}) for cell in pinned for v, cpu in cell.cpu_pinning.items()}
    return {l3: one.ways for l3, one in l3_amounts(topology, cells, pins, groups).items()}


@pytest.mark.parametrize("vcpus", [6, 20])
def test_of_several_domains_on_a_node_it_is_the_one_with_the_pinned_cpus(cloud, vcpus):
    """An EPYC with four nodes of two L3 domains each, filled with one flavor."""
    topology = presets.load("epyc-7763-nps4").topology
    cloud.host("h1", topology=topology, node=node_of("h1", topology))
    flavor = {**LC, "resources_NODE:CUSTOM_LLC_WAY": "1"}
    groups = request_of(flavor, vcpus).l3
    for count in itertools.count():
        try:
            cloud.boot(flavor, vcpus=vcpus)
        except exception.NoValidHost:
            break
        pinned = claim(cloud, "h1", flavor, vcpus, 512)
        assert claimed_ways(cloud) == counted_ways(topology, pinned, groups), count
    assert count >= 4


def test_of_unequal_groups_each_is_claimed_for_its_own_guest_cell(cloud):
    for number in range(6):
        cloud.host(f"h{number}")
    groups = request_of(UNEQUAL, 2).l3
    for _ in range(4):
        [(host, _)] = cloud.boot(UNEQUAL, vcpus=2)
        pinned = claim(cloud, host, UNEQUAL, 2, 512)
        assert claimed_ways(cloud) == counted_ways(four_nodes(), pinned, groups)


def test_each_server_of_a_request_starts_from_the_page_size_that_its_flavor_asks_for(cloud):
    """Nova binds the RequestSpec to the pages of the first server's node; nova-compute starts from the flavor.

    Nodes 0 and 1 have pages of 2 MiB for two servers each, node 2 has a page of 1 GiB for one.
    """
    node = compute_node("h1", nodes=3)
    topology = objects.NUMATopology.obj_from_db_obj(node.numa_topology)
    for cell, (size_kb, total) in zip(
        topology.cells, ((2048, 1024), (2048, 1024), (1048576, 1)), strict=True
    ):
        cell.mempages.append(objects.NUMAPagesTopology(size_kb=size_kb, total=total, used=0))
    node.numa_topology = topology._to_json()
    cloud.host("h1", node=node)
    flavor = {**LC, "hw:mem_page_size": "large"}
    cloud.boot(flavor, count=3, memory_mb=1024)
    expected = [entry["details"][0]["nodes"] for entry in cloud.entries("filter")][:3]
    pinned = [claim(cloud, "h1", flavor, 1, 1024) for _ in range(3)]
    assert expected == [[cell.id for cell in cells] for cells in pinned] == [[0], [1], [2]]
