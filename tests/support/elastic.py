# SPDX-License-Identifier: Apache-2.0
"""Models of elastic groups that need numpy alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nova_numa_ext.policy.elastic import boundary
from nova_numa_ext.policy.elastic.boundary import Labels, Plane, Points
from nova_numa_ext.policy.elastic.forecast import LastValue, Predictor


def perceptron(points: Points, labels: Labels) -> tuple[np.ndarray, float]:
    """A linear classifier that ends when all is separated, or after many rounds."""
    weights, intercept = np.zeros(points.shape[1]), 0.0
    for _ in range(20_000):
        wrong = labels * (points @ weights + intercept) <= 0.0
        if not wrong.any():
            break
        at = int(np.argmax(wrong))
        weights, intercept = weights + labels[at] * points[at], intercept + float(labels[at])
    return weights, intercept


def middle(points: Points, labels: Labels) -> tuple[np.ndarray, float]:
    """A plane half-way between the means of both classes: quick, and good where they lie on a ray."""
    met, violated = points[labels > 0].mean(axis=0), points[labels < 0].mean(axis=0)
    return met - violated, float((violated @ violated - met @ met) / 2.0)


@dataclass
class SameCapacity:
    """A learner for which every member can do so many reads per second, and the load stays as it is."""

    reads_per_s: float = 100.0

    @property
    def predictors(self) -> tuple[str, ...]:
        return ("last value",)

    def planes(self, samples: Sequence[tuple[Points, Labels]]) -> list[Plane | None]:
        return [Plane(-1.0, 0.0, 0.0, self.reads_per_s) for _ in samples]

    def predictions(self, history: Sequence[float], leads: Sequence[int]) -> list[list[float]]:
        return [LastValue().predict(history, leads)]

    def close(self) -> None:
        """Nothing to end."""


@dataclass
class SimpleModels:
    """A learner without libraries."""

    pool: tuple[Predictor, ...] = field(default_factory=lambda: (LastValue(),))

    @property
    def predictors(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.pool)

    def planes(self, samples: Sequence[tuple[Points, Labels]]) -> list[Plane | None]:
        return [boundary.learn(points, labels, middle) for points, labels in samples]

    def predictions(self, history: Sequence[float], leads: Sequence[int]) -> list[list[float]]:
        return [one.predict(history, leads) for one in self.pool]
