# SPDX-License-Identifier: Apache-2.0
"""``openstack numa simulate remote --rebalance``, without a cloud: tables, files, and what is refused."""

import argparse
import csv
import json
from pathlib import Path

import pytest

from nova_numa_ext.flow.solvers import installed_solver
from nova_numa_ext.simulator.remote_gpu import report, shared_report
from nova_numa_ext.simulator.remote_gpu.shared_pool import POLICIES
from placement_traits.errors import InvalidValueError
from placement_traits.names import GPU_SHARES

SMALL = ("--jobs", "40", "--run-time", "120", "--moves-per-minute", "20", "--cool-down", "60")


def ran(*words: str) -> tuple[tuple[str, ...], list[tuple[str | float, ...]]]:
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    args = parser.parse_args(words)
    return report.simulated(args, installed_solver(), lambda *_state: None)


def test_each_policy_is_a_row_over_the_same_leases() -> None:
    columns, rows = ran("--rebalance", ",".join(POLICIES), *SMALL)
    assert columns[:3] == ("policy", "leases", "makespan_s")
    assert [row[:2] for row in rows] == [(name, 40) for name in POLICIES]
    by_name = [dict(zip(columns, row, strict=True)) for row in rows]
    moves = {row["policy"]: row["moves"] for row in by_name}
    assert moves["none"] == moves["scavenge"] == 0
    assert min(moves["consolidate"], moves["balance"]) > 0
    assert all(0 < float(row["gpu_use"]) <= 1 for row in by_name)


def test_fast_machines_are_what_promotion_is_for() -> None:
    for fast, promotes in (("0", False), ("1", True)):
        words = ("--rebalance", "room,promote", *SMALL, "--fast-machines", fast)
        columns, (room, promote) = ran(*words)
        at = columns.index("moves")
        assert (promote[at] > room[at]) is promotes  # type: ignore[operator]


def test_without_the_option_nothing_moves_and_the_settings_are_rows() -> None:
    columns, rows = ran("--jobs", "8", "--run-time", "20")
    assert columns[0] == "setting"
    assert [row[0] for row in rows] == [*report.SETTINGS]


def test_files_say_what_was_simulated_and_each_move(tmp_path: Path) -> None:
    columns, rows = ran("--rebalance", "none,balance", *SMALL, "--output", str(tmp_path))
    document = json.loads((tmp_path / "results.json").read_text())
    assert (document["label"], document["source"]["moves_over"]) == ("modelled", "fdr")
    assert [*document["policies"]] == ["none", "balance"]
    with (tmp_path / "jobs.csv").open(newline="") as file:
        leases = list(csv.DictReader(file))
    assert len(leases) == 2 * 40
    assert {each["level"] for each in leases} == {"gold", "silver", "bronze", "scavenger"}
    assert {each["level"] for each in leases if each["priority"] != "0"} == {
        "gold",
        "silver",
        "bronze",
    }
    with (tmp_path / "moves.csv").open(newline="") as file:
        moves = list(csv.DictReader(file))
    assert {each["policy"] for each in moves} == {"balance"}
    assert len(moves) == rows[1][columns.index("moves")] == document["policies"]["balance"]["moves"]
    paused_s = sum(float(each["paused_s"]) for each in leases)
    assert paused_s == pytest.approx(sum(float(each["paused_s"]) for each in moves), abs=0.1)


def test_a_plot_of_moves_is_drawn_where_matplotlib_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ran("--rebalance", "none,balance", *SMALL, "--output", str(tmp_path))
    assert (tmp_path / "moves.png").read_bytes().startswith(b"\x89PNG")


def test_as_many_leases_come_as_the_load_says() -> None:
    works = shared_report.drawn(4000, 100.0, 4.0, 8.0, 1)
    held = sum(each.part.shares * each.run_s for each in works) / GPU_SHARES
    assert held / works[-1].arrival_s == pytest.approx(8.0, rel=0.1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--rebalance", "swap"), "none, room, consolidate, balance, promote, scavenge"),
        (("--rebalance", "none", "--load", "nan"), "at most 2"),
        (("--rebalance", "none", "--moves-per-minute", "0"), "at least 1"),
        (("--rebalance", "none", "--cool-down", "-1"), "0 s or more"),
        (("--rebalance", "none", "--fast-machines", "5"), "0 to 4"),
        (("--rebalance", "none", "--cores", "3"), "nothing beside --rebalance"),
        (("--rebalance", "none", "--busy-networks"), "nothing beside --rebalance"),
        (("--rebalance", "none", "--settings", "local"), "nothing beside --rebalance"),
        (("--load", "0.5"), "only together with --rebalance"),
        (("--moves-over", "1gbe"), "only together with --rebalance"),
        (("--rebalance", "none", "--jobs", "0"), "1 to 10000"),
        (("--rebalance", "none", "--output", "/dev/null/here"), "can be written to"),
    ],
)
def test_what_is_not_allowed_is_said(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        ran(*words)
