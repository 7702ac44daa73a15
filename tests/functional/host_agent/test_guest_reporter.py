# SPDX-License-Identifier: Apache-2.0
"""The guest reporter end to end: a small Linux in QEMU, its virtio-serial port, and the agent's feed."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from numa_lab.kernel import SMALL_LINUX

from host_agent.conf.latency import FeedOptions
from host_agent.model.latency import LcServer
from host_agent.observe.latency.channel import ChannelFeed, PortSockets
from host_agent.observe.latency.protocol import FeedCounts
from host_agent.observe.latency.sources import SloSources
from tests.support.reporting_guest import LATENCY_US, initramfs, kernel

pytestmark = pytest.mark.root

QEMU = Path("/usr/bin/qemu-system-x86_64")
PATIENCE_S = 180.0


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Path]:
    """A running guest; yields the host's end of its port."""
    found = kernel()
    if not QEMU.exists():
        pytest.skip(f"needs {QEMU}")
    (tmp_path / "initramfs").write_bytes(initramfs(found))
    path = tmp_path / "port"
    command = [
        *(str(QEMU), "-accel", "tcg", "-m", "256", "-nographic", "-nodefaults", "-no-reboot"),
        *("-kernel", str(found.image), "-initrd", str(tmp_path / "initramfs")),
        *("-append", SMALL_LINUX, "-serial", f"file:{tmp_path}/console"),
        *("-chardev", f"socket,id=slo,path={path},server=on,wait=off"),
        *("-device", "virtio-serial-pci"),
        *("-device", "virtserialport,chardev=slo,name=org.numa_ext.slo.0"),
    ]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield path
    finally:
        process.kill()
        process.wait()


def test_latencies_of_a_program_in_a_guest_reach_the_feed(port: Path) -> None:
    sources = SloSources(ChannelFeed(FeedOptions(), PortSockets()))
    lc = LcServer("U", frozenset({0}), 1000, domains=frozenset({0}), socket=str(port))
    sources.serve([lc], time.monotonic())
    end = time.monotonic() + PATIENCE_S
    reading = None
    while time.monotonic() < end:
        sources.receive(0.2, time.monotonic)
        reading = sources.read(time.monotonic(), float("-inf")).get("U")
        if reading is not None and reading.p99_us is not None:
            break
    console = port.with_name("console").read_text(errors="replace")[-2000:]
    assert reading is not None, f"nothing was reported\n{console}"
    assert reading.p99_us == pytest.approx(LATENCY_US, rel=0.02)
    counts = sources.counts["U"]
    assert counts == FeedCounts(lines=counts.lines), "the agent did not understand its own reporter"
    sources.close()
