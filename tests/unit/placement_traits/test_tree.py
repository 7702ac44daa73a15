# SPDX-License-Identifier: Apache-2.0
"""What a host says in Placement, and that it can be read back."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.hosts import four_nodes
from placement_traits import names, presets
from placement_traits.errors import InvalidValueError
from placement_traits.names import NeighbourTrait, PackingTrait, Tier
from placement_traits.offers import L3State, TreeSettings, bandwidth_shares, publish, publishable
from placement_traits.rdt_capability import L3Cat
from placement_traits.shards import shard_of
from placement_traits.topology import NumaNode
from placement_traits.tree import Inventory, Provider, desired_tree, from_tree, l3_place, to_tree
from tests.support.hosts import hosts, topologies

SETTINGS = TreeSettings(PackingTrait.SPREAD)


def test_the_lab_host_as_one_literal():
    state = {2: L3State(frozenset({NeighbourTrait.LC}), 1500, reserved_neighbourhood=2)}
    tree = desired_tree("h1", four_nodes(), dataclasses.replace(SETTINGS, foreign_groups=1), state)
    assert tree.root_traits == {
        "CUSTOM_NUMA_EXT_HOST",
        "CUSTOM_NUMA_EXT_FORMAT_2",
        "CUSTOM_NUMA_EXT_RDT_L3_CAT",
        "CUSTOM_NUMA_EXT_RDT_MBA",
        "CUSTOM_NUMA_EXT_RDT_CMT",
        "CUSTOM_NUMA_EXT_RDT_MBM",
        "CUSTOM_NUMA_EXT_NODES_4",
        "CUSTOM_NUMA_EXT_SOCKETS_2",
        "CUSTOM_NUMA_EXT_L3_DOMAINS_4",
        "CUSTOM_NUMA_EXT_CELLS_SPREAD",
        "CUSTOM_NUMA_EXT_TIER_LC",
        "CUSTOM_NUMA_EXT_TIER_BE",
    }
    # 8 classes: 1 is root's, 1 foreign, 1 for BE. 16 ways: 2 shareable, 1 for BE.
    assert tree.child("h1:rdt") == Provider(
        "h1:rdt",
        frozenset({names.OWNER, "CUSTOM_NUMA_EXT_SHARD_14", "CUSTOM_NUMA_EXT_SUBSHARD_13"}),
        {
            "CUSTOM_RDT_CLOS": Inventory(5, max_unit=1),
            "CUSTOM_NUMA_EXT_PROBE": Inventory(1, max_unit=1),
        },
    )
    assert tree.child("h1:l3_2") == Provider(
        "h1:l3_2",
        frozenset(
            {
                names.OWNER,
                "CUSTOM_NUMA_EXT_L3_2",
                "CUSTOM_NUMA_EXT_NODE_2",
                "CUSTOM_NUMA_EXT_SOCKET_1",
                "CUSTOM_NUMA_EXT_CHASSIS_0",
                "CUSTOM_NUMA_EXT_HAS_LC",
            }
        ),
        {
            "CUSTOM_LLC_WAY": Inventory(13, max_unit=13),
            "CUSTOM_MEMORY_BANDWIDTH_MBPS": Inventory(10_000, reserved=1500, max_unit=10_000),
            "CUSTOM_LLC_NEIGHBOURHOOD": Inventory(1_000, reserved=2, max_unit=1_000),
        },
    )
    assert tree.child("h1:gpu-0000:85:00.0") == Provider(
        "h1:gpu-0000:85:00.0",
        frozenset(
            {
                names.OWNER,
                "CUSTOM_NUMA_EXT_GPU",
                "CUSTOM_NUMA_EXT_NODE_2",
                "CUSTOM_GPU_LINK_NV2_0_1",
            }
        ),
    )
    assert len(tree.children) == 1 + 4 + 2


@given(hosts())
def test_what_is_said_can_be_read_back_exactly(host):
    published = publish(*host)
    assert from_tree(to_tree("h1", published)) == published


@given(topologies())
def test_what_is_said_of_the_topology_is_stable(topology):
    assert publishable(publishable(topology)) == publishable(topology)


@given(hosts())
def test_every_inventory_is_one_that_placement_accepts(host):
    for child in desired_tree("h1", *host).children:
        assert names.OWNER in child.traits
        assert len(child.name) <= 200
        for inventory in child.inventories.values():
            assert inventory.total >= 1
            assert 0 <= (inventory.reserved or 0) <= inventory.total
            assert 1 <= inventory.min_unit <= inventory.max_unit


@given(hosts())
def test_every_trait_is_ours_and_legal(host):
    tree = desired_tree("h1", *host)
    for traits in (tree.root_traits, *(child.traits for child in tree.children)):
        for trait in traits:
            assert names.is_ours(trait)
            assert len(trait) <= 255
            assert trait.replace("_", "").isalnum()
            assert trait == trait.upper()


@given(topologies())
def test_bandwidth_sold_is_the_capacity_of_the_nodes(topology):
    complete = dataclasses.replace(
        topology,
        nodes=tuple(dataclasses.replace(n, bandwidth_mbps=1000 + n.id) for n in topology.nodes),
    )
    with_l3 = {node for domain in topology.l3_domains for node in domain.nodes}
    assert sum(bandwidth_shares(complete).values()) == sum(1000 + n for n in with_l3)


@given(topologies())
def test_each_link_trait_is_held_by_exactly_its_two_ends(topology):
    tree = desired_tree("h1", topology, SETTINGS)
    holders = [t for c in tree.children for t in c.traits if t.startswith(names.GPU_LINK_PREFIX)]
    assert sorted(holders) == sorted(2 * list(set(holders)))
    assert len(set(holders)) == len(topology.gpu_links)


def test_unknown_bandwidth_is_not_sold():
    host = four_nodes(nodes=tuple(NumaNode(n, n // 2) for n in range(4)))
    inventories = desired_tree("h1", host, SETTINGS).child("h1:l3_0").inventories
    assert set(inventories) == {names.LLC_WAY, names.LLC_NEIGHBOURHOOD}


def test_without_rdt_there_is_no_lc_tier_no_class_of_service_and_no_way():
    tree = desired_tree("h1", four_nodes(rdt=None), SETTINGS)
    assert not any("RDT" in trait or trait.endswith("TIER_LC") for trait in tree.root_traits)
    assert tree.child("h1:rdt") is None
    sold = {names.MEMORY_BANDWIDTH_MBPS, names.LLC_NEIGHBOURHOOD}
    assert set(tree.child("h1:l3_1").inventories) == sold, "who shares a cache matters without RDT"
    assert set(tree.child("h1:l3_0").inventories) == sold | {names.PROBE}, "and hosts must be found"


@given(topologies(), st.sampled_from(["h1", "compute-7.example.org"]))
def test_exactly_one_provider_of_a_host_answers_queries_for_it(topology, root):
    children = desired_tree(root, topology, SETTINGS).children
    probes = [child for child in children if names.PROBE in child.inventories]
    assert len(probes) == min(1, len(children))
    assert all(probe.traits >= {*shard_of(root).traits} for probe in probes)


def test_no_more_of_a_neighbourhood_is_reserved_than_there_is():
    """Two rabbits that nova has bound there before Placement counted them; Placement refuses a larger figure."""
    state = {0: L3State(reserved_neighbourhood=2 * names.WHOLE_NEIGHBOURHOOD)}
    child = desired_tree("h1", four_nodes(), SETTINGS, state).child("h1:l3_0")
    assert child.inventories[names.LLC_NEIGHBOURHOOD].reserved == names.WHOLE_NEIGHBOURHOOD


def test_an_operator_can_refuse_a_tier():
    tree = desired_tree("h1", four_nodes(), TreeSettings(PackingTrait.PACK, frozenset({Tier.BE})))
    assert "CUSTOM_NUMA_EXT_TIER_LC" not in tree.root_traits


def test_too_few_ways_or_classes_are_no_inventory_rather_than_one_of_zero():
    rdt = dataclasses.replace(four_nodes().rdt, cat=L3Cat(2, 3, 0b100, 2))
    tree = desired_tree("h1", four_nodes(rdt=rdt), SETTINGS)
    assert set(tree.child("h1:rdt").inventories) == {names.PROBE}
    assert names.LLC_WAY not in tree.child("h1:l3_0").inventories


def test_a_provider_that_we_would_not_have_written_is_named():
    tree = desired_tree("h1", four_nodes(), SETTINGS)
    odd = dataclasses.replace(tree, children=(*tree.children, Provider("h1:l3_9")))
    with pytest.raises(InvalidValueError, match="provider h1:l3_9"):
        from_tree(odd)


def test_cpus_tell_the_l3_domains_of_one_node_apart():
    """An EPYC with four nodes of two L3 domains each; where a node has one domain, its number is enough."""
    tree = desired_tree("h1", presets.load("epyc-7763-nps4").topology, SETTINGS)
    cpus = {t for t in tree.child("h1:l3_1").traits if t.startswith("CUSTOM_NUMA_EXT_CPUS_")}
    assert cpus == {"CUSTOM_NUMA_EXT_CPUS_8_15", "CUSTOM_NUMA_EXT_CPUS_72_79"}
    assert l3_place(tree.child("h1:l3_1").traits).cpus == ((8, 15), (72, 79))
    lab = desired_tree("h1", four_nodes(), SETTINGS)
    assert not any("CPUS" in trait for child in lab.children for trait in child.traits)
