# SPDX-License-Identifier: Apache-2.0
"""What users and hosts change starts a round of the engine that leads, and does not wait for its time."""

import threading
import time
import uuid

from sqlalchemy import insert

from nova_numa_ext.orchestrator import service
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.leader import Election
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHosts
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.stored_lease import LeaseChoice
from nova_numa_ext.orchestrator.store.wakes import Wakes
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.remote_gpu import leases as life
from placement_traits.reason import Reason
from placement_traits.service_manager import ServiceManager
from tests.support.jobs_database import new_job
from tests.support.jobs_world import USER, World
from tests.support.lease_service import ASKED, SERVER
from tests.support.polling import until

WHY = (Reason("cancelled", ""),)


class Woken:
    """Notes what wakes the engine."""

    def __init__(self, database):
        self.wakes = Wakes(database)

    def by(self, change):
        change()
        found = self.wakes.waits()
        self.wakes.take()
        assert not self.wakes.waits()
        return found


def test_users_and_hosts_wake_the_engine_and_it_does_not_wake_itself(database):
    jobs, leases, hosts = Jobs(database), Leases(database), LeaseHosts(database)
    woken = Woken(database)
    engine = Actor("engine", Election(database, "engine", 60.0).campaign())
    assert woken.by(lambda: jobs.create(new_job()))
    (job,) = jobs.find()
    assert woken.by(lambda: jobs.set(job, USER, cancelled=True))
    job = jobs.read(job.uuid)
    assert not woken.by(lambda: jobs.move(job, JobState.CANCELLED, WHY, engine))
    assert woken.by(lambda: leases.create("project-1", "user-1", ASKED, SERVER))
    (lease,) = leases.find()
    chosen = [LeaseChoice("g1", str(uuid.uuid4()), {})]
    assert not woken.by(lambda: leases.choose([lease], chosen, engine))
    lease = leases.read(lease.uuid)
    assert not woken.by(lambda: leases.hold(lease, engine))
    lease = leases.read(lease.uuid)
    assert not woken.by(lambda: leases.change(lease, life.start, engine))
    lease = leases.read(lease.uuid)
    assert woken.by(lambda: leases.acknowledge(lease, "g1", 1, "g1:7000", Actor("id-of-g1")))
    assert not woken.by(lambda: hosts.report("c1", ["of-no-lease"]))
    assert woken.by(lambda: hosts.report("c1", ["of-no-lease", SERVER]))
    assert not woken.by(lambda: hosts.report("c1", ["of-no-lease", SERVER]))
    assert not woken.by(lambda: hosts.report("c1", [SERVER]))
    assert woken.by(lambda: hosts.report("c1", [SERVER], requests=[{"server_id": SERVER}]))
    assert woken.by(lambda: hosts.report("c1", []))
    lease = leases.read(lease.uuid)
    assert woken.by(lambda: leases.change(lease, life.release, Actor("user-1")))


def test_a_job_that_is_submitted_starts_though_the_next_round_is_due_in_an_hour(tmp_path):
    world = World(tmp_path)
    stop = threading.Event()
    arguments = (world.engine, 3600.0, ServiceManager(), stop)
    rounds = threading.Thread(target=service._rounds, args=arguments)
    rounds.start()
    until(lambda: world.engine._leads)
    job = world.jobs.create(new_job())
    until(lambda: world.state(job) is not JobState.QUEUED, 20.0)
    stop.set()
    rounds.join()


def test_who_does_not_lead_or_cannot_read_waits_for_its_time(tmp_path):
    world = World(tmp_path)
    world.jobs.create(new_job())
    assert not world.engine.woken()
    world.rounds()
    assert not world.engine.woken()
    world.jobs.create(new_job(trust="trust-2"))
    assert world.engine.woken()
    world.engine._wakes = Wakes(Database(f"sqlite:///{tmp_path}/none/jobs.db", max_retries=0))
    assert not world.engine.woken()


def test_rounds_take_half_of_the_time_at_most():
    class Engine:
        def woken(self):
            return True

    began_s = time.monotonic()
    service._pause(Engine(), began_s - 0.6, began_s + 3600.0, threading.Event())
    assert 0.6 <= time.monotonic() - began_s < 60.0


def aborted():
    """As Galera ends a read that another node's write stands against."""
    raise LostRaceError("Another transaction on the same rows was faster.")


def test_what_hinders_waking_ends_neither_rounds_nor_their_thread(tmp_path, monkeypatch, caplog):
    """A read that is aborted, what no one has foreseen, and rows that cannot be deleted."""
    world = World(tmp_path)
    world.rounds()
    monkeypatch.setattr(world.engine._wakes, "waits", aborted)
    assert not world.engine.woken()
    monkeypatch.setattr(world.engine._wakes, "take", aborted)
    job = world.jobs.create(new_job())
    world.rounds()
    assert world.state(job) is not JobState.QUEUED
    assert "rounds begin by the time alone for now" in caplog.text

    class Engine:
        def __init__(self):
            self.rounds = 0

        def round(self):
            self.rounds += 1
            if self.rounds == 3:
                stop.set()

        def woken(self):
            raise RuntimeError("not foreseen")

    engine, stop = Engine(), threading.Event()
    service._rounds(engine, 0.3, ServiceManager(), stop)
    assert engine.rounds == 3


def test_what_has_come_in_days_without_an_engine_wakes_it_once(database):
    wakes = Wakes(database)
    with database.transaction() as connection:
        connection.execute(insert(tables.wake), [{"at": 1.0}] * 2500)
    assert wakes.waits()
    wakes.take()
    assert not wakes.waits()
