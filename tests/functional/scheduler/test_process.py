# SPDX-License-Identifier: Apache-2.0
"""The scheduler's process: 64 threads at once, what is left of a request, mistakes in the configuration, our faults."""

import gc
import logging
import math
import multiprocessing
import os
import threading
import uuid
import weakref
from unittest import mock

import pytest
from nova.conf import CONF
from nova.scheduler import manager
from nova.scheduler import utils as scheduler_utils

from nova_numa_ext import conf as our_conf
from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.scheduler import NumaExtFilter, NumaExtWeigher, fleet, process, records, session
from placement_traits.fleet import HostView
from placement_traits.journal import Journal
from tests.functional.scheduler.conftest import BE, LC, ListedHosts, request_spec
from tests.functional.scheduler.test_invariants import TRAITS, Fleet, state_of
from tests.support.fleet import domain

THREADS = 64  # of nova-scheduler 34


def views(count):
    return [
        HostView(f"root{n}", f"h{n}", frozenset(TRAITS), None, tuple(map(domain, range(4))))
        for n in range(count)
    ]


class Threads:
    """Runs work in threads that live on, as those of nova's pool do, until :meth:`end`."""

    def __init__(self, count):
        self._count = count
        self._done = threading.Barrier(count + 1)
        self._end = threading.Event()
        self.failures = []

    def run(self, work):
        for number in range(self._count):
            threading.Thread(target=self._one, args=(work, number), daemon=True).start()
        self._done.wait(60)

    def _one(self, work, number):
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 - shown by the test
            self.failures.append(repr(error))
        work = None
        self._done.wait(60)
        self._end.wait(60)

    def end(self):
        self._end.set()


@pytest.fixture
def threads():
    made = Threads(THREADS)
    yield made
    made.end()


def scheduler_of(cloud_manager, states, spec, servers):
    """What nova's SchedulerManager does once Placement has answered."""
    candidates = {state.uuid: list(state.allocation_candidates) for state in states}
    with mock.patch.object(cloud_manager, "_get_all_host_states", return_value=iter(states)):
        return cloud_manager._schedule(mock.Mock(), spec, servers, candidates, {}, "1.36", True)


def test_64_threads_decide_at_once_and_nothing_of_their_requests_is_left(
    nova_configuration, monkeypatch, tmp_path, threads
):
    """Each schedules two servers of one request through nova's own manager; threads stay, as nova's do."""
    journal = Journal(tmp_path / "decisions.jsonl", 2**24, 1)
    process.use(session.Engine(CONF, SchedulerOptions(), Fleet(views(3)), journal))
    monkeypatch.setattr(scheduler_utils, "claim_resources", lambda *_, **__: True)
    monkeypatch.setattr(manager.SchedulerManager, "placement_client", mock.Mock())
    hosts = ListedHosts()
    alive = weakref.WeakSet()
    chosen = []

    def schedule(number):
        scheduler = manager.SchedulerManager.__new__(manager.SchedulerManager)
        scheduler.host_manager = hosts
        states = [state_of(view) for view in views(3)]
        alive.update(states)
        spec = request_spec(LC if number % 4 else {}, num_instances=2)
        servers = [str(uuid.uuid4()) for _ in range(2)]
        chosen.append(scheduler_of(scheduler, states, spec, servers))

    threads.run(schedule)
    assert threads.failures == []
    assert len(chosen) == THREADS
    chosen.clear()
    engine = process.engine()
    assert not engine.faults
    assert gc.isenabled()
    gc.collect()
    assert (len(engine._passes), len(alive)) == (0, 0)


def test_a_request_without_a_key_of_ours_costs_nothing_and_waits_for_nothing(nova_configuration):
    """The view is not even asked: after a start it makes a decision wait for its first reading."""
    view = mock.Mock(spec=Fleet)
    engine = session.Engine(CONF, SchedulerOptions(), view, None)
    states = [state_of(each) for each in views(2)]
    spec = request_spec({"hw:cpu_policy": "dedicated"})
    assert engine.filter(states, spec) is states
    assert engine.weigh([mock.Mock(obj=state, weight=1.0) for state in states], spec) == [0.0, 0.0]
    assert engine.weight_multiplier(mock.Mock(aggregates=[mock.Mock()])) == 10.0
    assert not view.snapshot.called
    assert len(engine._passes) == 0


def test_only_a_worker_that_nova_forks_begins_by_itself(nova_configuration, monkeypatch):
    """What a worker forks for its own ends does not read Placement; a lock that the parent holds is no worker's."""
    begun = []
    monkeypatch.setattr(process, "_made", lambda: begun.append(os.getpid()))
    process.use(None)
    NumaExtFilter()
    context = multiprocessing.get_context("fork")
    seen = context.SimpleQueue()

    def look(more):
        for thread in threading.enumerate():
            if thread.name == "numa-ext-begin":
                thread.join(10)
        seen.put(begun == [os.getpid()])
        if more:
            begun.clear()
            process._process._tried_s = -math.inf
            inner = context.Process(target=look, args=(False,))
            inner.start()
            inner.join()

    with process._process._lock:
        worker = context.Process(target=look, args=(True,))
        worker.start()
        assert [seen.get(), seen.get()] == [True, False]
        worker.join()
    assert begun == []


@pytest.mark.parametrize("entry", ["filter_entry", "weigh_entry"])
def test_a_decision_that_cannot_be_explained_stands(cloud, monkeypatch, entry):
    """h0 has no agent: were the filter's answer lost, nova would take the host that comes first."""
    cloud.host("h0", agent=False)
    cloud.host("h1")
    cloud.host("h2")
    monkeypatch.setattr(records, entry, lambda *_, **__: 1 / 0)
    for _ in range(2):
        [(host, _)] = cloud.boot(BE)
        assert host in {"h1", "h2"}
    assert process.engine().faults == {"record": 2}


@pytest.mark.parametrize("plugin", [NumaExtFilter, NumaExtWeigher])
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("pick_ttl = soon", r"\[numa_ext\]pick_ttl = soon in .*nova.conf: "),
        ("gpu_profiles = /none.yaml", "a readable YAML or JSON file"),
        (
            "gpu_communication_weight = 0\ngpu_interference_weight = 0\n"
            "gpu_fragmentation_weight = 0",
            "one of them > 0",
        ),
    ],
)
@pytest.mark.usefixtures("nova_configuration")
def test_nova_scheduler_does_not_start_with_a_mistake_in_our_options(
    tmp_path, caplog, plugin, line, sentence
):
    file = tmp_path / "nova.conf"
    file.write_text(f"[numa_ext]\n{line}\n")
    CONF.reset()
    CONF.clear()
    our_conf.register_opts(CONF)
    CONF([], project="nova", default_config_files=[str(file)])
    with caplog.at_level(logging.ERROR), pytest.raises(SystemExit, match=sentence):
        plugin()
    [record] = caplog.records
    assert record.exc_info is None


@pytest.mark.parametrize("answer", ["pass", "refuse"])
def test_what_keeps_us_from_starting_is_logged_once_and_answered_as_configured(
    nova_configuration, monkeypatch, caplog, answer
):
    nova_configuration.set("on_error", answer, "numa_ext")
    monkeypatch.setattr(fleet, "from_nova", lambda *_: 1 / 0)
    process.use(None)
    plugin, weigher = NumaExtFilter(), NumaExtWeigher()
    states = [state_of(each) for each in views(2)]
    for _ in range(3):
        assert plugin.filter_all(states, request_spec(LC)) == (states if answer == "pass" else [])
        assert plugin.filter_all(states, request_spec({})) == states
        weighed = [mock.Mock(obj=state, weight=1.0) for state in states]
        assert weigher.weigh_objects(weighed, request_spec(LC)) == [0.0, 0.0]
        assert weigher.weight_multiplier(states[0]) == 0.0
    assert len([record for record in caplog.records if record.exc_info]) == 1
