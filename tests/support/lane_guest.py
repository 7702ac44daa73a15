# SPDX-License-Identifier: Apache-2.0
"""A small Linux with the lab's kernel in which lanes and marks are written, and two servers' packets counted.

Its kernel has what this machine's may lack: ``ets`` and Geneve. tc, nft and ip are this machine's. ``init`` writes
each text, shows what the kernel has of it under a headline, and turns the machine off.
"""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from numa_lab import kernel as lab_kernel

from tests.support import small_linux

TAPS: Final = ("tap1", "tap2")
UPLINK: Final = "up0"
PINGS: Final = 5

_PROGRAMS = tuple(Path("/usr/sbin") / name for name in ("tc", "nft", "ip"))
_MODULES = (
    "crc32c_generic",
    "veth",
    "bridge",
    "geneve",
    "sch_ets",
    "sch_tbf",
    "sch_htb",
    "nf_tables",
)
_PATIENCE_S = 240.0
_INIT = f"""#!/bin/busybox sh
export PATH=/usr/sbin:/bin
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /run /tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
for module in $(cat /modules/order); do insmod /modules/$module; done
/usr/sbin/ip link set lo up
for place in guest1 guest2 far; do /usr/sbin/ip netns add $place; done
/usr/sbin/ip link add br0 type bridge
/usr/sbin/ip link set br0 up
cable() {{
  /usr/sbin/ip link add $1 type veth peer name eth0 netns $2
  /usr/sbin/ip link set $1 up
  /usr/sbin/ip -n $2 link set eth0 up
}}
cable tap1 guest1; cable tap2 guest2; cable {UPLINK} far
/usr/sbin/ip addr add 10.98.0.1/24 dev {UPLINK}
/usr/sbin/ip -n far addr add 10.98.0.9/24 dev eth0
/usr/sbin/ip link add gv0 type geneve id 7 remote 10.98.0.9
/usr/sbin/ip -n far link add gv0 type geneve id 7 remote 10.98.0.1
/usr/sbin/ip link set gv0 up
/usr/sbin/ip -n far link set gv0 up
for port in tap1 tap2 gv0; do /usr/sbin/ip link set $port master br0; done
/usr/sbin/ip -n guest1 addr add 10.99.0.1/24 dev eth0
/usr/sbin/ip -n guest2 addr add 10.99.0.2/24 dev eth0
/usr/sbin/ip -n far addr add 10.99.0.9/24 dev gv0
sleep 3
for guest in guest1 guest2; do /usr/sbin/ip netns exec $guest ping -c 2 10.99.0.9 >/dev/null; done
/usr/sbin/nft -f /marks
echo; echo "== netdev"; /usr/sbin/nft -n list table netdev numa_ext
echo "== inet"; /usr/sbin/nft -n list table inet numa_ext
for kind in ets htb; do
  /usr/sbin/tc -batch /$kind || echo "refused $kind"
  echo "== qdisc $kind"; /usr/sbin/tc -j qdisc show dev {UPLINK}
  echo "== class $kind"; /usr/sbin/tc class show dev {UPLINK}
  /usr/sbin/ip netns exec guest1 ping -c {PINGS} -i 0.2 10.99.0.9 >/dev/null
  /usr/sbin/ip netns exec guest2 ping -c {PINGS} -i 0.2 10.99.0.9 >/dev/null
  echo "== sent $kind"; /usr/sbin/tc -s class show dev {UPLINK}
  /usr/sbin/tc qdisc del dev {UPLINK} root
done
echo "== end"
sync
poweroff -f
"""


def shown(folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Run it, and return what it has shown under each headline.

    :param folder: for its files
    :param texts: ``marks``, ``ets`` and ``htb``
    """
    found = small_linux.kernel()
    content = _initramfs(found, texts)
    return small_linux.shown(folder, found, content, memory_mb=256, patience_s=_PATIENCE_S)


def _initramfs(found: lab_kernel.Kernel, texts: Mapping[str, str]) -> bytes:
    files = {name: (0o644, text.encode()) for name, text in texts.items()}
    libraries = {
        Path(name)
        for program in _PROGRAMS
        for name in re.findall(
            r"(/\S+) \(0x",
            subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout,
        )
    }
    for program in sorted({*_PROGRAMS, *libraries}):
        files[str(program).lstrip("/")] = (0o755, program.read_bytes())
    return lab_kernel.small_linux(found, _INIT, _MODULES, files)
