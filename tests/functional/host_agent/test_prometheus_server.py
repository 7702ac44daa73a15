# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus server scrapes our exporters, answers every panel of the dashboards and evaluates every alert.

The exporters are those of agent, scheduler and engine; of each metric they have one made-up value. The lab's own
figures come in by the same doors, but not here.
"""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import requests
import yaml

from host_agent.report import metrics as agent_metrics
from nova_numa_ext import metrics as scheduler_metrics
from nova_numa_ext.orchestrator import metrics as engine_metrics
from placement_traits.metrics import MetricSpec
from tools.dashboards import FOLDER

pytestmark = pytest.mark.long

RULES = FOLDER.parent / "prometheus/numa-ext.rules.yaml"
BEGAN_S = time.monotonic()
# What queries pick by.
LABELS = {"result": "failed", "state": "fresh", "server": "7d0c6a52"}


def value(metric: MetricSpec) -> float:
    """Counters grow."""
    return 1.0 + (time.monotonic() - BEGAN_S if metric.kind == "counter" else 0.0)


def labels(metric: MetricSpec) -> tuple[str, ...]:
    return tuple(LABELS.get(label, "x") for label in metric.labels)


class EverythingElse:
    """A controller with a value of each metric that the agent has not by itself."""

    def __init__(self, metrics: agent_metrics.Metrics) -> None:
        self._own = {metric.name for metric, _, _ in metrics.samples()}

    def samples(self) -> Iterator[agent_metrics.Sample]:
        for metric in agent_metrics.METRICS.values():
            if metric.name not in self._own and metric.kind != "histogram":
                yield metric.name, labels(metric), value(metric)


JOB_STATES = ("queued", "running", "failed")


def scheduler_samples() -> Iterator[scheduler_metrics.Sample]:
    yield from controller_samples(scheduler_metrics.METRICS)


def engine_samples() -> Iterator[scheduler_metrics.Sample]:
    for metric, found, number in controller_samples(engine_metrics.METRICS):
        for state in JOB_STATES if "state" in metric.labels else ("",):
            of_state = (
                state if label == "state" else one
                for label, one in zip(metric.labels, found, strict=True)
            )
            yield metric, tuple(of_state), number


def controller_samples(metrics: Mapping[str, MetricSpec]) -> Iterator[scheduler_metrics.Sample]:
    for metric in metrics.values():
        if metric.kind == "histogram":
            seconds = value(metric) * (time.monotonic() - BEGAN_S)
            numbers = [seconds] * (len(scheduler_metrics.BUCKETS) + 2)
            yield metric, labels(metric), numbers
        else:
            yield metric, labels(metric), value(metric)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Prometheus:
    """The server's API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **query: str) -> object:
        answer = requests.get(f"{self._url}/api/v1/{path}", query, timeout=10)
        assert answer.ok, f"{query}: {answer.text}"
        return answer.json()["data"]

    def series(self, expression: str) -> int:
        found = self.get("query", query=expression)
        assert isinstance(found, dict)
        return len(found["result"])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The server of Debian's package, some scrapes after its start."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: prometheus; make test installs it)")
    metrics, ports = agent_metrics.Metrics(), [free_port() for _ in range(4)]
    metrics.include(EverythingElse(metrics))
    scheduler = scheduler_metrics.Exporter(scheduler_samples)
    engine = scheduler_metrics.Exporter(engine_samples, metrics=engine_metrics.METRICS)
    servers = [
        agent_metrics.serve(metrics, "127.0.0.1", ports[0]),
        scheduler_metrics.serve(scheduler, "127.0.0.1", ports[1]),
        scheduler_metrics.serve(engine, "127.0.0.1", ports[2]),
    ]
    jobs = ("numa-host-agent", "numa-ext-scheduler", "numa-ext-engine")
    folder: Path = tmp_path_factory.mktemp("prometheus")
    scraped = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        for job, port in zip(jobs, ports[:3], strict=True)
    ]
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = {"global": every, "rule_files": [str(RULES)], "scrape_configs": scraped}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{ports[3]}"
    words = (
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([program, *words], stdout=log, stderr=log)
    found = Prometheus(f"http://{address}")
    try:
        end = time.monotonic() + 60
        while not answers(found):
            assert time.monotonic() < end, (folder / "log").read_text()
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.5)
        yield found
    finally:
        process.terminate()
        process.wait(30)
        for server in servers:
            server.shutdown()
            server.server_close()


def answers(prometheus: Prometheus) -> bool:
    """All targets have been scraped some times."""
    try:
        return prometheus.series("count_over_time(up[1m]) >= 4") == 3
    except (requests.ConnectionError, AssertionError):
        return False


def asked(expression: str, instance: str) -> str:
    for variable, text in (
        ("$instance", instance),
        ("$server", LABELS["server"]),
        ("$__rate_interval", "1m"),
    ):
        expression = expression.replace(variable, text)
    return expression


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.json")))
def test_every_panel_shows_something(prometheus: Prometheus, name: str) -> None:
    board = json.loads((FOLDER / f"{name}.json").read_text())
    (instance,) = values(prometheus, "numa_ext_build_info", "instance")
    empty = [
        (panel["title"], target["expr"])
        for panel in board["panels"]
        for target in panel["targets"]
        if prometheus.series(asked(target["expr"], instance)) < 1
    ]
    assert empty == []


def values(prometheus: Prometheus, metric: str, label: str) -> list[str]:
    """What a variable of a dashboard offers."""
    found = prometheus.get(f"label/{label}/values", **{"match[]": metric})
    assert isinstance(found, list)
    return found


def test_every_variable_offers_something(prometheus: Prometheus) -> None:
    for metric, label in (
        ("numa_ext_build_info", "instance"),
        ("numa_ext_server_memory_mb", "server"),
    ):
        assert len(values(prometheus, metric, label)) == 1


def test_every_alert_is_evaluated_without_an_error(prometheus: Prometheus) -> None:
    found = prometheus.get("rules")
    assert isinstance(found, dict)
    rules = [rule for group in found["groups"] for rule in group["rules"]]
    named = {
        rule["alert"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
    }
    assert {rule["name"] for rule in rules} == named
    assert {rule["health"] for rule in rules} == {"ok"}
    firing = {rule["name"] for rule in rules if rule["state"] == "firing"}
    assert "NumaExtStateUnwritten" in firing, "a counter that has just begun"
