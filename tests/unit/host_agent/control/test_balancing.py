# SPDX-License-Identifier: Apache-2.0
"""NUMA balancing in the agent's loop, closed over the host model: searches, reshuffles, restarts, blindness, guards.

The host: 2 sockets, 4 nodes of 2 CPUs and an L3 domain each. All performance figures are *modelled*.
"""

import json
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from benchmarks.opens import opened
from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.conf.bwap import BwapOptions
from host_agent.conf.mapping import MappingOptions
from host_agent.conf.options import Options
from host_agent.decide.pages import bwap
from host_agent.decide.pages.weights import dwp_weights
from host_agent.model.assignment import Observation
from host_agent.model.counters import ServerCounters
from host_agent.observe.counters.source import Readings
from host_agent.observe.foreign_balancers import _SYSCTL, Guard
from host_agent.report.metrics import METRICS
from placement_traits.topology import L3Domain
from tests.support.balanced import BalancedAgent

ALL = "0-7"
BWAP = {**BE_SPECS, "numa_ext:memory_policy": "bwap"}
LOCAL = {**BE_SPECS, "numa_ext:memory_policy": "local"}
WEIGHTS = {frozenset({n}): {m: 0.4 if m == n else 0.2 for m in range(4)} for n in range(4)}
STEP = BwapOptions().step / 0.6


def floating(title: str, specs: dict[str, str], vcpus: int = 2, **more: object) -> Server:
    return Server(title, specs, vcpus=vcpus, memory_mb=512, shared=ALL, **more)  # type: ignore[arg-type]


def kind(name: str, specs: dict[str, str] = LOCAL) -> dict[str, str]:
    return {**specs, "numa_ext:interference_class": name}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., BalancedAgent]:
    return lambda **options: BalancedAgent(
        tmp_path, options.pop("topology", four_nodes()), **options
    )


def stall_rate(bench: BalancedAgent, server: Server, dwp: float) -> float:
    nodes = bench.nodes(server)
    weights = dwp_weights(WEIGHTS[frozenset(nodes)], nodes, dwp)
    return bench.measure(server, weights).stall_rate


@pytest.mark.parametrize("program", ["oc", "sc"])
def test_f_004_09_a_search_with_real_page_moves_ends_within_a_step_of_the_best(
    make: Callable[..., BalancedAgent], program: str
) -> None:
    """F-004-09, F-004-13: the search closes over what the pages really do; oc's best is inside the range, sc's at its
    end.
    """
    bench = make(programs={"a": program}, weights=WEIGHTS)
    server = bench.host.boot(floating("a", BWAP), {3: 512})
    bench.run(90)
    nodes = bench.nodes(server)
    found = bench.shares(server)
    best = min((step / 100 for step in range(101)), key=lambda d: stall_rate(bench, server, d))
    (worker,) = nodes
    dwp = (found[worker] - 0.4) / 0.6
    assert abs(dwp - best) <= STEP + 0.02
    assert bench.measure(server).stall_rate < 0.9 * stall_rate(bench, server, 0.0)
    assert any("dwp_found" in str(entry.reasons) for entry in bench.entries("decide", server))


def test_a_search_polls_fast_and_rests_when_it_has_ended(
    make: Callable[..., BalancedAgent],
) -> None:
    bench = make(programs={"a": "sc"}, weights=WEIGHTS)
    bench.host.boot(floating("a", BWAP))
    bench.run(90)
    assert max(bench.host.waits[5:50]) < 0.201
    assert max(bench.host.waits[-20:]) > 0.9


def taken_back(bench: BalancedAgent, server: Server) -> None:
    """Another mover brings all pages to node 3; 500 MiB, whose fifths are whole KiB."""
    bench.host.running[server.uuid].memory_kb = {3: 500 * 1024}


def test_pages_that_never_come_are_waited_for_a_while_only(
    make: Callable[..., BalancedAgent],
) -> None:
    """While a search waits the host is looked at five times a second; that must end."""
    bench = make(programs={"a": "sc"}, weights=WEIGHTS)
    server = bench.host.boot(floating("a", BWAP), {3: 512})
    bench.each_wait = lambda: taken_back(bench, server)
    bench.run(100)
    assert "search_given_up_stuck" in str(bench.entries("decide", server)[-1].reasons)
    looks = len(bench.rounds)
    bench.run(60)
    assert len(bench.rounds) - looks < 40


def test_a_search_rests_while_another_mover_forbids_to_spread(
    make: Callable[..., BalancedAgent],
) -> None:
    bench = make(programs={"a": "sc"}, weights=WEIGHTS)
    server = bench.host.boot(floating("a", BWAP), {3: 512})
    bench.each_wait = lambda: taken_back(bench, server)
    bench.run(8)
    assert bench.refiner._state.memory[server.uuid].moving
    bench.refused = "kernel.numa_balancing is on"
    bench.run(6)
    looks = len(bench.rounds)
    bench.run(30)
    assert len(bench.rounds) - looks < 20
    assert max(bench.host.waits[-20:]) > 0.9
    bench.refused, bench.each_wait = "", lambda: None
    bench.run(90)
    assert max(bench.shares(server).values()) > 0.95, "then it goes on"


def test_every_decision_is_told_once(make: Callable[..., BalancedAgent]) -> None:
    bench = make(programs={"a": "sc"}, weights=WEIGHTS)
    bench.host.boot(floating("a", BWAP))
    bench.host.boot(floating("b", kind("rabbit")))
    bench.run(90)
    before = len(bench.journal)
    bench.run(60)
    assert len(bench.journal) == before, "nothing has changed, so nothing is reported"


def test_a_killed_agent_goes_on_with_what_it_has_learnt(make: Callable[..., BalancedAgent]) -> None:
    """SIGKILL: no farewell; the next agent neither moves a page nor a thread, and searches no more."""
    bench = make(programs={"a": "oc"}, weights=WEIGHTS)
    server = bench.host.boot(floating("a", BWAP))
    bench.host.boot(floating("b", kind("rabbit")))
    bench.run(90)
    found, cpus = bench.shares(server), bench.cpus(server)
    writes = len(bench.host.writes)
    bench.start()
    bench.run(60)
    moves = [write for write in bench.host.writes[writes:] if write[0] in ("pin", "move")]
    assert moves == []
    assert (bench.shares(server), bench.cpus(server)) == (found, cpus)


@pytest.mark.parametrize("after_s", [1, 3, 7, 15, 22])
def test_killed_in_the_middle_of_a_search_it_converges_all_the_same(
    make: Callable[..., BalancedAgent], after_s: int
) -> None:
    bench = make(programs={"a": "sc"}, weights=WEIGHTS)
    server = bench.host.boot(floating("a", BWAP))
    bench.host.move_kb = 40 * 1024
    bench.run(after_s)
    bench.start()
    bench.run(120)
    assert max(bench.shares(server).values()) > 0.95


def test_f_001_10_expectations_and_the_matrix_come_back_after_a_restart(
    make: Callable[..., BalancedAgent],
) -> None:
    bench = make()
    server = bench.host.boot(floating("a", kind("rabbit")))
    bench.run(130)
    kept = json.loads((bench.folder / "balancing.json").read_text())
    expected = kept["mapping"]["expectations"][server.uuid]
    assert expected == pytest.approx(bench.measure(server).ipc, rel=0.05)
    bench.start()
    assert bench.refiner._state.mapper.expectations[server.uuid].value == expected


def test_a_broken_state_file_costs_nothing_but_learning_again(
    make: Callable[..., BalancedAgent], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    (bench.folder / "balancing.json").write_text('{"version": 1, "mapping": {"benefit": 3}}')
    bench.start()
    server = bench.host.boot(floating("a", LOCAL))
    bench.run(10)
    assert len(set(bench.cpus(server))) == 2
    assert caplog.text.count("balancing.json is not used") == 1


def test_f_001_08_an_arrival_without_a_good_slot_moves_one_small_server(
    make: Callable[..., BalancedAgent],
) -> None:
    """Two half-empty nodes and a server of two vCPUs: one neighbour goes, and its memory follows it."""
    bench = make()
    small = [bench.host.boot(floating(f"s{n}", LOCAL, vcpus=1)) for n in range(8)]
    bench.run(10)
    home_nodes = {n: [s for s in small if bench.nodes(s) == {n}] for n in range(4)}
    assert all(len(found) == 2 for found in home_nodes.values())
    for node in (0, 2):
        bench.host.delete(home_nodes[node][0])
    before = {s.uuid: bench.cpus(s) for n in range(4) for s in home_nodes[n][n in (0, 2) :]}
    late = bench.host.boot(floating("late", LOCAL), {1: 512})
    bench.run(20)
    assert len(bench.nodes(late)) == 1
    moved = [s for s in small if s.uuid in before and bench.cpus(s) != before[s.uuid]]
    assert len(moved) == 1
    for server in (late, *moved):
        assert set(bench.shares(server)) & bench.nodes(server)
        assert sum(bench.shares(server)[node] for node in bench.nodes(server)) > 0.98
    assert "reshuffled_for" in str(bench.entries("decide", moved[0])[-1].reasons)
    used = [cpu for s in (late, *small) if s.uuid in bench.host.running for cpu in bench.cpus(s)]
    assert len(used) == len(set(used)), "no core is shared"


def test_f_001_09_a_server_that_runs_worse_than_expected_is_helped(
    make: Callable[..., BalancedAgent],
) -> None:
    """A devil had to come beside a rabbit; when a node becomes free they are parted."""
    small_cache = tuple(L3Domain(n, n // 2, (n,), 1024) for n in range(4))
    options = Options(mapping=MappingOptions(settle_s=5, cooldown_s=5))
    bench = make(
        topology=four_nodes(l3_domains=small_cache),
        programs={"rabbit": "sunflow", "devil": "stream"},
        options=options,
    )
    rabbit = bench.host.boot(floating("rabbit", kind("rabbit"), vcpus=1))
    fillers = [bench.host.boot(floating(f"f{n}", LOCAL)) for n in range(3)]
    bench.run(40)
    quiet = bench.measure(rabbit).ipc
    devil = bench.host.boot(floating("devil", kind("devil"), vcpus=1))
    bench.run(20)
    assert bench.nodes(devil) == bench.nodes(rabbit), "there was no other place"
    assert bench.measure(rabbit).ipc < 0.9 * quiet
    bench.host.delete(fillers[1])
    bench.run(40)
    assert bench.nodes(devil) != bench.nodes(rabbit)
    assert bench.measure(rabbit).ipc > 0.95 * quiet
    moved = [s for s in (rabbit, devil) if "deviation" in str(bench.entries("decide", s)[-2:])]
    assert moved


def test_a_mix_of_classes_is_placed_without_a_forbidden_neighbour(
    make: Callable[..., BalancedAgent],
) -> None:
    """F-001-03, F-001-04: an LC, a devil, a rabbit and sheep on four L3 domains; no core is shared."""
    bench = make()
    lc = bench.host.boot(Server("lc", LC_SPECS, cpus=(3,), node=1))
    devil = bench.host.boot(floating("devil", kind("devil")))
    rabbit = bench.host.boot(floating("rabbit", kind("rabbit")))
    sheep = [bench.host.boot(floating(f"s{n}", LOCAL, vcpus=1)) for n in range(3)]
    bench.run(20)
    assert bench.nodes(devil).isdisjoint(bench.nodes(rabbit) | {1})
    assert 1 not in bench.nodes(rabbit)
    used = [3, *(cpu for server in (devil, rabbit, *sheep) for cpu in bench.cpus(server))]
    assert len(used) == len(set(used))
    assert bench.host.vcpu_cpus(lc) == ["3"]


def test_an_overfull_host_is_told_once_and_changes_nothing(
    make: Callable[..., BalancedAgent],
) -> None:
    """F-001-04: a clear event; the server floats on its home nodes and the others stay where they are."""
    bench = make()
    servers = [bench.host.boot(floating(f"s{n}", LOCAL)) for n in range(4)]
    bench.run(10)
    before = [bench.cpus(server) for server in servers]
    late = bench.host.boot(floating("late", LOCAL))
    bench.run(60)
    assert [bench.cpus(server) for server in servers] == before
    reported = [e for e in bench.entries("decide", late) if "host_full" in str(e.reasons)]
    assert len(reported) == 1
    assert "0 free CPUs" in str(reported[0].reasons)


def test_cores_that_went_offline_are_left(make: Callable[..., BalancedAgent]) -> None:
    bench = make()
    server = bench.host.boot(floating("a", LOCAL))
    bench.run(5)
    gone = bench.cpus(server)[0]
    topology = bench.host.topology
    bench.host.topology = replace(
        topology, cores=tuple(core for core in topology.cores if gone not in core.cpus)
    )
    bench.run(70)
    assert gone not in bench.cpus(server)
    assert len(bench.nodes(server)) == 1


def test_memory_that_a_balloon_took_and_gave_back_is_spread_again_bit_by_bit(
    make: Callable[..., BalancedAgent],
) -> None:
    """Pages that leave are no drift; those that are touched anew are on the vCPUs' node and move at a bounded rate."""
    bench = make()
    spread = {**BE_SPECS, "numa_ext:memory_policy": "uniform_all"}
    server = bench.host.boot(floating("a", spread))
    bench.run(10)
    assert max(bench.shares(server).values()) == 0.25
    guest = bench.host.running[server.uuid]
    guest.memory_kb = dict.fromkeys(range(4), 64 * 1024)
    moves = bench.host.writes.count(("move", server.uuid))
    bench.run(70)
    assert bench.host.writes.count(("move", server.uuid)) == moves
    (home,) = bench.nodes(server)
    guest.memory_kb = {**guest.memory_kb, home: 320 * 1024}
    bench.host.move_kb = 32 * 1024
    bench.run(70)
    assert max(bench.shares(server).values()) == 0.25
    assert bench.host.writes.count(("move", server.uuid)) == moves + 192 // 32


@pytest.mark.parametrize(("use_siblings", "nodes"), [(False, 2), (True, 1)])
def test_siblings_are_used_when_the_operator_wants_it(
    make: Callable[..., BalancedAgent], use_siblings: bool, nodes: int
) -> None:
    smt = four_nodes()
    cores = tuple(
        replace(core, cpus=(core.cpus[0], core.cpus[0] + 8), l3=core.node) for core in smt.cores
    )
    bench = make(topology=replace(smt, cores=cores), use_siblings=use_siblings)
    server = bench.host.boot(Server("a", LOCAL, vcpus=4, memory_mb=512, shared="0-15"))
    bench.run(5)
    assert len(bench.nodes(server)) == nodes
    assert len(set(bench.cpus(server))) == 4


@pytest.mark.parametrize(("policy", "spread"), [("uniform_all", False), ("local", True)])
def test_f_004_18_beside_another_mover_nothing_is_spread_and_local_memory_still_comes_home(
    make: Callable[..., BalancedAgent], policy: str, spread: bool
) -> None:
    bench = make(weights=WEIGHTS)
    bench.refused = "kernel.numa_balancing is on and would move spread pages back: set it to 0"
    specs = {**BE_SPECS, "numa_ext:memory_policy": policy}
    server = bench.host.boot(floating("a", specs), {3: 512})
    bench.run(10)
    moved = any(write[0] == "move" for write in bench.host.writes)
    assert moved is spread
    assert (
        "kernel.numa_balancing" in str(bench.entries("decide", server)[-1].reasons)
    ) is not spread
    bench.refused = ""
    bench.run(10)
    assert max(bench.shares(server).values()) == (1.0 if spread else 0.25)


def test_f_004_18_the_guard_reads_the_kernel(tmp_path: Path) -> None:
    sysctl = tmp_path / "sys/kernel/numa_balancing"
    guard = Guard(tmp_path, 60.0)
    assert guard() == "", "a kernel without it"
    sysctl.parent.mkdir(parents=True)
    sysctl.write_text("1\n")
    assert "kernel.numa_balancing" in guard()
    sysctl.write_text("2\n")
    assert guard() == "", "memory tiering only promotes pages of slow memory"


def process(proc: Path, pid: int, name: str) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "comm").write_text(f"{name}\n")


def test_a_numad_is_found_by_the_first_look_and_by_its_file(tmp_path: Path) -> None:
    now = 0.0
    file = tmp_path / "numad.pid"
    process(tmp_path, 77, "numad")
    guard = Guard(tmp_path, 60.0, lambda: now, file)
    assert "numad (process 77)" in guard()
    (tmp_path / "77/comm").write_text("bash\n")
    assert "numad (process 77)" in guard(), "it looks now and then only"
    now = 60.0
    assert guard() == "", "another process has its id"
    process(tmp_path, 78, "numad")
    file.write_text("78\n")
    assert guard() == ""
    now = 120.0
    assert guard() == "numad (process 78) would move spread pages back: stop it"
    file.unlink()
    now = 180.0
    assert "process 78" in guard(), "it runs still"
    (tmp_path / "78/comm").unlink()
    now = 240.0
    assert guard() == ""


def test_only_the_first_look_for_numad_passes_over_the_processes(tmp_path: Path) -> None:
    """Item 5: each [agent]resync_s all processes were listed, and opened, thousands on a large host."""
    now = 0.0
    file = tmp_path / "numad.pid"
    for pid in range(100, 200):
        process(tmp_path, pid, "bash")
    guard = Guard(tmp_path, 60.0, lambda: now, file)
    assert guard() == ""
    file.write_text("150\n")
    now = 60.0
    with opened() as found:
        assert guard() == ""
    paths = {each for each in found if "/" in each}  # a descriptor is wrapped, too
    assert paths == {str(tmp_path / "150/comm"), str(file), str(tmp_path / _SYSCTL)}


@pytest.mark.parametrize("content", ["", "x\n", "²"])
def test_a_file_of_numad_that_cannot_be_used_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    now = 0.0
    file = tmp_path / "numad.pid"
    file.write_text(content)
    guard = Guard(tmp_path, 60.0, lambda: now, file)
    for _look in range(3):
        assert guard() == ""
        now += 60.0
    assert caplog.text.count("numad is not looked for in") == 1


def test_a_proc_that_cannot_be_listed_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Guard(tmp_path / "absent", 60.0)() == ""
    assert caplog.text.count("numad is not looked for") == 1


@dataclass
class Scripted:
    """ServerCounters as given; servers are named by title."""

    readings: dict[str, ServerCounters] = field(default_factory=dict)

    def read(
        self, observation: Observation, now_s: float, only: Collection[str] | None = None
    ) -> Readings:
        found = {
            guest.uuid: self.readings[guest.workload.title]
            for guest in observation.guests
            if guest.workload.title in self.readings
        }
        return Readings(found, "script")


def test_without_counters_the_weights_hold_and_nothing_is_searched(
    make: Callable[..., BalancedAgent],
) -> None:
    bench = make(weights=WEIGHTS, counters=Scripted())
    server = bench.host.boot(floating("a", BWAP))
    bench.run(60)
    (node,) = bench.nodes(server)
    assert bench.shares(server)[node] == pytest.approx(0.4, abs=0.02)
    assert "no_counters" in str(bench.entries("decide", server)[-1].reasons)


def test_with_neither_calibration_nor_counters_memory_stays_near(
    make: Callable[..., BalancedAgent],
) -> None:
    """The default policy of best-effort servers, on a host that knows nothing: to spread would be a guess."""
    bench = make(counters=Scripted())
    server = bench.host.boot(floating("a", BWAP), {3: 512})
    asked = bench.host.boot(floating("b", {**BE_SPECS, "numa_ext:memory_policy": "bwap_uniform"}))
    bench.run(60)
    assert sum(bench.shares(server)[node] for node in bench.nodes(server)) == 1.0
    assert "neither calibration nor counters" in str(bench.entries("decide", server)[-1].reasons)
    assert max(bench.shares(asked).values()) == pytest.approx(0.25, abs=0.02), "it was asked for"
    writes = len(bench.host.writes)
    bench.start()
    bench.run(60)
    moves = [write for write in bench.host.writes[writes:] if write[0] == "move"]
    assert moves == [], "the next agent knows as little and moves as little"


def test_f_004_17_autonuma_leaves_the_pages_to_the_kernel_or_reports_that_it_does_not(
    make: Callable[..., BalancedAgent],
) -> None:
    bench = make(counters=Scripted())
    specs = {**BE_SPECS, "numa_ext:memory_policy": "autonuma"}
    server = bench.host.boot(floating("a", specs), {3: 512})
    bench.run(10)
    assert "kernel.numa_balancing is off" in str(bench.entries("decide", server)[-1].reasons)
    bench.kernel_balances = True
    bench.run(10)
    assert "memory_policy=autonuma" in str(bench.entries("decide", server)[-1].reasons)
    assert [write for write in bench.host.writes if write[0] == "move"] == []


def test_counters_that_go_silent_move_nobody(make: Callable[..., BalancedAgent]) -> None:
    """Blind: hold, then forget what was measured; an old bad figure is no reason to move a server."""
    script = Scripted(
        {"r": ServerCounters(ipc=1.0, mpi=0.001), "d": ServerCounters(ipc=1.0, mpi=0.02)}
    )
    bench = make(counters=script)
    rabbit = bench.host.boot(floating("r", kind("rabbit"), vcpus=1))
    fillers = [bench.host.boot(floating(f"f{n}", LOCAL)) for n in range(3)]
    bench.run(40)
    bench.host.boot(floating("d", kind("devil"), vcpus=1))
    bench.run(3)
    script.readings["r"] = ServerCounters(ipc=0.3, mpi=0.01)
    bench.run(2)
    script.readings.clear()
    bench.host.delete(fillers[0])
    writes = len(bench.host.writes)
    bench.run(100)
    assert [write for write in bench.host.writes[writes:] if write[0] == "pin"] == []
    expectation = bench.refiner._state.mapper.expectations[rabbit.uuid]
    assert (expectation.value, expectation.recent) == (1.0, ())


def test_without_mapping_servers_float_on_their_home_nodes_and_memory_is_still_searched(
    make: Callable[..., BalancedAgent],
) -> None:
    bench = make(
        programs={"a": "sc"},
        weights=WEIGHTS,
        options=Options(mapping=MappingOptions(enabled=False)),
    )
    server = bench.host.boot(floating("a", BWAP, vcpus=2))
    bench.run(90)
    assert bench.host.vcpu_cpus(server) == ["0-1", "0-1"]
    assert bench.shares(server)[0] > 0.95


def test_f_004_15_beside_a_latency_critical_server_its_stalls_guide_first(
    make: Callable[..., BalancedAgent],
) -> None:
    bench = make(programs={"a": "oc"}, weights=WEIGHTS)
    bench.host.boot(Server("lc", LC_SPECS, cpus=(5,), node=2))
    server = bench.host.boot(floating("a", BWAP))
    bench.run(150)
    search = bench.refiner._state.memory[server.uuid].search
    assert search is not None
    assert search.co_scheduled
    assert search.phase is bwap.BwapPhase.FOUND
    assert any("lower_bound" in str(entry.reasons) for entry in bench.entries("decide", server))


def test_a_failing_sensor_leaves_the_simple_rule_in_force(
    make: Callable[..., BalancedAgent], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def read(
            self, observation: Observation, now_s: float, only: Collection[str] | None = None
        ) -> Readings:
            raise RuntimeError("no figures")

    bench = make(counters=Broken())
    server = bench.host.boot(floating("a", LOCAL), {3: 512})
    with caplog.at_level(logging.INFO):
        bench.run(10)
    assert len(set(bench.cpus(server))) == 2
    assert caplog.text.count("balancing fails (turn)") == 1


def test_what_is_seen_and_wanted_is_shown_as_metrics(make: Callable[..., BalancedAgent]) -> None:
    """F-001-10: the learnt benefit matrix can be inspected."""
    bench = make(programs={"a": "sc"}, weights=WEIGHTS)
    server = bench.host.boot(floating("a", BWAP))
    bench.run(60)
    shown = {name: value for name, labels, value in bench.refiner.samples() if labels[1] == "a"}
    learnt = {labels: v for name, labels, v in bench.refiner.samples() if "benefit" in name}
    assert learnt["node", "devil"] == bench.refiner._state.mapper.benefit["node"]["devil"]
    assert len(learnt) == 9
    exact = bench.measure(server)
    assert shown["numa_ext_server_ipc"] == pytest.approx(exact.ipc, rel=0.15)
    assert shown["numa_ext_server_stall_rate"] == pytest.approx(exact.stall_rate, rel=0.15)
    assert shown["numa_ext_server_dwp"] == 1.0
    assert {"numa_ext_server_mpi", "numa_ext_server_deviation"} <= set(shown)
    assert set(shown) <= set(METRICS)
