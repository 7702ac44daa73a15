# SPDX-License-Identifier: Apache-2.0
"""Jobs that ask for remote GPUs: in the queue of jobs, and never elsewhere than their leases."""

from dataclasses import asdict, replace

import pytest

from nova_numa_ext.orchestrator.lease_steps import Silence
from nova_numa_ext.orchestrator.server_requests import LeaseRules, ServerRequests
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHost
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.stored_lease import NOTHING, LeaseChoice, LeaseSpec
from nova_numa_ext.policy.jobs.job import JobKind
from nova_numa_ext.policy.jobs.queue_order import in_order
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits.errors import ConflictError
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.reason import Reason
from tests.functional.jobs.test_lease_rounds import rounds, two_pools  # noqa: F401 - fixtures
from tests.support.jobs_database import new_job

USER = Actor("user-1")
ASKED = LeaseSpec(1000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL)
CHOICE = LeaseChoice("g1", "gpu-1", {"gpu-1": {"CUSTOM_RGPU_MEM_MB": 1000}})


@pytest.fixture
def leases(database):
    return Leases(database)


@pytest.fixture
def jobs(database):
    return Jobs(database)


def of_server(leases, jobs, count=2):
    """What the flavor of a server asks for."""
    leases.request(("project-1", "user-1"), ASKED, count, "server-1", USER)
    (job,) = jobs.find(kind=JobKind.ATTACH)
    return job, leases.find()


def seen(jobs, job):
    return jobs.read(job.uuid).state


def test_what_a_flavor_asks_for_is_one_job_which_is_where_its_leases_are(leases, jobs):
    job, found = of_server(leases, jobs)
    assert (job.name, job.parts, job.trust, job.state) == ("server-1", (), "", JobState.QUEUED)
    assert {each.job for each in found} == {job.uuid}
    assert leases.of_jobs([job.uuid]) == {job.uuid: [each.uuid for each in found]}
    found = leases.choose(found, [CHOICE, CHOICE], USER)
    assert seen(jobs, job) is JobState.PLANNED
    found = leases.choose(found, [NOTHING, NOTHING], USER)
    assert seen(jobs, job) is JobState.QUEUED
    first, second = leases.choose(found, [CHOICE, CHOICE], USER)
    first = leases.hold(first, USER)
    assert seen(jobs, job) is JobState.PLANNED
    second = leases.hold(second, USER)
    assert seen(jobs, job) is JobState.RUNNING
    first = leases.change(first, life.release, USER)
    assert seen(jobs, job) is JobState.RUNNING
    second = leases.change(second, life.release, USER)
    assert seen(jobs, job) is JobState.ENDING
    for each in (first, second):
        leases.change(each, life.end, USER)
    ended = jobs.read(job.uuid)
    assert (ended.state, ended.ended_at is not None) == (JobState.DONE, True)
    states = [each.state for each in jobs.events(ended) if each.what == "state"]
    assert states == [*["queued", "planned", "queued", "planned", "running", "ending", "done"]]


def test_each_state_is_told_when_it_is_committed(database, jobs):
    told = []
    leases = Leases(
        database, lambda job, why: told.append((job.kind, job.state, why[0].term, why[0].where))
    )
    _, before = of_server(leases, jobs)
    found = leases.choose(before, [CHOICE, CHOICE], USER)
    with pytest.raises(LostRaceError):
        leases.choose(before, [NOTHING, NOTHING], USER)
    for each in [leases.hold(each, USER) for each in found]:
        why = (Reason("released", "user-1"),)
        leases.change(leases.change(each, life.release, USER, why), life.end, USER)
    leases.create("project-1", "user-1", ASKED)
    expected = [
        *[("queued", "flavor"), ("planned", "flavor"), ("running", "held")],
        *[("ending", "released"), ("done", "released"), ("queued", "asked")],
    ]
    assert told == [(JobKind.ATTACH, *each, "leases") for each in expected]


@pytest.mark.parametrize(
    ("term", "end"),
    [("no_gpu", JobState.FAILED), ("max_wait", JobState.FAILED), ("released", JobState.CANCELLED)],
)
def test_a_job_that_never_ran_has_failed_unless_it_was_to_end(leases, jobs, term, end):
    job, found = of_server(leases, jobs)
    for each in leases.stop(found, (Reason(term, "", ""),), USER):
        leases.change(each, life.end, USER)
    assert seen(jobs, job) is end


def test_a_job_and_its_leases_change_together_or_not_at_all(leases, jobs, monkeypatch):
    job, found = of_server(leases, jobs)
    leases.choose(found, [CHOICE, CHOICE], USER)
    with pytest.raises(LostRaceError):
        leases.choose(found, [NOTHING, NOTHING], USER)
    assert seen(jobs, job) is JobState.PLANNED
    assert {each.gpu for each in leases.find()} == {"gpu-1"}


@pytest.mark.parametrize("asked", ["held", "cancelled"])
def test_a_choice_does_not_override_what_its_user_asked_for_meanwhile(leases, jobs, asked):
    """A round reads the jobs when it begins, and chooses seconds later."""
    job, found = of_server(leases, jobs)
    jobs.set(job, USER, **{asked: True})
    with pytest.raises(LostRaceError):
        leases.choose(found, [CHOICE, CHOICE], USER)
    assert seen(jobs, job) is JobState.QUEUED
    assert {each.gpu for each in leases.find()} == {""}


def test_why_its_leases_wait_is_why_it_waits(leases, jobs):
    job, found = of_server(leases, jobs, count=1)
    why = (Reason("no_gpu", "opencl", 1000),)
    leases.wait(found[0], why, USER)
    assert jobs.read(job.uuid).reasons == (replace(*why, where="leases"),)
    assert [each.what for each in jobs.events(job)] == ["state", "reasons"]


def test_why_a_job_waits_keeps_the_newest_numbers_and_one_event(leases, jobs):
    job, found = of_server(leases, jobs, count=1)
    for free_mb in (2, 3):
        found = [leases.wait(found[0], (Reason("no_gpu", "opencl", free_mb),), USER)]
    assert [each.against for each in jobs.read(job.uuid).reasons] == [3]
    assert [each.what for each in jobs.events(job)] == ["state", "reasons"]


def test_why_a_job_is_held_stays_while_it_is(leases, jobs):
    job, found = of_server(leases, jobs, count=1)
    jobs.set(job, USER, (Reason(JobTerm.HELD, "user-1"),), held=True)
    leases.wait(found[0], (Reason("no_gpu", "opencl", 1000),), USER)
    assert [each.term for each in jobs.read(job.uuid).reasons] == [JobTerm.HELD]


def test_what_a_job_has_waited_counts_once(leases, jobs, database):
    """Its first stay in the queue is over when a GPU is chosen, and it comes back when that is full."""
    job, found = of_server(leases, jobs, count=1)
    with database.transaction() as connection:
        connection.execute(tables.job.update().values(queued_at=database.now() - 100.0))

    def waited_s():
        return leases.jobs()[job.uuid].waiting_s(database.now())

    assert waited_s() == pytest.approx(100.0, abs=5.0)
    found = leases.choose(found, [CHOICE], USER)
    assert waited_s() == pytest.approx(100.0, abs=5.0)
    leases.choose(found, [NOTHING], USER)
    assert waited_s() == pytest.approx(100.0, abs=5.0)


def test_both_are_purged_in_one_transaction(leases, jobs, database):
    job, found = of_server(leases, jobs)
    servers = jobs.create(new_job())
    first, second = leases.stop(found, (Reason("no_gpu", ""),), USER)
    leases.change(first, life.end, USER)
    assert (jobs.purge(database.now() + 60), leases.purge(database.now() + 60)) == (0, 1)
    assert seen(jobs, job) is JobState.ENDING
    leases.change(second, life.end, USER)
    assert (jobs.purge(database.now() + 60), leases.purge(database.now() + 60)) == (0, 1)
    assert (jobs.find(), leases.find()) == ([servers], [])
    with database.transaction() as connection:
        events = connection.execute(tables.event.select()).all()
    assert {each.job_id for each in events} == {servers.number}


def test_what_an_old_database_has_forgotten_of_a_lease_its_job_gets_with_it(leases, jobs):
    """The backup was made while both waited; Placement holds one of the leases, the other has ended since."""
    job, (holds, ended) = of_server(leases, jobs)
    held = {"gpu": "gpu-1", "amounts": CHOICE.amounts, "claimed": True}
    adopted = replace(holds.lease, gpu_host="g1", state=LeaseState.STARTING, epoch=7)
    leases.recover(holds, adopted, USER, **held)
    assert seen(jobs, job) is JobState.QUEUED, "the other one waits still"
    gone = replace(ended.lease, state=LeaseState.GONE)
    leases.recover(ended, gone, USER, gpu="", amounts={}, claimed=False)
    assert seen(jobs, job) is JobState.RUNNING
    assert jobs.read(job.uuid).reasons[0].term == "ended_since"


def test_what_is_asked_for_again_waits_by_a_job_of_its_own(leases, jobs):
    job, found = of_server(leases, jobs, count=1)
    held = leases.hold(*leases.choose(found, [CHOICE], USER), USER)
    lost = leases.change(leases.change(held, life.start, USER), life.lose, USER)
    fresh = leases.requeue(lost, USER)
    assert fresh.job not in {"", job.uuid}
    assert seen(jobs, job) is JobState.ENDING
    assert jobs.read(fresh.job).state is JobState.QUEUED


@pytest.mark.parametrize("silent", [False, True])
def test_what_its_user_has_cancelled_is_not_asked_for_again(leases, jobs, silent):
    """An operator says that the host is off, or asks again, before an engine has released the lease."""
    job, found = of_server(leases, jobs, count=1)
    held = leases.hold(*leases.choose(found, [CHOICE], USER), USER)
    used = leases.change(held, life.start, USER)
    jobs.set(jobs.read(job.uuid), USER, (Reason(JobTerm.CANCELLED, "user-1"),), cancelled=True)
    if silent:
        lost = leases.change(used, life.lose, USER)
        with pytest.raises(ConflictError, match="is cancelled"):
            leases.requeue(lost, USER)
    else:
        ends = leases.write_off(used, USER)
        assert [each.term for each in ends.reasons] == ["host_off"]
        assert seen(jobs, job) is JobState.ENDING
    assert [each.uuid for each in leases.find()] == [used.uuid]


def test_jobs_of_both_kinds_are_in_one_order(leases, jobs):
    attach, _ = of_server(leases, jobs)
    first, last = (jobs.create(new_job(priority=each)) for each in (1, -1))
    found, now = jobs.in_queue()
    found = in_order(found, now, QueueSettings())
    assert [each.uuid for each in found] == [first.uuid, attach.uuid, last.uuid]
    assert jobs.usage("project-1") == (2, 2 * first.parts[0].count), (
        "leases have limits of their own"
    )


def test_a_job_of_a_kind_of_a_later_release_is_listed(leases, jobs, database):
    job, _ = of_server(leases, jobs)
    with database.transaction() as connection:
        connection.execute(tables.job.update().values(kind="later"))
    (listed,) = jobs.find(incomplete=True)
    assert (listed.uuid, listed.whole) == (job.uuid, False)
    assert "later" in listed.reasons[0].value


def test_a_lease_of_which_a_later_release_asks_for_more_goes_on(leases, database):
    asked = leases.create("project-1", "user-1", ASKED)
    later = {**asdict(ASKED), "lanes": 2}
    with database.transaction() as connection:
        connection.execute(tables.lease.update().values(asked=later))
    assert leases.read(asked.uuid) == asked


def job_of(rounds, lease):  # noqa: F811
    return Jobs(rounds.leases._database).read(rounds.now(lease).job)


def test_a_job_that_is_held_gets_no_gpu_before_it_is_released(rounds):  # noqa: F811
    jobs = Jobs(rounds.leases._database)
    lease = rounds.ask()
    jobs.set(job_of(rounds, lease), USER, (Reason(JobTerm.HELD, "user-1"),), held=True)
    assert rounds.round() == 0
    assert (rounds.now(lease).gpu, job_of(rounds, lease).state) == ("", JobState.QUEUED)
    jobs.set(job_of(rounds, lease), USER, (Reason(JobTerm.RELEASED, "user-1"),), held=False)
    rounds.round()
    assert (rounds.now(lease).claimed, job_of(rounds, lease).state) == (True, JobState.RUNNING)


def test_a_job_that_is_released_says_again_why_it_waits(rounds):  # noqa: F811
    """Its lease waits for what it waited for before: nothing of the lease changes."""
    jobs = Jobs(rounds.leases._database)
    lease = rounds.ask(9000)
    rounds.round()
    waits = job_of(rounds, lease).reasons
    jobs.set(job_of(rounds, lease), USER, (Reason(JobTerm.HELD, "user-1"),), held=True)
    rounds.round()
    jobs.set(job_of(rounds, lease), USER, (Reason(JobTerm.RELEASED, "user-1"),), held=False)
    rounds.round()
    released = job_of(rounds, lease)
    assert released.reasons == waits
    rounds.round()
    assert job_of(rounds, lease).version == released.version, "once"


@pytest.mark.parametrize("runs", [False, True])
def test_who_cancels_a_job_releases_its_leases(rounds, runs):  # noqa: F811
    lease = rounds.ask()
    if runs:
        rounds.round()
    jobs = Jobs(rounds.leases._database)
    jobs.set(job_of(rounds, lease), USER, (Reason(JobTerm.CANCELLED, "user-1"),), cancelled=True)
    rounds.round()
    rounds.round()
    assert (rounds.now(lease).state, rounds.held()) == (LeaseState.GONE, {})
    assert job_of(rounds, lease).state is JobState.CANCELLED


def test_a_job_that_waits_too_long_is_given_up(rounds):  # noqa: F811
    lease, other = rounds.ask(9000, max_wait_s=1e-6), rounds.ask(9000)
    for _ in range(3):
        rounds.round()
    assert job_of(rounds, lease).state is JobState.FAILED
    assert job_of(rounds, lease).reasons[0].term == "max_wait"
    assert job_of(rounds, other).state is JobState.QUEUED


def test_an_operator_bounds_how_long_leases_of_flavors_wait(leases, jobs):
    """As the host of a server reports what its flavor asks for."""
    rules = LeaseRules(
        lambda _server: frozenset({"c1"}), lambda _server: ("p", "u"), max_wait_s=600.0
    )
    asked = {
        "server_id": "server-1",
        "count": 1,
        "memory_mb": 1000,
        "service_level": "silver",
        "api": "opencl",
        "network_mbps": 0,
        "priority": 3,
        "migratable": False,
    }
    hosts, silence = (
        {"c1": LeaseHost("c1", 1.0, frozenset({"server-1"}), None, (asked,))},
        Silence(),
    )
    silence.look(hosts)
    assert ServerRequests(leases, rules).round(hosts, silence, USER, lambda *_: None) == 1
    (lease,) = leases.find()
    job = jobs.read(lease.job)
    assert (lease.asked.max_wait_s, job.max_wait_s, job.priority) == (600.0, 600.0, 3)


def test_leases_are_asked_in_the_order_of_their_jobs(rounds):  # noqa: F811
    """The priority of a job counts, and what it has waited in all its stays."""
    first, second, third, fourth = (rounds.ask(5000) for _ in range(4))
    with rounds.leases._database.transaction() as connection:
        of_fourth = tables.job.c.uuid == fourth.job
        connection.execute(tables.job.update().where(of_fourth).values(waited_s=7200.0))
    rounds.round()
    held = [each for each in (first, second, third, fourth) if rounds.now(each).claimed]
    assert held == [first, second, fourth]


def test_a_lease_without_a_job_waits_as_before(rounds):  # noqa: F811
    """Of an earlier release."""
    lease = rounds.ask()
    rounds.spoil(lease, job="")
    rounds.round()
    assert rounds.now(lease).claimed
