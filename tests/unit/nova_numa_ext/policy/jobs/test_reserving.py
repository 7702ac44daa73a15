# SPDX-License-Identifier: Apache-2.0
"""What is held in Placement for a job whose places others free."""

from nova_numa_ext.policy.jobs import reserving
from nova_numa_ext.policy.jobs.host_aspects import PlannerSettings
from nova_numa_ext.policy.jobs.host_planner import HostPlanner
from nova_numa_ext.policy.jobs.host_view import HostClaims, HostsView
from nova_numa_ext.policy.jobs.job import Job, Part
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount, Wait
from placement_traits import names
from tests.support.fleet import be, lc
from tests.support.job_hosts import amounts, machine, root, uuid, view


def job(count: int = 1, ways: int = 6) -> Job:
    return Job("job", "project", (Part("p", count, "flavor", lc(ways)),), 0.0)


def on_a(count: int = 1) -> Plan[HostPlace]:
    return Plan((HostPlace("p", root("a"), count),))


def held(
    asked: Job, plan: Plan[HostPlace], hosts: HostsView, before: tuple[ProviderAmount, ...] = ()
) -> dict[tuple[str, str], int]:
    found = reserving.amounts(asked, plan, hosts, before)
    return {(each.provider, each.resource_class): each.amount for each in found}


RDT, FIRST, SECOND = uuid("a rdt"), uuid("a 0"), uuid("a 2")


def test_ways_of_one_domain_and_a_class_of_service_are_held_for_each_server() -> None:
    """13 ways each: the first domain has room for two servers of 6, the second one for one more here."""
    hosts = view(machine("a"))
    assert held(job(), on_a(), hosts) == {(RDT, names.RDT_CLOS): 1, (FIRST, names.LLC_WAY): 6}
    assert held(job(3), on_a(3), hosts) == {
        (RDT, names.RDT_CLOS): 3,
        (FIRST, names.LLC_WAY): 12,
        (SECOND, names.LLC_WAY): 6,
    }


def test_what_is_in_use_and_what_is_novas_is_not_held() -> None:
    busy = view(machine("a", ways=8))
    assert held(job(3), on_a(3), busy) == {(RDT, names.RDT_CLOS): 3, (SECOND, names.LLC_WAY): 12}
    plain = Job("job", "project", (Part("p", 4, "flavor", be()),), 0.0)
    assert held(plain, on_a(4), busy) == {}
    assert held(job(), on_a(), view(a=amounts())) == {}, "a host without an agent"
    assert held(job(), on_a(), view()) == {}, "a host that has gone"


def test_what_is_held_already_stays_where_it_is() -> None:
    """The view shows the ways that are held as used, or not yet."""
    before = (ProviderAmount(SECOND, names.LLC_WAY, 6), ProviderAmount(RDT, names.RDT_CLOS, 1))
    for hosts in (view(machine("a")), view(machine("a", ways=13))):
        assert set(reserving.amounts(job(), on_a(), hosts, before)) == set(before)


def test_the_job_itself_plans_with_what_is_held_for_it() -> None:
    hosts = view(machine("a", ways=13))
    all_ways = (ProviderAmount(FIRST, names.LLC_WAY, 13),)
    claims = HostClaims(hosts)
    claims.release((*all_ways, ProviderAmount("gone", names.LLC_WAY, 1)))
    asked = job(4)
    outcome = HostPlanner().plan(asked, hosts, claims, 0.0, PlannerSettings())
    assert isinstance(outcome, Plan) and outcome.places == on_a(4).places
    without = HostPlanner().plan(asked, hosts, HostClaims(hosts), 0.0, PlannerSettings())
    assert isinstance(without, Wait)
