# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus server over exporters, and what our dashboards ask it."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import MappingProxyType

import pytest
import requests
import yaml

from tests.support.ports import free_port
from tools.dashboards import FOLDER

RULES = FOLDER.parent / "prometheus/numa-ext.rules.yaml"
BOARDS = sorted(file.stem for file in FOLDER.glob("*.json"))
# What the variables of the dashboards offer: metric and label.
VARIABLES = {
    "$instance": ("numa_ext_build_info", "instance"),
    "$server": ("numa_ext_server_memory_mb", "server"),
}
# What components of the lab have no series for, by the cause: parts of a panel's expression.
LACKS = {
    "no objective is reported": {
        "rate(numa_ext_server_slo_violation_seconds_total",
        "sum(numa_ext_server_slo_unwatched)",
        "numa_ext_server_slo_p99_us",
        "numa_ext_server_slo_ratio",
        "numa_ext_server_slo_state",
        "numa_ext_server_slo_unwatched",
        "numa_ext_server_slo_unsatisfiable",
        "numa_ext_server_account_spent_seconds",
        "deriv(numa_ext_slo_feed",
        "rate(numa_ext_server_request_seconds_count",
        "numa_ext_balm_phase",
        "numa_ext_server_memory_mbps",
        "numa_ext_server_traffic_mbps",
    },
    "all was enforced, and no server refused": {
        "numa_ext_scheduler_refused_hosts_total",
        "numa_ext_scheduler_would_refuse_hosts_total",
    },
    "no job was refused, none has failed": {
        'numa_ext_jobs_moves_total{state="queued"}',
        'numa_ext_jobs_moves_total{state="failed"}',
    },
    "servers of the lab have no interface": {
        "rate(numa_ext_server_network_bytes_total",
        "numa_ext_server_network_class",
    },
    "all memory is in its place": {"numa_ext_server_misplaced_mb"},
    "emulated processors count nothing": {
        "numa_ext_server_ipc",
        "numa_ext_server_mpi",
        "numa_ext_server_stall_rate",
        "numa_ext_server_deviation",
    },
}


def unexplained(
    empty: Iterable[tuple[str, str]], lacks: Mapping[str, Collection[str]] = MappingProxyType(LACKS)
) -> set[tuple[str, str]]:
    """Return those panels, title and expression, that are empty for no cause that is named."""
    causes = [part for parts in lacks.values() for part in parts]
    return {panel for panel in empty if not any(part in panel[1] for part in causes)}


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

    def values(self, metric: str, label: str) -> list[str]:
        """What a variable of a dashboard offers."""
        found = self.get(f"label/{label}/values", **{"match[]": metric})
        assert isinstance(found, list)
        return found

    def empty_panels(self, board: str, window: str, **variables: str) -> list[tuple[str, str]]:
        """Titles and expressions of a dashboard that have no series.

        :param window: what Grafana puts in for ``$__rate_interval``
        :param variables: chosen values, by the variable's name
        """
        found = json.loads((FOLDER / f"{board}.json").read_text())
        return [
            (panel["title"], target["expr"])
            for panel in found["panels"]
            for target in panel["targets"]
            if not self.series(_asked(target["expr"], window, variables))
        ]

    def has_scraped(self, targets: int) -> bool:
        """All targets have been scraped some times."""
        try:
            return self.series("count_over_time(up[5m]) >= 4 and up == 1") == targets
        except (requests.ConnectionError, AssertionError):
            return False


def _asked(expression: str, window: str, variables: Mapping[str, str]) -> str:
    for name, text in (*variables.items(), ("__rate_interval", window)):
        expression = expression.replace(f"${name}", text)
    return expression


@contextmanager
def shown_page(page: Callable[[str], bytes]) -> Iterator[str]:
    """Show a page of metrics on loopback as an exporter does; yields the address.

    :param page: path that is asked for -> the page, made for each request
    """

    class Shown(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Prometheus has its own log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Shown)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def prometheus_server(
    folder: Path,
    jobs: Mapping[str, Sequence[str]],
    interval_s: int,
    patience_s: float = 60,
    port: int | None = None,
) -> Iterator[Prometheus]:
    """Start the server of Debian's package; it has scraped all targets some times.

    :param folder: what it has stored there before, it knows
    :param jobs: addresses of targets by the name of their scrape job
    :param port: of loopback; None: any that is free
    """
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: prometheus; make test installs it)")
    scraped = [
        {"job_name": job, "static_configs": [{"targets": list(targets)}]}
        for job, targets in jobs.items()
    ]
    every = {"scrape_interval": f"{interval_s}s", "evaluation_interval": f"{interval_s}s"}
    config = {"global": every, "rule_files": [str(RULES)], "scrape_configs": scraped}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{port or free_port()}"
    words = (
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([program, *words], stdout=log, stderr=log)
    found, targets = Prometheus(f"http://{address}"), sum(map(len, jobs.values()))
    try:
        end = time.monotonic() + patience_s
        while not found.has_scraped(targets):
            assert time.monotonic() < end, (folder / "log").read_text()
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.5)
        yield found
    finally:
        process.terminate()
        process.wait(30)
