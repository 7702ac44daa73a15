# SPDX-License-Identifier: Apache-2.0
"""Open vSwitch and lanes on one host: run in a network namespace or a small Linux, prints what was seen as JSON.

``/run`` and ``/etc/openvswitch`` are this process's own. Two servers' taps and the uplink are ports of a bridge on a
flat network; on a tunnel the uplink is none, and the bridge has a Geneve port over it. What Open vSwitch is told is
told it by ``ovs-vsctl``, as an operator or Neutron's agent would; lanes are written by the unit's own code.

Use::

    python -m tests.support.ovs_story {netdev,system} {flat,tunnel}
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from host_agent.control.lanes import LaneKeeper, LaneTurn
from host_agent.decide.lanes.planning import LaneSettings, noop_command
from host_agent.machine.uplinks import UplinkPrograms, Uplinks
from host_agent.model.lanes import LaneNetwork, LanePort, LaneQueue
from placement_traits.names import Tier

UPLINK: Final = "up0"
TAPS: Final = ("tap1", "tap2")
PACKETS: Final = 20
_FAR: Final = "10.99.0.9"
_UNDERLAY: Final = ("10.98.0.1", "10.98.0.9")
_DATABASE: Final = Path("/etc/openvswitch/conf.db")
_PATIENCE_S: Final = 60.0
_SEND: Final = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[1])):
    sender.sendto(b"x" * 100, (sys.argv[2], 9))
"""
_SEEN: Final = """
table inet seen {
    chain input {
        type filter hook prerouting priority -300;
        udp dport 6081 ip dscp 46 counter comment "outer lc"
        udp dport 6081 ip dscp 8 counter comment "outer be"
        ip saddr 10.99.0.1 udp dport 9 counter comment "guest1"
        ip saddr 10.99.0.2 udp dport 9 counter comment "guest2"
        ip saddr 10.99.0.1 udp dport 9 ip dscp 46 counter comment "lc"
        ip saddr 10.99.0.2 udp dport 9 ip dscp 8 counter comment "be"
    }
}
"""


def run(*command: str, given: str | None = None) -> str:
    """Run a program, and return what it prints.

    :raises CalledProcessError: it fails
    """
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def until(holds: Callable[[], Any], what: str) -> None:
    """Wait until something holds.

    :raises SystemExit: it does not
    """
    end = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"never: {what}")
        time.sleep(0.1)


class Vswitch:
    """Open vSwitch's two processes."""

    def __init__(self) -> None:
        Path("/run/openvswitch").mkdir(parents=True)
        run("ovsdb-tool", "create", str(_DATABASE), "/usr/share/openvswitch/vswitch.ovsschema")
        self._database = self._started(
            "ovsdb-server", str(_DATABASE), "--remote=punix:/run/openvswitch/db.sock"
        )
        until(lambda: Path("/run/openvswitch/db.sock").exists(), "the database")
        run("ovs-vsctl", "--no-wait", "init")
        self._switch = self._started("ovs-vswitchd")

    def restart(self) -> None:
        """Kill the switch, and start another one."""
        self._switch.kill()
        self._switch.wait()
        self._switch = self._started("ovs-vswitchd")
        run("ovs-vsctl", "--timeout=60", "set", "open_vswitch", ".", "other_config:seen=again")

    def stop(self) -> None:
        """End both."""
        for process in (self._switch, self._database):
            process.send_signal(signal.SIGTERM)
            process.wait()

    @staticmethod
    def _started(*command: str) -> "subprocess.Popen[bytes]":
        quiet = ("-vconsole:off", "-vsyslog:off", f"--log-file=/run/{command[0]}.log")
        return subprocess.Popen([*command, *quiet, f"--unixctl=/run/{command[0]}.ctl"])


class Story:
    """The host.

    :param datapath: ``netdev`` (userland) or ``system`` (the kernel's)
    :param network: of the servers
    """

    def __init__(self, datapath: str, network: LaneNetwork) -> None:
        self._datapath = datapath
        self._network = network
        self.seen: dict[str, Any] = {}
        self._vswitch = Vswitch()
        self._make()
        self._keeper = self.new_keeper()

    def new_keeper(self) -> LaneKeeper:
        """Return what keeps the lanes, as it starts."""
        uplinks = Uplinks(UplinkPrograms(), Path("/sys"), {UPLINK: 100})
        return LaneKeeper(uplinks, [UPLINK], LaneQueue.HTB, LaneSettings())

    def close(self) -> None:
        """End what was started."""
        self._vswitch.stop()

    def note(self, what: str, **more: Any) -> None:
        """Remember what the kernel has now."""
        shown = run("tc", "-s", "class", "show", "dev", UPLINK)
        self.seen[what] = {
            "root": run("tc", "qdisc", "show", "dev", UPLINK, "root").split()[1:3],
            "classes": {
                minor: int(packets)
                for minor, packets in re.findall(
                    r"class htb 4e:(\w+) .*?\n Sent \d+ bytes (\d+) pkt", shown
                )
            },
            "tables": sorted(re.findall(r"table (\w+ numa_ext)", run("nft", "list", "tables"))),
            "dscp": self._dscp(),
            "policing": self._is_policed(),
            **more,
        }

    def turn(self, what: str) -> None:
        """Have one turn of the unit, and remember what it says."""
        found: LaneTurn = self._keeper.turn(
            [
                LanePort(tap, tier, self._network)
                for tap, tier in zip(TAPS, (Tier.LC, Tier.BE), strict=True)
            ],
            time.monotonic(),
        )
        self.note(
            what,
            lanes=dict(found.lanes),
            marked=list(found.marked),
            said=[*found.sentences()],
        )

    def send(self, what: str) -> None:
        """Have both servers send, and remember what came of it."""
        for guest in ("guest1", "guest2"):
            until(partial(self._comes, guest, self._dscp()[guest]), f"a packet of {guest}")
        before, dscp = self._classes(), self._dscp()
        for guest in ("guest1", "guest2"):
            self._send(guest, PACKETS)
            until(partial(self._came, guest, dscp[guest] + PACKETS), f"all packets of {guest}")
        after, there = self._classes(), self._dscp()
        self.seen[what] = {
            "classes": {minor: after[minor] - before.get(minor, 0) for minor in after},
            "dscp": {name: there[name] - dscp[name] for name in there},
        }

    def tell(self) -> None:
        """Have the story."""
        self.turn("first")
        if self._network is LaneNetwork.FLAT:
            run(*noop_command(UPLINK).split())
            self.turn("noop")
        self.send("sent")
        run("ovs-vsctl", "set", "interface", TAPS[0], "ingress_policing_rate=50000")
        self.turn("policed")
        self.send("sent policed")
        self._vswitch.restart()
        self.note("restarted")
        self.turn("after restart")
        self.send("sent after restart")
        self._keeper = self.new_keeper()  # the unit was killed, and another one starts
        self.turn("after kill")
        # A hard reboot, as os-vif unplugs and plugs: another tap of that name.
        run("ovs-vsctl", "--timeout=60", "del-port", "br0", TAPS[0])
        run("ip", "link", "del", TAPS[0])
        self.turn("rebooting")
        self._cable(TAPS[0], "guest1", "10.99.0.1")
        run("ovs-vsctl", "--timeout=60", "add-port", "br0", TAPS[0])
        self.turn("rebooted")
        self.send("sent after reboot")
        if self._network is LaneNetwork.FLAT:
            foreign = "qos=@q -- --id=@q create qos type=linux-htb other-config:max-rate=50000000"
            queue = "queues:0=@z -- --id=@z create queue other-config:max-rate=40000000"
            run(*f"ovs-vsctl --timeout=60 set port {UPLINK} {foreign} {queue}".split())
            self.note("foreign")
            self.turn("after foreign")
            run("ovs-vsctl", "--timeout=60", "clear", "port", UPLINK, "qos")
            run(*noop_command(UPLINK).split())
            self.turn("taken back")
        self._keeper.reset()
        self.note("reset")

    def _comes(self, guest: str, was: int) -> bool:
        self._send(guest, 1)
        return self._dscp()[guest] > was

    def _came(self, guest: str, packets: int) -> bool:
        return self._dscp()[guest] >= packets

    @staticmethod
    def _send(guest: str, packets: int) -> None:
        code = (sys.executable, "-c", _SEND, str(packets), _FAR)
        run("ip", "netns", "exec", guest, *code)

    @staticmethod
    def _is_policed() -> bool:
        if not Path(f"/sys/class/net/{TAPS[0]}").exists():
            return False
        return "ingress" in run("tc", "qdisc", "show", "dev", TAPS[0])

    def _classes(self) -> dict[str, int]:
        shown = run("tc", "-s", "class", "show", "dev", UPLINK)
        found = re.findall(r"class htb 4e:(\w+) .*?\n Sent \d+ bytes (\d+) pkt", shown)
        return {minor: int(packets) for minor, packets in found}

    def _dscp(self) -> dict[str, int]:
        shown = run("ip", "netns", "exec", "far", "nft", "list", "table", "inet", "seen")
        found = re.findall(r'counter packets (\d+) bytes \d+ comment "([^"]+)"', shown)
        return {what: int(count) for count, what in found}

    def _cable(self, device: str, place: str, address: str) -> None:
        run("ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", place)
        run("ip", "link", "set", device, "up")
        at = ("ip", "-n", place)
        run(*at, "addr", "add", f"{address}/24", "dev", "eth0")
        run(*at, "link", "set", "eth0", "up")

    def _make(self) -> None:
        is_flat = self._network is LaneNetwork.FLAT
        run("ip", "link", "set", "lo", "up")
        for place in ("guest1", "guest2", "far"):
            run("ip", "netns", "add", place)
        self._cable(TAPS[0], "guest1", "10.99.0.1")
        self._cable(TAPS[1], "guest2", "10.99.0.2")
        self._cable(UPLINK, "far", _FAR if is_flat else _UNDERLAY[1])
        run("ip", "netns", "exec", "far", "nft", "-f", "-", given=_SEEN)
        add = ("ovs-vsctl", "--timeout=60")
        run(*add, "add-br", "br0", "--", "set", "bridge", "br0", f"datapath_type={self._datapath}")
        for tap in TAPS:
            run(*add, "add-port", "br0", tap)
        if is_flat:
            run(*add, "add-port", "br0", UPLINK)
            return
        own, other = _UNDERLAY
        run("ip", "addr", "add", f"{own}/24", "dev", UPLINK)
        tunnel = ("type=geneve", f"options:remote_ip={other}", "options:key=7")
        run(*add, "add-port", "br0", "gv0", "--", "set", "interface", "gv0", *tunnel)
        run("ip", "-n", "far", "link", "add", "gv0", "type", "geneve", "id", "7", "remote", own)
        run("ip", "-n", "far", "addr", "add", f"{_FAR}/24", "dev", "gv0")
        run("ip", "-n", "far", "link", "set", "gv0", "up")


def main() -> None:
    """Tell a story."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datapath", choices=["netdev", "system"])
    parser.add_argument("network", choices=[LaneNetwork.FLAT.value, LaneNetwork.TUNNEL.value])
    args = parser.parse_args()
    story = Story(args.datapath, LaneNetwork(args.network))
    try:
        story.tell()
    finally:
        story.close()
        sys.stdout.write(json.dumps(story.seen) + "\n")


if __name__ == "__main__":
    main()
