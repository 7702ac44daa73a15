# SPDX-License-Identifier: Apache-2.0
"""The machines that we ship say what their sources say, survive Placement, and can be drawn."""

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from emulation.hosts import four_nodes
from placement_traits import presets
from placement_traits.draw import draw_text
from placement_traits.draw_svg import draw_svg
from placement_traits.errors import InvalidValueError
from placement_traits.names import GpuLink
from placement_traits.offers import publishable
from placement_traits.topology import Gpu, HostTopology
from placement_traits.tree import desired_tree, from_tree
from tests.support.hosts import SETTINGS, topologies

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", presets.available())
def test_each_preset_survives_placement_and_names_its_source(name):
    preset = presets.load(name)
    tree = desired_tree("host", preset.topology, SETTINGS)
    assert from_tree(tree).topology == publishable(preset.topology)
    assert len(preset.source) > 40


def test_the_presets_of_the_issue_are_there():
    assert presets.available() == (
        "dgx-1",
        "epyc-7763-nps4",
        "numaconnect-6x6x8",
        "opteron-6272-8-nodes",
        "power8-minsky",
        "xeon-e5-2660v4-cod",
        "xeon-gold-5218",
    )
    with pytest.raises(InvalidValueError, match="preset: 'dgx-2'"):
        presets.load("dgx-2")


def test_numaconnect_is_six_servers_of_six_nodes_of_eight_cores():
    host = presets.load("numaconnect-6x6x8").topology
    assert (len(host.chassis_ids), len(host.sockets), len(host.nodes)) == (6, 18, 36)
    assert {len(host.cores_of_node(node)) for node in host.node_ids} == {8}
    assert {value for row in host.distances for value in row} == {10, 16, 22, 160, 200}
    assert sum(node.memory_mb for node in host.nodes) == pytest.approx(1176 * 1024, abs=36)


def test_dgx_1_has_sixteen_single_nvlinks_four_at_each_gpu():
    host = presets.load("dgx-1").topology
    nvlinks = [edge for edge in host.gpu_links if edge.link is GpuLink.NV1]
    assert len(host.gpus) == 8
    assert len(nvlinks) == 16
    for gpu in host.gpus:
        assert sum(gpu.address in (edge.a, edge.b) for edge in nvlinks) == 4
    # GPU 1 and GPU 5 of different sockets are joined, GPU 1 and GPU 4 are not.
    a = [gpu.address for gpu in host.gpus]
    assert (host.gpu_link(a[1], a[5]), host.gpu_link(a[1], a[4])) == (GpuLink.NV1, GpuLink.SYS)


def test_minsky_has_two_pairs():
    host = presets.load("power8-minsky").topology
    links = [
        [host.gpu_link(a.address, b.address).value for b in host.gpus if b is not a]
        for a in host.gpus
    ]
    assert links == [
        ["NV2", "SYS", "SYS"],
        ["NV2", "SYS", "SYS"],
        ["SYS", "SYS", "NV2"],
        ["SYS", "SYS", "NV2"],
    ]


def test_the_opteron_is_as_asymmetric_as_its_source_says():
    host = presets.load("opteron-6272-8-nodes").topology
    matrix = host.read_bandwidth_mbps
    local = matrix[0][0]
    lowest = min(value for row in matrix for value in row)
    assert local / lowest == pytest.approx(5.8, abs=0.05)
    assert local / matrix[0][1] == pytest.approx(1.7, abs=0.05)
    assert local / min(matrix[0]) == pytest.approx(5.1, abs=0.05)
    assert any(matrix[a][b] != matrix[b][a] for a in range(8) for b in range(8))


def test_cluster_on_die_has_an_amplitude_of_two_point_three():
    matrix = presets.load("xeon-e5-2660v4-cod").topology.read_bandwidth_mbps
    assert matrix[0][0] / matrix[0][1] == pytest.approx(1.8, abs=0.01)
    assert matrix[0][0] / min(matrix[0]) == pytest.approx(2.3, abs=0.01)


def test_epyc_has_two_l3_in_each_node():
    host = presets.load("epyc-7763-nps4").topology
    assert [len(host.l3_of_node(node)) for node in host.node_ids] == [2, 2, 2, 2]


def test_the_lab_host_as_text():
    assert draw_text(four_nodes(), "h1") == (
        "h1: 1 chassis, 2 sockets, 4 NUMA nodes, 4 L3 domains, 8 cores, 8 CPUs, 2 GPUs\n"
        "chassis 0\n"
        "  socket 0\n"
        "    node 0, 2048 MB, 10000 MB/s\n"
        "      L3 0, 16 MB: cores 0-1, CPUs 0-1\n"
        "      GPU 0000:05:00.0\n"
        "    node 1, 2048 MB, 10000 MB/s\n"
        "      L3 1, 16 MB: cores 2-3, CPUs 2-3\n"
        "  socket 1\n"
        "    node 2, 2048 MB, 10000 MB/s\n"
        "      L3 2, 16 MB: cores 4-5, CPUs 4-5\n"
        "      GPU 0000:85:00.0\n"
        "    node 3, 2048 MB, 10000 MB/s\n"
        "      L3 3, 16 MB: cores 6-7, CPUs 6-7\n"
        "distance (SLIT)\n"
        "  node   0   1   2   3\n"
        "    0:  10  16  22 160\n"
        "    1:  16  10 160  22\n"
        "    2:  22 160  10  16\n"
        "    3: 160  22  16  10\n"
        "GPU links (classes of nvidia-smi topo -m)\n"
        "                    GPU0 GPU1\n"
        "  GPU0 0000:05:00.0    X  NV2\n"
        "  GPU1 0000:85:00.0  NV2    X\n"
        "RDT: 8 classes of service; L3 allocation of 16 ways, 2 shareable; "
        "bandwidth throttling from 10 in steps of 10; monitoring with 32 ids\n"
    )


@given(topologies())
@settings(max_examples=40)
def test_any_host_can_be_drawn_and_nothing_is_left_out(topology):
    text = draw_text(topology)
    root = ElementTree.fromstring(draw_svg(topology, "<host> & 'co'"))
    drawn = " ".join(element.text or "" for element in root.iter(f"{SVG}text"))
    for node in topology.node_ids:
        assert f"node {node}" in text
        assert f"node {node}" in drawn
    for gpu in topology.gpus:
        assert text.count(f"GPU {gpu.address}") == 1
        assert gpu.address in drawn
    for domain in topology.l3_domains:
        assert f"L3 {domain.id}" in text
        assert f"L3 {domain.id}" in drawn


@given(topologies())
@settings(max_examples=40)
def test_no_shape_leaves_the_picture(topology):
    root = ElementTree.fromstring(draw_svg(topology))
    width, height = float(root.get("width")), float(root.get("height"))
    for box in root.iter(f"{SVG}rect"):
        if box.get("x") is not None:
            assert float(box.get("x")) + float(box.get("width")) <= width
            assert float(box.get("y")) + float(box.get("height")) <= height


def test_what_was_read_back_from_placement_can_be_drawn_too():
    published = publishable(four_nodes())
    assert "L3 2\n" in draw_text(published)
    assert "L3 2" in draw_svg(published)


def test_each_nvlink_is_one_arc():
    root = ElementTree.fromstring(draw_svg(presets.load("dgx-1").topology))
    titles = [element.text for element in root.iter(f"{SVG}title")]
    assert len([title for title in titles if " NV1 " in title]) == 16


def test_a_gpu_of_unknown_node_is_still_shown():
    host = four_nodes(gpus=(Gpu("0000:05:00.0", None),), gpu_links=())
    assert isinstance(host, HostTopology)
    assert "GPU 0000:05:00.0, node unknown" in draw_text(host)
    assert "GPUs of unknown node" in draw_svg(host)
