# SPDX-License-Identifier: Apache-2.0
"""``python -m nova_numa_ext.simulator``: what would these GPU placement policies do with this workload?"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TextIO

from nova_numa_ext.gpu_files import read_profiles
from nova_numa_ext.policy.gpu.graph import GpuGraph
from nova_numa_ext.policy.gpu.job import ProfileStore
from nova_numa_ext.policy.gpu.utility import THIRDS, UtilityOptions
from nova_numa_ext.simulator import metrics
from nova_numa_ext.simulator.gpu.cluster import strategy_class
from nova_numa_ext.simulator.gpu.machines import fleet
from nova_numa_ext.simulator.gpu.simulation import Simulation, SimulationRun, StrategyView
from nova_numa_ext.simulator.gpu.workload import (
    Model,
    Submission,
    load_model,
    poisson,
    read_trace,
    write_trace,
)
from placement_traits.command_line import add_version
from placement_traits.errors import InvalidValueError, NumaExtError
from placement_traits.words import counted

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
        metavar="<type:count>[,…]",
        help="Machines, such as minsky:800,dgx1:200 (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs", type=int, default=100, metavar="<number>", help="Jobs to draw (default: 100)"
    )
    parser.add_argument(
        "--rate-per-min",
        type=float,
        metavar="<number>",
        help="Mean arrivals per minute, Poisson (default: 2 per machine)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="<number>", help="Of the workload (default: 0)"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="<file>", help="CSV workload instead of drawn jobs"
    )
    parser.add_argument(
        "--bandwidth-mbps",
        type=int,
        metavar="<MB/s>",
        help="Memory bandwidth of each machine, MB/s, for traces that ask for some (default: not counted)",
    )
    parser.add_argument(
        "--write-trace", type=Path, metavar="<file>", help="Write the workload as CSV"
    )
    parser.add_argument(
        "--profiles",
        type=Path,
        metavar="<file>",
        help="Measured profiles (YAML or JSON) for the types of a trace",
    )
    parser.add_argument(
        "--strategies",
        default="fcfs,bf,topo,topo_p",
        metavar="<strategy>[,…]",
        help="Which to run (default: %(default)s)",
    )
    parser.add_argument(
        "--utility-weights",
        metavar="<comm>,<interference>,<fragmentation>",
        help="Three numbers with sum 1 (default: one third each)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="<folder>",
        help="Folder for results.json, jobs.csv and plots (PNG)",
    )


def simulate(
    graphs: Sequence[GpuGraph],
    submissions: Sequence[Submission],
    strategies: Sequence[str],
    store: ProfileStore,
    options: UtilityOptions = THIRDS,
    *,
    bandwidth_mbps: int | None = None,
    progress: Callable[[str, int, int], None] = lambda strategy, ended, total: None,
) -> list[SimulationRun]:
    """Run several strategies over one workload.

    :param bandwidth_mbps: memory bandwidth of each machine, MB/s; None when it is not counted
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
            StrategyView(bandwidth_mbps, options=options),
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


def run(args: argparse.Namespace, progress: Callable[[str, int, int], None]) -> list[SimulationRun]:
    """Run the simulation that the options of :func:`add_arguments` describe and write the files they name.

    :raises NumaExtError: for a value that is not allowed
    """
    graphs = fleet(args.fleet)
    strategies = list(dict.fromkeys(args.strategies.split(",")))
    for name in strategies:
        strategy_class(name)
    options = _options(args.utility_weights)
    if args.bandwidth_mbps is not None and args.bandwidth_mbps < 1:
        raise InvalidValueError("--bandwidth-mbps", args.bandwidth_mbps, "a number >= 1")
    model = load_model()
    submissions, store = _workload(args, model, len(graphs))
    try:
        if args.write_trace is not None:
            with args.write_trace.open("w", newline="") as file:
                write_trace(submissions, file)
        if args.output is not None:
            args.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = f"a place that can be written to ({error.strerror})"
        raise InvalidValueError("output", error.filename, allowed) from error
    runs = simulate(
        graphs,
        submissions,
        strategies,
        store,
        options,
        bandwidth_mbps=args.bandwidth_mbps,
        progress=progress,
    )
    if args.output is not None:
        source = {
            "fleet": args.fleet,
            "workload": str(args.trace) if args.trace else f"Poisson seed {args.seed}",
            "jobs": len(submissions),
            "model": model.digest,
        }
        write_files(runs, source, args.output)
    return runs


def _workload(
    args: argparse.Namespace, model: Model, machines: int
) -> tuple[tuple[Submission, ...], ProfileStore]:
    """Read or draw the jobs; returns them and the profiles of their types."""
    if args.trace is not None:
        store = model.store()
        if args.profiles is not None:
            store = read_profiles(args.profiles, "--profiles")
        try:
            lines = args.trace.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.reason
            raise InvalidValueError("--trace", str(args.trace), f"a CSV file ({reason})") from error
        return read_trace(lines, model, store, str(args.trace)), store
    if args.profiles is not None:
        raise InvalidValueError("--profiles", str(args.profiles), "only together with --trace")
    if args.jobs < 1:
        raise InvalidValueError("--jobs", args.jobs, "a number >= 1")
    rate = 2.0 * machines if args.rate_per_min is None else args.rate_per_min
    if not 0 < rate < math.inf:
        raise InvalidValueError("--rate-per-min", rate, "a number > 0")
    return poisson(model, args.jobs, rate, args.seed), model.store()


def _options(text: str | None) -> UtilityOptions:
    if text is None:
        return THIRDS
    try:
        communication, interference, fragmentation = map(float, text.split(","))
    except ValueError:
        raise InvalidValueError("--utility-weights", text, "three numbers with sum 1") from None
    return UtilityOptions(communication, interference, fragmentation)


def write_files(runs: Sequence[SimulationRun], source: dict[str, object], directory: Path) -> None:
    """Write ``results.json``, ``jobs.csv`` and, where matplotlib is installed, plots, into an existing directory."""
    with (directory / "results.json").open("w") as file:
        metrics.write_json(runs, source, file)
    with (directory / "jobs.csv").open("w", newline="") as file:
        metrics.write_csv(runs, file)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    from nova_numa_ext.simulator import plots

    title = f"{counted(int(str(source['jobs'])), 'job')}, {source['fleet']}, {source['workload']} (modelled)"
    plots.sorted_slowdowns(runs, directory / "slowdowns.png", title)
    if sum(len(graph.gpus) for graph in runs[0].graphs) <= 40:
        plots.timeline(runs, directory / "timeline.png", title)


def table(runs: Sequence[SimulationRun]) -> tuple[tuple[str, ...], list[tuple[str | float, ...]]]:
    """Return columns and rows, numbers to four digits."""
    rows: list[tuple[str | float, ...]] = []
    for run in runs:
        found = metrics.summary(run)
        rows.append((run.strategy, *(float(f"{found[column]:.4g}") for column in TABLE)))
    return ("strategy", *TABLE), rows


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, simulate, print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m nova_numa_ext.simulator",
        description="Simulate GPU placement policies on a cluster; every figure is modelled.",
    )
    add_arguments(parser)
    add_version(parser)
    args = parser.parse_args(argv)
    try:
        runs = run(args, ProgressBar(sys.stderr))
    except NumaExtError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    columns, rows = table(runs)
    lines = [columns, *([f"{name}", *(f"{number:g}" for number in rest)] for name, *rest in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(cells) + "\n")
    return 0
