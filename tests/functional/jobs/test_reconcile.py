# SPDX-License-Identifier: Apache-2.0
"""Claims, servers, groups and trusts that no job knows of: found twice they are given back, and nothing else is."""

import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest
from sqlalchemy import update

from nova_numa_ext.orchestrator import engine
from nova_numa_ext.orchestrator.cloud.servers import TAG
from nova_numa_ext.orchestrator.cloud.trusts import GivenTrust
from nova_numa_ext.orchestrator.conf import EngineOptions
from nova_numa_ext.orchestrator.reconcile import LostClaims, LostTrusts
from nova_numa_ext.orchestrator.steps import CLAIM
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.leader import NotLeaderError
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.scaling import (
    MemberTemplate,
    ScalingGroups,
    ScalingSource,
)
from nova_numa_ext.orchestrator.store.stored_job import Step
from nova_numa_ext.orchestrator.store.stored_lease import LeaseSpec
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.jobs.plan import ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits.claim_store import ClaimStore
from placement_traits.claims import Claim
from placement_traits.errors import ConflictError, NumaExtError
from placement_traits.names import JOB_CONSUMER, RemoteGpuApi, ServiceLevel
from tests.support.jobs_database import new_job, part
from tests.support.jobs_world import USER, World

SLOT = "CUSTOM_SLOT"
LONGEST_PAUSE = 1.1  # of a round's interval, by which engines do not run in step


@pytest.fixture
def world(placement, pool, tmp_path):
    """One engine whose jobs each claim a slot::

    JobEngine engine-1 ── jobs.db, ComputeApi
    └─ ClaimStore ── Placement
       └─ pool         CUSTOM_SLOT 4: each plan takes 1
    """
    world = World(tmp_path, ClaimStore(placement.client))
    world.claims_of_plans = (ProviderAmount(pool, SLOT, 1),)
    return world


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def lost(world, clock):
    return LostClaims(world.claims, world.jobs, lambda: clock[0])


def late(world, pool, project="project-1"):
    """A claim that was granted when its job had been released."""
    claim = Claim(str(uuid.uuid4()), JOB_CONSUMER, project, "user-1", {pool: {SLOT: 1}})
    world.claims.write(claim)
    return claim


def held(world, pool):
    return {each.consumer for each in world.claims.of_provider(pool)}


def may():
    """The engine leads."""


def test_a_claim_of_no_job_is_released_in_the_second_look(world, pool, lost):
    world.jobs.create(new_job())
    world.rounds(3)
    (of_job,) = held(world, pool)
    assert lost.release(may) == 0
    orphan = late(world, pool)
    assert lost.release(may) == 0
    assert held(world, pool) == {of_job, orphan.consumer}
    assert lost.release(may) == 1
    assert held(world, pool) == {of_job}
    assert lost.release(may) == 0


def test_a_claim_that_changes_between_two_looks_is_looked_at_again(world, pool, lost):
    world.jobs.create(new_job())
    lost.release(may)
    orphan = late(world, pool)
    assert lost.release(may) == 0
    read = world.claims.read(orphan.consumer)
    world.claims.write(replace(read, amounts={pool: {SLOT: 2}}))
    assert lost.release(may) == 0
    assert lost.release(may) == 1


def test_projects_that_have_leases_only_are_not_asked_for(world, lost, monkeypatch):
    """Their claims are compared elsewhere; each question is a request a minute."""
    asked = LeaseSpec(1000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL)
    Leases(world.database).request(("of-leases", "u"), asked, 1, "server-1", USER)
    world.jobs.create(new_job())
    questions = []
    monkeypatch.setattr(world.claims, "consumers", lambda each: questions.append(each) or {})
    lost.release(may)
    assert questions == ["project-1"]


def test_what_other_consumers_of_ours_hold_is_left_alone(world, pool, lost):
    world.jobs.create(new_job())
    lease = Claim(str(uuid.uuid4()), "NUMA_EXT_LEASE", "project-1", "u", {pool: {SLOT: 1}})
    world.claims.write(lease)
    orphan = late(world, pool)
    lost.release(may)
    assert lost.release(may) == 1
    assert held(world, pool) == {lease.consumer}
    assert orphan.consumer not in held(world, pool)


def test_a_look_costs_one_request_a_project_as_long_as_all_fits(world, placement, pool, lost):
    for project in ("project-1", "project-2"):
        world.jobs.create(new_job(project=project))
    world.rounds(3)
    lost.release(may)
    before = placement.client.counters.requests
    lost.release(may)
    assert placement.client.counters.requests - before == 2


def test_a_claim_that_hides_behind_one_that_is_not_yet_held_is_found_within_an_hour(
    world, pool, lost, clock
):
    lost.release(may)
    job = world.jobs.create(new_job())
    world.claims_of_plans = (ProviderAmount(pool, SLOT, 4),)
    world.rounds(1)
    waits = world.jobs.read(job.uuid)
    world.jobs.set(waits, USER, steps=(Step(CLAIM, str(uuid.uuid4())),))
    orphan = late(world, pool)
    assert [lost.release(may) for _ in range(3)] == [0, 0, 0]
    assert held(world, pool) == {orphan.consumer}
    clock[0] = 3601.0
    lost.release(may)
    assert lost.release(may) == 1


def test_nothing_is_released_of_a_project_that_has_a_job_that_cannot_be_read(world, pool, lost):
    """What it holds is not known; claims of others are found all the same."""
    job = world.jobs.create(new_job())
    world.rounds(3)
    with world.database.transaction() as connection:
        other = {"steps": [{"of": "another release"}]}
        connection.execute(update(tables.job).where(tables.job.c.id == job.number).values(**other))
    world.jobs.create(new_job(project="project-2"))
    (of_job,) = held(world, pool)
    orphan = late(world, pool, "project-2")
    assert [lost.release(may) for _ in range(2)] == [0, 1]
    assert held(world, pool) == {of_job}
    assert orphan.consumer != of_job


def test_a_claim_that_is_written_meanwhile_keeps_no_other_one(world, pool, lost):
    world.jobs.create(new_job())
    orphans = [late(world, pool) for _ in range(3)]
    lost.release(may)
    first = min(each.consumer for each in orphans)
    write = world.claims.write

    def contested(claim, may):
        if claim.consumer == first:
            raise ConflictError("another one was faster")
        write(claim, may=may)

    world.claims.write = contested
    assert lost.release(may) == 2
    assert held(world, pool) == {first}


def test_projects_whose_jobs_have_ended_long_ago_cost_nothing(world, placement, lost):
    old = world.jobs.create(new_job(project="project-2"))
    world.jobs.create(new_job())
    lost.release(may)
    ended = {"state": "done", "ended_at": world.database.now() - 7200.0}
    with world.database.transaction() as connection:
        connection.execute(update(tables.job).where(tables.job.c.id == old.number).values(**ended))
    before = placement.client.counters.requests
    lost.release(may)
    assert placement.client.counters.requests - before == 1


def test_who_does_not_lead_any_more_releases_nothing(world, pool, lost):
    world.jobs.create(new_job())
    orphan = late(world, pool)
    lost.release(may)

    def over():
        raise NotLeaderError("the term is over")

    with pytest.raises(NotLeaderError):
        lost.release(over)
    assert orphan.consumer in held(world, pool)


def test_the_leading_engine_looks_for_claims_of_no_job(placement, pool, tmp_path, caplog):
    """Also after a look that failed."""
    world = World(tmp_path, ClaimStore(placement.client), reconcile_interval_s=0.0)
    world.jobs.create(new_job())
    late(world, pool)
    second = world.start()
    assert second.round() is not None
    plain, world.claims.all = world.claims.all, lambda: {}["as no one has foreseen"]
    world.rounds(2)
    assert caplog.text.count("claims of no job are not looked for now") == 1
    world.claims.all = plain
    assert len(held(world, pool)) == 1
    world.rounds(3)
    assert held(world, pool) == set()


@pytest.fixture
def late_world(tmp_path):
    """What is asked of nova comes to be when it is settled, and each round looks for what is of no job."""
    return World(tmp_path, NoClaims(), reconcile_interval_s=0.0)


class NoClaims:
    """Placement without any of ours."""

    def all(self):
        return []

    def consumers(self, _project):
        return {}


def cancelled_before_nova_answers(world, **job):
    """A job that was built without an answer, cancelled, and has ended."""
    job = world.jobs.create(new_job(**job))
    world.rounds(1)
    world.api.late = True
    world.engine.round()
    world.cancel(job)
    world.engine.round()
    world.later(61)
    world.engine.round()
    world.api.late = False
    assert (world.state(job), world.api.servers) == (JobState.CANCELLED, {})
    return job


def test_a_server_that_comes_after_its_job_has_ended_is_deleted_in_the_second_look(late_world):
    world = late_world
    cancelled_before_nova_answers(world)
    world.settle()
    world.engine.round()
    assert (len(world.api.there()), world.trusts.deleted) == (1, []), "it was seen once"
    world.engine.round()
    assert world.api.there() == {}
    world.settle()
    world.rounds(3)
    assert world.trusts.deleted == [], "more may come"
    world.later(601)
    world.rounds(1)
    assert world.trusts.deleted == ["trust-1"]


def test_a_server_that_comes_late_is_gone_within_a_minute_at_the_default_intervals(
    tmp_path, monkeypatch
):
    """Whenever between two looks it comes: its job has ended, and no round looks for its servers any more."""
    defaults, clock = EngineOptions(), [0.0]
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    world = World(tmp_path, NoClaims(), reconcile_interval_s=defaults.reconcile_interval_s)
    cancelled_before_nova_answers(world)
    world.settle()
    late, lived_s = world.api.there(), []
    for number in range(12):
        came_s = clock[0]
        world.api.servers = {
            f"{uuid}-{number}": {**each, "id": f"{uuid}-{number}"} for uuid, each in late.items()
        }
        while world.api.there():
            assert clock[0] < came_s + 3600.0
            clock[0] += defaults.round_interval_s * LONGEST_PAUSE
            world.engine.round()
        lived_s.append(clock[0] - came_s)
        clock[0] += 7.0
    assert 0.0 < max(lived_s) <= 60.0


def test_a_group_that_comes_after_its_job_has_ended_is_deleted(late_world):
    world = late_world
    job = cancelled_before_nova_answers(world, parts=(part("workers", apart=True),))
    world.settle()
    assert [each["name"] for each in world.api.groups.values()] == [f"{TAG}{job.uuid}:workers"]
    world.rounds(3)
    assert world.api.groups == {}


def test_a_server_of_a_job_that_waits_again_is_deleted(late_world):
    """It would stay until the job is planned again, and be taken for one of the new plan."""
    world = late_world
    world.slots = 0
    job = world.jobs.create(new_job())
    world.rounds(1)
    world.slots = 1
    world.rounds(1)
    world.api.late = True
    world.engine.round()
    waits = world.jobs.read(job.uuid)
    world.jobs.move(waits, JobState.ENDING, waits.reasons, USER, target=JobState.QUEUED)
    world.slots = 0
    world.later(61)
    world.engine.round()
    world.api.late = False
    assert world.state(job) is JobState.QUEUED
    world.settle()
    assert len(world.api.there()) == 1
    world.rounds(3)
    assert (world.state(job), world.api.there()) == (JobState.QUEUED, {})


def test_only_jobs_of_which_nova_did_not_answer_are_looked_at(late_world):
    world = late_world
    job = world.jobs.create(new_job())
    world.rounds(3)
    world.cancel(job)
    world.rounds(3)
    assert world.trusts.deleted == ["trust-1"], "nothing is waited for"
    asked = []
    world.api.hook = lambda *what: asked.append(what)
    world.rounds(2)
    assert asked == []


def test_a_trust_of_no_job_is_deleted_after_an_hour(late_world, clock):
    world = late_world
    ended = EndedTrusts(world.database)
    lost = LostTrusts(world.jobs, ended, world.trusts, lambda: clock[0])
    world.jobs.create(new_job(trust="of-a-job"))
    ended.add("to-be-deleted")
    names = ("of-a-job", "to-be-deleted", "lost")
    world.trusts.all = [GivenTrust(each, "user-1", "project-1") for each in names]
    assert lost.release(lambda: None) == 0
    clock[0] = 3599.0
    world.trusts.all.append(GivenTrust("just-made", "user-1", "project-1"))
    assert lost.release(lambda: None) == 0
    clock[0] = 3601.0

    def led_before():
        raise NotLeaderError("engine-1 does not lead any more.")

    with pytest.raises(NotLeaderError):
        lost.release(led_before)
    assert ended.all() == {"to-be-deleted"}, "who does not lead writes nothing"
    assert lost.release(lambda: None) == 1
    assert ended.all() == {"to-be-deleted", "lost"}


def test_a_trust_of_an_elastic_group_is_not_lost(late_world, clock):
    world = late_world
    groups, ended = ScalingGroups(world.database), EndedTrusts(world.database)
    lost = LostTrusts(world.jobs, ended, world.trusts, lambda: clock[0], also=groups.trusts)
    source, template = ScalingSource("a.csv"), MemberTemplate("web", "f", "i")
    settings = ScalingSettings(35.0)
    groups.set("g", "project-1", "u", settings, source, template=template, trust="of-a-group")
    world.trusts.all = [GivenTrust("of-a-group", "user-1", "project-1")]
    for clock[0] in (0.0, 4e3, 8e3):
        assert lost.release(lambda: None) == 0
    groups.delete("g")
    assert ended.all() == {"of-a-group"}


class Uplinks:
    """What says on leafs what best-effort servers may send; it fails where it is told to."""

    def __init__(self):
        self.looks, self.error = 0, None

    def look(self, may):
        self.looks += 1
        if self.error:
            raise self.error
        may()
        return 0


def test_the_leading_engine_looks_at_uplinks_of_leafs_in_its_time(tmp_path, monkeypatch, caplog):
    """Also after a look that failed, and no other engine beside it."""
    clock, uplinks = [0.0], Uplinks()
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    world = World(tmp_path, NoClaims(), uplinks=uplinks, leaf_uplinks_interval_s=30.0)
    first, second = world.engine, world.start()
    first.round()
    assert second.round() is None
    assert uplinks.looks == 1
    clock[0] = 29.0
    first.round()
    assert uplinks.looks == 1
    clock[0], uplinks.error = 30.0, NumaExtError("Placement is silent.")
    first.round()
    assert "uplinks of leafs are not looked for now" in caplog.text
    clock[0], uplinks.error = 60.0, None
    first.round()
    assert uplinks.looks == 3
