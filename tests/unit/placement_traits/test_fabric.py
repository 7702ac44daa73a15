# SPDX-License-Identifier: Apache-2.0
"""A planned fabric: what it says of its leafs, and one sentence for each plan that is none."""

import pytest

from placement_traits import names
from placement_traits.errors import InvalidValueError
from placement_traits.fabric import Fabric, FabricKind, FabricNode
from tests.support.fabrics import fabric


def test_marenostrum_is_172_leafs_of_18_hosts_in_10_pods() -> None:
    """F-003-01: nine pods of 18 leafs, the last of 10."""
    plan = fabric([18] * 172, leafs_per_pod=18)
    assert (len(plan.hosts), len(plan.leafs)) == (3096, 172)
    of_pods = [plan.above(leaf) for leaf in plan.leafs]
    assert [of_pods.count((f"p{n:02}",)) for n in range(10)] == [18] * 9 + [10]
    assert (plan.usual_size, plan.block) == (18, 16)


def test_leafs_of_a_pod_stand_together_in_the_order_of_the_plan() -> None:
    nodes = [
        FabricNode("p2", "pod"),
        FabricNode("p1", "pod"),
        *(FabricNode(leaf, "leaf", pod) for leaf, pod in (("c", "p1"), ("a", "p2"), ("b", "p1"))),
    ]
    plan = Fabric(
        "f",
        FabricKind.ETHERNET,
        ("leaf", "pod"),
        {node.name: node for node in nodes},
        {"h1": "a", "h2": "b", "h3": "c"},
    )
    assert plan.leafs == ("c", "b", "a")
    assert plan.above("c") == ("p1",)


def test_oversubscription_is_known_where_both_bandwidths_are() -> None:
    plan = fabric([16, 16], uplinks_mbps=(400_000, None), host_mbps=100_000)
    assert [plan.oversubscription(leaf) for leaf in plan.leafs] == [4.0, None]
    assert fabric([2], uplinks_mbps=(10**6,), host_mbps=1).oversubscription("l000") == 1.0


def test_a_leaf_and_its_hosts_have_one_trait() -> None:
    assert names.leaf_trait("train", "l-001") == "CUSTOM_NUMA_EXT_LEAF_TRAIN_L_001"
    assert names.is_leaf_trait("CUSTOM_NUMA_EXT_LEAF_TRAIN_L_001")
    assert not names.is_of_agents("CUSTOM_NUMA_EXT_LEAF_TRAIN_L_001")
    assert names.is_of_agents(names.HOST)
    assert names.parse_level(names.level_trait("pod")) == "pod"
    assert names.parse_level(names.HOST) is None


PODS = (FabricNode("p1", "pod"),)
ONE = (*PODS, FabricNode("a", "leaf", "p1"))


def named(*nodes: FabricNode) -> dict[str, FabricNode]:
    return {node.name: node for node in nodes}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "a:b"}, "fabric: 'a:b' is not allowed"),
        ({"levels": ()}, "fabric f, levels: [] is not allowed"),
        ({"levels": ("leaf", "leaf")}, "fabric f, levels: 'leaf' is not allowed"),
        ({"levels": ("Leaf", "pod")}, "fabric f, levels: 'Leaf' is not allowed"),
        ({"hosts": {}}, "fabric f, hosts: 0 is not allowed; allowed: 1 to 100000"),
        ({"hosts": {"h1": "b"}}, "fabric f, hosts, h1: 'b' is not allowed"),
        ({"hosts": {"h1": "p1"}}, "fabric f, hosts, h1: 'p1' is not allowed"),
        (
            {"nodes": named(*ONE, FabricNode("b", "leaf", "p1"))},
            "fabric f, b: 0 is not allowed; allowed: 1 host or more",
        ),
        (
            {"nodes": named(*PODS, FabricNode("a", "leaf", "p2"))},
            "fabric f, leaf a, parent: 'p2' is not allowed; allowed: a node of level pod",
        ),
        (
            {"nodes": named(FabricNode("p1", "pod", "p1"), ONE[1])},
            "fabric f, pod p1, parent: 'p1' is not allowed; allowed: none, its level is last",
        ),
        (
            {"nodes": named(*ONE, FabricNode("x", "spine"))},
            "fabric f, spine x: 'spine' is not allowed; allowed: levels leaf, pod",
        ),
        (
            {"nodes": named(*PODS, FabricNode("a", "leaf", "p1", 0))},
            "fabric f, leaf a, uplink: 0 is not allowed; allowed: >= 1 Mbit/s",
        ),
        (
            {
                "nodes": named(*ONE, FabricNode("A", "leaf", "p1")),
                "hosts": {"h1": "a", "h2": "A"},
            },
            "fabric f: 'A' is not allowed; allowed: a name of another trait than leaf a's",
        ),
        ({"block_size": 2}, "fabric f, block_size: 2 is not allowed"),
    ],
)
def test_what_is_no_fabric_gets_one_sentence(change: dict[str, object], sentence: str) -> None:
    plan = {
        "name": "f",
        "kind": FabricKind.ETHERNET,
        "levels": ("leaf", "pod"),
        "nodes": named(*ONE),
        "hosts": {"h1": "a"},
    }
    assert Fabric(**plan).leafs == ("a",)
    with pytest.raises(InvalidValueError) as error:
        Fabric(**plan | change)
    assert str(error.value).startswith(sentence)


def test_two_blocks_in_a_leaf_need_uplinks_that_do_not_block() -> None:
    with pytest.raises(InvalidValueError, match="nonblocking"):
        fabric([16] * 2, block_size=8)
    assert fabric([16] * 2, block_size=8, nonblocking=True).block == 8
