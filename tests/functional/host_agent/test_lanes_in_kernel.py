# SPDX-License-Identifier: Apache-2.0
"""Lanes and marks in a real kernel, in network namespaces of their own: read back, kept, given up, taken off."""

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks.lane_world import FAR, TAPS, UPLINK, LaneWorld, lacking
from host_agent.control.lanes import LaneKeeper
from host_agent.decide.lanes import queues, ruleset
from host_agent.decide.lanes.planning import LanePlan, LaneSettings, planned
from host_agent.decide.lanes.terms import LaneTerm
from host_agent.decide.network import IntensityClasses
from host_agent.machine.uplinks import UplinkPrograms, Uplinks
from host_agent.model.lanes import LaneNetwork, LanePort, LaneQueue, UplinkFacts
from host_agent.observe.network import traffic
from placement_traits.names import NetClass, Tier
from tests.support import lane_guest

pytestmark = pytest.mark.root

PACKETS = 20
SEND = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(sys.argv[2]))
for _ in range(int(sys.argv[1])):
    sender.sendto(b"x" * 100, (sys.argv[3], 9))
"""
COUNTED = """
table inet seen {
    chain input {
        type filter hook input priority 0;
        ip saddr 10.99.0.1 udp dport 9 ip dscp 46 ip ecn 1 counter comment "lc, its ECN kept"
        ip saddr 10.99.0.2 udp dport 9 ip dscp 8 counter comment "be"
        udp dport 4789 ip dscp 46 counter comment "outer lc"
        udp dport 4789 ip dscp 8 counter comment "outer be"
    }
}
"""


def ports(network: LaneNetwork) -> list[LanePort]:
    return [LanePort(TAPS[0], Tier.LC, network), LanePort(TAPS[1], Tier.BE, network)]


def keeper(world: LaneWorld, settings: LaneSettings | None = None) -> LaneKeeper:
    return LaneKeeper(world.uplinks, [UPLINK], LaneQueue.HTB, settings or LaneSettings())


def send(world: LaneWorld, guest: str, tos: int = 0) -> None:
    world.run(guest, sys.executable, "-c", SEND, str(PACKETS), str(tos), FAR)


def packets(world: LaneWorld) -> dict[str, int]:
    """Packets that the uplink has sent, by class."""
    shown = world.run("host", "tc", "-s", "class", "show", "dev", UPLINK)
    found = re.findall(r"class htb 4e:(\w+) .*?\n Sent \d+ bytes (\d+) pkt", shown)
    return {minor: int(count) for minor, count in found}


def seen(world: LaneWorld) -> dict[str, int]:
    """Packets that the far end has counted."""
    shown = world.run("far", "nft", "list", "table", "inet", "seen")
    found = re.findall(r'counter packets (\d+) bytes \d+ comment "([^"]+)"', shown)
    return {what: int(count) for count, what in found}


def state(world: LaneWorld) -> str:
    """All queues and tables of the host, without what counts packets."""
    shown = world.run("host", "tc", "qdisc", "show") + world.run("host", "nft", "list", "ruleset")
    return re.sub(r"direct_packets_stat \d+", "", shown)


@pytest.fixture(scope="module")
def possible() -> None:
    if why := lacking():
        pytest.skip(why)


@pytest.fixture(scope="module")
def flat(possible: None) -> Iterator[LaneWorld]:
    with LaneWorld(100) as world:
        yield world


@pytest.fixture
def clean(flat: LaneWorld) -> Iterator[LaneWorld]:
    before = state(flat)
    yield flat
    if UPLINK in flat.uplinks.names() and flat.uplinks.queue(UPLINK).handle == "1":
        flat.run("host", "tc", "qdisc", "del", "dev", UPLINK, "root")
    keeper(flat).reset()
    assert state(flat) == before, "a reset leaves nothing"


def test_marks_of_taps_decide_the_lane_whatever_guests_write(clean: LaneWorld) -> None:
    turn = keeper(clean).turn(ports(LaneNetwork.FLAT), 0.0)
    assert (turn.lanes, turn.marked, turn.sentences()) == ({UPLINK: LaneQueue.HTB}, TAPS, ())
    clean.run("far", "sh", "-c", f"printf '%s' '{COUNTED}' | nft -f -")
    before = packets(clean)
    send(clean, "guest1", tos=1)  # ECT(1), no DSCP
    send(clean, "guest2", tos=46 << 2)  # it claims to be urgent
    after = packets(clean)
    assert after["1"] - before["1"] >= PACKETS
    assert after["3"] - before["3"] >= PACKETS
    assert after["2"] - before["2"] < PACKETS, "the host's own, such as of its bridge"
    there = seen(clean)
    clean.run("far", "nft", "delete", "table", "inet", "seen")
    assert (there["lc, its ECN kept"], there["be"]) == (PACKETS, PACKETS)


def test_nothing_is_written_where_all_is_as_planned(clean: LaneWorld) -> None:
    kept = keeper(clean)
    first = kept.turn(ports(LaneNetwork.FLAT), 0.0)
    send(clean, "guest1")
    count = packets(clean)
    assert kept.turn(ports(LaneNetwork.FLAT), 5.0) == first
    assert packets(clean)["1"] >= count["1"] > 0, "classes are the same ones"
    again = keeper(clean)
    assert again.turn(ports(LaneNetwork.FLAT), 0.0) == first
    assert packets(clean)["1"] >= count["1"], "another start takes them over"


def test_lanes_that_others_overwrite_twice_are_given_up(clean: LaneWorld) -> None:
    kept = keeper(clean)
    kept.turn(ports(LaneNetwork.FLAT), 0.0)
    clean.run("host", "tc", "class", "change", "dev", UPLINK, *CHANGED)
    once = kept.turn(ports(LaneNetwork.FLAT), 5.0)
    assert once.lanes == {UPLINK: LaneQueue.HTB}
    clean.run("host", "tc", "qdisc", "del", "dev", UPLINK, "root")
    twice = kept.turn(ports(LaneNetwork.FLAT), 10.0)
    assert [each.term for each in twice.reasons] == [LaneTerm.OVERWRITTEN]
    assert (twice.lanes, twice.marked) == ({}, ())
    assert clean.uplinks.marks() is None
    assert kept.turn(ports(LaneNetwork.FLAT), 10_000.0) == twice, "until the next start"


CHANGED = ("parent", "4e:ff", "classid", "4e:3", "htb", "rate", "1mbit", "ceil", "1mbit")


def test_a_root_qdisc_of_others_stays(clean: LaneWorld) -> None:
    clean.run("host", "tc", "qdisc", "add", "dev", UPLINK, "root", "handle", "1:", "htb")
    before = state(clean)
    turn = keeper(clean).turn(ports(LaneNetwork.FLAT), 0.0)
    assert [each.term for each in turn.reasons] == [LaneTerm.ROOT_QDISC]
    keeper(clean).reset()
    assert state(clean) == before


def test_a_refused_batch_leaves_nothing(clean: LaneWorld) -> None:
    """The kernel of this machine need not have ets; where it has, lanes are made of it."""
    before = state(clean)
    kept = LaneKeeper(clean.uplinks, [UPLINK], LaneQueue.ETS, LaneSettings())
    turn = kept.turn(ports(LaneNetwork.FLAT), 0.0)
    if turn.troubles:
        assert "tc -batch" in turn.troubles[0]
        assert state(clean) == before
    else:
        assert turn.lanes == {UPLINK: LaneQueue.ETS}


def test_a_dry_run_prints_and_writes_nothing(clean: LaneWorld) -> None:
    before = state(clean)
    printed: list[str] = []
    settings = LaneSettings()
    dry = LaneKeeper(clean.uplinks, [UPLINK], LaneQueue.HTB, settings, printed.append)
    dry.turn(ports(LaneNetwork.FLAT), 0.0)
    assert [text.split()[0] for text in printed] == ["qdisc", "table"]
    assert state(clean) == before


def test_lanes_of_a_former_uplink_are_taken_off(clean: LaneWorld) -> None:
    keeper(clean).turn(ports(LaneNetwork.FLAT), 0.0)
    other = LaneKeeper(clean.uplinks, ["nosuch"], LaneQueue.HTB, LaneSettings())
    other.forget_others()
    assert clean.uplinks.queue(UPLINK).kind == "noqueue"
    assert other.turn((), 0.0).troubles == ("there is no network device nosuch",)
    assert clean.uplinks.marks() is None, "without lanes there are no marks"


@pytest.mark.long
def test_a_flow_goes_on_while_lanes_come_and_go(clean: LaneWorld) -> None:
    """F-003-37: nothing is started anew, and no connection ends."""
    sink = clean.start("far", "receive", FAR, 7000, 3.0)
    assert sink.stdout is not None
    sink.stdout.readline()
    sender = clean.start("guest2", "bulk", FAR, 7001, 2.5, "--flows", 1)
    kept = keeper(clean)
    for tier in (Tier.BE, None, Tier.LC):
        port = LanePort(TAPS[1], tier, LaneNetwork.FLAT)
        assert kept.turn([port], 0.0).marked == (TAPS[1],)
    kept.reset()
    kept.turn(ports(LaneNetwork.FLAT), 0.0)
    assert sender.wait() == 0
    assert '"bytes": [0, 0]' not in sink.communicate()[0]


@pytest.mark.long
def test_who_sends_much_is_known_by_counters_and_does_not_go_first(clean: LaneWorld) -> None:
    """F-003-40 on one host: servers are there, their counters give them classes, their tiers lanes."""
    kept = keeper(clean)
    assert kept.turn(ports(LaneNetwork.FLAT), 0.0).lanes == {UPLINK: LaneQueue.HTB}
    classes = IntensityClasses(100, 1.0)

    def count(now_s: float) -> None:
        counted = {tap: traffic(clean.sys, (tap,)) for tap in TAPS}
        classes.take({tap: found for tap, found in counted.items() if found}, now_s)

    sink = clean.start("far", "receive", FAR, 7000, 4.0)
    assert sink.stdout is not None
    sink.stdout.readline()
    count(began := time.monotonic())
    before = packets(clean)
    started = [
        clean.start("guest1", "probe", FAR, 7000, 3.0),
        clean.start("guest2", "bulk", FAR, 7002, 3.0),
    ]
    for each in started:
        each.wait()
    count(time.monotonic())
    after = packets(clean)
    found = json.loads(sink.communicate()[0])
    assert time.monotonic() - began < 10, "else little was sent in much time"
    assert classes.classes == {TAPS[0]: NetClass.LOW, TAPS[1]: NetClass.EXTREME}
    sent = {minor: after[minor] - before[minor] for minor in ("1", "3")}
    assert 0 < sent["1"] < sent["3"], "the lane of the tier, not of the class"
    late = sorted(found["delays_ms"])[len(found["delays_ms"]) // 2]
    assert late < 5, "one queue of the uplink makes 20 ms and more of it"


def test_somebody_who_changes_queues_is_heard(clean: LaneWorld) -> None:
    heard = """
import subprocess
from host_agent.machine.uplink_watch import QueueWatch
with QueueWatch() as watch:
    assert not watch.changed(0.05)
    subprocess.run(["tc", "qdisc", "add", "dev", "up0", "root", "handle", "1:", "htb"], check=True)
    print(sorted(watch.changed(5.0)))
"""
    shown = clean.run("host", sys.executable, "-c", heard)
    assert shown.strip() == f"[{clean.uplinks.index(UPLINK)}]"


def test_marks_survive_a_tunnel_and_stand_in_its_outer_header(possible: None) -> None:
    with LaneWorld(100, is_tunnel=True) as world:
        kept = keeper(world)
        assert kept.turn(ports(LaneNetwork.TUNNEL), 0.0).marked == TAPS
        world.run("far", "sh", "-c", f"printf '%s' '{COUNTED}' | nft -f -")
        before = packets(world)
        send(world, "guest1")
        send(world, "guest2", tos=46 << 2)
        after = packets(world)
        assert after["1"] - before["1"] >= PACKETS
        assert after["3"] - before["3"] >= PACKETS
        there = seen(world)
        assert there["outer lc"] >= PACKETS
        assert there["outer be"] >= PACKETS
        assert there["be"] == 0, "inner headers are the guest's own"

        world.run("host", "ip", "link", "del", TAPS[0])
        assert kept.turn(ports(LaneNetwork.TUNNEL), 5.0).marked == (TAPS[1],)
        world.run("host", "ip", "link", "add", TAPS[0], "type", "veth", "peer", "name", "nne0")
        assert kept.turn(ports(LaneNetwork.TUNNEL), 10.0).marked == TAPS


@pytest.mark.long
def test_ets_and_geneve_do_the_same_in_the_kernel_of_the_lab(tmp_path: Path) -> None:
    """Linux 6.12 or 6.1 below QEMU's TCG: what this machine's kernel lacks."""
    made = {}
    for queue in LaneQueue:
        found = planned(UplinkFacts(UPLINK, 100, "noqueue"), [queue], LaneSettings())
        assert isinstance(found, LanePlan)
        made[queue] = found
    governed = ports(LaneNetwork.TUNNEL)
    texts = {queue.value: queues.written(each) for queue, each in made.items()}
    texts["marks"] = ruleset.written(made[LaneQueue.ETS], governed)
    shown = lane_guest.shown(tmp_path, texts)
    for queue, each in made.items():
        replayed = Replayed(tmp_path / queue, shown, queue)
        assert queues.shows(each, replayed.uplinks.queue(UPLINK))
        assert replayed.uplinks.marks() == ruleset.expected(each, governed)
        sent = re.findall(
            r"class \w+ 4e:(\w+) .*?\n Sent \d+ bytes (\d+) pkt", shown[f"sent {queue}"]
        )
        count = {minor: int(packets) for minor, packets in sent}
        assert min(count["1"], count["3"]) >= lane_guest.PINGS > count["2"]


class Replayed:
    """tc and nft that print what they have printed in the guest."""

    def __init__(self, folder: Path, shown: Mapping[str, str], queue: str) -> None:
        folder.mkdir()
        for name, section in (
            ("qdisc", f"qdisc {queue}"),
            ("class", f"class {queue}"),
            ("netdev", "netdev"),
            ("inet", "inet"),
        ):
            (folder / name).write_text(shown[section])
        for name, which in (
            ("tc", 'case "$*" in *qdisc*) cat qdisc;; *) cat class;; esac'),
            ("nft", 'case "$*" in *netdev*) cat netdev;; *) cat inet;; esac'),
        ):
            (folder / name).write_text(f"#!/bin/sh\ncd {folder}\n{which}\n")
            (folder / name).chmod(0o755)
        self.uplinks = Uplinks(UplinkPrograms(folder / "tc", folder / "nft"), folder / "sys")
