# SPDX-License-Identifier: Apache-2.0
"""Who is told of jobs, by a real receiver on loopback and oslo.messaging's own drivers, and what holds up no engine."""

import json
import logging
import socket
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_messaging.notify import _impl_test as bus_of_tests

from nova_numa_ext.orchestrator import notify
from nova_numa_ext.orchestrator.conf import NotifyOptions
from nova_numa_ext.policy.jobs.job import JobKind
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.remote_gpu.lease_terms import OF_LEASES
from placement_traits.errors import ServiceUnavailableError
from placement_traits.oslo_options import ConfigurationError
from placement_traits.reason import Reason
from tests.support.jobs_database import new_job, part, stored_job
from tests.support.jobs_world import World
from tests.support.polling import until

SAMPLE = Path(__file__).parents[3] / "doc/notification_samples/job-running.json"
WAY = ["planned", "claimed", "building", "running"]
WHY = (Reason("placed", "h1"),)


@contextmanager
def receiver(status=204, **headers):
    """A web server; yields its port and the bodies that it got."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_what):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, got
    finally:
        server.shutdown()
        server.server_close()


def options(port, host="127.0.0.1", networks=("127.0.0.0/8", "::1/128"), **more):
    return NotifyOptions(f"http://{host}:{port}/jobs?token=1", networks, **more)


def conf_of(tmp_path, text=""):
    file = tmp_path / "jobs.conf"
    file.write_text(text)
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[str(file)], default_config_dirs=[])
    return conf


def test_a_webhook_gets_each_state_of_a_job_in_order(tmp_path):
    with receiver() as (port, got):
        tell = notify.configured(conf_of(tmp_path), options(port), "c1")
        world = World(tmp_path, tell=tell)
        job = world.jobs.create(new_job(trust="secret-trust"))
        world.rounds(3)
        until(lambda: len(got) >= len(WAY))
    assert [each["event_type"] for each in got] == [f"numa_ext.job.{state}" for state in WAY]
    assert {each["payload"]["job"] for each in got} == {job.uuid}
    assert got[-1]["payload"]["project_id"] == "project-1"
    assert got[-1]["payload"]["reasons"][0]["sentence"] == "all servers are active: 2"
    assert "secret-trust" not in json.dumps(got)


def test_what_a_user_does_is_an_event_of_its_own(tmp_path):
    """By the name of the action: the state is another one, or the same."""
    with receiver() as (port, got):
        tell = notify.configured(conf_of(tmp_path), options(port), "c1", "api")
        job = stored_job(state=JobState.RUNNING, cancelled=True)
        tell(job, (Reason("cancelled", "user-1"),), "cancel")
        until(lambda: got)
    assert (got[0]["event_type"], got[0]["payload"]["state"]) == ("numa_ext.job.cancel", "running")


def test_the_documented_sample_is_what_is_sent():
    """Who reads notifications builds on it: what changes here changes the version of the payload."""
    sample = json.loads(SAMPLE.read_text())
    payload = sample["payload"]
    (why,) = payload["reasons"]
    job = stored_job(
        uuid=payload["job"],
        version=payload["job_version"],
        project=payload["project_id"],
        user=payload["user_id"],
        name=payload["name"],
        state=JobState.RUNNING,
        parts=(part("gpu", servers={0: payload["parts"][0]["servers"][0], 1: ""}),),
    )
    sent, at = [], payload["at"]
    box = notify.Outbox("way", lambda *what: sent.append(what), lambda: at)
    box.put(job, (Reason(why["term"], why["value"], why["against"], why["where"]),))
    until(lambda: sent)
    assert sent == [(sample["event_type"], payload)]
    assert payload["payload_version"] == notify.VERSION == "1.1"


def test_reasons_of_leases_are_sentences_of_leases():
    job = stored_job(kind=JobKind.ATTACH, parts=())
    sent = notify.message(job, (Reason("released", "user-1", "", OF_LEASES),), 0.0)
    assert (sent["kind"], sent["reasons"][0]["sentence"]) == ("attach", "released by user-1")


def test_a_receiver_that_answers_a_byte_at_a_time_holds_up_no_job(tmp_path, caplog):
    """Each byte comes within the time that the receiver has to answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def drip():
            connection, _ = server.accept()
            with connection, suppress(OSError):
                while not stop.wait(0.05):
                    connection.sendall(b"H")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        tell = notify.configured(conf_of(tmp_path), options(port, webhook_timeout_s=0.2), "c1")
        world = World(tmp_path, tell=tell)
        jobs = [world.jobs.create(new_job()) for _ in range(3)]
        world.rounds(3)
        assert {world.state(each) for each in jobs} == {JobState.RUNNING}
        until(lambda: "messages are lost: 127.0.0.1 does not answer" in caplog.text)
        stop.set()
        thread.join(30)


def test_a_redirect_is_not_followed(caplog):
    with receiver() as (control_plane, got):
        to = f"http://127.0.0.1:{control_plane}/"
        with receiver(307, Location=to) as (port, asked):
            send = notify.webhook(options(port))
            with pytest.raises(ServiceUnavailableError, match="answers with 307"):
                send("numa_ext.job.done", {})
        assert (len(asked), got) == (1, [])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nothing_is_sent_to_addresses_that_are_not_allowed(host):
    """A name may come to point into the control plane."""
    with receiver() as (port, got):
        send = notify.webhook(options(port, host, networks=("203.0.113.0/24",)))
        with pytest.raises(ServiceUnavailableError, match=r"is at .*: not in .*webhook_networks"):
            send("numa_ext.job.done", {})
        assert got == []


def test_a_receiver_that_never_answers_holds_up_no_job(tmp_path, caplog):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        tell = notify.configured(conf_of(tmp_path), options(port, webhook_timeout_s=0.2), "c1")
        world = World(tmp_path, tell=tell)
        job = world.jobs.create(new_job())
        world.rounds(3)
        assert world.state(job) is JobState.RUNNING
        until(lambda: "messages are lost: 127.0.0.1 does not answer" in caplog.text)


def test_a_connection_that_is_refused_is_a_sentence():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ServiceUnavailableError, match=r"127\.0\.0\.1 does not answer"):
        notify.webhook(options(port))("numa_ext.job.done", {})


def test_what_does_not_fit_into_the_queue_is_left_out_and_said_once(caplog):
    free, sent = threading.Event(), []

    def send(event, _content):
        free.wait(60)
        sent.append(event)

    box = notify.Outbox("way", send)
    for _ in range(1100):
        box.put(stored_job(), WHY)
    assert caplog.text.count("1000 messages wait") == 1
    free.set()
    until(lambda: len(sent) >= 1000)
    box.put(stored_job(state=JobState.DONE), WHY)
    until(lambda: sent[-1] == "numa_ext.job.done")
    assert len(sent) <= 1002


def test_what_fails_is_logged_once_and_the_next_is_sent(caplog):
    sent = []

    def send(event, _content):
        sent.append(event)
        if len(sent) < 3:
            raise KeyError("as no one has foreseen")

    box = notify.Outbox("way", send)
    for _ in range(3):
        box.put(stored_job(), WHY)
    until(lambda: len(sent) == 3)
    assert caplog.text.count("way: messages are lost: KeyError") == 1


def test_the_bus_gets_what_happens_to_jobs(tmp_path):
    bus_of_tests.reset()
    conf = conf_of(
        tmp_path, "[oslo_messaging_notifications]\ndriver = test\ntransport_url = fake://\n"
    )
    world = World(tmp_path, tell=notify.configured(conf, NotifyOptions(), "c1"))
    job = world.jobs.create(new_job())
    world.rounds(3)
    until(lambda: len(bus_of_tests.NOTIFICATIONS) >= len(WAY))
    sent = [message for _context, message, *_more in bus_of_tests.NOTIFICATIONS]
    assert [each["event_type"] for each in sent] == [f"numa_ext.job.{state}" for state in WAY]
    assert {each["publisher_id"] for each in sent} == {"numa-ext-engine.c1"}
    assert {each["payload"]["job"] for each in sent} == {job.uuid}
    assert {priority for *_message, priority, _retry in bus_of_tests.NOTIFICATIONS} == {"INFO"}
    assert {retry for *_message, retry in bus_of_tests.NOTIFICATIONS} == {3}, "not for ever"


def test_the_bus_may_be_the_log(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    conf = conf_of(
        tmp_path, "[oslo_messaging_notifications]\ndriver = log\ntransport_url = fake://\n"
    )
    tell = notify.configured(conf, NotifyOptions(), "c1")
    tell(stored_job(state=JobState.RUNNING), WHY)
    until(lambda: '"event_type": "numa_ext.job.running"' in caplog.text)


def test_by_default_nobody_is_told(tmp_path):
    conf = conf_of(tmp_path)
    assert notify.bus(conf, "c1") is None
    before = set(threading.enumerate())
    notify.configured(conf, NotifyOptions(), "c1")(stored_job(), WHY)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (NotifyOptions("ftp://h/"), "webhook_url = ftp://h/ cannot be used"),
        (NotifyOptions("http:///x"), "cannot be used"),
        (NotifyOptions("http://h:99999/"), "cannot be used"),
        (NotifyOptions("http://user:pw@h/"), "without a user"),
        (NotifyOptions("http://h/"), "webhook_networks is not"),
        (NotifyOptions("http://h/", ("10.0.0.1/8",)), "webhook_networks: 10.0.0.1/8"),
    ],
)
def test_options_that_cannot_be_used_are_a_sentence(given, sentence):
    with pytest.raises(ConfigurationError) as raised:
        notify.webhook(given)
    assert sentence in str(raised.value)
    assert "pw" not in str(raised.value)


def test_a_bus_that_cannot_be_used_is_a_sentence(tmp_path):
    conf = conf_of(
        tmp_path,
        "[oslo_messaging_notifications]\ndriver = messagingv2\ntransport_url = no-such://\n",
    )
    with pytest.raises(ConfigurationError, match="transport_url cannot be used"):
        notify.bus(conf, "c1")
