# SPDX-License-Identifier: Apache-2.0
"""``openstack numa simulate network``: what would policies make of a log on a fabric? Tables, JSON, CSV, SWF, plots."""

import argparse
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final, TextIO

from nova_numa_ext.policy.jobs.queue_settings import Discipline
from nova_numa_ext.policy.network.groups import PolicyName
from nova_numa_ext.policy.network.mixing import pays
from nova_numa_ext.simulator.metrics import mean, percentile
from nova_numa_ext.simulator.network import swf
from nova_numa_ext.simulator.network.barrio import LogReplay, ReplayedJob, Slowing, replay
from nova_numa_ext.simulator.network.contention import SharedRun, wasted_host_s
from nova_numa_ext.simulator.network.mixes import LoggedJob, draw, mixes
from nova_numa_ext.simulator.network.traffic import drawn
from placement_traits.errors import InvalidValueError
from placement_traits.fabric import Fabric, FabricKind, FabricNode
from placement_traits.words import counted

POLICIES: Final = (
    PolicyName.FIRST_AVAILABLE,
    PolicyName.FIRST_CONTIGUOUS,
    PolicyName.BEST_FIT,
    PolicyName.VNB,
    PolicyName.EXCLUSIVE,
)
JOB_COLUMNS: Final = (
    "policy",
    "number",
    "hosts",
    "submitted_s",
    "started_s",
    "ended_s",
    "waited_s",
    "slowdown",
    "slowdown_by_others",
    "places",
)
_UNKNOWN: Final = "-"
_MOST_LEAFS: Final = 5_000
_MOST_HOSTS: Final = 100_000


@dataclass(frozen=True, slots=True)
class PolicyReplay:
    """What a policy has made of the log.

    :param policy: the policy
    :param found: the replay
    :param usual_size: hosts of most leafs
    """

    policy: PolicyName
    found: LogReplay
    usual_size: int

    def figures(self) -> dict[str, float]:
        """Return the six metrics and who waited and was slowed; units are at the end of the names."""
        ran = self.found.jobs
        large = [each for each in ran if each.job.hosts > self.usual_size]
        return {
            "jobs": len(ran),
            "never": len(self.found.never),
            **asdict(self.found.metrics),
            "waiting_small_s": self.found.waiting_small_s,
            "waiting_large_s": self.found.waiting_large_s,
            "slowdown_large": mean([each.slowdown for each in large]),
            "by_others_large": mean([each.slowdown_by_others for each in large]),
            "by_others_large_p95": percentile([each.slowdown_by_others for each in large], 0.95),
            "wasted_host_s": wasted_host_s(map(shared_run, ran)),
        }


def shared_run(ran: ReplayedJob) -> SharedRun:
    """Return what it cost a job that it ran beside others."""
    return SharedRun(ran.job.hosts, ran.job.runs_s / ran.alone, ran.ended_at - ran.started_at)


def pays_beside(before: PolicyReplay, after: PolicyReplay) -> bool:
    """Return whether the places of one policy are better for all jobs together than another's (Eq. 3.5).

    The equation moves one job. Here all of them have other places, so what each loses to itself counts, too. Jobs
    that only one of the policies has a place for are left out.
    """
    runs = [{each.job.number: each for each in one.found.jobs} for one in (before, after)]
    both = runs[0].keys() & runs[1].keys()
    inter = [[shared_run(of[number]).contention_s for number in both] for of in runs]
    intra = [sum(of[number].lost_to_itself_s for number in both) for of in runs]
    return pays(inter[0], inter[1], intra[0], intra[1])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser; ``--fabric`` is the caller's, who can read it."""
    parser.add_argument(
        "--leafs",
        default="172x18x18",
        metavar="<leafs>x<hosts>x<leafs>",
        help="Fabric without a file: leafs, hosts of each, leafs of a pod (default: %(default)s)",
    )
    parser.add_argument(
        "--swf", type=Path, metavar="<file>", help="Log in the SWF instead of a mix"
    )
    parser.add_argument(
        "--processors-per-host",
        type=int,
        default=1,
        metavar="<number>",
        help="Of the log: a job has whole hosts (default: %(default)s)",
    )
    parser.add_argument(
        "--mix", choices=[*mixes()], default="c1", help="Jobs to draw (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=500,
        metavar="<number>",
        help="Jobs to draw (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="<number>",
        help="Of the jobs and what they send (default: %(default)s)",
    )
    parser.add_argument(
        "--policies",
        default=",".join(POLICIES),
        metavar="<policy>[,…]",
        help="Which to replay (default: %(default)s)",
    )
    parser.add_argument(
        "--queue",
        choices=[each.value for each in Discipline],
        default=Discipline.GREEDY.value,
        help="What follows when a job finds no place (default: %(default)s)",
    )
    parser.add_argument(
        "--oversubscription",
        type=float,
        metavar="<N>",
        help="Jobs slow each other on uplinks of leafs that pass 1/N of what hosts send (default: nothing is slowed)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="<folder>",
        help="Folder for results.json, jobs.csv, logs, plots",
    )


def replays(
    args: argparse.Namespace,
    fabric: Fabric | None,
    progress: Callable[[str, int, int], None],
) -> list[PolicyReplay]:
    """Replay what the options of :func:`add_arguments` describe, and write the files that they name.

    :param fabric: None: that of ``--leafs``
    :param progress: called with (policy, jobs started, jobs)
    :raises InvalidValueError: a value is not allowed, or a file cannot be read or written
    """
    plan = fabric or _drawn_fabric(args.leafs)
    policies = _policies(args.policies)
    slowing = None
    if args.oversubscription is not None:
        if not 1 <= args.oversubscription < float("inf"):
            raise InvalidValueError("--oversubscription", args.oversubscription, "1 or more")
        slowing = Slowing(args.oversubscription, partial(drawn, args.seed))
    jobs = _jobs(args, len(plan.hosts))
    if args.output is not None:
        with _writing():
            args.output.mkdir(parents=True, exist_ok=True)
    found = []
    for policy in policies:

        def on_event(started: int, name: str = policy.value) -> None:
            if started:
                progress(name, started, len(jobs))

        result = replay(jobs, plan, policy, Discipline(args.queue), on_event, slowing=slowing)
        found.append(PolicyReplay(policy, result, plan.usual_size))
    if args.output is not None:
        with _writing():
            _write(found, args, plan)
    return found


def table(
    found: Sequence[PolicyReplay],
) -> tuple[tuple[str, ...], list[tuple[str | float, ...]]]:
    """Return columns and rows, one row per policy, numbers to four digits; whether it pays is beside the first one."""
    rows: list[tuple[str | float, ...]] = []
    for each in found:
        figures = (float(f"{value:.4g}") for value in each.figures().values())
        better = _UNKNOWN
        if each is not found[0]:
            better = "yes" if pays_beside(found[0], each) else "no"
        rows.append((each.policy.value, *figures, better))
    return ("policy", *(found[0].figures() if found else ()), "pays"), rows


def write_csv(found: Sequence[PolicyReplay], file: TextIO) -> None:
    """Write one line per job and policy, in the order of their ends."""
    writer = csv.writer(file)
    writer.writerow(JOB_COLUMNS)
    for each in found:
        for one in each.found.jobs:
            times = (one.job.submitted_at, one.started_at, one.ended_at, one.waited_s)
            places = " ".join(f"{leaf}:{hosts}" for leaf, hosts in one.places.items())
            slowed = (round(one.slowdown, 4), round(one.slowdown_by_others, 4))
            rounded = (round(time, 3) for time in times)
            writer.writerow(
                (each.policy.value, one.job.number, one.job.hosts, *rounded, *slowed, places)
            )


def _drawn_fabric(text: str) -> Fabric:
    words = text.split("x")
    allowed = (
        f"three numbers >= 1 such as 172x18x18, {_MOST_LEAFS} leafs, {_MOST_HOSTS} hosts at most"
    )
    if len(words) != 3 or not all(word.isdecimal() and len(word) <= 6 for word in words):
        raise InvalidValueError("--leafs", text, allowed)
    leafs, hosts, of_pod = map(int, words)
    if min(leafs, hosts, of_pod) < 1 or leafs > _MOST_LEAFS or leafs * hosts > _MOST_HOSTS:
        raise InvalidValueError("--leafs", text, allowed)
    nodes = [FabricNode(f"p{n}", "pod") for n in range(-(-leafs // of_pod))]
    nodes += [FabricNode(f"l{n:04}", "leaf", f"p{n // of_pod}") for n in range(leafs)]
    return Fabric(
        "simulated",
        FabricKind.ETHERNET,
        ("leaf", "pod"),
        {node.name: node for node in nodes},
        {f"l{n:04}-{host:04}": f"l{n:04}" for n in range(leafs) for host in range(hosts)},
    )


def _policies(text: str) -> list[PolicyName]:
    names = {each.value: each for each in PolicyName}
    words = list(dict.fromkeys(text.split(",")))
    if not set(words) <= set(names):
        raise InvalidValueError("--policies", text, ", ".join(names))
    return [names[word] for word in words]


def _jobs(args: argparse.Namespace, hosts: int) -> tuple[LoggedJob, ...]:
    if args.processors_per_host < 1:
        raise InvalidValueError("--processors-per-host", args.processors_per_host, "1 or more")
    if args.swf is None:
        return draw(mixes()[args.mix], args.jobs, hosts, args.seed)
    try:
        text = args.swf.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise InvalidValueError("--swf", str(args.swf), f"a log in the SWF ({reason})") from error
    return swf.read(text, str(args.swf), args.processors_per_host)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        allowed = f"a place that can be written to ({error.strerror})"
        raise InvalidValueError("--output", str(error.filename), allowed) from error


def _write(found: Sequence[PolicyReplay], args: argparse.Namespace, fabric: Fabric) -> None:
    source = {
        "fabric": f"{fabric.name}: {counted(len(fabric.leafs), 'leaf')}, {counted(len(fabric.hosts), 'host')}",
        "log": str(args.swf) if args.swf else f"mix {args.mix}, {args.jobs} jobs, seed {args.seed}",
        "queue": args.queue,
        "oversubscription": args.oversubscription,
    }
    document = {
        "label": "modelled",
        "source": source,
        "policies": {each.policy.value: each.figures() for each in found},
        "pays_beside_the_first": {
            each.policy.value: pays_beside(found[0], each) for each in found[1:]
        },
    }
    (args.output / "results.json").write_text(json.dumps(document, indent=2) + "\n")
    with (args.output / "jobs.csv").open("w", newline="") as file:
        write_csv(found, file)
    for each in found:
        jobs = [(one.job, one.started_at, one.ended_at) for one in each.found.jobs]
        lines = swf.written(jobs, len(fabric.hosts))
        (args.output / f"{each.policy.value}.swf").write_text("\n".join([*lines, ""]))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    from nova_numa_ext.simulator.network import plots

    title = f"{source['log']} on {source['fabric']} (modelled)"
    plots.waits_and_slowdowns(
        {each.policy.value: each.found.jobs for each in found}, args.output / "jobs.png", title
    )
