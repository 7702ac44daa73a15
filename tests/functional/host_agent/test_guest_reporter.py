# SPDX-License-Identifier: Apache-2.0
"""The guest reporter end to end: a small Linux in QEMU, its virtio-serial port, and the agent's feed at the other end.

The guest is the lab's kernel with busybox; its Python and the reporter come from this machine's file system, read only.
A program in the guest prints one latency per request; nothing in it knows of the host.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from host_agent.qos_view import Lc
from host_agent.sensors.slo import FeedSettings
from host_agent.sensors.slo_channels import SloChannels
from host_agent.sensors.slo_protocol import Told
from host_agent.slo_sources import SloSources
from placement_traits.names import SloSource

CHECKOUT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(CHECKOUT / "devstack" / "lab"))

from numa_lab import kernel as lab_kernel  # noqa: E402

pytestmark = pytest.mark.root

CACHE = Path.home() / ".cache/nova-numa-ext/kernel"
QEMU = Path("/usr/bin/qemu-system-x86_64")
BUSYBOX = Path("/bin/busybox")
MODULES = ("virtio_pci", "virtio_console", "9p", "9pnet_virtio")
PATIENCE_S = 180.0
INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /host
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in $(/bin/busybox cat /modules/order); do /bin/busybox insmod /modules/$module; done
/bin/busybox mkdir -p /dev/virtio-ports  # what udev does elsewhere
for port in /sys/class/virtio-ports/*; do
  /bin/busybox ln -s ../${port##*/} /dev/virtio-ports/$(/bin/busybox cat $port/name)
done
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro host /host
/bin/busybox mount --bind /dev /host/dev
while true; do
  /bin/busybox seq 1 50 | /bin/busybox sed 's/.*/LATENCY/'
  /bin/busybox sleep 0.2
done | /bin/busybox chroot /host PYTHON REPORTER
"""


def kernel() -> lab_kernel.Kernel:
    """The newest kernel that the lab has fetched."""
    found = sorted(CACHE.glob("linux-image-*")) if CACHE.is_dir() else []
    for needed in (QEMU, BUSYBOX):
        if not needed.exists():
            pytest.skip(f"needs {needed}")
    if not found:
        pytest.skip("needs a kernel in the lab's cache: devstack/lab/lab up fetches it")
    return lab_kernel.Kernel(found[-1].name.removeprefix("linux-image-"), found[-1])


def initramfs(found: lab_kernel.Kernel, latency_us: int) -> bytes:
    """The guest's first and only file system of its own."""
    order = lab_kernel.load_order(
        (found.modules / "modules.dep").read_text(),
        (found.modules / "modules.builtin").read_text(),
        MODULES,
    )
    script = INIT.replace("LATENCY", str(latency_us)).replace("PYTHON", "/usr/bin/python3")
    script = script.replace("REPORTER", str(CHECKOUT / "host_agent/guest/numa_ext_slo.py"))
    files = {
        "init": (0o755, script.encode()),
        "bin/busybox": (0o755, BUSYBOX.read_bytes()),
        "modules/order": (0o644, "".join(f"{Path(p).stem}.ko\n" for p in order).encode()),
    }
    for path in order:
        content = lab_kernel._decompressed(found.modules / path)
        files[f"modules/{Path(path).stem}.ko"] = (0o644, content)
    return lab_kernel.cpio_archive(files)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Path]:
    """A running guest; yields the host's end of its port."""
    found = kernel()
    (tmp_path / "initramfs").write_bytes(initramfs(found, 800))
    path = tmp_path / "port"
    command = [
        *(str(QEMU), "-accel", "tcg", "-m", "256", "-nographic", "-nodefaults", "-no-reboot"),
        *("-kernel", str(found.image), "-initrd", str(tmp_path / "initramfs")),
        *("-append", "console=ttyS0 panic=1 quiet", "-serial", f"file:{tmp_path}/console"),
        *("-chardev", f"socket,id=slo,path={path},server=on,wait=off"),
        *("-device", "virtio-serial-pci"),
        *("-device", "virtserialport,chardev=slo,name=org.numa_ext.slo.0"),
        *("-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"),
    ]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield path
    finally:
        process.kill()
        process.wait()


def test_latencies_of_a_program_in_a_guest_reach_the_feed(port: Path) -> None:
    sources = SloSources(FeedSettings(), SloChannels())
    lc = Lc(
        *("U", "lc", "flavor"),
        nodes=frozenset({0}),
        domains=frozenset({0}),
        slo_p99_us=1000,
        source=SloSource.AUTO,
        socket=str(port),
        pluggable=False,
    )
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
    assert reading.p99_us == pytest.approx(800.0, rel=0.02)
    told = sources.told["U"]
    assert told == Told(lines=told.lines), "the agent did not understand its own reporter"
    sources.close()
