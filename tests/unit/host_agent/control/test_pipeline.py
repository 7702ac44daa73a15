# SPDX-License-Identifier: Apache-2.0
"""Run-time controllers in the agent's loop: their order, their turns between rounds, and one that fails."""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, Server
from host_agent.conf.memory import MemoryOptions
from host_agent.conf.options import Options
from host_agent.control.agent import Agent, AgentFiles, Listeners, Stages
from host_agent.control.pipeline import Refiners
from host_agent.machine.libvirt import ListedDomain
from host_agent.model.assignment import Decision, Observation
from host_agent.model.process import MoveLimits, MoveReport, Process, Target
from host_agent.model.round import Round
from host_agent.observe.machine_files import MachineFiles
from host_agent.observe.snapshot import Observer
from host_agent.report.metrics import Metrics
from tests.support.executors import make_executor
from tests.support.fake_host import FakeHost


class Clock:
    """Time that goes on only while the agent waits; ``stop`` is set at the end."""

    def __init__(self, host: FakeHost, until_s: float) -> None:
        self.now_s = 0.0
        self.stop = threading.Event()
        self._until_s = until_s
        host.waited = self._waited

    def __call__(self) -> float:
        return self.now_s

    def _waited(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s >= self._until_s:
            self.stop.set()


@dataclass
class Throttler:
    """Wants a bandwidth level for every server; it changes its mind every ``period_s``, in a turn."""

    name: str = "throttler"
    period_s: float = math.inf
    level: int = 40
    turns: list[float] = field(default_factory=list)
    saw: list[Decision] = field(default_factory=list)
    error: Exception | None = None
    turn_error: Exception | None = None

    def refine(self, decision: Decision, observation: Observation) -> Decision:
        self.saw.append(decision)
        if self.error is not None:
            raise self.error
        refined = []
        for assignment in decision.assignments:
            assert assignment.partition is not None
            partition = replace(assignment.partition, mba_percent={0: self.level})
            refined.append(replace(assignment, partition=partition))
        return replace(decision, assignments=tuple(refined))

    def turn(self, now_s: float) -> bool:
        self.turns.append(now_s)
        if self.turn_error is not None:
            raise self.turn_error
        self.level += 1
        return True

    def pause_s(self, now_s: float) -> float:
        return self.period_s


class Bench:
    """The agent with refiners over a fake host that has one best-effort server."""

    def __init__(self, folder: Path, *refiners: Throttler, options: Options | None = None):
        self.folder = folder
        self.host = FakeHost(four_nodes())
        specs = {**BE_SPECS, "numa_ext:memory_policy": "local"}
        self.server = self.host.boot(Server("be", specs, shared="0,2,4,6"))
        self.metrics = Metrics()
        self.rounds: list[Round] = []
        self.clock = Clock(self.host, 6.0)
        for node in range(4):
            meminfo = folder / f"node{node}" / "meminfo"
            meminfo.parent.mkdir()
            meminfo.write_text(f"Node {node} MemFree: 2000000 kB\n")
        options = options or Options()
        observer = Observer(self.host, self.host, MachineFiles(lambda: self.host.topology, folder))
        executor = make_executor(self.host, self, options, observer.moved, clock=self.clock)
        self.agent = Agent(
            Stages(self.host, observer, executor, Refiners(refiners, self.metrics.failed_refiner)),
            options,
            AgentFiles(None, folder / "paused"),
            Listeners((self,)),
            write=False,
            clock=self.clock,
        )

    def write(self, _entry: object) -> None:
        """The journal is not looked at here."""

    def on_round(self, done: Round) -> None:
        self.rounds.append(done)

    def run(self) -> None:
        self.agent.run(self.clock.stop)

    def level(self) -> int:
        return min(self.host.requests[0].mba_percent.values())


@pytest.fixture
def make_bench(tmp_path: Path) -> Callable[..., Bench]:
    return lambda *refiners, **more: Bench(tmp_path, *refiners, **more)


def failures(bench: Bench) -> dict[str, float]:
    return {
        labels[0]: value
        for metric, labels, value in bench.metrics.samples()
        if metric.name == "numa_ext_refiner_failures"
    }


def test_refiners_work_in_order_and_the_last_has_the_last_word(
    make_bench: Callable[..., Bench],
) -> None:
    first, second = Throttler("first", level=40), Throttler("second", level=70)
    bench = make_bench(first, second)
    bench.agent.round(full=True, relist=True)
    assert bench.level() == 70
    assert _levels(first.saw[0]) == [100]
    assert _levels(second.saw[0]) == [40]


def test_between_rounds_a_turn_acts_on_the_kept_coarse_decision_without_asking_libvirt(
    make_bench: Callable[..., Bench],
) -> None:
    throttler = Throttler(period_s=0.5)
    bench = make_bench(throttler)
    bench.run()
    assert bench.host.waits == [0.5] * 12
    assert len(throttler.turns) == 12
    assert bench.host.listings == 1, "only the first, full round lists"
    assert all(_levels(decision) == [100] for decision in throttler.saw), "never its own output"
    assert bench.level() == 40 + 12
    assert len(bench.rounds) == 3 + 12, "listeners hear of every application"


def test_between_rounds_only_servers_that_were_touched_are_looked_at_again(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred looks take longer than a turn may; where nothing was done, nothing has changed by our doing."""
    throttler = Throttler()
    bench = make_bench(throttler)
    moving = bench.host.boot(
        Server("moving", {**BE_SPECS, "numa_ext:memory_policy": "local"}, shared="0,2,4,6"),
        {0: 16, 3: 48},
    )
    bench.host.move_kb = 1024
    bench.agent.round(full=True, relist=True)
    bench.agent.reapply()  # both had been pinned
    read = bench.host.process
    looked: list[str] = []

    def process(uuid: str) -> Process:
        looked.append(uuid)
        return read(uuid)

    monkeypatch.setattr(bench.host, "process", process)
    for _turn in range(2):
        looked.clear()
        throttler.level += 1
        bench.agent.reapply()
        assert set(looked) == {moving.uuid}
        assert bench.level() == throttler.level, "the others are acted on all the same"
    before, after = (done.observation.get(moving.uuid) for done in bench.rounds[-2:])
    assert before is not None
    assert after is not None
    assert after.memory_shares[0] < before.memory_shares[0], "it was seen how far its pages were"
    bench.host.move_kb = 1 << 40
    bench.agent.reapply()
    bench.agent.reapply()
    looked.clear()
    bench.agent.reapply()
    assert looked == [], "all pages have arrived, and that was seen"
    assert bench.host.memory_mb(moving) == {3: 64}


def test_without_refiners_the_loop_waits_in_one_piece(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.run()
    assert bench.host.waits == [2.0] * 3


def test_a_refiner_that_fails_leaves_the_coarse_decision_and_the_others_alone(
    make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = Throttler("broken", level=1), Throttler("sound", level=60)
    broken.error = RuntimeError("no figures")
    bench = make_bench(broken, sound)
    for _round in range(3):
        bench.agent.round(full=True, relist=True)
    assert _levels(sound.saw[-1]) == [100]
    assert bench.level() == 60
    assert failures(bench) == {"broken": 3}
    assert len(caplog.records) == 1, "one line per state change"
    broken.error, sound.error = None, RuntimeError("its turn")
    with caplog.at_level(logging.INFO, logger="host_agent.control.pipeline"):
        bench.agent.round(full=True, relist=True)
    assert bench.level() == 1
    assert [r.getMessage() for r in caplog.records][1:] == [
        "broken works again (refine)",
        "sound fails (refine); without it the coarse decision holds",
    ]


def test_the_last_word_of_a_refiner_that_fails_holds_for_one_round(
    make_bench: Callable[..., Bench],
) -> None:
    """One failure must not send pages home and back; a lasting one leaves the safe, coarse decision."""
    throttler = Throttler(level=30)
    bench = make_bench(throttler)
    bench.agent.round(full=True, relist=True)
    throttler.error = RuntimeError("no figures")
    late = bench.host.boot(Server("late", BE_SPECS, shared="0,2,4,6"))
    bench.agent.round(full=True, relist=True)
    bench.agent.reapply()
    levels = {request.uuid: min(request.mba_percent.values()) for request in bench.host.requests}
    assert levels == {bench.server.uuid: 30, late.uuid: 100}, "it has reported nothing of the other"
    bench.agent.round(full=True, relist=True)
    assert bench.level() == 100
    throttler.error = None
    bench.agent.round(full=True, relist=True)
    assert bench.level() == 30


def test_a_refiner_that_fails_in_its_turn_rests_until_the_next_round(
    make_bench: Callable[..., Bench],
) -> None:
    broken, sound = Throttler("broken", period_s=0.5), Throttler("sound", period_s=1.0)
    broken.turn_error = OSError("no counters")
    bench = make_bench(broken, sound)
    bench.run()
    assert broken.turns == [0.0, 2.0, 4.0]
    assert sound.turns == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert failures(bench) == {"broken": 3}


def test_nobody_has_a_turn_while_the_agent_is_paused(make_bench: Callable[..., Bench]) -> None:
    throttler = Throttler(period_s=0.5)
    bench = make_bench(throttler)
    (bench.folder / "paused").touch()
    bench.run()
    assert throttler.turns == []
    assert bench.host.waits == [2.0] * 3
    assert bench.host.writes == []


def test_a_pause_that_comes_between_two_rounds_holds_at_once(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(Throttler())
    bench.agent.round(full=True, relist=True)
    (bench.folder / "paused").touch()
    assert bench.agent.reapply() is None


@pytest.mark.parametrize("paused", [True, False])
def test_a_refiner_that_wants_something_at_once_does_not_keep_the_loop_busy_where_nothing_can_be_done(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    """Paused since the round, or the look at the host fails: the next round is soon enough."""

    class Eager(Throttler):
        def turn(self, now_s: float) -> bool:
            if paused:
                (bench.folder / "paused").touch()
            return super().turn(now_s)

    def fails(_touched: object) -> None:
        raise OSError("too many open files")

    bench = make_bench(Eager(period_s=0.01))
    monkeypatch.setattr(bench.agent._observer, "again", fails)
    bench.run()
    assert len(bench.host.waits) <= 4


@pytest.mark.parametrize("events", [True, False])
def test_domains_are_listed_again_when_libvirt_has_events_and_not_for_every_wake(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, events: bool
) -> None:
    bench = make_bench()
    monkeypatch.setattr(bench.host, "has_events", lambda: events)
    bench.run()
    assert len(bench.rounds) == 3
    assert bench.host.listings == (3 if events else 1)


def test_an_event_while_domains_are_listed_has_them_listed_again(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: what libvirt tells in the middle of a listing need not be in it."""
    bench, news = make_bench(), threading.Event()
    really = bench.host.domains

    def domains() -> tuple[ListedDomain, ...]:
        if bench.host.listings == 0:
            news.set()
        return really()

    def has_events() -> bool:
        came = news.is_set()
        news.clear()
        return came

    monkeypatch.setattr(bench.host, "domains", domains)
    monkeypatch.setattr(bench.host, "has_events", has_events)
    bench.run()
    assert (len(bench.rounds), bench.host.listings) == (3, 2)


@pytest.mark.parametrize(("period_s", "slice_s"), [(0.02, 0.1), (1.0, 1.0), (math.inf, 1.0)])
def test_page_moves_leave_time_for_a_refiner_that_polls(
    make_bench: Callable[..., Bench],
    monkeypatch: pytest.MonkeyPatch,
    period_s: float,
    slice_s: float,
) -> None:
    options = Options(memory=MemoryOptions(slice_s=1.0, polled_slice_s=0.1))
    bench = make_bench(Throttler(period_s=period_s), options=options)
    bench.host.running[bench.server.uuid].memory_kb = {0: 1024, 3: 63 * 1024}
    given: list[float] = []

    def move(_uuid: str, _targets: list[Target], limits: MoveLimits) -> MoveReport:
        given.append(limits.seconds)
        return MoveReport(0, 0, 0, 0, 0.0, "")

    monkeypatch.setattr(bench.host, "move_memory", move)
    bench.agent.round(full=True, relist=True)
    assert given == [slice_s]


def _levels(decision: Decision) -> list[int]:
    partitions = [assignment.partition for assignment in decision.assignments]
    return [percent for p in partitions if p is not None for percent in p.mba_percent.values()]
