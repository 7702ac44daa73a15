# SPDX-License-Identifier: Apache-2.0
"""Predictors of a total, and what they have in common.

A predictor sees the past, one value a period, and says values some numbers of periods ahead (*leads*). More of them
can be given to a :class:`.group.ElasticGroup`; each one runs on its own, and one that fails says the last value.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from placement_traits.errors import NumaExtError

_GROWTH_PERIODS: Final = 2
_NOISE_PERIODS: Final = 24  # two hours of five minutes
_OF_MEDIAN: Final = (
    1.4826  # standard deviation over median absolute deviation, where errors are normal
)


class NotEnoughHistoryError(NumaExtError):
    """A predictor needs more periods than there are."""


class Predictor(Protocol):
    """One member of the pool."""

    @property
    def name(self) -> str:
        """What logs and figures call it."""

    def predict(self, history: Sequence[float], leads: Sequence[int]) -> list[float]:
        """Return a value for each lead.

        :param history: values of all periods so far, oldest first
        :param leads: periods after the last one
        :raises NotEnoughHistoryError: there are too few
        """


@dataclass(frozen=True, slots=True)
class LastValue:
    """What is now stays: the yardstick of every other predictor."""

    name: str = "last value"

    def predict(self, history: Sequence[float], leads: Sequence[int]) -> list[float]:
        """Return the last value for every lead."""
        return [history[-1]] * len(leads)


def noise(history: Sequence[float]) -> float:
    """Return the standard deviation of the recent values around their course; 0 where fewer than four are known.

    It is taken from second differences, which steady growth has none of, by their median, which a jump hardly moves.
    """
    recent = np.asarray(history[-_NOISE_PERIODS:], dtype=float)
    if len(recent) < 4:
        return 0.0
    bends = np.abs(np.diff(recent, 2))
    return _OF_MEDIAN * float(np.median(bends)) / math.sqrt(6.0)


def growth(history: Sequence[float], lead: int) -> float:
    """Return the last value, and what is added until the end of a lead if it grows on as in the last two periods.

    Predictors are rewarded for being near the value, too high or too low alike, and a load that has just begun to grow
    looks like noise to them. To be late is worse for a group than to be early. But noise alone looks like growth half
    of the time: only what exceeds one standard deviation that noise gives to a mean step counts.
    """
    before = history[-1 - _GROWTH_PERIODS :]
    steps = len(before) - 1
    if not steps:
        return before[-1]
    by_noise = math.sqrt(2.0) * noise(history) / steps
    return before[-1] + lead * max(0.0, (before[-1] - before[0]) / steps - by_noise)


def sane(prediction: float, history: Sequence[float]) -> float:
    """Return a prediction that can be acted on: a number, not negative, at most twice the highest value seen.

    What is no number becomes the last value.
    """
    if not math.isfinite(prediction):
        return history[-1]
    return min(max(prediction, 0.0), 2.0 * max(history))


def lags(
    history: Sequence[float], lead: int, season: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return what a regression learns a value from: the time in the season, and the last two values known then.

    :param season: periods after which a load is expected to repeat, such as those of a day
    :returns: one row for each value that is known, these values, and the row of the value to be predicted
    :raises NotEnoughHistoryError: no value has two before it at that lead
    """
    values = np.asarray(history, dtype=float)
    count = len(values)
    target = np.arange(lead + 1, count)
    if not len(target):
        raise NotEnoughHistoryError("history", count, lead)
    seen = target - lead
    rows = np.column_stack([target % season, values[seen], values[seen - 1]])
    ahead = count - 1 + lead
    now = np.array([[ahead % season, values[-1], values[-2]]])
    return rows, values[target], now
