# SPDX-License-Identifier: Apache-2.0
"""IPC as a stand-in for latency."""

import pytest

from host_agent.model.counters import ServerCounters
from host_agent.model.latency import LcServer
from host_agent.observe.latency.ipc_proxy import IpcProxy

SLO_US = 1000.0
U, V = (LcServer(uuid, frozenset({0}), SLO_US) for uuid in "UV")


def watched(*values: float) -> IpcProxy:
    """A proxy that has seen these figures, one each two seconds."""
    proxy = IpcProxy(0.25)
    for number, value in enumerate(values):
        proxy.take({"U": ServerCounters(ipc=value)}, number * 2.0)
    return proxy


def test_a_quarter_below_the_best_is_the_objective() -> None:
    proxy = watched(*[2.0] * 20, *[1.5] * 3)
    assert proxy.read(U, 44.0).p99_us == pytest.approx(SLO_US, rel=0.02)
    assert watched(*[2.0] * 23).read(U, 44.0).p99_us == pytest.approx(0.0, abs=5.0)


def test_short_readings_are_taken_together_lest_the_best_of_them_is_luck() -> None:
    """While a memory search runs, counters are read five times a second."""
    proxy = IpcProxy(0.25)
    for number in range(400):
        proxy.take({"U": ServerCounters(ipc=(1.0, 3.0)[number % 2])}, number * 0.2)
    assert proxy.read(U, 80.0).p99_us == pytest.approx(0.0, abs=0.3 * SLO_US)


def test_a_reading_without_cycles_or_instructions_is_no_sample() -> None:
    proxy = IpcProxy(0.25)
    for number in range(40):
        proxy.take({"U": ServerCounters(mpi=0.1)}, number * 2.0)
    assert proxy.read(U, 80.0).p99_us is None


def test_too_few_old_or_no_figures_are_unknown() -> None:
    assert watched(2.0, 1.0).read(U, 2.0).p99_us is None
    proxy = watched(*[2.0] * 30)
    assert proxy.read(U, 100.0).p99_us is None
    assert proxy.read(V, 58.0).p99_us is None


def test_only_figures_after_an_action_judge_it() -> None:
    proxy = watched(*[2.0] * 20, 1.0, 1.0, 2.0)
    assert proxy.read(U, 44.0, since_s=43.0).p99_us == pytest.approx(0.0, abs=5.0)
    assert proxy.read(U, 44.0, since_s=45.0).p99_us is None


def test_a_program_that_has_changed_finds_a_new_reference() -> None:
    proxy = IpcProxy(0.25)
    for number in range(20 + 5400):
        proxy.take({"U": ServerCounters(ipc=2.0 if number < 20 else 1.2)}, number * 2.0)
    reading = proxy.read(U, 5419 * 2.0)
    assert reading.p99_us is not None
    assert reading.p99_us < 0.8 * SLO_US
