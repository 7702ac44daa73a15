# SPDX-License-Identifier: Apache-2.0
"""Rally accepts the task files: plug-ins, arguments, schemas of contexts and SLAs, as far as goes without a cloud."""

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml
from rally import api, exceptions
from rally.task import engine, task_cfg

JOBS = sorted((Path(__file__).parents[2] / "rally-jobs").glob("*.yaml"))
ARGUMENTS = {
    "read_back": "ssh {host} python3 readback.py",
    "explain": "numa-ext-explain -f json {server}",
    "latencies": "ssh {host} numa-host-agent-ctl status -f json",
    "load": "load.py {members} {operations} {objective_ms}",
    "source": {"csv": "rally-{group}.csv"},
    "phase": "with",
    "workloads": {"a": {"image": "a"}},
    "gpus": 2,
    "gpu_host": "gpu1",
    "ended": "seconds=([0-9.]+)",
    "file": "/tmp/profiles.yaml",
}


def rendered(job: Path, **more: Any) -> dict[str, Any]:
    """A task file as Rally reads it."""
    text = api._Task(None).render_template(job.read_text(), str(job.parent), **ARGUMENTS | more)
    return dict(yaml.safe_load(text))


def validate(config: dict[str, Any]) -> None:
    """What ``rally task validate`` does before it looks at a cloud."""
    checked = task_cfg.TaskConfig(config)
    engine.TaskEngine(checked, MagicMock(), None).validate(only_syntax=True)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
@pytest.mark.parametrize("server", [{}, {"nics": "none"}], ids=["cloud", "lab"])
def test_rally_accepts_the_task(job: Path, server: dict[str, str]) -> None:
    validate(rendered(job, server=server))


def test_a_host_is_asked_for_where_one_is_named() -> None:
    plain, _, managed = rendered(JOBS[[job.stem for job in JOBS].index("default")], plain_host="a")[
        "subtasks"
    ]
    (arguments,) = plain["scenario"].values()
    assert arguments["server"] == {"host": "a"}
    (arguments,) = managed["scenario"].values()
    assert arguments["server"] == {}


@pytest.mark.parametrize(
    ("where", "value", "sentence"),
    [
        ("sla", {"numa_ext_placement": {"max": -1}}, "-1 is less than the minimum"),
        ("sla", {"numa_ext_placement": {}}, "'max' is a required property"),
        ("sla", {"numa_ext_objective": {"least_share": 2}}, "2 is greater than the maximum"),
        ("sla", {"numa_ext_ratio": {"max": 1}}, "'action' is a required property"),
        ("sla", {"numa_ext_plaxement": {"max": 0}}, "numa_ext_plaxement"),
        ("contexts", {"numa_ext_flavors": []}, "numa_ext_flavors"),
        ("contexts", {"numa_ext_flavors": [{"vcpus": 1}]}, "'name' is a required property"),
        ("contexts", {"numa_ext_noise": {"image": "a", "flavor": "b"}}, "'count' is a required"),
        ("scenario", {"NumaExt.churn": {"image": {"name": "a"}}}, "should be specified"),
        ("scenario", {"NumaExt.chrun": {}}, "NumaExt.chrun"),
    ],
)
def test_rally_refuses_a_mistake(where: str, value: object, sentence: str) -> None:
    config = rendered(JOBS[0])
    config["subtasks"] = config["subtasks"][:1]
    config["subtasks"][0][where] = value
    with pytest.raises(exceptions.InvalidTaskException) as caught:
        validate(config)
    assert sentence in str(caught.value)
