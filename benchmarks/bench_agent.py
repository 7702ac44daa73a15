# SPDX-License-Identifier: Apache-2.0
"""The host agent's own cost with 6 and 100 servers: CPU time, memory and time per round, kinds of rounds apart; agent
and helper together and each

Loop, helper, sensors, executor, journal and the thread that talks to Placement are the product's; what stands below
them is described in :mod:`benchmarks.agent_world`. CPU time holds on a busy machine, too; the times of rounds do not.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import report
from benchmarks.agent_process import ROUNDS
from benchmarks.agent_world import MEMORY_MB, MODES, NAMESPACES, OLD_KERNEL, PRESET, SEARCH, VCPUS
from benchmarks.opens import ceiling
from benchmarks.stand_in import OTHERS
from host_agent.conf.agent import AgentOptions

THREADS = 1 + VCPUS + len(OTHERS)  # of a server
PROCESSES = ("agent", "helper")
GOALS = {
    "cpu_percent_6": 2.0,
    "rss_mb_6": 120.0,
    "cpu_percent_100": 10.0,
    "cpu_percent_search_6": 10.0,
    "cpu_percent_search_100": 10.0,
    "cpu_percent_100_old_kernel": 12.0,
    "opens_per_round_100": ceiling(100, 100 * THREADS),
}


def quantile(values: Sequence[tuple[float, float]], part: float) -> float:
    """Return the smallest value that at least ``part`` of the weight does not exceed.

    :param values: (value, weight) pairs
    """
    ordered = sorted(values)
    target = part * sum(weight for _, weight in ordered)
    passed = 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= target - 1e-9:
            return value
    raise ValueError("a quantile of nothing")


def loop_p99(
    kinds: Mapping[str, Mapping[str, Sequence[float]]], what: str, pace: AgentOptions
) -> float:
    """Return the 99th percentile over the rounds as the loop takes them while nothing happens.

    :param kinds: kind of round -> measure -> one figure per round
    :param what: the measure
    :param pace: how often which kind comes
    """
    full, sampled = kinds["full"][what], kinds["sampled"][what]
    others = pace.resync_s / pace.interval_s - 1
    weighted = [(value, 1 / len(full)) for value in full]
    weighted += [(value, others / len(sampled)) for value in sampled]
    return quantile(weighted, 0.99)


def figures_of(measured: Mapping[str, Any], mode: str, count: int) -> dict[str, float]:
    """Return the figures of one host by name."""
    suffix = {SEARCH: f"search_{count}", OLD_KERNEL: f"{count}_old_kernel"}.get(mode, f"{count}")
    kinds = measured["kinds"]
    figures = {
        **_of_both(measured, "cpu_percent", "cpu_percent"),
        **_of_both(measured, "rss_peak_mb", "rss_mb"),
        **_of_both(measured, "opens_per_round", "opens_per_round"),
        "loop_ms_p99": loop_p99(kinds, "wall_ms", AgentOptions()),
        "loop_cpu_ms_p99": loop_p99(kinds, "cpu_ms", AgentOptions()),
        "model_cpu_percent": measured["model_cpu_percent"],
        "wait_cpu_percent": measured["wait_cpu_percent"],
    }
    if mode == SEARCH:
        figures["searched"] = measured["searched"]
    figures |= {f"{kind}_cpu_ms": statistics.median(kinds[kind]["cpu_ms"]) for kind in ROUNDS}
    return {f"{name}_{suffix}": round(value, 3) for name, value in figures.items()}


def _of_both(measured: Mapping[str, Any], kind: str, name: str) -> dict[str, float]:
    """Return a figure of agent and helper together, which goals are for, and of each."""
    parts = {f"{name}_{process}": measured[f"{kind}_{process}"] for process in PROCESSES}
    return {name: sum(parts.values()), **parts}


def measure(count: int, mode: str, seconds: float) -> dict[str, Any]:
    """Measure the agent on one host; a host that it could not manage as a whole proves nothing about its cost.

    :raises RuntimeError: servers are not managed, something failed on them, or there was nothing to search
    """
    command = [*NAMESPACES, sys.executable, "-m", "benchmarks.agent_world"]
    words = [*command, str(count), mode, str(seconds)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if measured["managed"] != count or measured["problems"]:
        raise RuntimeError(
            f"{measured['managed']} of {count} servers are managed: {measured['problems']}"
        )
    if mode == SEARCH and not measured["searched"]:
        raise RuntimeError("no memory placement was searched")
    return measured


def main() -> None:
    """Measure each host and print the result."""
    options = report.parser(__doc__)
    options.add_argument("--counts", type=int, nargs="+", default=[6, 100], help="servers")
    options.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    options.add_argument(
        "--seconds", type=float, default=60.0, help="how long the loop runs by itself, each"
    )
    given = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-agent needs root: it mounts a model of resctrl in a namespace of its own")
    figures: dict[str, float] = {}
    for mode in given.modes:
        for count in given.counts if mode != OLD_KERNEL else [max(given.counts)]:
            report.progress(f"{count} servers, {mode}")
            found = figures_of(measure(count, mode, given.seconds), mode, count)
            report.table(("figure", "value"), found.items())
            figures |= found
    missed = {name: goal for name, goal in GOALS.items() if figures.get(name, 0.0) > goal}
    report.progress(f"goals missed: {missed}" if missed else "all goals are met")
    source = {
        "machine": PRESET,
        "server_memory_mb": MEMORY_MB,
        "seconds": given.seconds,
        "load": os.getloadavg()[0],
        "goals": GOALS,
    }
    report.finish("agent", "measured", figures, source, given.json)


if __name__ == "__main__":
    main()
