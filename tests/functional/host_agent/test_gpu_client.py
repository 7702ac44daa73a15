# SPDX-License-Identifier: Apache-2.0
"""What the image ``gpu-client`` has of OpenCL works in a small Linux, on a ``pocld`` of this machine.

The way by vsock needs a host that has it (``tests/integration/test_remote_gpu.py``): here QEMU's user network leads
there, which has no TLS, no doorman and no lease.
"""

import re
from pathlib import Path

import pytest
from numa_lab import gpu_client, link_build
from numa_lab import kernel as lab_kernel

from host_agent.transports.transport import AttachedGpu
from tests.support import small_linux
from tests.support.built_link import built_link
from tests.support.built_pocl import built_pocl
from tests.support.pocl_server import pocl_server, transport

pytestmark = pytest.mark.long
PATIENCE_S = 300.0
_HOST = "10.0.2.2"
_INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
for module in $(cat /modules/order); do insmod /modules/$module; done
ifconfig lo 127.0.0.1 up
ifconfig eth0 10.0.2.15 up
{environment}
echo
echo == computed
/bin/numa-rgpu-bench -t 1 2>&1
echo status $?
echo == end
poweroff -f
"""


def test_a_program_of_the_image_computes_on_a_remote_device(tmp_path: Path) -> None:
    found, pocl = small_linux.kernel(), built_pocl()
    with pocl_server(pocl, tmp_path) as server:
        said = transport(pocl).guest_environment([AttachedGpu(server.port)])
        words = (f"export {name}='{value}'" for name, value in said.items())
        environment = "\n".join(words).replace("127.0.0.1", _HOST)
        init = _INIT.format(environment=environment)
        modules = ("virtio_pci", "virtio_net")
        content = lab_kernel.small_linux(found, init, modules, gpu_client.opencl(pocl))
        network = ("-netdev", "user,id=n", "-device", "virtio-net-pci,netdev=n")
        shown = small_linux.shown(
            tmp_path, found, content, *network, memory_mb=512, patience_s=PATIENCE_S
        )
    assert re.search(r'"rounds": [1-9]', shown["computed"]), shown["computed"]
    assert "status 0" in shown["computed"]


def test_the_image_has_the_links_program_and_opencl_only_where_it_is_built(tmp_path: Path) -> None:
    found, link = small_linux.kernel(), built_link() / link_build.PROGRAM
    made = gpu_client.write(tmp_path, found, link, built_pocl()).read_bytes()
    names = (b"numa-ext-rgpu\0", b"bin/numa-rgpu-bench\0", b"libOpenCL.so.1\0", b"pocl.icd\0")
    assert all(name in made for name in names)
    plain = gpu_client.write(tmp_path, found, link, None).read_bytes()
    assert [name in plain for name in names] == [True, False, False, False]
    assert (tmp_path / "disk").stat().st_size > 0
    assert f"--file {tmp_path}/initramfs" in gpu_client.commands(tmp_path / "initramfs", found)
