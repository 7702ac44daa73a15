# SPDX-License-Identifier: Apache-2.0
"""Jobs in the database: what was submitted is read back, changes are compare-and-set, events tell all of them."""

import math
from dataclasses import asdict

import pytest
from sqlalchemy import delete, update

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.job_rows import KnownRows
from nova_numa_ext.orchestrator.store.jobs import NOT_FINAL, ExistsError, Jobs
from nova_numa_ext.orchestrator.store.stored_job import Step
from nova_numa_ext.policy.jobs.job import BuildFailure, Scope, ScopeWait
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState, TransitionError
from placement_traits.reason import Reason
from tests.support.at_once import at_once
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


def test_only_time_in_the_queue_is_waiting(jobs, database, monkeypatch):
    """An hour in the queue, two hours with places, and a minute in the queue again."""
    job = jobs.create(new_job())
    assert (job.queued_at, job.waited_s) == (job.submitted_at, 0.0)

    def later(seconds):
        early = {"queued_at": tables.job.c.queued_at - seconds}
        with database.transaction() as connection:
            connection.execute(update(tables.job).values(early))
        return jobs.read(job.uuid)

    planned = jobs.move(later(3600), JobState.PLANNED, WHY, USER)
    assert planned.waited_s == pytest.approx(3600, abs=60)
    later(7200)
    again = jobs.move(jobs.read(job.uuid), JobState.QUEUED, WHY, USER)
    assert (again.waited_s, again.submitted_at) == (planned.waited_s, job.submitted_at)
    assert again.queued_at == pytest.approx(database.now(), abs=60)
    planned = jobs.move(later(60), JobState.PLANNED, WHY, USER)
    assert planned.waited_s == pytest.approx(3660, abs=60)


def test_a_plan_names_the_host_that_a_server_is_really_on(jobs):
    """Planned are three on h1 and one on h2; the job goes on without one of them."""
    job = jobs.create(new_job(parts=(part("gpu", count=4), part("cpu", count=1))))
    cpu = HostPlace("cpu", "h5", 1)
    plan = Plan((HostPlace("gpu", "h1", 3), HostPlace("gpu", "h2", 1), cpu))
    job = jobs.move(job, JobState.PLANNED, WHY, USER, plan=plan)
    job = jobs.set_servers(job, job.parts[0], {0: "a", 1: "b"}, USER)
    assert job.plan == plan
    job = jobs.set_servers(job, job.parts[0], {0: "a", 1: "b"}, USER, hosts={0: "h9", 1: "h1"})
    assert job.parts[0].hosts == {0: "h9", 1: "h1"}
    assert _places(job) == {("gpu", "h9"): 1, ("gpu", "h1"): 3, ("cpu", "h5"): 1}
    job = jobs.set_servers(job, job.parts[0], {0: "a", 1: "other", 3: ""}, USER)
    assert job.parts[0].hosts == {0: "h9"}
    assert _places(job) == {("gpu", "h9"): 1, ("gpu", "h1"): 2, ("cpu", "h5"): 1}
    assert jobs.read(job.uuid) == job


def _places(job):
    return {(each.part, each.host): each.count for each in job.plan.places}


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

    def change(_number):
        try:
            jobs.move(job, JobState.PLANNED, WHY, USER)
        except LostRaceError:
            return "lost"
        return "won"

    results = at_once(6, change)
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
    step = Step("claim", "consumer-1", asked_at=5.0)
    jobs.move(
        job, JobState.PLANNED, WHY, USER, steps=(step,), plan=PLAN, excluded=frozenset({"h2", "h1"})
    )
    now = jobs.read(job.uuid)
    assert (now.steps, now.plan, now.excluded) == ((step,), PLAN, {"h1", "h2"})
    assert jobs.set(now, USER, steps=()).steps == ()


def test_of_a_step_of_an_older_release_it_is_not_known_how_much_was_asked_for(jobs, database):
    """However much of it is there, more may come."""
    job = jobs.create(new_job())
    with database.transaction() as connection:
        steps = [{"name": "servers", "about": "workers", "asked_at": 5.0}]
        of_job = tables.job.c.id == job.number
        connection.execute(update(tables.job).where(of_job).values(steps=steps))
    (step,) = jobs.read(job.uuid).steps
    assert step.asks(1).found(100).asked_at == 5.0


def test_a_step_of_a_later_release_is_read_without_what_that_knows_more(jobs, database):
    """An engine of this one leads again while others are upgraded."""
    job = jobs.create(new_job())
    with database.transaction() as connection:
        steps = [{"name": "servers", "about": "workers", "asked": 2, "of_a_later_release": 1}]
        of_job = tables.job.c.id == job.number
        connection.execute(update(tables.job).where(of_job).values(steps=steps))
    assert jobs.read(job.uuid).steps == (Step("servers", "workers", asked=2),)


def test_a_name_has_whatever_characters_there_are(jobs):
    """MariaDB's utf8 is not all of UTF-8."""
    job = jobs.create(new_job("trän 訓練 😀"))
    assert jobs.read(job.uuid).name == "trän 訓練 😀"


def test_names_differ_by_case(jobs):
    """A server's collation may say that they do not; ids are compared as they are, too."""
    job = jobs.create(new_job(parts=(part("gpu"), part("GPU"))))
    now = jobs.set_servers(job, job.parts[0], {0: "s1"}, USER)
    assert [(each.name, each.servers) for each in now.parts] == [("gpu", {0: "s1"}), ("GPU", {})]
    assert jobs.find(project="PROJECT-1") == []


def test_a_uuid_is_of_one_job(jobs):
    first = jobs.create(new_job(fingerprint="f"), "11111111-2222-3333-4444-555555555555")
    assert (first.uuid[:8], first.fingerprint) == ("11111111", "f")
    with pytest.raises(ExistsError, match="There is a job 11111111-"):
        jobs.create(new_job("second"), first.uuid)
    assert jobs.find() == [first]


def test_two_at_once_store_one_job_of_a_uuid(jobs):
    """Both look before either writes: the database refuses the slower one, which looks again."""
    uuid = "11111111-2222-3333-4444-555555555555"

    def create(number):
        try:
            return jobs.create(new_job(f"job{number}"), uuid)
        except ExistsError:
            return jobs.read(uuid)

    assert at_once(4, create) == jobs.find() * 4


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
    assert jobs.usage("project-1", [JobState.PLANNED]) == (0, 0)
    assert [each.what for each in jobs.events(ended, limit=1)] == ["state"]


def test_purging_takes_only_what_has_ended_before(jobs, database):
    ended = [jobs.move(jobs.create(new_job()), JobState.CANCELLED, WHY, USER) for _ in range(3)]
    stays = jobs.create(new_job())
    assert jobs.purge(database.now() - 60) == 0
    assert jobs.purge(database.now() + 60, most=2) == 2
    assert jobs.purge(database.now() + 60, most=2) == 1
    assert jobs.find() == [stays]
    assert all(jobs.events(job) == [] for job in ended)


def test_a_reading_makes_only_jobs_again_that_are_stored_otherwise(database):
    """Whoever has changed them: a restored database may have a version again that there was, of another content."""
    jobs, known = Jobs(database), KnownRows()
    _, changed, of_part, gone = (jobs.create(new_job(name)) for name in "abcd")

    def read():
        found = jobs.find(states=NOT_FINAL, known=known)
        assert found == jobs.find(states=NOT_FINAL)
        return {each.name: each for each in found}

    before = read()
    assert {name: each is before[name] for name, each in read().items()} == dict.fromkeys(
        "abcd", True
    )
    with database.transaction() as connection:
        of_job = update(tables.job).where(tables.job.c.id == changed.number)
        connection.execute(of_job.values(reasons=[{**asdict(Reason("held", "x"))}]))
        mine = update(tables.part).where(tables.part.c.job_id == of_part.number)
        connection.execute(mine.values(servers={"0": "server"}))
        connection.execute(delete(tables.job).where(tables.job.c.id == gone.number))
    after = read()
    assert {name: each is before[name] for name, each in after.items()} == {
        "a": True,
        "b": False,
        "c": False,
    }
    assert (after["b"].reasons[0].term, after["c"].parts[0].servers) == ("held", {0: "server"})
    assert known.size == 3


def test_what_is_stored_in_no_form_at_all_hides_no_other_job(database):
    jobs, known, said = Jobs(database), KnownRows(), []
    first, second = (jobs.create(new_job(name)) for name in "ab")
    assert len(jobs.find(known=known)) == 2
    with database.transaction() as connection:
        of_job = update(tables.job).where(tables.job.c.id == first.number)
        connection.execute(of_job.values(plan={"places": 3}))
    for _ in range(2):
        found = jobs.find(known=known, unreadable=lambda uuid, error: said.append(uuid))
        assert [each.uuid for each in found] == [second.uuid]
    assert said == [first.uuid, first.uuid]
