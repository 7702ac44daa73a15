# SPDX-License-Identifier: Apache-2.0
"""When the agent reports to be in control: as long as its loop gets on, however long a round takes, and no longer."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, Server
from host_agent.conf.memory import MemoryOptions
from host_agent.conf.options import Options
from host_agent.control.agent import Agent, AgentFiles, Listeners, Stages
from host_agent.control.in_control import InControl
from host_agent.control.pipeline import Refiners
from host_agent.machine.privileged.dead_man_switch import DeadManSwitch
from host_agent.model.assignment import Decision, Observation
from host_agent.model.process import Look, MoveLimits, MoveReport, Process, Target
from host_agent.observe.machine_files import MachineFiles
from host_agent.observe.snapshot import Observer
from host_agent.report.metrics import METRICS
from placement_traits.errors import ServiceUnavailableError
from tests.support.executors import make_executor
from tests.support.fake_host import FakeHost

SERVERS = 30
AFTER_S = 60.0
ACCESS_S = 5.0
PATIENCE_S = 20.0


@dataclass
class SlowHost(FakeHost):
    """Each look at a process and each move of pages takes some seconds; ``now_s`` is the time."""

    now_s: float = 0.0
    signs: list[float] = field(default_factory=list)

    def process(self, uuid: str) -> Process:
        self.now_s += ACCESS_S
        return super().process(uuid)

    def look(
        self, servers: Sequence[tuple[str, Sequence[tuple[int, int]]]], pages: int
    ) -> tuple[Look, ...]:
        return super().look(servers[:1], pages)  # the helper's second is over

    def move_memory(self, uuid: str, targets: Sequence[Target], limits: MoveLimits) -> MoveReport:
        self.now_s += ACCESS_S
        return super().move_memory(uuid, targets, limits)

    def in_control(self) -> int:
        self.signs.append(self.now_s)
        return self.fired


def agent(
    host: FakeHost,
    sign: InControl,
    folder: Path,
    *,
    refiners: Refiners | None = None,
) -> Agent:
    """An agent over a host of many servers whose memory is not where it belongs."""
    for number in range(SERVERS):
        specs = {**BE_SPECS, "numa_ext:memory_policy": "local"}
        host.boot(Server(f"be{number}", specs, shared="0,2,4,6"), {0: 32, 3: 32})
    for node in range(4):
        meminfo = folder / f"node{node}" / "meminfo"
        meminfo.parent.mkdir()
        meminfo.write_text(f"Node {node} MemFree: 90000000 kB\n")
    settings = Options(memory=MemoryOptions(slice_s=1e6))
    observer = Observer(
        host, host, MachineFiles(lambda: host.topology, folder), progress=sign.progress
    )
    executor = make_executor(host, Silence(), settings, observer.moved, progress=sign.progress)
    return Agent(
        Stages(host, observer, executor, refiners or Refiners()),
        settings,
        AgentFiles(None, folder / "paused"),
        Listeners((sign,), (sign.failed,)),
        write=False,
    )


class Silence:
    """A journal that nobody reads."""

    def write(self, _entry: object) -> None:
        """Forget it."""


def test_a_round_that_takes_longer_than_the_patience_gives_signs_all_the_while(
    tmp_path: Path,
) -> None:
    host = SlowHost(four_nodes())
    sign = InControl(host, AFTER_S, clock=lambda: host.now_s)
    agent(host, sign, tmp_path).round(full=True, relist=True)
    assert host.now_s > 5 * AFTER_S, "observing, pinning and moving each took their time"
    times = [0.0, *host.signs, host.now_s]
    assert max(after - before for before, after in pairwise(times)) < AFTER_S / 3


def test_it_lapses_when_the_switch_has_got_none_for_as_long_as_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = SlowHost(four_nodes())
    sign = InControl(host, AFTER_S, clock=lambda: host.now_s)
    looped = agent(host, sign, tmp_path)
    looped.round(full=True, relist=True)
    assert not sign.lapsed()
    host.now_s += AFTER_S
    assert sign.lapsed()

    def refuse() -> int:
        raise ServiceUnavailableError("the helper is gone")

    with monkeypatch.context() as broken:
        broken.setattr(host, "in_control", refuse)
        sign.progress()
        assert sign.lapsed(), "it was given, and not taken"
    host.now_s += AFTER_S
    sign.progress()
    assert not sign.lapsed()


def test_the_switch_is_shown_as_it_is_and_as_often_as_the_helper_has_counted(
    tmp_path: Path,
) -> None:
    """A hang of 70 s showed for ten, and what became of an agent that was killed for none."""
    host = SlowHost(four_nodes(), fired=3)
    sign = InControl(host, AFTER_S, clock=lambda: host.now_s)
    assert list(sign.samples()) == [("numa_ext_in_control", (), 1.0)], "the helper was not asked"
    sign.progress()
    host.now_s, host.fired = AFTER_S, 4
    hung = [("numa_ext_in_control", (), 0.0), ("numa_ext_dead_man_switch_fired", (), 3)]
    assert list(sign.samples()) == hung
    sign.progress()
    back = [("numa_ext_in_control", (), 1.0), ("numa_ext_dead_man_switch_fired", (), 4)]
    assert list(sign.samples()) == back
    assert {name for name, _, _ in back} <= set(METRICS)


def test_not_each_step_is_a_sign(tmp_path: Path) -> None:
    """A sign may be a message to another process; the loop takes up to fifty short rounds a second."""
    host = FakeHost(four_nodes())
    sign = InControl(host, AFTER_S)
    looped = agent(host, sign, tmp_path)
    for _round in range(3):
        looped.round(full=True, relist=True)
    assert host.control_reports == 1


def test_rounds_that_fail_are_no_life_until_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = SlowHost(four_nodes())
    sign = InControl(host, AFTER_S, clock=lambda: host.now_s)
    stop = threading.Event()
    host.waited = lambda _seconds: stop.set()
    looped = agent(host, sign, tmp_path)
    apply = looped._executor.apply

    def fail_at_the_end(*arguments: Any) -> None:
        apply(*arguments)
        raise RuntimeError("no round ends")

    with monkeypatch.context() as broken:
        broken.setattr(looped._executor, "apply", fail_at_the_end)
        looped.run(stop)
        before = len(host.signs)
        assert before, "the first round was given its time"
        for _round in range(3):
            stop.clear()
            looped.run(stop)
        assert len(host.signs) == before
    stop.clear()
    looped.run(stop)
    assert len(host.signs) > before


class Hanging:
    """A refiner that never comes back, until it is let go."""

    name = "hanging"

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

    def refine(self, decision: Decision, observation: Observation) -> Decision:
        self.reached.set()
        self.go.wait(PATIENCE_S)
        return decision

    def turn(self, now_s: float) -> bool:
        return False

    def pause_s(self, now_s: float) -> float:
        return 1.0


def test_a_loop_that_hangs_in_a_round_is_found_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real switch on the other end; reports come from no other thread."""
    releases: list[float] = []

    def release() -> tuple[str, ...]:
        releases.append(time.monotonic())
        return ()

    switch = DeadManSwitch(tmp_path / "mark", 0.3, release)
    host = FakeHost(four_nodes())
    reports: list[float] = []

    def in_control() -> int:
        reports.append(time.monotonic())
        switch.in_control()
        return switch.fired

    monkeypatch.setattr(host, "in_control", in_control)
    hanging = Hanging()
    sign = InControl(host, 0.3)
    looped = agent(host, sign, tmp_path, refiners=Refiners([hanging]))
    thread = threading.Thread(target=lambda: looped.round(full=True, relist=True), daemon=True)
    thread.start()
    assert hanging.reached.wait(PATIENCE_S)
    begun = len(reports)
    assert begun, "observing was a report"
    end = time.monotonic() + PATIENCE_S
    while not releases:
        assert time.monotonic() < end, "the switch did not find it silent"
        switch.turn()
        time.sleep(0.01)
    assert releases[0] >= reports[-1] + 0.3
    assert len(reports) == begun
    hanging.go.set()
    thread.join(PATIENCE_S)
    assert len(reports) > begun, "it goes on, and reports so"
    assert switch.held
