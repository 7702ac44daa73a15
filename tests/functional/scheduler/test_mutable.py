# SPDX-License-Identifier: Apache-2.0
"""Options that nova-scheduler takes while it runs: oslo.config's mutation, which it does at SIGHUP."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from nova.conf import CONF

from nova_numa_ext import conf as our_conf
from nova_numa_ext.policy.modes import Mode
from nova_numa_ext.scheduler import NumaExtFilter, NumaExtWeigher, fleet, process
from placement_traits.fleet import HostView
from placement_traits.options import declared
from tests.functional.scheduler.conftest import LC, request_spec
from tests.functional.scheduler.test_invariants import TRAITS, Fleet, state_of
from tests.support.fleet import domain

MUTABLE = {
    *("mode", "on_error", "on_stale", "on_silent"),
    *("pick_ttl", "pick_limit", "journal_hosts", "shortlist", "weight_multiplier"),
    *("slices_multiplier", "neighbours_multiplier", "devil_packing_multiplier"),
    *("ways_multiplier", "bandwidth_multiplier", "cross_socket_bandwidth_multiplier"),
    *("fragmentation_multiplier", "gpu_multiplier", "net_block_multiplier"),
}


@pytest.fixture
def running(nova_configuration, monkeypatch, tmp_path):
    """nova-scheduler with our plug-ins, and a nova.conf to change::

    nova.conf      [numa_ext], rewritten by ``change``, then read as at SIGHUP
    └─ h0          an agent has published it, one L3 domain
       h1, h2      none has
    """
    file = tmp_path / "nova.conf"

    def write(*lines):
        file.write_text("\n".join(["[numa_ext]", "journal_path =", *lines]))

    write()
    CONF.reset()
    CONF.clear()
    our_conf.register_opts(CONF)
    CONF([], project="nova", default_config_files=[str(file)])
    views = [HostView(f"root{n}", f"h{n}", frozenset(TRAITS), None, (domain(0),)) for n in range(3)]
    monkeypatch.setattr(fleet, "from_nova", lambda *_: Fleet(views[:1]))
    process.use(None)

    def change(*lines):
        """Write another file, and do what nova-scheduler does at SIGHUP."""
        write(*lines)
        CONF.mutate_config_files()

    plugin, weigher = NumaExtFilter(), NumaExtWeigher()

    def passing():
        states = [state_of(view) for view in views]
        return [state.host for state in plugin.filter_all(states, request_spec(LC))]

    return SimpleNamespace(weigher=weigher, passing=passing, change=change)


def test_the_mode_changes_from_one_decision_to_the_next(running):
    assert running.passing() == ["h0"]
    engine = process.engine()
    running.change("mode = observe")
    assert running.passing() == ["h0", "h1", "h2"]
    running.change("mode = enforce")
    assert running.passing() == ["h0"]
    assert process.engine() is engine, "what it has learnt is kept"


def test_each_mutable_option_reaches_the_decisions(running):
    engine = process.engine()
    running.change(
        "on_stale = refuse",
        "on_silent = refuse",
        "pick_ttl = 7",
        "pick_limit = 3",
        "shortlist = 5",
        "weight_multiplier = 2.5",
        "ways_multiplier = 4",
        "journal_hosts = 9",
    )
    spec, state = request_spec(LC), state_of(HostView("root", "h", frozenset(), None, ()))
    context = engine._question([state], spec)[0].context
    assert (context.refuse_stale, context.refuse_silent) == (True, True)
    assert (engine._ledger._ttl_s, engine._ledger._limit) == (7.0, 3)
    assert engine._made_lists().shortlist._option() == 5
    assert engine._multipliers([state])[0].tolist()[:1] == [2.5]
    assert 4.0 in engine._multipliers([state])[0].tolist()
    assert (engine._limit, running.weigher.weight_multiplier(state)) == (9, 2.5)


def test_a_mistake_leaves_everything_as_it_was_and_is_one_sentence(running, caplog):
    running.change("mode = rank")
    caplog.clear()
    running.change("mode = observe", "pick_ttl = soon")
    assert process.options().mode is Mode.RANK
    [record] = [each for each in caplog.records if each.name.startswith("nova_numa_ext")]
    assert "[numa_ext]pick_ttl = soon in" in record.getMessage()
    assert record.exc_info is None
    running.change("mode = observe")
    assert process.options().mode is Mode.OBSERVE


def test_a_worker_forked_after_a_mistake_decides_by_the_options_before_it(running):
    """nova-scheduler 34 ends its workers at SIGHUP and forks new ones: these must not end by the file of now."""
    running.change("mode = observe")
    running.change("mode = sometimes")
    assert process.engine()._options.mode is Mode.OBSERVE
    assert running.passing() == ["h0", "h1", "h2"]


def test_what_is_open_or_shared_needs_a_restart(running):
    running.change("journal_path = /elsewhere", "view_max_age = 1", "gpu_communication_weight = 3")
    assert process.options().journal_path == ""
    assert our_conf.view_settings(process.options()) == our_conf.view_settings(
        our_conf.SchedulerOptions()
    )
    assert process.options().gpu.communication_weight == 1.0


def test_the_documentation_and_the_sample_say_which():
    found = {each.name for each in declared(our_conf.SchedulerOptions) if each.option.mutable}
    assert found == MUTABLE
    [(_, options)] = our_conf.list_opts()
    assert {option.name for option in options if option.mutable} == MUTABLE


SERVICE = '''
import os, sys, time
from oslo_service import backend
backend.init_backend(backend.BackendType.THREADING)
from oslo_service import service
from nova.conf import CONF
from nova_numa_ext import conf as our_conf
from nova_numa_ext.scheduler import NumaExtFilter, process

class Scheduler(service.Service):
    """As nova's: plug-ins are made before the workers are forked."""

    def start(self):
        for _ in range(600):
            with open(sys.argv[2], "a") as file:
                file.write(f"{os.getpid()} {process.options().mode}\\n")
            time.sleep(0.1)

our_conf.register_opts(CONF)
CONF([], project="nova", default_config_files=[sys.argv[1]])
NumaExtFilter()
launcher = service.launch(CONF, Scheduler(), workers=2, restart_method="mutate")
launcher.wait()
'''


def test_a_real_sighup_reaches_each_worker(tmp_path):
    """By oslo.service as nova-scheduler 34 uses it, with two workers."""
    file, told, script = (tmp_path / name for name in ("nova.conf", "told", "service.py"))
    file.write_text("[numa_ext]\nmode = observe\n[DEFAULT]\ngraceful_shutdown_timeout = 1\n")
    script.write_text(SERVICE)
    told.touch()
    process = subprocess.Popen(
        [sys.executable, str(script), str(file), str(told)],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )

    def last():
        """Workers and modes of the last lines."""
        lines = [line.split() for line in told.read_text().splitlines()[-8:]]
        return {line[0] for line in lines}, {line[1] for line in lines}

    def wait_for(mode):
        until = time.monotonic() + 60
        while time.monotonic() < until and (len(last()[0]), last()[1]) != (2, {mode}):
            assert process.poll() is None
            time.sleep(0.1)
        assert (len(last()[0]), last()[1]) == (2, {mode})

    try:
        wait_for("observe")
        file.write_text(file.read_text().replace("observe", "rank"))
        process.send_signal(signal.SIGHUP)
        wait_for("rank")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
