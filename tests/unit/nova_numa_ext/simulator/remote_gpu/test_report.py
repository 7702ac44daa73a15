# SPDX-License-Identifier: Apache-2.0
"""``openstack numa simulate remote``, without a cloud: tables, files, and what is refused."""

import argparse
import csv
import json
from pathlib import Path

import pytest

from nova_numa_ext.flow.solvers import installed_solver
from nova_numa_ext.simulator.remote_gpu.plots import steps
from nova_numa_ext.simulator.remote_gpu.report import (
    SETTINGS,
    RemoteReplay,
    add_arguments,
    replays,
    table,
)
from placement_traits.errors import InvalidValueError

SMALL = ("--jobs", "12", "--run-time", "30")


def ran(*words: str) -> list[RemoteReplay]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return replays(parser.parse_args(words), installed_solver(), lambda *_state: None)


def test_each_setting_is_a_row_over_the_same_jobs() -> None:
    found = ran(*SMALL)
    columns, rows = table(found)
    assert columns[:3] == ("setting", "jobs", "makespan_s")
    assert [row[:2] for row in rows] == [(name, 12) for name in SETTINGS]
    assert all(len(row) == len(columns) for row in rows)
    local, remote, _aware = (
        {one.submission.work.uuid: one.submission.run_s for one in each.found.records}
        for each in found
    )
    assert local == remote
    used = [each.figures()["jobs_with_remote_gpus"] for each in found]
    assert used[0] == 0 < used[1]
    assert found[1].figures()["waiting_mean_s"] < found[0].figures()["waiting_mean_s"]
    assert all(0 < each.figures()["gpu_use"] <= 1 for each in found)


def test_files_say_what_was_simulated(tmp_path: Path) -> None:
    words = (*SMALL, "--settings", "remote", "--busy-networks", "--output", str(tmp_path))
    (found,) = ran(*words)
    document = json.loads((tmp_path / "results.json").read_text())
    assert (document["label"], document["source"]["busy_networks"]) == ("modelled", True)
    assert document["settings"]["remote"] == pytest.approx(found.figures())
    with (tmp_path / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert all(float(row["slowdown"]) >= 1.0 for row in rows if int(row["remote_gpus"]))
    assert all(float(row["waited_s"]) >= 0 for row in rows)


def test_a_plot_is_drawn_where_matplotlib_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ran(*SMALL, "--settings", "remote", "--output", str(tmp_path))
    assert (tmp_path / "jobs.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_there_at_a_time_is_counted() -> None:
    assert steps([(1.0, 3.0, 2), (2.0, 3.0, 1)]) == ([0.0, 1.0, 2.0, 3.0], [0, 2, 3, 0])


def test_progress_is_of_each_setting() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([*SMALL, "--settings", "remote,local,remote"])
    seen: list[tuple[str, int, int]] = []

    def progress(setting: str, ended: int, jobs: int) -> None:
        seen.append((setting, ended, jobs))

    replays(args, installed_solver(), progress)
    assert seen == [(name, ended, 12) for name in ("remote", "local") for ended in range(1, 13)]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--machines", "0"), "1 to 1000"),
        (("--machines", "6"), "a multiple of 4"),
        (("--jobs", "0"), "1 to 10000"),
        (("--cores", "5"), "1 to 4"),
        (("--run-time", "nan"), "more than 0 s"),
        (("--settings", "far"), "local, remote, remote_aware"),
        (("--output", "/dev/null/here"), "can be written to"),
    ],
)
def test_what_is_not_allowed_is_said(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        ran(*words)
