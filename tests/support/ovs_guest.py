# SPDX-License-Identifier: Apache-2.0
"""A small Linux with the lab's kernel and Open vSwitch's datapath, in which :mod:`.ovs_story` is told.

Its kernel has what this machine's may lack. All programs are this machine's: the guest sees its files by 9p, read-only,
and writes to memory.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from numa_lab import kernel as lab_kernel

from host_agent.model.lanes import LaneNetwork
from tests.support import small_linux
from tests.support.reporting_guest import CHECKOUT

DATAPATHS: Final = {
    "netdev": (LaneNetwork.FLAT,),
    "system": (LaneNetwork.FLAT, LaneNetwork.TUNNEL),
}
_PATIENCE_S = 540.0
_MODULES = (
    "crc32c_generic",
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "tun",
    "veth",
    "af_packet",
    "geneve",
    "sch_htb",
    "sch_ingress",
    "cls_matchall",
    "cls_basic",
    "act_police",
    "nf_tables",
    "openvswitch",
    "vport_geneve",
)
_INIT = """#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /real /memory /new
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,ro,msize=262144 root /real
mount -t tmpfs memory /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/real,upperdir=/memory/upper,workdir=/memory/work root /new
mount -t proc proc /new/proc
mount -t sysfs sys /new/sys
mount -t devtmpfs dev /new/dev
mount -t tmpfs tmp /new/tmp
chroot /new /bin/sh -c 'export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C; {told}'
echo "== end"
sync
poweroff -f
"""
_TOLD = (
    "echo; echo == {name}; unshare --net --mount sh -c "
    '"mount -t tmpfs run /run; mount -t tmpfs etc /etc/openvswitch; mount -t sysfs sys /sys; '
    'cd {folder}; PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={path} {python} -m tests.support.ovs_story {name}";'
)


def lacking() -> str:
    """Return what stories need that is not here; '' where all is."""
    needed = ("/usr/sbin/ovs-vswitchd", "/usr/sbin/tc", "/usr/sbin/nft")
    missing = [program for program in needed if not Path(program).exists()]
    return f"needs {', '.join(missing)}: apt-get install openvswitch-switch" if missing else ""


def told_here(datapath: str, network: LaneNetwork) -> dict[str, Any]:
    """Tell a story in namespaces of this machine, and return what was seen."""
    inside = (
        "mount -t tmpfs run /run && mount -t tmpfs etc /etc/openvswitch && mount -t sysfs sys /sys"
        f" && exec {sys.executable} -m tests.support.ovs_story {datapath} {network}"
    )
    own = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child")
    done = subprocess.run(
        [*own, "sh", "-c", inside], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def told_in_guest(folder: Path) -> dict[tuple[str, LaneNetwork], dict[str, Any]]:
    """Tell all stories in the guest, and return what was seen in each.

    :param folder: for its files
    """
    found = small_linux.kernel()
    sections = small_linux.shown(
        folder,
        found,
        _initramfs(found),
        *("-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"),
        memory_mb=1024,
        patience_s=_PATIENCE_S,
    )
    stories = {}
    for datapath, networks in DATAPATHS.items():
        for network in networks:
            shown = sections[f"{datapath} {network}"]
            lines = [line for line in shown.splitlines() if line.startswith("{")]
            assert lines, shown
            stories[datapath, network] = json.loads(lines[-1])
            assert "reset" in stories[datapath, network], shown
    return stories


def _initramfs(found: lab_kernel.Kernel) -> bytes:
    path = ":".join(each for each in sys.path if each)
    told = " ".join(
        _TOLD.format(name=f"{one} {each}", folder=CHECKOUT, path=path, python=sys.executable)
        for one, networks in DATAPATHS.items()
        for each in networks
    )
    return lab_kernel.small_linux(found, _INIT.format(told=told), _MODULES, {})
