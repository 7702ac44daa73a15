# SPDX-License-Identifier: Apache-2.0
"""The API of jobs as its unit starts it: gunicorn, with its middleware and a database, asked over HTTP by clients."""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import requests

from benchmarks import jobs_cloud
from placement_traits.errors import NumaExtError

CLIENTS: Final = 16  # as many requests as two workers of eight threads serve at a time
_PROJECTS: Final = 8
_PAGE: Final = 1_000
_START_S: Final = 120.0
_APPLICATION: Final = "nova_numa_ext.orchestrator.wsgi:application"
_PLACEMENT: Final = """
[placement]
auth_type = password
auth_url = {cloud}/v3
username = jobs
password = jobs
user_domain_id = default
project_name = jobs
project_domain_id = default
valid_interfaces = public
[keystone_authtoken]
auth_section = placement
service_token_roles_required = true
"""


class NotServedError(NumaExtError):
    """The API does not start, or answers otherwise than it should."""


@contextmanager
def served(database: str) -> Iterator[str]:
    """Serve the API with two workers of eight threads, before a stand-in for the cloud's services; yield its URL.

    :param database: URL of its database, with our tables
    :raises NotServedError: it does not start
    """
    with tempfile.TemporaryDirectory() as folder, _cloud() as cloud:
        file, log = Path(folder, "jobs.conf"), Path(folder, "log")
        file.write_text(f"[database]\nconnection = {database}\n{_PLACEMENT.format(cloud=cloud)}")
        command = [sys.executable, "-W", "ignore", "-m", "gunicorn", "--bind", "127.0.0.1:0"]
        with log.open("w") as output:
            server = subprocess.Popen(
                [*command, "--workers", "2", "--threads", "8", "--timeout", "60", _APPLICATION],
                env=os.environ | {"NUMA_EXT_JOBS_CONFIG": str(file), "HOME": folder},
                stdout=output,
                stderr=output,
            )
        try:
            yield _address(server, log)
        finally:
            server.terminate()
            server.wait()


@contextmanager
def _cloud() -> Iterator[str]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.jobs_cloud"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.stdin.close()


def _address(server: "subprocess.Popen[bytes]", log: Path) -> str:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and server.poll() is None:
        found = re.search(r"Listening at: (http://[\d.:]+)", log.read_text())
        if found:
            return found[1]
        time.sleep(0.05)
    raise NotServedError(f"gunicorn does not listen: {log.read_text()[-2000:]}")


def submit_per_s(url: str, jobs: int) -> float:
    """Return how many jobs a second the API stores for clients of several projects, each of which waits for its answer.

    :param url: of :func:`served`
    :raises NotServedError: a job is refused
    """
    own = threading.local()

    def submit(number: int) -> None:
        if not hasattr(own, "http"):
            own.http = requests.Session()
        token = f"project-{number % _PROJECTS}"
        _asked(own.http, "POST", f"{url}/v1/jobs", token, json={"job": _job(number)})

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(submit, range(-2 * CLIENTS, 0)))  # each process has seen the tokens
        began = time.perf_counter()
        done = sum(1 for _ in clients.map(submit, range(jobs)))
        return done / (time.perf_counter() - began)


def listed_ms(url: str) -> tuple[float, int]:
    """Return what a client waits for a page of 1,000 jobs of all projects, the median of nine, and how many it got."""
    took, found = [], 0
    with requests.Session() as http:
        for _ in range(9):
            began = time.perf_counter()
            path = f"{url}/v1/jobs?all_projects=true&limit={_PAGE}"
            found = len(_asked(http, "GET", path, jobs_cloud.ADMIN)["jobs"])
            took.append(1e3 * (time.perf_counter() - began))
    return statistics.median(took), found


def _job(number: int) -> Mapping[str, Any]:
    """A job of one or two parts."""
    parts: Sequence[Mapping[str, Any]] = [
        {
            "name": name,
            "count": 1 + number % 4,
            "flavor": jobs_cloud.FLAVOR,
            "image": jobs_cloud.IMAGE,
            "networks": ["network"],
        }
        for name in ("first", "second")[: 1 + (number % 10 == 0)]
    ]
    return {"name": f"bench {number}", "parts": parts, "walltime_s": 3600}


def _asked(http: requests.Session, method: str, url: str, token: str, **body: Any) -> Any:
    answer = http.request(method, url, headers={"X-Auth-Token": token}, timeout=60, **body)
    if not answer.ok:
        raise NotServedError(f"{method} {url} is answered with {answer.status_code}: {answer.text}")
    return answer.json()
