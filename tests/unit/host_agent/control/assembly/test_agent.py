# SPDX-License-Identifier: Apache-2.0
"""The agent put together: parts that have to know of each other do."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emulation.hosts import four_nodes
from emulation.servers import LC_SPECS, Server
from host_agent.conf import configuration
from host_agent.conf.slo import BalmOptions
from host_agent.control.assembly import agent as assembly
from host_agent.control.assembly import observer, publisher, slo
from host_agent.control.slo import SloController
from host_agent.control.uplink_throttle import UplinkThrottle
from host_agent.decide.slo.uplink import Ceiling, UplinkKnob
from host_agent.decide.slo.weights import Weights
from placement_traits.names import NeighbourTrait
from placement_traits.tree import ProviderTree
from tests.support.fake_host import FakeHost

CONF = """
[agent]
state_dir = {folder}
[host]
name = h1
resctrl = {folder}/none
[placement]
enabled = true
"""


def built(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> assembly.Parts:
    """The agent of a host without servers, with a configuration; credentials are not looked at."""
    host = FakeHost(four_nodes())
    monkeypatch.setattr(observer, "topology_reader", lambda *_: lambda: host.topology)
    monkeypatch.setattr(publisher, "check_credentials", lambda _conf: None)
    (folder / "agent.conf").write_text(text)
    conf = configuration.load([f"--config-file={folder}/agent.conf"])
    return assembly.build(conf, out=print, source=host, privileged=host)


def test_placement_is_told_what_the_bandwidth_controller_cannot_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, reported = FakeHost(four_nodes()), list[ProviderTree]()
    lc = host.boot(Server("lc", {**LC_SPECS, "numa_ext:slo_p99_us": "1000"}, cpus=(1,)))
    done = SimpleNamespace(changes=(), problems=(), root_traits=frozenset())
    writer = SimpleNamespace(
        sync=lambda tree: reported.append(tree) or done,
        root_traits=lambda _host: frozenset(),
    )
    monkeypatch.setattr(observer, "topology_reader", lambda *_: lambda: host.topology)
    monkeypatch.setattr(publisher, "make_reporter", lambda _conf: writer)
    monkeypatch.setattr(SloController, "unsatisfiable", lambda _self: frozenset({lc.uuid}))
    (tmp_path / "agent.conf").write_text(CONF.format(folder=tmp_path))
    conf = configuration.load([f"--config-file={tmp_path}/agent.conf"])
    parts = assembly.build(conf, out=print, source=host, privileged=host)
    assert parts.publisher is not None
    assert parts.publisher.look()
    parts.agent.round(full=True, relist=True)
    parts.publisher.publish_once()
    domain = reported[0].child("h1:l3_0")
    assert domain is not None
    assert NeighbourTrait.UNMET_SLO in domain.traits


@pytest.mark.parametrize(
    ("lanes", "expected"),
    [
        ("", None),
        ("throttle = true", Ceiling(0.5)),
        ("tune = true", Weights(0.5, 0.25)),
        ("throttle = true\ntune = true", Ceiling(0.5)),
    ],
)
def test_best_effort_servers_of_uplinks_are_held_where_the_operator_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: str, expected: UplinkKnob | None
) -> None:
    made: list[Path] = []
    knobs: list[UplinkKnob] = []
    monkeypatch.setattr(slo, "LaneDoorCaller", lambda path: made.append(path) or Unit())
    throttle = UplinkThrottle

    def noted(options: BalmOptions, knob: UplinkKnob, *given: Any, **more: Any) -> UplinkThrottle:
        knobs.append(knob)
        return throttle(options, knob, *given, **more)

    monkeypatch.setattr(slo, "UplinkThrottle", noted)
    text = CONF.format(folder=tmp_path).replace("true", "false")
    shares = "strict_cap = 0.5\nbest_effort_share = 0.5\n"
    parts = built(tmp_path, monkeypatch, f"{text}[lanes]\n{shares}{lanes}\n")
    assert made == ([tmp_path / "lanes.sock"] if expected else [])
    assert knobs == ([expected] if expected else [])
    parts.agent.round(full=True, relist=True)
    assert parts.slo is not None
    parts.slo.close()


@pytest.mark.parametrize(
    ("lanes", "placement", "expected"),
    [
        ("throttle = true\nleaf = true", True, True),
        ("throttle = true\nleaf = true", False, False),
        ("throttle = true", True, False),
        ("leaf = true", True, False),
        ("tune = true\nleaf = true", True, False),
    ],
)
def test_a_leaf_is_spoken_with_where_the_operator_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: str, placement: bool, expected: bool
) -> None:
    made: list[object] = []
    monkeypatch.setattr(slo, "LaneDoorCaller", lambda _path: Unit())
    monkeypatch.setattr(slo, "LeafExchange", lambda *given: made.append(given))
    text = CONF.format(folder=tmp_path).replace("true", str(placement))
    parts = built(tmp_path, monkeypatch, f"{text}[lanes]\n{lanes}\n")
    assert bool(made) is expected
    assert parts.slo is not None
    parts.slo.close()


@pytest.mark.parametrize("levels", [True, False])
def test_peers_are_asked_for_where_the_operator_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, levels: bool
) -> None:
    made: list[object] = []
    monkeypatch.setattr(assembly, "KnownPeers", made.append)
    text = CONF.format(folder=tmp_path)
    parts = built(tmp_path, monkeypatch, f"{text}[network]\nlevels = {levels}\n")
    assert bool(made) is levels
    assert parts.slo is not None
    parts.slo.close()


class Unit:
    """A unit of lanes that is not there."""

    def order(self, _limits: object) -> None:
        """Nothing hears it."""

    def answer(self) -> None:
        """None has come."""

    def close(self) -> None:
        """Nothing is open."""


def test_failures_of_each_part_are_counted_from_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(four_nodes())
    monkeypatch.setattr(observer, "topology_reader", lambda *_: lambda: host.topology)
    (tmp_path / "agent.conf").write_text(CONF.format(folder=tmp_path).replace("true", "false"))
    conf = configuration.load([f"--config-file={tmp_path}/agent.conf"])
    parts = assembly.build(conf, out=print, source=host, privileged=host)
    parts.agent.round(full=True, relist=True)
    found = {(metric.name, *labels): value for metric, labels, value in parts.metrics.samples()}
    refiners = {labels[0] for name, *labels in found if name == "numa_ext_refiner_failures"}
    listeners = {labels[0] for name, *labels in found if name == "numa_ext_listener_failures"}
    assert {"balancing", "balm"} <= refiners
    assert {"Metrics", "InControl", "Costs", "SloController"} <= listeners
    assert {found["numa_ext_listener_failures", name] for name in listeners} == {0}
