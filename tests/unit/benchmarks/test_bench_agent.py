# SPDX-License-Identifier: Apache-2.0
"""The host that bench-agent builds is the one it names, and its figures are those of the rounds."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import agent_world, bench_agent, stand_in
from benchmarks.agent_counters import ShownCounters
from benchmarks.agent_helper import KERNEL_THREADS, process_time
from benchmarks.agent_process import searched
from host_agent.conf.agent import AgentOptions
from host_agent.conf.bwap import BwapOptions
from host_agent.control import balancing_store
from host_agent.decide.balancing import BalancingState
from host_agent.decide.pages.bwap import (
    BwapPhase,
    BwapSearch,
    StallMeasurement,
    memory_intensive,
)
from host_agent.decide.pages.shares import Memory
from host_agent.machine.privileged.kernel_threads import KernelThreads
from host_agent.machine.privileged.pmu import PerfEvent
from host_agent.model.workload import Activity, parse
from host_agent.observe.topology.capture import restore
from host_agent.observe.topology.sysfs import read_topology
from placement_traits import presets
from placement_traits.names import Tier

TOPOLOGY = presets.load(agent_world.PRESET).topology
PACE = AgentOptions(interval_s=2.0, resync_s=60.0)


def test_discovery_reads_the_machine_back_from_its_files(tmp_path: Path) -> None:
    restore(agent_world.sysfs(TOPOLOGY), tmp_path)
    read = read_topology(tmp_path)
    assert read.cores == TOPOLOGY.cores
    assert read.distances == TOPOLOGY.distances
    assert [(d.id, d.nodes) for d in read.l3_domains] == [
        (d.id, d.nodes) for d in TOPOLOGY.l3_domains
    ]
    assert [(n.id, n.memory_mb) for n in read.nodes] == [
        (n.id, n.memory_mb) for n in TOPOLOGY.nodes
    ]


@pytest.mark.parametrize(("count", "critical"), [(6, 2), (100, 10)])
def test_servers_are_a_mix_that_nova_could_have_placed(count: int, critical: int) -> None:
    made = agent_world.servers(TOPOLOGY, count, "idle")
    workloads = [parse(server.xml, Activity.RUNNING) for server in made]
    tiers = [workload.tier for workload in workloads]
    assert (tiers.count(Tier.LC), tiers.count(Tier.BE)) == (critical, count - critical)
    assert all(workload.request is not None for workload in workloads)
    pinned = [cpu for server in made for cpu in server.cpus]
    assert len(set(pinned)) == len(pinned), "a dedicated CPU is given away twice"
    _, shared = agent_world.split_cores(TOPOLOGY)
    assert not set(shared) & set(pinned)


def test_a_quantile_goes_by_weight() -> None:
    assert bench_agent.quantile([(1.0, 98.0), (7.0, 2.0)], 0.99) == 7.0
    assert bench_agent.quantile([(1.0, 99.0), (7.0, 1.0)], 0.99) == 1.0


def test_a_full_round_comes_once_in_thirty() -> None:
    kinds = {"full": {"cpu_ms": [50.0, 70.0]}, "sampled": {"cpu_ms": [5.0] * 100}}
    assert bench_agent.loop_p99(kinds, "cpu_ms", PACE) == 70.0
    assert bench_agent.loop_p99(kinds, "cpu_ms", AgentOptions(interval_s=0.2, resync_s=60.0)) == 5.0


def test_figures_carry_the_number_of_servers_and_the_mode() -> None:
    kinds = {
        kind: {"cpu_ms": [1.0, 2.0, 3.0], "wall_ms": [2.0, 3.0, 4.0]} for kind in bench_agent.ROUNDS
    }
    measured = {
        "kinds": kinds,
        "cpu_percent_agent": 1.0,
        "cpu_percent_helper": 0.5,
        "rss_peak_mb_agent": 70.0,
        "rss_peak_mb_helper": 30.0,
        "model_cpu_percent": 0.3,
        "wait_cpu_percent": 0.02,
        "opens_per_round_agent": 100.0,
        "opens_per_round_helper": 800.0,
        "searched": 16,
    }
    idle = bench_agent.figures_of(measured, "idle", 6)
    assert idle["cpu_percent_6"] == 1.5
    assert idle["sampled_cpu_ms_6"] == 2.0
    search = bench_agent.figures_of(measured, "search", 100)
    assert (search["rss_mb_search_100"], search["searched_search_100"]) == (100.0, 16)
    assert "searched_6" not in idle
    old = bench_agent.figures_of(measured, "old_kernel", 100)
    assert old["cpu_percent_100_old_kernel"] == 1.5
    assert idle["opens_per_round_6"] == 900.0
    assert (idle["cpu_percent_agent_6"], idle["cpu_percent_helper_6"]) == (1.0, 0.5)


def test_a_pass_over_the_processes_of_a_host_misses_the_goal_of_opens() -> None:
    """A round opens a file for each thread, some for each server."""
    goal = bench_agent.GOALS["opens_per_round_100"]
    assert goal == 500 + 500 + 10
    server = agent_world.servers(TOPOLOGY, 100, "idle")[0]
    assert 1 + server.vcpus + len(stand_in.OTHERS) == bench_agent.THREADS
    assert goal < agent_world._OTHER_PROCESSES


@pytest.mark.parametrize(("mode", "proves"), [("idle", True), ("search", False)])
def test_searches_that_ended_before_they_began_prove_nothing(
    monkeypatch: pytest.MonkeyPatch, mode: str, proves: bool
) -> None:
    said = json.dumps({"managed": 6, "problems": [], "searched": 0})
    done = subprocess.CompletedProcess[str]([], 0, stdout=said)
    monkeypatch.setattr(subprocess, "run", lambda *_command, **_options: done)
    with nullcontext() if proves else pytest.raises(RuntimeError, match="was searched"):
        bench_agent.measure(6, mode, 1.0)


def test_only_searches_that_measure_or_go_on_are_counted(tmp_path: Path) -> None:
    state = tmp_path / "balancing.json"
    assert searched(state) == 0
    begun = BwapSearch({0: 0.5, 1: 0.5}, frozenset({0}), started=True, phase_mapi=0.01)
    measured = StallMeasurement(0.0, 1e9, 0.0)
    searches = {
        "goes on": replace(begun, phase=BwapPhase.MEASURING),
        "has measured": replace(begun, phase=BwapPhase.FOUND, best=measured),
        "had nothing to measure": replace(begun, phase=BwapPhase.FOUND, dwp=1.0),
    }
    memory = {uuid: Memory(search=search) for uuid, search in searches.items()}
    balancing_store.store(state).save(BalancingState(memory=memory))
    assert searched(state) == 2


def test_counters_are_opened_and_read_and_show_a_program_that_gains_from_each_step() -> None:
    together, now_s = [0.125], [0.0]
    kernel = ShownCounters(lambda _tid: together[0], clock=lambda: now_s[0])
    leader = kernel.open(PerfEvent(0, 0), os.getpid(), -1, guest_only=True)
    others = [kernel.open(PerfEvent(0, 1), os.getpid(), leader, guest_only=True) for _ in "123"]
    rates: list[float] = []
    before = kernel.read(leader, 4)
    for part in (0.125, 0.2, 0.3, 1.0):
        together[0] = part
        now_s[0] += 4.0
        now = kernel.read(leader, 4)
        elapsed, running, cycles, instructions, misses, stalls = (
            new - old for new, old in zip(now, before, strict=True)
        )
        before = now
        assert elapsed == running == 4 * 10**9
        assert misses / instructions == pytest.approx(0.02)
        assert memory_intensive(misses / instructions, BwapOptions())
        assert stalls < cycles
        rates.append(stalls)
    assert rates == sorted(rates, reverse=True)
    for descriptor in (*others, leader):
        kernel.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(leader)


def test_an_old_kernel_shows_two_workers_of_each_server(tmp_path: Path) -> None:
    agent_world.write_kernel_threads([100, 101], [7, 8, 9, 10], tmp_path)
    found = KernelThreads(tmp_path / KERNEL_THREADS)
    assert [found.of(100), found.of(101), found.of(102)] == [(7, 8), (9, 10), ()]


def test_the_processor_time_of_another_process_is_the_kernels() -> None:
    script = "import sys\nfor n in range(10**6): pass\nprint(0, flush=True)\nsys.stdin.read()"
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        ticks = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        read = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        assert process_time(other.pid) == pytest.approx(read, abs=0.05)
