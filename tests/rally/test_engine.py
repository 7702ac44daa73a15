# SPDX-License-Identifier: Apache-2.0
"""Rally's own engine, command line and exports around our SLAs and figures: tasks that need no cloud."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nova_numa_ext.rally.figures import figures

SCENARIO = "NumaExt.explain_beside_scheduling"
RALLY = Path(sys.executable).with_name("rally")
# Stand in for scenarios that have looked at a cloud; names are those that the figures go by.
PLUGINS = """
import time
from rally.task import atomic, scenario
from nova_numa_ext.rally import samples

class _Sampling(scenario.Scenario):
    def run(self, looked_at=3, faults=0, what_if_s=0.05, schedule_s=0.4):
        with atomic.ActionTimer(self, "numa_ext.what_if"):
            time.sleep(what_if_s)
        with atomic.ActionTimer(self, "outer"):
            with atomic.ActionTimer(self, "numa_ext.schedule"):
                time.sleep(schedule_s)
        if looked_at:
            self.add_output(additive=samples.chart(samples.Topic.OVERLAP, looked_at, faults))
            text = {"title": "What is wrong", "chart_plugin": "TextArea", "data": ["nothing"]}
            self.add_output(complete=text)

@scenario.configure(name="NumaExt.explain_beside_scheduling_without_cloud")
class Explain(_Sampling):
    pass
"""


@pytest.fixture
def rally(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Rally with a database and an environment of its own; the environment has no platform."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "stand_in.py").write_text(PLUGINS)
    (tmp_path / "rally.conf").write_text(f"[database]\nconnection = sqlite:///{tmp_path}/db\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        options = ["--config-file", "rally.conf", "--plugin-paths", f"{tmp_path}/plugins"]
        return subprocess.run(
            [str(RALLY), *options, *words],
            cwd=tmp_path,
            env=os.environ | {"HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    for words in (("db", "create"), ("env", "create", "--name", "none")):
        done = run(*words)
        assert done.returncode == 0, done.stderr
    return run


# Arguments of the scenario, and the criteria that are not kept then.
SUBTASKS: tuple[tuple[dict[str, float], int], ...] = (
    ({}, 0),
    ({"faults": 1}, 1),
    ({"looked_at": 0, "schedule_s": 0}, 2),
)


def task() -> dict[str, Any]:
    """A task of which the first subtask is right."""
    sla = {
        "numa_ext_overlap": {"max": 0},
        "numa_ext_ratio": {
            "action": "numa_ext.what_if",
            "reference": "numa_ext.schedule",
            "max": 1.0,
        },
    }
    subtasks = [
        {
            "title": f"subtask {number}",
            "scenario": {f"{SCENARIO}_without_cloud": arguments},
            "runner": {"constant": {"times": 4, "concurrency": 2}},
            "sla": sla,
        }
        for number, (arguments, _) in enumerate(SUBTASKS)
    ]
    return {"version": 2, "title": "engine", "tags": ["numa-ext"], "subtasks": subtasks}


def test_a_task_from_its_start_to_its_figures(
    rally: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    failed = sum(number for _, number in SUBTASKS)
    (tmp_path / "task.json").write_text(json.dumps(task()))
    done = rally("task", "start", "task.json")
    assert done.returncode == 2, done.stdout + done.stderr
    uuid = rally("task", "list", "--uuids-only").stdout.strip()
    checked = rally("task", "sla-check", uuid, "--json")
    assert checked.returncode == failed
    assert sum(row["status"] == "FAIL" for row in json.loads(checked.stdout)) == failed
    for kind, name in (("json", "r.json"), ("junit-xml", "r.xml"), ("html-static", "r.html")):
        assert rally("task", "export", uuid, "--type", kind, "--to", name).returncode == 0
    found = figures(json.loads((tmp_path / "r.json").read_text().replace("_without_cloud", "")))
    assert (found["scenarios"], found["sla_failed"]) == (len(SUBTASKS), failed)
    assert found["explain_ratio"] == pytest.approx(0.125, abs=0.12)
    assert (tmp_path / "r.xml").read_text().count("<failure") == 2
    page = (tmp_path / "r.html").read_text()
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=[\"']https?:", page)
