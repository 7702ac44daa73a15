# SPDX-License-Identifier: Apache-2.0
"""Synthetic logs of jobs on a fabric, drawn by ``mixes.yaml`` and a seed."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import yaml

from placement_traits.errors import InvalidValueError

_DAY_S: Final = 86_400.0
_NODE_DAYS: Final = 1.69  # of a job in the mean: 0.84 of 3,096 hosts for 32 days, 49,107 jobs
_LEAF: Final = 18
_WHOLE: Final = (2, 10)  # leafs
_ODD: Final = (19, 400)  # hosts


@dataclass(frozen=True, slots=True)
class LoggedJob:
    """A job of a log.

    :param number: unlike all others'
    :param submitted_at: s
    :param runs_s: how long it runs once it has started, whatever is beside it
    :param hosts: that it has alone
    """

    number: int
    submitted_at: float
    runs_s: float
    hosts: int


@dataclass(frozen=True, slots=True)
class JobMix:
    """What a log is drawn from.

    :param name: of the mix
    :param load: share of the hosts that all jobs together would keep busy
    :param small: share of jobs that fit in a leaf
    :param sigma: of the log-normal run times
    :param sizes: share of each size, of jobs that fit in a leaf and of those that do not
    :param whole_leafs: share of large jobs that are a whole number of leafs
    :param longest_s: run times are cut there
    """

    name: str
    load: float
    small: float
    sigma: float
    sizes: tuple[Mapping[int, float], Mapping[int, float]]
    whole_leafs: float
    longest_s: float


def mixes() -> dict[str, JobMix]:
    """Return the mixes of the file by their names."""
    found = _file()
    return {
        name: JobMix(
            name,
            mix["load"],
            mix["small"],
            mix["sigma"],
            (found["small"], mix["large"]),
            found["whole_leafs"],
            found["longest_days"] * _DAY_S,
        )
        for name, mix in found["mixes"].items()
    }


def held_out_seeds() -> range:
    """Return the seeds that no one looks at before a final table."""
    first, last = _file()["held_out_seeds"]
    return range(first, last + 1)


def oversubscriptions() -> tuple[float, ...]:
    """Return the over-subscriptions of leafs in the order of the file."""
    return tuple(map(float, _file()["oversubscription"]))


def _file() -> Mapping[str, Any]:
    text = resources.files("nova_numa_ext.simulator.network").joinpath("mixes.yaml").read_text()
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found


def draw(mix: JobMix, count: int, hosts: int, seed: int) -> tuple[LoggedJob, ...]:
    """Return a log of so many jobs, in the order of their submission.

    :param count: of jobs; the span follows, so that a job has as many node-days as those of the thesis in the mean
    :param hosts: of the fabric; no job is larger
    :raises InvalidValueError: there is no job, or the fabric is smaller than a leaf of the mixes
    """
    if count < 1 or hosts < _LEAF:
        raise InvalidValueError("jobs and hosts", (count, hosts), f"1 job or more, {_LEAF} hosts")
    chance = random.Random(seed)
    drawn = [
        (min(hosts, _size(mix, chance)), chance.lognormvariate(0, mix.sigma)) for _ in range(count)
    ]
    span_s = count * _NODE_DAYS * _DAY_S / (mix.load * hosts)
    scale = mix.load * hosts * span_s / sum(size * length for size, length in drawn)
    times = sorted(chance.uniform(0, span_s) for _ in drawn)
    return tuple(
        LoggedJob(number, at, min(length * scale, mix.longest_s), size)
        for number, (at, (size, length)) in enumerate(zip(times, drawn, strict=True), start=1)
    )


def _size(mix: JobMix, chance: random.Random) -> int:
    small, large = mix.sizes
    is_small = chance.random() < mix.small
    left = chance.random()
    for size, share in (small if is_small else large).items():
        left -= share
        if left < 0:
            return size
    if is_small:
        return chance.randint(1, _LEAF)
    if left < mix.whole_leafs:
        return _LEAF * chance.randint(*_WHOLE)
    return int(math.exp(chance.uniform(*map(math.log, _ODD))))
