# SPDX-License-Identifier: Apache-2.0
"""One engine leads; who was away for too long writes nothing more, not even in a transaction that is open."""

import threading
import time

import pytest
from pymysql.connections import Connection
from pymysql.err import OperationalError
from sqlalchemy import text, update

from nova_numa_ext.orchestrator.store import database as store_database
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.leader import LASTS_S, Election, Heartbeat, NotLeaderError
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits.errors import ServiceUnavailableError
from placement_traits.reason import Reason
from tests.support.at_once import at_once
from tests.support.jobs_database import new_job

WHY = (Reason("placed", "h1"),)


@pytest.fixture
def expire(database):
    """Let the term end, as time would."""

    def expire():
        with database.transaction() as connection:
            connection.execute(update(tables.leader).values(expires_at=0.0))

    return expire


def test_one_of_two_leads_and_keeps_leading(database):
    first, second = Election(database, "first"), Election(database, "second")
    term = first.campaign()
    assert term.number == 1
    assert second.campaign() is None
    assert first.campaign() == term
    first.check(term)
    with pytest.raises(NotLeaderError):
        second.check(term)


def test_a_term_ends_by_the_databases_clock(database):
    first, second = Election(database, "first", lasts_s=0.3), Election(database, "second")
    first.campaign()
    assert second.campaign() is None
    time.sleep(0.4)
    assert second.campaign().number == 2


def test_a_clock_that_is_set_back_keeps_nobody_from_leading(database):
    """Its engine is gone, and the row would last for the hour by which the clock was wrong."""
    gone, other = Election(database, "gone"), Election(database, "other")
    term = gone.campaign()

    def lasts(seconds):
        with database.transaction() as connection:
            connection.execute(update(tables.leader).values(expires_at=tables.Now() + seconds))

    lasts(60.0)
    assert other.campaign() is None, "clocks of nodes may differ"
    lasts(3600.0)
    after = other.campaign()
    assert after.number == term.number + 1
    with pytest.raises(NotLeaderError):
        gone.check(term)
    other.check(after)
    assert gone.campaign() is None


def test_who_was_away_finds_its_term_over(database, expire):
    paused, other = Election(database, "paused"), Election(database, "other")
    term = paused.campaign()
    jobs = Jobs(database)
    job = jobs.create(new_job())
    expire()
    assert other.campaign().number == 2
    with pytest.raises(NotLeaderError):
        paused.check(term)
    with pytest.raises(NotLeaderError):
        jobs.move(job, JobState.PLANNED, WHY, Actor("paused", term))
    assert jobs.read(job.uuid) == job
    assert [event.what for event in jobs.events(job)] == ["state"]
    assert paused.campaign() is None


def test_a_term_that_ended_is_never_taken_up_again(database, expire):
    alone = Election(database, "alone")
    assert alone.campaign().number == 1
    expire()
    assert alone.campaign().number == 1, "no other has led meanwhile"
    expire()
    Election(database, "other").campaign()
    expire()
    assert alone.campaign().number == 3


def test_what_was_decided_in_one_term_is_not_done_in_a_later_one(database, expire):
    """Another engine has led meanwhile, and may have decided otherwise."""
    engine = Election(database, "engine")
    early = engine.campaign()
    expire()
    Election(database, "other").campaign()
    expire()
    late = engine.campaign()
    engine.check(late)
    with pytest.raises(NotLeaderError, match="does not lead in term 1"):
        engine.check(early)


def test_no_transaction_of_a_term_that_is_over_ends_in_a_later_one_of_the_same_engine(
    database, expire
):
    first, second = Election(database, "first"), Election(database, "second")
    over = first.campaign()
    expire()
    second.campaign()
    expire()
    now = first.campaign()
    with database.transaction() as connection, pytest.raises(NotLeaderError):
        over.fence(connection)
    with database.transaction() as connection:
        now.fence(connection)


def test_a_heartbeat_keeps_a_term_however_long_a_round_takes(database):
    first, second = Election(database, "first", lasts_s=2.0), Election(database, "second")
    term, heartbeat = first.campaign(), Heartbeat(first)
    heartbeat.start()
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        assert second.campaign() is None
        time.sleep(0.05)
    first.check(term)
    assert heartbeat.stop(30.0)
    time.sleep(2.1)
    assert second.campaign().number == 2


def test_a_heartbeat_begins_no_term(database, expire):
    """Its engine was paused; what it was about to do when it was, belongs to the term that is over."""
    paused = Election(database, "paused")
    paused.campaign()
    expire()
    Election(database, "other", lasts_s=0.1).campaign()
    time.sleep(0.2)
    paused.renew()
    paused.renew()
    assert Election(database, "third").campaign().number == 3


def test_no_write_of_an_engine_lets_its_term_last_longer(database):
    term = Election(database, "engine", lasts_s=0.3).campaign()
    jobs = Jobs(database)
    jobs.move(jobs.create(new_job()), JobState.PLANNED, WHY, Actor("engine", term))
    time.sleep(0.4)
    assert Election(database, "other").campaign().number == 2


def test_who_resigns_is_followed_at_once(database):
    first, second = Election(database, "first"), Election(database, "second")
    term = first.campaign()
    first.resign()
    with pytest.raises(NotLeaderError):
        first.check(term)
    with pytest.raises(NotLeaderError), database.transaction() as connection:
        term.fence(connection)
    after = second.campaign()
    assert after.number == 2
    first.resign()
    second.check(after)


def test_of_many_that_start_at_once_one_leads(url, database):
    elections = [Election(Database(url), f"engine{number}") for number in range(8)]
    terms = at_once(8, lambda number: elections[number].campaign())
    assert [term.number for term in terms if term] == [1]


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
def test_a_deadlock_means_not_leader(database, url):
    """Two transactions wait for each other; MariaDB ends the one that has written less."""
    election, other = Election(database, "engine"), Database(url)
    term = election.campaign()
    job = Jobs(database).create(new_job())
    heavy = "UPDATE event SET actor = 'heavy' WHERE job_id = :job"
    with other.transaction() as theirs:
        for _ in range(3):
            theirs.execute(text(heavy), {"job": job.number})
        theirs.execute(text("UPDATE job SET name = 'theirs'"))
        ended = []

        def ours():
            try:
                with database.transaction() as connection:
                    term.fence(connection)
                    connection.execute(text("UPDATE job SET name = 'ours'"))
            except LostRaceError as error:
                ended.append(error)

        thread = threading.Thread(target=ours)
        thread.start()
        time.sleep(0.3)
        theirs.execute(text("UPDATE leader SET holder = 'theirs', term = 2"))
        thread.join()
    assert len(ended) == 1
    assert Jobs(database).read(job.uuid).name == "theirs"
    with pytest.raises(NotLeaderError):
        election.check(term)


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
def test_a_row_that_stays_locked_means_not_leader(url):
    """The pool has one connection, which keeps what is set."""
    database, other = Database(url, max_pool_size=1, max_overflow=0), Database(url)
    election = Election(database, "engine")
    term = election.campaign()
    with database.transaction() as connection:
        connection.execute(text("SET SESSION innodb_lock_wait_timeout = 1"))
    with other.transaction() as theirs:
        theirs.execute(text("UPDATE leader SET expires_at = expires_at + 1"))
        with pytest.raises(NotLeaderError):
            election.check(term)


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
def test_a_host_that_is_gone_amid_a_transaction_keeps_no_lock(database, url, monkeypatch):
    """Its connection is half open: nothing tells MariaDB that its other end is gone; a second is waited for here."""
    assert store_database._IDLE_S <= LASTS_S
    monkeypatch.setattr(store_database, "_IDLE_S", 1)
    Election(database, "gone", lasts_s=0.1).campaign()
    second = Election(Database(url), "second")
    with pytest.raises(ServiceUnavailableError), database.transaction() as connection:
        connection.execute(update(tables.leader).values(holder="gone"))
        assert at_once(1, lambda _number: second.campaign())[0].number == 2
        connection.execute(text("SELECT 1"))


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
def test_a_certification_failure_means_not_leader(database, monkeypatch):
    """As Galera reports it: at the commit, when another node has committed to the same row."""
    election = Election(database, "engine")
    term = election.campaign()

    def fail(_connection):
        raise OperationalError(1213, "Deadlock found when trying to get lock; try restarting")

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "commit", fail)
        with pytest.raises(NotLeaderError):
            election.check(term)
        assert election.campaign() is None
    with pytest.raises(NotLeaderError):
        election.check(term)
    assert election.campaign() == term, "no other has led meanwhile"
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "commit", fail)
        election.renew()
    with pytest.raises(NotLeaderError):
        election.check(term)
