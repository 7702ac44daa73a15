# SPDX-License-Identifier: Apache-2.0
"""The runs of ``bench_vnb``: what is run, what is kept of it, and how policies are compared on the same logs.

A run is one policy on one log, at one over-subscription or without slowness. Its figures are kept in a file of their
own, so that a study goes on where it was cut off; the files of runs with other mixes or traffic are refused.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np

from nova_numa_ext.policy.network.groups import PolicyName
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
_LEAST_LOGS = 10  # of fewer the interval is hardly more than the range of what was seen


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
    jobs = draw(mixes()[run.mix], run.jobs, len(fabric.hosts), run.seed)
    slowing = None
    if run.oversubscription is not None:
        slowing = Slowing(run.oversubscription, partial(drawn, run.seed))
    found = replay(jobs, fabric, run.policy, slowing=slowing)
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
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._drawn_by = drawn_by()

    def get(self, run: VnbRun) -> Figures | None:
        """Return the figures of a run; None: it has not run yet.

        :raises InvalidValueError: it was drawn by other files, or its file is none of ours
        """
        path = self._directory / run.name
        try:
            kept = json.loads(path.read_text())
            figures: Figures = kept["figures"]
            same = kept["drawn_by"] == self._drawn_by
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidValueError(str(path), "no figures", "figures of a run") from error
        if not same:
            raise InvalidValueError(
                str(path), kept["drawn_by"], f"{self._drawn_by}: the mixes and the traffic of now"
            )
        return figures

    def keep(self, run: VnbRun, figures: Figures) -> None:
        """Keep the figures of a run, all of them or none."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / run.name
        made = path.with_suffix(".new")
        made.write_text(json.dumps({"drawn_by": self._drawn_by, "figures": dict(figures)}) + "\n")
        made.replace(path)


def drawn_by() -> str:
    """Return the hash of the files by which logs and traffic are drawn."""
    found = hashlib.sha256()
    for name in ("mixes.yaml", "traffic.yaml"):
        file = resources.files("nova_numa_ext.simulator.network").joinpath(name)
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Difference:
    """How a figure of one policy differs from that of another on the same logs.

    :param mean: of the differences, in the mean of the mixes
    :param low: end of the interval in which that is with a confidence of 95 %
    :param high: its other end
    :param logs: how many
    """

    mean: float
    low: float
    high: float
    logs: int

    @property
    def answer(self) -> str:
        """Whether the difference is one: ``less``, ``more``, ``no difference``, or ``too few logs`` to say."""
        if self.logs < _LEAST_LOGS:
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
    return Difference(found, float(low), float(high), sum(map(len, by_mix.values())))


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
