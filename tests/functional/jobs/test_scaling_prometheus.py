# SPDX-License-Identifier: Apache-2.0
"""Elastic groups that are sized by what a Prometheus measures: one of the tests, and the real one of Debian."""

import json
import math
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from host_agent.observe.latency.request_times import RequestTimes
from host_agent.report.metrics import Metrics
from nova_numa_ext.orchestrator import scaling_prometheus
from nova_numa_ext.orchestrator.scaling_prometheus import PrometheusError, PrometheusSource
from nova_numa_ext.orchestrator.store.scaling import ScalingSource
from nova_numa_ext.policy.elastic.agent_queries import agent_queries
from nova_numa_ext.policy.elastic.load import MemberLoad
from nova_numa_ext.policy.elastic.monitored import READINGS, MonitoredQueries
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from placement_traits.errors import InvalidValueError
from tests.support.elastic_world import SETTINGS, ElasticWorld
from tests.support.polling import until
from tests.support.prometheus_server import prometheus_server, shown_page

QUERIES = MonitoredQueries(reads="reads[$window]", latency_ms="latency", writes="writes")
GROUP = ScalingSettings(35.0, period_s=300.0)
NOW_S = 1_800_000_100.0  # 100 s after the end of a period
EMPTY = {"status": "success", "data": {"resultType": "matrix", "result": []}}


@contextmanager
def serving(answer):
    """An HTTP server; ``answer`` gets the query, and returns status and body, or writes itself."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["Content-Length"])
            query = {key: one for key, (one,) in parse_qs(self.rfile.read(length).decode()).items()}
            asked.append((self.path, query))
            found = answer(self, query)
            if found is not None:
                self.send_response(found[0])
                self.end_headers()
                self.wfile.write(found[1])

        def log_message(self, *_):
            """Not here."""

    asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def matrix(values, label="server"):
    """Return an answer of Prometheus: the same value at each time of a query, by member."""

    def answer(_handler, query):
        start, end, step = (float(query[name]) for name in ("start", "end", "step"))
        times = [start + step * at for at in range(round((end - start) / step) + 1)]
        found = values.get(query["query"].partition("[")[0], {})
        result = [
            {"metric": {label: name}, "values": [[at, value] for at in times]}
            for name, value in found.items()
        ]
        return 200, json.dumps(
            {"status": "success", "data": {"resultType": "matrix", "result": result}}
        ).encode()

    return answer


def asked_of(answer, timeout_s=5.0, after_s=NOW_S - 1000.0, queries=QUERIES):
    with serving(answer) as (url, asked):
        source = PrometheusSource(url, timeout_s)
        return source.periods(queries, GROUP, after_s, NOW_S), asked


def test_periods_end_at_multiples_of_their_length_and_are_the_same_for_all():
    values = {"reads": {"a": "100", "b": "50"}, "latency": {"a": "20", "b": "NaN"}}
    found, asked = asked_of(matrix(values | {"writes": {"a": "3"}}))
    assert [each.at_s for each in found] == [NOW_S - 100.0 - 300.0 * at for at in (2, 1, 0)]
    first, second = found[-1].members
    assert (first.name, first.load) == ("a", MemberLoad(100.0, 3.0))
    assert first.readings_ms == (20.0,) * READINGS
    assert (second.name, second.load, second.readings_ms) == ("b", MemberLoad(50.0), ())
    assert {path for path, _ in asked} == {"/api/v1/query_range"}
    queries = {query["query"]: query["step"] for _, query in asked}
    assert queries == {"reads[300000ms]": "300.000", "latency": "30.000", "writes": "300.000"}
    again, _ = asked_of(matrix(values | {"writes": {"a": "3"}}), after_s=found[0].at_s)
    assert again == found[1:]


def test_a_period_that_has_just_ended_is_not_asked_for_yet():
    with serving(matrix({"reads": {"a": "1"}})) as (url, asked):
        source = PrometheusSource(url, 5.0)
        assert source.periods(QUERIES, GROUP, NOW_S - 100.0, NOW_S) == ()
        assert source.periods(QUERIES, GROUP, NOW_S - 400.0, NOW_S - 80.0) == ()
    assert asked == []


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_a_member_without_a_load_is_of_no_period(value):
    values = {"reads": {"a": value, "b": "1"}, "latency": {}}
    found, _ = asked_of(matrix(values))
    assert [each.name for each in found[-1].members] == ["b"]


def test_an_empty_source_has_no_period():
    assert asked_of(matrix({}))[0] == ()


def drips(handler, _query):
    """A byte now and then: no answer of the socket is late, and the whole one never comes."""
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):  # who has asked does not wait for it
        for _ in range(100):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)


def hangs(_handler, _query):
    time.sleep(2.0)


def told(body, status=200):
    return lambda _handler, _query: (status, json.dumps(body).encode())


def series(*metrics, values=((1.0, "1"),)):
    found = [{"metric": each, "values": values} for each in metrics]
    return told({"status": "success", "data": {"resultType": "matrix", "result": found}})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (drips, "does not answer"),
        (hangs, "does not answer"),
        (told({"status": "error", "error": "bad_data: parse error"}, 400), "parse error"),
        (told(EMPTY, 503), "answers 503"),
        (lambda _handler, _query: (200, b"<html>"), "and not as one"),
        (lambda _handler, _query: (200, b"[]"), "and not as one"),
        (told(EMPTY | {"warnings": ["remote read failed"]}), "is not whole"),
        (told({"status": "success", "data": {"resultType": "vector"}}), "no range of values"),
        (told({"status": "success"}), "is not Prometheus's"),
        (series({"instance": "a"}), "has no label server"),
        (series({"server": "a", "x": "1"}, {"server": "a", "x": "2"}), "has two series"),
        (series({"server": "a"}, values=[[1.0, "many"]]), "is not Prometheus's"),
        (lambda _handler, _query: (302, b""), "answers 302"),
    ],
)
def test_what_is_slow_strange_or_not_whole_is_no_answer(answer, why):
    began = time.monotonic()
    with pytest.raises(PrometheusError, match=why):
        asked_of(answer, timeout_s=0.4)
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize(
    "url", ["", "ftp://h", "http://", "http://u:p@h", "http://h:0", "http://h:x", "http://[::1"]
)
def test_a_url_that_cannot_be_asked_is_said_without_its_password(url):
    with pytest.raises(PrometheusError, match="scaling_prometheus has to be") as caught:
        PrometheusSource(url, 1.0).periods(QUERIES, GROUP, 0.0, NOW_S)
    assert "u:p" not in str(caught.value)


def test_periods_between_whole_hundredths_of_a_second_are_refused():
    """Most of them would be lost: Prometheus takes and says times in milliseconds."""
    settings = replace(GROUP, period_s=33.3333)
    with serving(matrix({"reads": {"a": "1"}})) as (url, asked):
        source = PrometheusSource(url, 5.0)
        with pytest.raises(
            InvalidValueError, match=r"33\.3333 is not allowed.* a multiple of 0\.01"
        ):
            source.periods(QUERIES, settings, NOW_S - 400.0, NOW_S)
    assert asked == []


def test_a_source_that_fails_keeps_what_was_learnt_and_is_said(tmp_path, monkeypatch):
    """Nothing is done while it fails or is empty; when it answers again, that goes on."""
    monkeypatch.setattr(scaling_prometheus, "_KEPT", 12)
    world = ElasticWorld(tmp_path)
    name = dict.fromkeys(world.users, "100")
    answers = [matrix({"reads": name, "latency": {}})]

    def newest(handler, query):
        return answers[-1](handler, query)

    with serving(newest) as (url, _):
        world.prometheus = PrometheusSource(url, 0.5)
        world.start()
        world.set(source=ScalingSource("", QUERIES))
        world.go(8)
        assert {term for term, _ in world.log()} == {"enough"}
        learnt = world.rounds._followed[world.uuid]
        answers.append(told(EMPTY, 503))
        (last,) = learnt.decided  # what was decided before is of no use any more
        learnt.decided = [replace(last, at_s=last.at_s - world.settings.period_s)]
        learnt.asks_at_s = 0.0
        world.go(2)
        assert "answers 503" in world.group.trouble
        answers.append(matrix({"reads": name, "latency": {}}))
        world.rounds._resting.clear()
        world.go(2)
        assert world.group.trouble == ""
        assert world.rounds._followed[world.uuid] is learnt
        answers.append(matrix({}))
        world.start()
        world.go(3)
        assert world.group.trouble == "the source knows no member"
    assert world.there() == set(world.users)
    assert {change for _, change in world.log()} == {0}


@pytest.mark.long
def test_a_group_follows_what_a_real_prometheus_measures(tmp_path):
    """Counters of requests and a histogram of latencies, as services export them; it grows by their rates."""
    settings = replace(SETTINGS, period_s=5.0, lead_periods=1)
    world = ElasticWorld(tmp_path, settings)
    queries = MonitoredQueries(
        reads="sum by (server) (rate(web_requests_total[$window]))",
        latency_ms="1000 * histogram_quantile(0.99, sum by (server, le) "
        "(rate(web_seconds_bucket[$window])))",
    )
    counted = {"rate": 90.0, "since": time.monotonic(), "count": 0.0}

    def count_on(rate):
        now = time.monotonic()
        counted["count"] += counted["rate"] * (now - counted["since"])
        counted.update(since=now, rate=rate)
        return counted["count"]

    def page():
        count, lines = count_on(counted["rate"]), []
        for server in world.there():
            lines += [f'web_requests_total{{server="{server}"}} {count}']
            lines += [
                f'web_seconds_bucket{{server="{server}",le="{bound}"}} {count}'
                for bound in ("0.02", "+Inf")
            ]
        return ("\n".join(lines) + "\n").encode()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page())

        def log_message(self, *_):
            """Prometheus has its own log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with prometheus_server(tmp_path, {"web": [f"127.0.0.1:{server.server_port}"]}, 1) as running:
        world.prometheus = PrometheusSource(running._url, 5.0)
        world.start()
        world.set(source=ScalingSource("", queries))

        def grown():
            world.go(1)
            return len(world.steps()) > 0 and set(world.steps()) == {"joined"}

        until(lambda: world.go(1) or world.log()[-1:] == [("enough", 0)], 60.0)
        assert world.ours() == set()
        count_on(150.0)
        until(grown, 60.0)
        assert len(world.ours()) in {1, 2, 3}
    server.shutdown()


class ReportedRequests:
    """What an agent has counted: a thousand requests a second of 5 ms, and one in twenty of 20 ms.

    One server is of another project, one is no member by its name, and one falls silent.

    :ivar silent_s: when, seconds since 1970
    """

    def __init__(self):
        self._since_s, self.silent_s = time.monotonic(), math.inf
        self._servers = (
            ("server-1", "web-1", "project-1"),
            ("server-2", "web-2", "project-1"),
            ("server-3", "web-3", "project-2"),
            ("server-4", "database", "project-1"),
            ("server-5", "web-5", "project-1"),
        )

    def samples(self):
        passed_s = time.monotonic() - self._since_s
        yield "numa_ext_server_withholds_seconds", ("server-2", "web-2"), passed_s / 2
        yield "numa_ext_server_withholds_seconds", ("server-1", "web-1"), 0.0

    def histograms(self):
        count = round(1000.0 * (time.monotonic() - self._since_s))
        for labels in self._servers[:-1] if time.time() > self.silent_s else self._servers:
            times = RequestTimes(10_000.0)
            times.add([(5_000.0, count), (20_000.0, count // 20)])
            found = times.read()
            yield "numa_ext_server_request_seconds", labels, found.buckets, found.total_s


@pytest.mark.long
def test_periods_are_those_of_requests_that_a_real_agents_page_counts(tmp_path):
    """The page of the agent's own exporter, scraped by a real Prometheus, asked as the engine does."""
    metrics, registry = Metrics(), CollectorRegistry()
    requests = ReportedRequests()
    metrics.include(requests)
    registry.register(metrics)
    settings = replace(GROUP, period_s=10.0)
    queries = agent_queries("project-1", "web-.*")

    with (
        shown_page(lambda _: generate_latest(registry)) as agent,
        prometheus_server(tmp_path, {"numa-host-agent": [agent]}, 1) as running,
    ):
        source, began_s = PrometheusSource(running._url, 5.0), time.time()
        whole_s = settings.period_s * (began_s // settings.period_s + 2.0)
        requests.silent_s = whole_s + settings.period_s / 2.0
        asked_s = whole_s + 2.0 * settings.period_s
        until(lambda: time.time() > asked_s, 40.0)
        whole, silent = source.periods(
            queries, settings, whole_s - 0.5 * settings.period_s, asked_s
        )
    assert [each.name for each in whole.members] == ["server-1", "server-2", "server-5"]
    assert [each.name for each in silent.members] == ["server-1", "server-2"]
    for each in (*whole.members, *silent.members):
        assert each.load.reads_per_s == pytest.approx(1050.0, rel=0.1)
        assert each.load.writes_per_s == 0.0
        assert len(each.readings_ms) == READINGS
        assert all(15.0 < reading <= 20.0 for reading in each.readings_ms)
    assert [each.disturbed for each in whole.members] == [False, True, False]
