# SPDX-License-Identifier: Apache-2.0
"""``openstack numa simulate remote``: what would GPUs of other hosts give a queue of jobs? Tables, JSON, CSV, plots.

The same jobs, on the same machines of the experiments of Amaral 2019 (:mod:`.drmaestro`), in three settings of the
rounds that the service runs::

    local         each job gets GPUs of its own host only
    remote        of any host
    remote_aware  of any host, of busy networks last

With ``--rebalance`` it is another simulation, of leases that move (:mod:`.shared_report`).
"""

import argparse
import csv
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, TextIO

from nova_numa_ext.policy.remote_gpu.network import Solver
from nova_numa_ext.policy.remote_gpu.rounds import RoundSettings
from nova_numa_ext.simulator.metrics import mean, percentile
from nova_numa_ext.simulator.remote_gpu import drmaestro, shared_report
from nova_numa_ext.simulator.remote_gpu.cluster import RemoteCluster, RemoteRun
from placement_traits.errors import InvalidValueError
from placement_traits.words import counted

SETTINGS: Final = MappingProxyType(
    {
        "local": RoundSettings(disaggregated=False),
        "remote": RoundSettings(),
        "remote_aware": RoundSettings(network_aware=True),
    }
)

JOB_COLUMNS: Final = (
    "setting",
    "job",
    "arrived_s",
    "started_s",
    "ended_s",
    "waited_s",
    "slowdown",
    "remote_gpus",
)
_MOST_JOBS: Final = 10_000
_MOST_MACHINES: Final = 1_000
_MOST_CORES: Final = drmaestro.CORES // drmaestro.GPUS


@dataclass(frozen=True, slots=True)
class RemoteReplay:
    """What a setting has made of the jobs.

    :param setting: its name
    :param found: the run
    :param gpus: of all machines
    """

    setting: str
    found: RemoteRun
    gpus: int

    def figures(self) -> dict[str, float]:
        """Return who waited and was slowed, and how busy GPUs were; units are at the end of the names."""
        ran = self.found.records
        waits = [each.start_s - each.submission.arrival_s for each in ran]
        busy_s = sum(each.submission.work.gpus * (each.end_s - each.start_s) for each in ran)
        return {
            "jobs": len(ran),
            "makespan_s": self.found.makespan_s,
            "waiting_mean_s": mean(waits),
            "waiting_p95_s": percentile(waits, 0.95),
            "slowdown_mean": self.found.mean_slowdown,
            "jobs_with_remote_gpus": sum(each.remote > 0 for each in ran),
            "gpu_use": busy_s / (self.gpus * self.found.makespan_s),
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    parser.add_argument(
        "--machines",
        type=int,
        default=4,
        metavar="<number>",
        help=f"Hosts of {drmaestro.CORES} cores and {drmaestro.GPUS} GPUs (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=64,
        metavar="<number>",
        help="Jobs of one GPU each (default: %(default)s)",
    )
    parser.add_argument(
        "--cores",
        type=int,
        default=2,
        metavar="<number>",
        help="Cores of each job (default: %(default)s)",
    )
    parser.add_argument(
        "--run-time",
        type=float,
        default=drmaestro.MEAN_RUN_S[64],
        metavar="<seconds>",
        help="Mean run time of the jobs (default: %(default)s)",
    )
    parser.add_argument(
        "--spread",
        choices=[*drmaestro.SPREADS],
        default="narrow",
        help="Of the run times (default: %(default)s)",
    )
    parser.add_argument(
        "--busy-networks",
        action="store_true",
        help="Others send at each machine, at a random share of its network interface",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="<number>", help="Of the jobs (default: %(default)s)"
    )
    parser.add_argument(
        "--settings",
        default=",".join(SETTINGS),
        metavar="<setting>[,…]",
        help="Which to run (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, metavar="<folder>", help="Folder for results.json, jobs.csv, plots"
    )
    shared_report.add_arguments(parser)


def simulated(
    args: argparse.Namespace, solve: Solver, progress: Callable[[str, int, int], None]
) -> tuple[tuple[str, ...], list[tuple[str | float, ...]]]:
    """Run what the options of :func:`add_arguments` describe, and write the files that they name; return a table.

    :param solve: of flow networks
    :param progress: called with (setting or policy, jobs ended, jobs)
    :raises InvalidValueError: a value is not allowed, or a file cannot be written
    """
    if args.rebalance is None:
        _refuse(args, shared_report.OPTIONS, "only together with --rebalance")
        return table(replays(args, solve, progress))
    _refuse(args, ("cores", "busy_networks", "settings"), "nothing beside --rebalance")
    _checked(args)
    if args.output is not None:
        _made(args.output)
    return shared_report.table(shared_report.replays(args, progress))


def replays(
    args: argparse.Namespace, solve: Solver, progress: Callable[[str, int, int], None]
) -> list[RemoteReplay]:
    """Run the jobs of the options of :func:`add_arguments` in each setting, and write the files that these name.

    :param solve: of flow networks
    :param progress: called with (setting, jobs ended, jobs)
    :raises InvalidValueError: a value is not allowed, or a file cannot be written
    """
    settings = _checked(args)
    if args.output is not None:
        _made(args.output)
    found = []
    for name in settings:

        def on_end(ended: int, name: str = name) -> None:
            progress(name, ended, args.jobs)

        draw = random.Random(args.seed)
        jobs = drmaestro.jobs(
            args.jobs, args.cores, args.run_time, drmaestro.SPREADS[args.spread], draw
        )
        held = drmaestro.cpu_work(args.machines, args.cores, draw)
        loads = [draw.random() for _ in range(args.machines)] if args.busy_networks else ()
        hosts = drmaestro.machines(args.machines, loads)
        cluster = RemoteCluster(hosts, jobs, held, solve, SETTINGS[name], on_end=on_end)
        gpus = sum(len(host.gpus) for host in hosts)
        found.append(RemoteReplay(name, cluster.run(), gpus))
    if args.output is not None:
        _write(found, args)
    return found


def table(
    found: Sequence[RemoteReplay],
) -> tuple[tuple[str, ...], list[tuple[str | float, ...]]]:
    """Return columns and rows, one row per setting, numbers to four digits."""
    rows: list[tuple[str | float, ...]] = []
    for each in found:
        rows.append((each.setting, *(float(f"{value:.4g}") for value in each.figures().values())))
    return ("setting", *(found[0].figures() if found else ())), rows


def write_csv(found: Sequence[RemoteReplay], file: TextIO) -> None:
    """Write one line per job and setting, in the order of their ends."""
    writer = csv.writer(file)
    writer.writerow(JOB_COLUMNS)
    for each in found:
        for one in each.found.records:
            arrived_s = one.submission.arrival_s
            times = (arrived_s, one.start_s, one.end_s, one.start_s - arrived_s)
            rounded = (round(time, 3) for time in times)
            row = (*rounded, round(one.slowdown, 4), one.remote)
            writer.writerow((each.setting, one.submission.work.uuid, *row))


def _refuse(args: argparse.Namespace, options: Sequence[str], allowed: str) -> None:
    """Refuse options that have no meaning in what is simulated."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for each in options:
        if (value := getattr(args, each)) != parser.get_default(each):
            raise InvalidValueError(f"--{each.replace('_', '-')}", value, allowed)


def _checked(args: argparse.Namespace) -> list[str]:
    """Return the settings, each once."""
    for option, most in (
        ("--machines", _MOST_MACHINES),
        ("--jobs", _MOST_JOBS),
        ("--cores", _MOST_CORES),
    ):
        value = getattr(args, option.removeprefix("--"))
        if not 1 <= value <= most:
            raise InvalidValueError(option, value, f"1 to {most}")
    if args.machines % 4:
        raise InvalidValueError("--machines", args.machines, "a multiple of 4")
    if not 0 < args.run_time < float("inf"):
        raise InvalidValueError("--run-time", args.run_time, "more than 0 s")
    words = list(dict.fromkeys(args.settings.split(",")))
    if not set(words) <= set(SETTINGS):
        raise InvalidValueError("--settings", args.settings, ", ".join(SETTINGS))
    return words


def _made(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        allowed = f"a place that can be written to ({error.strerror})"
        raise InvalidValueError("--output", str(directory), allowed) from error


def _write(found: Sequence[RemoteReplay], args: argparse.Namespace) -> None:
    asked = ("machines", "jobs", "cores", "run_time", "spread", "busy_networks", "seed")
    document = {
        "label": "modelled",
        "source": {name: getattr(args, name) for name in asked},
        "settings": {each.setting: each.figures() for each in found},
    }
    (args.output / "results.json").write_text(json.dumps(document, indent=2) + "\n")
    with (args.output / "jobs.csv").open("w", newline="") as file:
        write_csv(found, file)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    from nova_numa_ext.simulator.remote_gpu import plots

    title = f"{counted(args.jobs, 'job')} of {counted(args.cores, 'core')} on {args.machines} machines (modelled)"
    plots.use_and_waiting(
        {each.setting: each.found.records for each in found}, args.output / "jobs.png", title
    )
