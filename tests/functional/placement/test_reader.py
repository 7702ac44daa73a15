# SPDX-License-Identifier: Apache-2.0
"""Topology -> Placement -> topology, for every machine that we ship."""

import pytest

from emulation.hosts import four_nodes
from placement_traits import presets
from placement_traits.errors import InvalidValueError
from placement_traits.offers import publishable
from placement_traits.reader import hosts, read_tree
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree, from_tree
from tests.support.hosts import SETTINGS


@pytest.mark.parametrize("name", presets.available())
def test_each_preset_makes_the_round_trip(one_compute, name):
    topology = presets.load(name).topology
    tree = desired_tree("h1", topology, SETTINGS)
    Reporter(one_compute.client).sync(tree)
    read = read_tree(one_compute.client, "h1")
    assert read == tree
    assert from_tree(read).topology == publishable(topology)


def test_what_others_add_is_not_read(shared_compute):
    assert read_tree(shared_compute.client, "h1") == shared_compute.tree


def test_a_host_with_nothing_below_its_root_is_read(one_compute):
    """No L3, no RDT, no GPU: not even the trait that marks our children exists."""
    bare = four_nodes(l3_domains=(), cores=(), rdt=None, gpus=(), gpu_links=())
    tree = desired_tree("h1", bare, SETTINGS)
    Reporter(one_compute.client).sync(tree)
    assert read_tree(one_compute.client, "h1") == tree


def test_hosts_with_an_agent_are_listed(reported_compute):
    reported_compute.compute("plain")
    assert hosts(reported_compute.client) == {"h1": reported_compute.root}


@pytest.mark.parametrize("name", ["plain", "nowhere"])
def test_a_host_without_an_agent_is_refused_with_the_ones_that_have_one(reported_compute, name):
    reported_compute.compute("plain")
    with pytest.raises(InvalidValueError, match=f"host: '{name}' is not allowed; allowed: h1"):
        read_tree(reported_compute.client, name)


def test_a_cloud_without_any_agent_says_so(one_compute):
    with pytest.raises(InvalidValueError, match="none: no agent reports"):
        read_tree(one_compute.client, "h1")
