# SPDX-License-Identifier: Apache-2.0
"""Stories of one decision each: real Placement, real nova scheduler."""

import datetime
import json
import uuid
from types import SimpleNamespace

import pytest
from nova import exception
from nova.conf import CONF

from nova_numa_ext import endpoints
from nova_numa_ext.cli import explain, explain_command
from nova_numa_ext.scheduler import decision, process, session
from placement_traits.names import NeighbourTrait, Tier
from placement_traits.offers import L3State
from tests.functional.scheduler.conftest import BE, LC, compute_node


def runs(**domains):
    """State of L3 domains: ``runs(_0={LC})``."""
    return {int(name.lstrip("_")): L3State(frozenset(traits)) for name, traits in domains.items()}


def reasons(cloud):
    """Sentences of the last refusal, by host."""
    return {
        host["node"]: [reason["text"] for reason in host["reasons"]]
        for host in cloud.entries("filter")[-1]["details"]
    }


def test_lc_gets_the_l3_domain_of_the_node_that_nova_will_pick(cloud):
    cloud.host("h1", used={0: (1, 512), 1: (1, 512), 3: (1, 512)})
    assert cloud.boot(LC) == [("h1", ["l3_2"])]


def test_four_lc_servers_of_one_request_get_four_l3_domains(cloud):
    cloud.host("h1")
    ten_ways = {**LC, "resources_NODE:CUSTOM_LLC_WAY": "10"}
    placed = cloud.boot(ten_ways, count=4, vcpus=2)
    assert [host for host, _ in placed] == ["h1"] * 4
    assert sorted(domains for _, domains in placed) == [["l3_0"], ["l3_1"], ["l3_2"], ["l3_3"]]


def test_lc_on_two_nodes_gets_both_their_domains(cloud):
    two = {
        "numa_ext:tier": "LC",
        "hw:cpu_policy": "dedicated",
        "hw:numa_nodes": "2",
        "resources:CUSTOM_RDT_CLOS": "1",
        "resources_N0:CUSTOM_LLC_WAY": "4",
        "resources_N1:CUSTOM_LLC_WAY": "4",
        "group_policy": "isolate",
    }
    cloud.host("h1", used={0: (1, 0), 2: (1, 0)})
    assert cloud.boot(two, vcpus=2, memory_mb=1024) == [("h1", ["l3_1", "l3_3"])]


def test_be_prefers_the_host_without_lc(cloud):
    cloud.host("h1")
    cloud.publish("h1", state=runs(_0={NeighbourTrait.LC}, _1={NeighbourTrait.LC}))
    cloud.host("h2")
    assert cloud.boot(BE) == [("h2", [])]


def test_be_goes_where_most_bandwidth_is_free_on_the_other_socket(cloud):
    """F-004-44: both hosts have 20 GB/s left, h1 all of it on one socket."""
    cloud.host("h1")
    cloud.publish("h1", state={l3: L3State(reserved_bandwidth_mbps=10_000) for l3 in (0, 1)})
    cloud.host("h2")
    cloud.publish("h2", state={l3: L3State(reserved_bandwidth_mbps=10_000) for l3 in (0, 2)})
    assert cloud.boot(BE) == [("h2", [])]
    [first, second] = cloud.entries("weigh")[-1]["scores"]
    found = [(each["node"], each["terms"]["cross_socket_bandwidth"]) for each in (first, second)]
    assert found == [("h2", 1.0), ("h1", 0.0)]


def test_lc_prefers_the_host_without_be(cloud):
    cloud.host("h1")
    cloud.publish(
        "h1",
        state=runs(
            _0={NeighbourTrait.BE},
            _1={NeighbourTrait.BE},
            _2={NeighbourTrait.BE},
            _3={NeighbourTrait.BE},
        ),
    )
    cloud.host("h2")
    [(host, _)] = cloud.boot(LC)
    assert host == "h2"


def test_two_requests_in_a_row_see_each_other_before_any_agent_reports(cloud):
    cloud.host("h1")
    cloud.host("h2")
    [(first, _)] = cloud.boot(LC)
    [(second, _)] = cloud.boot(BE)
    assert first != second


def test_a_request_knows_which_host_nova_took_for_its_earlier_servers(cloud):
    """Nova never says it; the host's count of servers does, also where another host comes first in nova's list."""
    cloud.host("h1")
    cloud.publish("h1", state=runs(**{f"_{l3}": {NeighbourTrait.BE} for l3 in range(4)}))
    cloud.host("h2")
    assert cloud.boot(LC, count=2) == [("h2", ["l3_0"]), ("h2", ["l3_1"])]
    first, second = cloud.last_servers
    picks = [
        {pick["server"]: (pick["node"], pick["l3"]) for pick in entry["picks"]}
        for entry in cloud.entries("filter")
        if entry["server"] == second
    ]
    assert all(each[first] == ("h2", [0]) for each in picks)
    assert picks[-1] == {first: ("h2", [0]), second: ("h2", [1])}


def test_a_host_whose_agent_takes_no_be_is_refused(cloud):
    cloud.host("h1", agent=False)
    cloud.publish("h1", tiers=frozenset({Tier.LC}))
    with pytest.raises(exception.NoValidHost):
        cloud.boot(BE)
    assert reasons(cloud) == {
        "h1": ["its agent does not accept the tier: trait CUSTOM_NUMA_EXT_TIER_BE is absent"]
    }


def test_a_host_without_agent_takes_no_tier(cloud):
    cloud.host("h1", agent=False)
    cloud.view.refresh()
    with pytest.raises(exception.NoValidHost):
        cloud.boot(BE)
    assert reasons(cloud) == {"h1": ["no host agent has published this host to Placement"]}
    assert cloud.boot({}) == [("h1", [])]


def test_a_bad_combination_gets_no_valid_host_and_the_sentence(cloud):
    cloud.host("h1")
    with pytest.raises(exception.NoValidHost):
        cloud.boot({**BE, "numa_ext:slo_p99_us": "500"})
    entry = cloud.entries("filter")[-1]
    assert entry["problems"] == [
        "numa_ext:slo_p99_us and numa_ext:slo_source are for numa_ext:tier=LC only."
    ]
    [shown] = explain.find(cloud.entries("filter"), cloud.last_servers[0])
    assert entry["problems"][0] in explain.text(shown)


def test_a_rabbit_that_only_states_its_class_avoids_devils_and_takes_what_there_is(cloud):
    for name in ("h1", "h2"):
        cloud.host(name)
    devils = {NeighbourTrait.DEVIL}
    everywhere = runs(_0=devils, _1=devils, _2=devils, _3=devils)
    cloud.publish("h1", state=everywhere)
    rabbit = {**LC, "numa_ext:interference_class": "rabbit"}
    [(host, _)] = cloud.boot(rabbit)
    assert host == "h2"
    cloud.publish("h2", state=everywhere)
    cloud.boot(rabbit, count=6)


def test_a_host_where_the_rabbit_would_live_beside_a_devil_all_the_same_is_the_worse_one(cloud):
    """A claim elsewhere does not help: nova-compute picks the node, on both hosts number 2."""
    devils = {NeighbourTrait.DEVIL}
    for name, devils_at in (("h1", 2), ("h2", 0)):
        cloud.host(name, used={0: (1, 512), 1: (1, 512), 3: (1, 512)})
        cloud.publish(name, state={devils_at: L3State(frozenset(devils))})
    rabbit = {**LC, "numa_ext:interference_class": "rabbit"}
    assert cloud.boot(rabbit) == [("h2", ["l3_2"])]


def test_a_rabbit_is_not_its_own_neighbour_on_the_host_where_it_is(cloud):
    """A resize asks its own host, too, where the agent has published the server's own class."""
    rabbits = runs(**{f"_{l3}": {NeighbourTrait.RABBIT} for l3 in range(4)})
    for name in ("h1", "h2", "h3"):
        cloud.host(name)
        cloud.publish(name, state=rabbits)
    rabbit = {**LC, "numa_ext:interference_class": "rabbit"}
    [server] = [str(uuid.uuid4())]
    cloud.hosts.servers["h2"] = {server: object()}
    [(found, _)] = cloud.boot(rabbit, servers=[server])
    assert found == "h2"


def test_two_rabbits_of_one_request_do_not_share_a_domain(cloud):
    cloud.host("h1")
    rabbit = {**LC, "numa_ext:interference_class": "rabbit"}
    placed = cloud.boot(rabbit, count=4)
    assert sorted(domains for _, domains in placed) == [["l3_0"], ["l3_1"], ["l3_2"], ["l3_3"]]


def test_an_image_can_ask_for_the_tier(cloud):
    cloud.host("h1", agent=False)
    cloud.publish("h1", tiers=frozenset({Tier.LC}))
    with pytest.raises(exception.NoValidHost):
        cloud.boot({}, image_traits=["CUSTOM_NUMA_EXT_TIER_BE"])


def test_an_unmanaged_flavor_passes_untouched(cloud):
    cloud.host("h1", agent=False)
    assert cloud.boot({"hw:cpu_policy": "dedicated"}) == [("h1", [])]
    assert cloud.entries("filter") == []


def test_rebuild_is_never_refused(cloud):
    cloud.host("h1", agent=False)
    spec_hints = {"_nova_check_type": ["rebuild"]}
    [(host, _)] = cloud.boot(BE, hints=spec_hints)
    assert host == "h1"


def test_dedicated_cpus_come_from_dedicated_inventory(cloud):
    """Without disable_fallback_pcpu_query nova also offers VCPU candidates for pinned flavors."""
    cloud.host("h1")
    cloud.boot(LC)
    allocations = cloud.placement.get(f"/allocations/{cloud.last_servers[0]}")["allocations"]
    amounts = [entry["resources"] for entry in allocations.values()]
    assert any("PCPU" in resources for resources in amounts)
    assert not any("VCPU" in resources for resources in amounts)


@pytest.mark.parametrize(("answer", "passes"), [("pass", True), ("refuse", False)])
def test_a_fault_of_ours_gives_the_configured_answer(
    cloud, nova_configuration, monkeypatch, answer, passes
):
    cloud.host("h1")
    cloud.configure(on_error=answer)
    monkeypatch.setattr(session, "decide", lambda *_: 1 / 0)
    if passes:
        [(host, _)] = cloud.boot(LC)
        assert host == "h1"
    else:
        with pytest.raises(exception.NoValidHost):
            cloud.boot(LC)
    [fault] = cloud.entries("fault")[:1]
    assert fault["error"] == "ZeroDivisionError: division by zero"
    assert fault["request"] == cloud.context.request_id


def test_a_request_that_cannot_even_be_read_is_refused_and_never_breaks_the_scheduler(
    cloud, nova_configuration, monkeypatch
):
    cloud.host("h1")
    cloud.configure(on_error="refuse")
    monkeypatch.setattr(session, "decide", lambda *_: 1 / 0)
    monkeypatch.setattr(decision, "concerns_us", lambda *_: 1 / 0)
    with pytest.raises(exception.NoValidHost):
        cloud.boot(LC)


def test_the_explanation_of_a_server_names_terms_and_hosts(cloud, capsys):
    cloud.host("h1")
    cloud.host("h2")
    cloud.boot(LC)
    assert explain_command.main([cloud.last_servers[0], "--journal", str(cloud.journal_path)]) == 0
    text = capsys.readouterr().out
    for word in (
        f" on controller {CONF.host}\n",
        "2 of 2 hosts passed",
        "h1",
        "h2",
        "neighbours",
        "slices",
        "loses on off_node",
        cloud.last_servers[0],
    ):
        assert word in text


def test_the_explanation_names_the_host_that_nova_took_though_another_has_the_better_score(
    cloud, capsys, nova_configuration
):
    """Our weigher is one of several: the totals decide, and they are in the order shown."""
    cloud.host("h1")
    cloud.host("h2")
    cloud.configure(weight_multiplier=-1.0)
    [(chosen, _)] = cloud.boot(LC)
    [entry] = cloud.entries("weigh")
    best, other = entry["scores"]
    assert best["total"] == pytest.approx(best["before"] - best["score"], abs=1e-3)
    assert best["total"] >= other["total"]
    assert explain_command.main([cloud.last_servers[0], "--journal", str(cloud.journal_path)]) == 0
    assert f"best     {chosen}: the highest total" in capsys.readouterr().out


@pytest.mark.parametrize("limit", [1, 2])
def test_the_journal_shows_only_the_best_hosts(cloud, nova_configuration, limit):
    """Two hosts are equally good: the one whose name comes first is shown first."""
    for name in ("h3", "h1", "h2"):
        cloud.host(name)
    cloud.publish("h1", state=runs(**{f"_{l3}": {NeighbourTrait.BE} for l3 in range(4)}))
    cloud.configure(journal_hosts=limit)
    cloud.boot(LC)
    [entry] = cloud.entries("weigh")
    assert entry["hosts"] == 3
    assert [each["node"] for each in entry["scores"]] == ["h2", "h3"][:limit]


def test_the_best_host_is_described_though_the_filter_saw_others_first(cloud, capsys):
    """Without a short list the filter judges hosts in nova's order, and notes the first of them only."""
    for name in ("h3", "h1", "h2"):
        cloud.host(name)
    full = runs(**{f"_{l3}": {NeighbourTrait.BE} for l3 in range(4)})
    for name in ("h1", "h3"):
        cloud.publish(name, state=full)
    cloud.configure(journal_hosts=1, shortlist=0)
    cloud.boot(LC)
    [[noted], [best]] = [cloud.entries(kind)[0]["details"] for kind in ("filter", "weigh")]
    assert (noted["node"], best["node"]) == ("h3", "h2")
    assert explain_command.main([cloud.last_servers[0], f"--journal={cloud.journal_path}"]) == 0
    assert "  h2: NUMA node 0 expected, " in capsys.readouterr().out


def test_a_described_host_takes_less_than_half_a_kilobyte(cloud):
    """M10: it took 1.75 kB, so that 256 MB held an hour of a big cloud; what people read is there."""
    bandwidth = {"resources_NODE:CUSTOM_MEMORY_BANDWIDTH_MBPS": "1000"}
    cloud.host("h1")
    cloud.host("h2")
    cloud.publish("h2", tiers=frozenset({Tier.BE}))
    cloud.boot({**LC, **bandwidth})
    passed, refused = cloud.entries("filter")[0]["details"]
    assert len(json.dumps(passed)) < 512
    assert len(json.dumps(refused)) < 256
    assert [kind["l3"] for kind in passed["candidates"]] == [[0], [1], [2]]
    assert sum(kind["count"] for kind in passed["candidates"]) < passed["candidates_judged"]


def test_a_request_is_explained_by_its_id_server_by_server(cloud, capsys):
    cloud.host("h1")
    cloud.boot(LC, count=2)
    words = [cloud.context.request_id, "--journal", str(cloud.journal_path)]
    assert explain_command.main(words) == 0
    told = capsys.readouterr().out
    first, second = [told.index(f"server   {server}") for server in cloud.last_servers]
    assert first < second


def test_servers_on_a_host_are_never_looked_into(cloud):
    """Nova has not loaded their flavors: each look would be a call to its database."""
    cloud.host("h1")
    cloud.hosts.servers["h1"] = {f"server-{number}": object() for number in range(3)}
    assert cloud.boot(LC) == [("h1", ["l3_0"])]
    assert not process.engine().faults


def test_when_placement_offers_no_host_explain_asks_every_host_what_it_lacks(
    cloud, capsys, monkeypatch
):
    """Nova asks no filter then, so there is no decision to read."""
    cloud.host("h1", rdt=False)
    cloud.host("h2")
    everything = {**LC, "resources_NODE:CUSTOM_LLC_WAY": "15"}
    with pytest.raises(exception.NoValidHost):
        cloud.boot(everything)
    assert cloud.entries("filter") == []
    server = cloud.last_servers[0]
    flavor = {"vcpus": 1, "ram": 512, "extra_specs": everything}
    monkeypatch.setattr(endpoints, "placement", lambda _conf: cloud.adapter)
    monkeypatch.setattr(endpoints, "compute", lambda _conf: Nova(server, flavor))
    assert explain_command.main([server, "--journal", str(cloud.journal_path)]) == 0
    text = capsys.readouterr().out
    assert "There is no decision" in text
    assert "h1  its agent does not accept the tier: trait CUSTOM_NUMA_EXT_TIER_LC is absent" in text
    assert "h2  L3 ways free in the best domain: 13, requested: 15" in text


def test_explain_knows_the_tier_that_an_image_asks_for(cloud, capsys, monkeypatch):
    cloud.host("h1", agent=False)
    flavor = {"vcpus": 1, "ram": 512, "extra_specs": {}}
    nova, found = Nova("d" * 8 + "-1111-1111-1111-" + "d" * 12, flavor), SimpleNamespace()
    nova.server["image"] = {"id": "tiered"}
    found.get = lambda url, **_query: SimpleNamespace(
        status_code=200 if url == "/v2/images/tiered" else 404,
        json=lambda: {"id": "tiered", "trait:CUSTOM_NUMA_EXT_TIER_LC": "required"},
    )
    monkeypatch.setattr(endpoints, "placement", lambda _conf: cloud.adapter)
    monkeypatch.setattr(endpoints, "compute", lambda _conf: nova)
    monkeypatch.setattr(endpoints, "image", lambda _conf: found)
    explain_command.main([nova.server["id"], "--journal", str(cloud.journal_path)])
    assert "REFUSED  numa_ext:tier=LC needs hw:cpu_policy=dedicated" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "words"), [(200, ""), (403, "may not list")])
def test_a_what_if_on_a_controller_weights_terms_as_the_scheduler_does(
    cloud, capsys, monkeypatch, status, words
):
    """By nova.conf; on h1 an aggregate makes nobody mind best-effort neighbours, if nova shows it."""
    hosts = [cloud.host(name) for name in ("h1", "h2")]
    for name in ("h1", "h2"):
        cloud.publish(name, state=runs(**{f"_{l3}": {NeighbourTrait.BE} for l3 in range(4)}))
    calm = str(uuid.uuid4())
    cloud.aggregate(calm, hosts[0])
    flavor = {"id": "f", "name": "lc", "vcpus": 1, "ram": 512, "extra_specs": LC}
    nova = Nova("", flavor, {calm: {"numa_ext_neighbours_multiplier": "0"}}, status)
    monkeypatch.setattr(endpoints, "placement", lambda _conf: cloud.adapter)
    monkeypatch.setattr(endpoints, "compute", lambda _conf: nova)
    path = cloud.journal_path.with_name("nova.conf")
    path.write_text("[numa_ext]\nways_multiplier = 3\nbandwidth_multiplier = 0\n")
    arguments = ["--flavor", "lc", "--config-file", str(path), "-f", "json"]
    assert explain_command.main(arguments) == 0
    told = capsys.readouterr()
    ways, beside_be = (13 - 4) / 13, 0.5
    minding = (3 * ways + beside_be) / 4
    scores = {host["host"]: host["score"] for host in json.loads(told.out)}
    expected = {"h1": ways if status == 200 else minding, "h2": minding}
    assert scores == {host: round(value, 4) for host, value in expected.items()}
    assert words in told.err


@pytest.mark.parametrize(("name", "status"), [("lc", 0), ("f", 0), ("nobody's", 1)])
def test_a_flavor_is_looked_for_on_every_page(cloud, capsys, monkeypatch, name, status):
    """Nova shows [api]max_limit flavors at once: here one."""
    cloud.host("h1")
    flavor = {"id": "f", "name": "lc", "vcpus": 1, "ram": 512, "extra_specs": LC}
    nova = Nova("", flavor)
    monkeypatch.setattr(endpoints, "placement", lambda _conf: cloud.adapter)
    monkeypatch.setattr(endpoints, "compute", lambda _conf: nova)
    path = cloud.journal_path.with_name("nova.conf")
    path.write_text("")
    assert explain_command.main(["--flavor", name, "--config-file", str(path)]) == status
    assert ("nova knows no such flavor" in capsys.readouterr().err) == bool(status)


class Nova:
    """The compute API that knows one server, two flavors on a page each, and the metadata of aggregates."""

    def __init__(self, server, flavor, aggregates=None, status=200):
        self.server = {"id": server, "flavor": flavor}
        self._flavors = [{**flavor, "id": "another", "name": "another"}, flavor]
        self._answers = {
            f"/servers/{server}": (200, {"server": self.server}),
            "/os-aggregates": (
                status,
                {
                    "aggregates": [
                        {"uuid": uuid, "metadata": metadata}
                        for uuid, metadata in (aggregates or {}).items()
                    ]
                },
            ),
        }

    def get(self, url, params=None, **_options):
        if url == "/flavors/detail":
            status, body = 200, self._page(params.get("marker"))
        else:
            status, body = self._answers[url]
        return SimpleNamespace(status_code=status, json=lambda: body)

    def _page(self, marker):
        shown = [flavor["id"] for flavor in self._flavors]
        first = shown.index(marker) + 1 if marker else 0
        return {"flavors": self._flavors[first : first + 1]}


def test_a_guest_whose_image_asks_for_numa_nodes_does_not_float(cloud):
    """No node holds the guest whole; with the image's two NUMA nodes each half is local where nova puts it."""
    cloud.host("h1", cpus_per_node=2, memory_mb=2048)
    sensitive = {**BE, "numa_ext:remote_memory": "sensitive"}
    with pytest.raises(exception.NoValidHost):
        cloud.boot(sensitive, vcpus=4, memory_mb=2048)
    assert cloud.boot(sensitive, vcpus=4, memory_mb=2048, image_properties={"hw_numa_nodes": "2"})


def test_cpus_asked_for_by_resource_class_are_dedicated(cloud):
    """``resources:PCPU`` makes nova pin the guest: its memory is local, whatever other CPUs the nodes have."""
    cloud.host("h1", cpus_per_node=2, shared=False)
    pinned = {**BE, "numa_ext:remote_memory": "sensitive", "resources:PCPU": "2"}
    assert cloud.boot(pinned, vcpus=2)


def test_two_changes_of_a_host_in_one_second_are_two_states(cloud):
    """Nova's database keeps whole seconds: cells are read from the very HostState that is judged."""
    at = datetime.datetime(2026, 1, 1, 12, 0, 0, tzinfo=datetime.UTC)
    cloud.host("h1", used={0: (2, 0), 1: (2, 0)}).updated_at = at
    [(_, domains)] = cloud.boot(LC, vcpus=2)
    assert domains == ["l3_2"]
    cloud.placement.delete(f"/allocations/{cloud.last_servers[0]}")
    cloud.hosts.computes[:] = [compute_node("h1", used={2: (2, 0), 3: (2, 0)})]
    cloud.hosts.computes[0].updated_at = at
    [(_, domains)] = cloud.boot(LC, vcpus=2)
    assert domains == ["l3_0"]
    assert [entry["details"][0]["nodes"] for entry in cloud.entries("filter")] == [[2], [0]]
