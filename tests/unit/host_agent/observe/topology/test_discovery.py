# SPDX-License-Identifier: Apache-2.0
"""Discovery of machines: recorded ones and ones that are built CPU by CPU."""

import json
import logging
from pathlib import Path

import pytest

from host_agent.machine.rdt.files import OsFiles
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.rdt import BandwidthControl, BandwidthUnit, CacheControl, Capabilities
from host_agent.observe.topology import rdt as rdt_discovery
from host_agent.observe.topology.capture import capture, restore
from host_agent.observe.topology.host import discover
from host_agent.observe.topology.pci import read_gpus
from host_agent.observe.topology.rdt import rdt_capability
from host_agent.observe.topology.sysfs import Given, read_topology, with_given
from placement_traits.errors import InvalidValueError
from placement_traits.names import GpuLink
from placement_traits.rdt_capability import L3Cat, Mba
from placement_traits.topology import Gpu, HugePages, L3Domain, Socket

RECORDED = Path(__file__).parent / "data"


@pytest.fixture
def lab_host(tmp_path):
    """The emulated host of the lab: 2 sockets, 4 nodes, 8 CPUs, one L3 per node."""
    restore(json.loads((RECORDED / "lab-4-nodes.json").read_text()), tmp_path)
    return tmp_path


def machine(tmp_path, cpus, offline=(), nodes=None):
    """Write the sysfs of a machine.

    :param cpus: (cpu, node, socket, first CPU of its core, CPUs of its L3 or None)
    :param offline: (cpu, node)
    :param nodes: all nodes, where some have no CPU
    """
    siblings = {}
    for cpu, _, _, core, _ in cpus:
        siblings.setdefault(core, []).append(cpu)
    tree = {"cpu": {"online": ",".join(str(cpu[0]) for cpu in cpus)}, "node": {}}
    for cpu, _, socket, core, l3 in cpus:
        tree["cpu"][f"cpu{cpu}"] = {
            "topology": {
                "physical_package_id": str(socket),
                "core_cpus_list": ",".join(map(str, siblings[core])),
            },
            "cache": {} if l3 is None else {"index3": {"level": "3", "shared_cpu_list": l3}},
        }
    for node in nodes or sorted({cpu[1] for cpu in cpus}):
        mine = [cpu[0] for cpu in cpus if cpu[1] == node]
        links = [*mine, *(cpu for cpu, its in offline if its == node)]
        tree["node"][f"node{node}"] = {
            "cpulist": ",".join(map(str, mine)),
            "meminfo": f"Node {node} MemTotal:  1048576 kB\n",
            **{f"cpu{cpu}": [f"../../cpu/cpu{cpu}"] for cpu in links},
        }
    for cpu, _ in offline:
        tree["cpu"][f"cpu{cpu}"] = {"online": "0"}
    restore({"devices": {"system": tree}}, tmp_path)
    return tmp_path


def pci(tmp_path, devices):
    """Write PCI devices.

    :param devices: (path of addresses below the host bridge, class, vendor:product, NUMA node)
    """
    tree = {"bus": {"pci": {"devices": {}}}, "devices": {}}
    for path, kind, product, node in devices:
        folder = tree["devices"]
        for part in path.split("/"):
            folder = folder.setdefault(part, {})
        vendor, device = product.split(":")
        folder |= {
            "class": kind,
            "vendor": f"0x{vendor}",
            "device": f"0x{device}",
            "numa_node": f"{node}\n",
        }
        address = path.rpartition("/")[2]
        tree["bus"]["pci"]["devices"][address] = [f"../../../devices/{path}"]
    restore(tree, tmp_path)
    return tmp_path


def test_the_lab_host_is_read_as_it_was_built(lab_host):
    """F-000-01, F-001-01: nodes, CPUs, memory and distances as QEMU was told (``-numa dist``), from its files."""
    host = read_topology(lab_host)
    assert host.distances == (
        (10, 16, 22, 160),
        (16, 10, 160, 22),
        (22, 160, 10, 16),
        (160, 22, 16, 10),
    )
    assert host.sockets == (Socket(0), Socket(1))
    assert [(node.id, node.socket) for node in host.nodes] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert host.l3_domains == tuple(L3Domain(n, n // 2, (n,), 16_384) for n in range(4))
    assert [core.cpus for core in host.cores] == [(cpu,) for cpu in range(8)]
    assert host.node(1).memory_mb == 2063684 // 1024
    assert host.node(1).huge_pages == (HugePages(2048, 0), HugePages(1048576, 0))
    assert host.rdt is None
    assert host.node(0).bandwidth_mbps is None


def test_the_operator_adds_chassis_and_bandwidth(lab_host):
    """F-001-01: the one level of the layout that sysfs does not show."""
    host = with_given(read_topology(lab_host), Given({1: 1}, {0: 9000, 2: 4000}))
    assert host.chassis_ids == (0, 1)
    assert host.chassis_of_node(3) == 1
    assert [node.bandwidth_mbps for node in host.nodes] == [9000, None, 4000, None]


def test_sub_numa_clusters_share_one_l3(tmp_path):
    sys = machine(tmp_path, [(cpu, cpu // 2, 0, cpu, "0-3") for cpu in range(4)])
    host = read_topology(sys)
    assert host.l3_domains == (L3Domain(0, 0, (0, 1)),)
    assert [domain.id for domain in host.l3_of_node(1)] == [0]


def test_one_node_holds_several_l3_and_each_core_two_threads(tmp_path):
    l3 = {0: "0-1,4-5", 1: "2-3,6-7"}
    sys = machine(tmp_path, [(cpu, 0, 0, cpu % 4, l3[cpu % 4 // 2]) for cpu in range(8)])
    host = read_topology(sys)
    assert host.l3_domains == (L3Domain(0, 0, (0,)), L3Domain(1, 0, (0,)))
    assert [core.cpus for core in host.cores] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [cpu for cpu in host.cpus if host.l3_of_cpu(cpu) == 1] == [2, 3, 6, 7]


def test_an_offline_thread_leaves_its_core_and_stays_with_its_node(tmp_path):
    sys = machine(tmp_path, [(0, 0, 0, 0, "0-1"), (1, 0, 0, 1, "0-1")], offline=[(2, 0), (3, 0)])
    host = read_topology(sys)
    assert host.node(0).offline_cpus == (2, 3)
    assert host.cpus == (0, 1)


def test_a_memory_only_node_has_no_socket_and_no_l3(tmp_path):
    sys = machine(tmp_path, [(0, 0, 0, 0, "0")], nodes=[0, 4])
    host = read_topology(sys)
    assert (host.node(4).socket, host.cpus_of_node(4), host.l3_of_node(4)) == (None, (), ())


def test_one_node_interleaved_over_two_sockets_belongs_to_none(tmp_path):
    host = read_topology(machine(tmp_path, [(0, 0, 0, 0, "0"), (1, 0, 1, 1, "1")]))
    assert host.node(0).socket is None
    assert [domain.socket for domain in host.l3_domains] == [0, 1]


def test_a_machine_without_l3_or_numa_files_is_one_node_without_l3(tmp_path):
    sys = machine(tmp_path, [(0, 0, -1, 0, None)])
    for path in sorted((sys / "devices/system/node").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    host = read_topology(sys)
    assert (host.node_ids, host.l3_domains, host.distances) == ((0,), (), ())
    assert host.sockets == (Socket(0),)
    assert host.node(0).memory_mb is None


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("devices/system/cpu/online", "zero"),
        ("devices/system/cpu/cpu3/topology/physical_package_id", "x"),
        ("devices/system/cpu/cpu3/cache/index3/size", "16 megabytes"),
        ("devices/system/node/node1/meminfo", "nothing"),
        ("devices/system/node/node1/distance", "16 x"),
        ("devices/system/node/node1/distance", "9" * 5000),
        ("devices/system/cpu/cpu3/topology/core_cpus_list", ""),
        ("devices/system/cpu/cpu3/cache/index3/shared_cpu_list", "2"),
        ("devices/system/cpu/cpu3/cache/index3/level", "\udcff"),
    ],
)
def test_nonsense_is_refused_with_the_files_name(lab_host, file, content):
    (lab_host / file).write_text(content, errors="surrogateescape")
    with pytest.raises(InvalidValueError) as error:
        read_topology(lab_host)
    assert error.value.where == str(lab_host / file)


def test_a_capture_restores_to_the_same_capture_and_the_same_host(lab_host, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    recorded = capture(lab_host)
    restore(recorded, copy)
    assert capture(copy) == recorded
    assert read_topology(copy) == read_topology(lab_host)


def test_this_machine_can_be_discovered():
    host = discover()
    assert host.cpus
    assert set(host.cpus) == {cpu for node in host.node_ids for cpu in host.cpus_of_node(node)}


GPU = ("0x030200", "10de:20b0")
BRIDGE = ("0x060400", "8086:2030")


def test_gpus_are_display_controllers_that_are_not_for_the_console(tmp_path):
    sys = pci(
        tmp_path,
        [
            ("pci0000:00/0000:00:01.0", "0x030000", "1a03:2000", 0),
            ("pci0000:20/0000:20:00.0/0000:21:00.0", "0x00ff00", "1b36:0005", 0),
            ("pci0000:40/0000:40:00.0/0000:41:00.0", *GPU, 2),
            ("pci0000:40/0000:40:01.0/0000:42:00.0", *GPU, -1),
        ],
    )
    assert [gpu.address for gpu in read_gpus(sys)[0]] == ["0000:41:00.0", "0000:42:00.0"]
    gpus, links = read_gpus(sys, ["1B36:0005"])
    assert gpus == (
        Gpu("0000:21:00.0", 0, None, "1b36:0005"),
        Gpu("0000:41:00.0", 2, None, "10de:20b0"),
        Gpu("0000:42:00.0", None, None, "10de:20b0"),
    )
    assert [(edge.a, edge.b, edge.link) for edge in links] == [
        ("0000:41:00.0", "0000:42:00.0", GpuLink.PHB)
    ]


def test_switches_and_links_follow_from_the_bridges_above(tmp_path):
    up = "pci0000:16/0000:16:02.0/0000:17:00.0"
    sys = pci(
        tmp_path,
        [
            (f"{up}/0000:18:08.0/0000:19:00.0", *GPU, 0),
            (f"{up}/0000:18:10.0/0000:1a:00.0", *GPU, 0),
            (f"{up}/0000:18:14.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0", *GPU, 0),
            ("pci0000:30/0000:30:02.0/0000:31:00.0", *GPU, 0),
            ("pci0000:80/0000:80:02.0/0000:81:00.0", *GPU, 1),
        ],
    )
    gpus, links = read_gpus(sys)
    assert [gpu.switch for gpu in gpus] == [0, 0, 1, None, None]
    assert {(edge.a[5:7], edge.b[5:7]): edge.link for edge in links} == {
        ("19", "1d"): GpuLink.PXB,
        ("1a", "1d"): GpuLink.PXB,
    }


def test_a_virtual_function_is_not_another_gpu(tmp_path):
    sys = pci(tmp_path, [("pci0000:40/0000:40:00.0/0000:41:00.4", *GPU, 0)])
    (sys / "devices/pci0000:40/0000:40:00.0/0000:41:00.4/physfn").symlink_to("../0000:41:00.0")
    (sys / "devices/pci0000:40/0000:40:00.0/0000:41:00.0").mkdir()
    assert read_gpus(sys) == ((), ())


def test_a_host_without_resctrl_says_so_once_and_has_no_rdt(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    machine(tmp_path, [(0, 0, 0, 0, "0")])
    rdt_discovery._log_once.cache_clear()
    for _ in range(2):
        assert discover(tmp_path, Resctrl(OsFiles(str(tmp_path / "fs/resctrl")))).rdt is None
    assert [record.message for record in caplog.records] == [
        "No resctrl file system is mounted: this host offers no RDT resources."
    ]


def test_capabilities_keep_their_figures():
    l3 = [CacheControl(name, 0x7FF, 1, 0x600, 8, (0, 1)) for name in ("L3CODE", "L3DATA")]
    l2 = CacheControl("L2", 0xFF, 1, 0, 8, (0,))
    mba = BandwidthControl(10, 100, 10, True, "per-thread", 4, BandwidthUnit.PERCENT, (0, 1))
    rdt = rdt_capability(Capabilities((*l3, l2), mba, None))
    assert rdt.cat == L3Cat(8, 11, 0x600, 1, cdp=True)
    assert rdt.mba == Mba(4, 10, 10, per_thread=True)
    assert (rdt.num_closids, rdt.l2_cat, rdt.l3_ids, rdt.monitoring) == (4, True, (0, 1), None)


def test_amd_may_write_no_ways_but_a_partition_needs_one():
    l3 = CacheControl("L3", 0xFFFF, 0, 0, 16, (0,), sparse_masks=True)
    assert rdt_capability(Capabilities((l3,))).cat.min_cbm_bits == 1
