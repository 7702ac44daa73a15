# SPDX-License-Identifier: Apache-2.0
"""Weighted majority: of several predictors, those that were wrong least speak.

Gureya 2021, algorithm 2
------------------------

All weights begin at 1. When a real value arrives, the weight of each predictor that was further from it than the
tolerance is multiplied by a factor below 1. The predictor with the highest weight is followed; among equals the first.
Only ratios of weights matter, so they are scaled up together before the highest becomes too small for a number.

The published algorithm never forgets: a predictor that was good for a year stays in favour for a year of mistakes.
``memory`` bounds that: no weight falls below this share of the highest one.

Graded
------
Whether a prediction is within a tolerance says little where loads are noisy: what is wrong by 6 % and by 60 % loses the
same, and all that is within 5 % is alike. So ours (the general form of Littlestone and Warmuth, 1994) weighs by how
wrong each one was, in tolerances, forgets that by a tenth a period, and says the mean of all by weight, as errors of
predictors cancel out in part.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from nova_numa_ext.policy.elastic.settings import ScalingSettings

_SMALL: Final = 1e-200
_MOST_WRONG: Final = 100.0  # tolerances


@dataclass(frozen=True, slots=True)
class WeightedMajority:
    """Weights of a pool of predictors.

    :param weights: of each predictor
    :param factor: on the weight of a predictor that was wrong, in [0, 1)
    :param tolerance: deviation that is not wrong, in shares of the real value
    :param memory: lowest weight in shares of the highest; 0: the published algorithm
    """

    weights: tuple[float, ...]
    factor: float = 0.5
    tolerance: float = 0.05
    memory: float = 0.0

    @classmethod
    def of(cls, count: int, factor: float, tolerance: float, memory: float) -> "WeightedMajority":
        """Return a pool of so many predictors, none of which was wrong yet."""
        return cls((1.0,) * count, factor, tolerance, memory)

    @property
    def chosen(self) -> int:
        """The predictor that is followed now."""
        return self.weights.index(max(self.weights))

    def combined(self, predictions: Sequence[float]) -> float:
        """Return what is predicted, of what each predictor predicts."""
        return predictions[self.chosen]

    def learned(self, predictions: Sequence[float], real: float) -> "WeightedMajority":
        """Return the weights after a value has arrived.

        :param predictions: what each predictor had predicted
        """
        allowed = self.tolerance * abs(real)
        weights = [
            weight * self.factor if abs(prediction - real) > allowed else weight
            for weight, prediction in zip(self.weights, predictions, strict=True)
        ]
        highest = max(weights)
        if highest == 0.0:  # factor 0, and all were wrong
            return replace(self, weights=(1.0,) * len(weights))
        if highest < _SMALL:
            weights, highest = [weight / highest for weight in weights], 1.0
        return replace(self, weights=tuple(max(one, self.memory * highest) for one in weights))


@dataclass(frozen=True, slots=True)
class GradedMajority:
    """Losses of a pool of predictors; a weight is the factor to the power of a loss.

    :param losses: how wrong each predictor was, in tolerances, the past counting less; the lowest is 0
    :param factor: weight of a predictor that was wrong by one tolerance, in [0, 1)
    :param tolerance: the unit of losses, in shares of the real value
    :param recall: of a loss, what is left of it after a period
    """

    losses: tuple[float, ...]
    factor: float
    tolerance: float
    recall: float

    @property
    def chosen(self) -> int:
        """The predictor that counts most now."""
        return self.losses.index(min(self.losses))

    def combined(self, predictions: Sequence[float]) -> float:
        """Return what is predicted, of what each predictor predicts."""
        weights = [self.factor**loss for loss in self.losses]
        pairs = zip(weights, predictions, strict=True)
        return math.fsum(weight * one for weight, one in pairs) / math.fsum(weights)

    def learned(self, predictions: Sequence[float], real: float) -> "GradedMajority":
        """Return the losses after a value has arrived.

        :param predictions: what each predictor had predicted
        """
        allowed = self.tolerance * abs(real)
        losses = [
            self.recall * loss + _wrong(abs(prediction - real), allowed)
            for loss, prediction in zip(self.losses, predictions, strict=True)
        ]
        lowest = min(losses)
        return replace(self, losses=tuple(loss - lowest for loss in losses))


Majority = WeightedMajority | GradedMajority


def majority(count: int, settings: ScalingSettings) -> Majority:
    """Return a pool of so many predictors, none of which was wrong yet."""
    factor, tolerance = settings.wrong_factor, settings.wrong_tolerance
    if settings.graded:
        return GradedMajority((0.0,) * count, factor, tolerance, settings.recall)
    return WeightedMajority.of(count, factor, tolerance, settings.wrong_memory)


def _wrong(error: float, allowed: float) -> float:
    """Return an error in tolerances; all errors are the same where none is tolerated."""
    if error == 0.0:
        return 0.0
    return _MOST_WRONG if error > _MOST_WRONG * allowed else error / allowed
