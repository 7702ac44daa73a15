# SPDX-License-Identifier: Apache-2.0
"""A stored job is what was asked for, and its places are counted once: by Placement, or by the queue."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.orchestrator import queued
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan
from nova_numa_ext.policy.jobs.states import JobState
from tests.support.jobs_database import part, stored_job

HOSTS = ("h1", "h2", "h3")


def of_hosts(plan):
    counts = Counter()
    for each in plan.places:
        counts[each.part, each.host] += each.count
    return counts


def test_what_a_job_is_measured_by_is_what_is_stored():
    stored = stored_job(
        parts=(part("gpu", count=3, apart=True),),
        queued_at=90.0,
        waited_s=7.0,
        not_before=5.0,
        postponed=2,
        postponed_at=80.0,
        excluded=frozenset({"h1"}),
        refusals=4,
        held=True,
    )
    job = queued.job(stored)
    assert (job.waiting_s(100.0), job.servers, job.held) == (17.0, 3, True)
    assert (job.not_before, job.postponed, job.postponed_at) == (5.0, 2, 80.0)
    assert (job.excluded, job.refusals, job.parts[0].apart) == ({"h1"}, 4, True)
    assert job.parts[0].request.memory_mb == stored.parts[0].sizes.memory_mb


def test_a_job_that_runs_is_made_once_as_long_as_its_rows_are_as_they_were():
    """Thousands run, and each round looks at all; of one that does not run yet the time is a part."""
    known = queued.KnownJobs()
    runs = stored_job(
        parts=(part("p", count=1, servers={0: "s"}, hosts={0: "h1"}),),
        state=JobState.RUNNING,
        started_at=10.0,
    )
    known.begin()
    first = known.active(runs, 20.0)
    assert of_hosts(first.plan) == {("p", "h1"): 1}
    known.begin()
    assert known.active(runs, 21.0) is first
    known.begin()
    moved = replace(runs, parts=(replace(runs.parts[0], hosts={0: "h2"}),))
    assert of_hosts(known.active(moved, 22.0).plan) == {("p", "h2"): 1}
    planned = replace(runs, state=JobState.PLANNED)
    for now in (23.0, 24.0):
        known.begin()
        assert known.active(planned, now).started_at == now


def test_a_walltime_counts_from_when_a_job_runs():
    """One that was preempted still says when it ran before."""
    stored = stored_job(started_at=10.0, ending_at=45.0, walltime_s=100.0, plan=Plan(()))
    now = 50.0
    ends = {
        state: queued.active(replace(stored, state=state), now).ends_at(now)
        for state in JobState
        if state.active
    }
    assert ends == {
        JobState.PLANNED: 150.0,
        JobState.CLAIMED: 150.0,
        JobState.BUILDING: 150.0,
        JobState.RUNNING: 110.0,
        JobState.ENDING: 50.0,
    }


def test_of_a_job_that_ends_the_servers_count_that_are_somewhere():
    """Planned were three; the third was never made, and of the second nobody knows where it is."""
    one = part("gpu", count=3, servers={0: "a", 1: "b"}, hosts={0: "h2"})
    plan = Plan((HostPlace("gpu", "h2", 1), HostPlace("gpu", "h1", 2)))
    ends = stored_job(parts=(one,), state=JobState.ENDING, plan=plan)
    assert of_hosts(queued.active(ends, 0.0).plan) == {("gpu", "h2"): 1}
    builds = replace(ends, state=JobState.BUILDING)
    assert of_hosts(queued.active(builds, 0.0).plan) == {("gpu", "h2"): 1, ("gpu", "h1"): 2}


def test_of_a_job_that_runs_no_server_counts_that_has_no_host_any_more():
    """Its user has deleted seven of eight: to stop it frees one place."""
    one = part("gpu", count=8, servers={n: f"s{n}" for n in range(8)}, hosts={3: "h1"})
    plan = Plan((HostPlace("gpu", "h1", 8),))
    runs = stored_job(parts=(one,), state=JobState.RUNNING, plan=plan)
    assert of_hosts(queued.active(runs, 0.0).plan) == {("gpu", "h1"): 1}


def test_a_server_is_settled_when_nova_has_claimed_for_it():
    one = part("gpu", count=4, servers={0: "a", 1: "b", 2: ""}, hosts={0: "h2"})
    stored = stored_job(parts=(one,), state=JobState.BUILDING)
    assert list(queued.settled(stored)) == ["a"]
    assert list(queued.settled(replace(stored, state=JobState.RUNNING))) == ["a", "b"]


@st.composite
def building(draw):
    """A job of up to two parts of which some servers are made, some of these are placed, and some of those seen."""
    parts, places, seen = [], [], set()
    for name in draw(st.sampled_from([("a",), ("a", "b")])):
        count = draw(st.integers(1, 5))
        made = draw(st.sets(st.integers(0, count - 1)))
        where = {
            member: draw(st.sampled_from(HOSTS)) for member in sorted(made) if draw(st.booleans())
        }
        servers = {member: f"{name}{member}" for member in sorted(made)}
        seen |= {servers[member] for member in where if draw(st.booleans())}
        parts.append(part(name, count=count, servers=servers, hosts=where))
        on = Counter(where.values())
        on[draw(st.sampled_from(HOSTS))] += count - len(where)
        places += [HostPlace(name, host, number) for host, number in on.items() if number]
    return stored_job(parts=parts, state=JobState.BUILDING, plan=Plan(tuple(places))), seen


@given(building())
def test_each_place_is_counted_once(drawn):
    """By Placement for servers that it has shown, else by the queue: together they are the plan."""
    stored, seen = drawn
    plan = queued.active(stored, 0.0).plan
    shown = Counter(
        (each.name, each.hosts[member])
        for each in stored.parts
        for member, server in each.servers.items()
        if server in seen
    )
    assert of_hosts(queued.unseen(stored, plan, seen)) + shown == of_hosts(plan)


def test_nothing_is_unseen_of_a_job_that_runs_wherever_it_is():
    one = part("gpu", count=2, servers={0: "a", 1: "b"}, hosts={0: "h2"})
    plan = Plan((HostPlace("gpu", "h2", 1), HostPlace("gpu", "h1", 1)))
    stored = stored_job(parts=(one,), state=JobState.RUNNING, plan=plan)
    assert queued.unseen(stored, plan, set(queued.settled(stored))).places == ()
