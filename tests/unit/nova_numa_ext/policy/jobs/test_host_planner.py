# SPDX-License-Identifier: Apache-2.0
"""Places on hosts, by what Placement counts."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.jobs_round import drawn
from nova_numa_ext.policy.gpu.coarse import utility as utility_of_nodes
from nova_numa_ext.policy.jobs import host_aspects, postponing
from nova_numa_ext.policy.jobs.host_aspects import Gpus, PlannerSettings
from nova_numa_ext.policy.jobs.host_planner import HostPlanner
from nova_numa_ext.policy.jobs.host_view import HostClaims, HostsView
from nova_numa_ext.policy.jobs.job import ActiveJob, Job, Part, Scope, ScopeWait
from nova_numa_ext.policy.jobs.plan import HostPlace, Never, Outcome, Plan, Wait
from nova_numa_ext.policy.jobs.queue import Fleet, decide
from nova_numa_ext.policy.jobs.queue_round import QueueRound
from nova_numa_ext.policy.jobs.queue_settings import Discipline, QueueSettings
from nova_numa_ext.policy.jobs.terms import JobTerm, sentence
from nova_numa_ext.policy.terms import Term
from placement_traits import names
from placement_traits.fleet import Amount
from placement_traits.names import DRAINED
from placement_traits.request import parse
from placement_traits.workload_request import WorkloadRequest
from tests.support.fleet import lc
from tests.support.job_hosts import amounts, gpu_request, machine, root, view


def plain(vcpus: int) -> WorkloadRequest:
    return parse({}, vcpus=vcpus, memory_mb=1024)


SMALL = plain(8)


def part(name: str = "p", count: int = 1, request: WorkloadRequest = SMALL, **more: object) -> Part:
    return Part(name, count, "flavor", request, **more)  # type: ignore[arg-type]


def job(*parts: Part, uuid: str = "job", **more: object) -> Job:
    return Job(uuid, "project", parts, 0.0, **more)  # type: ignore[arg-type]


def planned(
    asked: Job, hosts: HostsView, claims: HostClaims | None = None, now: float = 0.0
) -> Outcome[HostPlace]:
    taken = claims or HostClaims(hosts)
    return HostPlanner().plan(asked, hosts, taken, now, PlannerSettings())


def placed(outcome: Outcome[HostPlace]) -> set[tuple[str, str, int]]:
    """Part, host, servers."""
    assert isinstance(outcome, Plan), outcome
    hosts = {root(name): name for name in ("a", "b", "c", "d")}
    return {(each.part, hosts[each.host], each.count) for each in outcome.places}


def why(outcome: Outcome[HostPlace]) -> list[str]:
    assert not isinstance(outcome, Plan)
    return [sentence(reason) for reason in outcome.reasons]


def test_disk_is_counted_where_hosts_have_their_own() -> None:
    """Where a provider that hosts share has it, nova asks that one."""
    own = amounts()
    shared = {name: amount for name, amount in own.items() if name != names.DISK_GB}
    asked = job(part(disk_gb=600))
    assert why(planned(asked, view(a=own)))
    assert placed(planned(asked, view(a=shared))) == {("p", "a", 1)}


def test_servers_go_to_the_tightest_host_that_holds_them_all() -> None:
    hosts = view(a=amounts(32), b=amounts(16), c=amounts(24))
    assert placed(planned(job(part(count=1)), hosts)) == {("p", "b", 1)}
    assert placed(planned(job(part(count=3)), hosts)) == {("p", "c", 3)}
    assert placed(planned(job(part(count=6)), hosts)) == {("p", "a", 4), ("p", "c", 2)}


def test_what_is_used_and_what_jobs_took_is_not_given_again() -> None:
    hosts = view(a=amounts(32, used=16))
    claims = HostClaims(hosts)
    first = planned(job(part(count=2)), hosts, claims)
    assert isinstance(first, Plan)
    claims.take(job(part(count=2)), first)
    assert why(planned(job(part()), hosts, claims)) == [
        "part p: servers that find a place: 0, requested: 1"
    ]
    claims.give(job(part(count=2)), first)
    assert isinstance(planned(job(part(count=2)), hosts, claims), Plan)


def test_more_than_all_empty_hosts_hold_is_never_placed() -> None:
    hosts = view(a=amounts(32, used=32), b=amounts(16))
    outcome = planned(job(part(count=7)), hosts)
    assert isinstance(outcome, Never)
    assert why(outcome) == [
        "part p: servers that would find a place if all hosts were empty: 6, requested: 7"
    ]
    assert isinstance(planned(job(part(count=6)), hosts), Wait)
    assert isinstance(planned(job(part(request=plain(64))), hosts), Never)
    assert isinstance(planned(job(part()), view()), Wait), "an empty view says nothing"


def test_parts_find_places_together_or_not_at_all() -> None:
    hosts = view(a=amounts(16), b=amounts(8))
    both = job(part("one", 2), part("two", 1))
    assert placed(planned(both, hosts)) == {("one", "a", 2), ("two", "b", 1)}
    claims = HostClaims(hosts)
    claims.put(part(), 1, 1)
    before = claims.taken.copy()
    assert isinstance(planned(both, hosts, claims), Wait)
    assert (claims.taken == before).all(), "nothing is taken by asking"


def test_f_000_08_parts_and_servers_that_must_be_apart_are_on_different_hosts() -> None:
    hosts = view(a=amounts(32), b=amounts(32))
    apart = job(part("one"), part("two"), apart=True)
    assert {host for _, host, _ in placed(planned(apart, hosts))} == {"a", "b"}
    each = job(part(count=2, apart=True))
    assert placed(planned(each, hosts)) == {("p", "a", 1), ("p", "b", 1)}
    assert isinstance(planned(job(part(count=3, apart=True)), hosts), Never)


def test_one_host_is_waited_for_and_then_several_will_do() -> None:
    hosts = view(a=amounts(32, used=16), b=amounts(16))
    waits = (ScopeWait(Scope.HOST, 600.0), ScopeWait(Scope.FLEET))
    narrow = job(part(count=3, wait_for=waits))
    outcome = planned(narrow, hosts, now=100.0)
    assert isinstance(outcome, Wait) and outcome.until == 600.0
    assert why(outcome)[1] == "part p waits for a place within one host, 500 s more"
    assert placed(planned(narrow, hosts, now=600.0)) == {("p", "a", 2), ("p", "b", 1)}
    assert HostPlanner().kind(narrow, 100.0) != HostPlanner().kind(narrow, 600.0)
    stopped = replace(narrow, queued_at=5000.0, waited_s=100.0)
    outcome = planned(stopped, hosts, now=5000.0)
    assert isinstance(outcome, Wait) and outcome.until == 5500.0


def test_each_job_is_given_its_own_time_until_the_next_wider_place() -> None:
    waits = (ScopeWait(Scope.HOST, 600.0), ScopeWait(Scope.FLEET))
    hosts = view(a=amounts(32, used=16), b=amounts(16))
    old = job(part(count=3, wait_for=waits), uuid="old")
    new = replace(old, uuid="new", submitted_at=50.0)
    found = a_round([old, new], [], hosts, 100.0, QueueSettings(Discipline.GREEDY))
    assert {uuid: wait.until for uuid, wait in found.waits.items()} == {"old": 600.0, "new": 650.0}
    assert [sentence(found.waits[uuid].reasons[1]).split()[-3] for uuid in ("old", "new")] == [
        "500",
        "550",
    ]


def test_hosts_that_nova_refused_are_left_out() -> None:
    hosts = view(a=amounts(32), b=amounts(32))
    first = planned(job(part()), hosts)
    assert placed(first) == {("p", "a", 1)}
    assert isinstance(first, Plan)
    tried = [place.host for place in first.places]
    refused = postponing.refused(frozenset(), 0, tried, 5.0)
    again = job(part(), **refused)
    assert (again.postponed, again.postponed_at) == (1, 5.0)
    assert placed(planned(again, hosts)) == {("p", "b", 1)}
    refused = frozenset({root("a"), root("b"), root("gone")})
    outcome = planned(job(part(), excluded=refused), hosts)
    assert isinstance(outcome, Wait)
    assert outcome.reasons[1].term == JobTerm.HOSTS_EXCLUDED


def test_refusals_that_follow_each_other_leave_out_all_of_their_hosts() -> None:
    """Nova takes the last of twenty hosts only: the plans come to it, they do not go to and fro."""
    hosts = view(**{f"h{number:02}": amounts(32) for number in range(20)})
    asked, rounds = job(part()), 0
    while True:
        rounds += 1
        plan = planned(asked, hosts)
        assert isinstance(plan, Plan) and rounds <= 4
        tried = {place.host for place in (*plan.places, *plan.spare)}
        assert not tried & asked.excluded
        if root("h19") in tried:
            break
        asked = replace(
            asked, **postponing.refused(asked.excluded, asked.postponed, tried, float(rounds))
        )


def test_hosts_whose_agent_is_silent_come_last_for_those_who_count_on_it() -> None:
    """A rack that has lost its power is the tightest one, and still in Placement."""
    dead = [machine(name, ways=4) for name in ("a", "b")]
    dead = [replace(each, traits=each.traits | {names.SILENT}) for each in dead]
    hosts = view(*dead, machine("c"), machine("d"))
    asked = job(part(request=lc(4)))
    found = planned(asked, hosts)
    assert placed(found) == {("p", "c", 1)}
    assert isinstance(found, Plan)
    assert [each.host for each in found.spare] == [root(name) for name in ("d", "a", "b")]
    assert placed(planned(job(part()), hosts)) == {("p", "a", 1)}
    spread = planned(job(part(count=2, request=lc(4), apart=True)), hosts)
    assert placed(spread) == {("p", "c", 1), ("p", "d", 1)}
    only = replace(asked, excluded=frozenset({root("c"), root("d")}))
    assert placed(planned(only, hosts)) == {("p", "a", 1)}, "it ranks, it does not refuse"


def test_hosts_that_nova_refused_are_named_where_the_gpus_of_others_are_not_good_enough() -> None:
    """Or they would stay left out for as long as other hosts have GPUs."""
    hosts = view(machine("a"), machine("b", busy=(0, 3)))
    for policy in ("topo", "topo_p"):
        picky = part(request=gpu_request(2, policy, 0.9))
        outcome = planned(job(picky, excluded=frozenset({root("a")})), hosts)
        assert isinstance(outcome, Wait)
        assert outcome.reasons[-1].term == JobTerm.HOSTS_EXCLUDED


def test_drained_closed_and_unable_hosts_take_nothing() -> None:
    ready, drained = machine("a"), machine("b")
    drained = replace(drained, traits=drained.traits | {DRAINED})
    hosts = view(ready, drained, c=amounts())
    assert placed(planned(job(part(count=1, request=lc())), hosts)) == {("p", "a", 1)}
    assert isinstance(planned(job(part(request=lc())), view(drained)), Wait), "not for ever"
    closed = view(ready, closed=["a"])
    assert isinstance(planned(job(part(request=lc())), closed), Wait)


def test_ways_come_from_whole_domains() -> None:
    """13 ways each: 5 + 13 free are room for one server of 6 ways in the first and two in the second."""
    hosts = view(machine("a", ways=8))
    asked = lc(6)
    assert placed(planned(job(part(count=2, request=asked)), hosts)) == {("p", "a", 2)}
    assert isinstance(planned(job(part(count=3, request=asked)), hosts), Wait)


# GPUs -----------------------------------------------------------------------------------------------------------------


def test_gpus_near_each_other_are_preferred() -> None:
    hosts = view(machine("a", busy=(0, 3)), machine("b", busy=(0, 1)))
    assert placed(planned(job(part(request=gpu_request(2))), hosts)) == {("p", "b", 1)}
    assert isinstance(planned(job(part(request=gpu_request(5))), hosts), Never)


def test_hosts_without_an_agent_and_without_gpus_confuse_nothing() -> None:
    asked = job(part(request=gpu_request(2, minimum=0.6)))
    bare = machine("b", gpus=0)
    hosts = view(machine("a"), bare, c=amounts(), d=amounts())
    outcome = planned(asked, hosts)
    assert placed(outcome) == {("p", "a", 1)}
    assert isinstance(outcome, Plan) and outcome.utility >= 0.6
    assert isinstance(planned(asked, view(bare, c=amounts())), Never)


def test_f_000_15_topo_p_waits_for_a_better_place_and_topo_is_refused_as_by_the_filter() -> None:
    scattered = view(machine("a", busy=(0, 3)))
    asked = job(part(request=gpu_request(2, minimum=0.6)))
    outcome = planned(asked, scattered)
    assert isinstance(outcome, Wait) and outcome.postponed
    assert why(outcome)[0] == "part p: a better place is waited for, postponed 0 times of 10"
    together = view(machine("a", busy=(0, 1)))
    found = planned(asked, together)
    assert isinstance(found, Plan) and found.utility >= 0.6
    refused = planned(job(part(request=gpu_request(2, "topo", 0.6))), scattered)
    assert isinstance(refused, Wait) and not refused.postponed
    assert [reason.term for reason in refused.reasons] == [Term.GPU_BELOW_MINIMUM]


@pytest.mark.parametrize(("postponed", "waits"), [(0, True), (9, True), (10, False)])
def test_f_000_35_the_eleventh_attempt_is_placed(postponed: int, waits: bool) -> None:
    scattered = view(machine("a", busy=(0, 3)))
    asked = job(part(request=gpu_request(2, minimum=0.6)), postponed=postponed)
    assert isinstance(planned(asked, scattered), Wait) == waits


def test_the_guess_about_a_host_does_not_depend_on_the_other_hosts() -> None:
    """Hosts that are alike are guessed once: each of them as if it was alone."""
    request = parse(
        {"pci_passthrough:alias": "gpu:2", "numa_ext:gpu_comm": "3"}, vcpus=4, memory_mb=512
    )
    asked = Part("p", 1, "flavor", request)
    whole = drawn(hosts=60, waiting=1, seed=5, free=0.7).view
    offered = Gpus().offer(asked, whole, HostClaims(whole), PlannerSettings())
    assert offered.utility is not None
    assert len({*offered.utility.tolist()}) > 4
    for row, host in enumerate(whole.roots):
        kept = {other: None for other in whole.roots if other != host}
        arrays = whole.arrays.with_changes(kept, 1)
        amounts_of = {
            name: Amount(int(whole.capacity[at, row]), int(whole.used[at, row]))
            for name, at in whole.classes.items()
            if name in (names.VCPU, names.PCPU, names.MEMORY_MB)
        }
        alone = HostsView.of(arrays, {host: amounts_of}, aliases=whole.aliases)
        found = Gpus().offer(asked, alone, HostClaims(alone), PlannerSettings()).utility
        assert (found is None) == (len(arrays.gpus) == 0)
        assert (0.0 if found is None else found[0]) == offered.utility[row], row


def test_gpus_that_jobs_have_taken_are_guessed() -> None:
    hosts = view(machine("a"))
    claims = HostClaims(hosts)
    asked = job(part(request=gpu_request(2)))
    for _ in range(2):
        outcome = planned(asked, hosts, claims)
        assert isinstance(outcome, Plan) and outcome.utility > 0.5
        claims.take(asked, outcome)
    assert isinstance(planned(asked, hosts, claims), Wait)
    claims.give(asked, Plan((HostPlace("p", root("a"), 1),)))
    again = planned(asked, hosts, claims)
    assert isinstance(again, Plan) and again.utility > 0.5


def test_gpus_are_guessed_once_for_hosts_that_are_alike_and_as_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four hosts get four jobs each: hosts have 0 to 4 of their GPUs taken, and a guess is of one of these."""
    guessed = []

    def counted(*asked: Any) -> Any:
        guessed.append(asked)
        return utility_of_nodes(*asked)

    monkeypatch.setattr(host_aspects, "utility_of_nodes", counted)
    hosts = view(*map(machine, "abcd"))
    claims, asked = HostClaims(hosts), job(part(request=gpu_request(1)))
    for _ in range(16):
        outcome = planned(asked, hosts, claims)
        assert isinstance(outcome, Plan) and outcome.utility > 0.5
        claims.take(asked, outcome)
    assert isinstance(planned(asked, hosts, claims), Wait)
    assert len(guessed) == 5


def test_a_part_with_gpus_and_one_without_start_together_or_wait_together() -> None:
    hosts = view(machine("a"), b=amounts(16))
    both = job(part("gpu", 2, gpu_request(2)), part("cpu", 2))
    assert placed(planned(both, hosts)) == {("gpu", "a", 2), ("cpu", "b", 2)}
    busy = view(machine("a", busy=(0,)), b=amounts(16))
    assert isinstance(planned(both, busy), Wait)


# In the queue ---------------------------------------------------------------------------------------------------------


def a_round(
    waiting: list[Job],
    active: list[ActiveJob[Plan[HostPlace]]],
    hosts: HostsView,
    now: float,
    settings: QueueSettings,
) -> QueueRound[HostPlace]:
    fleet = Fleet(hosts, HostClaims(hosts), HostPlanner(), PlannerSettings())
    return decide(waiting, active, fleet, now, settings)


def test_f_000_16_topo_p_starts_when_a_job_ends_and_lets_others_pass() -> None:
    picky = job(part(request=gpu_request(2, minimum=0.6)), uuid="picky")
    other = job(part(request=gpu_request(1)), uuid="other")
    found = a_round([picky, other], [], view(machine("a", busy=(0, 3))), 10.0, QueueSettings())
    assert [start.job.uuid for start in found.starts] == ["other"]
    assert found.postponed == ("picky",)
    recently = replace(picky, postponed=1, postponed_at=5.0)
    found = a_round([recently], [], view(machine("a", busy=(0, 3))), 10.0, QueueSettings())
    assert found.postponed == ()
    found = a_round([recently], [], view(machine("a", busy=(0, 1))), 10.0, QueueSettings())
    assert [start.job.uuid for start in found.starts] == ["picky"]


def test_a_reservation_counts_what_the_view_shows_as_used() -> None:
    """The running job is in the view already; its place is free at its walltime."""
    hosts = view(a=amounts(32, used=16))
    first = job(part(count=2), uuid="first", walltime_s=100.0)
    active = [ActiveJob(first, Plan((HostPlace("p", root("a"), 2),)), 0.0)]
    wide = job(part(count=4), uuid="wide")
    short = job(part(), uuid="short", walltime_s=80.0)
    long = job(part(), uuid="long", walltime_s=200.0)
    found = a_round([wide, long, short], active, hosts, 10.0, QueueSettings(Discipline.EASY))
    assert [start.job.uuid for start in found.starts] == ["short"]
    assert [kept.at for kept in found.reservations] == [100.0]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from((4, 8, 16))), min_size=1, max_size=12),
    st.lists(st.integers(0, 32), min_size=1, max_size=4),
    st.sampled_from(Discipline),
)
def test_no_round_takes_more_than_there_is(
    sizes: list[tuple[int, int]], used: list[int], discipline: Discipline
) -> None:
    hosts = view(**{name: amounts(32, used=each) for name, each in zip("abcd", used, strict=False)})
    jobs = [
        job(part(count=count, request=plain(vcpus)), uuid=f"{number}", walltime_s=60.0)
        for number, (count, vcpus) in enumerate(sizes)
    ]
    claims = HostClaims(hosts)
    fleet = Fleet(hosts, claims, HostPlanner(), PlannerSettings())
    found = decide(jobs, [], fleet, 0.0, QueueSettings(discipline))
    assert (hosts.capacity - hosts.used - claims.taken >= 0).all()
    counted = HostClaims(hosts)
    for start in found.starts:
        assert sum(place.count for place in start.plan.places) == start.job.servers
        counted.take(start.job, start.plan)
    assert (counted.taken == claims.taken).all()


def spare(outcome: Outcome[HostPlace]) -> list[tuple[str, str, int]]:
    """Part, host, servers, in order."""
    assert isinstance(outcome, Plan), outcome
    hosts = {root(name): name for name in ("a", "b", "c", "d")}
    return [(each.part, hosts[each.host], each.count) for each in outcome.spare]


def test_spare_hosts_are_next_in_the_order_and_hold_nothing() -> None:
    hosts = view(a=amounts(32), b=amounts(16), c=amounts(24), d=amounts(32, used=32))
    claims = HostClaims(hosts)
    before = claims.taken.copy()
    assert spare(planned(job(part()), hosts, claims)) == [("p", "c", 1), ("p", "a", 1)]
    assert spare(planned(job(part(count=6)), hosts)) == [("p", "b", 2)]
    one_host = part(count=3, wait_for=(ScopeWait(Scope.HOST),))
    assert spare(planned(job(one_host), hosts)) == [("p", "a", 3)]
    barred = job(part(), excluded=frozenset({root("c")}))
    assert spare(planned(barred, hosts)) == [("p", "a", 1)]
    assert spare(planned(job(part("one"), part("two"), apart=True), hosts)) == []
    assert (claims.taken == before).all()


def test_a_spare_host_has_gpus_that_are_good_enough() -> None:
    hosts = view(machine("a"), machine("b", busy=(0, 3)), machine("c", busy=(0, 1)))
    asked = job(part(request=gpu_request(2, minimum=0.6)))
    outcome = planned(asked, hosts)
    assert {host for _, host, _ in placed(outcome)} | {host for _, host, _ in spare(outcome)} == {
        "a",
        "c",
    }


# The fabric -----------------------------------------------------------------------------------------------------------

ONE_LEAF = (ScopeWait(Scope.LEAF),)
LEAF_THEN_ANY = (ScopeWait(Scope.LEAF, 600), ScopeWait(Scope.FLEET))


def on_leafs(leafs: dict[str, str], **more: dict[str, Any]) -> HostsView:
    """Hosts with an agent, each with the trait of its leaf ('' for none) and what is given of it."""
    hosts = []
    for name, leaf in leafs.items():
        host = machine(name, **more.get(name, {}))
        trait = names.leaf_trait("train", leaf) if leaf else None
        hosts.append(replace(host, traits=host.traits | ({trait} if trait else set())))
    return view(*hosts)


def test_a_part_is_on_hosts_of_one_leaf_or_waits() -> None:
    hosts = on_leafs({"a": "l1", "b": "l2", "c": "l2", "d": ""})
    of_host = int(
        HostPlanner()._offered(part(), hosts, HostClaims(hosts), PlannerSettings()).counts.min()
    )
    assert of_host == 4
    assert placed(planned(job(part(count=6, wait_for=ONE_LEAF)), hosts)) in (
        {("p", "b", 4), ("p", "c", 2)},
        {("p", "b", 2), ("p", "c", 4)},
    )
    assert {
        host for _, host, _ in placed(planned(job(part(count=3, wait_for=ONE_LEAF)), hosts))
    } <= set("abcd")
    too_wide = planned(job(part(count=9, wait_for=ONE_LEAF)), hosts)
    assert isinstance(too_wide, Never)
    assert why(too_wide) == [
        "part p: servers that would find a place if all hosts were empty: 8, requested: 9"
    ]


def test_a_leaf_is_waited_for_as_long_as_the_part_says() -> None:
    hosts = on_leafs({"a": "l1", "b": "l1", "c": "l2", "d": "l2"})
    claims = HostClaims(hosts)
    for row in (0, 2):
        claims.put(part(), row, 3)
    asked = job(part(count=6, wait_for=LEAF_THEN_ANY))
    outcome = planned(asked, hosts, claims)
    assert isinstance(outcome, Wait)
    assert (outcome.until, why(outcome)) == (
        600.0,
        [
            "part p: servers that find a place: 5, requested: 6",
            "part p waits for a place within one leaf, 600 s more",
        ],
    )
    assert isinstance(planned(asked, hosts, claims, now=600.0), Plan)


def test_the_tightest_leaf_whose_agents_are_heard_is_taken() -> None:
    hosts = on_leafs({"a": "l1", "b": "l1", "c": "l2", "d": "l2"})
    claims = HostClaims(hosts)
    claims.put(part(), 2, 2)
    asked = job(part(count=6, wait_for=ONE_LEAF))
    assert {host for _, host, _ in placed(planned(asked, hosts, claims))} == {"c", "d"}
    silent = view(
        *(
            replace(
                machine(name),
                traits=machine(name).traits | {names.leaf_trait("train", leaf), *more},
            )
            for name, leaf, more in (
                ("a", "l1", ()),
                ("b", "l1", ()),
                ("c", "l2", ()),
                ("d", "l2", (names.SILENT,)),
            )
        )
    )
    claims = HostClaims(silent)
    counting_on_agents = part(count=8, request=lc(4), wait_for=ONE_LEAF)
    claims.put(counting_on_agents, 2, 2)
    found = placed(planned(job(counting_on_agents), silent, claims))
    assert {host for _, host, _ in found} == {"a", "b"}


def test_a_host_that_hangs_elsewhere_than_planned_is_on_no_leaf() -> None:
    leaf = names.leaf_trait("train", "l1")
    hosts = view(
        *(
            replace(machine(name), traits=machine(name).traits | {leaf, *more})
            for name, more in (("a", ()), ("b", (names.MISCABLED,)))
        )
    )
    assert hosts.leaf.tolist() == [0, -1]
    assert isinstance(planned(job(part(count=6, wait_for=ONE_LEAF)), hosts), Never)


def test_hosts_that_nova_may_take_instead_hang_on_the_same_leaf() -> None:
    hosts = on_leafs({"a": "l1", "b": "l1", "c": "l2", "d": ""})
    found = planned(job(part(count=4, wait_for=ONE_LEAF), excluded=frozenset({root("c")})), hosts)
    assert isinstance(found, Plan)
    (place,) = found.places
    spare = {each.host for each in found.spare}
    beside = {root("a"): {root("b")}, root("b"): {root("a")}, root("d"): set()}
    assert spare == beside[place.host]


@given(
    leafs=st.lists(st.sampled_from(["l1", "l2", "l3", ""]), min_size=1, max_size=4),
    taken=st.lists(st.integers(0, 4), min_size=4, max_size=4),
    busy=st.lists(st.sampled_from([(), (0,), (0, 1), (0, 2)]), min_size=4, max_size=4),
    count=st.integers(1, 9),
    gpus=st.booleans(),
)
def test_a_plan_within_a_leaf_is_found_whenever_there_is_one(
    leafs: list[str], taken: list[int], busy: list[tuple[int, ...]], count: int, gpus: bool
) -> None:
    """Against all leafs and hosts, one after the other."""
    of_hosts = dict(zip("abcd", leafs, strict=False))
    hosts = on_leafs(of_hosts, **{name: {"busy": busy[at]} for at, name in enumerate(of_hosts)})
    claims = HostClaims(hosts)
    for row in range(len(of_hosts)):
        claims.put(part(), row, taken[row])
    request = gpu_request(1) if gpus else SMALL
    asked = part(count=count, request=request, wait_for=ONE_LEAF)
    room = HostPlanner()._offered(asked, hosts, claims, PlannerSettings()).counts.tolist()
    sums = Counter[str]()
    for (name, leaf), free in zip(of_hosts.items(), room, strict=True):
        sums[leaf or f"alone {name}"] += max(free, 0)
    outcome = planned(job(asked), hosts, claims)
    assert isinstance(outcome, Plan) == (max(sums.values()) >= count)
    if isinstance(outcome, Plan):
        on = {of_hosts[name] or name for _, name, _ in placed(outcome)}
        assert len(on) == 1
        assert sum(each.count for each in outcome.places) == count
