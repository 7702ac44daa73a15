# SPDX-License-Identifier: Apache-2.0
"""A host's shape: look-ups, JSON and what is refused."""

import dataclasses
import time

import pytest
from hypothesis import given

from emulation.hosts import four_nodes
from placement_traits.errors import InvalidValueError
from placement_traits.names import GpuLink
from placement_traits.topology import Core, Gpu, GpuEdge, HostTopology, L3Domain, NumaNode, Socket
from tests.support.hosts import topologies


@given(topologies())
def test_a_topology_survives_json(topology):
    assert HostTopology.from_json(topology.to_json()) == topology


@given(topologies())
def test_lookups_from_cpu_to_place_and_back_agree(topology):
    for cpu in topology.cpus:
        assert cpu in topology.cpus_of_node(topology.node_of_cpu(cpu))
        assert cpu in topology.siblings(cpu)
        l3_id = topology.l3_of_cpu(cpu)
        if l3_id is not None:
            near = topology.l3_of_node(topology.node_of_cpu(cpu))
            assert l3_id in {domain.id for domain in near}


def test_the_lab_host_answers_what_one_would_draw():
    host = four_nodes()
    assert host.cpus_of_node(2) == (4, 5)
    assert host.nodes_by_distance(2) == (2, 3, 0, 1)
    assert [node.id for node in host.nodes_of_socket(1)] == [2, 3]
    assert [gpu.address for gpu in host.gpus_of_node(2)] == ["0000:85:00.0"]
    assert host.chassis_of_node(3) == 0
    assert host.rdt.num_closids == 8


def test_a_host_without_slit_has_the_kernels_default_distances():
    host = four_nodes(distances=())
    assert (host.distance(1, 1), host.distance(1, 2)) == (10, 20)


def test_gpu_links_are_listed_or_follow_from_switch_and_node():
    gpus = (
        Gpu("0000:01:00.0", 0, 0),
        Gpu("0000:02:00.0", 0, 0),
        Gpu("0000:03:00.0", 0, 1),
        Gpu("0000:81:00.0", 2),
    )
    host = four_nodes(gpus=gpus, gpu_links=(GpuEdge("0000:01:00.0", "0000:81:00.0", GpuLink.NV2),))
    assert host.gpu_link("0000:02:00.0", "0000:01:00.0") is GpuLink.PIX
    assert host.gpu_link("0000:01:00.0", "0000:03:00.0") is GpuLink.NODE
    assert host.gpu_link("0000:02:00.0", "0000:81:00.0") is GpuLink.SYS
    assert host.gpu_link("0000:81:00.0", "0000:01:00.0") is GpuLink.NV2


def test_an_offline_cpu_is_known_to_its_node_only():
    host = four_nodes(nodes=tuple(NumaNode(n, n // 2, offline_cpus=(8 + n,)) for n in range(4)))
    assert host.node(1).offline_cpus == (9,)
    with pytest.raises(InvalidValueError, match="CPU: 9 is not allowed; allowed: an online CPU"):
        host.core_of_cpu(9)


@pytest.mark.parametrize(
    ("path", "spoil"),
    [
        ("host.json.nodes[1].sockt", lambda d: d["nodes"][1].update(sockt=1)),
        ("host.json.nodes[2].socket", lambda d: d["nodes"][2].update(socket="one")),
        ("host.json.nodes[2].socket", lambda d: d["nodes"][2].update(socket=7)),
        ("host.json.cores[3].l3", lambda d: d["cores"][3].update(l3=9)),
        ("host.json.l3_domains[0].nodes", lambda d: d["l3_domains"][0].update(nodes=[0, 1])),
        ("host.json.distances", lambda d: d["distances"].pop()),
        ("host.json.distances[0][0]", lambda d: d["distances"][0].__setitem__(0, 9)),
        ("host.json.gpus[0].address", lambda d: d["gpus"][0].update(address="5:0.0")),
        ("host.json.gpu_links[0].link", lambda d: d["gpu_links"][0].update(link="NV5000")),
        ("host.json.cores[].cpus", lambda d: d["cores"][0].update(cpus=[1])),
        ("host.json", lambda d: d.pop("nodes")),
    ],
)
def test_a_wrong_key_is_named_by_its_path(path, spoil):
    data = four_nodes().to_dict()
    spoil(data)
    with pytest.raises(InvalidValueError) as error:
        HostTopology.from_dict(data, "host.json")
    assert error.value.where == path


def test_text_that_is_no_json_is_refused_with_its_source():
    with pytest.raises(InvalidValueError, match=r"^host.json: '\{nodes'"):
        HostTopology.from_json("{nodes", "host.json")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"nodes": ' * 100_000,
        "[" * 500 + "]" * 500,
        '{"nodes": 1' + "0" * 5000 + "}",
    ],
    ids=["brackets", "braces", "closed", "digits"],
)
def test_hostile_json_is_refused_in_one_short_sentence(text):
    with pytest.raises(InvalidValueError, match=r"^host\.json") as caught:
        HostTopology.from_json(text, "host.json")
    assert len(str(caught.value)) < 3000


def test_one_identifier_twice_among_many_is_found_at_once():
    nodes = tuple(NumaNode(n, None) for n in (*range(100_000), 99_999))
    began = time.process_time()
    with pytest.raises(
        InvalidValueError, match="nodes: 99999 is not allowed; allowed: each identifier once"
    ):
        HostTopology((), nodes)
    assert time.process_time() - began < 5


def test_one_l3_may_serve_several_nodes_and_one_node_may_hold_several_l3():
    host = HostTopology(
        sockets=(Socket(0),),
        nodes=(NumaNode(0, 0), NumaNode(1, 0)),
        l3_domains=(L3Domain(0, 0, (0, 1)), L3Domain(1, 0, (1,))),
        cores=(Core(0, 0, 0, 0, (0,)), Core(1, 1, 0, 0, (1,)), Core(2, 1, 0, 1, (2,))),
    )
    assert [domain.id for domain in host.l3_of_node(1)] == [0, 1]


def test_a_topology_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        four_nodes().gpus = ()
