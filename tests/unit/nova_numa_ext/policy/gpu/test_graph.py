# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a host as a weighted graph."""

from dataclasses import replace

import pytest

from nova_numa_ext.policy.gpu.distances import parse_distances
from nova_numa_ext.policy.gpu.graph import (
    GpuGraph,
    LevelWeights,
    from_edges,
    from_topology,
    join,
    mask_of,
    members,
    shared,
)
from nova_numa_ext.simulator.gpu.machines import dgx1, graph, minsky
from placement_traits.errors import InvalidValueError
from placement_traits.names import GpuLink
from placement_traits.topology import Gpu, GpuEdge, HostTopology, NumaNode, Socket


def test_f_000_03_minsky_has_distance_1_in_a_socket_and_42_across() -> None:
    assert graph("minsky").distances == (
        (0, 1, 42, 42),
        (1, 0, 42, 42),
        (42, 42, 0, 1),
        (42, 42, 1, 0),
    )
    assert graph("minsky").sockets == (0, 0, 1, 1)


def test_f_000_03_weights_of_levels_are_options() -> None:
    wide = from_topology(minsky(), LevelWeights(gpu=2.0, upper=5.0))
    assert wide.distances[0] == (0, 2, 14, 14)


def test_f_000_03_dgx1_has_16_nvlinks_and_never_forwards_through_a_gpu() -> None:
    distances = graph("dgx1").distances
    linked = [(a, b) for a in range(8) for b in range(a) if distances[a][b] == 1]
    assert len(linked) == 16
    # 0 and 5 share the neighbour 1 (and 4), but a GPU does not forward: switch, socket, machine, socket, switch.
    assert distances[0][5] == 1 + 20 + 20 + 20 + 20 + 1


def test_f_000_04_a_measured_matrix_overrides_the_levels() -> None:
    measured = ((0, 3, 5, 5), (3, 0, 5, 5), (5, 5, 0, 9), (5, 5, 9, 0))
    found = from_topology(minsky(), measured=measured)
    assert found.distances == measured
    assert (found.nearest, found.farthest) == (3, 9)


@pytest.mark.parametrize(
    "measured",
    [((0, 1), (2, 0)), ((0, 0), (0, 0)), ((0, 1), (1, 0), (1, 1))],
    ids=["not symmetric", "zero between two GPUs", "wrong size"],
)
def test_f_000_04_a_measured_matrix_that_cannot_be_one_is_refused(measured) -> None:
    with pytest.raises(InvalidValueError, match="distances"):
        GpuGraph(("a", "b"), (0, 0), measured, (1.0, 1.0))


def test_f_000_04_a_file_tells_the_distances_of_each_kind_of_host() -> None:
    """F-000-04: they override the levels on hosts with these GPUs."""
    addresses = [gpu.address for gpu in minsky().gpus]
    rows = [[0, 5, 1, 9], [5, 0, 9, 9], [1, 9, 0, 9], [9, 9, 9, 0]]
    measured = parse_distances({"odd": {"gpus": addresses, "distances": rows}}, "file")
    found = measured[tuple(addresses)]
    assert shared(minsky(), found).distances[0] == (0, 5, 1, 9)
    assert shared(minsky(), found) is shared(minsky(), found)
    assert shared(minsky()).distances[0] == (0, 1, 42, 42)


@pytest.mark.parametrize(
    ("document", "where"),
    [
        (None, "file: None"),
        ({"a": [1]}, r"file\.a: \[1\]"),
        ({"a": {"gpus": ["1"]}}, r"file\.a: .* a mapping of gpus and distances"),
        ({"a": {"gpus": ["2", "1"], "distances": []}}, r"file\.a\.gpus: .*ascending"),
        ({"a": {"gpus": ["1", "1"], "distances": []}}, r"file\.a\.gpus"),
        ({"a": {"gpus": ["1"], "distances": "0"}}, r"file\.a\.distances: '0'"),
        ({"a": {"gpus": ["1"], "distances": [["x"]]}}, r"file\.a\.distances"),
        ({"a": {"gpus": ["1", "2"], "distances": [[0, 1]]}}, "a symmetric matrix of 2 rows"),
        ({"a": {"gpus": ["1", "2"], "distances": [[0, 1], [2, 0]]}}, "a symmetric matrix"),
    ],
)
def test_f_000_04_a_wrong_file_of_distances_is_refused_by_key(document, where) -> None:
    """F-000-04: in one sentence that names what is wrong."""
    with pytest.raises(InvalidValueError, match=where):
        parse_distances(document, "file")


def test_nodes_of_one_socket_are_a_level_between_socket_and_gpu() -> None:
    topology = HostTopology(
        sockets=(Socket(0),),
        nodes=(NumaNode(0, socket=0), NumaNode(1, socket=0)),
        gpus=(Gpu("0000:01:00.0", 0), Gpu("0000:02:00.0", 0), Gpu("0000:03:00.0", 1)),
    )
    found = from_topology(topology)
    assert found.distances[0] == (0, 2, 42)
    assert found.sockets == (0, 0, 0)


def test_switches_and_listed_bridges_shorten_the_way() -> None:
    addresses = [f"0000:0{number}:00.0" for number in range(1, 5)]
    topology = HostTopology(
        sockets=(Socket(0),),
        nodes=(NumaNode(0, socket=0),),
        gpus=tuple(Gpu(a, 0, switch) for a, switch in zip(addresses, (0, 0, 1, 2), strict=True)),
        gpu_links=(GpuEdge(addresses[0], addresses[2], GpuLink.PXB),),
    )
    assert from_topology(topology).distances[0] == (0, 2, 22, 42)


def test_gpus_without_a_known_node_share_one_unknown_socket() -> None:
    topology = HostTopology(
        sockets=(Socket(0),),
        nodes=(NumaNode(0, socket=0),),
        gpus=(Gpu("0000:01:00.0", None), Gpu("0000:02:00.0", None), Gpu("0000:03:00.0", 0)),
    )
    found = from_topology(topology)
    assert found.sockets == (0, 0, 1)
    assert found.distances[0] == (0, 2, 42)


def test_a_gpu_that_nothing_connects_is_refused() -> None:
    with pytest.raises(InvalidValueError):
        from_edges([("a", "machine", 1.0)], ["a", "b"], [0, 0], "machine")


def test_hosts_are_joined_over_the_network_level() -> None:
    both = join({"h1": graph("minsky"), "h2": graph("minsky")})
    assert both.gpus[4] == "h2/0000:01:00.0"
    assert both.sockets == (0, 0, 1, 1, 2, 2, 3, 3)
    assert both.distances[0][1] == 1
    assert both.distances[0][4] == 2 * (1 + 20 + 20)
    assert both.distances[0][2] < both.distances[0][4]


def test_masks_and_numbers_are_two_spellings_of_a_set() -> None:
    assert mask_of([0, 3, 5]) == 0b101001
    assert list(members(0b101001)) == [0, 3, 5]
    assert graph("dgx1").touched(0b11) == 0b01
    assert graph("dgx1").touched(0b10001) == 0b11
    assert dgx1().gpu_link("0000:01:00.0", "0001:01:00.0") is GpuLink.NV1


def test_hosts_of_one_shape_share_a_graph_whatever_their_memory() -> None:
    one = minsky()
    other = replace(one, nodes=tuple(replace(node, memory_mb=4096) for node in one.nodes))
    assert shared(one) is shared(other)
    assert shared(one) is not shared(dgx1())


@pytest.mark.parametrize("link", [link for link in GpuLink if link.startswith("NV")])
def test_every_class_of_nvlink_is_a_direct_way(link: GpuLink) -> None:
    gpus = (Gpu("0000:01:00.0", 0), Gpu("0000:81:00.0", 1))
    topology = HostTopology(
        (Socket(0), Socket(1)),
        (NumaNode(0, 0), NumaNode(1, 1)),
        gpus=gpus,
        gpu_links=(GpuEdge(gpus[0].address, gpus[1].address, link),),
    )
    assert from_topology(topology).distances[0][1] == 1
