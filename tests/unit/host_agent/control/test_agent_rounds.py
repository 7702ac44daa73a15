# SPDX-License-Identifier: Apache-2.0
"""Whole rounds of the agent on a host of two sockets and four nodes, over its two seams.

The host: CPUs 0,1 | 2,3 | 4,5 | 6,7 on nodes 0…3, an L3 domain each; odd CPUs are nova's dedicated set, even ones
shared.
"""

import errno
import platform
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.apply import own_threads
from host_agent.apply.resource_control import NoLevels
from host_agent.conf.agent import AgentOptions, PinningOptions
from host_agent.conf.memory import MemoryOptions
from host_agent.conf.options import Options
from host_agent.conf.rdt import RdtOptions
from host_agent.control import home_nodes_store, rollout_store
from host_agent.control.agent import Agent, AgentFiles, Listener, Listeners, Stages
from host_agent.control.rollout import Rollout
from host_agent.control.takeover import Takeover
from host_agent.decide.cores import placement
from host_agent.machine.libvirt import AgentEndsError, ListedDomain
from host_agent.machine.privileged.seam import read_only
from host_agent.model.assignment import Observation
from host_agent.model.journal import Entry, Result
from host_agent.model.partition import PartitionReport, Write, WriteKind
from host_agent.model.process import MoveReport, RamRange
from host_agent.model.round import Round
from host_agent.model.workload import Activity
from host_agent.observe.machine_files import MachineFiles
from host_agent.observe.snapshot import Observer, ServerScope
from host_agent.report.metrics import METRICS, Metrics
from host_agent.report.publisher import Publisher
from host_agent.util.acting import at_rest
from nova_numa_ext.policy.modes import Mode
from placement_traits.errors import NumaExtError, ServiceUnavailableError
from placement_traits.json_store import JsonStore
from tests.support.executors import make_executor
from tests.support.fake_host import FakeHost
from tests.support.hosts import shown
from tests.support.old_state import VERSIONS, written_by
from tests.support.placement_side import GivenPlacement

SHARED = "0,2,4,6"


class Levels(NoLevels):
    """An SLO controller that has written levels of ``groups`` itself, and may suspect that groups changed."""

    def __init__(self) -> None:
        self.groups = frozenset[str]()
        self.suspects = False

    def superseded(self) -> frozenset[str]:
        return self.groups

    def suspect(self) -> bool:
        return self.suspects


class Bench:
    """The agent with a fake host below it and its journal in a list."""

    def __init__(
        self, folder: Path, *, dry_run: bool = False, options: Options | None = None
    ) -> None:
        self.folder = folder
        self.host = FakeHost(four_nodes())
        self.journal: list[Entry] = []
        self.metrics = Metrics()
        self.options = options or Options(rdt=RdtOptions(verify_s=1e9))
        self.dry_run = dry_run
        self.levels = Levels()
        self.listeners: tuple[Listener, ...] = ()
        self.clock = time.monotonic
        self.denied = frozenset[str]()
        self.gradual = False
        self.held = frozenset[int]()
        self.unmounted = False
        self.nodes = folder / "node"
        for node in range(4):
            self.free_mb(node, 2000)
        self.restart()

    def free_mb(self, node: int, mb: int) -> None:
        path = self.nodes / f"node{node}" / "meminfo"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Node {node} MemTotal: 9999999 kB\nNode {node} MemFree: {mb * 1024} kB\n")

    def now(self) -> float:
        return self.clock()

    def _threads_held(self) -> frozenset[int]:
        if self.unmounted:
            raise NumaExtError("no tree")
        return self.held

    def write(self, entry: Entry) -> None:
        self.journal.append(entry)

    def restart(self) -> None:
        """A new agent process; host and files stay."""
        seam = read_only(self.host) if self.dry_run else self.host
        observer = Observer(
            self.host,
            seam,
            MachineFiles(
                lambda: self.host.topology,
                self.nodes,
                device_root=self.folder / "pci",
                online_cpus=self.folder / "online",
            ),
            scope=ServerScope(denied=lambda: self.denied),
        )
        takeover = Takeover(self.options, self, self._threads_held, clock=self.now)
        self.rollout = Rollout(
            self.options,
            dry_run=self.dry_run,
            file=self.folder / "rollout.json" if self.gradual else None,
            takeover=takeover if self.gradual else None,
        )
        executor = make_executor(
            self.host,
            self,
            self.options,
            observer.moved,
            seam=seam,
            levels=self.levels,
            count=self.metrics.count,
            clock=self.now,
        )
        self.agent = Agent(
            Stages(self.host, observer, executor),
            self.options,
            AgentFiles(
                None if self.dry_run else self.folder / "state.json",
                self.folder / "paused",
                self.metrics.lost,
                self.folder / "acting.lock",
            ),
            Listeners(
                (self.metrics, *self.listeners, self.rollout),
                (self.metrics.failed_round,),
                self.metrics.failed_listener,
                self.metrics.without_libvirt,
            ),
            rollout=self.rollout,
            write=False,
        )

    def round(self, *, full: bool = True) -> Round:
        return self.agent.round(full=full, relist=True)

    def entries(self, action: str) -> list[Entry]:
        return [entry for entry in self.journal if entry.action == action]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def make_bench(tmp_path: Path) -> Callable[..., Bench]:
    return lambda **options: Bench(tmp_path, **options)


def lc(cpu: int = 3, node: int = 1, **more: object) -> Server:
    return Server("lc", LC_SPECS, cpus=(cpu,), node=node, **more)  # type: ignore[arg-type]


def be(title: str = "be", **more: object) -> Server:
    return Server(title, {**BE_SPECS, "numa_ext:memory_policy": "local"}, shared=SHARED, **more)  # type: ignore[arg-type]


def test_a_floating_server_gets_a_home_and_its_memory_follows(bench: Bench) -> None:
    server = bench.host.boot(be(), {0: 32, 3: 32})
    bench.round()
    assert bench.host.vcpu_cpus(server) == ["0"]
    assert bench.host.memory_mb(server) == {0: 64}


def test_a_vcpu_that_is_plugged_in_is_pinned_in_the_next_round(bench: Bench) -> None:
    """``virsh setvcpus --live``: the domain had room for it, so that its definition stays as it is."""
    server = bench.host.boot(be(vcpus=2))
    running = bench.host.running[server.uuid]
    whole = running.process
    running.process = whole._replace(threads=whole.threads[:-1])
    bench.round()
    assert bench.host.vcpu_cpus(server) == ["0,2"]
    running.process = running.process._replace(
        threads=(*running.process.threads, whole.threads[-1])
    )
    assert bench.host.vcpu_cpus(server) == ["0,2", SHARED]
    bench.agent.round(full=False, relist=False)
    assert bench.host.vcpu_cpus(server) == ["0,2", "0,2"]


def test_best_effort_keeps_out_of_the_latency_critical_servers_cache(bench: Bench) -> None:
    bench.host.boot(lc(cpu=1, node=0))
    server = bench.host.boot(be(), {0: 64})
    bench.round()
    assert bench.host.vcpu_cpus(server) == ["2"]
    assert bench.host.memory_mb(server) == {1: 64}


def test_a_latency_critical_server_that_comes_later_drives_best_effort_away(bench: Bench) -> None:
    server = bench.host.boot(be())
    bench.round()
    bench.host.boot(lc(cpu=1, node=0))
    bench.round()
    assert bench.host.vcpu_cpus(server) == ["2"]
    # and it stays in its new home when the LC has gone: nothing is gained by going back
    bench.round()
    assert bench.host.vcpu_cpus(server) == ["2"]


def test_best_effort_beside_a_latency_critical_server_is_throttled(bench: Bench) -> None:
    for cpu, node in ((1, 0), (3, 1), (5, 2), (7, 3)):
        bench.host.boot(lc(cpu, node))
    server = bench.host.boot(be())
    bench.round()
    request = next(w for w in bench.host.requests if w.uuid == server.uuid)
    assert request.mba_percent == {0: 50}
    critical = [w for w in bench.host.requests if w.tier == "LC"]
    assert sorted(tuple(w.ways.items()) for w in critical) == [((n, 4),) for n in range(4)]


def test_servers_spread_over_quiet_nodes(bench: Bench) -> None:
    servers = [bench.host.boot(be(f"be{n}")) for n in range(4)]
    bench.round()
    where = sorted(bench.host.vcpu_cpus(server)[0] for server in servers)
    assert where == ["0", "2", "4", "6"]


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[Observation]:
    """The looks that decisions were made for."""
    made: list[Observation] = []

    def place(observation: Observation, *more: Any) -> placement.CoarseDecision:
        made.append(observation)
        return placement.place(observation, *more)

    monkeypatch.setattr("host_agent.control.agent.place", place)
    return made


def test_a_round_that_finds_nothing_new_makes_no_new_decision(
    bench: Bench, decided: list[Observation]
) -> None:
    bench.host.boot(be())
    for _ in range(3):
        bench.round(full=False)
    settled = len(decided)
    for node in range(4):
        bench.free_mb(node, 1500)
    for _ in range(3):
        bench.round(full=False)
    assert len(decided) == settled
    bench.round(full=True)
    assert len(decided) == settled + 1
    bench.free_mb(0, bench.options.memory.margin_mb)
    bench.round(full=False)
    bench.host.boot(be("next"))
    bench.round(full=False)
    assert len(decided) == settled + 3


def test_a_server_larger_than_a_node_gets_the_nearest_two(bench: Bench) -> None:
    server = bench.host.boot(be(vcpus=2))
    bench.round()
    assert bench.host.vcpu_cpus(server) == ["0,2", "0,2"]


def test_memory_promised_to_bound_servers_is_not_taken(bench: Bench) -> None:
    """Nova promised node 0 to a bound server that has touched nothing yet: the floating one's memory stays away."""
    for node in range(3):
        bench.free_mb(node, 700)
    bench.host.boot(lc(cpu=1, node=0, memory_mb=400), {0: 0})
    server = bench.host.boot(be(memory_mb=512), {3: 512})
    bench.round()
    assert bench.host.memory_mb(server) == {3: 512}
    assert bench.host.vcpu_cpus(server) == ["6"]


@pytest.mark.parametrize(("touched_mb", "stays"), [(0, False), (400, True)])
def test_a_promise_counts_for_servers_that_are_left_alone_too(
    bench: Bench, touched_mb: int, stays: bool
) -> None:
    """What an unmanaged bound server holds already is gone from the free memory and not counted twice."""
    for node in range(3):
        bench.free_mb(node, 900)
    alone = {**LC_SPECS, "numa_ext:managed": "false", "numa_ext:tier": "BE"}
    for key in ("resources:CUSTOM_RDT_CLOS", "resources_NODE:CUSTOM_LLC_WAY"):
        del alone[key]
    bench.host.boot(Server("alone", alone, cpus=(1,), memory_mb=400), {0: touched_mb})
    server = bench.host.boot(be(memory_mb=512), {0: 256, 1: 256})
    bench.round()
    assert (bench.host.vcpu_cpus(server) == ["0"]) is stays


class Stuck:
    """Pages that another process maps, too: the mover walks them all and moves none."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attempts = self.walks = 0
        self.now_s = 0.0
        self.bench = bench
        guest_ram = bench.host.guest_ram

        def walk(uuid: str) -> tuple[RamRange, ...]:
            self.walks += 1
            return guest_ram(uuid)

        def move(_uuid: str, _targets: object, _limits: object) -> MoveReport:
            self.attempts += 1
            return MoveReport(0, 4096, 1000 + self.attempts, 1, 0.1, "")

        monkeypatch.setattr(bench.host, "guest_ram", walk)
        monkeypatch.setattr(bench.host, "move_memory", move)
        bench.clock = lambda: self.now_s

    def rounds(self, number: int, every_s: float = 2.0) -> None:
        for _round in range(number):
            self.bench.round(full=False)
            self.now_s += every_s


def test_pages_that_do_not_move_are_tried_ever_more_rarely(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt and each look after it walks the page tables of the whole guest."""
    stuck = Stuck(bench, monkeypatch)
    server = bench.host.boot(lc(), {1: 60, 2: 4})
    stuck.rounds(30)
    assert (stuck.attempts, stuck.walks) == (1, 2)
    assert dict(_values(bench.metrics))["numa_ext_server_misplaced_mb", (server.uuid, "lc")] == 4
    stuck.rounds(24 * 60, every_s=60.0)
    assert 24 <= stuck.attempts <= 24 + 6, "a day: doubled until it is once an hour"
    (entry,) = bench.entries("move")
    assert entry.result is Result.FAILED
    assert "KSM" in entry.problem


def test_pages_that_are_left_alone_keep_no_refiner_and_no_loop_awake(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    Stuck(bench, monkeypatch).rounds(1)
    bench.host.boot(lc(), {1: 60, 2: 4})
    bench.round()
    done = bench.round()
    (outcome,) = done.outcomes.values()
    assert outcome.stuck_kb == 4096
    assert not outcome.touched
    assert not done.unfinished


def test_pages_that_shall_go_elsewhere_are_tried_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as while_shared:
        stuck = Stuck(bench, while_shared)
        server = bench.host.boot(be(), {0: 32, 3: 32})
        stuck.rounds(2)
        assert stuck.attempts == 1
    bench.host.boot(lc(cpu=1, node=0))  # it drives the other away
    bench.round()
    assert bench.host.memory_mb(server) in ({1: 64}, {2: 64}, {3: 64})


def test_a_bound_servers_stray_pages_come_home(bench: Bench) -> None:
    server = bench.host.boot(lc(), {1: 60, 2: 4})
    bench.round()
    assert bench.host.memory_mb(server) == {1: 64}


def test_pins_of_dedicated_servers_are_novas(bench: Bench) -> None:
    server = bench.host.boot(lc())
    found = bench.host.running[server.uuid]
    strayed = tuple(t._replace(cpus="0-7") for t in found.process.threads)
    found.process = found.process._replace(threads=strayed)
    bench.round()
    assert [t.cpus for t in found.process.threads] == ["3", "3"]


def test_a_second_round_writes_nothing(bench: Bench) -> None:
    bench.host.boot(lc())
    bench.host.boot(be(), {0: 32, 3: 32})
    bench.round()
    writes = len(bench.host.writes)
    for full in (False, True):
        bench.round(full=full)
    assert len(bench.host.writes) == writes


def test_a_restarted_agent_adopts_what_is_there(bench: Bench) -> None:
    servers = [bench.host.boot(be(f"be{n}")) for n in range(3)]
    bench.host.boot(lc(cpu=1, node=0))
    bench.round()
    where = [bench.host.vcpu_cpus(server) for server in servers]
    writes = len(bench.host.writes)
    bench.restart()
    bench.round()
    assert [bench.host.vcpu_cpus(server) for server in servers] == where
    assert len(bench.host.writes) == writes


def test_a_lost_state_file_costs_nothing_that_is_running(bench: Bench) -> None:
    server = bench.host.boot(lc())
    bench.round()
    (bench.folder / "state.json").write_text("{broken")
    bench.restart()
    bench.round()
    assert bench.host.vcpu_cpus(server) == ["3"]


def test_a_full_state_folder_does_not_stop_control(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def full(_store: object, _homes: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(JsonStore, "save", full)
        server = bench.host.boot(be(), {3: 64})
        for _round in range(3):
            bench.round()
        assert bench.host.vcpu_cpus(server) == ["6"]
    assert dict(_values(bench.metrics))["numa_ext_unwritten", ("state",)] == 3
    bench.round()
    assert home_nodes_store.store(bench.folder / "state.json").load() == {server.uuid: (3,)}
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_dry_run_only_says_what_it_would_do(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(dry_run=True)
    bench.host.boot(lc())
    bench.host.boot(be(), {0: 32, 3: 32})
    bench.round()
    assert bench.host.writes == []
    assert not (bench.folder / "state.json").exists()
    assert {e.action for e in bench.journal if e.result is Result.WOULD} == {
        "pin",
        "partition",
        "move",
    }


def test_a_dry_run_says_each_thing_once(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(dry_run=True, options=Options(rdt=RdtOptions(verify_s=0.0)))
    server = bench.host.boot(be(), {0: 32, 3: 32})
    bench.round()
    before = len(bench.journal)
    bench.round()
    bench.round(full=False)
    assert len(bench.journal) == before
    bench.host.running[server.uuid].memory_kb = {1: 64 * 1024}
    bench.host.boot(lc())
    bench.round()
    assert {entry.title for entry in bench.journal[before:]} >= {"lc"}


@pytest.mark.parametrize(
    ("options", "written"),
    [
        (Options(agent=AgentOptions(mode="observe")), set()),
        (Options(pinning=PinningOptions(mode="observe")), {"partition", "move"}),
        (Options(memory=MemoryOptions(mode="observe")), {"pin", "partition"}),
        (Options(rdt=RdtOptions(mode="observe")), {"pin", "move"}),
    ],
)
def test_what_observes_is_planned_journalled_and_counted_but_not_written(
    make_bench: Callable[..., Bench], options: Options, written: set[str]
) -> None:
    bench = make_bench(options=options)
    bench.host.boot(lc())
    bench.host.boot(be(), {0: 32, 3: 32})
    for _round in range(3):
        done = bench.round()
    assert {name for name, _ in bench.host.writes} == written
    would = {"pin", "partition", "move"} - written
    assert {e.action for e in bench.journal if e.result is Result.WOULD} == would
    found = dict(_values(bench.metrics))
    counted = {action: found["numa_ext_actions", (action, "would")] for action in would}
    assert set(counted.values()) <= {1, 2}, "once for each server, not in every round"
    assert all(found["numa_ext_mode", (f.value, "observe")] for f in done.modes.observed)


def test_servers_on_the_deny_list_are_never_touched(bench: Bench) -> None:
    critical, server = bench.host.boot(lc()), bench.host.boot(be(), {0: 32, 3: 32})
    bench.denied = frozenset({critical.uuid, server.uuid})
    for _round in range(2):
        bench.round()
    assert bench.host.writes == []
    assert bench.journal == []
    bench.denied = frozenset({server.uuid})
    bench.agent.round(full=False, relist=False)
    assert {name for name, _ in bench.host.writes} == {"partition"}
    assert bench.host.requests[0].uuid == critical.uuid


def test_a_server_that_is_denied_later_leaves_its_group_and_is_left_alone(bench: Bench) -> None:
    server = bench.host.boot(be(), {0: 32, 3: 32})
    bench.round()
    cpus, memory = bench.host.vcpu_cpus(server), bench.host.memory_mb(server)
    bench.denied = frozenset({server.uuid})
    bench.round()
    assert bench.host.requests == ()
    bench.host.running[server.uuid].memory_kb = {2: 64 * 1024}
    bench.host.writes.clear()
    bench.round()
    assert bench.host.writes == []
    assert (bench.host.vcpu_cpus(server), memory) == (cpus, {0: 64})
    assert bench.entries("gone") == [], "it is still here"


def taken_over(bench: Bench) -> list[str]:
    return [entry.title for entry in bench.entries("takeover")]


@pytest.fixture
def busy(make_bench: Callable[..., Bench]) -> Bench:
    """A host with three servers on which the agent begins to enforce; time stands still."""
    bench = make_bench()
    bench.gradual, bench.clock = True, lambda: 0.0
    bench.restart()
    bench.host.boot(be("be1"), {0: 32, 3: 32})
    bench.host.boot(be("be2"), {0: 32, 3: 32})
    bench.host.boot(lc())
    return bench


def test_servers_that_run_are_taken_over_one_after_the_other(busy: Bench) -> None:
    kept = rollout_store.store(busy.folder / "rollout.json")
    counts = []
    for seconds in (0.0, 0.0, 4.9, 5.0, 5.0, 10.0, 15.0):
        busy.clock = lambda seconds=seconds: seconds  # type: ignore[misc]
        busy.round()
        stored = kept.load()
        assert stored is not None
        counts.append((len(busy.host.requests), len(stored.waiting)))
        assert dict(_values(busy.metrics))["numa_ext_servers", ("managed",)] == 3
    assert counts == [(1, 2), (1, 2), (1, 2), (2, 1), (2, 1), (3, 0), (3, 0)]
    assert taken_over(busy) == ["lc", "be1", "be2"], "the one that was promised most comes first"
    assert busy.entries("gone") == []


def test_a_round_that_fails_before_the_order_is_known_takes_no_server_over(busy: Bench) -> None:
    busy.unmounted = True
    with pytest.raises(NumaExtError):
        busy.round()
    busy.unmounted = False
    busy.round()
    assert taken_over(busy) == ["lc"]
    assert len(busy.host.requests) == 1


def test_the_next_server_waits_for_the_pages_of_the_one_before(busy: Bench) -> None:
    busy.host.move_kb = 1024
    busy.host.delete(next(f.server for f in busy.host.running.values() if f.server.title == "lc"))
    for seconds in range(0, 60, 10):
        busy.clock = lambda seconds=seconds: float(seconds)  # type: ignore[misc]
        busy.round(full=False)
    assert taken_over(busy) == ["be1"]
    busy.host.move_kb = 1 << 30
    for seconds in (60.0, 70.0):
        busy.clock = lambda seconds=seconds: seconds  # type: ignore[misc]
        busy.round(full=False)
    assert taken_over(busy) == ["be1", "be2"]


def test_a_server_that_starts_meanwhile_does_not_wait(busy: Bench) -> None:
    busy.round()
    new = busy.host.boot(be("new"))
    busy.round()
    assert {request.uuid for request in busy.host.requests} >= {new.uuid}
    assert len(busy.host.requests) == 2


def test_an_agent_that_is_started_again_goes_on_where_it_was(busy: Bench) -> None:
    """What has a group of ours was taken over before, and must not lose it while others wait."""
    busy.round()
    (taken,) = busy.host.requests
    threads = busy.host.running[taken.uuid].process.threads
    busy.held = frozenset(thread.tid for thread in threads)
    busy.restart()
    busy.round()
    assert len(busy.host.requests) == 2
    assert taken in busy.host.requests


def test_an_upgrade_takes_nothing_over_and_changes_nothing(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench()
    for server in (be("be1"), be("be2"), lc()):
        bench.host.boot(server)
    bench.round()
    running = bench.host.running.values()
    bench.held = frozenset(thread.tid for one in running for thread in one.process.threads)
    bench.gradual = True
    bench.host.writes.clear()
    bench.restart()
    for _round in range(2):
        bench.round()
    assert bench.host.writes == []
    assert taken_over(bench) == []


def test_a_dry_run_prints_the_order_in_which_servers_would_be_taken_over(busy: Bench) -> None:
    busy.dry_run = True
    busy.restart()
    for _round in range(2):
        busy.round()
    entries = busy.entries("takeover")
    assert [(e.title, e.result, e.what) for e in entries] == [
        ("lc", Result.WOULD, {"after_s": 0.0}),
        ("be1", Result.WOULD, {"after_s": 5.0}),
        ("be2", Result.WOULD, {"after_s": 10.0}),
    ]
    assert busy.host.writes == []
    assert {e.title for e in busy.journal if e.action in ("pin", "move")} >= {"be1", "be2"}


def test_a_host_that_observes_takes_over_from_the_first_server_when_it_enforces(
    busy: Bench,
) -> None:
    busy.rollout.follow(Mode.OBSERVE)
    busy.round()
    assert (busy.host.writes, taken_over(busy)) == ([], [])
    busy.rollout.follow(Mode.ENFORCE)
    busy.agent.reapply()
    assert busy.host.writes == [], "a turn between two rounds takes nothing over"
    busy.round()
    assert taken_over(busy) == ["lc"]


def test_a_host_that_observes_shows_it_while_it_is_paused(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(options=Options(agent=AgentOptions(mode="observe")))
    (bench.folder / "paused").touch()
    assert len(bench.round().modes.observed) == 4


def test_what_observed_is_enforced_as_if_it_were_new(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(options=Options(agent=AgentOptions(mode="observe")))
    bench.host.boot(lc())
    bench.host.boot(be(), {0: 32, 3: 32})
    bench.round()
    bench.options = Options(rdt=RdtOptions(verify_s=1e9))
    bench.restart()
    bench.round()
    assert {name for name, _ in bench.host.writes} == {"pin", "partition", "move"}


def test_a_host_that_observes_throttles_nobody_by_cpu_time(
    make_bench: Callable[..., Bench],
) -> None:
    options = RdtOptions(cpu_time_fallback=True, mode="observe")
    bench = make_bench(options=Options(rdt=options))
    bench.host.topology = replace(bench.host.topology, rdt=None)
    for cpu, node in ((1, 0), (3, 1), (5, 2), (7, 3)):
        bench.host.boot(lc(cpu, node))
    bench.host.boot(be())
    bench.round()
    assert bench.host.cpu_levels == {}
    assert [entry.result for entry in bench.entries("throttle")] == [Result.WOULD]


def test_without_rdt_nothing_is_asked_for_and_nothing_is_a_failure(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.host.topology = four_nodes(rdt=None)
    server = bench.host.boot(be())
    for _round in range(3):
        bench.round()
    assert bench.host.vcpu_cpus(server) == ["0"]
    assert bench.host.partition_calls == 0
    assert [entry.result for entry in bench.entries("partition")] == [Result.NOTED]
    assert caplog.records == []


def test_one_broken_server_does_not_harm_the_others(bench: Bench) -> None:
    bad, good = bench.host.boot(be("bad")), bench.host.boot(be("good"), {3: 64})
    bench.host.broken[bad.uuid] = NumaExtError("it bites")
    done = bench.round()
    assert bench.host.vcpu_cpus(bad) == [SHARED]
    (home,) = done.decision.get(good.uuid).nodes  # type: ignore[union-attr]
    assert bench.host.vcpu_cpus(good) == [str(2 * home)]
    assert bench.host.memory_mb(good) == {home: 64}


def test_a_server_that_cannot_be_read_is_told_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    server = bench.host.boot(lc())
    bench.host.broken[server.uuid] = NumaExtError("no process runs it")
    for _round in range(3):
        bench.round()
    (entry,) = bench.entries("observe")
    assert (entry.result, entry.problem) == (Result.FAILED, "no process runs it")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_memory_that_is_not_mapped_yet_is_looked_for_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = bench.host.boot(lc(), {1: 32, 0: 32})
    with monkeypatch.context() as early:
        early.setattr(bench.host, "guest_ram", lambda _uuid: ())
        bench.round()
    bench.round(full=False)
    assert bench.host.memory_mb(server) == {1: 64}
    assert ["not found" in entry.problem for entry in bench.entries("observe")] == [True]


def test_a_server_that_is_being_started_is_not_touched(bench: Bench) -> None:
    server = bench.host.boot(be(), {3: 64}, Activity.PAUSED)
    bench.round()
    assert bench.host.writes == []
    bench.host.running[server.uuid].activity = Activity.RUNNING
    bench.round()
    assert [name for name, _ in bench.host.writes] == ["pin", "partition"]
    assert bench.host.vcpu_cpus(server) == ["6"], "it lives where its memory already is"


def test_a_server_that_is_paused_later_keeps_its_place(bench: Bench) -> None:
    critical, server = bench.host.boot(lc()), bench.host.boot(be(), {0: 64})
    bench.round()
    for uuid in (critical.uuid, server.uuid):
        bench.host.running[uuid].activity = Activity.PAUSED
    bench.host.running[server.uuid].memory_kb = {2: 64 * 1024}
    bench.round()
    assert bench.host.memory_mb(server) == {2: 64}
    assert {(w.tier, w.running) for w in bench.host.requests} == {("LC", False), ("BE", False)}


def test_pages_of_a_migrating_server_stay(bench: Bench) -> None:
    server = bench.host.boot(lc(), {1: 32, 0: 32})
    bench.host.jobs.add(server.uuid)
    bench.round()
    bench.round()
    assert bench.host.memory_mb(server) == {1: 32, 0: 32}
    assert ["live migration" in entry.problem for entry in bench.entries("move")] == [True]


def test_pages_of_a_vfio_server_stay(bench: Bench) -> None:
    device = (
        "<hostdev mode='subsystem' type='pci'><source><address domain='0' bus='129' slot='0' function='0'/>"
        "</source></hostdev>"
    )
    server = bench.host.boot(lc(devices=device), {1: 32, 0: 32})
    bench.round()
    assert bench.host.memory_mb(server) == {1: 32, 0: 32}
    (entry,) = bench.entries("move")
    assert (entry.result, "VFIO" in entry.problem) == (Result.NOTED, True)


@pytest.mark.parametrize(
    ("backing", "word"), [("<hugepages/>", "hugetlb"), ("<locked/>", "locked")]
)
@pytest.mark.parametrize("tier", ["LC", "BE"])
def test_huge_and_locked_pages_stay(bench: Bench, tier: str, backing: str, word: str) -> None:
    """Nova has promised the pool of huge pages on the other node to somebody else."""
    server = (lc if tier == "LC" else be)(backing=backing)
    bench.host.boot(server, {1: 32, 0: 32})
    bench.round()
    assert bench.host.memory_mb(server) == {1: 32, 0: 32}
    assert "move" not in {name for name, _ in bench.host.writes}
    reported = [*bench.entries("move"), *bench.entries("decide")]
    assert any(word in f"{entry.problem} {entry.reasons}" for entry in reported)


def test_a_vfio_server_lives_where_its_memory_was_pinned(bench: Bench) -> None:
    device = "<interface type='hostdev'/>"
    crowd = [bench.host.boot(be(f"be{n}"), {2: 64}) for n in range(3)]
    server = bench.host.boot(be("gpu", devices=device), {2: 64})
    bench.round()
    assert bench.host.vcpu_cpus(server) == ["4"]
    assert bench.host.memory_mb(server) == {2: 64}
    assert len(crowd) == 3


GPU = (
    "<hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x61' slot='0x00' function='0x0'/>"
    "</source></hostdev><interface type='hostdev'/>"
)


def test_a_decision_names_the_gpus_and_their_nodes(bench: Bench) -> None:
    (bench.folder / "pci/0000:61:00.0").mkdir(parents=True)
    (bench.folder / "pci/0000:61:00.0/numa_node").write_text("2\n")
    bench.host.boot(be("gpu", devices=GPU), {2: 64})
    bench.round()
    (entry,) = bench.entries("decide")
    assert entry.what["gpus"] == [{"address": "0000:61:00.0", "node": 2}]
    assert "gpu=0000:61:00.0 on node 2 (against node 2)" in entry.reasons


def test_f_000_22_vcpus_and_emulator_follow_the_gpu(bench: Bench) -> None:
    """F-000-22: all threads go to the node of the device; the pages that it has pinned on another one stay."""
    (bench.folder / "pci/0000:61:00.0").mkdir(parents=True)
    (bench.folder / "pci/0000:61:00.0/numa_node").write_text("2\n")
    server = bench.host.boot(be("gpu", devices=GPU), {0: 64})
    bench.round()
    threads = bench.host.running[server.uuid].process.threads
    assert {thread.cpus for thread in threads} == {"4"}
    assert bench.host.memory_mb(server) == {0: 64}


@pytest.mark.parametrize("text", [None, "-1\n"])
def test_a_gpu_whose_node_the_firmware_does_not_tell_is_shown_so(
    bench: Bench, text: str | None
) -> None:
    if text:
        (bench.folder / "pci/0000:61:00.0").mkdir(parents=True)
        (bench.folder / "pci/0000:61:00.0/numa_node").write_text(text)
    bench.host.boot(Server("untagged", {}, devices=GPU))
    (guest,) = bench.round().observation.guests
    assert guest.gpus == {"0000:61:00.0": None}


def test_a_few_sampled_pages_are_not_believed(bench: Bench) -> None:
    """A guest that touched little: the sample hits three pages, two of them astray; the full pass knows better."""
    server = bench.host.boot(be(), {0: 64})
    bench.round()
    writes = len(bench.host.writes)
    bench.host.sampled = {0: 1, 3: 2}
    bench.round(full=False)
    assert len(bench.host.writes) == writes
    bench.host.sampled = {0: 100, 3: 200}
    bench.round(full=False)
    assert bench.host.writes[writes:] == [("move", server.uuid)]


def test_large_memory_moves_in_several_rounds(bench: Bench) -> None:
    server = bench.host.boot(lc(memory_mb=1000), {1: 0, 0: 1000})
    bench.host.move_kb = 400 * 1024
    assert bench.round().unfinished
    assert bench.host.memory_mb(server) == {0: 600, 1: 400}
    assert bench.round(full=False).unfinished
    assert not bench.round(full=False).unfinished
    assert bench.host.memory_mb(server) == {1: 1000}


@pytest.mark.parametrize("tells", [True, False])
def test_page_tables_are_walked_after_the_last_slice_only_where_the_mover_does_not_tell(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    bench.host.mover_tells = tells
    bench.host.boot(lc(memory_mb=1000), {1: 0, 0: 1000})
    bench.host.move_kb = 300 * 1024
    walks: list[str] = []
    walk = bench.host.guest_ram
    monkeypatch.setattr(bench.host, "guest_ram", lambda uuid: walks.append(uuid) or walk(uuid))
    bench.round()
    while bench.round(full=False).unfinished:
        assert len(walks) == 1
    (guest,) = bench.round(full=False).observation.guests
    assert len(walks) == (1 if tells else 2)
    assert guest.memory_shares == {0: 0.0, 1: 1.0}


def test_drift_is_seen_by_samples_between_full_passes(bench: Bench) -> None:
    server = bench.host.boot(be(), {0: 64})
    bench.round()
    bench.host.running[server.uuid].memory_kb = {0: 60 * 1024, 2: 4 * 1024}
    bench.round(full=False)
    assert bench.host.memory_mb(server) == {0: 64}


def test_a_small_stray_part_is_tolerated(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(options=Options(memory=MemoryOptions(dead_band_percent=10.0)))
    server = bench.host.boot(be(), {0: 60, 2: 4})
    bench.round()
    assert bench.host.memory_mb(server) == {0: 60, 2: 4}


def test_a_pin_that_does_not_hold_is_told_once(bench: Bench) -> None:
    server = bench.host.boot(be())
    bench.host.stubborn = {t.tid for t in bench.host.running[server.uuid].process.threads}
    for _round in range(3):
        bench.round()
    (entry,) = bench.entries("pin")
    assert (entry.result, "its cpuset does not allow them" in entry.problem) == (
        Result.FAILED,
        True,
    )


def test_while_a_host_is_kept_at_rest_rounds_only_look(bench: Bench) -> None:
    """A reset beside an agent that is resumed in the middle of it."""
    server = bench.host.boot(lc(), {1: 32, 0: 32})
    with at_rest(bench.folder / "acting.lock", 0.0) as rests:
        assert rests and bench.round().paused
        assert bench.agent.reapply() is None
    assert not bench.host.writes
    assert not bench.round().paused
    assert bench.host.memory_mb(server) != {1: 32, 0: 32}


def test_no_host_is_taken_for_at_rest_while_a_round_acts(bench: Bench) -> None:
    found: list[bool] = []

    class Asks:
        def on_round(self, _done: Round) -> None:
            with at_rest(bench.folder / "acting.lock", 0.0) as rests:
                found.append(rests)

    bench.listeners = (Asks(),)
    bench.restart()
    bench.round()
    bench.agent.reapply()
    assert found == [False, False]
    with at_rest(bench.folder / "acting.lock", 0.0) as rests:
        assert rests


def test_a_paused_agent_only_looks(bench: Bench) -> None:
    bench.host.boot(be(), {3: 64})
    (bench.folder / "paused").touch()
    assert bench.round().paused
    assert bench.host.writes == []


def test_without_libvirt_it_goes_on_with_what_it_knows(bench: Bench) -> None:
    server = bench.host.boot(be(), {0: 64})
    bench.round()
    bench.host.libvirt_down = True
    bench.host.running[server.uuid].memory_kb = {2: 64 * 1024}
    bench.round(full=False)
    assert bench.host.memory_mb(server) == {0: 64}


def test_without_libvirt_a_full_round_reads_all_that_is_not_libvirts(bench: Bench) -> None:
    bench.host.boot(be(), {0: 64})
    bench.round()
    bench.host.libvirt_down = True
    bench.host.topology = replace(bench.host.topology, cores=bench.host.topology.cores[:-1])
    assert bench.round(full=True).observation.topology == bench.host.topology


def test_libvirt_that_is_lost_is_a_metric_and_rounds_tell_it(bench: Bench) -> None:
    def lost() -> float | None:
        return dict(_values(bench.metrics)).get(("numa_ext_libvirt_lost", ()))

    assert lost() is None, "it was not asked yet: each start would alert"
    assert (bench.round().listed, lost()) == (True, 0)
    bench.host.libvirt_down = True
    assert (bench.round().listed, lost()) == (False, 1)
    (bench.folder / "paused").touch()
    assert (bench.round().listed, lost()) == (False, 1)
    bench.host.libvirt_down = False
    assert (bench.round().listed, lost()) == (True, 0)


@pytest.mark.parametrize("seed", range(8))
def test_after_a_storm_of_restarts_of_libvirtd_two_rounds_are_enough(
    bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers come and go while libvirtd does, too; the loop runs by itself."""
    storm, chance = 40, random.Random(seed)
    stop, rounds = threading.Event(), 0
    servers = [bench.host.boot(lc()), bench.host.boot(be(), {3: 64})]
    settled: list[tuple[str, object]] = []

    def another_round(_seconds: float) -> None:
        nonlocal rounds
        rounds += 1
        bench.host.libvirt_down = rounds < storm and chance.random() < 0.6
        if rounds < storm and chance.random() < 0.3:
            bench.host.delete(servers.pop(chance.randrange(len(servers))))
        while rounds <= storm and len(servers) < 2:
            servers.append(bench.host.boot(be(), {chance.randrange(4): 64}))
        if rounds == storm + 2:
            settled.extend(bench.host.writes)
        elif rounds == storm + 4:
            stop.set()

    bench.host.waited = another_round
    # Each connection that opens or breaks is an event.
    monkeypatch.setattr(bench.host, "has_events", lambda: rounds <= storm)
    bench.agent.run(stop)
    assert bench.host.writes == settled, "after the second round nothing was left to do"
    assert {request.uuid for request in bench.host.requests} == {each.uuid for each in servers}
    assert dict(_values(bench.metrics))["numa_ext_rounds", ("done",)] == rounds


def test_without_libvirt_from_the_start_it_says_so(bench: Bench) -> None:
    bench.host.libvirt_down = True
    with pytest.raises(ServiceUnavailableError):
        bench.round()
    stop = threading.Event()
    bench.host.waited = lambda _seconds: stop.set()
    bench.agent.run(stop)
    assert dict(_values(bench.metrics))["numa_ext_libvirt_lost", ()] == 1


def test_an_end_that_was_asked_for_in_a_round_is_neither_warned_of_nor_a_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was decided is there, pages that are left are the next agent's to move."""
    servers = [
        bench.host.boot(Server(f"lc{node}", LC_SPECS, cpus=(2 * node + 1,), node=node), {0: 64})
        for node in (1, 2)
    ]
    asked: list[str] = []
    stop = threading.Event()
    bench.host.waited = lambda _seconds: stop.set()

    def ends(uuid: str) -> bool:
        asked.append(uuid)
        stop.set()
        raise AgentEndsError("the agent ends")

    monkeypatch.setattr(bench.host, "migrating", ends)
    bench.restart()
    bench.agent.run(stop)
    assert len(asked) == 1, "no other server is asked for"
    assert [bench.host.memory_mb(server) for server in servers] == [{0: 64}] * 2
    assert bench.entries("move") == []
    assert dict(_values(bench.metrics))["numa_ext_rounds", ("done",)] == 1
    assert caplog.records == []


def test_an_end_that_was_asked_for_while_domains_are_listed_ends_the_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.round()
    before = list(bench.host.writes)

    def ends() -> tuple[ListedDomain, ...]:
        raise AgentEndsError("the agent ends")

    monkeypatch.setattr(bench.host, "domains", ends)
    bench.host.waited = lambda _seconds: pytest.fail("it goes on")
    bench.agent.run(threading.Event())
    assert bench.host.writes == before
    assert caplog.records == []


def test_the_loop_survives_whatever_happens(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    rounds = 0

    def topology() -> object:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            stop.set()
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(bench.agent._observer._machine, "_discover", topology)
    bench.agent.run(stop)
    assert rounds == 3
    assert dict(_values(bench.metrics))["numa_ext_rounds", ("failed",)] == 3


def test_a_listener_that_fails_keeps_the_round_from_nobody(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Placement is not the host: whatever is wrong with what is published, control and its turns go on."""
    heard: list[Round] = []

    class Deaf:
        def on_round(self, done: Round) -> None:
            raise RuntimeError("unforeseen")

    class Last:
        def on_round(self, done: Round) -> None:
            heard.append(done)

    bench.listeners = (Deaf(), Last())
    bench.restart()
    server = bench.host.boot(be(), {3: 64})
    for _round in range(3):
        bench.round()
    assert bench.host.vcpu_cpus(server) == ["6"]
    assert len(heard) == 3
    assert bench.agent.reapply() is not None, "refiners have their turns"
    values = dict(_values(bench.metrics))
    assert values["numa_ext_listener_failures", ("Deaf",)] == 4
    assert values["numa_ext_rounds", ("done",)] == 4
    assert values["numa_ext_rounds", ("failed",)] == 0
    assert [record.levelname for record in caplog.records] == ["ERROR"], "told once"


def test_rounds_go_on_and_are_published_while_a_pinned_cpu_is_offline(bench: Bench) -> None:
    """rasdaemon has taken CPU 3 away from a latency-critical server that runs."""
    bench.listeners = (
        publisher := Publisher(bench.options, GivenPlacement([], "c"), bench.metrics),
    )
    bench.restart()
    bench.host.boot(lc(cpu=3, node=1))
    bench.host.boot(be())
    bench.round()
    bench.host.topology = shown(bench.host.topology, {3})
    other = bench.host.boot(be("be2"))
    for _round in range(3):
        bench.round()
    values = dict(_values(bench.metrics))
    assert values["numa_ext_rounds", ("done",)] == 4
    assert not [n for (name, _), n in values.items() if name == "numa_ext_listener_failures" and n]
    assert publisher._desired is not None
    assert bench.host.vcpu_cpus(other) != [SHARED], "it got a home"


def test_a_server_on_cpus_that_nova_has_just_woken_gets_its_ways_at_once(bench: Bench) -> None:
    """The topology of the last minute does not know the CPU; its start event is all there is."""
    whole = bench.host.topology
    (bench.folder / "online").write_text("0-2,4-7\n")
    bench.host.topology = shown(whole, {3})
    bench.host.boot(be())
    bench.round()
    bench.host.topology = whole
    (bench.folder / "online").write_text("0-7\n")
    server = bench.host.boot(lc(cpu=3, node=1))
    bench.round(full=False)
    (request,) = (each for each in bench.host.requests if each.uuid == server.uuid)
    assert request.ways == {1: 4}


def test_groups_are_looked_at_again_when_a_sleeping_domain_is_back(bench: Bench) -> None:
    """The kernel gives all groups all ways of a domain that it has just made."""
    whole = bench.host.topology
    bench.host.boot(lc(cpu=3, node=1))
    bench.round()
    bench.host.topology = shown(whole, {6, 7})
    bench.round()
    calls = bench.host.partition_calls
    bench.host.topology = whole
    bench.round()
    assert bench.host.partition_calls == calls + 1


def test_a_departed_server_is_told_and_forgotten(bench: Bench) -> None:
    server = bench.host.boot(be())
    bench.round()
    bench.host.delete(server)
    bench.round()
    assert [entry.server for entry in bench.entries("gone")] == [server.uuid]
    assert bench.host.requests == ()
    assert home_nodes_store.store(bench.folder / "state.json").load() == {}


def test_partitions_are_asked_for_only_when_something_changed(bench: Bench) -> None:
    bench.host.boot(lc())
    for _round in range(4):
        bench.round()
    assert bench.host.partition_calls == 1
    found = next(iter(bench.host.running.values()))
    thread = found.process.threads[0]._replace(tid=9999)
    found.process = found.process._replace(threads=(*found.process.threads, thread))
    bench.round()
    assert bench.host.partition_calls == 2


def test_lost_exclusiveness_is_told_once_and_its_return_too(
    make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make_bench(options=Options(rdt=RdtOptions(verify_s=0.0)))
    bench.host.boot(lc())
    bench.round()
    for against in ("other", "other", "", ""):
        bench.host.against = against
        bench.round()
    assert [(e.what["exclusive"], list(e.reasons)) for e in bench.entries("place")] == [
        (False, ["foreign_group=other"]),
        (True, []),
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_fresh_agent_tells_what_is_not_exclusive(bench: Bench) -> None:
    bench.host.boot(lc())
    bench.host.boot(be())
    bench.host.against = "other"
    bench.round()
    assert [entry.title for entry in bench.entries("place")] == ["lc"]


def test_metrics_are_named_in_one_table(bench: Bench) -> None:
    server = bench.host.boot(lc())
    bench.round()
    values = dict(_values(bench.metrics))
    assert values["numa_ext_server_memory_mb", (server.uuid, "lc", "1")] == 64
    assert values["numa_ext_server_ways", (server.uuid, "lc", "1")] == 4
    assert {name for name, _ in values} <= set(METRICS)
    families = {family.name for family in bench.metrics.collect()}
    assert families <= set(METRICS)


def test_durations_of_rounds_are_a_histogram(bench: Bench) -> None:
    seen = bench.round()
    before, _ = bench.metrics.durations()
    for seconds in (0.02, 0.03, 2.0, 100.0):
        bench.metrics.on_round(replace(seen, seconds=seconds))
    after, total_s = bench.metrics.durations()
    new = {bound: count - old for (bound, count), (_, old) in zip(after, before, strict=True)}
    assert new == {
        "0.01": 0, "0.03": 2, "0.1": 2, "0.3": 2, "1.0": 2, "3.0": 3, "10.0": 3, "30.0": 3, "+Inf": 4
    }  # fmt: skip
    assert total_s == pytest.approx(102.05 + seen.seconds)
    (family,) = (f for f in bench.metrics.collect() if f.name == "numa_ext_round_seconds")
    assert [sample.value for sample in family.samples if sample.name.endswith("_count")] == [5]


def test_metrics_name_the_build(bench: Bench) -> None:
    (found,) = (
        labels for (name, labels), _ in _values(bench.metrics) if name == "numa_ext_build_info"
    )
    assert found == (metadata.version("nova-numa-ext"), platform.python_version())


def _values(metrics: Metrics) -> list[tuple[tuple[str, tuple[str, ...]], float]]:
    return [((metric.name, labels), value) for metric, labels, value in metrics.samples()]


ALL_CPUS = frozenset(range(8))


def test_the_agent_itself_keeps_off_the_latency_critical_cores(bench: Bench) -> None:
    bench.host.boot(lc(cpu=3, node=1))
    seen = bench.round().observation
    assert own_threads.quiet_cpus(seen, ALL_CPUS) == {0, 1, 2, 4, 5, 6, 7}


def test_the_agent_keeps_off_every_dedicated_servers_cpus(bench: Bench) -> None:
    alone = {"hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"}
    bench.host.boot(Server("dedicated", alone, cpus=(5,), node=2))
    seen = bench.round().observation
    assert own_threads.quiet_cpus(seen, ALL_CPUS) == ALL_CPUS - {5}


def test_the_agent_never_leaves_the_cpus_it_was_started_on(bench: Bench) -> None:
    bench.host.boot(lc(cpu=3, node=1))
    seen = bench.round().observation
    assert own_threads.quiet_cpus(seen, frozenset({2, 3})) == {2}
    assert own_threads.quiet_cpus(seen, frozenset({3})) == {3}, "there is no other"


def test_groups_that_others_have_changed_are_put_right_and_told(
    make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make_bench(options=Options(rdt=RdtOptions(verify_s=0.0)))
    bench.host.boot(lc())
    bench.round()
    bench.round()
    assert bench.entries("repair") == []
    bench.host.requests = ()  # somebody has undone it
    bench.round()
    bench.round()
    assert [entry.what for entry in bench.entries("repair")] == [
        {"writes": ("schemata numa_ext-changed",)}
    ]
    assert "others have changed RDT groups; put right: schemata numa_ext-changed" in caplog.text


def test_without_bandwidth_allocation_cpu_time_is_limited_where_the_operator_says_so(
    make_bench: Callable[..., Bench],
) -> None:
    for fallback in (False, True):
        choices = RdtOptions(cpu_time_fallback=fallback, verify_s=1e9)
        bench = make_bench(options=Options(rdt=choices))
        bench.host.topology = replace(bench.host.topology, rdt=None)
        for cpu, node in ((1, 0), (3, 1), (5, 2), (7, 3)):
            bench.host.boot(lc(cpu, node))
        server = bench.host.boot(be())
        bench.round()
        bench.round()
        assert bench.host.cpu_levels == ({server.uuid: 50} if fallback else {})
        assert len(bench.entries("throttle")) == (1 if fallback else 0)


def test_cpu_time_that_an_earlier_agent_has_taken_is_given_back_where_it_is_not_wanted_any_more(
    make_bench: Callable[..., Bench],
) -> None:
    """The operator has turned cpu_time_fallback off and started the agent anew; others' quotas are asked for once."""
    bench = make_bench(options=Options(rdt=RdtOptions(verify_s=0.0)))
    server = bench.host.boot(be())
    bench.host.cpu_levels = {server.uuid: 10}
    bench.round()
    assert bench.host.cpu_levels == {}
    bench.host.cpu_levels = {server.uuid: 20}  # by nobody of ours
    bench.round()
    assert bench.host.cpu_levels == {server.uuid: 20}


def test_cpu_time_that_could_not_be_given_back_is_given_back_later(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(options=Options(rdt=RdtOptions(verify_s=0.0)))
    server = bench.host.boot(be())
    bench.host.cpu_levels = {server.uuid: 10}
    bench.host.cpu_time_problem = "no descriptor left"
    bench.round()
    assert bench.host.cpu_levels == {server.uuid: 10}
    bench.host.cpu_time_problem = ""
    bench.round()
    assert bench.host.cpu_levels == {}


def test_after_a_hang_as_long_as_the_dead_mans_switch_waits_groups_are_looked_at_at_once(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has released them; what the last round has found is true no more."""
    bench = make_bench(options=Options(rdt=RdtOptions(verify_s=1e9, release_after_s=60.0)))
    times = iter((0.0, 59.0, 119.0, 120.0))
    monkeypatch.setattr(bench.agent._executor._resource_control, "_clock", times.__next__)
    monkeypatch.setattr(
        bench.agent._executor._resource_control, "limit_cpu_time", lambda *_, act: None
    )
    bench.host.boot(be())
    looks = []
    for _round in range(4):
        bench.round()
        looks.append(bench.host.partition_calls)
    assert looks == [1, 1, 2, 2]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_upgrade_moves_no_page_and_changes_no_pin_and_no_mask(
    bench: Bench, version: int
) -> None:
    """Servers run on; the new agent finds what the one before has kept."""
    bench.host.boot(lc())
    gone = bench.host.boot(be("gone"), {0: 64})
    bench.round()
    for number in range(3):
        bench.host.boot(be(f"be{number}"), {number: 48, 3: 16})
    bench.round()
    bench.host.delete(gone)
    while bench.round().unfinished:
        pass
    written = len(bench.host.writes)
    assert written_by(version, bench.folder) == ["state.json"]
    bench.restart()
    for _round in range(3):
        bench.round()
    assert bench.host.writes[written:] == []


def test_groups_that_cannot_be_written_are_looked_at_before_their_time(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(options=Options(rdt=RdtOptions(verify_s=1e9)))
    bench.host.boot(lc())
    bench.round()
    calls = bench.host.partition_calls
    bench.levels.suspects = True
    bench.round()
    bench.levels.suspects = False
    bench.round()
    assert bench.host.partition_calls == calls + 1


def test_a_level_that_other_software_has_written_is_told_and_one_of_the_controller_is_not(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(options=Options(rdt=RdtOptions(verify_s=0.0)))
    bench.host.boot(lc())
    bench.round()
    really = bench.host.partition

    level = Write(WriteKind.SCHEMATA, "numa_ext-be-0", schemata={"MB": {0: 50, 1: 100}})

    def changed(*arguments: Any, **named: Any) -> PartitionReport:
        return replace(really(*arguments, **named), writes=(level,))

    monkeypatch.setattr(bench.host, "partition", changed)
    bench.levels.groups = frozenset({"numa_ext-be-0"})
    bench.round()
    assert bench.entries("repair") == []
    bench.levels.groups = frozenset()
    bench.round()
    assert len(bench.entries("repair")) == 1
