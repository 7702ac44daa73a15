# SPDX-License-Identifier: Apache-2.0
"""Agents that compare cables with the fabric in the real Placement, by real lldpds at both ends of real interfaces.

Switches are network namespaces in which an lldpd calls itself as the leaf; a cable is a pair of veth.
"""

import os
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from host_agent.conf.cables import CableOptions
from placement_traits.fabric_tree import FabricWriter
from tests.functional.placement.test_cables import PLAN, Agent, Lldpd

SECOND_S: Final = 1
ANSWERS_S: Final = 30.0
_USER: Final = "_lldpd:x:950:950::/run/lldpd:/usr/sbin/nologin"
# In a mount namespace: the folder and the user that lldpd gives its privileges up to, whatever this machine has.
_DAEMON: Final = f"""\
mount -t tmpfs none /run && mkdir /run/lldpd
for file in passwd group; do cp /etc/$file /run/$file; done
grep -q ^_lldpd: /run/passwd || echo {_USER} >> /run/passwd
grep -q ^_lldpd: /run/group || echo _lldpd:x:950: >> /run/group
mount --bind /run/passwd /etc/passwd && mount --bind /run/group /etc/group
exec "$0" -d -u "$1" -L /bin/true -O /dev/null
"""


class Machine:
    """A host or a switch: a network namespace with an lldpd.

    :param name: that it calls itself by
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.socket = name, folder / f"{name}.sock"
        self.programs = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _DAEMON]
        self._log = (folder / f"{name}.log").open("w")
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "600"])
        self._daemon: subprocess.Popen[bytes] | None = None
        own = os.readlink("/proc/self/ns/net")
        _until(lambda: os.readlink(f"/proc/{self._holder.pid}/ns/net") != own, "a namespace")

    @property
    def pid(self) -> int:
        """Of the process that holds its namespace."""
        return self._holder.pid

    def inside(self, *words: str) -> str:
        """Run a program in its network namespace."""
        entered = ["nsenter", f"--net=/proc/{self.pid}/ns/net", *words]
        return subprocess.run(entered, check=True, capture_output=True, text=True).stdout

    def start(self) -> None:
        """Start lldpd, and let it announce its name each second."""
        words = [f"--net=/proc/{self.pid}/ns/net", *self.programs, _program("lldpd")]
        self._daemon = subprocess.Popen(
            ["nsenter", *words, f"{self.socket}"],
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        _until(self.socket.exists, f"lldpd of {self.name}")
        for words in (("system", "hostname", self.name), ("lldp", "tx-interval", f"{SECOND_S}")):
            self.ctl("configure", *words)
        self.ctl("resume")

    def ctl(self, *words: str) -> str:
        """Ask its lldpd."""
        return self.inside(_program("lldpcli"), "-u", f"{self.socket}", *words)

    def end(self) -> None:
        """End its lldpd, and the namespace with the interfaces."""
        if self._daemon is not None:
            os.killpg(self._daemon.pid, signal.SIGTERM)
            self._daemon.wait()
        self._holder.kill()
        self._holder.wait()
        self._log.close()


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def _until(true, what: str) -> None:
    deadline = time.monotonic() + ANSWERS_S
    while not true():
        assert time.monotonic() < deadline, f"not within {ANSWERS_S:.0f} s: {what}"
        time.sleep(0.1)


def plug(host: Machine, switch: Machine) -> None:
    """Connect a host's one uplink with the one port of a switch."""
    peer = ["peer", "name", "Ethernet7", "netns", f"{switch.pid}"]
    host.inside("ip", "link", "add", "uplink0", "type", "veth", *peer)
    for one, interface in ((host, "uplink0"), (switch, "Ethernet7")):
        one.inside("ip", "link", "set", interface, "up")


@pytest.fixture
def machines(tmp_path):
    """Two switches, and on each a host, cabled as planned::

    leaf-r01 Ethernet7 ── uplink0 h1
    leaf-r02 Ethernet7 ── uplink0 h2
    """
    if os.geteuid():
        pytest.skip("network namespaces need root")
    _program("lldpd")
    folder = tmp_path / "lldpd"
    folder.mkdir()
    made = {}
    try:
        for name in ("leaf-r01", "leaf-r02", "h1", "h2"):
            made[name] = Machine(name, folder)
        for host, leaf in PLAN.hosts.items():
            plug(made[host], made[leaf])
        for each in made.values():
            each.start()
        yield made
    finally:
        for each in made.values():
            each.end()


class Daemon(Lldpd):
    """The lldpd of a machine, asked by lldpcli in its namespace.

    :param folder: for what asks it
    :param machine: whose it is
    """

    def __init__(self, folder: Path, machine: Machine) -> None:
        super().__init__(folder)
        libraries = os.environ.get("LD_LIBRARY_PATH", "")  # lldpcli is asked without an environment
        entered = f"nsenter --net=/proc/{machine.pid}/ns/net {_program('lldpcli')}"
        self.program.write_text(
            f"#!/bin/sh\nexport LD_LIBRARY_PATH={libraries}\n"
            f'exec {entered} -u {machine.socket} "$@"\n'
        )

    def options(self, **more) -> CableOptions:
        return super().options(interfaces=("uplink0",), timeout_s=ANSWERS_S, **more)


@pytest.fixture
def agents(empty_cloud, tmp_path, machines):
    """The agents of the hosts, with the fabric of :mod:`.test_cables` in Placement."""
    for host in PLAN.hosts:
        empty_cloud.compute(host)
    assert FabricWriter(empty_cloud.client).apply(PLAN).problems == ()
    return {
        host: Agent(empty_cloud, host, tmp_path / host, partial(Daemon, machine=machines[host]))
        for host in PLAN.hosts
    }


@pytest.mark.long
def test_hosts_whose_cables_are_swapped_are_marked_until_they_are_right(agents, machines):
    """Design 8.4, check 13; here a pass of the agent each second. An old neighbour goes with its interface."""

    def all_are(marked: bool) -> bool:
        return {agent.passed() for agent in agents.values()} == {marked}

    def recabled(leaf_of: dict[str, str]) -> None:
        for host in leaf_of:
            machines[host].inside("ip", "link", "delete", "uplink0")
        for host, leaf in leaf_of.items():
            plug(machines[host], machines[leaf])

    def hears(host: str, leaf: str) -> bool:
        return leaf in machines[host].ctl("show", "neighbors")

    for host, leaf in PLAN.hosts.items():
        _until(lambda h=host, at=leaf: hears(h, at), f"{host} hears {leaf}")
    assert all_are(marked=False)
    recabled({"h1": "leaf-r02", "h2": "leaf-r01"})
    _until(lambda: all_are(marked=True), "both hosts are marked")
    assert agents["h1"].publisher._problems == (
        "LLDP says leaf-r02 port Ethernet7, the plan says CUSTOM_NUMA_EXT_LEAF_TRAIN_LEAF_R01: "
        "no group is placed here.",
    )
    recabled(dict(PLAN.hosts))
    _until(lambda: all_are(marked=False), "no host is marked")
