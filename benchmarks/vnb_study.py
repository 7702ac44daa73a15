# SPDX-License-Identifier: Apache-2.0
"""The runs of ``bench_vnb``: what is run, what is kept of it, and how policies are compared on the same logs.

A run is one policy on one log, at one over-subscription or without slowness. Its figures are kept in a file of their
own, so that a study goes on where it was cut off; the files of runs with other mixes or traffic, on another fabric, or
by other code of the queue, the planner or the model are refused.

*Taking over.* Code changes that change no figure would throw hours of runs away. So runs that were kept by other code,
or before files said by which, may be taken over (:meth:`KeptRuns.take_over`) by one rule: of each kind of run, which is
a policy at one over-subscription or without slowness, one is drawn by chance of those that are kept and run again; only
if all figures of all of these are the same as before, but for the time they took, the others are believed.
"""

import ast
import hashlib
import importlib
import inspect
import json
import pkgutil
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np

from nova_numa_ext.policy import jobs
from nova_numa_ext.policy import network as policies
from nova_numa_ext.policy.jobs import queue
from nova_numa_ext.policy.network.groups import PolicyName
from nova_numa_ext.simulator import network as model
from nova_numa_ext.simulator.metrics import mean, percentile
from nova_numa_ext.simulator.network.barrio import LogReplay, Slowing, replay
from nova_numa_ext.simulator.network.mixes import draw, mixes
from nova_numa_ext.simulator.network.traffic import drawn
from placement_traits.errors import InvalidValueError
from placement_traits.fabric import Fabric

Figures = Mapping[str, float]

_DRAWS = 10_000
_CONFIDENCE = 0.95
_NOTHING = 1e-9  # of a figure: what is left of equal ones after rounding
_LEAST_LOGS = (
    6  # of a mix: they have 462 means, 11 of them beyond an end; two logs have three means in all
)
_SHOWS = ("plots", "report", "swf")  # modules that decide nothing


@dataclass(frozen=True, slots=True)
class VnbRun:
    """A policy on a log.

    :param mix: its name
    :param seed: of the log, and of what its jobs send
    :param jobs: of the log
    :param policy: the policy
    :param oversubscription: of leafs; None: jobs run as long as the log says
    """

    mix: str
    seed: int
    jobs: int
    policy: PolicyName
    oversubscription: float | None = None

    @property
    def name(self) -> str:
        """Name of the file of its figures."""
        slowed = "" if self.oversubscription is None else f"-{self.oversubscription:g}to1"
        return f"{self.mix}-{self.jobs}-{self.seed}-{self.policy}{slowed}.json"


def figures_of(run: VnbRun, fabric: Fabric) -> Figures:
    """Run it, and return its figures; units are at the end of the names."""
    before = time.process_time()
    log = draw(mixes()[run.mix], run.jobs, len(fabric.hosts), run.seed)
    slowing = None
    if run.oversubscription is not None:
        slowing = Slowing(run.oversubscription, partial(drawn, run.seed))
    found = replay(log, fabric, run.policy, slowing=slowing)
    return {**summary(found, fabric), "cpu_s": time.process_time() - before}


def summary(found: LogReplay, fabric: Fabric) -> Figures:
    """Return the figures of a replay.

    Slowdowns of large jobs are those of jobs of several leafs; what others did is counted of these, and of all jobs
    that fit in a leaf the worst.
    """
    six = found.metrics
    large = [each for each in found.jobs if each.job.hosts > fabric.usual_size]
    small = [each for each in found.jobs if each.job.hosts <= fabric.usual_size]
    return {
        "completion_s": six.completion_s,
        "utilisation": six.utilisation,
        "waiting_s": six.waiting_s,
        "waiting_small_s": found.waiting_small_s,
        "waiting_large_s": found.waiting_large_s,
        "per_group": six.per_group,
        "sharing": six.sharing,
        "leaf_pairs": six.leaf_pairs,
        "pod_pairs": six.pod_pairs,
        "never": len(found.never),
        "slowdown_large": mean([each.slowdown for each in large]),
        "by_others_large": mean([each.slowdown_by_others for each in large]),
        "by_others_large_p95": percentile([each.slowdown_by_others for each in large], 0.95),
        "by_others_small_worst": max((each.slowdown_by_others for each in small), default=1.0),
    }


class KeptRuns:
    """Figures of runs, one file each.

    :param directory: where they are; it is made when the first one is kept
    :param fabric: on which they run
    """

    def __init__(self, directory: Path, fabric: Fabric) -> None:
        self._directory = directory
        self._fabric = fabric
        self._made_by = {"drawn_by": drawn_by(), "decided_by": decided_by(fabric)}

    def get(self, run: VnbRun) -> Figures | None:
        """Return the figures of a run; None: it has not run yet.

        :raises InvalidValueError: it was made by other files or code, or its file is none of ours
        """
        found = self._read(run)
        if found is None:
            return None
        figures, made_by = found
        if made_by != self._made_by:
            raise InvalidValueError(
                str(self._directory / run.name),
                made_by,
                f"{self._made_by}: the mixes, the traffic, the fabric and the code of now; --take-over",
            )
        return figures

    def keep(self, run: VnbRun, figures: Figures) -> None:
        """Keep the figures of a run, all of them or none."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / run.name
        made = path.with_suffix(".new")
        made.write_text(json.dumps({**self._made_by, "figures": dict(figures)}) + "\n")
        made.replace(path)

    def take_over(
        self, runs: Sequence[VnbRun], seed: int, progress: Callable[[VnbRun, int], None]
    ) -> int:
        """Have runs count as made by the code of now, by the rule at the top of this module.

        :param runs: of a study; those that are not kept, or are by the code of now, are left alone
        :param seed: of the drawing
        :param progress: called before each run that is run again, with how many are left
        :return: how many were taken over
        :raises InvalidValueError: they were drawn by other files, or one of them has other figures now
        """
        old: dict[VnbRun, Figures] = {}
        for run in runs:
            found = self._read(run)
            if found is None or found[1] == self._made_by:
                continue
            old[run], made_by = found
            if made_by["drawn_by"] != self._made_by["drawn_by"]:
                raise InvalidValueError(str(self._directory / run.name), made_by, "the same mixes")
        kinds: dict[tuple[PolicyName, float | None], list[VnbRun]] = {}
        for run in old:
            kinds.setdefault((run.policy, run.oversubscription), []).append(run)
        chance = random.Random(seed)
        again = [chance.choice(of_kind) for of_kind in kinds.values()]
        for at, run in enumerate(again):
            progress(run, len(again) - at)
            now = figures_of(run, self._fabric)
            if _timeless(now) != _timeless(old[run]):
                raise InvalidValueError(
                    str(self._directory / run.name), old[run], f"the figures of now: {now}"
                )
        for run, figures in old.items():
            self.keep(run, figures)
        return len(old)

    def _read(self, run: VnbRun) -> tuple[Figures, dict[str, str]] | None:
        """Return figures and by what they were made; None: the run is not kept."""
        path = self._directory / run.name
        try:
            kept = json.loads(path.read_text())
            figures: Figures = kept["figures"]
            made_by = {"drawn_by": str(kept["drawn_by"]), "decided_by": kept.get("decided_by", "")}
        except FileNotFoundError:
            return None
        except (AttributeError, ValueError, TypeError, KeyError) as error:
            raise InvalidValueError(str(path), "no figures", "figures of a run") from error
        return figures, made_by


def _timeless(figures: Figures) -> Figures:
    return {name: figure for name, figure in figures.items() if name != "cpu_s"}


def drawn_by() -> str:
    """Return the hash of the files by which logs and traffic are drawn."""
    found = hashlib.sha256()
    for name in ("mixes.yaml", "traffic.yaml"):
        file = resources.files("nova_numa_ext.simulator.network").joinpath(name)
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def decided_by(fabric: Fabric) -> str:
    """Return the hash of a fabric and of the code that decides and models: what it does, without words about it."""
    found = hashlib.sha256(repr(fabric).encode())
    names = [f"{jobs.__name__}.{each.name}" for each in pkgutil.iter_modules(jobs.__path__)]
    modules = [name for name in names if name.startswith(queue.__name__)]
    for package in (policies, model):
        shows = {f"{package.__name__}.{name}" for name in _SHOWS}
        names = [
            f"{package.__name__}.{each.name}" for each in pkgutil.iter_modules(package.__path__)
        ]
        modules += [name for name in names if name not in shows]
    for module in map(importlib.import_module, sorted(modules)):
        found.update(_without_words(inspect.getsource(module)).encode())
    for function in (figures_of, summary):
        found.update(_without_words(inspect.getsource(function)).encode())
    return found.hexdigest()[:16]


def _without_words(source: str) -> str:
    """Return what a module does, without comments, docstrings and the shape of its lines."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                each
                for each in body
                if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
    return ast.dump(tree)


@dataclass(frozen=True, slots=True)
class Difference:
    """How a figure of one policy differs from that of another on the same logs.

    :param mean: of the differences, in the mean of the mixes
    :param low: end of the interval in which that is with a confidence of 95 %
    :param high: its other end
    :param logs: how many
    :param least: how many of the mix that has fewest
    """

    mean: float
    low: float
    high: float
    logs: int
    least: int

    @property
    def answer(self) -> str:
        """Whether the difference is one: ``less``, ``more``, ``no difference``, or ``too few logs`` of a mix to say."""
        if self.least < _LEAST_LOGS:
            return "too few logs"
        if self.high < 0:
            return "less"
        return "more" if self.low > 0 else "no difference"


def difference(by_mix: Mapping[str, Sequence[tuple[float, float]]], seed: int = 0) -> Difference:
    """Return a paired bootstrap: logs are drawn again within each mix, each with both figures.

    :param by_mix: of each log the figures of the one and of the other
    :param seed: of the drawing
    :raises InvalidValueError: a mix has fewer than two logs, of which nothing can be said
    """
    if not by_mix or min(map(len, by_mix.values())) < 2:
        raise InvalidValueError(
            "logs", {mix: len(pairs) for mix, pairs in by_mix.items()}, "2 or more"
        )
    chance = np.random.default_rng(seed)
    total = np.zeros(_DRAWS)
    found = 0.0
    for mix in sorted(by_mix):
        gains = np.array([one - other for one, other in by_mix[mix]], np.float64)
        gains[np.abs(gains) < _NOTHING] = 0.0
        found += float(gains.mean()) / len(by_mix)
        chosen = chance.integers(0, len(gains), (_DRAWS, len(gains)))
        total += gains[chosen].mean(axis=1) / len(by_mix)
    tail = (1.0 - _CONFIDENCE) / 2
    low, high = np.quantile(total, [tail, 1.0 - tail])
    logs = [*map(len, by_mix.values())]
    return Difference(found, float(low), float(high), sum(logs), min(logs))


def done(
    runs: Sequence[VnbRun],
    fabric: Fabric,
    kept: KeptRuns | None,
    progress: Callable[[VnbRun, int], None],
) -> dict[VnbRun, Figures]:
    """Return the figures of runs; those that are kept are not run again.

    :param progress: called before each run that is run, with how many are left
    """
    found: dict[VnbRun, Figures] = {}
    for at, run in enumerate(runs):
        figures = kept.get(run) if kept else None
        if figures is None:
            progress(run, len(runs) - at)
            figures = figures_of(run, fabric)
            if kept:
                kept.keep(run, figures)
        found[run] = figures
    return found
