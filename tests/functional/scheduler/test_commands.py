# SPDX-License-Identifier: Apache-2.0
"""``openstack numa …`` against a real Placement; Nova is what the command needs of openstacksdk."""

import io
import json
from types import SimpleNamespace

import pytest
from openstackclient import shell

from nova_numa_ext.osc.cloud import Cloud
from nova_numa_ext.osc.flavor import CheckFlavor
from nova_numa_ext.osc.host import ListHost, ShowHost
from nova_numa_ext.osc.server import ShowServer
from nova_numa_ext.osc.simulate import Simulate
from placement_traits.names import NeighbourTrait
from placement_traits.tree import L3State
from tests.functional.scheduler.conftest import BE, LC


class Compute:
    """Flavors and servers by name."""

    default_microversion = None

    def __init__(self, flavors, servers=()):
        self.flavors = {flavor.name: flavor for flavor in flavors}
        self.servers = {server.name: server for server in servers}

    def find_flavor(self, name, **_options):
        return self.flavors[name]

    def find_server(self, name, **_options):
        return self.servers[name]

    def get_server(self, uuid):
        return next(server for server in self.servers.values() if server.id == uuid)


def flavor(name, extra_specs):
    return SimpleNamespace(name=name, extra_specs=extra_specs, vcpus=1, ram=512)


def run(command_class, cloud, compute, *arguments):
    """Run a command as the shell does, with JSON output; returns (exit code, parsed output)."""
    connection = SimpleNamespace(placement=cloud.adapter, compute=compute)
    app = SimpleNamespace(
        client_manager=SimpleNamespace(numa=Cloud(connection)), stdout=io.StringIO()
    )
    command = command_class(app, None)
    parsed = command.get_parser("numa").parse_args([*arguments, "-f", "json"])
    code = command.run(parsed)
    return code, json.loads(app.stdout.getvalue())


def test_the_list_shows_what_each_host_has_and_has_given_away(cloud):
    cloud.host("h1")
    cloud.publish("h1", state={1: L3State(frozenset({NeighbourTrait.LC}))})
    cloud.host("h2", rdt=False)
    cloud.host("not-ours", agent=False)
    cloud.boot(LC)
    code, rows = run(ListHost, cloud, Compute([]))
    assert code == 0
    assert [row["Host"] for row in rows] == ["h1", "h2"]
    assert rows[0]["Tiers"] == "LC BE"
    assert (rows[0]["CLOS"], rows[0]["Ways"], rows[0]["Neighbours"]) == ("1/6", "4/52", "LC")
    assert (rows[1]["Tiers"], rows[1]["CLOS"]) == ("BE", "-")


def test_a_host_is_a_tree_of_providers_in_words(cloud):
    cloud.host("h1")
    cloud.boot(LC)
    _, rows = run(ShowHost, cloud, Compute([]), "h1")
    by_name = {row["Provider"].strip(): row for row in rows}
    assert rows[0]["Provider"] == "h1"
    assert rows[1]["Provider"].startswith("  h1:")
    assert "PCPU 1/8" in by_name["h1"]["Resources"]
    assert "4 nodes" in by_name["h1"]["Traits"]
    assert "CUSTOM_LLC_WAY 4/13" in by_name["h1:l3_0"]["Resources"]
    for words in ("L3 0", "node 0", "socket 0"):
        assert words in by_name["h1:l3_0"]["Traits"]


def test_a_server_shows_what_it_asked_and_what_it_holds(cloud):
    cloud.host("h1", used={0: (1, 0), 1: (1, 0), 3: (1, 0)})
    cloud.boot(LC)
    lc = flavor("lc.small", {**LC, "numa_ext:slo_p99_us": "500"})
    server = SimpleNamespace(
        name="web",
        id=cloud.last_servers[0],
        status="ACTIVE",
        hypervisor_hostname="h1",
        compute_host="h1",
        flavor=lc,
    )
    _, shown = run(ShowServer, cloud, Compute([], [server]), "web")
    assert (shown["tier"], shown["host"], shown["slo_p99_us"]) == ("LC", "h1", 500)
    assert (shown["l3_domains"], shown["l3_ways"], shown["numa_nodes"]) == ("h1:l3_2", 4, "2")
    assert shown["classes_of_service"] == 1


@pytest.mark.parametrize(
    ("extra_specs", "code", "result", "words"),
    [
        (LC, 0, "ok", "tier LC"),
        ({"hw:numa_nodes": "1"}, 0, "none", "says nothing"),
        ({**BE, "numa_ext:slo_p99_us": "5"}, 1, "wrong", "are for numa_ext:tier=LC only"),
        ({"numa_ext:teir": "LC"}, 1, "wrong", "did you mean numa_ext:tier?"),
    ],
)
def test_a_flavor_is_checked_with_the_same_sentences(cloud, extra_specs, code, result, words):
    answer, rows = run(CheckFlavor, cloud, Compute([flavor("f", extra_specs)]), "f")
    assert (answer, rows[0]["Result"]) == (code, result)
    assert words in rows[0]["Says"]


def test_a_what_if_names_what_each_host_lacks(cloud):
    cloud.host("h1", rdt=False)
    cloud.host("h2")
    cloud.host("h3")
    cloud.boot({**LC, "hw:numa_nodes": "1"}, vcpus=2, count=4)
    wanted = flavor("big", {**LC, "resources_NODE:CUSTOM_LLC_WAY": "13"})
    code, rows = run(Simulate, cloud, Compute([wanted]), "--flavor", "big")
    assert code == 0
    assert [row["Possible"] for row in rows][-1] == "no"
    by_host = {row["Host"]: row["Lacks"] for row in rows}
    assert "classes of service free: 0, wanted: 1" in by_host["h1"]


def test_openstackclient_finds_the_commands(capsys):
    commands = (
        ["host", "list"],
        ["host", "show"],
        ["server", "show"],
        ["flavor", "check"],
        ["simulate"],
    )
    for words in commands:
        assert shell.main(["help", "numa", *words]) == 0
        assert f"numa {' '.join(words)}" in capsys.readouterr().out
