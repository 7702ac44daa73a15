# SPDX-License-Identifier: Apache-2.0
"""Engines as processes: stopped, killed and paused, beside another one that waits."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest
import requests
from keystoneauth1 import adapter, session, token_endpoint
from sqlalchemy import select, update

from nova_numa_ext.orchestrator import service, startup
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.leader import LASTS_S
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits import notify
from placement_traits.errors import ServiceUnavailableError
from placement_traits.service_manager import ServiceManager
from tests.support.compute_api import ComputeApi
from tests.support.compute_over_http import served
from tests.support.engine_process import started
from tests.support.jobs_database import new_job, part
from tests.support.jobs_world import World
from tests.support.polling import until
from tests.support.ports import free_port

RUNNING = JobState.RUNNING
WRITES = ("POST", "DELETE")

# SQLite has one lock for all: who is paused while it holds it holds all others up.
on_mariadb = pytest.mark.parametrize("url", ["mariadb"], indirect=True)


class Cloud:
    """A database, a nova behind a port, and processes.

    :ivar asked: requests to nova, in their order
    :ivar arrives: called with each of them before it is done
    """

    def __init__(self, database_url, stack):
        self.database_url = database_url
        self.asked = []
        self.arrives = lambda _asked: None
        self.world = World(None, url=database_url, name="look")
        self.api = ComputeApi()
        self.url = stack.enter_context(served(self.api, self._arrives))
        self._stack = stack

    def _arrives(self, asked):
        self.asked.append(asked)
        self.arrives(asked)

    def engine(self, name, term_s=3.0, **environment):
        """Start a process; the one that leads is the first that was started and waited for."""
        process = started(self.database_url, self.url, name, term_s, **environment)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def leader(self):
        with self.world.database.transaction() as connection:
            return connection.execute(select(tables.leader.c.holder)).scalar_one()

    def jobs(self, count):
        make = self.world.jobs.create
        return [make(new_job(trust=f"t{number}")) for number in range(count)]

    def all_run(self, jobs):
        return all(self.world.state(each) is RUNNING for each in jobs)

    def kept(self, jobs):
        """Servers that count."""
        found = (self.world.jobs.read(each.uuid) for each in jobs)
        return {uuid for job in found for part in job.parts for uuid in part.servers.values()}


@pytest.fixture
def cloud(url):
    """A database and a nova behind a port; a test starts engines as processes::

    engine process 1 … n ──► jobs' database (SQLite, MariaDB)
            │
            └──────────────► HTTP ──► ComputeApi, which notes each request
    world.look               reads the same database, in the test
    """
    with ExitStack() as stack:
        yield Cloud(url, stack)


def at_write(cloud, number, act):
    """Do something while the n-th write of the first engine arrives."""
    left = [number]

    def arrives(asked):
        if asked.engine == "first" and asked.method in WRITES:
            left[0] -= 1
            if left[0] == 0:
                act()

    cloud.arrives = arrives


@on_mariadb
def test_a_process_that_is_stopped_is_followed_at_once(cloud):
    """Its term would last for ten minutes."""
    manager = notify.Receiver()
    first = cloud.engine("first", 600.0, NOTIFY_SOCKET=manager.address)
    reported = []
    until(lambda: reported.extend(manager.received(first.pid)) or notify.WATCHDOG in reported)
    assert reported[:2] == [notify.READY, notify.WATCHDOG]
    until(lambda: cloud.leader() == "first-1")
    cloud.engine("second", 600.0)
    jobs = cloud.jobs(2)
    until(lambda: cloud.all_run(jobs))
    assert {each.engine for each in cloud.asked} == {"first"}
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    assert manager.received(first.pid)[-1] == notify.STOPPING
    manager.close()
    jobs += cloud.jobs(1)
    until(lambda: cloud.all_run(jobs))
    assert cloud.leader() == "second-1"
    assert cloud.kept(jobs) == set(cloud.api.there())


@on_mariadb
def test_a_process_that_waits_for_nova_is_stopped_all_the_same(cloud):
    """Its term is not given up: what nova does late must meet no other engine's writes."""
    held, released = threading.Event(), threading.Event()

    def arrives(_asked):
        held.set()
        assert released.wait(120)

    cloud.arrives = arrives
    first = cloud.engine("first", 600.0)
    cloud.jobs(1)
    assert held.wait(60)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    assert cloud.leader() == "first-1"
    assert len(cloud.asked) == 1
    released.set()


@on_mariadb
@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.long), 4])
def test_a_process_that_is_killed_is_followed_when_its_term_has_ended(cloud, number):
    first = cloud.engine("first")
    until(lambda: cloud.leader() == "first-1")
    cloud.engine("second")
    at_write(cloud, number, first.kill)
    jobs = cloud.jobs(3)
    until(lambda: cloud.all_run(jobs))
    assert first.wait(60) == -signal.SIGKILL
    assert cloud.leader() == "second-1"
    until(lambda: cloud.kept(jobs) == set(cloud.api.there()))
    assert len(cloud.kept(jobs)) == 6


@on_mariadb
@pytest.mark.parametrize(
    ("term_s", "paused_s"), [(3.0, 4.0), pytest.param(15.0, 30.0, marks=pytest.mark.long)]
)
def test_a_process_that_was_paused_writes_nothing_after_its_term(cloud, term_s, paused_s):
    first = cloud.engine("first", term_s)
    until(lambda: cloud.leader() == "first-1")
    cloud.engine("second", term_s)
    paused = threading.Event()

    def pause():
        os.kill(first.pid, signal.SIGSTOP)
        paused.set()

    at_write(cloud, 3, pause)
    jobs = cloud.jobs(4)
    assert paused.wait(60)
    time.sleep(paused_s)
    until(lambda: cloud.leader() == "second-1")
    before = len(cloud.asked)
    first.send_signal(signal.SIGCONT)
    until(lambda: cloud.all_run(jobs))
    until(lambda: cloud.kept(jobs) == set(cloud.api.there()))
    jobs += cloud.jobs(1)
    until(lambda: cloud.all_run(jobs))
    late = [each for each in cloud.asked[before:] if each.engine == "first"]
    assert [each for each in late if each.method in WRITES] == []
    for job in jobs:
        terms = [each.term for each in cloud.world.jobs.events(job) if each.term]
        assert terms == sorted(terms)
    assert first.poll() is None, "it waits for the end of the second one's term"
    assert len(cloud.kept(jobs)) == 10


def test_a_process_that_was_stopped_and_continued_goes_on():
    """Python makes up a signal where a wait is interrupted after its time."""
    code = "from nova_numa_ext.orchestrator import service; print('waits', flush=True); print(service._ended(1.0))"
    arguments = [sys.executable, "-c", code]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == "waits\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "False\n"


def that_runs(world, number):
    """Return a job that was started long ago."""
    job = world.jobs.create(new_job(parts=(part("workers", count=1),), trust=f"t{number}"))
    tags = ["numa-ext:workers", f"numa-ext-job:{job.uuid}", "numa-ext-member:0"]
    server = world.api._create({"name": "server", "tags": tags, "imageRef": "i"})
    with world.database.transaction() as connection:
        connection.execute(
            update(tables.job).where(tables.job.c.id == job.number).values(state=RUNNING)
        )
        connection.execute(
            update(tables.part)
            .where(tables.part.c.job_id == job.number)
            .values(servers={"0": server})
        )
    return job


def test_two_engines_start_all_that_should_start_beside_a_hundred_jobs_that_run(tmp_path):
    """Each request to nova takes 0.2 s: to look at all jobs one after the other takes 20 s, longer than a term."""
    start = World(tmp_path)
    start.api.room = 1000
    running = [that_runs(start, number) for number in range(100)]
    start.api.hook = lambda when, _what: time.sleep(0.2) if when == "before" else None
    more = {"api": start.api, "watch_interval_s": 5.0, "workers": 4, "watchers": 4}
    worlds = [World(None, url=start.url, name=name, **more) for name in ("first", "second")]
    stop, manager = threading.Event(), ServiceManager()
    threads = []
    for world in worlds:
        world.slots = 1000
        world.engine.start()
        arguments = (world.engine, 0.2, manager, stop)
        threads.append(threading.Thread(target=service._rounds, args=arguments))
        threads[-1].start()
    late = [start.jobs.create(new_job(trust=f"late{number}")) for number in range(20)]
    until(lambda: start.settle() or all(start.state(each) is RUNNING for each in late), 120.0)
    start.cancel(running[0])
    until(lambda: start.settle() or start.state(running[0]) is JobState.CANCELLED, 120.0)
    stop.set()
    for thread in threads:
        thread.join()
    assert [world.engine.stop(60.0) for world in worlds] == [True, True]
    terms = {each.term for job in late for each in start.jobs.events(job) if each.term}
    assert len(terms) == 1, "one engine has led all the time"
    assert all(start.state(each) is RUNNING for each in running[1:])


def test_rounds_go_on_whatever_one_of_them_raises(caplog):
    """The same trouble is logged once; the service manager learns of each round that ended."""

    class Engine:
        rounds = 0

        def round(self):
            self.rounds += 1
            if self.rounds == 6:
                stop.set()
            if self.rounds in (2, 3, 5):
                raise ZeroDivisionError("as no one has foreseen")

    stop, engine, manager = threading.Event(), Engine(), ServiceManager()
    service._rounds(engine, 0.0, manager, stop)
    assert engine.rounds == 6
    assert caplog.text.count("no round: as no one has foreseen") == 2


PLACEMENT = (
    "[placement]\nauth_type = password\nauth_url = http://127.0.0.1:1/v3\nusername = jobs\npassword = s\n"
    "user_domain_name = Default\n"
)


def test_a_configured_engine_waits_for_what_does_not_answer(configure, tmp_path):
    """The database is there, Keystone is not: systemd learns of the rounds, the log of the trouble, once."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    Database(url).sync()
    port = free_port()
    conf = configure(
        f"[database]\nconnection = {url}\n{PLACEMENT}[numa_ext_jobs]\nround_interval_s = 0.1\n"
        f"metrics_port = {port}\nmark_file = {tmp_path}/mark.json\n"
    )
    manager = notify.Receiver()
    with (tmp_path / "log").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "nova_numa_ext.orchestrator.service", conf],
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(sys.path), notify.VARIABLE: manager.address},
            stderr=output,
        )
    reported = []
    until(
        lambda: (
            reported.extend(manager.received(process.pid)) or reported.count(notify.WATCHDOG) > 2
        )
    )
    shown = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
    assert "numa_ext_jobs_engine_leads 1.0" in shown
    assert 'numa_ext_jobs{kind="servers",state="queued"} 0.0' in shown
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    manager.close()
    said = (tmp_path / "log").read_text()
    assert said.count("leads: term 1") == 1
    assert said.count("the queue decides nothing for now") == 1
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[database]\nconnection = sqlite://\n", "[placement]auth_type is not set"),
        (PLACEMENT, "[database]connection is not set"),
        (f"[database]\nconnection = sqlite://\n{PLACEMENT}", "run numa-ext-manage db sync"),
        ("[numa_ext_jobs]\nworkers = 0\n", "[numa_ext_jobs]workers = 0"),
        ("[numa_ext_jobs\n", "jobs.conf"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_a_sentence(
    configure, capsys, monkeypatch, text, sentence
):
    monkeypatch.setattr(
        startup, "log_to", lambda _conf: None
    )  # it would take all logs of the tests
    assert service.main([configure(text)]) == os.EX_CONFIG
    said = capsys.readouterr().err
    assert said.startswith("numa-ext-engine: ")
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda placement: startup.claims(placement).read("consumer"),
        lambda placement: startup.hosts(placement).host("server"),
    ],
    ids=["claims", "hosts"],
)
def test_no_request_of_a_worker_lasts_as_long_as_a_term(monkeypatch, ask):
    """Nor is one sent again without asking whether this engine still leads."""
    sent = []

    def away(self, request, **options):
        sent.append(options["timeout"])
        raise requests.exceptions.ConnectTimeout("away")

    monkeypatch.setattr(requests.Session, "send", away)
    auth = token_endpoint.Token("http://placement.test", "token")
    transport = session.Session(auth, timeout=30)
    with pytest.raises(ServiceUnavailableError, match="in 1 tries"):
        ask(adapter.Adapter(transport, service_type="placement"))
    assert sent == [10.0]
    assert sent[0] < LASTS_S
