# SPDX-License-Identifier: Apache-2.0
"""Measured bandwidths: which sets are measured, what the file holds, and the timing on this very machine."""

import json
import logging
import re
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from emulation.hosts import four_nodes
from emulation.physics.machines import grid
from emulation.physics.published import CANONICAL_A, CANONICAL_B
from host_agent.cmd import ctl
from host_agent.conf import configuration
from host_agent.console import calibrate as calibration_run
from host_agent.control import calibration_store
from host_agent.control.calibration import calibrate, default_megabytes
from host_agent.control.calibration_store import CalibrationFile
from host_agent.decide.cores.choose import exact_slots
from host_agent.decide.cores.slots import CoreLayout, MappedServer, Occupancy, between_nodes
from host_agent.model.traffic import NodeBandwidth
from host_agent.observe.calibration.timing import TimingProfiler, TimingSettings
from host_agent.observe.topology.sysfs import read_topology
from placement_traits.errors import CapabilityMissingError
from placement_traits.presets import load
from placement_traits.topology import HostTopology

NOW = datetime(2026, 11, 21, tzinfo=UTC)
OPTERON = load("opteron-6272-8-nodes").topology
CLUSTER_ON_DIE = load("xeon-e5-2660v4-cod").topology


@dataclass
class Counting:
    """A profiler that reads published traffic counters instead of a machine."""

    published: dict[tuple[int, ...], tuple[float, ...]]
    method = "published figures"
    asked: list[tuple[frozenset[int], tuple[int, ...]]] = field(default_factory=list)

    def profile(self, workers: Collection[int], nodes: Collection[int]) -> NodeBandwidth:
        self.asked.append((frozenset(workers), tuple(nodes)))
        row = self.published.get(tuple(sorted(workers)), (1.0,) * 16)
        return {node: dict.fromkeys(workers, 100.0 * row[node]) for node in nodes}


@pytest.mark.parametrize(
    ("topology", "tables"), [(OPTERON, CANONICAL_A), (CLUSTER_ON_DIE, CANONICAL_B)]
)
def test_f_004_05_published_counters_give_the_published_weights(
    topology: HostTopology, tables: dict[tuple[int, ...], tuple[float, ...]]
) -> None:
    """F-004-05, replayed: the rows of Tables 4.2 and 4.3 within 0.1 percentage points, for every set measured."""
    profiler = Counting(tables)
    weights = calibrate(topology, profiler, now=NOW).weights()
    measured = {workers for workers, _ in profiler.asked}
    rows = {frozenset(w): row for w, row in tables.items() if frozenset(w) in measured}
    assert rows
    for workers, row in rows.items():
        for node, percent in enumerate(row):
            assert 100 * weights[workers][node] == pytest.approx(percent, abs=0.1)
    assert all(sum(one.values()) == pytest.approx(1.0) for one in weights.values())


def test_f_004_06_symmetric_sets_are_measured_once_and_irrational_ones_never() -> None:
    profiler = Counting({})
    found = calibrate(four_nodes(), profiler, now=NOW)
    spread = [workers for workers, nodes in profiler.asked if len(nodes) == 4]
    assert spread == [frozenset({0}), frozenset({0, 1}), frozenset({0, 1, 2}), frozenset(range(4))]
    weights = found.weights()
    assert {frozenset({n}) for n in range(4)} <= set(weights), "the others have theirs by symmetry"
    assert frozenset({2, 3}) in weights
    assert frozenset({0, 3}) not in weights, "nobody is ever put on two far nodes"


@dataclass
class Uneven:
    """A profiler of a machine whose widest path is 0 to 2, of which its firmware knows nothing."""

    method = "made-up figures"
    asked: list[frozenset[int]] = field(default_factory=list)

    def profile(self, workers: Collection[int], nodes: Collection[int]) -> NodeBandwidth:
        self.asked.append(frozenset(workers))
        return {n: {w: self._mbps(n, w) for w in workers} for n in nodes}

    def _mbps(self, node: int, worker: int) -> float:
        if node == worker:
            return 20_000.0
        return 9_000.0 if {node, worker} == {0, 2} else 4_000.0


def test_f_004_06_measured_bandwidth_says_which_worker_sets_guests_are_put_on() -> None:
    topology = grid(1, 4, 2, memory_mb_per_node=8192)
    profiler = Uneven()
    found = calibrate(topology, profiler, now=NOW)
    assert frozenset({0, 2}) in found.weights(), "a guest will be there, so it needs weights"

    def nodes_of_a_guest(host: HostTopology) -> tuple[int, ...]:
        layout = CoreLayout(host)
        server = MappedServer("guest", 4, 512)
        (_, slot), *_ = exact_slots(Occupancy(layout, {"guest": server}, {}), server)
        return layout.nodes(slot)

    assert nodes_of_a_guest(topology) == (0, 1), "by distance all are alike"
    measured = replace(topology, read_bandwidth_mbps=found.read_bandwidth_mbps())
    assert nodes_of_a_guest(measured) == (0, 2)


def test_noise_between_measurements_of_equal_paths_decides_nothing() -> None:
    even = [[20_000 if a == b else 9_000 for b in range(4)] for a in range(4)]
    noisy = [[mbps + 7 * a - 5 * b for b, mbps in enumerate(row)] for a, row in enumerate(even)]
    far = [
        between_nodes(replace(four_nodes(), read_bandwidth_mbps=tuple(map(tuple, matrix))))
        for matrix in (even, noisy)
    ]
    assert [far[0](a, b) for a in range(4) for b in range(4)] == [
        far[1](a, b) for a in range(4) for b in range(4)
    ]


def test_a_node_is_as_near_to_itself_as_any_other_to_itself() -> None:
    uneven = tuple(
        tuple(20_000 - 3_000 * a if a == b else 5_000 for b in range(4)) for a in range(4)
    )
    far = between_nodes(replace(four_nodes(), read_bandwidth_mbps=uneven))
    assert {far(node, node) for node in range(4)} == {0}
    assert all(far(a, b) > 0 for a in range(4) for b in range(4) if a != b)


def test_the_running_agent_sees_the_measured_bandwidths(tmp_path: Path) -> None:
    file = CalibrationFile(tmp_path / "c.json")
    assert file.read_bandwidth_mbps(four_nodes()) is None
    calibration_store.store(tmp_path / "c.json").save(calibrate(four_nodes(), Uneven(), now=NOW))
    matrix = file.read_bandwidth_mbps(four_nodes())
    assert matrix is not None
    assert matrix[0] == (20_000, 4_000, 9_000, 4_000)


def test_nodes_without_cpus_serve_memory_and_do_not_work() -> None:
    whole = four_nodes(rdt=None)
    topology = replace(
        whole,
        cores=tuple(core for core in whole.cores if core.node != 0),
        l3_domains=whole.l3_domains[1:],
    )
    profiler = Counting({})
    found = calibrate(topology, profiler, now=NOW)
    assert all(0 not in workers for workers, _ in profiler.asked)
    assert set(found.pairs[0]) == {1, 2, 3}
    assert set(found.local_bandwidth_mbps()) == {1, 2, 3}
    assert found.read_bandwidth_mbps() is None, "what node 0 would read is unknown"
    assert {frozenset({n}) for n in (1, 2, 3)} <= set(found.weights())


def test_the_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    found = calibrate(four_nodes(), Counting({(0,): (4.0, 2.0, 2.0, 2.0)}), now=NOW)
    calibration_store.store(tmp_path / "c.json").save(found)
    assert calibration_store.store(tmp_path / "c.json").read() == found
    file = CalibrationFile(tmp_path / "c.json")
    assert file.weights(four_nodes())[frozenset({0})] == pytest.approx(
        {0: 0.4, 1: 0.2, 2: 0.2, 3: 0.2}
    )
    assert file.weights(four_nodes())[frozenset({3})][3] == pytest.approx(0.4)
    assert file.local_bandwidth_mbps(four_nodes()) == {0: 400, 1: 100, 2: 100, 3: 100}


def test_a_new_calibration_is_read_while_the_agent_runs(tmp_path: Path) -> None:
    file = CalibrationFile(tmp_path / "c.json")
    assert file.weights(four_nodes()) == {}
    calibration_store.store(tmp_path / "c.json").save(
        calibrate(four_nodes(), Counting({}), now=NOW)
    )
    assert file.weights(four_nodes())
    (tmp_path / "c.json").unlink()
    assert file.weights(four_nodes()) == {}


ONE_NODE = '{"version": 1, "distances": {"0": {"0": 10}}'
NO_ROW = '{"version": 1, "distances": {"0": {}}'
PAIRS = '"pairs": {"0": {"0": 1000.0}}'
MEASURED = '"measured": "today"'
ALONE = '"workers": [0]'
NO_COLUMN = '"bandwidth": {"0": {}}'
ENDLESS = '"bandwidth": {"0": {"0": Infinity}}'
NOTHING = '"bandwidth": {"0": {"0": 0.0}}'


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("{", "a JSON text"),
        ('{"version": 7}', "version: 7"),
        (f'{ONE_NODE}, {PAIRS}, {MEASURED}, "sets": [3]}}', "sets[0]"),
        (f'{ONE_NODE}, {PAIRS}, {MEASURED}, "sets": [{{{ALONE}, {NO_COLUMN}}}]}}', "bandwidth.0"),
        (f'{ONE_NODE}, {PAIRS}, {MEASURED}, "sets": [{{{ALONE}, {ENDLESS}}}]}}', "finite"),
        (f'{ONE_NODE}, {PAIRS}, {MEASURED}, "sets": [{{{ALONE}, {NOTHING}}}]}}', "positive"),
        (f'{NO_ROW}, {PAIRS}, {MEASURED}, "sets": []}}', "distances.0"),
        ('{"version": 1, "x": ' + "[" * 100_000, "depth"),
    ],
)
def test_a_file_that_is_none_is_told_once_and_not_used(
    tmp_path: Path, text: str, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "c.json").write_text(text)
    file = CalibrationFile(tmp_path / "c.json")
    for _round in range(3):
        assert file.weights(four_nodes()) == {}
    assert len(caplog.records) == 1
    assert warning in caplog.text


def test_another_machines_file_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calibration_store.store(tmp_path / "c.json").save(
        calibrate(four_nodes(), Counting({}), now=NOW)
    )
    with caplog.at_level(logging.WARNING):
        assert CalibrationFile(tmp_path / "c.json").weights(OPTERON) == {}
    assert "other nodes" in caplog.text


def test_the_traversal_is_larger_than_the_caches() -> None:
    assert default_megabytes(four_nodes()) == 256
    large = four_nodes()
    caches = tuple(replace(domain, size_kb=262_144) for domain in large.l3_domains)
    assert default_megabytes(replace(large, l3_domains=caches)) == 1024


def test_f_004_05_timing_runs_to_completion_on_this_machine() -> None:
    topology = read_topology(Path("/sys"))
    cpus = {node: topology.cpus_of_node(node) for node in topology.node_ids}
    profiler = TimingProfiler(cpus, TimingSettings(16, 0.05, cpus_per_node=2, batch_lines=4096))
    found = calibrate(topology, profiler, now=NOW)
    assert all(mbps > 1 for row in found.pairs.values() for mbps in row.values())
    assert all(sum(one.values()) == pytest.approx(1.0) for one in found.weights().values())


def test_a_node_that_does_not_exist_is_named() -> None:
    profiler = TimingProfiler({0: (0,)}, TimingSettings(16, 0.05))
    with pytest.raises(CapabilityMissingError, match="node 900"):
        profiler.profile([0], [900])


def conf(folder: Path) -> Path:
    file = folder / "agent.conf"
    file.write_text(f"[agent]\nstate_dir = {folder}\n[placement]\nenabled = false\n")
    return file


def test_the_command_measures_keeps_and_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--force", "--megabytes=16", "--seconds=0.1", "--cpus-per-node=1", "-f", "json"]
    given = [f"--config-file={conf(tmp_path)}", "calibrate", *quick]
    assert ctl.main([*given, "--dry-run"]) == 0
    assert not (tmp_path / "calibration.json").exists()
    capsys.readouterr()
    assert ctl.main(given) == 0
    shown = capsys.readouterr()
    (first, *_) = json.loads(shown.out)
    assert sum(first["weights"].values()) == pytest.approx(1.0, abs=0.001)
    assert re.match(r"by timing: .*\n\[pair 1/", shown.err)
    assert shown.err.endswith("by timing\n")
    topology = read_topology(Path("/sys"))
    assert CalibrationFile(tmp_path / "calibration.json").weights(topology)


def test_too_much_memory_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    loaded = configuration.load([f"--config-file={conf(tmp_path)}"])
    with pytest.raises(CapabilityMissingError, match=r"node 0 has \d+ MiB free; 99999999 are"):
        calibration_run.run(
            loaded,
            as_owner=nullcontext,
            settings=TimingSettings(99_999_999),
            keep=False,
            progress=lambda _line: None,
            force=True,
        )


def test_beside_running_servers_nothing_is_measured_unless_the_operator_insists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The readers run on all CPUs, those that latency-critical servers own, too."""
    running = SimpleNamespace(domains=lambda: ("a", "b"), close=lambda: None)
    monkeypatch.setattr(calibration_run, "LibvirtSource", lambda _uri, _timeout_s: running)
    measured: list[object] = []
    monkeypatch.setattr(calibration_run, "calibrate", lambda *given, **_: measured.append(given))
    assert ctl.main([f"--config-file={conf(tmp_path)}", "calibrate"]) == 1
    assert capsys.readouterr().err.startswith(
        "The measurement shares the CPUs and memory bandwidth of this host with 2 servers: "
    )
    assert measured == []
