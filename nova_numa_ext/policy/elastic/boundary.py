# SPDX-License-Identifier: Apache-2.0
"""The plane between loads that meet the objective and loads that violate it, and a member's capacity.

Loads are standardised (mean 0, deviation 1) before a linear classifier is fitted, and the plane is mapped back: reads
are counted in thousands and sizes in KiB, and a classifier that penalises large weights would see only the former. A
feature that never changes says nothing and gets the weight 0.

A classifier sees labels alone and puts its plane half-way between loads that meet and loads that violate. Where these
lie far from each other, as with a group that is seldom overloaded, the plane is off by up to half of the gap, and jumps
when one of them is seen again. So only its direction is the classifier's (not with ``--literal``): it is moved along
the rays to where latencies reach the objective. Latencies are put in the order of their loads, each over the capacity
that the classifier's plane says, and made monotone, for more load makes nothing faster (isotonic regression, by pooling
adjacent violators). Between the last load within the objective and the first one beyond it the logarithm of the latency
is taken for a line.

The capacity of a member is where the ray from the origin through its load meets the plane (Gureya 2021, section
3.4.2). The size of the data stays constant along the ray: twice the requests do not make records twice as large.
"""

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nova_numa_ext.policy.elastic.cells import MeasuredCell
from nova_numa_ext.policy.elastic.load import MemberLoad

Points = NDArray[np.float64]
Labels = NDArray[np.int64]
Classifier = Callable[[Points, Labels], tuple[NDArray[np.float64], float]]
"""Fits a linear classifier to standardised points with labels of both kinds: weights and intercept, of which the sign
of ``weights @ point + intercept`` is the label."""


@dataclass(frozen=True, slots=True)
class Plane:
    """``reads * r + writes * w + size * s + offset = 0``; above 0 the objective is met.

    :param reads: weight of a read per second; ``writes`` and ``size`` alike, of a write per second and a KiB
    """

    reads: float
    writes: float
    size: float
    offset: float

    def side(self, load: MemberLoad) -> float:
        """Return where a load lies: above 0 the objective is expected to be met."""
        slope = self.reads * load.reads_per_s + self.writes * load.writes_per_s
        return slope + self.size * load.size_kb + self.offset

    def ratio(self, load: MemberLoad) -> float | None:
        """Return a load over the member's capacity for such a load; above 1 the objective is expected to be violated.

        :returns: None where the plane tells no capacity: even an idle member would violate the objective, or more
            load would never violate it
        """
        idle = self.offset + self.size * load.size_kb
        slope = self.reads * load.reads_per_s + self.writes * load.writes_per_s
        if idle <= 0.0:
            return None
        if load.reads_per_s == 0.0 and load.writes_per_s == 0.0:
            return 0.0
        return None if slope >= 0.0 else -slope / idle


def learn(points: Points, labels: Labels, classifier: Classifier) -> Plane | None:
    """Fit a plane.

    :param points: loads, one row each: reads per second, writes per second, KiB
    :param labels: +1 where the objective is met, else -1
    :returns: None while all labels are alike: nothing separates them
    """
    if len(set(labels.tolist())) < 2:
        return None
    mean, deviation = points.mean(axis=0), points.std(axis=0)
    varies = deviation > 0.0
    scale = np.where(varies, deviation, 1.0)
    weights, intercept = classifier((points - mean) / scale, labels)
    mapped = np.where(varies, weights, 0.0) / scale
    offset = float(intercept - mapped @ mean)
    return Plane(float(mapped[0]), float(mapped[1]), float(mapped[2]), offset)


def moved(plane: Plane, cells: Iterable[MeasuredCell], objective_ms: float) -> Plane:
    """Return a plane moved to where latencies reach the objective; the same one where they do so nowhere.

    :param cells: that it was learnt from
    """
    blocks = _monotone(plane, cells)
    limit = math.log(objective_ms)
    for (met, below, _), (violated, beyond, _) in pairwise(blocks):
        ratio = met + (violated - met) * (limit - below) / (beyond - below)
        if below <= limit < beyond and ratio > 0.0:
            return replace(plane, reads=plane.reads / ratio, writes=plane.writes / ratio)
    return plane


def _monotone(plane: Plane, cells: Iterable[MeasuredCell]) -> list[tuple[float, float, int]]:
    """Return ratio, logarithm of the latency and weight of cells, in ascending order of both."""
    rows = []
    for cell in cells:
        ratio = plane.ratio(cell.load)
        if ratio is not None:
            latency_ms = max(cell.latency_ms, sys.float_info.min)
            rows.append((ratio, math.log(latency_ms), cell.readings))
    blocks: list[tuple[float, float, int]] = []
    for row in sorted(rows):
        block = row
        while blocks and blocks[-1][1] >= block[1]:
            before = blocks.pop()
            weight = before[2] + block[2]
            ratio, log_ms = (
                (before[at] * before[2] + block[at] * block[2]) / weight for at in (0, 1)
            )
            block = (ratio, log_ms, weight)
        blocks.append(block)
    return blocks
