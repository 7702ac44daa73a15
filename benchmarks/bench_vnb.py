# SPDX-License-Identifier: Apache-2.0
"""Policies for groups on a fabric, on synthetic logs: who shares uplinks, who waits, and who is slowed

Each mix of ``mixes.yaml`` is drawn with each seed and replayed on 172 leafs of 18 hosts under each policy, with run
times of the log: who shares with whom, in the order of the thesis? Then best fit and virtual network blocks are
replayed with jobs that slow each other, at each over-subscription: do blocks differ from best fit on the same logs?

The whole study is hours: ``--keep DIR`` keeps each run, goes on where it was cut off, and takes what others have run
with other ``--mix``, ``--over`` and ``--seeds`` into the same directory. Every run is shown. The seeds that are held
out run with ``--final`` only. Kept runs of other code are refused; ``--take-over`` has them count where a sample of
them, run again, is as it was.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks import report
from benchmarks.vnb_study import (
    Difference,
    Figures,
    KeptRuns,
    VnbRun,
    difference,
    done,
    drawn_by,
)
from nova_numa_ext.policy.network.groups import PolicyName
from nova_numa_ext.simulator.network.mixes import held_out_seeds, mixes, oversubscriptions
from placement_traits.errors import InvalidValueError
from placement_traits.fabric import Fabric, FabricKind, FabricNode

LEAFS, HOSTS_PER_LEAF, LEAFS_PER_POD = 172, 18, 18
POLICIES = (
    PolicyName.FIRST_AVAILABLE,
    PolicyName.FIRST_CONTIGUOUS,
    PolicyName.BEST_FIT,
    PolicyName.VNB,
    PolicyName.EXCLUSIVE,
)
ORDER = tuple(each for each in POLICIES if each is not PolicyName.BEST_FIT)
"""Of the thesis: each shares less than the one before, the last one nothing."""
RIVALS = (PolicyName.VNB, PolicyName.BEST_FIT)
UNSLOWED = "none"
SHARING = ("per_group", "sharing", "leaf_pairs", "pod_pairs")
PAIRS = ("leaf_pairs", "pod_pairs")
COMPARED = (
    "leaf_pairs",
    "slowdown_large",
    "by_others_large",
    "by_others_large_p95",
    "by_others_small_worst",
    "waiting_s",
    "completion_s",
)

Found = Mapping[VnbRun, Figures]


def marenostrum() -> Fabric:
    """Return the fabric of the thesis: 3,096 hosts in 10 pods, the last of 10 leafs."""
    pods = [FabricNode(f"p{n}", "pod") for n in range(-(-LEAFS // LEAFS_PER_POD))]
    leafs = [FabricNode(f"l{n:03}", "leaf", f"p{n // LEAFS_PER_POD}") for n in range(LEAFS)]
    return Fabric(
        "marenostrum",
        FabricKind.INFINIBAND,
        ("leaf", "pod"),
        {node.name: node for node in (*pods, *leafs)},
        {f"{leaf.name}-{n:02}": leaf.name for leaf in leafs for n in range(HOSTS_PER_LEAF)},
    )


def seeds_of(text: str, *, final: bool) -> tuple[int, ...]:
    """Return the seeds of ``1,3-5``.

    :param final: the seeds that are held out may be among them
    :raises InvalidValueError: there is none, or one that is held out
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise InvalidValueError("--seeds", text, "numbers and ranges, such as 1,3-5")
        found += range(int(first), int(last or first) + 1)
    held_out = held_out_seeds()
    if not found or (not final and not set(held_out).isdisjoint(found)):
        allowed = f"one or more, {held_out[0]} to {held_out[-1]} with --final only"
        raise InvalidValueError("--seeds", text, allowed)
    return tuple(dict.fromkeys(found))


def runs_of(
    names: Sequence[str], seeds: Sequence[int], jobs: int, parts: Sequence[str] = ()
) -> list[VnbRun]:
    """Return the runs of a study, log by log.

    :param parts: of :func:`parts_of_a_log`; none: all
    """
    found = []
    for seed in seeds:
        for name in names:
            for part in parts or parts_of_a_log():
                over = None if part == UNSLOWED else float(part)
                policies = POLICIES if over is None else RIVALS
                found += [VnbRun(name, seed, jobs, policy, over) for policy in policies]
    return found


def parts_of_a_log() -> list[str]:
    """Return what each log is replayed with: without slowness, then over-subscriptions."""
    return [UNSLOWED, *(f"{over:g}" for over in oversubscriptions())]


def falls(of_policy: Mapping[PolicyName, Figures], figures: Sequence[str]) -> bool:
    """Tell whether figures fall in the order of the thesis, and are 0 with the last policy."""
    falling = all(
        of_policy[worse][figure] > of_policy[better][figure]
        for worse, better in pairwise(ORDER)
        for figure in figures
    )
    return falling and not any(of_policy[ORDER[-1]][figure] for figure in figures)


def by_log(found: Found) -> dict[tuple[str, int], dict[PolicyName, Figures]]:
    """Return the figures of runs without slowness, of each log by policy."""
    logs: dict[tuple[str, int], dict[PolicyName, Figures]] = {}
    for run, figures in found.items():
        if run.oversubscription is None:
            logs.setdefault((run.mix, run.seed), {})[run.policy] = figures
    return logs


def mixes_in_order(found: Found) -> dict[str, bool]:
    """Tell of each mix whether pairs that share, of all its logs together, fall in the order of the thesis."""
    sums: dict[str, dict[PolicyName, dict[str, float]]] = {}
    for (mix, _), of_policy in by_log(found).items():
        for policy, figures in of_policy.items():
            of_mix = sums.setdefault(mix, {}).setdefault(policy, dict.fromkeys(PAIRS, 0.0))
            for figure in PAIRS:
                of_mix[figure] += figures[figure]
    return {mix: falls(of_policy, PAIRS) for mix, of_policy in sums.items()}


def differences(found: Found) -> dict[tuple[float, str], Difference]:
    """Return how blocks differ from best fit, by over-subscription and figure; none where a mix has one log only."""
    answers: dict[tuple[float, str], Difference] = {}
    blocks, rival = RIVALS
    for over in oversubscriptions():
        own = [run for run in found if run.oversubscription == over and run.policy is blocks]
        for figure in COMPARED:
            by_mix: dict[str, list[tuple[float, float]]] = {}
            for run in own:
                other = VnbRun(run.mix, run.seed, run.jobs, rival, over)
                by_mix.setdefault(run.mix, []).append((found[run][figure], found[other][figure]))
            if by_mix and min(map(len, by_mix.values())) > 1:
                answers[over, figure] = difference(by_mix)
    return answers


def show(found: Found) -> None:
    """Print every run, then the differences."""
    columns = ("completion_s", "utilisation", "waiting_s", *SHARING, *COMPARED[1:5], "cpu_s")
    rows = [
        (
            run.mix,
            run.seed,
            run.policy.value,
            run.oversubscription or "-",
            *(float(figures[column]) for column in columns),
        )
        for run, figures in found.items()
    ]
    report.table(("mix", "seed", "policy", "over", *columns), rows)
    report.progress("blocks minus best fit, paired by log; 95 % by bootstrap")
    report.table(
        ("over", "figure", "mean", "from", "to", "logs", "answer"),
        [
            (over, figure, each.mean, each.low, each.high, each.logs, each.answer)
            for (over, figure), each in differences(found).items()
        ],
    )


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = report.parser(__doc__)
    parser.add_argument("--jobs", type=int, default=8000, help="of a log")
    parser.add_argument("--seeds", default="1", help="such as 1-20 (default: %(default)s)")
    parser.add_argument("--mix", choices=[*mixes()], action="append", help="default: all")
    parser.add_argument(
        "--over",
        choices=parts_of_a_log(),
        action="append",
        help="over-subscriptions, none: runs without slowness, for the order of policies; default: all",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep runs, and go on from there")
    parser.add_argument(
        "--take-over",
        type=int,
        metavar="SEED",
        help="with --keep: kept runs of other code count, if one of each kind, drawn by SEED, runs the same now",
    )
    parser.add_argument("--final", action="store_true", help="seeds that are held out may run")
    return parser.parse_args()


def main() -> None:
    """Replay all logs."""
    args = arguments()
    seeds = seeds_of(args.seeds, final=args.final)
    runs = runs_of(args.mix or [*mixes()], seeds, args.jobs, args.over or ())

    def progress(run: VnbRun, left: int) -> None:
        report.progress(f"{left} left: {run.name.removesuffix('.json')}")

    fabric = marenostrum()
    kept = KeptRuns(args.keep, fabric) if args.keep else None
    if kept and args.take_over is not None:
        report.progress(
            f"{kept.take_over(runs, args.take_over, progress)} kept runs are taken over"
        )
    found = done(runs, fabric, kept, progress)
    show(found)
    logs, of_mixes = by_log(found), mixes_in_order(found)
    figures: dict[str, float] = {
        "logs": len(logs),
        "logs_in_order": sum(falls(of_policy, SHARING) for of_policy in logs.values()),
        "mixes": len(of_mixes),
        "mixes_in_order": sum(of_mixes.values()),
    }
    for (over, figure), each in differences(found).items():
        figures[f"{figure}_difference_{over:g}to1"] = each.mean
        figures[f"{figure}_low_{over:g}to1"] = each.low
        figures[f"{figure}_high_{over:g}to1"] = each.high
    source = {
        "jobs": args.jobs,
        "seeds": args.seeds,
        "drawn_by": drawn_by(),
        "fabric": f"{LEAFS} leafs of {HOSTS_PER_LEAF} hosts, {LEAFS_PER_POD} in a pod",
        "publication": "per job 17, 3.95, 0.9, 0; its log is not published, and these mixes are no copy of it",
    }
    report.finish("vnb", "modelled", figures, source, args.json)


if __name__ == "__main__":
    main()
