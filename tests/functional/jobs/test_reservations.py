# SPDX-License-Identifier: Apache-2.0
"""What a real Placement holds for a job while it waits, and for no job a moment longer."""

import uuid

import pytest

from nova_numa_ext.orchestrator.engine import QueueDecision
from nova_numa_ext.orchestrator.reconcile import LostClaims
from nova_numa_ext.orchestrator.reservations import consumer, unanswered
from nova_numa_ext.policy.jobs.plan import ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits import names
from placement_traits.claim_store import ClaimStore
from placement_traits.claims import Claim
from placement_traits.errors import ServiceUnavailableError
from placement_traits.reason import Reason
from tests.support.jobs_database import new_job
from tests.support.jobs_world import World

SLOT = "CUSTOM_SLOT"
WHY = (Reason("no_room", 0, 1, "workers"),)


class Waiting(World):
    """All jobs wait, and the queue has slots of one provider held for them, until they may start.

    :ivar pool: the provider
    :ivar slots_each: for each job; 0: none
    """

    pool = ""
    slots_each = 0
    starts = False

    def decide(self, waiting, active, now):
        if self.starts:
            return super().decide(waiting, active, now)
        amounts = (ProviderAmount(self.pool, SLOT, self.slots_each),) if self.slots_each else ()
        return QueueDecision(
            {}, {job.uuid: WHY for job in waiting}, reserved={job.uuid: amounts for job in waiting}
        )

    def held(self):
        return {
            (each.consumer, each.type): each.amounts[self.pool][SLOT]
            for each in self.claims.of_provider(self.pool)
        }


class Unsure(ClaimStore):
    """A Placement that does not answer some writes.

    :ivar silent: so many of the next ones
    :ivar late: they are done all the same
    """

    silent = 1
    late = False

    def write(self, *claims, may=lambda: None):
        if not self.silent:
            return super().write(*claims, may=may)
        self.silent -= 1
        if self.late:
            super().write(*claims, may=may)
        raise ServiceUnavailableError("Placement does not answer")


@pytest.fixture
def world(placement, pool, tmp_path):
    """One engine whose jobs all wait until ``starts`` is set::

    JobEngine engine-1 ── jobs.db, ComputeApi
    └─ ClaimStore ── Placement
       └─ pool         CUSTOM_SLOT 4: each job that waits has ``slots_each`` of them held, at first 0
    """
    world = Waiting(tmp_path, ClaimStore(placement.client))
    world.pool = pool
    return world


@pytest.fixture
def unsure(placement, pool, tmp_path):
    """The same, with a Placement that does not answer the first write."""
    world = Waiting(tmp_path, Unsure(placement.client))
    world.pool = pool
    return world


@pytest.fixture
def job(world):
    """A job that waits, for which slots are held::

    pool    CUSTOM_SLOT 3 of 4 held by the job's own consumer, of type NUMA_EXT_RESERVATION
    """
    job = world.jobs.create(new_job())
    world.slots_each = 3
    world.rounds(3)
    return job


def test_what_is_held_follows_the_queue(world, job):
    key = (consumer(job), names.RESERVATION_CONSUMER)
    assert world.held() == {key: 3}
    world.slots_each = 2
    world.rounds(2)
    assert world.held() == {key: 2}
    world.slots_each = 0
    world.rounds(2)
    assert world.held() == {}
    assert world.jobs.read(job.uuid).reserved == ()


def test_what_others_have_taken_is_not_held(world, job):
    claim = Claim(str(uuid.uuid4()), names.JOB_CONSUMER, "project", "user", {world.pool: {SLOT: 1}})
    world.claims.write(claim)
    world.slots_each = 4
    world.rounds(2)
    assert world.held()[consumer(job), names.RESERVATION_CONSUMER] == 3
    assert world.jobs.read(job.uuid).reserved == (ProviderAmount(world.pool, SLOT, 3),)


def test_nothing_is_held_for_a_job_whose_user_has_no_rights(world, job):
    world.trusts.lost.add("trust-1")
    world.rounds(2)
    assert (world.held(), world.jobs.read(job.uuid).reserved) == ({}, ())
    world.trusts.lost.clear()
    world.rounds(2)
    assert world.held() == {(consumer(job), names.RESERVATION_CONSUMER): 3}


@pytest.mark.parametrize("late", [False, True])
def test_what_placement_has_not_answered_is_asked_for_again(unsure, late):
    world = unsure
    world.claims.late = late
    job = world.jobs.create(new_job())
    world.slots_each = 3
    world.rounds(2)
    stored = world.jobs.read(job.uuid)
    assert (stored.reserved[0].amount, unanswered(stored)) == (3, True)
    world.rounds(2)
    assert world.held() == {(consumer(job), names.RESERVATION_CONSUMER): 3}
    assert not unanswered(world.jobs.read(job.uuid))
    assert [each.what for each in world.jobs.events(job)].count("reserved") == 1


def test_what_may_be_held_is_released_before_its_job_starts(unsure):
    world = unsure
    world.claims.late = True
    job = world.jobs.create(new_job())
    world.slots_each = 3
    world.rounds(2)
    world.starts = True
    world.rounds(4)
    assert world.state(job) is JobState.RUNNING
    assert (world.held(), world.jobs.read(job.uuid).reserved) == ({}, ())


def test_a_job_that_starts_claims_what_was_held_for_it(world, job):
    world.starts = True
    world.claims_of_plans = (ProviderAmount(world.pool, SLOT, 4),)
    world.rounds(4)
    assert world.state(job) is JobState.RUNNING
    assert {of_type for _, of_type in world.held()} == {names.JOB_CONSUMER}


def test_a_job_that_is_cancelled_or_given_up_leaves_nothing(world, job):
    world.cancel(job)
    world.rounds(2)
    assert world.state(job) is JobState.CANCELLED
    assert world.held() == {}


def test_the_next_engine_releases_what_one_that_died_has_left(world, job):
    world.expire()
    world.start()
    world.slots_each = 0
    world.rounds(2)
    assert world.held() == {}


def test_only_what_no_job_knows_of_is_lost(world, job):
    lost = LostClaims(world.claims, world.jobs)
    assert [lost.release(lambda: None) for _ in range(2)] == [0, 0]
    late = Claim(
        str(uuid.uuid4()),
        names.RESERVATION_CONSUMER,
        "project-1",
        "user-1",
        {world.pool: {SLOT: 1}},
    )
    world.claims.write(late)
    assert [lost.release(lambda: None) for _ in range(2)] == [0, 1]
    assert len(world.held()) == 1
