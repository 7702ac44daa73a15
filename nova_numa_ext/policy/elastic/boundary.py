# SPDX-License-Identifier: Apache-2.0
"""The plane between loads that meet the objective and loads that violate it, and a member's capacity.

Loads are standardised (mean 0, deviation 1) before a linear classifier is fitted, and the plane is mapped back: reads
are counted in thousands and sizes in KiB, and a classifier that penalises large weights would see only the former. A
feature that never changes says nothing and gets the weight 0.

The capacity of a member is where the ray from the origin through its load meets the plane (Gureya 2021, section
3.4.2). The size of the data stays constant along the ray: twice the requests do not make records twice as large.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
