# SPDX-License-Identifier: Apache-2.0
"""Counters of the agent begin at 0 where their labels are known: the rate of one that begins at 1 misses the 1."""

import ast
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from host_agent.model.journal import Result
from host_agent.observe.latency.request_times import RequestTimes
from host_agent.report.metrics import FAILING, FILES, HistogramSample, Metrics, Sample
from placement_traits.best_effort import BestEffortWriter

HERE = Path(__file__).parents[4] / "host_agent"


def calls() -> Iterator[tuple[str, list[ast.expr]]]:
    """Name and arguments of each call in the agent's unprivileged parts."""
    for folder in ("apply", "control", "report"):
        for file in sorted((HERE / folder).rglob("*.py")):
            for found in ast.walk(ast.parse(file.read_text())):
                match found:
                    case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=args):
                        yield name, args


def text(found: ast.expr) -> str:
    return str(found.value) if isinstance(found, ast.Constant) else ""


def counters() -> dict[tuple[str, ...], float]:
    return {
        (metric.name, *labels): value
        for metric, labels, value in Metrics().samples()
        if metric.kind == "counter"
    }


def test_before_the_first_round_all_counters_of_failures_are_at_0() -> None:
    assert counters() == {
        **{("numa_ext_actions", action, "failed"): 0 for action in FAILING},
        **{("numa_ext_rounds", result): 0 for result in ("done", "failed")},
        **{("numa_ext_unwritten", file): 0 for file in FILES},
    }


def test_parts_of_the_agent_begin_at_0() -> None:
    metrics = Metrics()
    metrics.begin(refiners=["balm"], listeners=["Costs", "InControl"])
    metrics.failed_listener("Costs")
    metrics.failed_listener("of a plug-in")
    metrics.count("pin", Result.FAILED)
    found = {(metric.name, *labels): value for metric, labels, value in metrics.samples()}
    assert found["numa_ext_refiner_failures", "balm"] == 0
    assert found["numa_ext_listener_failures", "InControl"] == 0
    assert found["numa_ext_listener_failures", "Costs"] == 1
    assert found["numa_ext_listener_failures", "of a plug-in"] == 1
    assert found["numa_ext_actions", "pin", "failed"] == 1


class Requests:
    """A controller that has counted the requests of two servers."""

    def __init__(self) -> None:
        self.of = {name: RequestTimes(1234.5) for name in ("a", "b")}

    def samples(self) -> Iterator[Sample]:
        yield from ()

    def histograms(self) -> Iterator[HistogramSample]:
        for name, times in self.of.items():
            found = times.read()
            yield "numa_ext_server_request_seconds", (name, name, "p"), found.buckets, found.total_s


def test_requests_of_servers_are_histograms_on_the_page() -> None:
    metrics, requests = Metrics(), Requests()
    metrics.include(requests)
    requests.of["a"].add([(1200.0, 3), (2e7, 1)])
    registry = CollectorRegistry()
    registry.register(metrics)
    page = generate_latest(registry).decode().splitlines()
    assert "# TYPE numa_ext_server_request_seconds histogram" in page
    of_a = 'numa_ext_server_request_seconds_{}{{{}name="a",project="p",server="a"}} {}'
    for end, count in (("0.001", 0.0), ("0.0012345", 3.0), ("10.0", 3.0), ("+Inf", 4.0)):
        assert of_a.format("bucket", f'le="{end}",', count) in page
    assert of_a.format("count", "", 4.0) in page
    assert of_a.format("sum", "", 20.0036) in page


def test_each_file_whose_lost_writes_are_counted_is_known() -> None:
    writers = {text(args[0]) for name, args in calls() if name == BestEffortWriter.__name__}
    others = {text(args[0]) for name, args in calls() if name == "_lost"}
    assert writers | others == set(FILES)


def test_each_action_that_fails_is_known() -> None:
    reported = {text(args[1]) for name, args in calls() if name == "failed" and len(args) > 1}
    counted = {
        text(args[0])
        for name, args in calls()
        if name == "count" and len(args) > 1 and "Result.FAILED" in ast.unparse(args[1])
    }
    assert reported | counted == set(FAILING)
