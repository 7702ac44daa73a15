# SPDX-License-Identifier: Apache-2.0
"""NVLinks from recorded matrices and from NVML."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from host_agent.conf import configuration
from host_agent.control.assembly.observer import topology_reader
from host_agent.observe.topology.capture import restore
from host_agent.observe.topology.nvidia import (
    normal_address,
    nvlink,
    parse_topo_matrix,
    read_nvml,
    with_links,
)
from placement_traits import presets
from placement_traits.errors import InvalidValueError
from placement_traits.names import GpuLink
from placement_traits.topology import Gpu, GpuEdge

# As nvidia-smi of the Tesla P100 days prints it: SOC for SYS, network cards and affinities behind the GPUs.
DGX_1 = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_1\tCPU Affinity\x1b[0m
GPU0\t X \tNV1\tNV1\tNV1\tNV1\tSOC\tSOC\tSOC\tPIX\tSOC\t0-19,40-59
GPU1\tNV1\t X \tNV1\tNV1\tSOC\tNV1\tSOC\tSOC\tPIX\tSOC\t0-19,40-59
GPU2\tNV1\tNV1\t X \tNV1\tSOC\tSOC\tNV1\tSOC\tPHB\tSOC\t0-19,40-59
GPU3\tNV1\tNV1\tNV1\t X \tSOC\tSOC\tSOC\tNV1\tPHB\tSOC\t0-19,40-59
GPU4\tNV1\tSOC\tSOC\tSOC\t X \tNV1\tNV1\tNV1\tSOC\tPIX\t20-39,60-79
GPU5\tSOC\tNV1\tSOC\tSOC\tNV1\t X \tNV1\tNV1\tSOC\tPIX\t20-39,60-79
GPU6\tSOC\tSOC\tNV1\tSOC\tNV1\tNV1\t X \tNV1\tSOC\tPHB\t20-39,60-79
GPU7\tSOC\tSOC\tSOC\tNV1\tNV1\tNV1\tNV1\t X \tSOC\tPHB\t20-39,60-79
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSOC\tSOC\tSOC\tSOC\t X \tSOC
mlx5_1\tSOC\tSOC\tSOC\tSOC\tPIX\tPIX\tPHB\tPHB\tSOC\t X

Legend:

  X   = Self
  SOC  = Connection traversing PCIe as well as the SMP link between CPU sockets(e.g. QPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""

# As newer ones print it, for a Minsky, with the addresses recorded behind; the numbers are not in order of address.
MINSKY = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV2\tSYS\tSYS\t64-127\t1\t\tN/A
GPU1\tNV2\t X \tSYS\tSYS\t64-127\t1\t\tN/A
GPU2\tSYS\tSYS\t X \tNV2\t0-63\t0\t\tN/A
GPU3\tSYS\tSYS\tNV2\t X \t0-63\t0\t\tN/A
0, 0000000A:01:00.0
1, 0000000B:01:00.0
2, 00000002:01:00.0
3, 00000003:01:00.0
"""


def addresses(preset):
    return [gpu.address for gpu in presets.load(preset).topology.gpus]


def test_a_recorded_dgx_1_gives_the_preset_exactly():
    """F-000-02: 8 GPUs with 16 NVLinks."""
    host = presets.load("dgx-1").topology
    links = parse_topo_matrix(DGX_1, addresses("dgx-1"), "gpus.txt")
    assert len(links) == 28
    assert with_links(host.gpus, (), links) == host.gpu_links


def test_recorded_addresses_win_over_the_order():
    """F-000-02: the 4 GPUs of a Minsky."""
    host = presets.load("power8-minsky").topology
    links = parse_topo_matrix(MINSKY, addresses("power8-minsky"), "gpus.txt")
    assert links["000a:01:00.0", "000b:01:00.0"] is GpuLink.NV2
    assert with_links(host.gpus, (), links) == host.gpu_links


def test_one_gpu_is_no_link():
    text = "\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n"
    assert parse_topo_matrix(text, ["0000:05:00.0"], "gpus.txt") == {}


def test_a_word_that_nobody_knows_is_named_with_its_place():
    text = "\tGPU0\tGPU1\nGPU0\t X \tWIFI\nGPU1\tWIFI\t X \n"
    with pytest.raises(InvalidValueError, match=r"gpus\.txt: GPU0 to GPU1: 'WIFI'"):
        parse_topo_matrix(text, ["0000:05:00.0", "0000:06:00.0"], "gpus.txt")


@pytest.mark.parametrize("word", ["NV0", "NV", "NV" + "9" * 5000])
def test_a_senseless_number_of_nvlinks_is_named_with_its_place(word):
    text = f"\tGPU0\tGPU1\nGPU0\t X \t{word}\nGPU1\t{word}\t X \n"
    with pytest.raises(InvalidValueError, match=r"gpus\.txt: GPU0 to GPU1: 'NV"):
        parse_topo_matrix(text, ["0000:05:00.0", "0000:06:00.0"], "gpus.txt")


@pytest.mark.parametrize("address", [":::.", "05", "9" * 5000 + ":05:00.0", "0000:05:00"])
def test_an_address_that_is_none_is_refused(address):
    text = f"\tGPU0\tGPU1\nGPU0\t X \tNV1\n0, {address}\n"
    with pytest.raises(InvalidValueError, match="address of a GPU"):
        parse_topo_matrix(text, ["0000:05:00.0"], "gpus.txt")


def test_gpu_numbers_of_5000_digits_are_no_gpus():
    text = f"\tGPU{'9' * 5000}\tGPU1\nGPU{'9' * 5000}\t X \tNV1\n"
    assert parse_topo_matrix(text, ["0000:05:00.0"], "gpus.txt") == {}


def test_a_gpu_that_the_host_does_not_have_is_named():
    with pytest.raises(InvalidValueError, match=r"GPUs of this host: 0000:05:00\.0"):
        parse_topo_matrix("\tGPU0\tGPU1\nGPU0\t X \tNV1\n", ["0000:05:00.0"], "gpus.txt")


def test_counts_between_the_named_classes_take_the_lower_one():
    assert [nvlink(n).value for n in (1, 5, 7, 9, 18, 24)] == [
        "NV1",
        "NV4",
        "NV6",
        "NV8",
        "NV18",
        "NV18",
    ]


def test_addresses_are_written_as_sysfs_does():
    assert normal_address("0000000A:01:00.0") == "000a:01:00.0"
    assert normal_address("00000000:8A:00.0") == "0000:8a:00.0"


class Nvml:
    """NVML of a host: for each GPU the other ends of its active links."""

    NVML_NVLINK_MAX_LINKS = 6
    NVML_FEATURE_ENABLED = 1

    class NVMLError(Exception):
        """NVML's own error."""

    def __init__(self, ends, driver=True):
        self.ends, self.driver, self.open = ends, driver, 0

    def nvmlInit(self):
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.ends)

    def nvmlDeviceGetHandleByIndex(self, index):
        return list(self.ends)[index]

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=f"0000{handle}".upper().encode())

    def nvmlDeviceGetNvLinkState(self, handle, link):
        if link >= len(self.ends[handle]):
            raise self.NVMLError("Not Supported")
        return 1 if self.ends[handle][link] else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):
        return SimpleNamespace(busId=f"0000{self.ends[handle][link]}")


A, B, C = "0000:05:00.0", "0000:06:00.0", "0000:85:00.0"


def test_nvml_counts_links_per_pair_and_skips_inactive_ones():
    nvml = Nvml({A: [B, B, C, ""], B: [A, A], C: [A]})
    assert read_nvml(nvml) == {(A, B): GpuLink.NV2, (A, C): GpuLink.NV1}
    assert nvml.open == 0


def test_gpus_on_nvswitches_are_all_joined():
    switch = "0000:c0:00.0"
    nvml = Nvml({A: [switch] * 6, B: [switch] * 6, C: [switch] * 4})
    assert read_nvml(nvml) == {
        (A, B): GpuLink.NV6,
        (A, C): GpuLink.NV4,
        (B, C): GpuLink.NV4,
    }


def test_no_driver_is_one_line_and_no_links(caplog):
    caplog.set_level(logging.INFO)
    assert read_nvml(Nvml({}, driver=False)) == {}
    assert [record.message for record in caplog.records] == [
        "NVML finds no driver (Driver Not Loaded): NVLinks are not looked for."
    ]


def test_nvlinks_cover_what_pci_shows_and_strangers_are_ignored():
    gpus = (Gpu(A, 0, 0), Gpu(B, 0, 0), Gpu(C, 1))
    pci = (GpuEdge(A, B, GpuLink.PXB), GpuEdge(A, C, GpuLink.PHB))
    links = {(A, B): GpuLink.NV2, (B, "0000:ff:00.0"): GpuLink.NV1, (B, C): GpuLink.SYS}
    assert with_links(gpus, pci, links) == (GpuEdge(A, B, GpuLink.NV2), GpuEdge(A, C, GpuLink.PHB))


def test_the_operator_names_the_recorded_matrix_in_the_configuration(tmp_path):
    """F-000-02: ``[host]gpu_matrix``, for hosts whose GPUs NVIDIA's driver does not hold."""
    sys = tmp_path / "sys"
    restore(json.loads((Path(__file__).parent / "data/lab-4-nodes.json").read_text()), sys)
    devices = sys / "bus/pci/devices"
    devices.mkdir(parents=True)
    for number, bus in enumerate((0x21, 0x22)):
        address = f"0000:{bus:02x}:00.0"
        real = sys / f"devices/pci0000:20/0000:20:0{number}.0/{address}"
        real.mkdir(parents=True)
        for name, text in (("vendor", "0x10de"), ("device", "0x15f9"), ("class", "0x030200")):
            (real / name).write_text(f"{text}\n")
        (real / "numa_node").write_text("0\n")
        (devices / address).symlink_to(real)
    matrix = tmp_path / "gpus.txt"
    matrix.write_text("\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNV2\t X \n")
    file = tmp_path / "agent.conf"
    file.write_text(f"[host]\nsys = {sys}\ngpu_matrix = {matrix}\n")
    host = topology_reader(configuration.load([f"--config-file={file}"]))()
    assert host.gpu_links == (GpuEdge("0000:21:00.0", "0000:22:00.0", GpuLink.NV2),)
    matrix.write_bytes(b"\tGPU0\xff")
    with pytest.raises(InvalidValueError, match="GPU matrix"):
        topology_reader(configuration.load([f"--config-file={file}"]))()
    matrix.unlink()
    with pytest.raises(InvalidValueError, match="GPU matrix"):
        topology_reader(configuration.load([f"--config-file={file}"]))()
