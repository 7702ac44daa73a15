# SPDX-License-Identifier: Apache-2.0
"""Stories of jobs from the queue to their end, and of engines that die on the way."""

import random
from contextlib import contextmanager

import pytest
from cryptography.fernet import Fernet
from keystoneauth1 import exceptions as keystone_errors
from nova import exception as nova
from nova.compute.utils import exception_to_dict
from oslo_limit.exception import OverLimitInfo, ProjectOverLimit
from sqlalchemy import update

from nova_numa_ext.job_hint import HINT, HintKeys
from nova_numa_ext.orchestrator.conf import EngineOptions
from nova_numa_ext.orchestrator.engine import QueueDecision
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.policy.jobs.job import BuildFailure, Scope, ScopeWait
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits.claim_store import ClaimStore
from placement_traits.client import PlacementClient
from placement_traits.reason import Reason
from tests.support.faults import FaultyAdapter, answer
from tests.support.jobs_database import new_job, part
from tests.support.jobs_world import World


class Killed(BaseException):
    """The engine's process ends here."""


@pytest.fixture
def world(tmp_path):
    """One engine over a database and a nova of the tests; nothing is claimed::

    JobEngine engine-1   one thread; the queue has 100 slots
    ├─ jobs.db           SQLite, no jobs
    ├─ ComputeApi        nova: what it is asked for is there when it is settled
    └─ FakeTrusts, FakeHosts   of the same nova
    """
    return World(tmp_path)


def test_a_job_of_two_parts_runs_and_ends_with_its_servers(world):
    job = world.jobs.create(new_job(parts=(part("gpu", count=2), part("cpu", count=1))))
    world.rounds(4)
    job = world.jobs.read(job.uuid)
    assert job.state is JobState.RUNNING
    kept = {uuid for each in job.parts for uuid in each.servers.values()}
    assert kept == set(world.api.there())
    assert len(kept) == 3
    names = sorted(each["name"] for each in world.api.servers.values())
    assert names == ["job-cpu-0", "job-gpu-0", "job-gpu-1"]
    (tagged,) = [each for each in world.api.servers.values() if each["name"] == "job-gpu-1"]
    assert tagged["tags"] == ["numa-ext:gpu", f"numa-ext-job:{job.uuid}", "numa-ext-member:1"]
    world.api.servers.clear()
    world.rounds(2)
    assert world.state(job) is JobState.DONE
    assert world.why(job) == ["servers_gone=3"]
    assert world.trusts.deleted == ["trust-1"]
    states = [each.state for each in world.jobs.events(job) if each.what == "state"]
    assert states == [
        JobState.QUEUED,
        JobState.PLANNED,
        JobState.CLAIMED,
        JobState.BUILDING,
        JobState.RUNNING,
        JobState.ENDING,
        JobState.DONE,
    ]


def test_jobs_beyond_the_slots_run_in_order(world):
    world.slots = 1
    first, second = (world.jobs.create(new_job(name, trust=name)) for name in ("first", "second"))
    world.rounds(4)
    assert (world.state(first), world.state(second)) == (JobState.RUNNING, JobState.QUEUED)
    assert world.why(second) == ["no_room[workers]=0 (against 1)"]
    assert len(world.jobs.events(second)) == 2, "the same reason is no event again"
    world.cancel(first)
    world.rounds(7)
    assert (world.state(first), world.state(second)) == (JobState.CANCELLED, JobState.RUNNING)


def test_a_large_job_is_built_over_several_rounds(tmp_path):
    """Other jobs, and a user who cancels, do not wait for all of its servers."""
    world = World(tmp_path, servers_per_round=4)
    job = world.jobs.create(new_job(parts=(part("gpu", count=3), part("cpu", count=7))))
    made = []
    for _ in range(6):
        world.rounds()
        made.append((world.api.created, world.state(job)))
    assert made[1:4] == [
        (4, JobState.BUILDING),
        (8, JobState.BUILDING),
        (10, JobState.BUILDING),
    ]
    assert world.state(job) is JobState.RUNNING
    assert world.why(job) == ["built=10"]


@pytest.mark.parametrize("rounds", range(6))
def test_a_job_is_cancelled_in_every_state(world, rounds):
    job = world.jobs.create(new_job(parts=(part("workers", apart=True),)))
    world.rounds(rounds)
    world.cancel(job)
    world.rounds(5)
    assert world.state(job) is JobState.CANCELLED
    assert (world.api.there(), world.api.groups) == ({}, {})
    assert world.trusts.deleted == ["trust-1"]


def test_a_walltime_ends_a_job(world):
    job = world.jobs.create(new_job(walltime_s=1e-6))
    world.rounds(8)
    assert world.state(job) is JobState.DONE
    assert world.api.there() == {}


def test_a_deadline_ends_a_job_that_has_no_walltime(world):
    job = world.jobs.create(new_job(deadline_at=world.database.now() + 3600.0))
    world.rounds(4)
    assert world.state(job) is JobState.RUNNING
    with world.database.transaction() as connection:
        connection.execute(update(tables.job).values(deadline_at=world.database.now() - 1.0))
    world.rounds(4)
    assert world.state(job) is JobState.DONE
    assert [str(each) for each in world.jobs.read(job.uuid).reasons] == ["deadline_reached="]
    assert world.api.there() == {}


def test_a_duplicate_that_stays_hides_no_job_whose_servers_are_gone(world):
    """An administrator has locked it; the job's own servers were deleted by their user."""
    job = world.jobs.create(new_job())
    world.rounds(4)
    twin = dict(world.api.servers[min(world.api.servers)], id="twin")
    world.api.servers["twin"] = twin
    world.api.refuse = lambda method, path: (
        409 if (method, path) == ("DELETE", "/servers/twin") else None
    )
    world.rounds(1)
    for uuid in world.jobs.read(job.uuid).parts[0].servers.values():
        del world.api.servers[uuid]
    world.rounds(1)
    assert world.state(job) is JobState.ENDING
    assert world.jobs.read(job.uuid).target is JobState.DONE


def test_a_duplicate_that_comes_late_is_deleted_in_the_next_round(tmp_path):
    """At the default interval of looks, too: the answer was lost just before the job came to run."""
    world = World(tmp_path, watch_interval_s=EngineOptions().watch_interval_s)
    world.api.refuse = lambda method, path: 504 if (method, path) == ("POST", "/servers") else None
    job = world.jobs.create(new_job())
    world.rounds(2)
    world.api.refuse = None
    world.rounds(4)
    assert world.state(job) is JobState.RUNNING
    kept = set(world.api.there())
    _add_twin(world)
    world.rounds(1)
    assert set(world.api.there()) == kept
    world.later(601)
    _add_twin(world)
    world.rounds(1)
    assert "twin" in world.api.there(), "nothing comes that late: the job is looked at in its turn"
    assert world.state(job) is JobState.RUNNING


def _add_twin(world):
    world.api.servers["twin"] = dict(world.api.servers[min(world.api.there())], id="twin")


def test_events_are_named_by_what_has_changed(world):
    world.slots = 0
    job = world.jobs.create(new_job())
    world.rounds(2)
    assert [each.what for each in world.jobs.events(job)] == ["state", "reasons"]


def test_no_valid_host_leaves_nothing_and_the_job_waits_without_those_hosts(world):
    world.api.room = 1
    job = world.jobs.create(new_job())
    world.rounds(8)
    job = world.jobs.read(job.uuid)
    assert job.state is JobState.QUEUED
    assert (job.excluded, job.postponed, job.refusals) == ({"h1"}, 1, 1)
    assert job.not_before == pytest.approx(world.database.now() + 30, abs=10)
    assert "No valid host" in str(job.reasons[0])
    assert world.api.there() == {}
    assert world.trusts.deleted == []
    world.api.room = 2
    world.forget_back_off()
    world.rounds(4)
    assert world.state(job) is JobState.RUNNING
    assert world.jobs.read(job.uuid).refusals == 0


def test_refusals_in_a_row_leave_out_more_hosts_until_no_others_are_left(world):
    """Another job's word that nothing is left makes the queue try them again."""
    world.api.room, fleet, left = 0, ["h1", "h2", "h3"], []

    def decide(waiting, _active, now):
        starts, waits = {}, {}
        for job in [each for each in waiting if each.not_before <= now]:
            hosts = [host for host in fleet if host not in job.excluded]
            left.append(hosts)
            if hosts:
                starts[job.uuid] = Plan((HostPlace("workers", hosts[0], 2),))
            else:
                waits[job.uuid] = (Reason("no_room", 0), Reason("hosts_excluded", "h1, h2, h3"))
        return QueueDecision(starts, waits)

    world.decide = decide
    world.start()
    job = world.jobs.create(new_job())
    for _ in range(5):
        world.forget_back_off()
        world.rounds(8)
    assert left[:5] == [fleet, fleet[1:], fleet[2:], [], fleet]
    world.api.room = 2
    world.forget_back_off()
    world.rounds(4)
    job = world.jobs.read(job.uuid)
    assert (job.state, job.excluded) == (JobState.RUNNING, frozenset())


def _retries():
    why = "Exhausted all hosts available for retrying build failures for instance i."
    return nova.MaxRetriesExceeded(reason=why).format_message()


def _quota():
    return nova.TooManyInstances(overs="instances", req=1, used=2, allowed=2).format_message()


def _unified_quota():
    return nova.TooManyInstances(str(_over_limit())).format_message()


def _quota_checked_again():
    return exception_to_dict(_over_limit())["message"]


def _over_limit():
    return ProjectOverLimit("project", [OverLimitInfo("servers", 2, 2, 1)])


@pytest.mark.parametrize("on_failure", [BuildFailure.FAIL, BuildFailure.REPLACE])
@pytest.mark.parametrize(
    ("words", "term"),
    [
        (_retries, "no_valid_host"),
        (_quota, "quota"),
        (_unified_quota, "quota"),
        (_quota_checked_again, "quota"),
    ],
)
def test_a_server_that_nova_could_build_later_sends_its_job_back(world, words, term, on_failure):
    """A lost race on the host, or a quota that nova checks once more after it has said 202."""
    world.api.room, world.api.words = 1, words()
    job = world.jobs.create(new_job(parts=(part("workers", on_failure=on_failure),)))
    world.rounds(8)
    job = world.jobs.read(job.uuid)
    assert (job.state, job.refusals) == (JobState.QUEUED, 1)
    assert world.why(job)[0].startswith(term)
    assert (world.api.created, world.api.there()) == (2, {})


def _where(world, job):
    return world.jobs.read(job.uuid).parts[0].hosts


def test_servers_that_are_gone_or_shelved_take_no_place_of_a_job_that_runs(world):
    """Places that are free already would be promised to others, who would have more jobs stopped for them."""
    job = world.jobs.create(new_job(parts=(part("workers", count=4),)))
    world.rounds(4)
    assert _where(world, job) == dict.fromkeys(range(4), "h1")
    deleted, shelved, failed, runs = world.jobs.read(job.uuid).parts[0].servers.values()
    del world.api.servers[deleted]
    world.api.servers[shelved] |= {"status": "SHELVED_OFFLOADED", "host": None, "hostId": ""}
    world.api.servers[failed] |= {"status": "ERROR", "host": None}
    world.rounds(1)
    assert _where(world, job) == {3: "h1"}
    world.api.down = {runs}
    world.rounds(1)
    assert _where(world, job) == {3: "h1"}, "a cell that does not answer has it still"
    world.api.servers[shelved] |= {"status": "ACTIVE", "host": "h2", "hostId": "id-of-h2"}
    world.rounds(1)
    assert _where(world, job) == {1: "h2", 3: "h1"}


def test_a_job_that_ends_gives_no_place_that_its_servers_have_left(world):
    """A step that may come late keeps it in ENDING for a minute; its places are free long before."""
    job = world.jobs.create(new_job())
    world.rounds(4)
    _, stays = world.jobs.read(job.uuid).parts[0].servers.values()
    world.api.refuse = lambda method, path: 500 if "DELETE" in method and stays in path else None
    world.cancel(job)
    world.rounds(3)
    assert (world.state(job), _where(world, job)) == (JobState.ENDING, {1: "h1"})


def test_a_quota_that_is_used_up_is_waited_for(world):
    world.api.refuse = lambda method, path: (
        403 if (method, path) == ("POST", "/servers") and world.api.created == 1 else None
    )
    job = world.jobs.create(new_job())
    world.rounds(8)
    assert world.state(job) is JobState.QUEUED
    assert world.why(job)[0].startswith("quota=Nova answered POST /servers with 403: as the test")
    assert world.api.there() == {}


def test_a_job_that_was_refused_for_weeks_is_tried_every_quarter_of_an_hour(world):
    """As long as its project's quota is used up, and its count grows."""
    world.api.refuse = lambda method, path: 403 if (method, path) == ("POST", "/servers") else None
    job = world.jobs.create(new_job())
    world.jobs.set(job, Actor("user-1"), refusals=5000)
    world.rounds(8)
    now = world.jobs.read(job.uuid)
    assert (now.state, now.refusals) == (JobState.QUEUED, 5001)
    assert now.not_before - now.queued_at == pytest.approx(900, abs=5)


def test_what_nova_never_does_fails_the_job(world):
    world.api.refuse = lambda method, _path: 400 if method == "POST" else None
    job = world.jobs.create(new_job())
    world.rounds(6)
    assert world.state(job) is JobState.FAILED
    assert world.why(job)[0].startswith("refused=Nova answered POST /servers with 400")
    assert world.trusts.deleted == ["trust-1"]


def test_a_nova_that_does_not_answer_is_waited_for(world):
    job = world.jobs.create(new_job())
    other = world.jobs.create(new_job())
    world.rounds(1)
    world.api.refuse = lambda _method, path: 503 if job.uuid in path else None
    world.rounds(3)
    assert (world.state(job), world.state(other)) == (JobState.BUILDING, JobState.RUNNING)
    world.api.refuse = None
    world.rounds(2)
    assert world.state(job) is JobState.RUNNING


def test_an_answer_that_is_not_novas_holds_up_that_job_only(world):
    job, other = (world.jobs.create(new_job(trust=trust)) for trust in ("a", "b"))
    world.rounds(1)
    plain = world.api.request

    def proxy(path, method, **more):
        return answer(200, "<html>") if job.uuid in path else plain(path, method, **more)

    world.api.request = proxy
    world.rounds(3)
    assert (world.state(job), world.state(other)) == (JobState.BUILDING, JobState.RUNNING)


def _garbled(job, first, second):
    first["tags"] = ["numa-ext:mine", f"numa-ext-job:{job.uuid}", "numa-ext-member:7"]
    second["tags"] = [f"numa-ext-job:{job.uuid}", "numa-ext-member:x"]


def _removed(_job, first, second):
    first["tags"], second["tags"] = [], []


def _swapped(_job, first, second):
    first["tags"], second["tags"] = second["tags"], first["tags"]


@pytest.mark.parametrize("change", [_garbled, _removed, _swapped])
def test_tags_that_a_user_has_changed_delete_nothing_and_keep_nothing(world, change):
    job = world.jobs.create(new_job())
    world.rounds(4)
    change(job, *world.api.servers.values())
    world.rounds(2)
    assert world.state(job) is JobState.RUNNING
    assert len(world.api.there()) == 2
    world.cancel(job)
    world.rounds(3)
    assert (world.state(job), world.api.there()) == (JobState.CANCELLED, {})


@pytest.mark.parametrize("rounds", [2, 4])
def test_a_cell_that_does_not_answer_has_its_servers_still(world, rounds):
    job = world.jobs.create(new_job())
    world.rounds(rounds)
    world.api.down = set(world.api.servers)
    world.rounds(3)
    assert (world.state(job).active, len(world.api.there())) == (True, 2)
    assert world.state(job) is not JobState.ENDING
    world.api.down = {min(world.api.servers)}
    world.cancel(job)
    world.rounds(3)
    assert (world.state(job), world.api.there()) == (JobState.CANCELLED, {})


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
@pytest.mark.parametrize("status", [403, 413, 429, 500])
def test_what_a_proxy_answers_changes_no_aim(world, method, status):
    """A job that runs goes on, one that has had its time is done, one that was cancelled is cancelled."""
    running, done, cancelled = (
        world.jobs.create(new_job(walltime_s=wall, trust=trust))
        for trust, wall in (("a", None), ("b", 100.0), ("c", None))
    )
    world.rounds(3)
    states = [world.state(job) for job in (running, done, cancelled)]
    assert states == [JobState.RUNNING] * 3
    world.api.refuse = lambda asked, _path: status if asked == method else None
    world.later(101)
    world.cancel(cancelled)
    world.rounds(4)
    targets = {world.jobs.read(job.uuid).target for job in (done, cancelled)}
    assert targets <= {None, JobState.DONE, JobState.CANCELLED}
    assert world.state(running) is JobState.RUNNING
    events = len(world.jobs.events(done))
    world.rounds(2)
    assert len(world.jobs.events(done)) == events, "nothing new is no event"
    world.api.refuse = None
    world.rounds(3)
    states = [world.state(job) for job in (running, done, cancelled)]
    assert states == [JobState.RUNNING, JobState.DONE, JobState.CANCELLED]
    assert len(world.api.there()) == 2


@pytest.mark.parametrize("path", ["/servers", "/os-server-groups"])
@pytest.mark.parametrize("at", [JobState.RUNNING, JobState.CANCELLED])
def test_what_an_engine_asked_for_and_did_not_see_come_is_found_and_not_waited_for(world, path, at):
    """Killed before nova's answer: all that was asked for is there; when the job has ended its trust goes at once."""
    job = world.jobs.create(new_job(parts=(part("workers", count=2, apart=True),)))
    world.rounds(1)

    def killed(when, what):
        if (when, what) == ("after", f"POST {path}"):
            raise Killed

    world.api.hook = killed
    with pytest.raises(Killed):
        world.rounds(2)
    world.api.hook = None
    world.start()
    world.expire()
    if at is JobState.RUNNING:
        world.rounds(4)
        assert (world.state(job), world.api.created) == (at, 2)
    world.cancel(job)
    world.rounds(3)
    assert (world.state(job), world.trusts.deleted) == (JobState.CANCELLED, ["trust-1"])
    assert (world.api.there(), world.api.groups) == ({}, {})


def test_a_server_that_comes_after_its_job_was_cancelled_is_deleted(world):
    """It was asked for twice, and came once: of the other request nobody knows."""
    job = world.jobs.create(new_job())
    world.rounds(1)
    world.api.refuse = lambda method, path: 504 if (method, path) == ("POST", "/servers") else None
    world.engine.round()
    world.api.refuse = None
    world.api.late = True
    world.engine.round()
    world.cancel(job)
    for _ in range(3):
        world.engine.round()
    assert (world.state(job), world.api.servers) == (JobState.ENDING, {})
    world.settle()
    assert len(world.api.there()) == 1
    world.rounds(2)
    assert (world.state(job), world.api.there()) == (JobState.ENDING, {})
    world.later(61)
    world.rounds(1)
    assert (world.state(job), world.trusts.deleted) == (JobState.CANCELLED, [])
    world.later(600)
    world.rounds(1)
    assert world.trusts.deleted == ["trust-1"], "nothing comes that late"


def test_all_groups_that_came_late_are_deleted(world):
    job = world.jobs.create(new_job(parts=(part("workers", apart=True),)))
    world.rounds(1)
    world.api.late = True
    for _ in range(2):
        world.engine.round()
    world.settle()
    assert len(world.api.groups) == 2
    world.api.late = False
    world.rounds(3)
    assert (world.state(job), world.api.created) == (JobState.RUNNING, 2)
    world.cancel(job)
    world.rounds(3)
    assert world.api.groups == {}
    world.later(61)
    world.rounds(1)
    assert world.state(job) is JobState.CANCELLED


def test_a_group_that_nova_refuses_is_asked_for_once(world):
    """The group of the first part was made and stored in the same round."""
    parts = (part("first", apart=True), part("second", apart=True))
    job = world.jobs.create(new_job(parts=parts))
    world.rounds(1)
    asked = []

    def refuse(method, path):
        if (method, path) == ("POST", "/os-server-groups"):
            asked.append(path)
            return 400 if len(asked) > 1 else None
        return None

    world.api.refuse = refuse
    world.rounds(2)
    assert (world.state(job), len(asked), world.api.groups) == (JobState.FAILED, 2, {})


def test_servers_that_their_user_has_locked_are_unlocked_and_deleted(world):
    job = world.jobs.create(new_job(walltime_s=100.0))
    world.rounds(3)
    world.later(101)
    world.api.locked = {min(world.api.servers)}
    world.rounds(3)
    assert (world.state(job), world.api.there()) == (JobState.DONE, {})


def test_an_end_that_takes_long_is_reported_once(world):
    """An administrator has locked a server: its user cannot unlock it."""
    job = world.jobs.create(new_job())
    world.rounds(4)
    stays = min(world.api.servers)
    world.api.locked = {stays}
    world.api.refuse = lambda _method, path: 403 if path.endswith("/action") else None
    world.cancel(job)
    world.rounds(3)
    assert set(world.api.there()) == {stays}, "the others are deleted all the same"
    world.later(601)
    world.rounds(3)
    (_, reason) = world.why(job)
    assert reason.startswith("still_there=60")
    assert "servers workers, nova answered with 403" in reason
    assert [each.what for each in world.jobs.events(job)].count("target") == 1
    world.api.refuse = None
    world.rounds(3)
    assert (world.state(job), len(world.why(job))) == (JobState.CANCELLED, 1)


def test_what_hangs_is_told_without_the_words_that_are_for_the_log(world, caplog):
    """Errors of requests name endpoints; a job's reasons are for its user."""
    job = world.jobs.create(new_job())
    world.rounds(4)
    world.cancel(job)
    world.rounds(1)
    world.later(601)

    def silent(_when, what):
        raise keystone_errors.ConnectFailure(f"Unable to reach http://10.0.0.5:8774: {what}")

    world.api.hook = silent
    world.rounds(2)
    (_, reason) = world.why(job)
    assert reason.startswith("still_there=60") and "does not answer" in reason
    assert "10.0.0.5" not in reason
    assert "10.0.0.5" in caplog.text


def test_a_plan_is_corrected_by_where_servers_really_are(world):
    """Planned on h1, built on h9, and moved to h7 by an operator."""
    job = world.jobs.create(new_job())
    world.api.host = "h9"
    world.rounds(3)

    def places():
        return [(each.host, each.count) for each in world.jobs.read(job.uuid).plan.places]

    assert (world.state(job), places()) == (JobState.RUNNING, [("h9", 2)])
    world.api.servers[max(world.api.servers)] |= {"host": "h7", "hostId": "id-of-h7"}
    world.rounds(1)
    assert sorted(places()) == [("h7", 1), ("h9", 1)]


@pytest.mark.parametrize(
    ("policy", "state", "servers"),
    [
        (BuildFailure.FAIL, JobState.FAILED, 0),
        (BuildFailure.KEEP, JobState.RUNNING, 1),
        (BuildFailure.REPLACE, JobState.RUNNING, 2),
    ],
)
def test_a_server_that_fails_to_build_is_treated_as_its_part_says(world, policy, state, servers):
    job = world.jobs.create(new_job(parts=(part("workers", on_failure=policy),)))
    world.rounds(1)
    world.engine.round()
    failed = world.jobs.read(job.uuid).parts[0].servers[0]
    world.api.fail(failed)
    world.api.settle()
    world.rounds(6)
    assert (world.state(job), len(world.api.there())) == (state, servers)
    assert failed not in world.api.there()
    if policy is BuildFailure.KEEP:
        assert world.why(job) == ["partly_built[workers]=1 (against 2)"]


@pytest.mark.parametrize(
    ("policy", "state", "servers"),
    [
        (BuildFailure.FAIL, JobState.FAILED, 0),
        (BuildFailure.KEEP, JobState.RUNNING, 1),
        (BuildFailure.REPLACE, JobState.RUNNING, 2),
    ],
)
def test_a_server_that_is_not_built_in_time_has_failed(world, policy, state, servers):
    """Its compute host has died in the middle; nova shows BUILD for ever."""
    job = world.jobs.create(new_job(parts=(part("workers", on_failure=policy),)))
    world.rounds(1)
    world.engine.round()
    world.api.hangs = {world.jobs.read(job.uuid).parts[0].servers[0]}
    world.settle()
    world.later(3500)
    world.rounds(3)
    assert (world.state(job), len(world.api.there())) == (JobState.BUILDING, 2)
    world.later(101)
    world.rounds(1)
    (why,) = world.why(job)
    if policy is BuildFailure.FAIL:
        assert "it was not active after 3600 s" in why
    world.rounds(5)
    assert (world.state(job), len(world.api.there())) == (state, servers)
    assert not world.api.hangs & world.api.there().keys()


@pytest.mark.parametrize(
    ("policy", "state", "servers"),
    [(BuildFailure.FAIL, JobState.QUEUED, 0), (BuildFailure.KEEP, JobState.RUNNING, 1)],
)
def test_servers_that_nova_never_makes_are_not_waited_for_without_end(
    world, policy, state, servers
):
    """Each POST but the first is a 500, for hours."""
    job = world.jobs.create(new_job(parts=(part("workers", on_failure=policy),)))

    def refuse(method, path):
        return 500 if (method, path) == ("POST", "/servers") and world.api.created else None

    world.api.refuse = refuse
    world.rounds(4)
    assert (world.state(job), world.api.created) == (JobState.BUILDING, 1)
    world.later(3601)
    world.rounds(3)
    assert (world.state(job), len(world.api.there())) == (state, servers)
    why = {
        BuildFailure.FAIL: "not_built[workers]=1 (against 3600)",
        BuildFailure.KEEP: "partly_built[workers]=1 (against 2)",
    }
    assert world.why(job) == [why[policy]]


def test_a_server_is_made_again_only_so_often(world):
    world.api.room = 100
    parts = (part("workers", count=1, on_failure=BuildFailure.REPLACE),)
    job = world.jobs.create(new_job(parts=parts))
    for _ in range(20):
        world.engine.round()
        for each in world.api.there():
            world.api.fail(each)
        world.api.settle()
    assert world.state(job) is JobState.FAILED
    assert world.api.created == 4
    assert world.api.there() == {}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"apart": True},
        {"wait_for": (ScopeWait(Scope.HOST),)},
        {"networks": ("none",)},
        {"networks": ("network-1",)},
        {"extra_specs": {"numa_ext:gpu_policy": "topo_p"}},
    ],
    ids=str,
)
def test_no_server_is_asked_for_on_a_host_or_in_an_availability_zone(world, options):
    """An availability zone may name a host, and skips nova's filters then; where servers go, nova's scheduler says."""
    bodies = _asked_for(world)
    world.hint_keys = HintKeys([Fernet.generate_key().decode()])
    world.start()
    job = world.jobs.create(new_job(parts=(part("workers", **options),)))
    world.rounds(4)
    assert world.state(job) is JobState.RUNNING
    assert len(bodies) == 2
    for body in bodies:
        assert body.keys() <= {"server", "os:scheduler_hints"}
        assert body["server"].keys() == {"name", "flavorRef", "imageRef", "networks", "tags"}
        assert HINT in body["os:scheduler_hints"].keys() <= {"group", HINT}


def _asked_for(world):
    """The bodies by which servers are made from now on."""
    plain, bodies = world.api.request, []

    def request(path, method, **more):
        if (method, path) == ("POST", "/servers"):
            bodies.append(more["json"])
        return plain(path, method, **more)

    world.api.request = request
    return bodies


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({"apart": True}, "anti-affinity"),
        ({"wait_for": (ScopeWait(Scope.HOST),)}, "affinity"),
    ],
)
def test_where_servers_may_be_is_novas_rule(world, options, policy):
    job = world.jobs.create(new_job(parts=(part("workers", **options), part("cpu"))))
    world.rounds(4)
    (group,) = world.api.groups.values()
    assert (group["name"], group["policy"]) == (f"numa-ext:{job.uuid}:workers", policy)
    world.cancel(job)
    world.rounds(3)
    assert world.api.groups == {}


@pytest.mark.parametrize("rounds", range(6))
def test_a_user_without_rights_fails_the_job_and_no_server_is_touched(world, rounds):
    """The job ends when its servers are gone: until then it holds what they use."""
    job = world.jobs.create(new_job())
    world.rounds(rounds)
    before = dict(world.api.servers)
    world.trusts.lost.add("trust-1")
    world.rounds(4)
    assert world.state(job) not in (JobState.ENDING, JobState.FAILED)
    assert world.why(job)[-1] == "trust=the user is disabled"
    world.later(601)
    world.rounds(4)
    assert (world.state(job) is JobState.ENDING) == bool(before)
    assert world.api.servers == before
    world.trusts.lost.clear()
    world.rounds(2)
    assert world.api.servers == before, "also when its user comes back"
    world.api.servers.clear()
    world.rounds(1)
    assert world.state(job) is JobState.FAILED
    assert world.why(job) == ["trust=the user is disabled"]


def test_a_job_that_is_held_fails_without_its_user(world):
    job = world.jobs.create(new_job(held=True))
    world.trusts.lost.add("trust-1")
    world.rounds(2)
    assert world.state(job) is JobState.QUEUED
    assert world.why(job)[-1] == "trust=the user is disabled"
    world.later(601)
    world.rounds(1)
    assert (world.state(job), world.why(job)) == (JobState.FAILED, ["trust=the user is disabled"])
    assert world.api.created == 0


def test_a_job_without_its_user_has_no_turn(world):
    """Another one has its slot meanwhile; it is in its place again when its user is back."""
    world.slots = 1
    first, second, third = (world.jobs.create(new_job(each, trust=each)) for each in "abc")
    world.trusts.lost.add("a")
    world.rounds(5)
    states = [world.state(each) for each in (first, second, third)]
    assert states == [JobState.QUEUED, JobState.RUNNING, JobState.QUEUED]
    world.trusts.lost.clear()
    world.cancel(second)
    world.rounds(6)
    states = [world.state(each) for each in (first, second, third)]
    assert states == [JobState.RUNNING, JobState.CANCELLED, JobState.QUEUED]


def test_whoever_is_disabled_all_jobs_know_two_rounds_later(tmp_path):
    """Whether they run or wait, though each one's own trust is not due for minutes; jobs of others are as they were."""
    rarely = {"trust_check_s": 300.0, "watch_interval_s": 300.0}
    world = World(tmp_path, **rarely, round_interval_s=0.0, user_checks_per_round=2)
    world.slots = 1
    mine = [world.jobs.create(new_job(each, trust=each, user="mallory")) for each in "abc"]
    other = world.jobs.create(new_job("other", trust="other", held=True))
    world.rounds(4)
    assert [world.state(each) for each in mine] == [JobState.RUNNING, *[JobState.QUEUED] * 2]
    world.trusts.lost |= {"a", "b", "c"}
    world.rounds(2)
    assert [world.why(each)[-1] for each in mine] == ["trust=the user is disabled"] * 3
    assert world.jobs.read(other.uuid).trust_lost_at is None


@pytest.mark.parametrize("rounds", range(6))
def test_a_keystone_that_refuses_for_a_moment_changes_nothing(world, rounds):
    job = world.jobs.create(new_job())
    world.rounds(rounds)
    for _ in range(3):
        world.trusts.lost.add("trust-1")
        world.rounds(2)
        world.later(500)
        world.trusts.lost.clear()
        world.rounds(3)
    assert world.state(job) is JobState.RUNNING
    assert world.why(job) == ["built=2"]
    assert (len(world.api.there()), world.api.created) == (2, 2)


def test_a_job_that_ends_while_its_user_is_away_goes_on_when_it_is_back(world):
    job = world.jobs.create(new_job())
    world.rounds(4)
    world.trusts.lost.add("trust-1")
    world.cancel(job)
    world.rounds(2)
    world.later(601)
    world.rounds(2)
    assert (world.state(job), len(world.api.there())) == (JobState.ENDING, 2)
    world.trusts.lost.clear()
    world.rounds(3)
    assert (world.state(job), world.api.there()) == (JobState.CANCELLED, {})


def test_a_trust_that_cannot_be_deleted_is_deleted_when_it_can(world):
    job = world.jobs.create(new_job(held=True))
    world.trusts.lost.add("trust-1")
    world.cancel(job)
    world.rounds(2)
    assert (world.state(job), world.trusts.deleted) == (JobState.CANCELLED, [])
    world.trusts.lost.clear()
    world.rounds(1)
    assert world.trusts.deleted == [], "not in each round"
    world.later(61)
    world.rounds(1)
    assert world.trusts.deleted == ["trust-1"]
    world.rounds(1)
    assert world.trusts.asked == 2, "one that is deleted is forgotten"


def test_an_engine_that_does_not_lead_does_nothing(world):
    world.jobs.create(new_job())
    world.engine.round()
    second = world.start()
    assert second.round() is None
    assert world.api.created == 0


def test_an_engine_that_was_paused_writes_nothing_more(world):
    """Its term ends between the look and the write; the second engine carries on from there."""
    job = world.jobs.create(new_job())
    world.rounds(1)
    world.engine.round()
    paused = world.engine
    second = world.start()
    before = world.api.created

    def pause(when, what):
        if when == "after" and what.startswith("GET /servers"):
            world.api.hook = None
            world.expire()
            second.round()

    for each in list(world.api.servers):
        world.api.fail(each)
    world.api.hook = pause
    assert paused.round() is None
    world.engine = second
    world.rounds(4)
    assert world.api.created == before
    assert world.state(job) is JobState.FAILED
    terms = [each.term for each in world.jobs.events(job) if each.term]
    assert terms == sorted(terms)
    assert terms[-1] == 2


def test_an_engine_that_was_paused_deletes_no_trust(world):
    """Its term ends while Keystone deletes the first one of two; the second engine has deleted both by then."""
    jobs = [world.jobs.create(new_job(trust=name, held=True)) for name in ("a", "b")]
    paused = world.engine
    seen = []

    def pause(when, what):
        if when == "after" and what.startswith("delete"):
            world.trusts.hook = None
            world.expire()
            second.round()
            seen.append(world.trusts.asked)

    for job in jobs:
        world.cancel(job)
    second = world.start()
    world.trusts.hook = pause
    paused.round()
    assert [world.state(job) for job in jobs] == [JobState.CANCELLED] * 2
    assert seen == [3], "the first one twice, the second one by who leads"
    assert world.trusts.asked == 3, "who was paused asks for nothing more"
    assert sorted(world.trusts.deleted) == ["a", "b"]


class Stops:
    """Counts what engines ask of nova, Keystone, Placement and the database, and stops one at the n-th.

    :param at: None: none is stopped
    :ivar stop: called there
    :ivar armed: an engine is at work
    """

    def __init__(self, at=None):
        self.at = at
        self.seen = 0
        self.stop = None
        self.armed = False

    def __call__(self, *_what):
        if not self.armed:
            return
        self.seen += 1
        if self.seen - 1 == self.at:
            self.stop()

    @contextmanager
    def counting(self, plain):
        self()
        with plain() as connection:
            yield connection
        self()


class Life:
    """Two engines, of which now one leads and now the other, carry two jobs from the queue to their end.

    One job runs and is cancelled then, the other is cancelled while it is built. Both need the same amounts of
    Placement, one after the other. Nova makes servers and groups one round late now and then, without an answer.
    Beside them runs a third job, whose servers nobody touches; those of the first one are the same as long as it runs.

    :param stops: where an engine dies, or pauses while the other one leads for a round
    """

    def __init__(self, folder, placement, stops, *, pauses):
        self.pool = placement.compute("pool " + str(folder), CUSTOM_SLOT=3)
        self.stops = stops
        stops.stop = self.pause if pauses else self.die
        every = lambda _method, _path: self.around  # noqa: E731
        client = PlacementClient(FaultyAdapter(placement.adapter, every))
        self.world = World(folder, ClaimStore(client))
        self.world.claims_of_plans = (ProviderAmount(self.pool, "CUSTOM_SLOT", 3),)
        self.world.api.hook = self.world.trusts.hook = stops
        plain = self.world.database.transaction
        self.world.database.transaction = lambda: stops.counting(plain)
        parts = (part("gpu", count=2, apart=True), part("cpu", count=1))
        create = self.world.jobs.create
        self.beside = create(new_job("beside", trust="beside"))
        self.world.claims_of_plans, claims = (), self.world.claims_of_plans
        self.world.rounds(4)
        self.world.claims_of_plans = claims
        self.jobs = [create(new_job(name, parts=parts, trust=name)) for name in ("a", "b")]
        self.untouched = self.kept(self.beside)
        self.engines = [self.world.engine, self.world.start()]
        self.turn = 0

    def around(self, send):
        self.stops()
        result = send()
        self.stops()
        return result

    def die(self):
        raise Killed

    def pause(self):
        """The other engine leads for a round; then the paused one goes on where it was, too late."""
        self.world.expire()
        self.engines[1 - self.turn % 2].round()

    def round(self):
        world, turn = self.world, self.turn
        world.expire()
        world.api.late = turn % 3 == 2
        self.stops.armed = True
        try:
            self.engines[turn % 2].round()
        except Killed:
            self.engines[turn % 2] = world.start()
        self.stops.armed = False
        self.turn += 1
        world.settle()
        world.later(25)

        for server, shown in self.untouched.items():
            assert world.api.servers[server] == shown, f"turn {turn} has touched a server that runs"

    def kept(self, job):
        """What nova shows of the servers of a job that runs."""
        stored = self.world.jobs.read(job.uuid)
        assert stored.state is JobState.RUNNING, self.world.why(job)
        uuids = {uuid for each in stored.parts for uuid in each.servers.values()}
        return {uuid: dict(self.world.api.servers[uuid]) for uuid in uuids}

    def until(self, job, state):
        for _ in range(40):
            if self.world.state(job) is state:
                return
            self.round()
        assert self.world.state(job) is state, self.world.why(job)

    def live(self):
        world, (first, second) = self.world, self.jobs
        self.until(first, JobState.RUNNING)
        beside, kept = self.untouched, self.kept(first)
        self.untouched = beside | kept
        for _ in range(3):
            self.round()
        assert self.kept(first) == kept
        assert len(kept) == 3
        assert set(world.api.there()) == self.untouched.keys(), "a duplicate is gone soon"
        self.untouched = beside
        (held,) = world.claims.of_provider(self.pool)
        assert held.amounts == {self.pool: {"CUSTOM_SLOT": 3}}
        world.cancel(first)
        self.until(second, JobState.BUILDING)
        world.cancel(second)
        for job in self.jobs:
            self.until(job, JobState.CANCELLED)
        for _ in range(3):
            self.round()
        assert (world.api.there(), world.api.groups) == (self.kept(self.beside), {})
        assert self.kept(self.beside) == beside
        assert list(world.claims.of_provider(self.pool)) == []
        assert sorted(world.trusts.deleted) == ["a", "b"]


@pytest.fixture(scope="module")
def places(placement, tmp_path_factory):
    """In how many places of jobs' lives an engine can stop."""
    counting = Stops()
    Life(tmp_path_factory.mktemp("undisturbed"), placement, counting, pauses=False).live()
    return counting.seen


@pytest.mark.parametrize("pauses", [False, True], ids=["dies", "pauses"])
@pytest.mark.parametrize(
    "share", [0.003, pytest.param(1.0, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_whenever_an_engine_stops_nothing_is_lost_doubled_or_left(
    tmp_path, placement, places, share, pauses
):
    """kill -9, or a pause, at requests and transactions of jobs' lives: at a seeded share of them, or at each."""
    for at in random.Random(16).sample(range(places), round(share * places)):
        stops = Stops(at)
        Life(_folder(tmp_path, str(at)), placement, stops, pauses=pauses).live()
        assert stops.seen > at, "one has stopped"


def _folder(path, name):
    folder = path / name
    folder.mkdir()
    return folder


def test_claims_are_held_while_a_job_runs_and_no_longer(placement, tmp_path):
    """A second job, for which there is no room, waits for them."""
    pool = placement.compute("pool", CUSTOM_SLOT=4)
    world = World(tmp_path, ClaimStore(placement.client))
    world.claims_of_plans = (ProviderAmount(pool, "CUSTOM_SLOT", 3),)
    first, second = (world.jobs.create(new_job(trust=trust)) for trust in ("first", "second"))
    world.rounds(4)
    assert (world.state(first), world.state(second)) == (JobState.RUNNING, JobState.QUEUED)
    assert world.why(second)[0].startswith("claim_conflict=")
    path = f"/resource_providers/{pool}/usages"
    assert placement.client.get(path)["usages"] == {"CUSTOM_SLOT": 3, "MEMORY_MB": 0, "VCPU": 0}
    (held,) = world.claims.of_provider(pool)
    assert (held.type, held.project, held.user) == ("NUMA_EXT_JOB", "project-1", "user-1")
    world.cancel(first)
    world.rounds(3)
    assert list(world.claims.of_provider(pool)) == []
    world.forget_back_off()
    world.rounds(4)
    assert world.state(second) is JobState.RUNNING


def test_a_job_that_is_preempted_waits_again_and_one_that_is_given_up_fails(world):
    stopped, given_up, postponed = (
        world.jobs.create(new_job(name, trust=name)) for name in ("a", "b", "c")
    )
    world.slots = 1
    world.rounds(3)
    assert world.state(stopped) is JobState.RUNNING
    why = Reason("preempted", given_up.uuid)
    decisions = [
        QueueDecision(
            {},
            {postponed.uuid: (Reason("postponed", 1, 10, "workers"),)},
            ended={given_up.uuid: (Reason("max_wait", 9, 8),)},
            postponed=frozenset({postponed.uuid}),
            preempted={stopped.uuid: why},
        )
    ]
    world.engine._decide = lambda *_job: decisions.pop() if decisions else QueueDecision({}, {})
    world.rounds(3)
    assert (world.state(stopped), world.why(stopped)) == (JobState.QUEUED, [str(why)])
    again = world.jobs.read(stopped.uuid)
    assert (again.refusals, again.not_before) == (0, 0.0), "nova has refused nothing"
    assert world.state(given_up) is JobState.FAILED
    assert world.jobs.read(postponed.uuid).postponed == 1
    assert world.api.there() == {}
    assert world.trusts.deleted == ["b"]
