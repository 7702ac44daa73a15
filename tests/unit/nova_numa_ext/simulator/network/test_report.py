# SPDX-License-Identifier: Apache-2.0
"""``openstack numa simulate network``, without a cloud: tables, files that are read again, and what is refused."""

import argparse
import csv
import json
from pathlib import Path

import pytest

from nova_numa_ext.policy.network.groups import PolicyName
from nova_numa_ext.policy.network.pairs import LogMetrics
from nova_numa_ext.simulator.network import swf
from nova_numa_ext.simulator.network.barrio import LogReplay, ReplayedJob
from nova_numa_ext.simulator.network.mixes import LoggedJob
from nova_numa_ext.simulator.network.report import (
    POLICIES,
    PolicyReplay,
    add_arguments,
    pays_beside,
    replays,
    table,
)
from placement_traits.errors import InvalidValueError
from tests.support.fabrics import fabric

SMALL = ("--leafs", "12x18x4", "--jobs", "40")


def ran(*words: str) -> list[PolicyReplay]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return replays(parser.parse_args(words), None, lambda policy, started, jobs: None)


def test_each_policy_is_a_row() -> None:
    columns, rows = table(ran(*SMALL))
    assert columns[:3] == ("policy", "jobs", "never")
    assert [row[:2] for row in rows] == [(each.value, 40) for each in POLICIES]
    assert all(len(row) == len(columns) for row in rows)


def replayed(*jobs: tuple[float, float]) -> PolicyReplay:
    """Jobs of 100 s that ran one after the other: how fast each would have run alone, and how long it took, s."""
    ran_jobs = tuple(
        ReplayedJob(LoggedJob(number, 0.0, 4, 100.0), 0.0, {}, took_s, alone)
        for number, (alone, took_s) in enumerate(jobs)
    )
    nothing = LogMetrics(100.0, 1.0, 0.0, 0.0, 0.0, 0, 0)
    return PolicyReplay(PolicyName.VNB, LogReplay(ran_jobs, nothing, 0.0, 0.0), 18)


def test_other_places_pay_when_jobs_lose_more_to_others_than_they_then_lose_to_themselves() -> None:
    beside = replayed((1.0, 112.0), (1.0, 112.0))  # 24 s to others
    apart = replayed((0.8, 125.0), (1.0, 100.0))  # 25 s to itself
    both_apart = replayed((0.8, 125.0), (0.8, 125.0))
    assert pays_beside(apart, beside)
    assert not pays_beside(beside, apart)
    assert not pays_beside(beside, beside)
    assert pays_beside(both_apart, apart)
    assert pays_beside(replayed((1.0, 130.0)), apart), "of the first job alone"


def test_whether_a_policy_pays_is_shown_beside_the_first_one(tmp_path: Path) -> None:
    words = (*SMALL, "--oversubscription", "8", "--policies", "first_available,vnb")
    columns, rows = table(ran(*words, "--output", str(tmp_path)))
    assert columns[-1] == "pays"
    assert [row[-1] for row in rows] == ["-", "yes"]
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["pays_beside_the_first"] == {"vnb": True}


def test_files_say_what_was_replayed_and_the_log_is_one_again(tmp_path: Path) -> None:
    words = (*SMALL, "--oversubscription", "4", "--policies", "vnb", "--queue", "easy")
    (found,) = ran(*words, "--output", str(tmp_path))
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["label"] == "modelled"
    assert document["source"] == {
        "fabric": "simulated: 12 leafs, 216 hosts",
        "log": "mix c1, 40 jobs, seed 1",
        "queue": "easy",
        "oversubscription": 4.0,
    }
    assert document["policies"]["vnb"] == pytest.approx(found.figures())
    with (tmp_path / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["number"]) for row in rows] == [each.job.number for each in found.found.jobs]
    assert all(float(row["slowdown_by_others"]) >= 1.0 for row in rows)
    log = tmp_path / "vnb.swf"
    logged = [line.split() for line in log.read_text().splitlines() if not line.startswith(";")]
    ran_s = {each.job.number: each.ended_at - each.started_at for each in found.found.jobs}
    assert any(each.slowdown > 1.1 for each in found.found.jobs)
    assert {int(line[0]): float(line[3]) for line in logged} == pytest.approx(ran_s, abs=0.5)
    assert [int(line[1]) for line in logged] == sorted(int(line[1]) for line in logged)
    assert len(swf.read(log.read_text(), "log")) == 40
    (again,) = ran("--leafs", "12x18x4", "--swf", str(log), "--policies", "vnb")
    assert again.figures()["jobs"] == 40


def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "results.json").mkdir()
    with pytest.raises(InvalidValueError, match=r"results\.json.*Is a directory"):
        ran(*SMALL, "--policies", "vnb", "--output", str(tmp_path))


def test_a_plot_is_drawn_where_matplotlib_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ran(*SMALL, "--policies", "best_fit,vnb", "--output", str(tmp_path))
    assert (tmp_path / "jobs.png").read_bytes().startswith(b"\x89PNG")


def test_progress_is_of_each_policy() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--jobs", "5", "--policies", "vnb,first_available"])
    seen: list[tuple[str, int, int]] = []

    def progress(policy: str, started: int, jobs: int) -> None:
        seen.append((policy, started, jobs))

    replays(args, fabric([18] * 6), progress)
    assert [state for state in seen if state[1] == 5][-1] == ("first_available", 5, 5)
    assert {name for name, _, _ in seen} == {"vnb", "first_available"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--leafs", "172x18"), "three numbers"),
        (("--leafs", "0x18x18"), "three numbers"),
        (("--leafs", "9999x18x18"), "5000 leafs"),
        (("--policies", "best"), "first_available, first_contiguous"),
        (("--oversubscription", "0.5"), "1 or more"),
        (("--oversubscription", "nan"), "1 or more"),
        (("--jobs", "0"), "1 job or more"),
        (("--processors-per-host", "0"), "1 or more"),
        (("--swf", "/nowhere.swf"), "No such file"),
        (("--output", "/dev/null/here"), "can be written to"),
    ],
)
def test_what_is_not_allowed_is_said(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        ran(*words)
