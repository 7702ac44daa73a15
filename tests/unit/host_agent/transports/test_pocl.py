# SPDX-License-Identifier: Apache-2.0
"""Transport pocl: which pocld it accepts, what its server gets, and what a guest is told. No PoCL is needed."""

import socket
import struct
import sys
import threading
import time
from pathlib import Path

import pytest

from host_agent.transports import pocl, pocl_probe
from host_agent.transports.pocl import PoclTransport, read
from host_agent.transports.registry import Transports
from host_agent.transports.transport import AttachedGpu, GpuServer
from placement_traits.errors import InvalidValueError

SAMPLE = Path(__file__).parents[4] / "etc/numa-host-agent/transports/pocl.toml.sample"
LEASE = GpuServer("lease-9", "GPU-8f", 500, 20000, Path("/lease"))


def installed(folder: Path, version: str = f"pocld 6.0+{pocl.FIXED}") -> PoclTransport:
    """Return the transport with a pocld that says this of itself, a layer and an OpenCL."""
    program, layer, vendors = folder / "pocld", folder / "slice.so", folder / "vendors"
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    layer.touch()
    vendors.mkdir()
    (vendors / "gpu.icd").write_text("libgpu.so\n")
    return PoclTransport(program, layer, vendors)


def test_a_pocld_with_our_fixes_serves(tmp_path: Path) -> None:
    assert installed(tmp_path).findings() == []


@pytest.mark.parametrize("version", ["pocld 0.1", "", "pocld 7.1"])
def test_a_pocld_without_our_fixes_is_refused(tmp_path: Path, version: str) -> None:
    (sentence,) = installed(tmp_path, version).findings()
    assert "is without the fixes" in sentence and "devstack/lab/pocl" in sentence


def test_what_is_missing_is_said_with_the_remedy(tmp_path: Path) -> None:
    found = installed(tmp_path)
    (found.vendors / "gpu.icd").unlink()
    (sentence,) = found.findings()
    assert sentence == f"{found.vendors} names no OpenCL: install that of the GPU"
    found.program.chmod(0o644)
    assert "Permission denied" in found.findings()[0]
    found.program.unlink()
    (sentence,) = found.findings()
    assert "install pocld" in sentence


def test_a_server_is_kept_to_its_slice_where_the_layer_is(tmp_path: Path) -> None:
    found = installed(tmp_path)
    command = found.server_command(LEASE)
    assert found.capabilities().enforced
    assert command.environment["OPENCL_LAYERS"] == str(found.layer)
    assert command.environment["NUMA_EXT_SLICE_BYTES"] == str(500 << 20) == command.probe[-1]
    found.layer.unlink()
    command = found.server_command(LEASE)
    assert not found.capabilities().enforced
    assert not [each for each in command.environment if "SLICE" in each or "LAYERS" in each]
    assert command.probe[-1] == "20000"


def test_a_guest_finds_each_device_at_the_port_of_its_lease() -> None:
    """F-002-40, 42: device j is GPU j modulo their number."""
    gpus = (AttachedGpu(31000), AttachedGpu(31002))
    found = PoclTransport().guest_environment(gpus, 2)
    assert found == {
        "OCL_ICD_VENDORS": "/etc/OpenCL/numa-ext-rgpu",
        "POCL_DEVICES": "remote remote remote remote",
        "POCL_REMOTE0_PARAMETERS": "127.0.0.1:31000/0",
        "POCL_REMOTE1_PARAMETERS": "127.0.0.1:31002/0",
        "POCL_REMOTE2_PARAMETERS": "127.0.0.1:31000/0",
        "POCL_REMOTE3_PARAMETERS": "127.0.0.1:31002/0",
    }


def test_the_sample_says_what_is_so_without_it(tmp_path: Path) -> None:
    assert read(SAMPLE) == PoclTransport() == read(tmp_path / "not there")


def test_its_file_is_no_declared_transport(tmp_path: Path) -> None:
    (tmp_path / "pocl.toml").write_text('program = "/opt/pocld"\npaths = ["/opt/cl"]\n')
    found = Transports(tmp_path).named("pocl")
    assert isinstance(found, PoclTransport)
    assert (found.program, found.reads) == (Path("/opt/pocld"), (Path("/opt/cl"),))
    assert Path("/opt/cl") in found.paths()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("program = 3", "absolute path"),
        ('program = "pocld"', "absolute path"),
        ('vendors = "/a/../b"', "absolute path"),
        ('paths = "/opt"', "a list"),
        ("paths = [1]", "absolute path"),
        ("slices = true", "the keys program, layer, vendors, paths"),
        ("program", "a readable TOML file"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "pocl.toml").write_text(text)
    with pytest.raises(InvalidValueError, match=why):
        Transports(tmp_path)


def test_use_of_a_gpu_comes_from_the_layers_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters_of = pocl_probe.counters
    monkeypatch.setattr(pocl_probe, "counters", lambda _folder: counters_of(str(tmp_path)))
    monkeypatch.setattr(time, "monotonic_ns", lambda: 9_000_000_000)
    transport = PoclTransport()
    assert (transport.busy_s(1), transport.held_bytes(1)) == (None, None)
    counters = pocl_probe.COUNTERS
    idle = counters.pack(b"numslic1", 4096, 1025, 2048, 3, 0, 2_000_000_000, 0)
    (tmp_path / "slice").write_bytes(idle)
    assert (transport.busy_s(1), transport.held_bytes(1)) == (2.0, 1025)
    working = counters.pack(b"numslic1", 1, 1, 1, 1, 0, 2_000_000_000, 8_500_000_000)
    (tmp_path / "slice").write_bytes(working)
    assert transport.busy_s(1) == 2.5
    (tmp_path / "slice").write_bytes(bytes(counters.size))
    assert (transport.busy_s(1), transport.held_bytes(1)) == (None, None)


class PocldStandIn(threading.Thread):
    """Answers as a pocld does.

    :param counts: devices of each platform
    :param fixed: it refuses clients without our fixes
    """

    def __init__(self, counts: tuple[int, ...], *, fixed: bool) -> None:
        super().__init__(daemon=True)
        self._counts, self._fixed = counts, fixed
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]

    def run(self) -> None:
        while True:
            client, _ = self._listening.accept()
            with client:
                request = client.recv(92, socket.MSG_WAITALL)
                (mark,) = struct.unpack_from("<Q", request, 4 + 60)
                if self._fixed and mark != 0x6C6F7373:
                    continue
                client.sendall(bytes(112) + struct.pack("<Q16s8x", 7, b"k" * 16))
                request = client.recv(76, socket.MSG_WAITALL)
                assert struct.unpack_from("<Q16s", request, 4) == (7, b"k" * 16)
                counts = struct.pack(f"<{len(self._counts)}I", *self._counts)
                client.sendall(struct.pack("<32xQ104x", len(counts)) + counts)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A folder of a server."""
    monkeypatch.chdir(tmp_path)
    return monkeypatch


@pytest.mark.parametrize(
    ("counts", "fixed", "slice_bytes", "status"),
    [
        ((1,), True, None, 0),
        ((0, 2), True, 500, 0),
        ((0,), True, None, 1),
        ((), True, None, 1),
        ((1,), False, None, 1),
        ((1,), True, 501, 1),
    ],
    ids=["device", "slice", "no device", "no platform", "without fixes", "another slice"],
)
def test_the_probe_sees_devices_fixes_and_the_slice(
    counts: tuple[int, ...],
    fixed: bool,
    slice_bytes: int | None,
    status: int,
    here: pytest.MonkeyPatch,
) -> None:
    Path("slice").write_bytes(pocl_probe.COUNTERS.pack(b"numslic1", 500, *[0] * 6))
    server = PocldStandIn(counts, fixed=fixed)
    server.start()
    words = [
        "pocl_probe.py",
        str(server.port),
        *([] if slice_bytes is None else [str(slice_bytes)]),
    ]
    here.setattr(sys, "argv", words)
    assert pocl_probe.main() == status


def test_the_probe_waits_for_nobody_who_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    monkeypatch.setattr(sys, "argv", ["pocl_probe.py", str(port)])
    assert pocl_probe.main() == 1
