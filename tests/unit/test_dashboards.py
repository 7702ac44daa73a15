# SPDX-License-Identifier: Apache-2.0
"""Grafana dashboards: every expression is one for Prometheus, and names what our components declare."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.promtool import TARGET, metrics_of, promtool, undeclared
from tools.dashboards import FOLDER, METRICS, as_json

NAMES = ("decisions", "fleet", "host", "jobs", "server")
BOARDS: dict[str, Any] = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in NAMES}
TARGETS = [
    pytest.param(target, id=f"{name}-{panel['title']}-{target['refId']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel["targets"]
]
# What Grafana puts in before it asks.
VALUES = {"$instance": "compute1:19177", "$server": "7d0c6a52", "$__rate_interval": "5m"}


def asked(expression: str) -> str:
    for variable, value in VALUES.items():
        expression = expression.replace(variable, value)
    return expression


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_is_as_it_is_generated(name: str) -> None:
    """A metric or label that changes in the code changes there: ``make config``."""
    assert (FOLDER / f"{name}.json").read_text() == as_json(name)


def test_there_are_no_others() -> None:
    assert {file.stem for file in FOLDER.glob("*.json")} == set(NAMES)


@pytest.mark.parametrize("target", TARGETS)
def test_a_panel_names_metrics_and_labels_that_are_declared(target: dict[str, Any]) -> None:
    expression = target["expr"]
    assert list(undeclared(expression)) == []
    assert "$" not in asked(expression)
    grouped = re.search(r"\bby \(([^)]*)\)", expression)
    known = TARGET | {label for metric in metrics_of(expression) for label in metric.labels}
    left = set(re.split(r",\s*", grouped[1])) if grouped else known
    assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= left


def test_every_expression_is_understood_by_prometheus(tmp_path: Path) -> None:
    """As the expression of a recording rule, which promtool parses."""
    rules = [
        {"record": f"panel:{number}", "expr": asked(param.values[0]["expr"])}
        for number, param in enumerate(TARGETS)
    ]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_variables_ask_for_labels_that_their_metrics_have() -> None:
    found = 0
    for board in BOARDS.values():
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(
                    r"label_values\((\w+), (\w+)\)", variable["query"]
                ).groups()
                assert list(undeclared(f'{metric}{{{label}="x"}}')) == []
                assert f"${variable['name']}" in VALUES
                found += 1
    assert found == 2


def test_every_metric_is_shown_somewhere() -> None:
    shown = {metric.name for param in TARGETS for metric in metrics_of(param.values[0]["expr"])}
    assert shown == set(METRICS)


@pytest.mark.parametrize("name", NAMES)
def test_panels_do_not_overlap_and_have_numbers_of_their_own(name: str) -> None:
    panels = BOARDS[name]["panels"]
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("numa_ext_paused", []),
        ("numa_ext_pausd", ["numa_ext_pausd"]),
        ("numa_ext_rounds", ["numa_ext_rounds"]),  # a counter ends in _total on the wire
        ('numa_ext_paused{host="h1"}', ["numa_ext_paused{host}"]),
        ("sum by (host) (numa_ext_paused)", ["by (host)"]),
        ("sum by (le) (numa_ext_round_seconds_bucket)", []),
        ("sum by (le) (numa_ext_round_seconds_sum)", ["by (le)"]),
    ],
)
def test_a_metric_or_label_that_is_not_declared_is_found(expression: str, found: list[str]) -> None:
    assert list(undeclared(expression)) == found
