# SPDX-License-Identifier: Apache-2.0
"""The scheduler's view of the fleet and the agents' reporter, against a real Placement with 10,000 hosts

Placement (the real application on SQLite, bulk-filled) serves HTTP on loopback from a process of its own, so memory and
bytes are the reader's. Measured: a complete reading, an unchanged comparison, a comparison after 1 % of the hosts
changed, and a reporter's pass over a host in its desired state.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from keystoneauth1 import adapter, session, token_endpoint

from benchmarks import report
from benchmarks.placement_server import root_uuid, tree
from placement_traits import names
from placement_traits.client import PlacementClient
from placement_traits.reporter import Reporter, child_uuid
from placement_traits.view import FleetView, ViewSettings

clock = time.perf_counter


@contextmanager
def placement(hosts: int) -> Iterator[tuple[adapter.Adapter, int]]:
    """Start Placement with so many hosts; yields an adapter and the number of providers."""
    command = [sys.executable, "-m", "benchmarks.placement_server", str(hosts)]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port, providers = server.stdout.readline().split()
        auth = token_endpoint.Token(f"http://127.0.0.1:{port}", "admin")
        yield adapter.Adapter(session.Session(auth), service_type="placement"), int(providers)
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


def change(client: PlacementClient, numbers: range) -> None:
    """Hold back some bandwidth on one L3 domain of each of these hosts, as their agents would."""
    for number in numbers:
        provider = child_uuid(root_uuid(number), f"host{number}:l3_0")
        path = f"/resource_providers/{provider}/inventories"
        body = client.get(path)
        body["inventories"][names.MEMORY_BANDWIDTH_MBPS]["reserved"] += 500
        client.put(path, body)


def view_figures(http: adapter.Adapter, hosts: int) -> dict[str, float]:
    """Complete, unchanged and incremental readings."""
    before = rss_mb()
    view = FleetView(http, ViewSettings(full_interval_s=1e9), background=False)
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
    with placement(arguments.hosts) as (http, providers):
        report.progress(
            f"Placement with {arguments.hosts} hosts, {providers} providers: {clock() - start:.0f} s"
        )
        figures = {**view_figures(http, arguments.hosts), **reporter_figures(http)}
    rounded = {name: round(value, 3) for name, value in figures.items()}
    source = {"hosts": arguments.hosts, "providers": providers, "database": "SQLite in memory"}
    report.finish("view", "measured", rounded, source, arguments.json)


if __name__ == "__main__":
    main()
