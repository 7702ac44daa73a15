# SPDX-License-Identifier: Apache-2.0
"""The models of OnlineElastMan (Gureya 2021, sections 3.4.1 and 3.4.3) and our own, fitted in this process.

The ARIMA models are fitted by conditional least squares: exact on a series that follows the model, and fifty times
faster than by a state space. (0,1,1) is simple exponential smoothing, as the source calls it. The source says neither
C of the classifier nor when a tree ends: C is 100 with balanced classes, a leaf holds three periods at least.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nova_numa_ext.policy.elastic import boundary
from nova_numa_ext.policy.elastic.boundary import Labels, Plane, Points
from nova_numa_ext.policy.elastic.forecast import LastValue, NotEnoughHistoryError, Predictor, lags
from placement_traits.errors import CapabilityMissingError

_COST: Final = 100.0
_LEAF: Final = 3
_LEAST_PERIODS: Final = 8  # for parameters of a second-order model
RECENT: Final = 72  # periods that ARIMA models are fitted to: six hours of five minutes


def classify(points: Points, labels: Labels) -> tuple[NDArray[np.float64], float]:
    """Fit a linear support vector machine; a :data:`~nova_numa_ext.policy.elastic.boundary.Classifier`."""
    from sklearn.svm import SVC

    fitted = SVC(kernel="linear", C=_COST, class_weight="balanced").fit(points, labels)
    return fitted.coef_[0], float(fitted.intercept_[0])


@dataclass(frozen=True, slots=True)
class Autoregression:
    """ARIMA(order, differences, 0) with a constant; (0, 1, 0) is the random walk with drift."""

    order: int
    differences: int

    @property
    def name(self) -> str:
        """As the literature writes it."""
        return f"ARIMA({self.order},{self.differences},0)"

    def predict(self, history: Sequence[float], leads: Sequence[int]) -> list[float]:
        """Return the value at each lead."""
        from statsmodels.tsa.ar_model import AutoReg

        values = _recent(history)
        series = np.diff(values, self.differences) if self.differences else values
        ahead = AutoReg(series, self.order, trend="c").fit().forecast(max(leads))
        if self.differences:
            ahead = values[-1] + ahead.cumsum()
        return [float(ahead[lead - 1]) for lead in leads]


@dataclass(frozen=True, slots=True)
class ExponentialSmoothing:
    """ARIMA(0,1,1) without a constant: an average that forgets; the same at any lead."""

    name: str = "ARIMA(0,1,1)"

    def predict(self, history: Sequence[float], leads: Sequence[int]) -> list[float]:
        """Return the level after the last value, for every lead."""
        from statsmodels.tsa.holtwinters import SimpleExpSmoothing

        values = _recent(history)
        fitted = SimpleExpSmoothing(values, initialization_method="legacy-heuristic").fit()
        return [float(fitted.forecast(1)[0])] * len(leads)


@dataclass(frozen=True, slots=True)
class RegressionTree:
    """A tree that splits by variance (CART), on the time in the season and the last two values."""

    season: int = 288
    name: str = "regression tree"

    def predict(self, history: Sequence[float], leads: Sequence[int]) -> list[float]:
        """Return the value at each lead, each from a tree of its own."""
        return [self._predict(history, lead) for lead in leads]

    def _predict(self, history: Sequence[float], lead: int) -> float:
        from sklearn.tree import DecisionTreeRegressor

        rows, values, now = lags(history, lead, self.season)
        tree = DecisionTreeRegressor(min_samples_leaf=_LEAF, random_state=0).fit(rows, values)
        return float(tree.predict(now)[0])


_LEVELS: Final = (0.2, 0.4, 0.6, 0.8, 1.0)
_TRENDS: Final = (0.1, 0.2, 0.4, 0.7)
_DAMPINGS: Final = (0.7, 0.85, 0.95)
_JUDGED: Final = 36  # periods: three hours of five minutes


@dataclass(frozen=True, slots=True)
class DampedTrend:
    """A level and a trend that fades (Gardner and McKenzie 1985), with the constants that were best at the lead.

    Not of the source: its ARIMA models return to the mean of six hours or follow their mean drift, so three periods
    ahead of a load that has just begun to grow they are no better than its last value.
    """

    name: str = "damped trend"

    def predict(self, history: Sequence[float], leads: Sequence[int]) -> list[float]:
        """Return the value at each lead."""
        values = _recent(history)
        level_by, trend_by, damping = (
            axis.ravel() for axis in np.meshgrid(_LEVELS, _TRENDS, _DAMPINGS)
        )
        level, trend = np.full(len(level_by), values[0]), np.zeros(len(level_by))
        levels, trends = [level], [trend]
        for value in values[1:]:
            before = level
            level = level_by * value + (1.0 - level_by) * (level + damping * trend)
            trend = trend_by * (level - before) + (1.0 - trend_by) * damping * trend
            levels.append(level)
            trends.append(trend)
        found = []
        for lead in leads:
            reach = sum(damping**step for step in range(1, lead + 1))
            ahead = np.array(levels) + np.array(trends) * reach
            wrong = np.abs(ahead[:-lead] - values[lead:, None])[-_JUDGED:].mean(axis=0)
            found.append(float(ahead[-1][int(wrong.argmin())]))
        return found


def _recent(history: Sequence[float]) -> NDArray[np.float64]:
    if len(history) < _LEAST_PERIODS:
        raise NotEnoughHistoryError("history", len(history), _LEAST_PERIODS)
    return np.asarray(history[-RECENT:], dtype=float)


def published(season: int) -> tuple[Predictor, ...]:
    """Return the pool of the source, in its order: five ARIMA models, then the tree.

    :param season: periods after which a load repeats
    """
    return (
        Autoregression(1, 0),
        Autoregression(1, 1),
        ExponentialSmoothing(),
        Autoregression(2, 0),
        Autoregression(0, 1),
        RegressionTree(season),
    )


def ours(season: int) -> tuple[Predictor, ...]:
    """Return our pool: a level, a trend, and what the season brings.

    :param season: periods after which a load repeats
    """
    return ExponentialSmoothing(), DampedTrend(), RegressionTree(season)


@dataclass(frozen=True)
class Models:
    """A :class:`~nova_numa_ext.policy.elastic.group.Learner` in this process.

    :param pool: its predictors
    """

    pool: tuple[Predictor, ...]

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names of the predictors."""
        return tuple(one.name for one in self.pool)

    def planes(self, samples: Sequence[tuple[Points, Labels]]) -> list[Plane | None]:
        """Fit a plane to each set."""
        return [boundary.learn(points, labels, classify) for points, labels in samples]

    def predictions(self, history: Sequence[float], leads: Sequence[int]) -> list[list[float]]:
        """Return what each predictor says, a row of leads for each; one that cannot, says the last value."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of series that are constant or short
            return [_said(one, history, leads) for one in self.pool]


def _said(predictor: Predictor, history: Sequence[float], leads: Sequence[int]) -> list[float]:
    try:
        return predictor.predict(history, leads)
    except (NotEnoughHistoryError, ValueError, np.linalg.LinAlgError):
        return LastValue().predict(history, leads)


def check_installed() -> None:
    """Raise where a library is missing.

    :raises CapabilityMissingError: with what to install
    """
    try:
        import sklearn  # noqa: F401
        import statsmodels  # noqa: F401
    except ImportError as error:
        raise CapabilityMissingError(
            f"{error.name} is not installed: install nova-numa-ext[elastic]"
        ) from error
