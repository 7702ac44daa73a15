# SPDX-License-Identifier: Apache-2.0
"""Leases in the database: their changes are the steps of the pure life cycle, each a compare-and-set."""

import random
from dataclasses import replace

import pytest
from alembic import command
from sqlalchemy import select, text

from nova_numa_ext.orchestrator.store import job_rows, tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.jobs import _insert as insert_job
from nova_numa_ext.orchestrator.store.leader import Election, NotLeaderError
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHosts
from nova_numa_ext.orchestrator.store.leases import LIVING, Leases
from nova_numa_ext.orchestrator.store.stored_lease import LeaseChoice, LeaseSpec
from nova_numa_ext.policy.jobs.job import JobKind
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.leases import LeaseError, LeaseState, UnfencedError
from placement_traits.errors import ConflictError
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.reason import Reason
from tests.support.at_once import at_once
from tests.support.jobs_database import new_job

USER = Actor("user-1")
ASKED = LeaseSpec(1000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL, 100, "g1")
AMOUNTS = {"gpu-1": {"CUSTOM_RGPU_MEM_MB": 1000}}


@pytest.fixture
def leases(database):
    return Leases(database)


def new(leases, project="project-1"):
    return leases.create(project, "user-1", ASKED, "server-1")


def served(lease):
    return life.acknowledge(lease, lease.gpu_host, lease.epoch)


def held(leases):
    """A lease that Placement holds."""
    return leases.hold(
        *leases.choose([new(leases)], [LeaseChoice("g1", "gpu-1", AMOUNTS)], USER), USER
    )


def attached(leases):
    found = held(leases)
    for step in (life.start, served, lambda lease: life.attach(lease, "c1")):
        found = leases.change(found, step, USER)
    return found


def test_what_was_asked_for_is_read_back(leases, database):
    lease = new(leases)
    assert lease.asked == ASKED
    assert (lease.project, lease.user, lease.server) == ("project-1", "user-1", "server-1")
    assert (lease.state, lease.version, lease.claimed) == (LeaseState.RESERVED, 0, False)
    assert (lease.gpu, lease.amounts, lease.ended_at) == ("", {}, None)
    assert lease.created_at == lease.changed_at == pytest.approx(database.now(), abs=5)
    assert lease.reasons == (Reason("asked", "user-1"),)
    assert leases.read(lease.uuid) == lease
    assert leases.read("none") is None


def test_a_lease_is_stored_through_its_whole_life(leases):
    lease = attached(leases)
    assert (lease.claimed, lease.gpu, lease.amounts) == (True, "gpu-1", AMOUNTS)
    assert lease.lease.may_connect("c1") == 1
    lease = leases.change(lease, life.release, USER, (Reason("released", "user-1"),))
    assert (lease.lease.epoch, lease.lease.may_connect("c1")) == (2, None)
    with pytest.raises(UnfencedError, match="may still serve"):
        leases.change(lease, life.end, USER)
    lease = leases.change(leases.change(lease, served, USER), life.end, USER)
    assert (lease.state, lease.claimed) == (LeaseState.GONE, False)
    assert lease.ended_at >= lease.created_at
    assert lease.reasons == (Reason("released", "user-1"),)
    assert leases.read(lease.uuid) == lease
    assert leases.find(states=LIVING) == []


def test_what_no_host_was_told_of_ends_at_once(leases):
    lease = leases.change(held(leases), life.release, USER)
    assert leases.change(lease, life.end, USER).state is LeaseState.GONE


def test_a_step_that_does_not_follow_changes_nothing(leases):
    lease = held(leases)
    with pytest.raises(LeaseError, match="reserved and cannot become attached"):
        leases.change(lease, lambda lease: life.attach(lease, "c1"), USER)
    with pytest.raises(ConflictError, match="keeps its GPU"):
        leases.choose([lease], [LeaseChoice("g2", "gpu-2", AMOUNTS)], USER)
    assert leases.change(lease, served, USER).lease.acknowledged == 1
    assert leases.change(lease, lambda lease: lease, USER) is lease


def leads(step, lease):
    """Whether a step leads to another lease."""
    try:
        return step(lease) != lease
    except (LeaseError, UnfencedError):
        return False


def test_the_stored_life_is_the_pure_one(leases):
    """Random steps, legal or not, on a stored lease and on one in memory: both are the same after each."""
    chance = random.Random(1)
    steps = (
        life.start,
        served,
        lambda lease: life.attach(lease, "c1"),
        life.detach,
        life.restart,
        life.move,
        lambda lease: life.arrive(lease, "g2"),
        life.lose,
        life.release,
        life.end,
    )
    seen = set()
    for _ in range(3):
        stored = held(leases)
        pure = stored.lease
        for _ in range(30):
            legal = [each for each in steps[:8] if leads(each, pure)]
            step = chance.choice(legal if legal and chance.random() < 0.8 else steps)
            try:
                pure = step(pure)
            except (LeaseError, UnfencedError) as error:
                with pytest.raises(type(error)):
                    leases.change(stored, step, USER)
            else:
                stored = leases.change(stored, step, USER)
            assert stored.lease == pure
            seen.add(pure.state)
        assert leases.read(stored.uuid) == stored
    assert len(seen) >= 6


def test_who_read_before_another_changed_it_changes_nothing(leases):
    early = held(leases)
    now = leases.change(early, life.start, USER)
    for late in (life.release, life.start):
        with pytest.raises(LostRaceError, match=early.uuid):
            leases.change(early, late, USER)
    assert leases.read(early.uuid) == now


def test_of_many_that_change_a_lease_at_once_one_wins(leases):
    lease = held(leases)

    def change(_number):
        try:
            leases.change(lease, life.start, USER)
        except LostRaceError:
            return "lost"
        return "won"

    assert sorted(at_once(6, change)) == ["lost"] * 5 + ["won"]
    assert leases.read(lease.uuid).version == lease.version + 1


def test_of_many_that_ask_for_a_lost_lease_again_one_does(leases):
    """The old one is released and the new one is there, or neither."""
    lost = leases.create("project-1", "user-1", replace(ASKED, pool=""), "server-1")
    for step in (life.start, life.lose):
        lost = leases.change(lost, step, USER)

    def ask(_number):
        try:
            return leases.requeue(lost, USER).uuid
        except LostRaceError:
            return ""

    (heir,) = filter(None, at_once(6, ask))
    old, new = leases.find(states=LIVING)
    assert (old.uuid, old.state, old.lease.fenced) == (lost.uuid, LeaseState.RELEASING, False)
    assert old.reasons == (Reason("replaced", heir),)
    assert (new.uuid, new.state, new.claimed) == (heir, LeaseState.RESERVED, False)
    assert (new.asked, new.server, new.user) == (lost.asked, "server-1", "user-1")
    assert new.reasons == (Reason("in_place_of", lost.uuid),)


def test_an_engine_whose_term_is_over_changes_nothing(leases, database):
    lease = held(leases)
    first = Election(database, "engine-1", lasts_s=0.0)
    old = Actor("engine-1", first.campaign())
    assert leases.change(lease, life.start, old).state is LeaseState.STARTING
    Election(database, "engine-2").campaign()
    now = leases.read(lease.uuid)
    with pytest.raises(NotLeaderError):
        leases.change(now, life.release, old)
    assert leases.read(lease.uuid) == now


def test_leases_are_listed_counted_and_purged(leases, database):
    first, second, third = new(leases), new(leases), new(leases, "project-2")
    assert leases.find() == [first, second, third]
    assert leases.find(project="project-1", limit=1) == [first]
    assert leases.find(after=first.uuid) == [second, third]
    assert leases.find(after="none") == []
    ended = leases.change(leases.change(second, life.release, USER), life.end, USER)
    assert leases.find(states=[LeaseState.GONE]) == [ended]
    assert leases.counts() == {LeaseState.RESERVED: 2}
    assert leases.purge(database.now() - 60) == 0
    assert leases.purge(database.now() + 60) == 1
    assert leases.find() == [first, third]


def test_leases_of_one_server_that_find_no_gpu_end_all_or_none(leases):
    first, second = new(leases), new(leases)
    why = (Reason("no_gpu", "opencl", 1000),)
    leases.wait(second, why, USER)
    with pytest.raises(LostRaceError):
        leases.stop([first, second], why, USER)
    assert leases.read(first.uuid) == first
    ended = leases.stop([first, leases.read(second.uuid)], why, USER)
    assert {(each.state, each.reasons) for each in ended} == {(LeaseState.RELEASING, why)}


def test_what_a_server_has_had_is_known_as_long_as_it_asks(leases, database):
    lease = new(leases)
    leases.change(leases.change(lease, life.release, USER), life.end, USER)
    hosts = LeaseHosts(database)
    hosts.report("c1", ["server-1"], requests=[{"server_id": "server-1"}])
    assert leases.purge(database.now() + 60) == 0
    assert leases.answered(["server-1"]) == {"server-1"}
    hosts.report("c1", ["server-1"])
    assert leases.purge(database.now() + 60) == 1


def test_an_upgrade_keeps_what_is_stored(empty_url, monkeypatch):
    """A database of the release before, with jobs in it, whose users woke no engine."""
    monkeypatch.setattr(job_rows, "wake", lambda _connection, _actor: None)
    database = Database(empty_url)
    with database.transaction() as connection:
        command.upgrade(database._alembic(connection), "0001")
    kept, newest = database.version()
    assert kept == "0001" < newest
    jobs, why = Jobs(database), (Reason("submitted", "user-1"),)
    with database.transaction() as connection:
        for number in range(3):
            # As that release has stored them: it reads none of the columns that came later.
            insert_job(connection, f"job-{number}", new_job(f"job{number}"), why)
        events = connection.execute(select(tables.event)).all()
        connection.execute(text("UPDATE leader SET term = 7, mark = 9"))
    database.sync()
    assert database.version() == (newest, newest)
    assert [(each.name, each.kind) for each in jobs.find()] == [
        (f"job{number}", JobKind.SERVERS) for number in range(3)
    ]
    with database.transaction() as connection:
        assert connection.execute(select(tables.event)).all() == events
        leader = tables.leader.c
        assert connection.execute(select(leader.term, leader.mark)).one() == (7, 9)
    monkeypatch.undo()
    assert new(Leases(database)).state is LeaseState.RESERVED
