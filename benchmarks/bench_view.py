# SPDX-License-Identifier: Apache-2.0
"""The scheduler's view of the fleet and the agents' reporter, against a real Placement with 10,000 hosts

Placement (the real application on SQLite, bulk-filled) serves HTTP on loopback from a process of its own, so memory and
bytes are the reader's. Measured: a complete reading, an unchanged comparison, a comparison after 1 % of the hosts
changed, a reporter's pass over a host in its desired state, and what the beats of all agents cost Placement.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from keystoneauth1 import adapter, session, token_endpoint

from benchmarks import report
from benchmarks.placement_server import root_uuid, tree
from placement_traits import beats, names
from placement_traits.client import PlacementClient
from placement_traits.known_providers import child_uuid
from placement_traits.reporter import Reporter
from placement_traits.view import FleetView, ViewSettings

clock = time.perf_counter

BEATS: Final = 1_000
CONTROLLERS: Final = 3


@contextmanager
def placement(hosts: int, free: int = 0) -> Iterator[tuple[adapter.Adapter, int, int]]:
    """Start Placement with so many hosts; yields an adapter, the number of providers, and the server's pid.

    :param free: one of so many has room, see :func:`.placement_server.is_full`; 0: nothing is on any host
    """
    with served("benchmarks.placement_server", str(hosts), str(free)) as (http, words, pid):
        yield http, int(words[0]), pid


@contextmanager
def served(module: str, *arguments: str) -> Iterator[tuple[adapter.Adapter, list[str], int]]:
    """Start a module that serves Placement until its standard input ends; yields an adapter, and the process's id.

    Between them are the words that it prints behind its port.
    """
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port, *words = server.stdout.readline().split()
        auth = token_endpoint.Token(f"http://127.0.0.1:{port}", "admin")
        http = adapter.Adapter(session.Session(auth), service_type="placement")
        yield http, words, server.pid
    finally:
        server.stdin.close()
        server.wait()


def rss_mb() -> float:
    """Highest resident memory of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(work: Callable[[], object]) -> float:
    """Seconds that a piece of work takes."""
    start = clock()
    work()
    return clock() - start


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def change(client: PlacementClient, numbers: range) -> None:
    """Hold back some bandwidth on one L3 domain of each of these hosts, as their agents would."""
    for number in numbers:
        provider = child_uuid(root_uuid(number), f"host{number}:l3_0")
        path = f"/resource_providers/{provider}/inventories"
        body = client.get(path)
        body["inventories"][names.MEMORY_BANDWIDTH_MBPS]["reserved"] += 500
        client.put(path, body)


def view_figures(view: FleetView, http: adapter.Adapter, hosts: int) -> dict[str, float]:
    """Complete, unchanged and incremental readings."""
    before = rss_mb()
    full_s = timed(view.refresh)
    seen = view.snapshot()
    assert len(seen.hosts) == hosts
    full = view.stats
    report.progress(
        f"  complete: {full_s:.2f} s, {full.requests} requests, {full.bytes_read / 1e6:.1f} MB"
    )
    unchanged_s = statistics.median(timed(view.refresh) for _ in range(3))
    idle = view.stats
    report.progress(f"  unchanged: {unchanged_s:.2f} s")
    changed = range(0, hosts, 100)
    change(PlacementClient(http), changed)
    incremental_s = timed(view.refresh)
    stats = view.stats
    assert stats.trees_read == len(changed)
    for number in changed:
        host = view.snapshot().host(root_uuid(number))
        assert host is not None
        assert host.l3[0].bandwidth_mbps is not None
        assert host.l3[0].bandwidth_mbps.capacity == 9_500
    report.progress(f"  {len(changed)} hosts changed: {incremental_s:.2f} s")
    return {
        "view_full_s": full_s,
        "view_incremental_s": incremental_s,
        "view_unchanged_s": unchanged_s,
        "view_rss_mb": rss_mb() - before,
        "view_requests": full.requests,
        "view_incremental_requests": stats.requests - idle.requests,
        "view_mb": full.bytes_read / 1e6,
        "view_incremental_mb": (stats.bytes_read - idle.bytes_read) / 1e6,
    }


def beat_figures(
    view: FleetView, http: adapter.Adapter, hosts: int, server: int
) -> dict[str, float]:
    """What beats cost Placement: each agent writes one in half an hour, each controller's complete reading lists them.

    :param server: pid of Placement
    """
    client = PlacementClient(http)
    writers = [beats.BeatWriter(client, tree(number).root) for number in range(min(BEATS, hosts))]
    for writer in writers:  # as an agent that has just started
        writer.age_minutes()
    trees, began = view.stats.trees_read, cpu_s(server)
    written_s = timed(lambda: [writer.beat() for writer in writers])
    beat_s = (cpu_s(server) - began) / len(writers)
    view.refresh()
    octets, began = client.counters.bytes_read, cpu_s(server)
    listed_s = timed(lambda: beats.living(client))
    list_s = cpu_s(server) - began
    written = hosts * beat_s / (60 * beats.EVERY_MINUTES)
    read = CONTROLLERS * list_s / ViewSettings().full_interval_s
    report.progress(f"  beats: {1e3 * beat_s:.1f} ms of Placement's processor each")
    return {
        "beat_ms": 1e3 * written_s / len(writers),
        "beat_placement_cpu_ms": 1e3 * beat_s,
        "beats_listed_s": listed_s,
        "beats_listed_mb": (client.counters.bytes_read - octets) / 1e6,
        "beats_placement_cores": written + read,
        "beats_trees_read": view.stats.trees_read - trees,
    }


def reporter_figures(http: adapter.Adapter) -> dict[str, float]:
    """A pass over hosts in their desired state: by an agent that has just started, and by one that has run."""
    first, again = [], []
    for number in range(1, 40):
        reporter = Reporter(PlacementClient(http))
        desired = tree(number)
        start = clock()
        cold = reporter.sync(desired)
        middle = clock()
        warm = reporter.sync(desired)
        again.append(((clock() - middle) * 1e3, warm.requests))
        first.append(((middle - start) * 1e3, cold.requests))
        assert cold.writes == warm.writes == 0
    report.progress(f"  reporter: {len(first)} hosts, nothing written")
    return {
        "reporter_noop_ms": statistics.median(ms for ms, _ in again),
        "reporter_noop_requests": statistics.median(n for _, n in again),
        "reporter_restart_ms": statistics.median(ms for ms, _ in first),
        "reporter_restart_requests": statistics.median(n for _, n in first),
    }


def main() -> None:
    """Run all parts."""
    options = report.parser(__doc__)
    options.add_argument("--hosts", type=int, default=int(os.environ.get("HOSTS", "10000")))
    arguments = options.parse_args()
    start = clock()
    with placement(arguments.hosts) as (http, providers, server):
        report.progress(
            f"Placement with {arguments.hosts} hosts, {providers} providers: {clock() - start:.0f} s"
        )
        view = FleetView(http, ViewSettings(full_interval_s=1e9), background=False)
        figures = {
            **view_figures(view, http, arguments.hosts),
            **beat_figures(view, http, arguments.hosts, server),
            **reporter_figures(http),
        }
    rounded = {name: round(value, 3) for name, value in figures.items()}
    source = {
        "hosts": arguments.hosts,
        "providers": providers,
        "database": "SQLite in memory",
        "controllers": CONTROLLERS,
    }
    report.finish("view", "measured", rounded, source, arguments.json)


if __name__ == "__main__":
    main()
