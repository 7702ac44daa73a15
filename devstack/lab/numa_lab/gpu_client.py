# SPDX-License-Identifier: Apache-2.0
"""The image ``gpu-client``: a small Linux for servers whose flavors or leases give them GPUs of other hosts.

The kernel is the lab's. Its only file system has busybox, the guest's end of the link and the modules of vsock, no
network: a device that is plugged in later is all that it has of its host. Where PoCL is built, it has
``numa-rgpu-bench`` and the client's library, where the packages for guests have them.

What comes out is on its console, by the transport that the doorman says: of OpenCL ``RGPU-OK N`` for N rounds computed
and compared; else lines are sent to port :data:`PORT`, and ``RGPU-OK N`` says that N answers were the SHA-256 of what
was asked. ``RGPU-WRONG …`` is a wrong one.
"""

import re
import subprocess
from pathlib import Path
from typing import Final

from . import kernel as lab_kernel
from .errors import LabError
from .pocl_build import Pocl
from .pocl_packages import LIBRARY, VENDORS

ANSWERS: Final = 20
PORT: Final = 10998
COMPUTES_S: Final = 5
_DISK_BYTES = 1 << 20
_MODULES = ("virtio_pci", "vmw_vsock_virtio_transport")
_INIT = f"""#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
for module in $(cat /modules/order); do insmod /modules/$module; done
ifconfig lo 127.0.0.1 up
echo RGPU-UP
(while true; do /numa-ext-rgpu guest -environment /tmp/env; sleep 1; done) &
while [ ! -s /tmp/env ]; do sleep 1; done
echo RGPU-ENV "$(cat /tmp/env)"
computed() {{
  set -a
  . /tmp/env
  set +a
  while true; do
    found=$(/bin/numa-rgpu-bench -t {COMPUTES_S} 2>&1)
    code=$?
    echo "$found"
    [ $code = 3 ] && echo RGPU-WRONG "$found"
    [ $code = 0 ] && return
    sleep 1
  done
}}
answered() {{
  right=0
  while [ $right -lt {ANSWERS} ]; do
    asked="step $right"
    found=$(echo "$asked" | nc -w 20 127.0.0.1 {PORT} | head -n 1)
    [ -n "$found" ] || {{ sleep 1; continue; }}
    known=$(echo -n "$asked" | sha256sum | cut -d ' ' -f 1)
    if [ "$found" = "$known" ]; then right=$((right + 1)); else echo RGPU-WRONG "$asked" "$found"; fi
  done
}}
if grep -q '^POCL_' /tmp/env; then
  computed
  right=$(echo "$found" | sed -n 's/.*"rounds": \\([0-9]*\\).*/\\1/p')
else
  answered
fi
echo RGPU-OK $right
while true; do sleep 60; done
"""


def initramfs(found: lab_kernel.Kernel, link: Path, pocl: Pocl | None = None) -> bytes:
    """Return the only file system of such a server.

    :param link: ``numa-ext-rgpu``
    :param pocl: None: it has no OpenCL
    """
    files = {"numa-ext-rgpu": (0o755, link.read_bytes())}
    if pocl is not None:
        files |= opencl(pocl)
    return lab_kernel.small_linux(found, _INIT, _MODULES, files)


def write(folder: Path, found: lab_kernel.Kernel, link: Path, pocl: Pocl | None) -> Path:
    """Write the initramfs and an empty disk, which Glance wants of every image; return the initramfs' file."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "initramfs"
    made.write_bytes(initramfs(found, link, pocl))
    (folder / "disk").write_bytes(bytes(_DISK_BYTES))
    return made


def commands(made: Path, found: lab_kernel.Kernel) -> str:
    """Return the commands by which Glance gets the image.

    :param made: of :func:`write`
    """
    create = "openstack image create -f value -c id"
    return f"""\
KERNEL=$({create} --disk-format aki --container-format aki --file {found.image} gpu-client-kernel)
INITRAMFS=$({create} --disk-format ari --container-format ari --file {made} gpu-client-initramfs)
openstack image create --disk-format raw --container-format bare --file {made.with_name("disk")} \\
    --property kernel_id=$KERNEL --property ramdisk_id=$INITRAMFS \\
    --property os_command_line="{lab_kernel.SMALL_LINUX}" gpu-client"""


def opencl(pocl: Pocl) -> lab_kernel.Files:
    """Return ``numa-rgpu-bench``, the client's library and what both are linked with: path -> mode, content."""
    needed = {*_libraries(pocl.bench), *_libraries(pocl.client)}
    return {
        "bin/numa-rgpu-bench": (0o755, pocl.bench.read_bytes()),
        LIBRARY.removeprefix("/"): (0o644, pocl.client.read_bytes()),
        f"{VENDORS}/pocl.icd".removeprefix("/"): (0o644, f"{LIBRARY}\n".encode()),
        **{path.removeprefix("/"): (0o755, Path(path).read_bytes()) for path in sorted(needed)},
    }


def _libraries(file: Path) -> list[str]:
    """Return the paths of the libraries of this machine that a file is linked with, by ldd(1).

    :raises LabError: one is not here
    """
    said = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
    if "not found" in said:
        raise LabError(f"{file}: {said.strip()}")
    return re.findall(r"(?:=> |^\s*)(/\S+) \(", said, re.M)
