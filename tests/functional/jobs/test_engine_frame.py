# SPDX-License-Identifier: Apache-2.0
"""What carries jobs on: workers, watchers, turns, an engine that stops. No job is held up by what is another's."""

import threading

import pytest
from sqlalchemy import update

from nova_numa_ext.orchestrator.engine import QueueDecision
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.policy.jobs.states import JobState
from tests.support.jobs_database import new_job
from tests.support.jobs_world import World
from tests.support.polling import until

RUNNING, QUEUED = JobState.RUNNING, JobState.QUEUED


class Gate:
    """Holds requests to nova up that a test names, until it opens.

    :param names: part of a request -> it is held up before it is sent
    """

    def __init__(self, *names):
        self.names = list(names)
        self.held = 0
        self._opened = threading.Event()

    def __call__(self, when, what):
        if when == "before" and any(name in what for name in self.names):
            self.held += 1
            assert self._opened.wait(60)

    def open(self):
        self._opened.set()


def looks_at(world):
    """Return a list that grows with each first page of a job's servers."""
    looks = []

    def hook(when, what):
        if when == "before" and what.startswith("GET /servers/detail") and "marker" not in what:
            looks.append(what)

    world.api.hook = hook
    return looks


@pytest.fixture
def crowd(tmp_path):
    """An engine with threads::

    rounds       the test's own thread
    worker ×2    make and delete servers
    watcher ×1   looks at jobs that run, in each round
    """
    world = World(tmp_path, workers=2, watchers=1, watch_interval_s=0.0)
    yield world
    if world.api.hook:
        world.api.hook.open()
    assert world.engine.stop(30.0)


def rounds_until(world, reached):
    """Do rounds until something is so."""

    def one():
        world.rounds()
        return reached()

    until(one)


def test_a_job_for_which_nova_is_slow_holds_up_no_other_one(crowd):
    slow = crowd.jobs.create(new_job(trust="slow"))
    gate = crowd.api.hook = Gate(slow.uuid)
    rounds_until(crowd, lambda: gate.held)
    others = [crowd.jobs.create(new_job(trust=f"t{number}")) for number in range(5)]
    rounds_until(crowd, lambda: all(crowd.state(each) is RUNNING for each in others))
    assert gate.held == 1, "a job is in one hand at a time"
    assert crowd.state(slow) is JobState.BUILDING
    gate.open()
    rounds_until(crowd, lambda: crowd.state(slow) is RUNNING)


def test_a_slow_keystone_holds_up_no_start_and_is_asked_for_each_trust_once(crowd):
    """Trusts of jobs that have ended are given back by one thread, whatever the workers do."""
    ended = [crowd.jobs.create(new_job(trust=f"t{number}")) for number in range(5)]
    rounds_until(crowd, lambda: all(crowd.state(each) is RUNNING for each in ended))
    keystone = Gate("delete t")
    crowd.trusts.hook = keystone
    for each in ended:
        crowd.cancel(each)
    rounds_until(crowd, lambda: all(crowd.state(each).final for each in ended) and keystone.held)
    try:
        started = crowd.jobs.create(new_job(trust="a"))
        rounds_until(crowd, lambda: crowd.state(started) is RUNNING)
        assert keystone.held == 1, "each round had it asked again"
    finally:
        keystone.open()
    rounds_until(crowd, lambda: len(crowd.trusts.deleted) == 5)
    assert crowd.trusts.asked == 5


def test_what_nova_never_does_is_asked_for_ever_more_seldom(tmp_path):
    """Each POST is a 500. A job that is cancelled does not rest."""
    world = World(tmp_path)
    poison = world.jobs.create(new_job(trust="a"))
    asked = []

    def refuse(method, path):
        if (method, path) == ("POST", "/servers") and not world.api.created:
            asked.append(path)
            return 500
        return None

    world.api.refuse = refuse
    world.rounds(100)
    assert 10 <= len(asked) < 30
    world.cancel(poison)
    world.rounds()
    assert world.state(poison) is JobState.ENDING


def test_looking_at_jobs_that_run_holds_up_no_start_and_no_end(crowd):
    watched, ended = (crowd.jobs.create(new_job(trust=trust)) for trust in ("a", "b"))
    rounds_until(crowd, lambda: crowd.state(watched) is crowd.state(ended) is RUNNING)
    gate = crowd.api.hook = Gate(watched.uuid)
    rounds_until(crowd, lambda: gate.held)
    crowd.cancel(ended)
    started = crowd.jobs.create(new_job(trust="c"))
    rounds_until(crowd, lambda: crowd.state(ended) is JobState.CANCELLED)
    rounds_until(crowd, lambda: crowd.state(started) is RUNNING)
    assert gate.held == 1


def test_jobs_that_run_are_looked_at_in_turns(tmp_path):
    """Each once in the interval; what was cancelled, or has had its time, does not wait for it."""
    world = World(tmp_path, watch_interval_s=3600.0)
    jobs = [world.jobs.create(new_job(trust=f"t{number}")) for number in range(3)]
    timed = world.jobs.create(new_job(trust="timed", walltime_s=1000.0))
    world.rounds(3)
    assert [world.state(each) for each in (*jobs, timed)] == [RUNNING] * 4
    looks = looks_at(world)
    world.rounds(3)
    assert [any(job.uuid in each for each in looks) for job in jobs] == [True] * 3
    assert len(looks) == 4, "each once in three rounds"
    world.cancel(jobs[0])
    world.later(1001)
    world.rounds(3)
    assert world.state(jobs[0]) is JobState.CANCELLED
    assert world.state(timed) is JobState.DONE
    assert world.state(jobs[1]) is RUNNING


def test_who_was_not_looked_at_for_longest_is_next(tmp_path):
    world = World(tmp_path)
    first, second = (world.jobs.create(new_job(trust=trust)) for trust in ("a", "b"))
    world.rounds(3)
    looks = looks_at(world)
    world.engine._looked_s = {first.uuid: 2.0, second.uuid: 1.0}
    world.rounds()
    assert [job.uuid in look for job, look in zip((second, first), looks, strict=True)] == [
        True
    ] * 2


def test_a_job_that_breaks_the_engine_is_logged_once_and_left_alone(tmp_path, caplog):
    world = World(tmp_path)
    poison, other = (world.jobs.create(new_job(trust=trust)) for trust in ("a", "b"))
    world.rounds()
    plain = world.api.request

    def broken(path, method, **more):
        if poison.uuid in path:
            raise ZeroDivisionError("as no one has foreseen")
        return plain(path, method, **more)

    world.api.request = broken
    world.rounds(5)
    assert (world.state(poison), world.state(other)) == (JobState.BUILDING, RUNNING)
    (said,) = [each for each in caplog.records if poison.uuid in each.message]
    assert said.message.endswith("stays as it is for now: as no one has foreseen")
    assert said.exc_info[0] is ZeroDivisionError
    world.api.request = plain
    world.rounds(2)
    assert world.state(poison) is RUNNING


@pytest.mark.parametrize(
    ("table", "what"),
    [(tables.job, {"steps": ["claim"]}), (tables.part, {"sizes": {"vcpus": 1, "no_such": 2}})],
)
def test_a_job_that_cannot_be_read_is_logged_once_and_left_alone(tmp_path, caplog, table, what):
    """As another release, or a hand in the database, may have stored it."""
    world = World(tmp_path)
    poison, other = (world.jobs.create(new_job(trust=trust)) for trust in ("a", "b"))
    world.rounds(3)
    with world.database.transaction() as connection:
        connection.execute(update(table).where(table.c.id == poison.number).values(**what))
    later = world.jobs.create(new_job(trust="c"))
    world.rounds(4)
    assert (world.state(other), world.state(later)) == (RUNNING, RUNNING)
    assert caplog.text.count(f"job {poison.uuid} cannot be read and is left out") == 1


def test_a_queue_that_cannot_decide_holds_up_nothing_else(tmp_path, caplog):
    world = World(tmp_path)
    job = world.jobs.create(new_job(trust="a"))
    world.rounds()
    decide, world.engine._decide = world.engine._decide, lambda *_jobs: {}["no such thing"]
    waiting = world.jobs.create(new_job(trust="b"))
    world.rounds(4)
    assert (world.state(job), world.state(waiting)) == (RUNNING, QUEUED)
    assert caplog.text.count("the queue decides nothing for now") == 1
    world.engine._decide = decide
    world.rounds(4)
    assert world.state(waiting) is RUNNING


def test_an_engine_that_stops_is_followed_at_once(crowd):
    job = crowd.jobs.create(new_job())
    crowd.rounds()
    crowd.engine.start()
    first = crowd.engine
    second = crowd.start()
    assert second.round() is None
    assert first.stop(30.0)
    assert second.round() is not None
    assert first.round() is None
    rounds_until(crowd, lambda: crowd.state(job) is RUNNING)
    assert {each.term for each in crowd.jobs.events(job) if each.term} == {1, 2}


def test_who_stops_while_a_request_is_under_way_keeps_its_term_and_asks_for_nothing_more(crowd):
    """The answer may come late: nobody else writes before the term has ended by itself."""
    gate = crowd.api.hook = Gate("POST /servers")
    job = crowd.jobs.create(new_job())
    rounds_until(crowd, lambda: gate.held)
    stopped = crowd.engine
    assert not stopped.stop(0.2)
    second = crowd.start()
    assert second.round() is None
    gate.open()
    until(lambda: not stopped._workers._busy)
    assert crowd.api.created == 1
    assert second.round() is None
    crowd.expire()
    crowd.api.hook = None
    rounds_until(crowd, lambda: crowd.state(job) is RUNNING)
    assert len(crowd.api.there()) == 2


def test_nobody_starts_twice_however_slow_the_hands_are(crowd):
    """A decision is made of what was read; what a worker has changed since is not overwritten."""
    decisions = []
    decide = crowd.engine._decide

    def late(waiting, active, now):
        found = decide(waiting, active, now)
        decisions.append(found)
        if len(decisions) == 1:
            crowd.cancel(job)
        return found

    job = crowd.jobs.create(new_job())
    crowd.engine._decide = late
    rounds_until(crowd, lambda: crowd.state(job) is JobState.CANCELLED)
    assert isinstance(decisions[0], QueueDecision)
    assert job.uuid in decisions[0].starts
    assert crowd.api.created == 0
