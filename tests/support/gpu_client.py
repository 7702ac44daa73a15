# SPDX-License-Identifier: Apache-2.0
"""The guest image ``gpu-client``: a small Linux whose program has digests made by a lease, and checks each itself.

The kernel is the lab's. It has busybox, the guest's end of the link and the modules of vsock, no disk and no network: a
device that is plugged in later is all that it has of its host. What comes out is on its console, ``RGPU-OK N`` for N
right answers, ``RGPU-WRONG …`` for a wrong one.
"""

from pathlib import Path
from typing import Final

from numa_lab import kernel as lab_kernel

from tests.support import small_linux

ANSWERS: Final = 20
PORT: Final = 10998
_MODULES = ("virtio_pci", "vmw_vsock_virtio_transport")
_INIT = f"""#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin
for module in $(cat /modules/order); do insmod /modules/$module; done
ifconfig lo 127.0.0.1 up
echo RGPU-UP
(while true; do /numa-ext-rgpu guest -environment /tmp/env; sleep 1; done) &
while [ ! -s /tmp/env ]; do sleep 1; done
echo RGPU-ENV "$(cat /tmp/env)"
right=0
while [ $right -lt {ANSWERS} ]; do
  asked="step $right"
  found=$(echo "$asked" | nc -w 20 127.0.0.1 {PORT} | head -n 1)
  [ -n "$found" ] || {{ sleep 1; continue; }}
  known=$(echo -n "$asked" | sha256sum | cut -d ' ' -f 1)
  if [ "$found" = "$known" ]; then right=$((right + 1)); else echo RGPU-WRONG "$asked" "$found"; fi
done
echo RGPU-OK $right
while true; do sleep 60; done
"""


def initramfs(found: lab_kernel.Kernel, program: Path) -> bytes:
    """The guest's only file system.

    :param program: ``numa-ext-rgpu``
    """
    files = {"numa-ext-rgpu": (0o755, program.read_bytes())}
    return small_linux.initramfs(found, _INIT, _MODULES, files)
