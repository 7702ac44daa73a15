# SPDX-License-Identifier: Apache-2.0
"""The guest image ``gpu-client``: a small Linux whose program has digests made by a lease, and checks each itself.

The kernel is the lab's. It has busybox, the guest's end of the link and the modules of vsock, no disk and no network: a
device that is plugged in later is all that it has of its host. What comes out is on its console, ``RGPU-OK N`` for N
right answers, ``RGPU-WRONG …`` for a wrong one.
"""

from pathlib import Path
from typing import Final

from numa_lab import kernel as lab_kernel

ANSWERS: Final = 20
PORT: Final = 10998
_BUSYBOX = Path("/bin/busybox")
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
    order = lab_kernel.load_order(
        (found.modules / "modules.dep").read_text(),
        (found.modules / "modules.builtin").read_text(),
        _MODULES,
    )
    files: dict[str, tuple[int, bytes]] = {
        "init": (0o755, _INIT.encode()),
        "bin/busybox": (0o755, _BUSYBOX.read_bytes()),
        "numa-ext-rgpu": (0o755, program.read_bytes()),
        "modules/order": (0o644, "".join(f"{Path(p).stem}.ko\n" for p in order).encode()),
    }
    for path in order:
        content = lab_kernel._decompressed(found.modules / path)
        files[f"modules/{Path(path).stem}.ko"] = (0o644, content)
    return lab_kernel.cpio_archive(files)
