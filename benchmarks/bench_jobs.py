# SPDX-License-Identifier: Apache-2.0
"""The job service on a large cloud: how long a round of its queue takes, alone and with all that it reads

First the queue alone: 1,000 jobs wait beside 10,000 hosts that are nearly full; the planner of hosts and GPUs answers
about them under each discipline, and under EASY with preemption and with limits of projects. Processor time of one
thread; nothing is remembered of an earlier round.

Then the whole round, in a process as the engine's: 1,000 jobs that wait and 9,000 that run are read from a MariaDB (or
from SQLite, where none is installed), the hosts from a Placement that serves HTTP beside it; by a process that has just
begun, once more, and a third time with the hosts of the second, which an engine reads each 10 s at most. Processor time
and memory of that process.

Then the API on the same database: gunicorn with two workers and all its middleware, asked over HTTP by 16 clients,
before a stand-in for Keystone, nova, Glance and Neutron that answers at once. How many jobs a second it stores (beside
it what the store alone does, for one client), and how long a client waits for a page of 1,000 of them.

Then claims, where MariaDB is installed: how many jobs a second an engine's eight workers take from PLANNED to CLAIMED,
database and Placement on one MariaDB; beside it how many allocations Placement writes for as many clients.

Last, how many of 5,000 simulated jobs start, or are stopped, at another time than in the reference queue of the tests,
which shares no code with ours: under each discipline, with preemption and without.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from benchmarks import jobs_api, jobs_claims, mariadb, report
from benchmarks.bench_view import change, placement, served
from benchmarks.jobs_round import drawn, one_round
from benchmarks.jobs_service import engine, store
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.policy.jobs.limits import Limits
from nova_numa_ext.policy.jobs.queue_settings import Discipline, QueueSettings
from placement_traits.client import PlacementClient
from placement_traits.errors import NumaExtError

WAITING, RUNNING, SEED = 1_000, 9_000, 1
SUBMITTED: Final = 500
ROOT: Final = Path(__file__).parents[1]
ORDER_TEST: Final = "tests/unit/nova_numa_ext/policy/jobs/test_order.py"
FREE: Final = 32  # of so many hosts one has room
ROUNDS = {discipline.value: QueueSettings(discipline) for discipline in Discipline} | {
    "preempt": QueueSettings(Discipline.EASY, preempt=True),
    "limits": QueueSettings(Discipline.EASY, default_limits=Limits(servers=200)),
}


def queue_alone(hosts: int) -> tuple[dict[str, float], int]:
    """Return what rounds take without reading anything, and how many jobs run beside."""
    report.progress(f"{WAITING} jobs and {hosts} hosts are drawn …")
    given = drawn(hosts, WAITING, SEED)
    took, rows = {}, []
    for name, settings in ROUNDS.items():
        before = time.process_time()
        found = one_round(given, settings)
        took[name] = time.process_time() - before
        stopped = len(found.preempted)
        rows.append((name, took[name], len(found.starts), len(found.waits), stopped))
    report.table(("discipline", "round s", "start", "wait", "stopped"), rows)
    return {f"round_s_{name}": seconds for name, seconds in took.items()}, len(given.active)


@contextmanager
def jobs_database() -> Iterator[str]:
    """Make a database with our tables; yield its URL."""
    if not Path(mariadb.SERVER).exists():
        with tempfile.TemporaryDirectory() as folder:
            yield _synced(f"sqlite:///{folder}/jobs.db")
        return
    with mariadb.mariadb() as server:
        mariadb.create(server, "jobs")
        yield _synced(server.url.format("jobs"))


def _synced(url: str) -> str:
    Database(url).sync()
    return url


def whole_rounds(hosts: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return what rounds take with all that they read, and of what."""
    with jobs_database() as url, placement(hosts, FREE) as (http, providers, _server):
        report.progress(f"Placement has {hosts} hosts, {providers} providers; jobs are stored …")
        store_per_s = store(Database(url), hosts, FREE, waiting=WAITING, running=RUNNING, seed=SEED)
        with engine(url, http.get_endpoint()) as process:
            first = process.round()
            change(PlacementClient(http), range(0, hosts, 100))
            later = process.round()
            same = process.round(hosts=False)
        with jobs_api.served(url) as api:
            list_ms, listed = jobs_api.listed_ms(api)
            submit_per_s = jobs_api.submit_per_s(api, SUBMITTED)
        report.progress(
            f"  {submit_per_s:.0f} jobs a second by the API, {store_per_s:.0f} by the store alone; a page of "
            f"{listed} takes {list_ms:.0f} ms"
        )
        database = url.partition(":")[0]
    columns = ("cpu_s", "jobs_cpu_s", "hosts_cpu_s", "s", "starts", "waits", "running", "rss_mb")
    rows = [
        (name, *(found[each] for each in columns))
        for name, found in (("first", first), ("later", later), ("same hosts", same))
    ]
    report.table(("round", *columns), rows)
    figures = {
        "round_s_1000_waiting_10000_hosts": later["cpu_s"],
        "round_s_all_hosts_read": first["cpu_s"],
        "round_s_same_hosts": same["cpu_s"],
        "jobs_read_s": later["jobs_cpu_s"],
        "hosts_read_s": later["hosts_cpu_s"],
        "rss_mb_10k": later["rss_mb"],
        "submit_per_s": submit_per_s,
        "store_per_s": store_per_s,
        "api_list_1000_ms": list_ms,
    }
    return figures, {"database": database, "providers": providers}


def claims(jobs: int) -> dict[str, float]:
    """Return how many claims are written in a second; nothing without a MariaDB."""
    if not Path(mariadb.SERVER).exists():
        return {}
    with mariadb.mariadb() as server:
        for name in ("jobs", "placement"):
            mariadb.create(server, name)
        database = Database(_synced(server.url.format("jobs")))
        with served("benchmarks.placement_on_mariadb", server.url.format("placement")) as (
            http,
            _,
            _,
        ):
            made = jobs_claims.providers(http, jobs)
            floor = jobs_claims.floor_per_s(http, made, jobs)
            found = jobs_claims.claims_per_s(database, http, made, jobs, random.Random(SEED))
    report.progress(f"  {found:.0f} claims a second; Placement alone writes {floor:.0f}")
    return {"claims_per_s": found, "placement_claims_per_s": floor}


def order_violations() -> dict[str, int]:
    """Return how many simulated jobs go otherwise than in the reference queue, which is a test's own.

    :raises NumaExtError: the test does not say
    """
    report.progress("5,000 jobs run in our queue and in the reference queue …")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "junit.xml")
        words = (
            "-q",
            "--long",
            "-p",
            "no:cacheprovider",
            "-o",
            "timeout=0",
            "-o",
            "junit_family=xunit1",
        )
        subprocess.run(
            [sys.executable, "-m", "pytest", *words, f"--junitxml={file}", ORDER_TEST],
            cwd=ROOT,
            check=False,
        )
        found = [
            int(each.get("value", ""))
            for each in ElementTree.parse(file).iter("property")
            if each.get("name") == "order_violations"
        ]
    if len(found) != 2 * len(Discipline):
        raise NumaExtError(f"{ORDER_TEST} says {len(found)} numbers of order violations.")
    return {"order_violations": sum(found)}


def main() -> None:
    """Run the benchmark."""
    options = report.parser(__doc__)
    options.add_argument("--hosts", type=int, default=10_000)
    options.add_argument("--claims", type=int, default=1_000, help="jobs that claim something")
    arguments: argparse.Namespace = options.parse_args()
    alone, beside = queue_alone(arguments.hosts)
    whole, of_what = whole_rounds(arguments.hosts)
    source = {
        "hosts": arguments.hosts,
        "waiting": WAITING,
        "running": RUNNING,
        "running_beside_queue_alone": beside,
        "seed": SEED,
        "claims": arguments.claims,
        "submitted": SUBMITTED,
        **of_what,
        "goals": {
            "round_s_1000_waiting_10000_hosts": 5.0,
            "rss_mb_10k": 1000.0,
            "order_violations": 0,
        },
    }
    found = whole | alone | claims(arguments.claims) | order_violations()
    report.finish("jobs", "measured", found, source, arguments.json)


if __name__ == "__main__":
    main()
