# SPDX-License-Identifier: Apache-2.0
"""What is read of uplinks where programs or drivers say too little: nothing is guessed."""

import json
from pathlib import Path
from typing import Any

import pytest

from host_agent.decide.lanes.planning import LanePlan, LaneSettings, planned
from host_agent.decide.lanes.terms import LaneTerm
from host_agent.machine.uplink_watch import devices
from host_agent.machine.uplinks import UplinkPrograms, Uplinks
from host_agent.model.lanes import LaneQueue
from placement_traits.errors import CapabilityMissingError

ROOT_QDISC = '[{"kind": "fq_codel", "handle": "0:", "root": true}]'


class Host:
    """Programs that print what a test says, and a sysfs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.net = folder / "sys/class/net"
        self.device("eth0", ifindex="2", speed="10000")
        self.program("tc", f"echo '{ROOT_QDISC}'")
        programs = UplinkPrograms(folder / "tc", folder / "nft", folder / "ovs-vsctl", 5.0)
        self.uplinks = Uplinks(programs, folder / "sys", {"eth1": 500})

    def device(self, name: str, **files: str) -> Path:
        folder = self.net / name
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / file).write_text(content)
        return folder

    def program(self, name: str, script: str) -> None:
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_speed_is_the_drivers_or_the_operators(host: Host) -> None:
    host.device("eth1", ifindex="3", speed="10000")
    host.device("eth2", ifindex="4", speed="-1")  # no link
    host.device("eth3", ifindex="5")
    speeds = [host.uplinks.facts(f"eth{number}").speed_mbps for number in range(4)]
    assert speeds == [10_000, 500, None, None]
    assert host.uplinks.names() == ("eth0", "eth1", "eth2", "eth3")


def test_a_bond_is_one_and_a_device_that_is_gone_is_named(host: Host) -> None:
    (host.device("bond0", ifindex="7") / "bonding").mkdir()
    assert host.uplinks.facts("bond0").is_bond
    assert not host.uplinks.facts("eth0").is_bond
    with pytest.raises(CapabilityMissingError, match="no network device eth9"):
        host.uplinks.facts("eth9")


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ('[ "$4" = port ] && echo "[]"', ""),
        ('[ "$4" = port ] && echo 1-2-3 || echo \'"linux-noop"\'', "linux-noop"),
        ('[ "$4" = port ] && echo 1-2-3 || echo linux-htb', "linux-htb"),
        ("echo denied >&2; exit 1", ""),
    ],
)
def test_a_port_of_open_vswitch_has_the_qos_that_it_says(
    host: Host, script: str, found: str
) -> None:
    """Who may not be asked has none that we know of, and so no lanes."""
    (host.net.parent / "ovs-system").mkdir()
    (host.net / "eth0/master").symlink_to(host.net.parent / "ovs-system")
    host.program("ovs-vsctl", script)
    assert host.uplinks.facts("eth0").ovs_qos == found


SWITCHED = """
case "$*" in
  *"find bridge datapath_type=netdev") printf 'br0\\n\\nbr1\\n';;
  *"list-ports br0") printf 'eth0\\ntap1\\n';;
  *"list-ports br1") echo tap2;;
  *"get port eth0 qos") echo "[]";;
  *) echo "unexpected $*" >&2; exit 1;;
esac
"""


def test_ports_of_a_userland_datapath_have_no_master_and_are_known_all_the_same(host: Host) -> None:
    assert host.uplinks.userland_ports() == set(), "no Open vSwitch"
    host.program("ovs-vsctl", SWITCHED)
    assert host.uplinks.userland_ports() == {"eth0", "tap1", "tap2"}
    assert host.uplinks.facts("eth0").ovs_qos == ""
    host.program("ovs-vsctl", "echo 'db.sock: No such file or directory' >&2; exit 1")
    assert host.uplinks.userland_ports() == set(), "it does not run"
    host.program("ovs-vsctl", "echo denied >&2; exit 1")
    with pytest.raises(CapabilityMissingError, match="denied"):
        host.uplinks.userland_ports()
    assert host.uplinks.facts("eth0").ovs_qos is None


def test_a_member_of_a_bridge_is_no_port_of_open_vswitch(host: Host) -> None:
    (host.net.parent / "br0").mkdir()
    (host.net / "eth0/master").symlink_to(host.net.parent / "br0")
    assert host.uplinks.facts("eth0").ovs_qos is None


MQPRIO: dict[str, Any] = {
    "kind": "mqprio",
    "handle": "8001:",
    "root": True,
    "refcnt": 17,
    "options": {
        "tc": 3,
        "map": [1, 2, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        "queues": [[0, 1], [2, 13], [14, 15]],
    },
}
"""As tc of iproute2 prints it (``mqprio_print_opt``): it has no word of ``hw``."""


@pytest.mark.parametrize(
    ("more", "is_own"),
    [
        ({"mode": "channel", "shaper": "dcb"}, True),
        ({"mode": "channel", "shaper": "bw_rlimit", "min_rate": [0, 0, 1]}, True),
        ({}, False),  # hw 0, or 1 without a mode
        ({"mode": "dcb", "shaper": "dcb"}, False),  # which is printed where none was given, too
        ({"mode": "dcb", "shaper": "dcb", "fp": [" E", " E", " E"]}, False),
    ],
)
def test_an_adapter_does_mqprio_itself_where_its_mode_says_so(
    host: Host, more: dict[str, Any], is_own: bool
) -> None:
    root = {**MQPRIO, "options": {**MQPRIO["options"], **more}}
    host.program("tc", f"echo '{json.dumps([root])}'")
    facts = host.uplinks.facts("eth0")
    assert facts.offload == (tuple(MQPRIO["options"]["map"]) if is_own else ())
    found = planned(facts, LaneQueue, LaneSettings())
    assert isinstance(found, LanePlan) is is_own
    if not isinstance(found, LanePlan):
        assert [each.term for each in found] == [LaneTerm.ROOT_QDISC]


def test_a_bond_has_offload_where_all_its_members_have_it_alike(host: Host) -> None:
    bonding = host.device("bond0", ifindex="7", speed="200000") / "bonding"
    bonding.mkdir()
    (bonding / "slaves").write_text("eth0 eth1\n")
    own = {**MQPRIO, "options": {**MQPRIO["options"], "mode": "channel"}}
    host.program("tc", f"case $* in *eth0|*eth1) echo '{json.dumps([own])}';; *) echo '[]';; esac")
    assert host.uplinks.facts("bond0").offload == tuple(MQPRIO["options"]["map"])
    host.program("tc", f"case $* in *eth0) echo '{json.dumps([own])}';; *) echo '[]';; esac")
    assert host.uplinks.facts("bond0").offload == ()
    (bonding / "slaves").write_text("\n")
    assert host.uplinks.facts("bond0").offload == ()


@pytest.mark.parametrize("script", ["echo nothing", 'echo "{}"', 'echo "[1]"'])
def test_a_tc_that_prints_something_else_is_said(host: Host, script: str) -> None:
    host.program("tc", script)
    if script == 'echo "{}"':
        assert host.uplinks.queue("eth0").kind == "noqueue"
        return
    with pytest.raises(CapabilityMissingError, match="no JSON"):
        host.uplinks.queue("eth0")


def test_what_a_program_refuses_is_raised_in_its_own_words(host: Host) -> None:
    host.program("tc", "echo 'Operation not permitted' >&2; exit 2")
    with pytest.raises(CapabilityMissingError, match="tc -batch: Operation not permitted"):
        host.uplinks.write_queues("qdisc del dev eth0 root\n")
    with pytest.raises(CapabilityMissingError, match="nft"):
        host.uplinks.write_marks("")
    host.program("nft", "echo 'Operation not permitted' >&2; exit 1")
    with pytest.raises(CapabilityMissingError, match="Operation not permitted"):
        host.uplinks.marks()


@pytest.mark.parametrize("messages", [b"", b"\0" * 15, b"\xff" * 40, b"\x10\0\0\0" + b"\0" * 12])
def test_messages_that_are_none_of_queues_name_no_device(messages: bytes) -> None:
    assert devices(messages) == set()
