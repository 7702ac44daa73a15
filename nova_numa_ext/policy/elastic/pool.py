# SPDX-License-Identifier: Apache-2.0
"""Weighted majority: of several predictors, the one that was wrong least often speaks (Gureya 2021, algorithm 2).

All weights begin at 1. When a real value arrives, the weight of each predictor that was further from it than the
tolerance is multiplied by a factor below 1. The predictor with the highest weight is followed; among equals the first.
Only ratios of weights matter, so they are scaled up together before the highest becomes too small for a number.

The published algorithm never forgets: a predictor that was good for a year stays in favour for a year of mistakes.
``memory`` bounds that: no weight falls below this share of the highest one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

_SMALL: Final = 1e-200


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

    def learned(self, predictions: Sequence[float], real: float) -> "WeightedMajority":
        """Return the weights after a value has arrived.

        :param predictions: what each predictor had said of it
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
