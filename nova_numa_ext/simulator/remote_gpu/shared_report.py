# SPDX-License-Identifier: Apache-2.0
"""``openstack numa simulate remote --rebalance``: what do moves of leases bring, and cost? Tables, JSON, CSV, plots.

The same leases on the same pool under each policy (:mod:`.shared_pool`). They come at random times, so many that a
given part of all shares is held in the mean if none waited. All is drawn, assumed and not measured::

    service level   gold 10 %, silver 30 %, bronze 40 %, scavenger 20 %
    memory          any whole GiB, up to an equal part of a GPU for as many as may share it
    use             GPU busy for 0.1 to 0.9 of the run time alone
    priority        1 to 9 of three leases in ten that are no scavengers, else 0
"""

import argparse
import csv
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO

from nova_numa_ext.policy.remote_gpu.fabrics import FABRICS, fabric
from nova_numa_ext.policy.remote_gpu.making_room import RebalanceRules
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice, sharing_degree
from nova_numa_ext.simulator.metrics import mean, percentile
from nova_numa_ext.simulator.remote_gpu import drmaestro
from nova_numa_ext.simulator.remote_gpu.shared_pool import (
    POLICIES,
    LeaseWork,
    SharedPool,
    SharedPoolRun,
)
from placement_traits import names
from placement_traits.errors import InvalidValueError
from placement_traits.fleet import Amount
from placement_traits.names import GPU_SHARES, RemoteGpuApi, ServiceLevel
from placement_traits.pools import Pool, PoolGpu, PoolNic
from placement_traits.words import counted

LEVELS: Final = MappingProxyType(
    {
        ServiceLevel.GOLD: 0.1,
        ServiceLevel.SILVER: 0.3,
        ServiceLevel.BRONZE: 0.4,
        ServiceLevel.SCAVENGER: 0.2,
    }
)
SPEEDS: Final = MappingProxyType({"k20": 1.0, "p100": 271 / 80})
"""Of the models of GPUs: table 7.3 of Prades 2021, CloverLeaf."""

OPTIONS: Final = ("load", "moves_over", "moves_per_minute", "cool_down", "fast_machines")
"""That count with ``--rebalance`` only."""

JOB_COLUMNS: Final = (
    "policy",
    "lease",
    "level",
    "priority",
    "memory_mb",
    "busy",
    "arrived_s",
    "ended_s",
    "waited_s",
    "slowdown",
    "moves",
    "paused_s",
    "gave_way",
)
MOVE_COLUMNS: Final = ("policy", "at_s", "lease", "from", "to", "paused_s")
_MIB_OF_GIB: Final = 1024


@dataclass(frozen=True, slots=True)
class SharedReplay:
    """What a policy has made of the leases.

    :param policy: its name
    :param found: the run
    """

    policy: str
    found: SharedPoolRun

    def figures(self) -> dict[str, float]:
        """Return what leases and GPUs had of it; units are at the end of the names."""
        ran = self.found.records
        first = [each for each in ran if each.work.priority > 0]
        return {
            "leases": len(ran),
            "makespan_s": self.found.makespan_s,
            "waiting_mean_s": mean([each.waited_s for each in ran]),
            "response_mean_s": mean([each.response_s for each in ran]),
            "response_p95_s": percentile([each.response_s for each in ran], 0.95),
            "slowdown_mean": mean([each.slowdown for each in ran]),
            "priority_response_mean_s": mean([each.response_s for each in first]),
            "moves": sum(each.moves for each in ran),
            "paused_s": sum(each.paused_s for each in ran),
            "gave_way": sum(each.gave_way for each in ran),
            "gpu_use": self.found.gpu_use,
            "gpus_held": self.found.gpus_held,
            "energy_kj": self.found.energy_j / 1e3,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that count with ``--rebalance`` to those of the command."""
    rules = RebalanceRules()
    more = parser.add_argument_group("leases that move")
    more.add_argument(
        "--rebalance",
        metavar="<policy>[,…]",
        help=f"Simulate leases that share GPUs and move instead, by these policies: {', '.join(POLICIES)}",
    )
    more.add_argument(
        "--load",
        type=float,
        default=0.6,
        metavar="<part>",
        help="Part of all GPUs' shares that leases hold if none waits (default: %(default)s)",
    )
    more.add_argument(
        "--moves-over",
        choices=[*FABRICS],
        default="fdr",
        help="Network over which leases move (default: %(default)s)",
    )
    more.add_argument(
        "--moves-per-minute",
        type=int,
        default=rules.moves_per_minute,
        metavar="<number>",
        help="Of all leases together (default: %(default)s)",
    )
    more.add_argument(
        "--cool-down",
        type=float,
        default=rules.cool_down_s,
        metavar="<seconds>",
        help="After a move, in which a lease is not moved again (default: %(default)s)",
    )
    more.add_argument(
        "--fast-machines",
        type=int,
        default=0,
        metavar="<number>",
        help="Of the machines, whose GPUs are 3.4 times as fast (default: %(default)s)",
    )


def replays(
    args: argparse.Namespace, progress: Callable[[str, int, int], None]
) -> list[SharedReplay]:
    """Run what the options describe, and write the files that they name; their common ones have been checked.

    :param progress: called with (policy, leases ended, leases)
    :raises InvalidValueError: a value is not allowed
    """
    policies = _checked(args)
    shape = drmaestro.SPREADS[args.spread]
    works = drawn(args.jobs, args.run_time, shape, 4 * args.machines * args.load, args.seed)
    found = []
    for name in policies:

        def on_end(ended: int, name: str = name) -> None:
            progress(name, ended, args.jobs)

        given: dict[str, Any] = {
            "moves_per_minute": args.moves_per_minute,
            "cool_down_s": args.cool_down,
            "speeds": SPEEDS,
            **POLICIES[name],
        }
        there = machines(args.machines, args.fast_machines)
        over = fabric(args.moves_over)
        run = SharedPool(there, works, RebalanceRules(**given), over, on_end).run()
        found.append(SharedReplay(name, run))
    if args.output is not None:
        _write(found, args)
    return found


def machines(count: int, fast: int) -> tuple[Pool, ...]:
    """Return empty pools of four GPUs.

    :param fast: of them, with the faster model
    """

    def gpu(name: str, model: str) -> PoolGpu:
        traits = {RemoteGpuApi.OPENCL.trait, names.MIGRATABLE, names.gpu_model(model)}
        memory, share = Amount(drmaestro.GPU_MB, 0), Amount(GPU_SHARES, 0)
        return PoolGpu(name, name, frozenset(traits), memory, share)

    found = []
    for number in range(count):
        host, model = f"m{number}", "p100" if number < fast else "k20"
        gpus = tuple(gpu(f"{host}g{one}", model) for one in range(drmaestro.GPUS))
        cores = Amount(GPU_SHARES * drmaestro.GPUS, 0)
        nic = PoolNic(f"{host}nic", "nic", Amount(1, 0))
        pool = Pool(
            f"rgpu:{host}", host, frozenset({"network"}), False, f"{host}cpu", cores, (nic,), gpus
        )
        found.append(pool)
    return tuple(found)


def drawn(count: int, mean_s: float, shape: float, gpus_held: float, seed: int) -> list[LeaseWork]:
    """Return a workload.

    :param mean_s: mean run time alone, seconds
    :param shape: of the gamma distribution of run times
    :param gpus_held: whole GPUs whose shares leases hold in the mean if none waits and none is slowed
    :param seed: of the draw
    """
    draw = random.Random(seed)
    shares = sum(GpuSlice(1, level).shares * part for level, part in LEVELS.items())
    gap_s = mean_s * shares / (GPU_SHARES * gpus_held)
    now, found = 0.0, []
    for number in range(count):
        now += draw.expovariate(1 / gap_s)
        (level,) = draw.choices([*LEVELS], [*LEVELS.values()])
        most_gib = drmaestro.GPU_MB // sharing_degree(level) // _MIB_OF_GIB
        part = GpuSlice(draw.randint(1, most_gib) * _MIB_OF_GIB, level)
        first = draw.random() < 0.3 and level is not ServiceLevel.SCAVENGER
        priority, busy = draw.randint(1, 9), draw.uniform(0.1, 0.9)
        run_s = draw.gammavariate(shape, mean_s / shape)
        uuid = f"lease{number}"
        found.append(LeaseWork(uuid, now, run_s, busy, part, priority if first else 0))
    return found


def table(
    found: Sequence[SharedReplay],
) -> tuple[tuple[str, ...], list[tuple[str | float, ...]]]:
    """Return columns and rows, one row per policy, numbers to four digits."""
    rows: list[tuple[str | float, ...]] = []
    for each in found:
        rows.append((each.policy, *(float(f"{value:.4g}") for value in each.figures().values())))
    return ("policy", *(found[0].figures() if found else ())), rows


def write_jobs(found: Sequence[SharedReplay], file: TextIO) -> None:
    """Write one line per lease and policy, in the order of their ends."""
    writer = csv.writer(file)
    writer.writerow(JOB_COLUMNS)
    for each in found:
        for one in each.found.records:
            work = one.work
            asked = (work.uuid, work.part.level, work.priority, work.part.memory_mb)
            times = (work.arrival_s, one.end_s, one.waited_s)
            row = (each.policy, *asked, round(work.busy, 4), *(round(time, 3) for time in times))
            more = (one.moves, round(one.paused_s, 3), one.gave_way)
            writer.writerow((*row, round(one.slowdown, 4), *more))


def write_moves(found: Sequence[SharedReplay], file: TextIO) -> None:
    """Write one line per move; one that gave way goes nowhere."""
    writer = csv.writer(file)
    writer.writerow(MOVE_COLUMNS)
    for each in found:
        for move in each.found.moves:
            ends = (move.lease, move.source, move.destination)
            writer.writerow((each.policy, round(move.at_s, 3), *ends, round(move.paused_s, 3)))


def _checked(args: argparse.Namespace) -> list[str]:
    """Return the policies, each once."""
    policies = list(dict.fromkeys(args.rebalance.split(",")))
    if not set(policies) <= set(POLICIES):
        raise InvalidValueError("--rebalance", args.rebalance, ", ".join(POLICIES))
    if not 0 < args.load <= 2:
        raise InvalidValueError("--load", args.load, "more than 0, at most 2")
    if args.moves_per_minute < 1:
        raise InvalidValueError("--moves-per-minute", args.moves_per_minute, "at least 1")
    if not 0 <= args.cool_down < float("inf"):
        raise InvalidValueError("--cool-down", args.cool_down, "0 s or more")
    if not 0 <= args.fast_machines <= args.machines:
        allowed = f"0 to {args.machines}, the machines"
        raise InvalidValueError("--fast-machines", args.fast_machines, allowed)
    return policies


def _write(found: Sequence[SharedReplay], args: argparse.Namespace) -> None:
    asked = ("machines", "jobs", "run_time", "spread", "seed", *OPTIONS)
    document = {
        "label": "modelled",
        "source": {name: getattr(args, name) for name in asked},
        "policies": {each.policy: each.figures() for each in found},
    }
    directory: Path = args.output
    (directory / "results.json").write_text(json.dumps(document, indent=2) + "\n")
    for name, write in (("jobs.csv", write_jobs), ("moves.csv", write_moves)):
        with (directory / name).open("w", newline="") as file:
            write(found, file)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    from nova_numa_ext.simulator.remote_gpu import plots

    title = (
        f"{counted(args.jobs, 'lease')} on {args.machines} machines, seed {args.seed} (modelled)"
    )
    plots.use_waiting_and_moves(
        {each.policy: each.found for each in found}, directory / "moves.png", title
    )
