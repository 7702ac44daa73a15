# SPDX-License-Identifier: Apache-2.0
"""``python -m nova_numa_ext.simulator``."""

import csv
import io
import json
from pathlib import Path

import pytest

from nova_numa_ext.simulator.cli import ProgressBar, main


def test_a_run_prints_a_table_and_writes_json_and_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--fleet", "minsky:1,dgx1:1", "--jobs", "12", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[0] == "strategy"
    assert [line.split()[0] for line in printed[1:]] == ["fcfs", "bf", "topo", "topo_p"]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["label"] == "modelled"
    assert results["source"]["fleet"] == "minsky:1,dgx1:1"
    assert set(results["strategies"]) == {"fcfs", "bf", "topo", "topo_p"}
    rows = list(csv.DictReader((tmp_path / "jobs.csv").open()))
    assert len(rows) == 4 * 12
    assert float(rows[0]["slowdown"]) >= 1


def test_plots_are_drawn_where_matplotlib_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["--jobs", "6", "--fleet", "minsky:1", "--strategies", "topo_p"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    for name in ("timeline.png", "slowdowns.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_written_trace_runs_again_with_measured_profiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, profiles = tmp_path / "trace.csv", tmp_path / "profiles.yaml"
    trace.write_text("arrival_s,type,gpus,comm,solo_s\n0,mine,2,4,\n0,mine,2,4,\n")
    profiles.write_text("mine:\n  pack_s: [10, 10, 10, 10, 10]\n  spread_s: [20, 20, 20, 20, 20]\n")
    arguments = ["--trace", str(trace), "--profiles", str(profiles), "--fleet", "minsky:1"]
    assert main([*arguments, "--strategies", "topo,spread"]) == 0
    makespans = [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]]
    assert makespans == ["10", "20"]


def test_f_000_08_a_trace_runs_jobs_of_several_machines(tmp_path: Path) -> None:
    """F-000-08: two graphs on two machines, and a job of six GPUs that may span machines of four."""
    trace, out = tmp_path / "trace.csv", tmp_path / "out"
    trace.write_text(
        "arrival_s,type,gpus,comm,solo_s,single_node\n"
        "0,alexnet-tiny,2+2,4,10,\n"
        "50,alexnet-tiny,6,4,10,no\n"
    )
    arguments = ["--trace", str(trace), "--fleet", "minsky:2", "--strategies", "topo"]
    assert main([*arguments, "--output", str(out)]) == 0
    rows = list(csv.DictReader((out / "jobs.csv").open()))
    assert rows[0]["places"] == "0:0+1 1:0+1"
    assert rows[1]["places"].startswith("0:") and " 1:" in rows[1]["places"]


@pytest.mark.parametrize(
    ("weights", "places"), [("1,0,0", "0:2+3"), ("0,1,0", "0:2+3"), ("0,0,1", "0:1+2")]
)
def test_f_000_10_weights_are_communication_interference_and_fragmentation(
    tmp_path: Path, weights: str, places: str
) -> None:
    """F-000-10: a job of one GPU runs on GPU 0; fragmentation alone mends that socket, the others leave it."""
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "arrival_s,type,gpus,comm,solo_s\n0,alexnet-tiny,1,4,10\n1,alexnet-tiny,2,4,10\n"
    )
    arguments = ["--trace", str(trace), "--fleet", "minsky:1", "--strategies", "topo"]
    assert main([*arguments, "--utility-weights", weights, "--output", str(tmp_path)]) == 0
    assert [row["places"] for row in csv.DictReader((tmp_path / "jobs.csv").open())][1] == places


def test_f_000_10_interference_alone_keeps_jobs_apart(tmp_path: Path) -> None:
    """F-000-10: with fragmentation alone two jobs of one GPU share a socket, with interference alone they do not."""
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "arrival_s,type,gpus,comm,solo_s\n0,alexnet-tiny,1,4,10\n1,alexnet-tiny,1,4,10\n"
    )
    arguments = ["--trace", str(trace), "--fleet", "minsky:1", "--strategies", "topo"]
    for weights, places in (("0,1,0", "0:2"), ("0,0,1", "0:1")):
        assert main([*arguments, "--utility-weights", weights, "--output", str(tmp_path)]) == 0
        rows = list(csv.DictReader((tmp_path / "jobs.csv").open()))
        assert rows[1]["places"] == places


def test_f_000_09_jobs_wait_for_memory_bandwidth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "arrival_s,type,gpus,comm,solo_s,bandwidth_mbps\n"
        "0,alexnet-tiny,1,0,10,60000\n"
        "0,alexnet-tiny,1,0,10,60000\n"
    )
    arguments = ["--trace", str(trace), "--fleet", "minsky:1", "--strategies", "topo,fcfs"]
    assert main([*arguments, "--bandwidth-mbps", "100000"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]] == ["20", "20"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--fleet", "vax:1"], "machine: 'vax' is not allowed; allowed: minsky, dgx1"),
        (["--strategies", "best"], "strategy: 'best'"),
        (["--utility-weights", "1,1"], "three numbers with sum 1"),
        (["--utility-weights", "1,1,1"], "three numbers >= 0 with sum 1"),
        (["--utility-weights", "nan,0,1"], "three numbers >= 0 with sum 1"),
        (["--jobs", "0"], "--jobs: 0 is not allowed; allowed: a number >= 1"),
        (["--rate-per-min", "0"], "--rate-per-min: 0.0 is not allowed; allowed: a number > 0"),
        (["--rate-per-min", "nan"], "--rate-per-min: nan"),
        (["--bandwidth-mbps", "-1"], "--bandwidth-mbps: -1"),
        (["--trace", "/nonexistent.csv"], "No such file"),
        (["--profiles", "/nonexistent.yaml"], "--profiles: '/nonexistent.yaml'"),
        (["--trace", __file__, "--profiles", "/nonexistent.yaml"], "readable YAML or JSON file"),
        (["--output", "/proc/nowhere"], "output: '/proc/nowhere' is not allowed"),
        (["--write-trace", "/proc/nowhere"], "output: '/proc/nowhere' is not allowed"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert (told.err.count("\n"), told.out) == (1, "")


class Terminal(io.StringIO):
    """A file that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_with_the_time_left() -> None:
    terminal = Terminal()
    times = iter([0.0, 10.0, 10.01, 20.0])
    bar = ProgressBar(terminal, lambda: next(times))
    bar("topo", 1, 4)
    bar("topo", 2, 4)
    bar("topo", 4, 4)
    drawn = terminal.getvalue()
    assert drawn.count("\r") == 2  # the second came too soon
    assert "4/4" in drawn and drawn.endswith("\n")


def test_progress_is_silent_in_a_file() -> None:
    file = io.StringIO()
    ProgressBar(file)("topo", 1, 1)
    assert file.getvalue() == ""


@pytest.mark.parametrize(
    ("data", "reason"), [(None, "No such file or directory"), (b"\xff\xfe", "invalid start byte")]
)
def test_a_trace_that_cannot_be_read_is_told_without_error_numbers(
    data: bytes | None, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    if data is not None:
        trace.write_bytes(data)
    assert main(["--trace", str(trace), "--fleet", "minsky:1"]) != 0
    said = capsys.readouterr().err
    assert f"allowed: a CSV file ({reason})" in said
    assert "Errno" not in said
