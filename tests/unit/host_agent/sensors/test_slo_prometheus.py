# SPDX-License-Identifier: Apache-2.0
"""Latencies from a Prometheus server: a real HTTP server answers as Prometheus does, or does not."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from host_agent import conf as agent_conf
from host_agent.sensors.slo_prometheus import PrometheusFeeds, PrometheusSettings, ask
from host_agent.slo_conf import read
from placement_traits.errors import InvalidValueError

LEAST = 200


class Prometheus:
    """Answers ``/api/v1/query``; ``answer`` is the body, ``queries`` what was asked."""

    def __init__(self) -> None:
        self.answer: Any = vector("0.0007")
        self.queries: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.queries += parse_qs(urlparse(self.path).query)["query"]
                body = json.dumps(outer.answer).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def vector(*values: str) -> dict[str, Any]:
    result = [{"metric": {}, "value": [0, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


@pytest.fixture
def prometheus() -> Iterator[Prometheus]:
    server = Prometheus()
    yield server
    server.server.shutdown()
    server.server.server_close()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def feeds(prometheus: Prometheus, clock: Clock) -> PrometheusFeeds:
    queries = {"lc.web": 'p99{vm="$name", id="$uuid"}'}
    settings = PrometheusSettings(prometheus.url, queries, window_s=10.0, interval_s=3600.0)
    made = PrometheusFeeds(settings, LEAST, clock=clock)
    made.serve([("U1", "lc.web", "web-1"), ("U2", "other", "x")])
    return made


def test_a_query_names_the_server_and_its_answer_is_microseconds(prometheus: Prometheus) -> None:
    clock = Clock()
    found = feeds(prometheus, clock)
    found.ask_all()
    assert prometheus.queries == ['p99{vm="web-1", id="U1"}']
    reading = found.read("U1", clock.now)
    assert reading.p99_us == pytest.approx(700.0)
    assert reading.samples == LEAST
    assert found.read("U2", clock.now).p99_us is None
    found.close()


def test_an_answer_says_nothing_about_an_action_younger_than_its_range(
    prometheus: Prometheus,
) -> None:
    clock = Clock()
    found = feeds(prometheus, clock)
    found.ask_all()
    assert found.read("U1", 100.0, since_s=95.0).p99_us is None
    clock.now = 106.0
    found.ask_all()
    assert found.read("U1", 106.0, since_s=95.0).p99_us is not None
    found.close()


@pytest.mark.parametrize(
    "answer",
    [vector("NaN"), vector("-1"), vector("+Inf"), vector(), vector("1", "2"), {"data": 3}, []],
)
def test_what_is_no_latency_is_unknown(prometheus: Prometheus, answer: Any) -> None:
    clock = Clock()
    found = feeds(prometheus, clock)
    prometheus.answer = answer
    found.ask_all()
    assert found.read("U1", clock.now).p99_us is None
    found.close()


def test_answers_that_stop_are_told_once_and_grow_old(
    prometheus: Prometheus, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    settings = PrometheusSettings("http://127.0.0.1:1", {"any": "x"}, interval_s=5.0, timeout_s=0.2)
    found = PrometheusFeeds(settings, LEAST, clock=clock)
    found.serve([("U1", "whatever", "x")])
    found.ask_all()
    found.ask_all()
    assert caplog.text.count("unknown") == 1
    assert ask(PrometheusSettings(prometheus.url), "x") == pytest.approx(0.0007)
    found.close()


def test_options_are_read_and_a_bad_query_is_named(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"

    def choices(*queries: str) -> Any:
        lines = "".join(f"prometheus_query = {query}\n" for query in queries)
        file.write_text(f"[slo]\nprometheus_url = http://p:9090/\n{lines}")
        return agent_conf.load([], default_config_files=[str(file)]).slo

    prometheus = read(choices("lc.web=up", "any=rate(x[5s]) == 1")).prometheus
    assert prometheus is not None
    assert prometheus.url == "http://p:9090"
    assert prometheus.query("lc.other", "U", "n") == "rate(x[5s]) == 1"
    with pytest.raises(InvalidValueError, match=r"prometheus_query.*nonsense.*FLAVOR=PROMQL"):
        read(choices("nonsense"))
