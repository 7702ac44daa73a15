# SPDX-License-Identifier: Apache-2.0
"""An emulated host is what its command line says."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from numa_lab.emulated_machine import NODES, Machine, Shape, Share, usual_shape
from numa_lab.errors import LabError
from numa_lab.qemu_build import Qemu
from numa_lab.time_stamp_counter import frequency_khz

from host_agent.observe.topology.nvidia import parse_topo_matrix, with_links
from placement_traits.presets import load
from placement_traits.topology import Gpu

LAB = Path(__file__).parents[3] / "devstack/lab"


@pytest.fixture
def machine() -> Machine:
    return Machine(
        name="h1",
        qemu=Qemu(Path("/cache/qemu"), has_rdt=True),
        kernel=Path("/cache/vmlinuz"),
        initramfs=Path("/cache/initramfs"),
        shape=Shape(),
        shares=(Share("root", Path("/")), Share("share", Path("/lab/hosts/h1"), writable=True)),
        image=Path("/lab/venv.erofs"),
        ssh_port=21020,
        peer_port=21021,
    )


def values(machine: Machine, option: str) -> list[str]:
    words = machine.command()
    return [words[i + 1] for i, word in enumerate(words) if word == option]


def fields(value: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in value.split(",") if "=" in pair)


@pytest.mark.parametrize("cpus_per_node", [1, 2, 3, 4])
def test_each_cpu_sits_in_one_place_and_each_die_is_one_node(machine, cpus_per_node):
    machine = replace(machine, shape=Shape(cpus_per_node=cpus_per_node))
    cpus = [fields(v) for v in values(machine, "-numa") if v.startswith("cpu,")]
    places = {(c["socket-id"], c["die-id"], c["core-id"]) for c in cpus}
    assert len(cpus) == len(places) == cpus_per_node * NODES
    assert len({(c["socket-id"], c["die-id"], c["node-id"]) for c in cpus}) == NODES
    assert values(machine, "-smp") == [
        f"{cpus_per_node * NODES},sockets=2,dies=2,cores={cpus_per_node},threads=1"
    ]


@pytest.mark.parametrize(("sockets", "dies"), [(1, 4), (2, 2), (4, 1)])
def test_dies_lie_in_the_sockets_of_the_shape(machine, sockets, dies):
    machine = replace(machine, shape=Shape(sockets=sockets))
    assert f",sockets={sockets},dies={dies}," in values(machine, "-smp")[0]
    cpus = [fields(v) for v in values(machine, "-numa") if v.startswith("cpu,")]
    assert {int(cpu["socket-id"]) for cpu in cpus} == set(range(sockets))
    assert all(("die-id" in cpu) == (dies > 1) for cpu in cpus), (
        "QEMU takes no number of an only die"
    )
    with pytest.raises(LabError, match="4 dies lie in 1, 2 or 4 sockets, not in 3"):
        Shape(sockets=3)


def test_h2_sets_other_cpus_aside_for_floating_guests_than_h1():
    first, second = usual_shape(0), usual_shape(1)
    assert not set(first.shared_cpus) & set(second.shared_cpus)
    with pytest.raises(LabError, match="a node has 2 cores, none of them is 2"):
        Shape(cpus_per_node=2, shared_core=2)


def test_nodes_of_one_socket_are_nearer_than_those_of_two(machine):
    distances = [fields(v) for v in values(machine, "-numa") if v.startswith("dist,")]
    by_pair = {(int(d["src"]), int(d["dst"])): int(d["val"]) for d in distances}
    assert set(by_pair) == {(a, b) for a in range(NODES) for b in range(a + 1, NODES)}
    same_socket = {by_pair[0, 1], by_pair[2, 3]}
    assert same_socket == {16}
    assert sorted(set(by_pair.values())) == [16, 22, 160]


def test_memory_of_the_nodes_is_the_memory_of_the_machine(machine):
    machine = replace(machine, shape=Shape(node_memory_mb=1000))
    sizes = [fields(v)["size"] for v in values(machine, "-object")]
    assert sizes == ["1000M"] * NODES
    assert values(machine, "-m") == ["4000M"]


def test_gpus_hang_behind_the_bridge_of_their_node(machine):
    machine = replace(machine, shape=Shape(gpu_nodes=(0, 2, 2)))
    devices = values(machine, "-device")
    bridges = {fields(d)["id"]: fields(d)["numa_node"] for d in devices if "pxb" in d}
    ports = {fields(d)["id"]: fields(d)["bus"] for d in devices if "root-port" in d}
    gpus = [fields(d)["bus"] for d in devices if "testdev" in d]
    assert [bridges[ports[gpu]] for gpu in gpus] == ["0", "2", "2"]
    cards = [fields(d)["bus"] for d in devices if "testdev" in d or "pvpanic" in d]
    assert sorted(cards) == sorted(ports), "each slot has one card"
    assert devices.index("intel-iommu,intremap=on,caching-mode=on") == 0


def test_rdt_is_asked_only_of_a_qemu_that_has_it(machine):
    assert "+rdt-a" in values(machine, "-cpu")[0]
    debian = replace(machine, qemu=Qemu(Path("/usr/bin/qemu"), has_rdt=False))
    assert "rdt" not in values(debian, "-cpu")[0]


def test_only_the_hosts_own_folder_is_writable(machine):
    shares = values(machine, "-fsdev")
    assert [fields(s)["path"] for s in shares if "readonly=on" not in s] == ["/lab/hosts/h1"]
    assert all("readonly=on" in drive for drive in values(machine, "-drive"))


def test_commas_in_folder_names_reach_qemu(machine):
    machine = replace(machine, shares=(Share("root", Path("/a,b")),))
    assert any("path=/a,,b," in value for value in values(machine, "-fsdev"))


def test_nothing_is_opened_to_other_machines(machine):
    network = " ".join(values(machine, "-netdev"))
    assert set(re.findall(r"(?:tcp:|localaddr=)([0-9.]+)", network)) == {"127.0.0.1"}


@pytest.mark.parametrize(("index", "preset", "links"), [(0, "power8-minsky", 2), (1, "dgx-1", 16)])
def test_the_lab_has_the_gpus_of_a_minsky_and_of_a_dgx1(tmp_path, index, preset, links):
    """F-000-02: the agent reads the recorded matrix as the links that the preset of that machine has."""
    shape = usual_shape(index)
    gpus = [Gpu(f"0000:{bus:02x}:00.0", node) for bus, node in enumerate(shape.gpu_nodes, 0x21)]
    addresses = [gpu.address for gpu in gpus]
    text = (LAB / "gpus" / shape.gpu_matrix).read_text()
    read = parse_topo_matrix(text, addresses, shape.gpu_matrix)
    found = with_links(gpus, (), read)
    assert len(found) == links
    real = load(preset).topology
    order = {gpu.address: number for number, gpu in enumerate(real.gpus)}
    assert [(addresses.index(e.a), addresses.index(e.b), e.link) for e in found] == sorted(
        (order[e.a], order[e.b], e.link) for e in real.gpu_links if e.link.startswith("NV")
    )


def test_a_host_boots_unless_there_is_a_saved_state_to_go_on_with(machine):
    assert values(machine, "-incoming") == []
    resumed = replace(machine, state=Path("/lab/it's saved"))
    assert values(resumed, "-incoming") == ["""exec:cat '/lab/it'"'"'s saved'"""]


def test_init_is_told_the_hosts_name(machine):
    assert values(machine, "-fw_cfg") == [f"name=opt/numa-lab/name,string={'h1':16}"]


@pytest.mark.parametrize("cpus_per_node", [2, 3, 4])
def test_each_node_has_a_shared_cpu_and_the_rest_is_dedicated(cpus_per_node):
    shape = Shape(cpus_per_node=cpus_per_node)
    assert sorted(shape.shared_cpus + shape.dedicated_cpus) == list(range(shape.cpus))
    for node in range(NODES):
        assert len(set(shape.cpus_of(node)) & set(shape.shared_cpus)) == 1


def test_impossible_shapes_are_refused():
    with pytest.raises(LabError, match="needs a CPU per NUMA node, not 0"):
        Shape(cpus_per_node=0)
    with pytest.raises(LabError, match=r"NUMA nodes 0 to 3, not \(0, 4\)"):
        Shape(gpu_nodes=(0, 4))


@pytest.mark.parametrize(("khz", "words"), [(2596150, ["tsc_early_khz=2596150"]), (None, [])])
def test_a_kernel_is_told_the_frequency_of_the_counter_that_it_reads(machine, khz, words):
    """Calibrated on a busy machine it was 483 MHz instead of 2596, and the host's clock ran 5.4 times too fast."""
    (line,) = values(replace(machine, tsc_khz=khz), "-append")
    assert [word for word in line.split() if word.startswith("tsc_early")] == words


def test_the_measured_frequency_is_that_of_the_counter():
    """Two readings that are far apart agree, busy or not."""
    measured = frequency_khz.__wrapped__()
    if measured is None:
        pytest.skip("this machine lets nobody read the counter")
    assert measured == pytest.approx(frequency_khz.__wrapped__(), rel=0.01)
    assert 100_000 < measured < 10_000_000
