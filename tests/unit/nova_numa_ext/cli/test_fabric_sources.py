# SPDX-License-Identifier: Apache-2.0
"""Plans of fabrics from each source, and one sentence for what is none."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from nova_numa_ext.cli.fabric import ExportFabric
from nova_numa_ext.cli.fabric_drawing import DrawnLeaf, draw
from nova_numa_ext.cli.fabric_sources import aggregates, ibnetdiscover, native, slurm
from nova_numa_ext.cli.fabric_sources.aggregates import NovaAggregate
from nova_numa_ext.cli.fabric_sources.hostlist import expanded
from placement_traits.errors import InvalidValueError
from placement_traits.fabric import Fabric, FabricKind
from placement_traits.names import LEAF_BLOCK
from tests.support.commands import Compute, as_table
from tests.support.fabrics import fabric

SAMPLE = Path(__file__).parents[4] / "etc/nova/numa-ext-fabric.yaml.sample"
ETHERNET = FabricKind.ETHERNET


def shape(plan: Fabric) -> dict[str, tuple[tuple[str, ...], list[str]]]:
    """Each leaf with the nodes above it and its hosts."""
    return {
        leaf: (plan.above(leaf), [host for host, at in plan.hosts.items() if at == leaf])
        for leaf in plan.leafs
    }


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("c[1-3]", ["c1", "c2", "c3"]),
        ("c[08-11,20].x", ["c08.x", "c09.x", "c10.x", "c11.x", "c20.x"]),
        ("r[1-2]n[1-2],z", ["r1n1", "r1n2", "r2n1", "r2n2", "z"]),
    ],
)
def test_names_with_ranges(text: str, names: list[str]) -> None:
    assert expanded(text, "f") == names


@pytest.mark.parametrize(
    "text", ["", "a,", ",a", "a b", "a[", "a[]", "a[3-1]", "a[x]", "a]b", "a[1-2", "[1-2]]"]
)
def test_what_is_no_list_of_names_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"f:1: .* allowed: names with ranges such as"):
        expanded(text, "f:1")


def test_a_list_of_too_many_names_ends_early() -> None:
    with pytest.raises(InvalidValueError, match="100000 names at most"):
        expanded("a[0-99999]b[0-99999]", "f")


def test_the_sample_is_a_plan() -> None:
    plan = native.read(SAMPLE.read_text("utf-8"), "f")
    assert shape(plan) == {
        "l1": (("p1",), ["cmp001", "cmp002", "cmp003", "cmp004"]),
        "l2": (("p1",), ["cmp005", "cmp006", "cmp007", "cmp008"]),
    }
    assert (plan.name, plan.kind, plan.oversubscription("l1")) == ("train", ETHERNET, 2.0)


@pytest.mark.parametrize(
    "plan",
    [
        fabric([4, 4, 2], uplinks_mbps=(100, None, 7), host_mbps=50, block_size=3),
        fabric([8, 8], block_size=2, nonblocking=True),
    ],
)
def test_a_plan_is_read_as_it_was_written(plan: Fabric) -> None:
    assert native.read(native.written(plan), "f") == plan


GOOD = "name: f\nlevels: [leaf]\nnodes: {a: {level: leaf, hosts: h1}}\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "f: None is not allowed; allowed: an object"),
        ("[", "f: 'while parsing a flow node"),
        ("a: &x 1\nb: *x\n", "f: 'an alias' is not allowed; allowed: YAML without aliases"),
        (GOOD + "speed: 1\n", "f: 'speed' is not allowed; allowed: keys block_size"),
        (GOOD.replace("h1", "[h1, 3]"), "f.nodes.a.hosts[1]: 3 is not allowed; allowed: a text"),
        (GOOD.replace("h1", "'h['"), "f.nodes.a.hosts: 'h[' is not allowed"),
        (
            GOOD + "kind: token-ring\n",
            "f.kind: 'token-ring' is not allowed; allowed: ethernet or infiniband",
        ),
        (
            GOOD.replace("name: f\n", ""),
            "f.name: None is not allowed; allowed: a value, it is missing",
        ),
        (
            GOOD.replace("}}", "}, b: {level: leaf, hosts: 'h[1-2]'}}"),
            "f, b: 'h1' is not allowed; allowed: hosts that hang on no other leaf; it is on a",
        ),
        (
            GOOD.replace("level: leaf", "level: leaf, uplink_mbps: 0"),
            "f.nodes.a.uplink_mbps: 0 is not allowed; allowed: a whole number >= 1",
        ),
    ],
)
def test_a_file_that_is_no_plan_gets_one_sentence(text: str, sentence: str) -> None:
    assert native.read(GOOD, "f").leafs == ("a",)
    with pytest.raises(InvalidValueError) as error:
        native.read(text, "f")
    assert str(error.value).startswith(sentence)


# From the manual of topology.conf.
TREE = """
# topology.conf
SwitchName=s0 Nodes=tux[0-1] LinkSpeed=900
SwitchName=s1 Nodes=tux[2-3]   # a comment
SwitchName=s2 Nodes=tux[4-5]
switchname=s3 switches=s[0-1]
SwitchName=s4 \\
  Switches=s2
SwitchName=s5 Switches=s3,s4
"""


def test_a_tree_of_slurm_has_its_top_switch_as_the_fabric() -> None:
    plan = slurm.read_conf(TREE, "f", ETHERNET, "topology.conf")
    assert plan.levels == ("leaf", "pod")
    assert shape(plan) == {
        "s0": (("s3",), ["tux0", "tux1"]),
        "s1": (("s3",), ["tux2", "tux3"]),
        "s2": (("s4",), ["tux4", "tux5"]),
    }


def test_blocks_of_slurm_are_leafs() -> None:
    text = "BlockName=b1 Nodes=n[01-02]\nBlockName=b2 Nodes=n[03-04]\nBlockSizes=2,4\n"
    plan = slurm.read_conf(text, "f", ETHERNET, "topology.conf")
    assert shape(plan) == {"b1": ((), ["n01", "n02"]), "b2": ((), ["n03", "n04"])}


# In the form of the manual of topology.yaml, and of what topograph writes.
YAML = """---
- topology: flat
  cluster_default: true
  flat: true
- topology: tree
  tree:
    switches:
      - {switch: root, children: "s[1-2]"}
      - {switch: s1, nodes: "node[01-02]"}
      - {switch: s2, nodes: "node[03-04]"}
- topology: blocks
  block: {block_sizes: [2], blocks: [{block: b1, nodes: "node[01-04]"}]}
"""


def test_the_first_topology_with_a_tree_or_blocks_is_taken() -> None:
    plan = slurm.read_yaml(YAML, "f", ETHERNET, "topology.yaml")
    assert shape(plan) == {"s1": ((), ["node01", "node02"]), "s2": ((), ["node03", "node04"])}
    blocks = slurm.read_yaml(YAML.replace("  tree:\n", "  ring:\n"), "f", ETHERNET, "topology.yaml")
    assert list(shape(blocks)) == ["b1"]


# In the form that NVIDIA's topograph writes: tops first, comments with the switches' own names, names of several parts.
TOPOGRAPH_TREE = """# sw.3.1=island-a
SwitchName=sw.3.1 Switches=sw.2.[1-2]
# sw.2.1=block-7
SwitchName=sw.2.1 Switches=sw.1.1
# sw.2.2=block-8
SwitchName=sw.2.2 Switches=sw.1.2
# sw.1.1=rack-11
SwitchName=sw.1.1 Nodes=n[201-202],n205
# sw.1.2=rack-12
SwitchName=sw.1.2 Nodes=n[304,306]
"""
TOPOGRAPH_BLOCKS = """# block001=cq0
BlockName=block001 Nodes=n-[0,2]
# block002=cq1
BlockName=block002 Nodes=n-[1,3]
BlockSizes=2
"""


def test_files_of_topograph_are_read() -> None:
    assert shape(slurm.read_conf(TOPOGRAPH_TREE, "f", ETHERNET, "t")) == {
        "sw.1.1": (("sw.2.1",), ["n201", "n202", "n205"]),
        "sw.1.2": (("sw.2.2",), ["n304", "n306"]),
    }
    assert shape(slurm.read_conf(TOPOGRAPH_BLOCKS, "f", ETHERNET, "t")) == {
        "block001": ((), ["n-0", "n-2"]),
        "block002": ((), ["n-1", "n-3"]),
    }


@pytest.mark.parametrize(
    "plan",
    [
        slurm.read_conf(TREE, "f", ETHERNET, "topology.conf"),
        slurm.read_yaml(YAML, "f", ETHERNET, "topology.yaml"),
        slurm.read_conf(TOPOGRAPH_TREE, "f", ETHERNET, "t"),
        fabric([18] * 172, leafs_per_pod=18, name="f"),
        fabric([3, 3, 3], leafs_per_pod=3, name="f"),
    ],
    ids=["conf", "yaml", "topograph", "3096 hosts", "one pod"],
)
def test_a_plan_that_is_exported_to_slurm_and_imported_again_is_the_same(
    plan: Fabric, tmp_path: Path
) -> None:
    """Design 8.4, check 14; order of leafs included."""
    (tmp_path / "plan.yaml").write_text(native.written(plan))
    for form, read in (("slurm-conf", slurm.read_conf), ("slurm-yaml", slurm.read_yaml)):
        text = as_table(
            ExportFabric, SimpleNamespace(adapter=None), Compute([]),
            "--to", form, str(tmp_path / "plan.yaml"),
        )  # fmt: skip
        again = read(text, "f", ETHERNET, "exported")
        assert again == plan
        assert again.leafs == plan.leafs


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("NodeName=a\n", "t:1: 'NodeName=a' is not allowed; allowed: SwitchName="),
        (
            "SwitchName=a Nodes=x\nSwitchName=a Nodes=y\n",
            "t: 'a' is not allowed; allowed: each switch once",
        ),
        ("SwitchName=a Switches=b\n", "t, a: 'b' is not allowed; allowed: switches that are given"),
        (
            "SwitchName=a Switches=b Nodes=x\nSwitchName=b Nodes=y\n",
            "t: 'a' is not allowed; allowed: switches with",
        ),
        (
            "SwitchName=a Nodes=x\nSwitchName=b Nodes=x\n",
            "t, b: 'x' is not allowed; allowed: hosts that hang",
        ),
        (
            "SwitchName=a Nodes=x\nSwitchName=b Nodes=y\nSwitchName=c Switches=b\n",
            "t: [1, 2] is not allowed; allowed: leafs that are all as far below the top",
        ),
        (
            "SwitchName=a Nodes=x\nSwitchName=b Switches=a\nSwitchName=c Switches=a\n",
            "t, c: 'a' is not allowed; allowed: switches below one other; it is below b",
        ),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "t: [] is not allowed"),
        ("", "t: [] is not allowed"),
    ],
)
def test_what_is_no_tree_gets_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InvalidValueError) as error:
        slurm.read_conf(text, "f", ETHERNET, "t")
    assert str(error.value).startswith(sentence)


# In the form of ibnetdiscover(8).
SEEN = """#
# Topology file: generated on Thu Jan  1 00:00:00 2026
#
Switch  36 "S-00000000000000a1"    # "MF0;leaf1:SX6036/U1" enhanced port 0 lid 1 lmc 0
[1]     "H-00000000000000c1"[1](c2)    # "cmp001 HCA-1" lid 4 4xQDR
[2]     "H-00000000000000c3"[1](c4)    # "cmp002 mlx5_0" lid 5 4xQDR
[19]    "S-00000000000000b1"[1]        # "spine1" lid 3 4xQDR

Switch  36 "S-00000000000000a2"    # "leaf2" enhanced port 0 lid 2 lmc 0
[1]     "H-00000000000000c5"[1](c6)    # "cmp003 HCA-1" lid 6 4xQDR
[19]    "S-00000000000000b1"[2]        # "spine1" lid 3 4xQDR

Switch  36 "S-00000000000000b1"    # "spine1" enhanced port 0 lid 3 lmc 0
[1]     "S-00000000000000a1"[19]       # "MF0;leaf1:SX6036/U1" lid 1 4xQDR
[2]     "S-00000000000000a2"[19]       # "leaf2" lid 2 4xQDR

Ca      1 "H-00000000000000c1"     # "cmp001 HCA-1"
[1](c2)         "S-00000000000000a1"[1]    # lid 4 lmc 0 "leaf1" lid 1 4xQDR
"""


def test_switches_with_hosts_are_leafs_and_those_with_the_same_spines_a_pod() -> None:
    plan = ibnetdiscover.read(SEEN, "ib", "seen")
    assert plan.kind is FabricKind.INFINIBAND
    assert shape(plan) == {
        "MF0_leaf1_SX6036_U1": (("pod-1",), ["cmp001", "cmp002"]),
        "leaf2": (("pod-1",), ["cmp003"]),
    }


def test_hosts_with_the_same_rails_are_one_unit() -> None:
    rails = SEEN.replace(
        '[1]     "H-00000000000000c5"[1](c6)    # "cmp003 HCA-1" lid 6 4xQDR\n',
        '[1]     "H-00000000000000d1"[1](d2)    # "cmp001 HCA-2" lid 7 4xQDR\n'
        '[2]     "H-00000000000000d3"[1](d4)    # "cmp002 HCA-2" lid 8 4xQDR\n',
    )
    plan = ibnetdiscover.read(rails, "ib", "seen")
    assert shape(plan) == {"su-1": (("pod-1",), ["cmp001", "cmp002"])}


def test_hosts_that_share_only_some_rails_are_refused_with_both_cables() -> None:
    crossed = SEEN.replace("cmp003 HCA-1", "cmp001 HCA-2")
    with pytest.raises(InvalidValueError) as error:
        ibnetdiscover.read(crossed, "ib", "seen")
    assert str(error.value) == (
        "seen, MF0_leaf1_SX6036_U1: 'cmp002 on MF0_leaf1_SX6036_U1' is not allowed; allowed: the leafs of cmp001, "
        "which hangs there, too: MF0_leaf1_SX6036_U1 and leaf2"
    )
    with pytest.raises(InvalidValueError, match="no switch with a host"):
        ibnetdiscover.read("what?", "ib", "seen")


def test_marked_aggregates_are_leafs_and_pods() -> None:
    found = [
        NovaAggregate("r1", ["a", "b"], {"numa_ext:leaf": "l1"}),
        NovaAggregate("r2", ["c"], {"numa_ext:leaf": "l2", "numa_ext:pod": "p2"}),
        NovaAggregate("row", ["a", "b"], {"numa_ext:pod": "p1"}),
        NovaAggregate("ssd", ["a", "c"], {"ssd": "true"}),
    ]
    plan = aggregates.read(found, "f", ETHERNET)
    assert shape(plan) == {"l1": (("p1",), ["a", "b"]), "l2": (("p2",), ["c"])}
    flat = aggregates.read(found[:1], "f", ETHERNET)
    assert (flat.levels, shape(flat)) == (("leaf",), {"l1": ((), ["a", "b"])})
    with pytest.raises(InvalidValueError, match="aggregates with numa_ext:leaf"):
        aggregates.read(found[3:], "f", ETHERNET)
    with pytest.raises(InvalidValueError, match="aggregate r1, leaf l1: 'no pod, p1'"):
        aggregates.read(
            [*found[:2], NovaAggregate("row", ["a"], {"numa_ext:pod": "p1"})], "f", ETHERNET
        )


def test_segments_of_neutron_are_leafs() -> None:
    found = [
        NovaAggregate("Neutron segment id 11", ["a", "b"]),
        NovaAggregate("Neutron segment id 12", ["c"]),
        NovaAggregate("Neutron segment id 13", []),
        NovaAggregate("other", ["a"]),
    ]
    assert shape(aggregates.read_segments(found, "f")) == {
        "11": ((), ["a", "b"]),
        "12": ((), ["c"]),
    }
    with pytest.raises(InvalidValueError, match="aggregates named 'Neutron segment id"):
        aggregates.read_segments(found[3:], "f")


def test_a_drawing_shows_each_leaf_with_what_is_held() -> None:
    drawing = draw(
        "<f>",
        [
            DrawnLeaf("l1", "p1", 18, {LEAF_BLOCK: 16}, "alone"),
            DrawnLeaf("l2", "p2", 4, {}, is_drained=True),
        ],
    )
    key, background, pods, bars, held = 6, 1, 2, 2, 1
    assert drawing.count("<rect") == key + background + pods + bars + held
    assert ">16 of 18 hosts; uplinks: alone<" in drawing
    assert ">0 of 4 hosts; drained<" in drawing
    grey = "width='40' height='14' fill='#c9ccd1'"
    assert drawing.count(grey) == 1, "the drained leaf of 4 hosts"
    assert "width='160'" in drawing, "16 hosts"
    assert "&lt;f&gt;" in drawing
    assert (
        drawing.index(">p1<")
        < drawing.index(">l1<")
        < drawing.index(">p2<")
        < drawing.index(">l2<")
    )
