# SPDX-License-Identifier: Apache-2.0
"""``numa-host-agent-lanes``: ports of servers by libvirt and Neutron together, and configurations that it refuses."""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.cmd import lanes
from host_agent.cmd.lanes import Servers
from host_agent.conf.lanes import LaneOptions
from host_agent.control.lanes import LaneTurn
from host_agent.machine.lane_door import LaneDoorCaller
from host_agent.machine.libvirt import ListedDomain
from host_agent.model.lanes import LaneNetwork, LaneOrder, LanePort, UplinkReport
from host_agent.model.workload import Activity
from host_agent.report.lanes import LaneTrait
from host_agent.util.background import BackgroundTasks
from placement_traits.errors import ServiceUnavailableError
from placement_traits.names import Tier

PORT = LanePort("tap1", Tier.LC, LaneNetwork.VLAN)
NETWORKS = [{"id": "n", "provider:network_type": "vlan"}]


def until(holds: Callable[[], object]) -> None:
    end_s = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def tap_of(number: int) -> str:
    return f"tap{number:011}"


def listed(server: Server, number: int, activity: Activity = Activity.RUNNING) -> ListedDomain:
    interface = f"<interface type='bridge'><target dev='{tap_of(number)}'/></interface></devices>"
    return ListedDomain(server.uuid, server.xml.replace("</devices>", interface), activity)


class Neutron:
    """Has ports 1 and 2."""

    def __init__(self) -> None:
        self.asked = 0
        self.silent = False

    def get(self, path: str, _query: Mapping[str, str]) -> Any:
        if self.silent:
            raise ServiceUnavailableError("it is silent")
        if path.endswith("networks"):
            return {"networks": NETWORKS}
        self.asked += 1
        ports = [
            {"id": f"{number:011}-x", "network_id": "n", "binding:vif_type": "ovs"}
            for number in (1, 2)
        ]
        return {"ports": ports}


def servers(neutron: Neutron, domains: list[ListedDomain]) -> Servers:
    libvirt: Any = SimpleNamespace(domains=lambda: tuple(domains))
    return Servers(libvirt, neutron.get, "h1", 60.0)


def test_a_port_has_the_tier_of_its_server_and_the_network_of_neutron() -> None:
    domains = [
        listed(Server("a", LC_SPECS), 1),
        listed(Server("b", BE_SPECS), 2, Activity.PAUSED),
        listed(Server("c", BE_SPECS), 3),
        ListedDomain("d", "<domain", Activity.RUNNING),
    ]
    assert servers(Neutron(), domains).ports(0.0) == (
        LanePort(tap_of(1), Tier.LC, LaneNetwork.VLAN),
        LanePort(tap_of(2), Tier.BE, LaneNetwork.VLAN),
    ), "Neutron knows no third one"


def test_neutron_is_asked_once_a_minute_and_for_each_new_tap() -> None:
    neutron, domains = Neutron(), [listed(Server("a", LC_SPECS), 1)]
    found = servers(neutron, domains)
    for now_s in (0.0, 5.0, 59.0):
        found.ports(now_s)
    assert neutron.asked == 1
    domains.append(listed(Server("b", BE_SPECS), 2))
    assert len(found.ports(59.5)) == 2
    assert neutron.asked == 2
    found.ports(119.6)
    assert neutron.asked == 3


def test_ports_are_those_of_the_last_answer_while_neutron_is_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    neutron, domains = Neutron(), [listed(Server("a", LC_SPECS), 1)]
    found = servers(neutron, domains)
    before = found.ports(0.0)
    neutron.silent = True
    assert found.ports(100.0) == found.ports(200.0) == before
    assert caplog.text.count("it is silent") == 1
    domains.append(listed(Server("b", BE_SPECS), 2))
    neutron.silent = False
    assert len(found.ports(201.0)) == 2, "one without a mark has it asked at once"


def test_a_server_that_came_while_neutron_was_silent_is_asked_for_when_it_answers() -> None:
    neutron, domains = Neutron(), [listed(Server("a", LC_SPECS), 1)]
    found = servers(neutron, domains)
    neutron.silent = True
    assert found.ports(0.0) == ()
    neutron.silent = False
    assert len(found.ports(5.0)) == 1


def test_turns_go_on_where_libvirt_is_silent_and_say_what_is_new_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the ports of its last answer; without one nothing is known of this host."""
    stop = threading.Event()
    asked: list[int] = []
    turns: list[tuple[LanePort, ...]] = []

    def ports(_now_s: float) -> tuple[LanePort, ...]:
        asked.append(len(asked))
        if len(asked) in (1, 3):
            raise ServiceUnavailableError("libvirt is silent")
        if len(asked) == 5:
            stop.set()
        return (PORT,)

    def turn(ports: tuple[LanePort, ...], _now_s: float) -> LaneTurn:
        turns.append(ports)
        return LaneTurn(troubles=("tc is refused",))

    keeper: Any = SimpleNamespace(indexes=frozenset(), turn=turn)
    monkeypatch.setattr(Servers, "of", lambda _conf: SimpleNamespace(ports=ports))
    shown: list[bool] = []
    trait = SimpleNamespace(show=lambda *, has_lanes: shown.append(has_lanes))
    monkeypatch.setattr(lanes, "_trait", lambda _conf: trait)
    conf: Any = SimpleNamespace(
        lanes=LaneOptions(interval_s=0.01),
        placement=SimpleNamespace(enabled=True),
    )
    with caplog.at_level("INFO"):
        lanes._loop(conf, keeper, stop)
    assert len(turns) >= 2
    assert set(turns) == {(PORT,)}
    assert shown == [False] * len(turns)
    assert caplog.text.count("uplinks with lanes: none") == 1
    assert caplog.text.count("tc is refused") == 1
    assert caplog.text.count("the last answer stands: libvirt is silent") == 2


def test_no_order_waits_for_libvirt_neutron_or_placement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hangs from the second request on; orders are answered, and what is not repeated lapses."""
    stop, answers = threading.Event(), threading.Event()
    path = tmp_path / "lanes.sock"
    lapses: list[float] = []
    turns: list[object] = []
    asked: list[str] = []

    def hangs(what: str) -> None:
        asked.append(what)
        if asked.count(what) > 1:
            assert answers.wait(30)

    def ports(_now_s: float) -> tuple[LanePort, ...]:
        hangs("ports")
        return (PORT,)

    def laned(_host: str, *, has_lanes: bool) -> Any:
        assert not has_lanes
        hangs("trait")
        return SimpleNamespace(problems=("it is asked again",))

    keeper: Any = SimpleNamespace(
        indexes=frozenset(),
        turn=lambda ports, _now_s: turns.append(ports) or LaneTurn(),
        order=lambda order, _now_s: UplinkReport(held=order),
        lapse=lapses.append,
    )
    monkeypatch.setattr(Servers, "of", lambda _conf: SimpleNamespace(ports=ports))
    writer: Any = SimpleNamespace(laned=laned)
    trait = LaneTrait(lambda: writer, lambda: "h1", BackgroundTasks("test"))
    monkeypatch.setattr(lanes, "_trait", lambda _conf: trait)
    conf: Any = SimpleNamespace(
        lanes=LaneOptions(interval_s=0.02, throttle=True),
        placement=SimpleNamespace(enabled=True),
        paths=SimpleNamespace(lane_door=path),
    )
    unit = threading.Thread(target=lanes._loop, args=(conf, keeper, stop))
    unit.start()
    caller = LaneDoorCaller(path)
    try:
        until(lambda: asked.count("ports") > 1 and asked.count("trait") > 1)
        before = len(turns), len(lapses)
        for limit in (70, 60):
            wanted = UplinkReport(held=LaneOrder({"eth0": limit}))
            until(lambda wanted=wanted: caller.order(wanted.held) or caller.answer() == wanted)
        until(lambda: len(turns) > before[0] + 1 and len(lapses) > before[1] + 1)
        assert turns[-1] == (PORT,)
    finally:
        stop.set()
        answers.set()
        unit.join(30)
        caller.close()
    assert not unit.is_alive()


def test_orders_of_the_agent_are_taken_between_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are asked for: the loop does not wait for its next turn."""
    stop = threading.Event()
    path = tmp_path / "lanes.sock"
    caller = LaneDoorCaller(path)
    orders: list[LaneOrder] = []
    lapses: list[float] = []

    def turn(_ports: object, _now_s: float) -> LaneTurn:
        caller.order(LaneOrder({"eth0": 70}))
        return LaneTurn()

    def order(order: LaneOrder, _now_s: float) -> UplinkReport:
        orders.append(order)
        stop.set()
        return UplinkReport(held=order)

    keeper: Any = SimpleNamespace(indexes=frozenset(), turn=turn, order=order, lapse=lapses.append)
    monkeypatch.setattr(Servers, "of", lambda _conf: SimpleNamespace(ports=lambda _now_s: ()))
    conf: Any = SimpleNamespace(
        lanes=LaneOptions(interval_s=60.0, throttle=True),
        placement=SimpleNamespace(enabled=False),
        paths=SimpleNamespace(lane_door=path),
    )
    lanes._loop(conf, keeper, stop)
    assert orders == [LaneOrder({"eth0": 70})]
    assert lapses
    answer = caller.answer()
    assert answer is not None and answer.held.limits == {"eth0": 70}
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (LaneOptions(), LaneOrder()),
        (LaneOptions(throttle=True), LaneOrder({"eth0": 70})),
        (LaneOptions(tune=True), LaneOrder(shares={"eth0": 40})),
        (LaneOptions(throttle=True, tune=True), LaneOrder({"eth0": 70})),
    ],
)
def test_no_order_is_taken_that_its_own_configuration_does_not_allow(
    options: LaneOptions, expected: LaneOrder
) -> None:
    assert lanes.allowed(LaneOrder({"eth0": 70}, {"eth0": 40}), options) == expected


def test_without_uplinks_it_takes_off_what_is_left_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ready before: else systemd takes the end for a failure, and starts it again every two seconds."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify.sock"))
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    manager.bind(str(tmp_path / "notify.sock"))
    file = tmp_path / "agent.conf"
    (tmp_path / "sys").mkdir()
    tool = tmp_path / "nft"
    tool.write_text("#!/bin/sh\necho 'No such file or directory' >&2; exit 1\n")
    tool.chmod(0o755)
    file.write_text(
        f"[agent]\nstate_dir = {tmp_path}\n[host]\nsys = {tmp_path}/sys\n"
        f"[placement]\nenabled = false\n[lanes]\nnft = {tool}\ntc = {tmp_path}/none\n"
    )
    with manager:
        assert lanes.main([f"--config-file={file}", "--reset"]) == 0
        with pytest.raises(BlockingIOError):
            manager.recv(100)
        assert lanes.main([f"--config-file={file}"]) == 0
        assert manager.recv(100) == b"READY=1\nWATCHDOG=1"
        assert manager.recv(100) == b"STOPPING=1"


def test_a_reset_asks_a_placement_that_does_not_answer_once_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service manager bounds how long the end of a unit may take."""
    file = tmp_path / "agent.conf"
    (tmp_path / "sys").mkdir()
    tool = tmp_path / "nft"
    tool.write_text("#!/bin/sh\necho 'No such file or directory' >&2; exit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(lanes, "_LAST_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        file.write_text(
            f"[agent]\nstate_dir = {tmp_path}\n[host]\nname = h1\nsys = {tmp_path}/sys\n"
            "[placement]\nauth_type = none\ntimeout = 1\n"
            f"endpoint = http://127.0.0.1:{silent.getsockname()[1]}\n"
            f"[lanes]\nuplinks = eth0\nnft = {tool}\ntc = {tmp_path}/none\n"
        )
        begun_s = time.monotonic()
        assert lanes.main([f"--config-file={file}", "--reset"]) == 0
        assert time.monotonic() - begun_s < 3.0
    assert "did not answer GET /resource_providers?name=h1 in 1 tries" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["uplinks = a;b", "strict_cap = 1.5", "queue = cake", "speeds_mbps = eth0:fast"]
)
def test_a_configuration_that_cannot_be_used_ends_it_with_78(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    line: str,
) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(f"[agent]\nstate_dir = {tmp_path}\n[lanes]\nuplinks = eth0\n{line}\n")
    assert lanes.main([f"--config-file={file}"]) == 78
    assert line.split(maxsplit=1)[0] in capsys.readouterr().err + caplog.text


def test_the_same_lanes_are_printed_for_switches_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "agent.conf"
    file.write_text("[lanes]\nbest_effort_share = 0.75\n")
    words = [f"--config-file={file}", "--switch", "sonic", "--speed-mbps", "100000"]
    assert lanes.main(words) == 0
    made = capsys.readouterr().out
    assert '"pir": "3750000000"' in made
    own = tmp_path / "config_db.json"
    own.write_text(made)
    assert lanes.main([*words, "--check", str(own)]) == 0
    own.write_text(made.replace('"75"', '"50"'))
    assert lanes.main([*words, "--check", str(own)]) == 1
    assert capsys.readouterr().out == "SCHEDULER/numa_ext_3/weight: 50, not 75\n"
    assert lanes.main([*words, "--check", str(tmp_path / "none")]) == 1
    assert lanes.main([f"--config-file={file}", "--switch", "opensm"]) == 0
    assert "qos_vlarb_low 0:85,2:255\n" in capsys.readouterr().out
