# SPDX-License-Identifier: Apache-2.0
"""Agents that compare cables with the fabric in the real Placement, by an lldpcli that prints what a test gives it."""

import json
import sys
from pathlib import Path

import pytest

from emulation.hosts import four_nodes
from host_agent.conf import configuration
from host_agent.conf.cables import CableOptions
from host_agent.conf.options import Options
from host_agent.console import doctor
from host_agent.model.assignment import Observation
from host_agent.model.round import Round
from host_agent.observe import cables
from host_agent.report import published_host
from host_agent.report.cabling import CableCheck
from host_agent.report.metrics import Metrics
from host_agent.report.publisher import PublishedFacts, Publisher
from placement_traits import names
from placement_traits.errors import CapabilityMissingError, InvalidValueError
from placement_traits.fabric import Fabric, FabricKind, FabricNode
from placement_traits.fabric_tree import FabricWriter
from placement_traits.findings import Level
from placement_traits.reporter import Reporter
from tests.support.placement_side import GivenPlacement

PLAN = Fabric(
    "train",
    FabricKind.ETHERNET,
    ("leaf",),
    {leaf: FabricNode(leaf, "leaf") for leaf in ("leaf-r01", "leaf-r02")},
    {"h1": "leaf-r01", "h2": "leaf-r02"},
)


class Lldpd:
    """Neighbours of a host, shown by a program in the place of lldpcli.

    :param folder: for it, and for sysfs with the interfaces that have a device
    """

    def __init__(self, folder: Path) -> None:
        self.sys, self.program, self._shown = folder / "sys", folder / "lldpcli", folder / "shown"
        for name in ("ens1f0", "ens1f1"):
            (self.sys / "class/net" / name / "device").mkdir(parents=True)
        (self.sys / "class/net/tap0").mkdir()
        self.runs(f"print(open({str(self._shown)!r}).read())")

    def runs(self, text: str) -> None:
        self.program.write_text(f"#!{sys.executable}\n{text}\n")
        self.program.chmod(0o755)

    def hears(self, **system_of: str) -> None:
        """Switches by interface, each on port Ethernet7."""
        entries = [
            {
                interface: {
                    "chassis": {system: {"id": {"type": "mac", "value": "52:54:00:12:34:56"}}},
                    "port": {"id": {"type": "ifname", "value": "Ethernet7"}, "ttl": "120"},
                }
            }
            for interface, system in system_of.items()
        ]
        self._shown.write_text(json.dumps({"lldp": {"interface": entries}}))

    def options(self, **more) -> CableOptions:
        return CableOptions(**{"lldp": True, "lldpcli": self.program} | more)

    def heard(self, **more):
        return cables.heard(self.options(**more), self.sys)


@pytest.fixture
def lldpd(tmp_path):
    """A host that has heard nothing yet."""
    made = Lldpd(tmp_path)
    made.hears()
    return made


class Agent:
    """A host's agent: publishes, and compares cables at each pass."""

    def __init__(self, cloud, host, folder, lldpd=Lldpd):
        folder.mkdir()
        self.cloud, self.host, self.lldpd = cloud, host, lldpd(folder)
        client = cloud.connect()
        check = CableCheck(self.lldpd.heard, lambda: (client, Reporter(client)))
        self.publisher = Publisher(
            Options(),
            GivenPlacement(Reporter(cloud.connect()), host),
            Metrics(),
            PublishedFacts(cables=check),
        )
        self.publisher.on_round(Round(Observation(four_nodes())))

    def turn(self, **system_of):
        """One pass with these neighbours; whether the host is marked then."""
        self.lldpd.hears(**system_of)
        return self.passed()

    def passed(self):
        """One pass with what lldpcli shows; whether the host is marked then."""
        assert self.publisher.publish_once()
        root = self.cloud.client.provider_named(self.host)["uuid"]
        traits = self.cloud.client.get(f"/resource_providers/{root}/traits")["traits"]
        return names.MISCABLED in traits


@pytest.fixture
def agents(empty_cloud, tmp_path):
    """A fabric of two leafs, and a host on each::

    net:train ── net:train:leaf-r01, net:train:leaf-r02
    h1        CUSTOM_NUMA_EXT_LEAF_TRAIN_LEAF_R01
    h2        CUSTOM_NUMA_EXT_LEAF_TRAIN_LEAF_R02
    """
    for host in PLAN.hosts:
        empty_cloud.compute(host)
    assert FabricWriter(empty_cloud.client).apply(PLAN).problems == ()
    return [Agent(empty_cloud, host, tmp_path / host) for host in PLAN.hosts]


def test_hosts_with_swapped_cables_leave_groups_until_the_cables_are_right(agents):
    """Design 8.4, check 13: within one pass; names count with and without their domain."""
    h1, h2 = agents
    assert not h1.turn(ens1f0="leaf-r01.example.org", ens1f1="mgmt-3")
    assert not h2.turn(ens1f0="leaf-r02")
    assert h1.turn(ens1f0="leaf-r02", ens1f1="mgmt-3")
    assert h1.publisher._problems == (
        "LLDP says leaf-r02 port Ethernet7, the plan says CUSTOM_NUMA_EXT_LEAF_TRAIN_LEAF_R01: "
        "no group is placed here.",
    )
    assert h2.turn(ens1f0="leaf-r01")
    assert not h1.turn(ens1f0="leaf-r01")
    assert not h2.turn(ens1f0="mgmt-3", ens1f1="leaf-r02")


def test_what_is_not_known_changes_nothing(agents):
    """Strangers, silence, a guest that plays a leaf, and an lldpd that does not answer."""
    h1, _ = agents
    for heard in ({"ens1f0": "mgmt-3"}, {}, {"tap0": "leaf-r02"}):
        assert not h1.turn(**heard)
    assert h1.turn(ens1f0="leaf-r02")
    for heard in ({"ens1f0": "mgmt-3"}, {}, {"tap0": "leaf-r01"}):
        assert h1.turn(**heard)
    h1.lldpd.runs("raise SystemExit(3)")
    assert h1.turn()
    assert h1.publisher._problems[0].startswith("The cables of this host are not compared.")


def test_placement_is_asked_once_more_while_the_own_leaf_is_heard(agents):
    h1, _ = agents
    h1.turn(ens1f0="leaf-r01")
    client, (asked, _) = h1.publisher._writer._client, h1.publisher._facts.cables._made
    before = client.counters.requests, asked.counters.requests
    assert not h1.turn(ens1f0="leaf-r01")
    assert (client.counters.requests, asked.counters.requests) == (before[0] + 1, before[1] + 1)


def test_a_switch_whose_name_ends_a_leafs_is_not_that_leaf(agents):
    """The trait of leaf-r01 ends in _R01, too."""
    h1, _ = agents
    assert h1.turn(ens1f0="leaf-r02")
    assert h1.turn(ens1f0="r01"), "a stranger changes nothing"
    assert h1.turn(ens1f0="leaf-r02", ens1f1="r01")


def test_a_host_on_no_leaf_is_not_compared(empty_cloud, tmp_path):
    empty_cloud.compute("h3")
    h3 = Agent(empty_cloud, "h3", tmp_path / "h3")
    h3.lldpd.runs("raise SystemExit(3)")
    assert not h3.turn()
    assert h3.publisher._problems == ()


def test_the_doctor_says_what_is_heard_and_planned(agents, tmp_path):
    h1, _ = agents
    h1.turn(ens1f0="leaf-r01")
    file = tmp_path / "agent.conf"
    file.write_text(
        f"[host]\nsys = {h1.lldpd.sys}\n[agent]\nstate_dir = {tmp_path}\n"
        f"[cables]\nlldp = true\nlldpcli = {h1.lldpd.program}\n"
    )
    conf = configuration.load([f"--config-file={file}"])

    def line():
        found = doctor._cabled(conf, h1.cloud.connect())
        return found.level, found.detail

    assert line() == (Level.DEGRADED, "not compared: the agent has published nothing yet")
    published_host.store(conf.paths.published).save("h1")
    assert line() == (Level.GOOD, "h1: LLDP says leaf-r01 port Ethernet7, as planned")
    h1.turn(ens1f0="leaf-r02")
    level, detail = line()
    assert level is Level.DEGRADED
    assert detail.startswith("h1: LLDP says leaf-r02 port Ethernet7, the plan says CUSTOM_NUMA_EXT")
    h1.lldpd.hears(ens1f0="mgmt-3")
    assert line()[1].startswith("h1: LLDP says nothing of a leaf, the plan says")
    h1.lldpd.runs("raise SystemExit(3)")
    assert line()[1].startswith("not compared:")


def test_interfaces_that_count_are_those_with_a_device_or_those_that_are_named(lldpd):
    lldpd.hears(ens1f0="leaf-r01", tap0="leaf-r02", bond0="leaf-r01")
    assert [each.interface for each in lldpd.heard()] == ["ens1f0"]
    assert [each.interface for each in lldpd.heard(interfaces=("tap0",))] == ["tap0"]
    lldpd.hears(**{"../../ens1f0": "leaf-r01"})
    assert lldpd.heard() == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys; sys.exit('cannot connect to lldpd socket')", "cannot connect.*_lldpd"),
        ("print('{')", "prints no JSON"),
        ("import time; time.sleep(9)", "timed out"),
    ],
)
def test_a_program_that_fails_is_a_sentence(lldpd, text, words):
    lldpd.runs(text)
    with pytest.raises(CapabilityMissingError, match=words):
        lldpd.heard(timeout_s=1.0 if "sleep" in text else 30.0)


def test_another_form_is_a_sentence_and_so_is_no_program(lldpd, tmp_path):
    lldpd.runs("print('[]')")
    with pytest.raises(InvalidValueError, match="neighbours of this host"):
        lldpd.heard()
    with pytest.raises(CapabilityMissingError, match="none"):
        lldpd.heard(lldpcli=tmp_path / "none")
