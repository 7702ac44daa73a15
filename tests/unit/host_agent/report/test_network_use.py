# SPDX-License-Identifier: Apache-2.0
"""How much servers use the network, by the counters of their interfaces in a sysfs of the test (F-003-24)."""

from pathlib import Path

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, Server
from host_agent.conf.network import NetworkUseOptions
from host_agent.model.assignment import Guest, Observation
from host_agent.model.round import Round
from host_agent.model.workload import Activity, parse
from host_agent.report.metrics import METRICS, Metrics
from host_agent.report.network import NetworkUse

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
    """

    def __init__(self, sys: Path, share_mbps: int | None = SHARE_MBPS) -> None:
        self.sys, self.now = sys, 0.0
        self.bytes = {"tap0": [0, 0], "tap1": [0, 0], "tap2": [0, 0]}
        options = NetworkUseOptions(uplink_share_mbps=share_mbps, window_s=WINDOW_S)
        self.use = NetworkUse(options, sys, lambda: self.now)
        self.window()

    def window(
        self, sent_mbps: float = 0.0, received_mbps: float = 0.0, *, paused: bool = False
    ) -> None:
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
    assert {name for name, _, _ in host.use.samples()} == {"numa_ext_server_network_bytes"}


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
