# SPDX-License-Identifier: Apache-2.0
"""``openstack numa …`` against a real Placement; Nova is what the command needs of openstacksdk."""

import io
import json
import re
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from nova.exception import NoValidHost
from openstack.exceptions import ForbiddenException
from openstackclient import shell
from osc_lib.exceptions import CommandError

from nova_numa_ext.cli.capacity import ListCapacity, ShowCapacity
from nova_numa_ext.cli.cloud import Cloud
from nova_numa_ext.cli.doctor_command import Doctor
from nova_numa_ext.cli.flavor import CheckFlavor
from nova_numa_ext.cli.host import ListHost, SetHost, ShowHost
from nova_numa_ext.cli.maintenance import DrainHost, RemoveHost, UndrainHost
from nova_numa_ext.cli.server import ShowServer
from nova_numa_ext.cli.simulate import Simulate, SimulateTrace
from nova_numa_ext.cli.topology import ShowTopology
from placement_traits import names
from placement_traits.beats import SILENT_AFTER_MINUTES, BeatWriter
from placement_traits.errors import InvalidValueError
from placement_traits.names import NeighbourTrait, ObserveTrait, Tier
from placement_traits.offers import L3State
from placement_traits.reporter import Reporter
from placement_traits.server_costs import CostWriter
from tests.functional.scheduler.conftest import BE, LC, STRICT_RABBIT
from tests.support.commands import Compute, as_table, flavor, run, running_server

GUARDED = {**LC, "trait:CUSTOM_NUMA_EXT_TIER_LC": "required"}
CALM = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


def beat(cloud, *hosts, minutes_ago=0):
    """Let the agents of hosts beat, now or some time ago."""
    for host in hosts:
        BeatWriter(cloud.placement, host, lambda: time.time() - 60 * minutes_ago).beat()


def test_the_list_shows_what_each_host_has_and_has_given_away(cloud):
    cloud.host("h1")
    cloud.publish("h1", state={1: L3State(frozenset({NeighbourTrait.LC}))})
    cloud.host("h2", rdt=False)
    cloud.host("not-ours", agent=False)
    beat(cloud, "h1")
    cloud.boot(LC)
    code, rows = run(ListHost, cloud, Compute([]))
    assert code == 0
    assert [row["Agent"] for row in rows] == ["reporting", "silent, last beat never"]
    assert [row["Host"] for row in rows] == ["h1", "h2"]
    assert rows[0]["Tiers"] == "LC BE"
    assert (rows[0]["CLOS"], rows[0]["Ways"], rows[0]["Neighbours"]) == ("1/6", "4/52", "LC")
    assert (rows[1]["Tiers"], rows[1]["CLOS"]) == ("BE", "-")


def test_agents_of_a_fleet_get_modes_and_the_list_shows_who_obeys(cloud):
    for name in ("h1", "h2", "h3"):
        cloud.host(name)
    code, rows = run(SetHost, cloud, Compute([]), "h1", "--mode", "observe")
    assert (code, rows) == (0, [{"Host": "h1", "Mode": "observe", "Result": "set"}])
    cloud.publish("h1", observed=frozenset(ObserveTrait))
    cloud.publish("h3", observed=frozenset({ObserveTrait.RDT, ObserveTrait.SLO}))
    _, rows = run(SetHost, cloud, Compute([]), "--all", "--mode", "observe")
    assert [row["Host"] for row in rows] == ["h2", "h3"], "h1 has it already"

    def shown():
        return [row["Mode"] for row in run(ListHost, cloud, Compute([]))[1]]

    waits = "observe, not obeyed yet"
    assert shown() == ["observe", waits, waits]
    _, rows = run(SetHost, cloud, Compute([]), "h1", "h2", "h3", "--mode", "enforce")
    assert {row["Result"] for row in rows} == {"set"}
    assert shown() == ["observe (its options)", "enforce", "observe rdt slo"]
    assert run(SetHost, cloud, Compute([]), "--all", "--mode", "enforce") == (0, [])


def test_a_host_shows_what_its_objectives_cost_others(cloud):
    cloud.host("h1")
    assert run(ShowHost, cloud, Compute([]), "h1", "--costs") == (0, [])
    cloud.boot(LC)
    held_by = cloud.last_servers[0]
    cloud.boot(BE)
    BeatWriter(cloud.placement, "h1", lambda: 60 * 29_000_000).beat(123)
    CostWriter(cloud.placement, "h1").write({held_by: 81})
    _, rows = run(ShowHost, cloud, Compute([]), "h1", "--costs")
    ways, its_own, bandwidth = rows
    assert ways["Server"] == held_by
    assert (ways["Where"][:5], ways["Withheld"]) == ("h1:l3", "4 of 13 ways")
    assert bandwidth == {
        "Server": "all servers",
        "Where": "h1, at the beat of 2025-02-19 21:20 UTC",
        "Withheld": "12.3 % of best-effort servers' memory bandwidth at most",
    }
    assert its_own == bandwidth | {
        "Server": held_by,
        "Withheld": "8.1 % of best-effort servers' memory bandwidth at most",
    }


def test_hosts_that_get_a_mode_are_named_or_all(cloud):
    cloud.host("h1")
    for arguments in ((), ("h1", "--all")):
        with pytest.raises(CommandError, match="Name hosts, or give --all"):
            run(SetHost, cloud, Compute([]), *arguments, "--mode", "observe")
    with pytest.raises(InvalidValueError, match=r"host: 'h9' is not allowed; allowed: h1$"):
        run(SetHost, cloud, Compute([]), "h1", "h9", "--mode", "observe")
    assert run(ListHost, cloud, Compute([]))[1][0]["Mode"] == "enforce", "nothing is done by half"


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


def test_tables_are_not_wider_than_a_wide_terminal_and_uuids_are_for_long(cloud):
    host = cloud.host("h1")
    cloud.host("h2", rdt=False)
    shown = as_table(ShowHost, cloud, Compute([]), "h1")
    lacks = as_table(Simulate, cloud, Compute([flavor("big", LC)]), "--flavor", "big")
    for table in (shown, lacks):
        assert max(map(len, table.splitlines())) <= 160
    assert host.uuid not in shown
    assert host.uuid in as_table(ShowHost, cloud, Compute([]), "h1", "--long")
    assert run(ShowHost, cloud, Compute([]), "h1")[1][0]["UUID"] == host.uuid


def test_a_host_that_is_not_there_is_answered_by_those_that_are(cloud):
    cloud.host("h1")
    for unknown in ("h9", "11111111-1111-1111-1111-111111111111"):
        with pytest.raises(
            InvalidValueError, match=f"host: '{unknown}' is not allowed; allowed: h1$"
        ):
            run(ShowHost, cloud, Compute([]), unknown)


def test_of_many_hosts_an_unknown_one_is_answered_by_the_nearest(cloud, monkeypatch):
    many = {f"compute-{number:04}": "" for number in range(1000)}
    monkeypatch.setattr("nova_numa_ext.cli.cloud.hosts", lambda _placement: many)
    with pytest.raises(InvalidValueError) as refused:
        run(ShowHost, cloud, Compute([]), "compute-123")
    told = str(refused.value)
    assert "compute-0123" in told
    assert told.count("compute-") == 1 + 20
    assert told.endswith(" and 980 more")


def test_a_server_shows_what_it_asked_and_what_it_holds(cloud):
    cloud.host("h1", used={0: (1, 0), 1: (1, 0), 3: (1, 0)})
    cloud.boot(LC)
    lc = flavor("lc.small", {**LC, "numa_ext:slo_p99_us": "500"})
    web = running_server("web", cloud.last_servers[0], "h1", lc)
    _, shown = run(ShowServer, cloud, Compute([], [web]), "web")
    assert (shown["tier"], shown["host"], shown["slo_p99_us"]) == ("LC", "h1", 500)
    assert (shown["l3_domains"], shown["l3_ways"], shown["numa_nodes"]) == ("h1:l3_2", 4, "2")
    assert (shown["classes_of_service"], shown["llc_neighbourhood"]) == (1, 0)


@pytest.mark.parametrize(
    ("extra_specs", "code", "result", "words"),
    [
        (GUARDED, 0, "ok", "tier LC"),
        (LC, 0, "warning", "trait:CUSTOM_NUMA_EXT_TIER_LC=required is missing"),
        ({"hw:numa_nodes": "1"}, 0, "none", "has no key of numa_ext"),
        ({**BE, "numa_ext:slo_p99_us": "5"}, 1, "wrong", "are for numa_ext:tier=LC only"),
        ({"numa_ext:teir": "LC"}, 1, "wrong", "did you mean numa_ext:tier?"),
        ({"numa-ext:tier": "LC"}, 1, "wrong", "did you mean numa_ext:tier?"),
        ({"NUMA_EXT:tier": "LC"}, 1, "wrong", "did you mean numa_ext:tier?"),
        (
            {**BE, "resources_NODE:CUSTOM_LLC_WAYS": "4"},
            1,
            "wrong",
            "did you mean resources_NODE:CUSTOM_LLC_WAY?",
        ),
        ({**BE, "hw:numa_mempages": "1", "resources:CUSTOM_GPU": "1"}, 0, "ok", "tier BE"),
        (
            {"pci_passthrough:alias": "gpu:2", "numa_ext:gpu_comm": "4"},
            0,
            "ok",
            "devices: 2, GPUs by policy topo with gpu_comm 4, min_utility 0",
        ),
        (GUARDED, 0, "ok", "openstack numa simulate --flavor f"),
        ({**GUARDED, **STRICT_RABBIT}, 0, "ok", "strict rabbit"),
        (
            {**STRICT_RABBIT, "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1"},
            1,
            "wrong",
            "rabbit needs CUSTOM_LLC_NEIGHBOURHOOD=1000 in each of its groups",
        ),
    ],
)
def test_a_flavor_is_checked_with_the_same_sentences(cloud, extra_specs, code, result, words):
    answer, rows = run(CheckFlavor, cloud, Compute([flavor("f", extra_specs)]), "f")
    assert (answer, rows[0]["Result"]) == (code, result)
    assert words in rows[0]["Findings"]


def test_a_flavor_is_checked_together_with_an_image(cloud):
    """The image brings the dedicated CPUs and the NUMA node without which nothing isolates an LC server."""
    bare = {key: value for key, value in GUARDED.items() if not key.startswith("hw:")}
    image = {"hw_cpu_policy": "dedicated", "hw_numa_nodes": "1", "id": "pinned"}
    nova = Compute([flavor("f", bare)], image=image)
    assert run(CheckFlavor, cloud, nova, "f")[0] == 1
    code, [row] = run(CheckFlavor, cloud, nova, "f", "--image", "pinned")
    assert (code, row["Result"]) == (0, "ok")


@pytest.mark.parametrize(
    ("source", "agent", "words"),
    [
        ({}, None, "only [slo]prometheus_url is left"),
        ({"numa_ext:slo_source": "auto"}, "no", "no image with hw_qemu_guest_agent=yes is given"),
        ({"numa_ext:slo_source": "auto"}, "yes", None),
        ({"numa_ext:slo_source": "channel"}, None, "nothing else is read"),
        ({"numa_ext:slo_source": "channel"}, "True", None),
        ({"numa_ext:slo_source": "prometheus"}, None, None),
        ({"numa_ext:slo_source": "none"}, "yes", "nothing reads the latency"),
    ],
)
def test_an_objective_that_nothing_known_here_could_watch_is_warned_of(cloud, source, agent, words):
    specs = {**GUARDED, "numa_ext:slo_p99_us": "500", **source}
    image = {"hw_qemu_guest_agent": agent, "id": "i"} if agent else {"id": "i"}
    nova = Compute([flavor("f", specs)], image=image)
    code, [row] = run(CheckFlavor, cloud, nova, "f", "--image", "i")
    assert (code, row["Result"]) == (0, "warning" if words else "ok")
    assert (words or "tier LC") in row["Findings"]


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
    assert "classes of service free: 0, requested: 1" in by_host["h1"]


def test_a_what_if_compares_the_hosts_term_by_term(cloud):
    """Best-effort servers live on h1, h2 is empty, h3 has no RDT."""
    for name in ("h1", "h2"):
        cloud.host(name)
    cloud.host("h3", rdt=False)
    best_effort = L3State(frozenset({NeighbourTrait.BE}))
    cloud.publish("h1", state=dict.fromkeys(range(4), best_effort))
    _, rows = run(Simulate, cloud, Compute([flavor("lc", LC)]), "--flavor", "lc")
    assert [row["Host"] for row in rows] == ["h2", "h1", "h3"]
    best, second, without = rows
    assert float(best["Score"]) > float(second["Score"])
    assert "neighbours 1.00" in best["Terms"]
    assert "neighbours 0.50" in second["Terms"]
    assert "ways 0.69" in best["Terms"]
    assert (without["Score"], without["Terms"]) == ("-", "-")


def test_a_what_if_weights_terms_by_default_options_and_by_aggregates(cloud, capsys):
    """There is no nova.conf here, which is said. On h1 an aggregate makes nobody mind best-effort neighbours."""
    hosts = [cloud.host(name) for name in ("h1", "h2")]
    best_effort = L3State(frozenset({NeighbourTrait.BE}))
    for name in ("h1", "h2"):
        cloud.publish(name, state=dict.fromkeys(range(4), best_effort))
    calm = {"numa_ext_neighbours_multiplier": "0"}
    cloud.aggregate(CALM, hosts[0])
    compute = Compute([flavor("lc", LC)], aggregates={CALM: calm, "other": {"ssd": "true"}})
    _, [best, second] = run(Simulate, cloud, compute, "--flavor", "lc")
    ways = (13 - 4) / 13
    assert (best["Host"], best["Score"]) == ("h1", f"{(0.5 * ways + 0.5) / 1:.3f}")
    assert (second["Host"], second["Score"]) == ("h2", f"{(0.5 * ways + 0.5 + 0.5) / 2:.3f}")
    assert "default multipliers" in capsys.readouterr().err


def test_a_what_if_goes_on_for_a_user_who_may_not_see_aggregates(cloud, capsys, monkeypatch):
    cloud.host("h1")
    compute = Compute([flavor("lc", LC)])
    monkeypatch.setattr(compute, "aggregates", Mock(side_effect=ForbiddenException))
    code, [row] = run(Simulate, cloud, compute, "--flavor", "lc")
    assert (code, row["Host"]) == (0, "h1")
    assert "may not list nova's host aggregates" in capsys.readouterr().err


def test_a_what_if_knows_what_is_free_on_all_hosts_without_asking_one_by_one(cloud):
    """L3: CPUs and memory were asked of the first fifty hosts by name only; all others were "yes"."""
    for name in ("h1", "h2"):
        cloud.host(name)
    cloud.boot(BE, vcpus=1, memory_mb=8192)
    asked, request = [], cloud.adapter.request
    cloud.adapter.request = lambda url, *a, **k: (asked.append(url), request(url, *a, **k))[1]
    wanted = flavor("big", BE)
    wanted.ram = 4096
    _, rows = run(Simulate, cloud, Compute([wanted]), "--flavor", "big")
    assert sorted((row["Possible"], row["Lacks"]) for row in rows) == [
        ("no", "memory free: 0 MiB, requested: 4096 MiB"),
        ("yes", ""),
    ]
    assert not [url for url in asked if "/inventories" in url or "/usages" in url]


def test_a_host_with_an_older_agent_is_asked_what_is_free(cloud):
    """It publishes no probe, so it is in no answer about many hosts."""
    cloud.host("h1")
    rdt = f"/resource_providers/{cloud.provider('h1:rdt')}/inventories"
    body = cloud.placement.get(rdt)
    del body["inventories"][names.PROBE]
    cloud.placement.put(rdt, body)
    _, shown = run(ShowCapacity, cloud, Compute([flavor("be", BE)]), "be")
    assert shown["fits"] == 8192 // 512


def test_capacity_is_how_many_nova_takes_and_names_what_stops_it(cloud):
    cloud.host("h1")
    cloud.host("h2", rdt=False)
    nova = Compute([flavor("lc", LC)])
    _, shown = run(ShowCapacity, cloud, nova, "lc")
    assert (shown["fits"], shown["hosts"], shown["hosts_with_room"]) == (6, 2, 1)
    _, [most, none] = run(ListCapacity, cloud, nova, "lc")
    assert (most["Host"], most["Fits"], most["In the way"]) == ("h1", 6, "classes_of_service")
    assert most["Limits"].startswith(
        "dedicated_cpus 8, memory_mb 16, classes_of_service 6, l3_ways"
    )
    assert (none["Host"], none["Fits"]) == ("h2", 0)
    assert "tier" in none["In the way"]
    ways = {"what": "classes_of_service", "hosts": 2, "more": 8 - 6}
    assert ways in shown["in_the_way"]
    assert "NUMA cells" in shown["unknown"]
    cloud.boot(LC, count=6)
    assert run(ShowCapacity, cloud, nova, "lc")[1]["fits"] == 0
    with pytest.raises(NoValidHost):
        cloud.boot(LC)


def test_a_host_whose_nova_compute_is_disabled_has_no_room_and_is_named(cloud):
    """Nova gives it the trait; Placement then offers it to no request of nova's."""
    cloud.host("h1")
    off = f"/resource_providers/{cloud.host('h2').uuid}/traits"
    body = cloud.placement.get(off)
    cloud.placement.put(off, {**body, "traits": [*body["traits"], names.COMPUTE_DISABLED]})
    nova = Compute([flavor("lc", LC)])
    assert run(ShowCapacity, cloud, nova, "lc")[1]["fits"] == 6
    _, [first, second] = run(ListCapacity, cloud, nova, "lc")
    assert (first["Host"], second["Host"]) == ("h1", "h2")
    assert second["In the way"] == "compute_disabled"
    _, [first, second] = run(Simulate, cloud, nova, "--flavor", "lc")
    assert (second["Host"], second["Possible"]) == ("h2", "no")
    assert second["Lacks"].startswith("its nova-compute is disabled")


def test_capacity_is_a_table_that_fits_a_terminal_and_csv_and_yaml(cloud):
    cloud.host("h1")
    nova = Compute([flavor("lc", LC)])
    for command in (ShowCapacity, ListCapacity):
        assert max(map(len, as_table(command, cloud, nova, "lc").splitlines())) <= 130
    assert "classes_of_service: 1 host, 2 more without it" in as_table(
        ShowCapacity, cloud, nova, "lc"
    )
    csv = as_table(ListCapacity, cloud, nova, "lc", "-f", "csv")
    assert '"h1",6,"classes_of_service"' in csv
    assert "Fits: 6" in as_table(ListCapacity, cloud, nova, "lc", "-f", "yaml")


def test_a_trace_is_simulated_without_a_cloud(tmp_path):
    arguments = ("--fleet", "minsky:1", "--jobs", "6", "--strategies", "topo,topo_p")
    app = SimpleNamespace(client_manager=None, stdout=io.StringIO())
    command = SimulateTrace(app, None)
    parser = command.get_parser("openstack numa simulate trace")
    output = ("--output", str(tmp_path), "-f", "json")
    assert command.run(parser.parse_args([*arguments, *output])) == 0
    rows = json.loads(app.stdout.getvalue())
    assert [row["strategy"] for row in rows] == ["topo", "topo_p"]
    assert float(rows[0]["makespan_s"]) > 0
    assert json.loads((tmp_path / "results.json").read_text())["label"] == "modelled"
    assert not SimulateTrace.auth_required


def test_what_cannot_be_simulated_is_said_by_the_shell(capsys):
    assert shell.main(["numa", "simulate", "trace", "--fleet", "vax:1"]) == 1
    assert "machine: 'vax' is not allowed; allowed: minsky, dgx1, cube16" in capsys.readouterr().err


def draw(cloud, *arguments):
    """Run ``topology show``; returns what it printed."""
    clients = SimpleNamespace(numa=Cloud(SimpleNamespace(placement=cloud.adapter)))
    app = SimpleNamespace(client_manager=clients, stdout=io.StringIO())
    command = ShowTopology(app, None)
    command.run(command.get_parser("numa").parse_args([*arguments]))
    return app.stdout.getvalue()


def test_a_host_is_drawn_as_placement_knows_it(cloud, tmp_path):
    cloud.host("h1")
    text = draw(cloud, "h1")
    assert text.startswith("h1: 1 chassis, 2 sockets, 4 NUMA nodes, 4 L3 domains, 2 GPUs")
    assert "GPU 0000:85:00.0" in text
    assert "NV2" in text
    drawing = tmp_path / "h1.svg"
    assert draw(cloud, "h1", "--svg", str(drawing)) == ""
    assert "0000:85:00.0" in drawing.read_text()
    saved = tmp_path / "h1.json"
    saved.write_text(draw(cloud, "h1", "--json"))
    assert draw(cloud, "--file", str(saved)) == text


def test_a_host_without_an_agent_cannot_be_drawn_and_the_others_are_named(cloud, tmp_path):
    cloud.host("h1")
    with pytest.raises(InvalidValueError, match="host: 'h9' is not allowed; allowed: h1"):
        draw(cloud, "h9")
    with pytest.raises(InvalidValueError, match=r"--file.*\(No such file or directory\)$"):
        draw(cloud, "--file", str(tmp_path / "none.json"))
    (tmp_path / "latin.json").write_bytes(b"\xff")
    with pytest.raises(InvalidValueError, match=r"--file.*\(invalid start byte\)$"):
        draw(cloud, "--file", str(tmp_path / "latin.json"))
    assert draw(cloud, "--preset", "dgx-1").startswith("DGX-1")


class ComputeApi(Compute):
    """Nova for the doctor: flavors, hypervisors that are up, and the newest microversion."""

    def __init__(self, flavors, hosts, newest=(2, 100), down=(), image=None):
        super().__init__(flavors, image=image)
        every = list(self.flavors.values())
        self.flavors = lambda **_options: every
        self.servers = lambda **_options: []
        self._hosts, self._newest, self._down = hosts, newest, down

    def get_endpoint_data(self):
        return SimpleNamespace(max_microversion=self._newest)

    def hypervisors(self, **_options):
        states = {**dict.fromkeys(self._hosts, "up"), **dict.fromkeys(self._down, "down")}
        return [SimpleNamespace(name=host, state=state) for host, state in states.items()]


SCHEDULER = """
[filter_scheduler]
available_filters = nova.scheduler.filters.all_filters
available_filters = nova_numa_ext.scheduler.NumaExtFilter
enabled_filters = ComputeFilter,NumaExtFilter,NUMATopologyFilter
weight_classes = nova.scheduler.weights.all_weighers,nova_numa_ext.scheduler.NumaExtWeigher
[workarounds]
disable_fallback_pcpu_query = true
"""


def examine(cloud, compute, *arguments):
    code, rows = run(Doctor, cloud, compute, *arguments)
    return code, {row["Check"]: (row["Level"], row["Detail"]) for row in rows}


def test_the_doctor_finds_a_healthy_cloud_good(cloud, tmp_path):
    cloud.host("h1")
    beat(cloud, "h1")
    nova = tmp_path / "nova.conf"
    nova.write_text(SCHEDULER)
    compute = ComputeApi([flavor("lc", LC)], ["h1"])
    code, found = examine(cloud, compute, "--nova-conf", str(nova))
    assert code == 0
    assert {level for level, _ in found.values()} == {"good"}
    assert found["max_placement_results"][1] == (
        "1000; LC flavors with 1 NUMA node see 100% of 1 host"
    )


def test_the_doctor_names_hosts_and_flavors_and_what_to_do(cloud):
    cloud.host("h1", rdt=False)
    cloud.host("new", agent=False)
    bad = flavor("bad", {**BE, "numa_ext:slo_p99_us": "5"})
    compute = ComputeApi([bad], ["h1", "new"], newest=(2, 79))
    code, found = examine(cloud, compute)
    assert code == 1
    assert max(map(len, as_table(Doctor, cloud, compute).splitlines())) <= 120
    assert found["flavor bad"][0] == "broken"
    assert "is resctrl mounted there?" in found["host h1"][1]
    assert "older than compute API 2.86" in found["Nova"][1]


def test_the_doctor_says_why_a_host_takes_no_latency_critical_server(cloud):
    """An agent that only observes was said to have [rdt]enabled = false."""
    for name in ("h1", "off"):
        cloud.host(name)
    cloud.publish("h1", observed=frozenset({ObserveTrait.RDT}), tiers=frozenset({Tier.BE}))
    cloud.publish("off", tiers=frozenset({Tier.BE}))
    _, found = examine(cloud, ComputeApi([], ["h1", "off"]))
    assert "only observes" in found["host h1"][1]
    assert found["host off"] == ("degraded", "takes no LC servers: [rdt]enabled is false there")


def findings(cloud, compute, check):
    """(level, detail) of each finding of one check."""
    _, rows = run(Doctor, cloud, compute)
    return [(row["Level"], row["Detail"]) for row in rows if row["Check"] == check]


def test_the_doctor_does_not_count_agents_that_are_gone(cloud):
    """H4: an agent that was dead for a week was among those that report."""
    for host in ("h1", "gone", "silent", "never", "down"):
        cloud.host(host)
    cloud.host("new", agent=False)
    beat(cloud, "h1", "gone")
    beat(cloud, "silent", minutes_ago=SILENT_AFTER_MINUTES + 2)
    Reporter(cloud.placement).withdraw_tiers("gone")
    compute = ComputeApi([], ["h1", "gone", "silent", "never", "new"], down=["down"])
    new, gone, silent = findings(cloud, compute, "agents")
    assert {new[0], gone[0], silent[0]} == {"degraded"}
    assert "no agent has ever reported on new:" in new[1]
    assert "have ended" in gone[1]
    assert re.search(r": gone \(20..-..-.. ..:.. UTC\);", gone[1])
    assert re.search(r": never \(never\), silent \(20..-..-.. ..:.. UTC\);", silent[1])
    assert findings(cloud, compute, "host gone") == [
        (
            "degraded",
            "takes no servers with a tier: its agent has ended, and its tiers were withdrawn",
        )
    ]
    beat(cloud, "silent", "never")
    cloud.publish("gone")
    cloud.publish("new")
    beat(cloud, "new")
    assert findings(cloud, compute, "agents") == [("good", "reports of 5 hosts")]


def test_agents_are_installed_before_flavors_and_filter(cloud):
    """M14: the other way round every flavor with a tier finds no valid host."""
    cloud.host("h1", agent=False)
    for name in names.RESOURCE_CLASSES:
        cloud.placement.put(f"/resource_classes/{name}")
    ((level, detail),) = findings(cloud, ComputeApi([flavor("lc", LC)], ["h1"]), "agents")
    assert level == "broken"
    assert "agents first, then flavors and our filter" in detail


def test_the_doctor_names_what_is_left_of_hosts_that_nova_no_longer_has(cloud):
    for host in ("h1", "old"):
        cloud.host(host)
        beat(cloud, host)
    beat(cloud, "older")
    assert findings(cloud, ComputeApi([], ["h1", "old"]), "orphan providers") == [
        (
            "degraded",
            "beat:older: nova has no such compute node; openstack numa host remove takes out what is ours; nova's "
            "part of a host then goes by openstack resource provider delete UUID",
        )
    ]
    ((_, detail),) = findings(cloud, ComputeApi([], ["h1"]), "orphan providers")
    assert detail.startswith("old, beat:old, beat:older: nova has no")


def test_the_doctor_says_that_agents_come_first_and_strict_flavors_after(cloud):
    compute = ComputeApi([flavor("lc.quiet", STRICT_RABBIT), flavor("lc", LC)], ["h1", "h2"])
    for name in ("h1", "h2"):
        cloud.host(name)
    assert examine(cloud, compute)[1]["strict flavors"] == (
        "good",
        "what they ask for is offered by 2 hosts",
    )
    cloud.older_agent("h2")
    level, detail = examine(cloud, compute)[1]["strict flavors"]
    assert level == "degraded"
    assert detail.startswith("do not go to h2: the agents there offer no CUSTOM_LLC_NEIGHBOURHOOD")
    cloud.older_agent("h1")
    level, detail = examine(cloud, compute)[1]["strict flavors"]
    assert level == "broken"
    assert detail.startswith("lc.quiet ask for CUSTOM_LLC_NEIGHBOURHOOD, which no host offers")
    others = ComputeApi([flavor("lc", LC)], ["h1", "h2"])
    assert "strict flavors" not in examine(cloud, others)[1]


def test_the_doctor_names_domains_where_a_strict_rabbit_met_a_devil(cloud):
    cloud.host("h1")
    [(_, [domain])] = cloud.boot(STRICT_RABBIT)
    both = L3State(frozenset({NeighbourTrait.RABBIT, NeighbourTrait.DEVIL}))
    cloud.publish("h1", state=dict.fromkeys(range(4), both))
    level, detail = examine(cloud, ComputeApi([], ["h1"]))[1]["host h1"]
    assert level == "degraded"
    assert f"lives with a devil in L3 domains {domain.removeprefix('l3_')}: " in detail


def test_a_proposed_live_migration_is_seen_from_anywhere(cloud):
    """The agent found an objective impossible to keep: list, host, server and doctor say where."""
    cloud.host("h1", used={0: (1, 0), 1: (1, 0), 3: (1, 0)})
    cloud.boot(LC)
    unmet = frozenset({NeighbourTrait.LC, NeighbourTrait.UNMET_SLO})
    cloud.publish("h1", state={2: L3State(unmet)})
    web = running_server("web", cloud.last_servers[0], "h1", flavor("lc.small", LC))
    _, (row,) = run(ListHost, cloud, Compute([]))
    assert row["Neighbours"] == "LC UNMET_SLO"
    _, rows = run(ShowHost, cloud, Compute([]), "h1")
    (where,) = [row["Provider"].strip() for row in rows if "has UNMET SLO" in row["Traits"]]
    assert where == "h1:l3_2"
    _, shown = run(ShowServer, cloud, Compute([], [web]), "web")
    assert "has UNMET SLO" in shown["domain_traits"]
    _, found = examine(cloud, ComputeApi([], ["h1"]))
    assert found["host h1"][0] == "degraded"
    assert "cannot be kept in L3 domains 2: live-migrate" in found["host h1"][1]


def test_a_cloud_in_which_no_agent_ever_ran_is_broken(cloud):
    cloud.host("h1", agent=False)
    code, found = examine(cloud, ComputeApi([], ["h1"]))
    assert code == 1
    assert found["resource classes"][0] == "broken"


@pytest.mark.parametrize(
    ("wrong", "right", "check"),
    [
        ("NumaExtFilter,NUMATopologyFilter", "NUMATopologyFilter,NumaExtFilter", "filter order"),
        ("NUMATopologyFilter\n", "NUMATopologyFilter,OurOwnFilter\n", "filter order"),
        (",nova_numa_ext.scheduler.NumaExtWeigher", "", "weigher"),
        ("NumaExtFilter,NUMATopologyFilter", "NumaExtFilter", "NUMATopologyFilter"),
        ("query = true", "query = false", "disable_fallback_pcpu_query"),
        ("[workarounds]", "[numa_ext]\nmode = observe\n[workarounds]", "mode"),
        (
            "[workarounds]",
            "track_instance_changes = false\n[workarounds]",
            "track_instance_changes",
        ),
        ("[workarounds]", "[DEFAULT]\nstate_path = /nowhere\n[workarounds]", "view of Placement"),
        (
            "[workarounds]",
            "[scheduler]\nmax_placement_results = 3\n[workarounds]",
            "max_placement_results",
        ),
    ],
)
def test_each_wrong_option_of_the_scheduler_is_one_line(cloud, tmp_path, wrong, right, check):
    cloud.host("h1")
    beat(cloud, "h1")
    nova = tmp_path / "nova.conf"
    nova.write_text(SCHEDULER.replace(wrong, right))
    _, found = examine(cloud, ComputeApi([], ["h1"]), "--nova-conf", str(nova))
    assert [name for name, (level, _) in found.items() if level != "good"] == [check]


def test_a_filter_that_nova_never_asks_is_broken(cloud, tmp_path):
    cloud.host("h1")
    beat(cloud, "h1")
    nova = tmp_path / "nova.conf"
    nova.write_text(SCHEDULER.replace("NumaExtFilter,NUMATopologyFilter", "NUMATopologyFilter"))
    code, found = examine(cloud, ComputeApi([], ["h1"]), "--nova-conf", str(nova))
    assert (code, found["filter"][0]) == (1, "broken")


def test_openstackclient_finds_the_commands(capsys):
    commands = (
        ["host", "list"],
        ["host", "show"],
        ["server", "show"],
        ["flavor", "check"],
        ["simulate"],
        ["capacity", "show"],
        ["capacity", "list"],
        ["topology", "show"],
        ["doctor"],
        ["simulate", "trace"],
    )
    for words in commands:
        assert shell.main(["help", "numa", *words]) == 0
        assert f"numa {' '.join(words)}" in capsys.readouterr().out


def test_a_drained_host_takes_no_new_server_and_every_command_says_why(cloud):
    cloud.host("h1")
    beat(cloud, "h1")
    cloud.boot(LC)
    assert run(DrainHost, cloud, Compute([]), "h1") == (0, [{"Host": "h1", "Result": "drained"}])
    assert run(DrainHost, cloud, Compute([]), "h1")[1][0]["Result"] == "unchanged"
    cloud.view.refresh()
    with pytest.raises(NoValidHost):
        cloud.boot(LC)
    cloud.publish("h1")
    with pytest.raises(NoValidHost):
        cloud.boot(LC)
    row = run(ListHost, cloud, Compute([]))[1][0]
    assert (row["Agent"], row["Tiers"], row["CLOS"]) == ("drained", "-", "1/6")
    code, found = examine(cloud, ComputeApi([flavor("lc", LC)], ["h1"]))
    assert (code, found["agents"]) == (0, ("good", "reports of 1 host"))
    assert found["host h1"] == (
        "degraded",
        "is drained: it takes no new servers with a tier until openstack numa host undrain",
    )
    _, rows = run(Simulate, cloud, Compute([flavor("lc", LC)]), "--flavor", "lc")
    assert "operators have drained it" in str(rows)
    assert run(UndrainHost, cloud, Compute([]), "h1")[1][0]["Result"] == "undrained"
    cloud.publish("h1")
    cloud.boot(LC)


def test_a_drained_host_whose_agent_is_silent_is_not_shown_as_if_it_were_there(cloud):
    cloud.host("h1")
    cloud.host("h2")
    beat(cloud, "h1", minutes_ago=2 * SILENT_AFTER_MINUTES)
    run(DrainHost, cloud, Compute([]), "h1", "h2")
    beat(cloud, "h2")
    shown = [row["Agent"] for row in run(ListHost, cloud, Compute([]))[1]]
    assert shown[0].startswith("withdrawn, last beat")
    assert shown[1] == "drained"


def test_hosts_to_drain_are_known_before_any_is_drained(cloud):
    cloud.host("h1")
    with pytest.raises(InvalidValueError, match=r"host: 'h9' is not allowed; allowed: h1$"):
        run(DrainHost, cloud, Compute([]), "h1", "h9")
    assert run(ListHost, cloud, Compute([]))[1][0]["Tiers"] == "LC BE"


def test_a_removal_says_what_went_and_ends_with_1_while_servers_hold_something(cloud):
    cloud.host("h1")
    beat(cloud, "h1")
    cloud.boot(LC)
    code, rows = run(RemoveHost, cloud, Compute([]), "h1")
    assert code == 1
    assert [row["Result"] for row in rows] == ["removed", "held", "held"]
    assert "beat:h1" in rows[0]["Detail"]
    assert cloud.last_servers[0] in rows[1]["Detail"]
    left = run(ListHost, cloud, Compute([]))[1][0]
    assert (left["Tiers"], left["CLOS"]) == ("-", "1/0"), "what is held is shown"


def test_a_removal_that_removes_something_says_to_restart_nova_compute(cloud, capsys):
    cloud.host("h1")
    for arguments, restart in ((("--dry-run",), False), ((), True), ((), False)):
        run(RemoveHost, cloud, Compute([]), "h1", *arguments)
        assert ("Restart nova-compute" in capsys.readouterr().err) == restart


def test_removing_all_takes_traits_and_classes_too_when_nobody_asks_for_them(cloud):
    for name in ("h1", "h2"):
        cloud.host(name)
    nova = ComputeApi([flavor("lc", LC)], [])
    code, rows = run(RemoveHost, cloud, nova, "--all", "--dry-run")
    assert (code, {row["Result"] for row in rows}) == (1, {"would remove", "held"})
    assert len(run(ListHost, cloud, Compute([]))[1]) == 2
    code, rows = run(RemoveHost, cloud, nova, "--all")
    assert (code, [row["Host"] for row in rows]) == (1, ["h1", "h2", "all hosts"])
    assert "for these ask for them: flavors lc." in rows[2]["Detail"]
    held = ComputeApi([], [], image={"trait:CUSTOM_NUMA_EXT_TIER_LC": "required"})
    shelved = running_server("old", "u", None, flavor("gone", {**LC, "hw:numa_nodes": "1"}))
    held.servers = lambda **_options: [shelved]
    code, rows = run(RemoveHost, cloud, held, "--all")
    assert (code, [row["Host"] for row in rows]) == (1, ["all hosts"])
    assert "ask for them: servers old; images image." in rows[0]["Detail"]
    code, rows = run(RemoveHost, cloud, ComputeApi([], []), "--all")
    assert (code, len(rows)) == (0, 1)
    assert re.fullmatch(r"\d+ traits and resource classes", rows[0]["Detail"])
    code, rows = run(RemoveHost, cloud, ComputeApi([], []), "--all")
    assert (code, rows[0]["Result"]) == (0, "nothing to do")


def test_hosts_to_remove_are_named_or_all(cloud):
    for arguments in ((), ("h1", "--all")):
        with pytest.raises(CommandError, match="Name hosts, or give --all"):
            run(RemoveHost, cloud, Compute([]), *arguments)
    _, rows = run(RemoveHost, cloud, Compute([]), "never-was")
    assert (rows[0]["Result"], rows[0]["Detail"]) == ("nothing to do", "nothing of ours is there")
