# SPDX-License-Identifier: Apache-2.0
"""The task files of ``rally-jobs``, without Rally: what they name is there, and each judges what it runs."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import numa_lab.rally
import pytest
import yaml
from numa_lab.settings import Settings

from nova_numa_ext.rally.asking import words_of
from nova_numa_ext.rally.checked_flavors import checked

ROOT = Path(__file__).parents[4]
JOBS = sorted((ROOT / "rally-jobs").glob("*.yaml"))
PACKAGE = ROOT / "nova_numa_ext" / "rally"
CONFIGURE = frozenset({"context.configure", "scenario.configure", "sla.configure", "_of_servers"})


def lab() -> dict[str, Any]:
    """What ``lab rally`` tells the tasks."""
    settings = Settings.from_environment(ROOT, {"NUMA_EXT_LAB": "/lab"})
    return numa_lab.rally.arguments(settings, Path("/lab/rally/out"))


def subtasks(job: Path) -> list[dict[str, Any]]:
    """The subtasks of a task file, as the lab runs it."""
    text = jinja2.Environment().from_string(job.read_text()).render(phase="with", **lab())
    assert "<<:" not in text, "Rally reads no merge keys of YAML"
    document = yaml.safe_load(text)
    assert document["version"] == 2
    return list(document["subtasks"])


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_rally_starts_a_task_with_the_labs_arguments(job: Path) -> None:
    """It refuses a task file in which a name has neither a value nor a filter that gives it one."""
    text = job.read_text()
    named = jinja2.meta.find_undeclared_variables(jinja2.Environment().parse(text))
    given = re.findall(r"(\w+)\s*\|\s*default\(|{% set (\w+) = ", text)
    assert named <= {name for pair in given for name in pair} | {*lab(), "phase"}


def configured(file: str) -> dict[str, ast.ClassDef]:
    """Plug-ins of a module, by their names."""
    found = {}
    for node in ast.parse((PACKAGE / file).read_text()).body:
        for call in getattr(node, "decorator_list", ()):
            if ast.unparse(getattr(call, "func", call)) not in CONFIGURE:
                continue
            for keyword in call.keywords:
                if keyword.arg == "name":
                    found[keyword.value.value] = node
    return found


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_scenarios_take_the_arguments_they_are_given(job: Path) -> None:
    known = configured("scenarios.py")
    for subtask in subtasks(job):
        ((name, given),) = subtask["scenario"].items()
        (run,) = [
            each
            for each in known[name].body
            if isinstance(each, ast.FunctionDef) and each.name == "run"
        ]
        names = [argument.arg for argument in run.args.args[1:]]
        required = names[: len(names) - len(run.args.defaults)]
        assert set(required) <= set(given) <= set(names)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_flavors_are_right_and_those_that_are_used(job: Path) -> None:
    for subtask in subtasks(job):
        made = {each.name for each in checked(subtask["contexts"]["numa_ext_flavors"])}
        (given,) = subtask["scenario"].values()
        several = given.get("flavors", [])
        used = {given["flavor"]} if "flavor" in given else set()
        used |= set(several.values() if isinstance(several, dict) else several)
        noise = subtask["contexts"].get("numa_ext_noise", {})
        assert made == used | ({noise["flavor"]} if noise else set())


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_every_subtask_is_judged(job: Path) -> None:
    known = configured("sla.py")
    for subtask in subtasks(job):
        judged = set(subtask["sla"])
        assert "failure_rate" in judged
        assert judged - {"failure_rate"} <= set(known)
        (given,) = subtask["scenario"].values()
        if "explain" in given:
            assert {"numa_ext_placement", "numa_ext_read_back", "numa_ext_orphans"} <= judged


def test_every_plug_in_is_used_by_a_task_or_named_in_the_guide() -> None:
    """``NumaExt.measure_guests`` needs an image with a benchmark, so that no task of ours runs it."""
    used = {name for job in JOBS for subtask in subtasks(job) for name in subtask["scenario"]}
    guide = (ROOT / "doc/source/operator/rally.rst").read_text()
    assert {name for name in configured("scenarios.py") if name not in used} == {
        "NumaExt.measure_guests"
    }
    for file in ("scenarios.py", "sla.py", "contexts.py"):
        for name in configured(file):
            assert f"``{name}``" in guide


def test_the_lab_s_commands_can_be_filled_in() -> None:
    told = lab()
    assert words_of(told["read_back"], host="h1")[1:4] == ["shell", "h1", "/usr/bin/python3"]
    assert words_of(told["explain"], server="u")[-1] == "u"
    load = words_of(told["load"], members="a,b", operations="9.0", objective_ms="35.0", group="g")
    assert load[2:] == ["/lab/state/traces/rally-g.csv", "a,b", "9.0", "35.0"]
    assert "/lab/hosts/h1/etc/numa-host-agent.conf" in words_of(told["latencies"], host="h1")
    json.dumps(told)


def test_the_default_tasks_and_the_long_ones_are_files() -> None:
    names = {job.stem for job in JOBS}
    assert {*numa_lab.rally.DEFAULT, *numa_lab.rally.LONG} <= names
    # noise needs a guest that reports, groups a fabric, leases hosts that lend GPUs.
    rest = {"noise", "groups", "leases"}
    assert names - {*numa_lab.rally.DEFAULT, *numa_lab.rally.LONG} == rest
