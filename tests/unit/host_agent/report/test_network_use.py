# SPDX-License-Identifier: Apache-2.0
"""How much servers use the network, by the counters of their interfaces in a sysfs of the test (F-003-24)."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, Server
from host_agent.conf.network import NetworkUseOptions
from host_agent.decide.network import PeersByLevel
from host_agent.model.assignment import Guest, Observation
from host_agent.model.journal import Entry
from host_agent.model.round import Round
from host_agent.model.workload import Activity, parse
from host_agent.report.metrics import METRICS, Metrics
from host_agent.report.network import PEERS_EVERY_S, KnownPeers, NetworkUse
from placement_traits.leaf_neighbours import LeafNeighbours


def eventually(is_so: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 10.0
    while not is_so():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


SHARE_MBPS, WINDOW_S = 1000, 60.0


def server(title: str, *interfaces: str) -> Server:
    devices = "".join(
        f"<interface type='bridge'><target dev='{name}'/></interface>" for name in interfaces
    )
    return Server(title, BE_SPECS, devices=devices)


BUSY, IDLE, DIRECT = server("busy", "tap0", "tap1"), server("idle", "tap2"), server("direct")


class Host:
    """Servers whose bytes a test counts.

    :param sys: for the counters
    :param share_mbps: as of the option
    :param levels: as of the option
    """

    def __init__(
        self, sys: Path, share_mbps: int | None = SHARE_MBPS, *, levels: bool = False
    ) -> None:
        self.sys, self.now = sys, 0.0
        self.bytes = {"tap0": [0, 0], "tap1": [0, 0], "tap2": [0, 0]}
        options = NetworkUseOptions(uplink_share_mbps=share_mbps, window_s=WINDOW_S)
        self.journal: list[Entry] = []
        self.peers: tuple[dict[str, dict[str, int]], LeafNeighbours | None] = ({}, None)
        known = KnownPeers(lambda: self.peers, lambda: self.now) if levels else None
        self.use = NetworkUse(options, sys, self, known, lambda: self.now)
        self.window()

    def write(self, entry: Entry) -> None:
        self.journal.append(entry)

    def window(
        self, sent_mbps: float = 0.0, received_mbps: float = 0.0, *, paused: bool = False
    ) -> "Host":
        """Let the busy server send and receive for a window, by its first interface."""
        for at, rate in enumerate((sent_mbps, received_mbps)):
            self.bytes["tap0"][at] += int(rate * 1e6 / 8 * WINDOW_S)
        for name, (rx, tx) in self.bytes.items():
            folder = self.sys / "class/net" / name / "statistics"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "rx_bytes").write_text(f"{rx}\n")
            (folder / "tx_bytes").write_text(f"{tx}\n")
        self.now += WINDOW_S
        guests = [Guest(parse(each.xml, Activity.RUNNING)) for each in (BUSY, IDLE, DIRECT)]
        self.use.on_round(Round(Observation(four_nodes(), tuple(guests)), paused=paused))
        return self

    @property
    def levels(self) -> dict[str, tuple[float, str]]:
        """Mbit/s of each level of the busy server, and whether they are estimated."""
        return {
            labels[2]: (round(value, 3), labels[3])
            for name, labels, value in self.use.samples()
            if name == "numa_ext_server_network_level_mbps" and labels[1] == "busy"
        }

    @property
    def classes(self) -> dict[str, str]:
        """Class by the server's name."""
        return {
            labels[1]: labels[2]
            for name, labels, value in self.use.samples()
            if name == "numa_ext_server_network_class" and value
        }


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_server_that_sends_all_it_can_is_extreme_and_an_idle_one_low(host: Host) -> None:
    """F-003-24: in two windows at most; here after one."""
    assert host.classes == {}, "nothing is known before a window has ended"
    host.window(sent_mbps=900)
    assert host.classes == {"busy": "extreme", "idle": "low"}


def test_another_class_needs_two_windows_in_a_row(host: Host) -> None:
    host.window(received_mbps=200)
    assert host.classes["busy"] == "moderate"
    host.window(sent_mbps=900)
    assert host.classes["busy"] == "moderate", "one burst"
    host.window(received_mbps=200)
    host.window(sent_mbps=900)
    assert host.classes["busy"] == "moderate", "and another one"
    host.window(sent_mbps=900)
    assert host.classes["busy"] == "extreme"
    host.window()
    host.window()
    assert host.classes["busy"] == "low"


def test_sending_and_receiving_do_not_add_up(host: Host) -> None:
    host.window(sent_mbps=300, received_mbps=300)
    assert host.classes["busy"] == "moderate"


def test_bytes_are_those_of_all_interfaces_that_the_kernel_has(host: Host) -> None:
    host.bytes["tap1"] = [1, 2]
    host.window(sent_mbps=8)
    found = {labels[1:]: value for name, labels, value in host.use.samples() if "bytes" in name}
    assert found == {
        ("busy", "sent"): 60e6 + 1,
        ("busy", "received"): 2,
        ("idle", "sent"): 0,
        ("idle", "received"): 0,
    }


def test_interfaces_that_were_made_again_change_no_class(host: Host) -> None:
    host.window(sent_mbps=900)
    host.bytes["tap0"] = [0, 0]
    host.window()
    assert host.classes["busy"] == "extreme"


def test_no_window_ends_early_or_while_the_agent_is_paused(host: Host) -> None:
    host.window(sent_mbps=900, paused=True)
    assert host.classes == {}
    host.now -= WINDOW_S / 2
    host.use.on_round(Round(Observation(four_nodes(), ())))
    assert [*host.use.samples()], "the servers of the last window"


def test_without_a_share_servers_have_bytes_and_no_class(tmp_path: Path) -> None:
    host = Host(tmp_path, share_mbps=None)
    host.window(sent_mbps=900)
    assert host.classes == {}
    assert {name for name, _, _ in host.use.samples()} == {
        "numa_ext_server_network_bytes",
        "numa_ext_server_network_level_mbps",
    }
    assert host.journal == []


def test_what_is_shown_is_declared(host: Host) -> None:
    metrics = Metrics()
    metrics.include(host.use)
    host.window(sent_mbps=900)
    shown = [(spec.name, labels) for spec, labels, _ in metrics.samples()]
    for name, labels in shown:
        assert len(labels) == len(METRICS[name].labels)
    assert "numa_ext_server_network_class" in dict(shown)


def test_names_that_would_leave_the_folder_are_no_interfaces() -> None:
    found = parse(server("odd", "../tap0", ".", "tap3").xml, Activity.RUNNING)
    assert found.domain.interfaces == ("tap3",)


NEAR = LeafNeighbours(
    frozenset({"h1", "h2.example.org"}), frozenset({"h1", "h2.example.org", "h3"})
)


@pytest.fixture
def cabled(tmp_path: Path) -> Host:
    """The busy server has eleven peers: one on its host, two on its leaf beside, two in its pod, six elsewhere."""
    host = Host(tmp_path, levels=True)
    host.peers = ({"tap0": {"h1": 2, "h2": 2, "h3": 2, "h4": 6}}, NEAR)
    host.now += PEERS_EVERY_S
    host.window()
    eventually(lambda: len(host.window().levels) == 3, "where its peers are")
    return host


def test_what_leaves_the_leaf_is_estimated_from_where_peers_are(cabled: Host) -> None:
    """F-003-20 on a host: bytes times (N - n) over (N - 1), L0 at least L1 at least L2, marked."""
    cabled.window(sent_mbps=110)
    assert cabled.levels == {
        "server": (110.0, "no"),
        "leaf": (80.0, "yes"),
        "pod": (60.0, "yes"),
    }


def test_a_server_whose_peers_are_on_its_leaf_is_low_whatever_it_sends(cabled: Host) -> None:
    """F-003-22: only levels that are shared count; without levels it would be extreme."""
    cabled.peers = ({"tap0": {"h1": 2, "h2": 2}}, NEAR)
    cabled.now += PEERS_EVERY_S
    cabled.window()
    eventually(lambda: cabled.window(sent_mbps=900).levels["leaf"][0] == 0.0, "its other peers")
    cabled.window(sent_mbps=900)
    assert cabled.classes["busy"] == "low"
    assert cabled.levels["server"] == (900.0, "no")


def test_half_of_its_peers_elsewhere_make_a_class_lower(cabled: Host) -> None:
    cabled.window(sent_mbps=600)
    cabled.window(sent_mbps=600)
    assert cabled.classes["busy"] == "moderate", "436 of 1,000 Mbit/s leave the leaf, of 600"
    (entry,) = [each for each in cabled.journal if each.what == {"class": "moderate"}]
    assert entry.measured["leaf_mbps"] == {"mbps": 436.4, "estimated": True}
    assert entry.measured["server_mbps"] == {"mbps": 600.0, "estimated": False}


def test_neutron_and_placement_are_asked_every_ten_minutes_and_no_more() -> None:
    clock, asked = [0.0], list[float]()

    def ask() -> tuple[dict[str, dict[str, int]], LeafNeighbours | None]:
        asked.append(clock[0])
        return {}, NEAR

    known = KnownPeers(ask, lambda: clock[0])
    for now in (0.0, 60.0, PEERS_EVERY_S - 1.0, PEERS_EVERY_S, PEERS_EVERY_S + 60.0):
        clock[0] = now
        known.look()
        eventually(lambda: not known._last.is_asking, "the answer")
    assert asked == [0.0, PEERS_EVERY_S]


@pytest.mark.parametrize(
    "peers", [({"tap0": {"h1": 2}}, None), ({}, NEAR), ({"tap2": {"h1": 2}}, NEAR)]
)
def test_without_peers_that_are_known_nothing_is_estimated(
    tmp_path: Path, peers: tuple[dict[str, dict[str, int]], LeafNeighbours | None]
) -> None:
    host = Host(tmp_path, levels=True)
    host.peers = peers
    host.now += PEERS_EVERY_S
    host.window()
    time.sleep(0.05)
    host.window(sent_mbps=900)
    host.window(sent_mbps=900)
    assert host.levels == {"server": (900.0, "no")}
    assert host.classes["busy"] == "extreme", "all its bytes count"


def test_a_server_alone_on_its_network_sends_somewhere() -> None:
    assert PeersByLevel(1, 1, 1).beyond(1) == 1.0
    assert PeersByLevel(0, 0, 0).beyond(0) == 1.0
