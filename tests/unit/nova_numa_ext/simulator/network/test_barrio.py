# SPDX-License-Identifier: Apache-2.0
"""Logs replayed on fabrics: what is counted is what the definitions count, and policies come in the thesis' order."""

import random
from dataclasses import fields
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.jobs.plan import Plan
from nova_numa_ext.policy.jobs.queue_settings import Discipline
from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlaces, LeafPlan, PolicyName
from nova_numa_ext.policy.network.pairs import LogMetrics, PlacedGroup, metrics
from nova_numa_ext.policy.network.planner import places
from nova_numa_ext.simulator.network import mixes
from nova_numa_ext.simulator.network.account import LeafAccount
from nova_numa_ext.simulator.network.barrio import LogReplay, WaitingJobs, replay
from nova_numa_ext.simulator.network.fabric_queue import FabricClaims, FabricPlanner
from nova_numa_ext.simulator.network.mixes import LoggedJob
from placement_traits import names
from placement_traits.errors import InvalidValueError
from placement_traits.fabric import Fabric
from placement_traits.names import NetClass, UplinkShare
from tests.support.fabrics import Groups, fabric

FA, FC, VNB, EX = (
    PolicyName.FIRST_AVAILABLE,
    PolicyName.FIRST_CONTIGUOUS,
    PolicyName.VNB,
    PolicyName.EXCLUSIVE,
)
MARENOSTRUM = fabric([18] * 172, leafs_per_pod=18)


def groups_of(found: LogReplay, plan: Fabric) -> list[PlacedGroup]:
    """The jobs of a replay as the definitions take them."""
    return [
        PlacedGroup(
            str(each.job.number),
            each.job.hosts,
            each.job.submitted_at,
            each.started_at,
            each.ended_at,
            frozenset(each.places),
            frozenset(plan.above(leaf)[0] for leaf in each.places),
        )
        for each in found.jobs
    ]


def jobs_of(seed: int, count: int, most: int) -> list[LoggedJob]:
    chance = random.Random(seed)
    times = sorted(chance.randint(0, 300) for _ in range(count))
    return [
        LoggedJob(number, float(at), float(chance.randint(1, 100)), chance.randint(1, most))
        for number, at in enumerate(times)
    ]


@pytest.mark.parametrize("policy", list(PolicyName))
@pytest.mark.parametrize("order", list(Discipline))
def test_the_six_metrics_are_those_of_their_definitions(
    policy: PolicyName, order: Discipline
) -> None:
    plan = fabric([6] * 8, leafs_per_pod=3)
    for seed in range(3):
        found = replay(jobs_of(seed, 60, 20), plan, policy, order)
        assert len(found.jobs) + len(found.never) == 60
        expected = metrics(groups_of(found, plan), len(plan.hosts))
        for name in (each.name for each in fields(LogMetrics)):
            assert getattr(found.metrics, name) == pytest.approx(getattr(expected, name)), name


@pytest.mark.parametrize("policy", list(PolicyName))
@pytest.mark.parametrize("discipline", list(Discipline))
def test_what_is_not_asked_again_would_be_refused(
    policy: PolicyName, discipline: Discipline
) -> None:
    """Larger jobs than one that has no place are not planned at all."""
    plan = fabric([6] * 8, leafs_per_pod=3)
    for jobs in (jobs_of(seed, 60, 20) for seed in range(3)):
        found = replay(jobs, plan, policy, discipline)
        assert replay(jobs, plan, policy, discipline, remembers=False) == found


def test_a_size_that_was_refused_comes_back_behind_the_job_that_starts_after_it() -> None:
    """A large group may make the leaf for remainders in which a small one then has a place."""
    plan = fabric([6] * 8, leafs_per_pod=3)
    planner, claims = FabricPlanner(plan, VNB), FabricClaims(LeafAccount(plan))
    waiting = WaitingJobs()
    for number, hosts in enumerate((3, 3, 8, 3, 2, 3)):
        waiting.add(LoggedJob(number, float(number), 1.0, hosts))
    claims.refuse(2, 0.0)  # before the round: it stays so
    asked = []
    for job in waiting.not_refused(planner, claims):
        asked.append(job.uuid)
        if job.uuid == "2":
            claims.take(job, Plan((LeafPlan(()),)))
        else:
            claims.refuse(job.parts[0].count, 0.0)
    assert asked == ["0", "2", "3"]


@pytest.mark.parametrize("policy", list(PolicyName))
def test_no_leaf_has_more_jobs_than_hosts_at_any_time(policy: PolicyName) -> None:
    plan = fabric([6] * 8, leafs_per_pod=3)
    found = replay(jobs_of(7, 80, 20), plan, policy)
    for now in sorted({each.started_at for each in found.jobs}):
        there = [each for each in found.jobs if each.started_at <= now < each.ended_at]
        for leaf in plan.leafs:
            assert sum(each.places.get(leaf, 0) for each in there) <= 6
    assert all(sum(each.places.values()) == each.job.hosts for each in found.jobs)
    assert all(each.waited_s >= 0 for each in found.jobs)


@given(
    st.integers(0, 2**16),
    st.sampled_from([UplinkShare.SHARED, UplinkShare.QUIET, UplinkShare.EXCLUSIVE]),
)
def test_the_account_is_the_one_that_is_made_anew(seed: int, share: UplinkShare) -> None:
    chance = random.Random(seed)
    plan = fabric([6, 6, 6, 5, 6, 4], leafs_per_pod=3)
    known, account = Groups(plan), LeafAccount(plan)
    plans: dict[str, LeafPlan] = {}
    for step in range(12):
        if plans and chance.random() < 0.4:
            name = chance.choice(sorted(plans))
            account.end(plans.pop(name))
            known.end(name)
        else:
            asked = GroupRequest(chance.randint(1, 14), share, net_class=chance.choice([*NetClass]))
            found = known.start(str(step), asked)
            if isinstance(found, LeafPlan):
                plans[str(step)] = found
                account.start(found)
        assert account.leafs.leafs == known.leafs.leafs
        assert {node: held for node, held in account.leafs.uplinks.items() if held} == {
            node: held for node, held in known.leafs.uplinks.items() if held
        }


def test_who_is_behind_a_large_job_waits_only_in_the_order_of_the_queue() -> None:
    plan = fabric([4, 4], leafs_per_pod=2)
    jobs = [LoggedJob(1, 0, 10, 6), LoggedJob(2, 1, 10, 8), LoggedJob(3, 2, 10, 2)]
    greedy = replay(jobs, plan, FA)
    assert {each.job.number: each.started_at for each in greedy.jobs} == {1: 0, 2: 12, 3: 2}
    assert (greedy.waiting_small_s, greedy.waiting_large_s) == (0.0, 5.5)
    fcfs = replay(jobs, plan, FA, Discipline.FCFS)
    assert {each.job.number: each.started_at for each in fcfs.jobs} == {1: 0, 2: 10, 3: 20}


def test_jobs_pass_a_large_one_under_backfill_where_they_have_ended_before_it_starts() -> None:
    plan = fabric([4, 4], leafs_per_pod=2)
    jobs = [
        LoggedJob(1, 0, 10, 6),
        LoggedJob(2, 1, 10, 8),
        LoggedJob(3, 2, 20, 2),
        LoggedJob(4, 3, 5, 2),
    ]
    for policy in (FA, VNB):
        found = replay(jobs, plan, policy, Discipline.EASY)
        starts = {each.job.number: each.started_at for each in found.jobs}
        assert starts == {1: 0, 2: 10, 3: 20, 4: 3}, policy


def test_free_in_either_of_two_accounts_is_what_is_free_in_both() -> None:
    plan = fabric([4, 4, 4], leafs_per_pod=3)
    quiet, small = (GroupRequest(hosts, UplinkShare.QUIET) for hosts in (8, 2))
    here, there = LeafAccount(plan), LeafAccount(plan)
    for account, asked in ((here, small), (there, quiet), (there, small)):
        found = places(account.leafs, asked)
        assert isinstance(found, LeafPlan)
        account.start(found)
    both = here.either(there)
    assert [leaf.room for leaf in both.leafs.leafs] == [0, 0, 2]
    assert [leaf.is_large for leaf in both.leafs.leafs] == [True, True, False]
    assert [leaf.room for leaf in here.leafs.leafs] == [4, 4, 2]
    held = {"l002": {names.LEAF_REMAINDER: 1}}
    other = LeafAccount(plan)
    other.start(LeafPlan((LeafPlaces("l002", 1),), held))
    assert here.either(other).leafs.leafs[2].room == 0, "its hosts are given in another way there"


@pytest.mark.parametrize("order", list(Discipline))
def test_a_job_without_a_place_on_an_empty_fabric_holds_up_no_other(order: Discipline) -> None:
    plan = fabric([4, 4], leafs_per_pod=2)
    jobs = [LoggedJob(1, 0, 10, 9), LoggedJob(2, 1, 10, 8)]
    seen: list[int] = []
    found = replay(jobs, plan, FA, order, seen.append)
    assert [each.job.number for each in found.jobs] == [2]
    assert found.never == (jobs[0],)
    assert seen[-1] == 1
    with pytest.raises(InvalidValueError, match="8 hosts at most"):
        replay(jobs[:1], plan, FA, order)


def sharing(found: LogReplay) -> tuple[float, ...]:
    all_six = found.metrics
    return all_six.per_group, all_six.sharing, all_six.leaf_pairs, all_six.pod_pairs


def in_order(jobs: tuple[LoggedJob, ...]) -> dict[PolicyName, LogReplay]:
    """F-003-17: by all four metrics of sharing, first available is worst, and nobody shares in pods of one group."""
    found = {policy: replay(jobs, MARENOSTRUM, policy) for policy in (FA, FC, VNB, EX)}
    assert all(len(each.jobs) == len(jobs) for each in found.values())
    assert sharing(found[EX]) == (0, 0, 0, 0)
    for worse, better in pairwise((FA, FC, VNB, EX)):
        pairs = [*zip(sharing(found[worse]), sharing(found[better]), strict=True)]
        assert all(more >= less for more, less in pairs), (worse, better)
        assert all(more > less for more, less in pairs[:2]), (worse, better)
    return found


def test_policies_share_in_the_order_of_the_thesis() -> None:
    """A log that is too short to wait much; ``make bench-vnb`` has all mixes and longer logs."""
    in_order(mixes.draw(mixes.mixes()["c1"], 500, 3096, 1))
