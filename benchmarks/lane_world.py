# SPDX-License-Identifier: Apache-2.0
"""A host with two servers and an uplink in network namespaces of its own, for lanes: real tc, real nft, no hardware.

``guest1`` and ``guest2`` are servers; their interfaces are veth pairs whose other ends are the host's taps. The host
has a bridge with both taps and, on a flat network, its uplink; on a tunnel the bridge has a VXLAN device over the
uplink instead. ``far`` is what the uplink leads to. All of it is gone when the context ends.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

from host_agent.machine.uplinks import UplinkPrograms, Uplinks
from placement_traits.errors import CapabilityMissingError

UPLINK: Final = "up0"
TAPS: Final = ("tap1", "tap2")
FAR: Final = "10.99.0.9"
"""Address of the far end, as servers reach it."""

_WORLDS: Final = count()
_PLACES: Final = ("host", "guest1", "guest2", "far", "switch")
_UNDERLAY: Final = ("10.98.0.1", "10.98.0.9")
_PROGRAMS: Final = ("/usr/sbin/tc", "/usr/sbin/nft", "/usr/sbin/ip", "/usr/bin/nsenter")


def lacking() -> str:
    """Return why there can be no such world here, '' where there can."""
    missing = [program for program in _PROGRAMS if not Path(program).exists()]
    if missing:
        return f"needs {', '.join(missing)}"
    made = subprocess.run(
        [
            "unshare",
            "--net",
            "sh",
            "-c",
            "ip link add nne0 type veth peer name nne1 && ip link add nne2 type bridge",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"needs network namespaces: {made.stderr.strip()}" if made.returncode else ""


class LaneWorld:
    """The namespaces; a context.

    :param speed_mbps: of the uplink, which is what its lanes share
    :param is_tunnel: servers are on a VXLAN network
    :param behind_mbps: of a slower line behind the uplink, in a switch with one queue of 512 KB; None: there is none
    """

    def __init__(
        self, speed_mbps: int, *, is_tunnel: bool = False, behind_mbps: int | None = None
    ) -> None:
        self._speed_mbps = speed_mbps
        self._is_tunnel = is_tunnel
        self._behind_mbps = behind_mbps
        self._names = {place: f"nne{os.getpid()}-{next(_WORLDS)}-{place}" for place in _PLACES}

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def uplinks(self) -> Uplinks:
        """The host's devices, as the unit of lanes reads and writes them."""
        folder = Path(self._folder.name)
        return Uplinks(
            UplinkPrograms(folder / "tc", folder / "nft"),
            folder / "sys",
            {UPLINK: self._speed_mbps},
        )

    @property
    def sys(self) -> Path:
        """The host's sysfs."""
        return Path(self._folder.name) / "sys"

    def run(self, place: str, *command: str) -> str:
        """Run a program at a place, and return what it prints.

        :raises CapabilityMissingError: it fails
        """
        done = subprocess.run(
            [*self._at(place), *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CapabilityMissingError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def sent(self) -> dict[int, int]:
        """Return what the classes of the uplink's htb have sent so far, bytes, by their number."""
        shown = self.run("host", "tc", "-s", "class", "show", "dev", UPLINK)
        found = re.findall(r"class htb \w+:(\w+) .*?\n Sent (\d+) bytes", shown)
        return {int(minor, 16): int(count) for minor, count in found}

    def start(self, place: str, *arguments: object) -> "subprocess.Popen[str]":
        """Start :mod:`benchmarks.lane_traffic` at a place."""
        command = [sys.executable, "-m", "benchmarks.lane_traffic", *map(str, arguments)]
        return subprocess.Popen([*self._at(place), *command], stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        """Take all away."""
        subprocess.run(["umount", f"{self._folder.name}/sys"], capture_output=True, check=False)
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        self._folder.cleanup()

    def _at(self, place: str) -> Sequence[str]:
        return ("nsenter", f"--net=/run/netns/{self._names[place]}")

    def _make(self) -> None:
        for name in self._names.values():
            subprocess.run(["ip", "netns", "add", name], check=True)
        ip = "ip"
        host = ("host", ip)
        self.run(*host, "link", "add", "br0", "type", "bridge")
        self.run(*host, "link", "set", "br0", "up")
        for tap, guest, address in zip(TAPS, _PLACES[1:3], ("10.99.0.1", "10.99.0.2"), strict=True):
            self._cable(tap, guest)
            self.run(*host, "link", "set", tap, "master", "br0")
            self.run(guest, ip, "addr", "add", f"{address}/24", "dev", "eth0")
        if self._behind_mbps is None:
            self._cable(UPLINK, "far")
        else:
            self._switched(self._behind_mbps)
        inside = "eth0"
        if self._is_tunnel:
            inside = "vx0"
            for place, device, own, other in (
                ("host", UPLINK, *_UNDERLAY),
                ("far", "eth0", *reversed(_UNDERLAY)),
            ):
                self.run(place, ip, "addr", "add", f"{own}/24", "dev", device)
                tunnel = ("type", "vxlan", "id", "7", "local", own, "remote", other)
                self.run(place, ip, "link", "add", "vx0", *tunnel, "dstport", "4789", "dev", device)
                self.run(place, ip, "link", "set", "vx0", "up")
        self.run(*host, "link", "set", "vx0" if self._is_tunnel else UPLINK, "master", "br0")
        self.run("far", ip, "addr", "add", f"{FAR}/24", "dev", inside)
        self._programs()

    def _cable(self, device: str, place: str) -> None:
        """Join a device of the host with ``eth0`` of another place; no packet is larger than on a wire."""
        there = self._names[place]
        self.run(
            "host",
            "ip",
            "link",
            "add",
            device,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            there,
        )
        for where, name in (("host", device), (place, "eth0")):
            self.run(where, "ip", "link", "set", name, "gso_max_size", "1500", "gso_max_segs", "1")
            self.run(where, "ip", "link", "set", name, "up")

    def _switched(self, mbps: int) -> None:
        """Have the uplink lead to a switch, and a slower line of it to the far end."""
        self._cable(UPLINK, "switch")
        switch = ("switch", "ip", "link")
        self.run(
            *switch,
            "add",
            "line0",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            self._names["far"],
        )
        self.run(*switch, "add", "br0", "type", "bridge")
        for device in ("eth0", "line0"):
            self.run(*switch, "set", device, "master", "br0", "up")
        self.run(*switch, "set", "br0", "up")
        for where, device in (("switch", "line0"), ("far", "eth0")):
            self.run(
                where, "ip", "link", "set", device, "gso_max_size", "1500", "gso_max_segs", "1"
            )
        self.run("far", "ip", "link", "set", "eth0", "up")
        self.run(
            "switch",
            "tc",
            "qdisc",
            "add",
            "dev",
            "line0",
            "root",
            "handle",
            "1:",
            "htb",
            "default",
            "1",
        )
        rate = ("rate", f"{mbps}mbit", "burst", "15140", "cburst", "15140")
        parent = ("dev", "line0", "parent", "1:")
        self.run("switch", "tc", "class", "add", *parent, "classid", "1:1", "htb", *rate)
        self.run(
            "switch", "tc", "qdisc", "add", "dev", "line0", "parent", "1:1", "pfifo", "limit", "340"
        )

    def _programs(self) -> None:
        """Make tc and nft of the host's namespace, and its sysfs, for a process outside of it."""
        folder = Path(self._folder.name)
        for name in ("tc", "nft"):
            file = folder / name
            file.write_text(
                f'#!/bin/sh\nexec /usr/bin/nsenter --net=/run/netns/{self._names["host"]} /usr/sbin/{name} "$@"\n'
            )
            file.chmod(0o755)
        (folder / "sys").mkdir()
        self.run("host", "mount", "-t", "sysfs", "sysfs", str(folder / "sys"))
