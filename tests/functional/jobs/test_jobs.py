# SPDX-License-Identifier: Apache-2.0
"""Jobs in the database: what was submitted is read back, changes are compare-and-set, events tell all of them."""

import math
import threading

import pytest

from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.jobs import Actor, Jobs, Step
from nova_numa_ext.policy.jobs.job import BuildFailure, Scope, ScopeWait
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState, TransitionError
from placement_traits.reason import Reason
from tests.support.jobs_database import PART, new_job, part

USER = Actor("user-1")
WHY = (Reason("placed", "h1", 2.5, "workers"),)
PLAN = Plan((HostPlace("workers", "h1", 2),), 0.5, (ProviderAmount("p", "CUSTOM_X", 1),), WHY)


@pytest.fixture
def jobs(database):
    return Jobs(database)


def test_what_was_submitted_is_read_back(jobs, database):
    parts = (
        part(
            "gpu",
            count=3,
            networks=("n1", "n2"),
            wait_for=(ScopeWait(Scope.HOST, 600.0), ScopeWait(Scope.FLEET, math.inf)),
            on_failure=BuildFailure.REPLACE,
        ),
        part("cpu", image="", apart=True),
    )
    new = new_job(parts=parts, priority=5, walltime_s=60.0, deadline_at=1e9, held=True)
    job = jobs.create(new)
    assert job.parts == parts
    assert (job.project, job.user, job.trust, job.name) == (
        "project-1",
        "user-1",
        "trust-1",
        "job",
    )
    assert (job.priority, job.walltime_s, job.deadline_at, job.max_wait_s) == (5, 60.0, 1e9, None)
    assert (job.state, job.held, job.cancelled, job.version) == (JobState.QUEUED, True, False, 0)
    assert job.submitted_at == pytest.approx(database.now(), abs=5)
    assert job.reasons == (Reason("submitted", "user-1"),)
    assert jobs.read(job.uuid) == job
    assert jobs.read("none") is None


def test_every_transition_has_an_event_that_says_why(jobs):
    job = jobs.create(new_job())
    way = (JobState.PLANNED, JobState.CLAIMED, JobState.BUILDING, JobState.RUNNING, JobState.ENDING)
    for state in (*way, JobState.DONE):
        job = jobs.move(job, state, WHY, USER)
        assert (job.state, job.reasons) == (state, WHY)
    assert job.started_at >= job.submitted_at
    assert job.ended_at >= job.started_at
    events = jobs.events(job)
    assert [event.state for event in events] == [JobState.QUEUED, *way, JobState.DONE]
    assert [event.reasons for event in events[1:]] == [WHY] * 6
    assert jobs.events(job, after=events[-2].number) == events[-1:]
    assert jobs.last_event() == events[-1].number


def test_a_state_that_does_not_follow_is_refused(jobs):
    job = jobs.create(new_job())
    with pytest.raises(TransitionError, match="queued and cannot become running"):
        jobs.move(job, JobState.RUNNING, WHY, USER)
    assert jobs.read(job.uuid) == job


def test_who_read_before_another_changed_it_changes_nothing(jobs):
    early = jobs.create(new_job())
    now = jobs.set(early, USER, held=True)
    assert (now.held, now.version) == (True, 1)
    with pytest.raises(LostRaceError, match=early.uuid):
        jobs.move(early, JobState.PLANNED, WHY, USER)
    with pytest.raises(LostRaceError):
        jobs.set(early, USER, cancelled=True)
    assert jobs.read(early.uuid) == now
    assert [event.what for event in jobs.events(now)] == ["state", "held"]


def test_of_many_that_change_a_job_at_once_one_wins(jobs):
    job = jobs.create(new_job())
    start = threading.Barrier(6)
    results = []

    def change():
        start.wait()
        try:
            jobs.move(job, JobState.PLANNED, WHY, USER)
            results.append("won")
        except LostRaceError:
            results.append("lost")

    threads = [threading.Thread(target=change) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["lost"] * 5 + ["won"]
    assert len(jobs.events(job)) == 2


def test_the_server_that_was_written_first_counts(jobs):
    job = jobs.create(new_job())
    won = jobs.set_servers(job, job.parts[0], {0: "server-a", 1: ""}, USER, replaced=1)
    with pytest.raises(LostRaceError, match="workers"):
        jobs.set_servers(job, job.parts[0], {0: "server-b"}, USER)
    (now,) = jobs.read(job.uuid).parts
    assert won.parts == (now,)
    assert (now.servers, now.replaced, now.version) == ({0: "server-a", 1: ""}, 1, 1)


def test_steps_are_stored_with_the_state(jobs):
    job = jobs.create(new_job())
    step = Step("claim", "consumer-1")
    jobs.move(
        job, JobState.PLANNED, WHY, USER, steps=(step,), plan=PLAN, excluded=frozenset({"h2", "h1"})
    )
    now = jobs.read(job.uuid)
    assert (now.steps, now.plan, now.excluded) == ((step,), PLAN, {"h1", "h2"})
    assert jobs.set(now, USER, steps=()).steps == ()


def test_lists_are_by_project_and_state_and_page(jobs):
    mine = [jobs.create(new_job(f"mine{number}")) for number in range(4)]
    theirs = jobs.create(new_job(project="project-2"))
    assert jobs.find() == [*mine, theirs]
    assert jobs.find(project="project-2") == [theirs]
    assert jobs.find(project="project-1", limit=2) == mine[:2]
    assert jobs.find(project="project-1", after=mine[1].uuid, limit=9) == mine[2:]
    assert jobs.find(after="none") == []
    ended = jobs.move(mine[0], JobState.CANCELLED, WHY, USER)
    assert jobs.find(project="project-1", states=[JobState.CANCELLED]) == [ended]
    assert jobs.usage("project-1") == (3, 3 * PART.count)
    assert jobs.usage("project-3") == (0, 0)


def test_purging_takes_only_what_has_ended_before(jobs, database):
    ended = [jobs.move(jobs.create(new_job()), JobState.CANCELLED, WHY, USER) for _ in range(3)]
    stays = jobs.create(new_job())
    assert jobs.purge(database.now() - 60) == 0
    assert jobs.purge(database.now() + 60, most=2) == 2
    assert jobs.purge(database.now() + 60, most=2) == 1
    assert jobs.find() == [stays]
    assert all(jobs.events(job) == [] for job in ended)
