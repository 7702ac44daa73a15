# SPDX-License-Identifier: Apache-2.0
"""Parts that are one group on the fabric: one request of nova for all of their servers, whoever dies meanwhile."""

import pytest

from nova_numa_ext.orchestrator.api.intake import OverQuotaError, _check_quota
from nova_numa_ext.orchestrator.cloud.user import ProjectQuota
from nova_numa_ext.policy.jobs.job import BuildFailure
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits.claims import Claim
from placement_traits.names import GROUP_CONSUMER
from tests.support.jobs_database import new_job, part
from tests.support.jobs_world import World

QUIET = {"numa_ext:net_share": "quiet", "numa_ext:net_within": "pod"}


class Killed(BaseException):
    """The engine's process is gone."""


class Held:
    """What groups hold, as nova-scheduler let them."""

    def __init__(self):
        self.claims = {}

    def read(self, consumer):
        return self.claims.get(consumer)

    def write(self, claim, *, may):
        may()
        self.claims[claim.consumer] = claim


@pytest.fixture
def world(tmp_path):
    """A nova without servers, a queue with a place for each job, and one engine; groups hold nothing yet."""
    return World(tmp_path, Held())


@pytest.fixture
def bodies(world):
    """What nova is asked to make servers of."""
    plain, found = world.api.request, []

    def request(path, method, **more):
        if (method, path) == ("POST", "/servers"):
            found.append(more["json"])
        return plain(path, method, **more)

    world.api.request = request
    return found


def submitted(world, count=3, **more):
    return world.jobs.create(
        new_job(parts=(part("ranks", count=count, extra_specs=QUIET, **more),))
    )


def servers(world, job):
    """Uuids of the part's servers in the order of ranks."""
    found = world.jobs.read(job.uuid).parts[0].servers
    return [found[member] for member in sorted(found)]


def test_all_servers_of_a_group_are_made_by_one_request_in_the_order_of_ranks(world, bodies):
    job = submitted(world)
    world.rounds(4)
    assert world.state(job) is JobState.RUNNING
    (body,) = bodies
    (group,) = world.api.groups.values()
    assert group["policy"] == "anti-affinity"
    assert body["os:scheduler_hints"] == {
        "group": group["id"],
        "numa_ext_share": "quiet",
        "numa_ext_within": "pod",
    }
    assert (body["server"]["min_count"], body["server"]["max_count"]) == (3, 3)
    assert "numa-ext-member:numbered" in body["server"]["tags"]
    names = [world.api.servers[each]["name"] for each in servers(world, job)]
    assert names == ["job-ranks-1", "job-ranks-2", "job-ranks-3"]


def test_a_server_of_a_group_that_failed_is_made_again_alone_in_the_same_group(world, bodies):
    job = submitted(world, on_failure=BuildFailure.REPLACE)
    for _ in range(4):
        world.engine.round()
    failed = servers(world, job)[1]
    world.api.fail(failed)
    world.rounds(4)
    assert world.state(job) is JobState.RUNNING
    assert len(bodies) == 2
    assert bodies[1]["server"]["name"] == "job-ranks-2"
    assert "max_count" not in bodies[1]["server"]
    assert bodies[1]["os:scheduler_hints"] == bodies[0]["os:scheduler_hints"]
    assert failed not in world.api.there()
    assert {*servers(world, job)} == world.api.there().keys()


def test_what_a_group_holds_is_free_when_its_job_has_ended(world):
    job = submitted(world)
    world.rounds(4)
    (group,) = world.api.groups
    leafs = {"leaf": {"CUSTOM_LEAF": 2}}
    world.claims.claims[group] = Claim(group, GROUP_CONSUMER, "project-1", "user-1", leafs)
    world.cancel(job)
    world.engine.round()
    assert world.claims.claims[group].amounts == leafs  # servers are there still
    world.rounds(4)
    assert world.state(job) is JobState.CANCELLED
    assert world.claims.claims[group].amounts == {}


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_engine_that_dies_at_the_request_leaves_one_group_of_servers(world, when):
    job = submitted(world)

    def dies(moment, what):
        if (moment, what) == (when, "POST /servers"):
            world.api.hook = None
            raise Killed

    world.api.hook = dies
    with pytest.raises(Killed):
        world.rounds(5)
    assert len(world.api.there()) == (3 if when == "after" else 0)
    world.start()
    world.expire()
    world.rounds(4)
    assert world.state(job) is JobState.RUNNING
    assert len(world.api.there()) == 3
    assert {*servers(world, job)} == world.api.there().keys()
    world.cancel(job)
    world.rounds(3)
    assert (world.state(job), world.trusts.deleted) == (
        (JobState.CANCELLED, ["trust-1"]) if when == "after" else (JobState.ENDING, [])
    ), "what never reached nova is taken for something that may come"


def test_an_answer_that_does_not_come_leaves_one_group_of_servers(world):
    """Nova makes what it did not answer all the same, beside what is asked for again."""
    job = submitted(world)

    def late(moment, what):
        if (moment, what) == ("before", "POST /servers"):
            world.api.hook, world.api.late = None, True

    world.api.hook = late
    while not world.api.late:
        world.engine.round()
    world.api.late = False
    world.rounds(6)
    assert world.state(job) is JobState.RUNNING
    assert world.api.created == 6
    assert {*servers(world, job)} == world.api.there().keys()
    assert len(world.api.there()) == 3


def test_a_group_that_finds_no_host_waits_again_without_servers(world):
    world.api.room = 0
    job = submitted(world)
    world.rounds(6)
    assert world.state(job) is JobState.QUEUED
    assert world.api.there() == {}
    assert world.api.groups == {}


def test_a_user_who_renames_a_server_that_counts_changes_nothing(world, bodies):
    job = submitted(world)
    world.rounds(4)
    before = servers(world, job)
    world.api.servers[before[0]]["name"] = "job-ranks-2"
    world.api.servers[before[1]]["name"] = "mine"
    world.rounds(2)
    assert servers(world, job) == before
    assert world.api.there().keys() == {*before}
    assert len(bodies) == 1


def test_the_quota_of_members_counts_for_groups():
    parts = (part("ranks", count=11, extra_specs=QUIET),)
    with pytest.raises(OverQuotaError, match="11 members of a server group"):
        _check_quota(parts, ProjectQuota(None, None, None, 10, 10))
