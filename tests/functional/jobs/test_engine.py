# SPDX-License-Identifier: Apache-2.0
"""Stories of jobs from the queue to their end, and of engines that die on the way."""

import random
from contextlib import contextmanager

import pytest
from sqlalchemy import update

from nova_numa_ext.orchestrator.engine import QueueDecision
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.policy.jobs.job import BuildFailure, Scope, ScopeWait
from nova_numa_ext.policy.jobs.plan import ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits.claims import ClaimStore
from placement_traits.reason import Reason
from tests.support.faults import answer
from tests.support.jobs_database import new_job, part
from tests.support.jobs_world import USER, World


class Killed(BaseException):
    """The engine's process ends here."""


@pytest.fixture
def world(tmp_path):
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


def test_a_quota_that_is_used_up_is_waited_for(world):
    world.api.refuse = lambda method, path: (
        403 if (method, path) == ("POST", "/servers") and world.api.created == 1 else None
    )
    job = world.jobs.create(new_job())
    world.rounds(8)
    assert world.state(job) is JobState.QUEUED
    assert world.why(job)[0].startswith("quota=Nova answered POST /servers with 403: as the test")
    assert world.api.there() == {}


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


def test_tags_that_a_user_has_changed_delete_nothing(world):
    job = world.jobs.create(new_job())
    world.rounds(4)
    first, second = world.api.servers.values()
    first["tags"] = ["numa-ext:mine", f"numa-ext-job:{job.uuid}", "numa-ext-member:7"]
    second["tags"] = [f"numa-ext-job:{job.uuid}", "numa-ext-member:x"]
    world.rounds(2)
    assert world.state(job) is JobState.RUNNING
    assert len(world.api.there()) == 2


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


@pytest.mark.parametrize("rounds", range(1, 6))
def test_a_user_without_rights_fails_the_job_and_no_server_is_touched(world, rounds):
    job = world.jobs.create(new_job())
    world.rounds(rounds)
    before = dict(world.api.servers)
    world.trusts.lost.add("trust-1")
    world.rounds(4)
    assert world.state(job) is JobState.FAILED
    assert world.why(job) == ["trust=the user is disabled"]
    assert world.api.servers == before


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


class Deaths:
    """Counts what engines ask of nova and of the database, and lets one die at the n-th.

    :param at: None: none dies
    """

    def __init__(self, at=None):
        self.at = at
        self.seen = 0

    def __call__(self, *_what):
        self.seen += 1
        if self.seen - 1 == self.at:
            raise Killed


def life(folder, deaths, monkeypatch):
    """A job that is submitted, runs and is cancelled, while an engine dies once.

    Dies: before and after a request to nova, or before and after a transaction.
    """
    world = World(folder)
    url = world.url
    job = world.jobs.create(new_job(parts=(part("gpu", count=2, apart=True), part("cpu"))))
    look = Jobs(Database(url))
    plain = world.database.transaction

    @contextmanager
    def dying():
        deaths()
        with plain() as connection:
            yield connection
        deaths()

    def rounds():
        try:
            world.engine.round()
        except Killed:
            with Database(url).transaction() as connection:
                connection.execute(update(tables.leader).values(expires_at=0.0))
            world.start()
        world.api.settle()

    world.api.hook = deaths
    monkeypatch.setattr(world.database, "transaction", dying)
    for _ in range(9):
        rounds()
    now = look.read(job.uuid)
    assert now.state is JobState.RUNNING
    kept = {uuid for each in now.parts for uuid in each.servers.values()}
    assert (len(kept), set(world.api.there())) == (4, kept), "a duplicate is gone soon"
    look.set(now, USER, cancelled=True)
    for _ in range(7):
        rounds()
    monkeypatch.undo()
    assert look.read(job.uuid).state is JobState.CANCELLED
    assert (world.api.there(), world.api.groups) == ({}, {})
    assert world.trusts.deleted == ["trust-1"]


@pytest.mark.parametrize(
    "share", [0.05, pytest.param(1.0, marks=[pytest.mark.long, pytest.mark.timeout(1200)])]
)
def test_whenever_an_engine_dies_nothing_is_lost_doubled_or_left(tmp_path, monkeypatch, share):
    """kill -9 at requests and transactions of a job's life: at a seeded share of them, or at each."""
    counting = Deaths()
    life(_folder(tmp_path, "first"), counting, monkeypatch)
    chosen = random.Random(16).sample(range(counting.seen), round(share * counting.seen))
    for at in chosen:
        deaths = Deaths(at)
        life(_folder(tmp_path, str(at)), deaths, monkeypatch)
        assert deaths.seen > at, "one has died"


def _folder(path, name):
    folder = path / name
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def placement():
    from emulation.placement_service import PlacementInProcess
    from tests.support.filled_placement import FilledPlacement

    with PlacementInProcess() as running:
        yield FilledPlacement(running.adapter)


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
    assert world.state(given_up) is JobState.FAILED
    assert world.jobs.read(postponed.uuid).postponed == 1
    assert world.api.there() == {}
    assert world.trusts.deleted == ["b"]
