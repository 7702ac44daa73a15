# SPDX-License-Identifier: Apache-2.0
"""``python -m nova_numa_ext.simulator``: what would these GPU placement policies do with this workload?"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TextIO

import yaml

from nova_numa_ext.policy.gpu_graph import GpuGraph
from nova_numa_ext.policy.gpu_job import ProfileStore, parse_profiles
from nova_numa_ext.policy.gpu_utility import THIRDS, UtilityOptions
from nova_numa_ext.simulator import metrics
from nova_numa_ext.simulator.cluster import strategy_class
from nova_numa_ext.simulator.engine import Run, Simulation
from nova_numa_ext.simulator.machines import fleet
from nova_numa_ext.simulator.workload import (
    Submission,
    load_model,
    poisson,
    read_trace,
    write_trace,
)
from placement_traits.errors import InvalidValueError, NumaExtError

TABLE: Final = (
    "makespan_s",
    "slowdown_mean",
    "slowdown_with_waiting_mean",
    "waiting_mean_s",
    "slo_violations",
    "below_min_utility",
    "utilisation",
    "fragmentation",
    "decision_mean_ms",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the simulator's options to a parser, ours or that of ``openstack numa simulate trace``."""
    parser.add_argument(
        "--fleet",
        default="minsky:5",
        metavar="TYPE:COUNT[,…]",
        help="machines, such as minsky:800,dgx1:200 (default: %(default)s)",
    )
    parser.add_argument("--jobs", type=int, default=100, help="jobs to draw (default: 100)")
    parser.add_argument(
        "--rate-per-min",
        type=float,
        help="mean arrivals per minute, Poisson (default: 2 per machine)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the workload (default: 0)")
    parser.add_argument("--trace", type=Path, help="CSV workload instead of drawn jobs")
    parser.add_argument("--write-trace", type=Path, help="write the workload as CSV")
    parser.add_argument(
        "--profiles", type=Path, help="measured profiles (YAML or JSON) for the types of a trace"
    )
    parser.add_argument(
        "--strategies", default="fcfs,bf,topo,topo_p", help="which to run (default: %(default)s)"
    )
    parser.add_argument(
        "--utility-weights",
        metavar="COMM,INTERFERENCE,FRAGMENTATION",
        help="three numbers with sum 1 (default: one third each)",
    )
    parser.add_argument(
        "--output", type=Path, help="directory for results.json, jobs.csv and plots (PNG)"
    )


def simulate(
    graphs: Sequence[GpuGraph],
    submissions: Sequence[Submission],
    strategies: Sequence[str],
    store: ProfileStore,
    options: UtilityOptions = THIRDS,
    *,
    progress: Callable[[str, int, int], None] = lambda strategy, ended, total: None,
) -> list[Run]:
    """Run several strategies over one workload.

    :param progress: called with (strategy, jobs ended, jobs) after every job
    """
    runs = []
    for name in strategies:

        def on_end(ended: int, name: str = name) -> None:
            progress(name, ended, len(submissions))

        simulation = Simulation(
            graphs,
            submissions,
            name,
            store,
            options=options,
            clock=time.perf_counter,
            on_end=on_end,
        )
        runs.append(simulation.run())
    return runs


class ProgressBar:
    """One line on a terminal per strategy, with the time left; silent elsewhere."""

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._strategy = ""
        self._began_s = self._drawn_s = clock()

    def __call__(self, strategy: str, ended: int, total: int) -> None:
        """Draw the state, ten times a second at most."""
        if not self._file.isatty():
            return
        now = self._clock()
        if strategy != self._strategy:
            self._strategy, self._began_s, self._drawn_s = strategy, now, 0.0
        if ended < total and now - self._drawn_s < 0.1:
            return
        self._drawn_s = now
        left_s = (now - self._began_s) / ended * (total - ended)
        bar = "#" * (30 * ended // total)
        end = "\n" if ended == total else ""
        self._file.write(f"\r{strategy:10} [{bar:30}] {ended}/{total} {left_s:5.0f} s left{end}")
        self._file.flush()


def run(args: argparse.Namespace, progress: Callable[[str, int, int], None]) -> list[Run]:
    """Do what the options of :func:`add_arguments` say and write the files they name.

    :raises NumaExtError: for a value that is not allowed
    """
    model = load_model()
    graphs = fleet(args.fleet)
    strategies = args.strategies.split(",")
    for name in strategies:
        strategy_class(name)
    store = model.store()
    if args.profiles is not None:
        store = parse_profiles(yaml.safe_load(args.profiles.read_text()), str(args.profiles))
    if args.trace is not None:
        lines = args.trace.read_text().splitlines()
        submissions = read_trace(lines, model, store, str(args.trace))
    elif args.profiles is not None:
        raise InvalidValueError("--profiles", args.profiles, "only together with --trace")
    else:
        rate = 2.0 * len(graphs) if args.rate_per_min is None else args.rate_per_min
        submissions = poisson(model, args.jobs, rate, args.seed)
    if args.write_trace is not None:
        with args.write_trace.open("w", newline="") as file:
            write_trace(submissions, file)
    runs = simulate(
        graphs, submissions, strategies, store, _options(args.utility_weights), progress=progress
    )
    if args.output is not None:
        source = {
            "fleet": args.fleet,
            "workload": str(args.trace) if args.trace else f"poisson seed {args.seed}",
            "jobs": len(submissions),
            "model": model.digest,
        }
        write_files(runs, source, args.output)
    return runs


def _options(text: str | None) -> UtilityOptions:
    if text is None:
        return THIRDS
    try:
        communication, interference, fragmentation = map(float, text.split(","))
    except ValueError:
        raise InvalidValueError("--utility-weights", text, "three numbers with sum 1") from None
    return UtilityOptions(communication, interference, fragmentation)


def write_files(runs: Sequence[Run], source: dict[str, object], directory: Path) -> None:
    """Write ``results.json``, ``jobs.csv`` and, where matplotlib is installed, plots."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "results.json").open("w") as file:
        metrics.write_json(runs, source, file)
    with (directory / "jobs.csv").open("w", newline="") as file:
        metrics.write_csv(runs, file)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    from nova_numa_ext.simulator import plots

    title = f"{source['jobs']} jobs, {source['fleet']}, {source['workload']} (modelled)"
    plots.sorted_slowdowns(runs, directory / "slowdowns.png", title)
    if sum(len(graph.gpus) for graph in runs[0].graphs) <= 40:
        plots.timeline(runs, directory / "timeline.png", title)


def table(runs: Sequence[Run]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return columns and rows for a terminal."""
    rows = [
        (run.strategy, *(f"{metrics.summary(run)[column]:.4g}" for column in TABLE)) for run in runs
    ]
    return ("strategy", *TABLE), rows


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, simulate, print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m nova_numa_ext.simulator",
        description="Simulate GPU placement policies on a cluster; every figure is modelled.",
    )
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        runs = run(args, ProgressBar(sys.stderr))
    except (NumaExtError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    columns, rows = table(runs)
    widths = [max(len(line[i]) for line in (columns, *rows)) for i in range(len(columns))]
    for line in (columns, *rows):
        cells = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(cells) + "\n")
    return 0
