# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus server scrapes our exporters, answers every panel of the dashboards and evaluates every alert.

The exporters are those of agent, scheduler and engine; of each metric they have one made-up value. Pages
that the components have shown in the lab go the same way.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from host_agent.report import metrics as agent_metrics
from nova_numa_ext import metrics as scheduler_metrics
from nova_numa_ext.orchestrator import metrics as engine_metrics
from placement_traits.metrics import MetricSpec
from tests.support.ports import free_port
from tests.support.prometheus_server import (
    BOARDS,
    LACKS,
    RULES,
    VARIABLES,
    Prometheus,
    prometheus_server,
    shown_page,
    unexplained,
)

pytestmark = pytest.mark.long

BEGAN_S = time.monotonic()
# What queries pick by.
LABELS = {"result": "failed", "state": "fresh", "server": "7d0c6a52", "kind": "servers"}


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

    def histograms(self) -> Iterator[agent_metrics.HistogramSample]:
        yield "numa_ext_server_request_seconds", ("7d0c6a52", "x", "x"), [(math.inf, 7)], 1.0


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


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The server of Debian's package, some scrapes after its start."""
    metrics, ports = agent_metrics.Metrics(), [free_port() for _ in range(3)]
    metrics.include(EverythingElse(metrics))
    scheduler = scheduler_metrics.Exporter(scheduler_samples)
    engine = scheduler_metrics.Exporter(engine_samples, metrics=engine_metrics.METRICS)
    servers = [
        agent_metrics.serve(metrics, "127.0.0.1", ports[0]),
        scheduler_metrics.serve(scheduler, "127.0.0.1", ports[1]),
        scheduler_metrics.serve(engine, "127.0.0.1", ports[2]),
    ]
    names = ("numa-host-agent", "numa-ext-scheduler", "numa-ext-engine")
    jobs = {name: [f"127.0.0.1:{port}"] for name, port in zip(names, ports, strict=True)}
    try:
        with prometheus_server(tmp_path_factory.mktemp("prometheus"), jobs, 1) as found:
            yield found
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_shows_something(prometheus: Prometheus, name: str) -> None:
    (instance,) = prometheus.values(*VARIABLES["$instance"])
    chosen = {"instance": instance, "server": LABELS["server"]}
    assert prometheus.empty_panels(name, "1m", **chosen) == []


def test_every_variable_offers_something(prometheus: Prometheus) -> None:
    for metric, label in VARIABLES.values():
        assert len(prometheus.values(metric, label)) == 1


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


RECORDED = {
    **LACKS,
    "recorded before counters began at 0": {
        'numa_ext_actions_total{result="failed"}',
        'numa_ext_rounds_total{result="failed"}',
        "rate(numa_ext_refiner_failures_total",
        "rate(numa_ext_listener_failures_total",
        "rate(numa_ext_unwritten_total",
        "rate(numa_ext_server_withholds_seconds_total",
        "numa_ext_scheduler_faults_total",
        "numa_ext_scheduler_would_reorder_total",
        "numa_ext_scheduler_shortlists_total",
    },
    "recorded before groups of servers were counted": {
        "numa_ext_scheduler_miscabled_hosts",
        "numa_ext_scheduler_group_plans_total",
        "numa_ext_scheduler_group_conflicts_total",
    },
    "no job was submitted": {"rate(numa_ext_jobs_moves_total["},
    "recorded before jobs had a kind": {'numa_ext_jobs_longest_wait_seconds{kind="servers"}'},
    "recorded before engines watched elastic groups": {
        "numa_ext_jobs_scaling_groups",
        "numa_ext_jobs_scaling_members",
    },
    "recorded before leases were counted": {
        "numa_ext_jobs_leases",
        "numa_ext_jobs_lease_memory_mib",
        "numa_ext_jobs_leases_moved_lately",
    },
}


def test_what_the_lab_shows_is_what_panels_ask_for(tmp_path: Path) -> None:
    """Recorded: nova-scheduler and an engine beside Rally's tasks, an agent in ``lab show``.

    The agent's host has two latency-critical servers and two best-effort ones, one of them with a GPU; servers with an
    objective were there before. Each panel that is empty is so for a cause that is named here; on the dashboard of a
    server those count that are empty for all.
    """
    data = Path(__file__).parent / "data"
    pages = {
        "numa-host-agent": data / "agent-in-the-lab.metrics",
        "numa-ext-scheduler": data / "nova-scheduler-in-the-lab.metrics",
        "numa-ext-engine": data / "engine-in-the-lab.metrics",
    }
    with ExitStack() as shown:
        jobs = {
            job: [shown.enter_context(shown_page(lambda _, page=page: page.read_bytes()))]
            for job, page in pages.items()
        }
        prometheus = shown.enter_context(prometheus_server(tmp_path, jobs, 1))
        (agent,) = jobs["numa-host-agent"]
        servers = prometheus.values(*VARIABLES["$server"])
        assert len(servers) == 4
        empty = {
            panel
            for board in set(BOARDS) - {"server"}
            for panel in prometheus.empty_panels(board, "1m", instance=agent)
        } | set.intersection(
            *(set(prometheus.empty_panels("server", "1m", server=server)) for server in servers)
        )
    assert unexplained(empty, RECORDED) == set()
    causes = set().union(*RECORDED.values())
    full = {cause for cause in causes if not any(cause in panel[1] for panel in empty)}
    assert full == set(), "it is in the list and has series"
