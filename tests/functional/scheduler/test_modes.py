# SPDX-License-Identifier: Apache-2.0
"""Modes in nova's real scheduler: what is observed stays as it was, what is ranked is never refused."""

import copy
from types import SimpleNamespace
from unittest import mock

import pytest
from nova import exception
from nova.conf import CONF

from benchmarks import nova_scheduler
from benchmarks.cloud import FLAVORS, Cloud
from benchmarks.cloud import request as request_of
from nova_numa_ext.cli import explain_command
from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.policy.modes import Mode
from nova_numa_ext.scheduler import NumaExtFilter, aggregates, fleet, process, session
from placement_traits.fleet import HostView
from placement_traits.names import NeighbourTrait, Tier
from placement_traits.offers import L3State
from tests.functional.scheduler.conftest import BE, LC, request_spec
from tests.functional.scheduler.test_invariants import TRAITS, Fleet, state_of
from tests.support.fleet import domain

WRONG = {**BE, "numa_ext:slo_p99_us": "100"}  # an objective is for latency-critical servers
CROWDED = {l3: L3State(frozenset({NeighbourTrait.BE})) for l3 in range(4)}
HOSTS = 30


def in_aggregate(mode, **metadata):
    """What nova knows of a host in one aggregate."""
    return [SimpleNamespace(metadata={"numa_ext_mode": mode, **metadata})]


@pytest.fixture
def pair(cloud):
    """Nova alone takes the first, whose agent is not there; the second is right for every tier::

    plain     no agent; empty
    managed   an agent; one dedicated CPU of each node is taken
    """
    cloud.host("bare", agent=False)
    cloud.host("managed", used=dict.fromkeys(range(4), (1, 512)))
    return cloud


def test_enforce_refuses_the_host_that_nova_would_take(pair):
    assert [host for host, _ in pair.boot(BE)] == ["managed"]
    [entry] = pair.entries("filter")
    assert (entry["passed"], [group["hosts"] for group in entry["refused"]]) == (1, [["bare"]])
    assert "modes" not in entry


def test_observe_lets_nova_choose_and_notes_what_it_would_have_done(pair, capsys):
    pair.configure(mode=Mode.OBSERVE)
    assert [host for host, _ in pair.boot(BE)] == ["bare"]
    entry = pair.entries("filter")[0]
    assert (entry["passed"], entry["refused"]) == (2, [])
    assert entry["modes"] == {"observe": 2}
    [group] = entry["would_refuse"]
    assert (group["count"], group["hosts"]) == (1, ["bare"])
    [entry] = pair.entries("weigh")
    assert (entry["scores"][0]["node"], entry["would_choose"]) == ("bare", "managed")
    assert all(each["total"] == each["before"] for each in entry["scores"])
    explain_command.main([pair.last_servers[0], "--journal", str(pair.journal_path)])
    said = capsys.readouterr().out
    assert "mode     2 observe of 2 hosts" in said
    assert "1 would be refused: no host agent has published this host to Placement (bare)" in said
    assert "would be managed" in said


def test_observe_touches_neither_the_list_nor_the_candidates(cloud):
    """Enforcing puts the last of the four domains first here: the others have best-effort servers."""
    cloud.host("h1")
    cloud.publish("h1", state={l3: CROWDED[l3] for l3 in range(3)})
    seen = {}

    def looked_at(mode):
        cloud.configure(mode=mode)
        engine = process.engine()
        before = engine.filter

        def watched(states, spec):
            offered = copy.deepcopy([state.allocation_candidates for state in states])
            left = before(states, spec)
            seen[mode] = (left is states, offered, [s.allocation_candidates for s in left])
            return left

        with mock.patch.object(engine, "filter", watched):
            cloud.boot(LC)

    looked_at(Mode.OBSERVE)
    same, offered, left = seen[Mode.OBSERVE]
    assert (same, left) == (True, offered)
    looked_at(Mode.ENFORCE)
    same, offered, left = seen[Mode.ENFORCE]
    assert left != offered


def test_observe_notes_how_many_hosts_would_have_another_candidate_first(nova_configuration):
    crowded = [domain(0, neighbours=[NeighbourTrait.LC]), domain(1)]
    view = HostView("root", "h1", frozenset(TRAITS), None, tuple(crowded))
    engine = session.Engine(CONF, SchedulerOptions(mode=Mode.OBSERVE), Fleet([view]), None)
    states, spec = [state_of(view, used={0: (0, 0), 1: (0, 0)})], request_spec(BE)
    states[0].numa_topology = None
    assert engine.filter(states, spec) is states
    judged = engine._passes[spec].judged
    assert [found.uuid for found in judged.left_as_they_came] == ["root"]
    assert judged.pick("root").l3[0][0] == view.l3[0].uuid, "nova claims the first one as it came"


def test_rank_prefers_what_enforce_would_take_and_refuses_nothing(pair):
    pair.configure(mode=Mode.RANK)
    assert [host for host, _ in pair.boot(BE)] == ["managed"]
    pair.publish("managed", tiers=frozenset({Tier.LC}))
    assert [host for host, _ in pair.boot(BE)] == ["bare"], "both are wrong, nova's weighers decide"
    entry = pair.entries("filter")[-1]
    assert (entry["passed"], sorted(len(g["hosts"]) for g in entry["would_refuse"])) == (2, [1, 1])
    pair.configure()
    with pytest.raises(exception.NoValidHost):
        pair.boot(BE)


def test_rank_orders_candidates(cloud):
    cloud.host("h1")
    cloud.configure(mode=Mode.RANK)
    domains = [domains for _, domains in cloud.boot(LC, count=4)]
    assert sorted(domains) == [["l3_0"], ["l3_1"], ["l3_2"], ["l3_3"]]


@pytest.mark.parametrize(
    ("mode", "passes"), [(Mode.OBSERVE, True), (Mode.RANK, True), (Mode.ENFORCE, False)]
)
def test_a_flavor_that_contradicts_itself_is_refused_only_by_enforce(pair, capsys, mode, passes):
    pair.configure(mode=mode)
    if passes:
        assert len(pair.boot(WRONG)) == 1
    else:
        with pytest.raises(exception.NoValidHost):
            pair.boot(WRONG)
    explain_command.main([pair.last_servers[0], "--journal", str(pair.journal_path)])
    assert ("REFUSED" in capsys.readouterr().out) != passes


def test_a_mixed_fleet_works_host_by_host(cloud):
    """None has an agent."""
    for name, mode in (("o", "observe"), ("r", "rank"), ("e", "enforce"), ("typo", "observed")):
        cloud.host(name, agent=False)
        cloud.hosts.aggregates[name] = in_aggregate(mode)
    cloud.view.refresh()
    cloud.boot(BE)
    entry = cloud.entries("filter")[0]
    assert (entry["hosts"], entry["passed"]) == (4, 2)
    assert entry["modes"] == {"observe": 1, "rank": 1}
    assert [group["hosts"] for group in entry["refused"]] == [["e", "typo"]]
    assert [group["hosts"] for group in entry["would_refuse"]] == [["o", "r"]]


def test_observed_hosts_compete_with_others_by_novas_weighers_alone(cloud):
    """On the observed hosts best-effort servers run everywhere, which would cost them half of a term."""
    for name in ("seen1", "seen2"):
        cloud.host(name)
        cloud.publish(name, state=CROWDED)
        cloud.hosts.aggregates[name] = in_aggregate("observe", numa_ext_weight_multiplier=name[-1])
    cloud.host("ranked", used=dict.fromkeys(range(4), (1, 512)))
    cloud.boot(LC)
    scores = {}
    real = session.Engine.weigh

    def watched(engine, weighed, spec):
        found = real(engine, weighed, spec)
        scores.update(
            {
                each.obj.host: (value, engine.weight_multiplier(each.obj))
                for each, value in zip(weighed, found, strict=True)
            }
        )
        return found

    with mock.patch.object(session.Engine, "weigh", watched):
        [(host, _)] = cloud.boot(LC)
    assert scores["seen1"] == scores["seen2"] == (scores["ranked"][0], 10.0)
    assert host == "seen1"


def test_a_slip_in_the_metadata_of_an_aggregate_is_logged_once(caplog):
    aggregates._logged.clear()
    states = [
        SimpleNamespace(uuid=str(n), host=f"h{n}", aggregates=in_aggregate("obsrve"))
        for n in range(1000)
    ]
    for _ in range(2):
        assert aggregates.gentle(states, Mode.ENFORCE) == {}
    [record] = caplog.records
    assert "numa_ext_mode=obsrve, which is none of observe, rank, enforce" in record.getMessage()


@pytest.mark.parametrize("starts", [True, False])
def test_a_fault_refuses_only_hosts_that_are_enforced(nova_configuration, monkeypatch, starts):
    views = [HostView(f"root{n}", f"h{n}", frozenset(TRAITS), None, (domain(0),)) for n in range(3)]
    states = [state_of(view) for view in views]
    states[0].aggregates = in_aggregate("observe")
    states[1].aggregates = in_aggregate("rank")
    nova_configuration.set("on_error", "refuse", "numa_ext")
    monkeypatch.setattr(fleet, "from_nova", (lambda *_: Fleet(views)) if starts else None)
    monkeypatch.setattr(session, "decide", None)
    nova_configuration.set("journal_path", "", "numa_ext")
    process.use(None)
    assert NumaExtFilter().filter_all(states, request_spec(LC)) == states[:2]
    assert NumaExtFilter().filter_all(states, request_spec({})) == states


# The short list -------------------------------------------------------------------------------------------------------


@pytest.fixture
def crowd(nova_configuration, monkeypatch):
    """What builds an engine, and HostStates with candidates::

    26 hosts    nearly sold out: free CPUs, but no NUMA node has two
     4 hosts    with room; of all thirty at most 8 are judged
    """
    monkeypatch.setattr(fleet, "from_nova", fleet.from_nova)
    cloud = Cloud(HOSTS, 4, 4)
    [flavor] = [flavor for flavor in FLAVORS if flavor.name == "LC one node"]
    nova_scheduler.configure(ours=True, slow=True, shortlist=8)
    spec = request_of(1, flavor, 1)

    def states():
        offered = cloud.offer(spec, flavor)
        found = cloud.host_states(offered)
        for state in found:
            state.allocation_candidates = list(offered[state.uuid])
        return found

    def engine(**options):
        return session.Engine(CONF, SchedulerOptions(shortlist=8, **options), cloud, None)

    return SimpleNamespace(states=states, engine=engine, spec=spec)


def test_observe_never_cuts_and_judges_no_more_than_enforce(crowd):
    states = crowd.states()
    before = copy.deepcopy([state.allocation_candidates for state in states])
    engine = crowd.engine(mode=Mode.OBSERVE)
    assert engine.filter(states, crowd.spec) is states
    assert [state.allocation_candidates for state in states] == before
    watched = engine._passes[crowd.spec].judged
    enforcing = crowd.engine()
    enforcing.filter(crowd.states(), crowd.spec)
    enforced = enforcing._passes[crowd.spec].judged
    assert watched.verdicts.keys() == enforced.verdicts.keys()
    assert {found.uuid for found in watched.spared} == {found.uuid for found in enforced.refused}


def test_rank_returns_every_host_where_too_few_can_serve(crowd):
    states = crowd.states()
    assert len(states) == HOSTS
    assert crowd.engine(mode=Mode.RANK).filter(states, crowd.spec) == states
    assert len(crowd.engine().filter(crowd.states(), crowd.spec)) == 4


def test_only_hosts_that_are_not_observed_are_cut(crowd):
    states = crowd.states()
    for state in states[::2]:
        state.aggregates = in_aggregate("observe")
    left = crowd.engine().filter(states, crowd.spec)
    assert [state for state in left if state in states[::2]] == states[::2]
    assert len(left) < len(states)
    assert left == [state for state in states if state in left]
