# SPDX-License-Identifier: Apache-2.0
"""The figures of a run, from Rally's report."""

import json
from pathlib import Path
from typing import Any

import pytest

from nova_numa_ext.rally.figures import figures, main

NONE = {"explain_ratio": None, "filter_ratio_single": None, "filter_ratio_32": None}


def workload(name: str, took_s: dict[str, float], *kept: bool, **args: object) -> dict[str, Any]:
    """One workload as Rally's JSON report has it, with three equal iterations."""
    actions = [
        {"name": action, "started_at": 5.0, "finished_at": 5.0 + seconds, "children": []}
        for action, seconds in took_s.items()
    ]
    criteria = [{"criterion": str(n), "success": one} for n, one in enumerate(kept)]
    return {
        "scenario": {name: args},
        "data": [{"atomic_actions": actions}] * 3,
        "sla_results": {"sla": criteria} if criteria else {},
    }


def report(*workloads: dict[str, Any], tag: str = "default") -> dict[str, Any]:
    """A task with one subtask."""
    return {"tags": ["numa-ext", tag], "subtasks": [{"workloads": list(workloads)}]}


def test_a_run_in_which_all_is_kept() -> None:
    beside = workload(
        "NumaExt.explain_beside_scheduling",
        {"numa_ext.what_if": 0.5, "numa_ext.schedule": 2.0},
        True,
    )
    found = figures({"tasks": [report(beside, workload("NumaExt.churn", {}, True, True))]})
    assert found == NONE | {"scenarios": 2, "sla_failed": 0, "explain_ratio": 0.25}


def test_the_filter_is_compared_by_the_number_of_servers() -> None:
    def phase(tag: str, single_s: float, many_s: float) -> dict[str, Any]:
        return report(
            workload("NumaExt.schedule", {"numa_ext.schedule": single_s}, True, count=1),
            workload("NumaExt.schedule", {"numa_ext.schedule": many_s}, True, count=32),
            tag=tag,
        )

    tasks = [phase("filter-with", 1.1, 8.0), phase("filter-without", 1.0, 10.0)]
    found = figures({"tasks": tasks})
    assert found["filter_ratio_single"] == pytest.approx(1.1)
    assert found["filter_ratio_32"] == pytest.approx(0.8)
    assert figures({"tasks": tasks[:1]})["filter_ratio_single"] is None


@pytest.mark.parametrize(
    ("kept", "failed"), [((True, False, False), 2), ((False,), 1), ((), 1), ((True,), 0)]
)
def test_criteria_that_were_not_kept_are_counted_and_end_with_status_1(
    kept: tuple[bool, ...], failed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A workload without any result did not come to its end."""
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"tasks": [report(workload("NumaExt.churn", {}, *kept))]}))
    assert main([str(file)]) == (1 if failed else 0)
    assert json.loads(capsys.readouterr().out) == NONE | {"scenarios": 1, "sla_failed": failed}


def test_nothing_that_was_run_is_no_success(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text('{"tasks": []}')
    assert main([str(file)]) == 1
