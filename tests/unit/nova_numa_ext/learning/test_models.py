# SPDX-License-Identifier: Apache-2.0
"""The models of scikit-learn and statsmodels; where the extra is not installed, the packaging tests run these."""

import numpy as np
import pytest

from nova_numa_ext.policy.elastic import boundary
from nova_numa_ext.policy.elastic.forecast import Predictor
from nova_numa_ext.policy.elastic.load import MemberLoad

pytest.importorskip("sklearn", reason="needs the extra elastic")
pytest.importorskip("statsmodels", reason="needs the extra elastic")

from nova_numa_ext.learning.models import (
    Autoregression,
    DampedTrend,
    ExponentialSmoothing,
    Models,
    RegressionTree,
    classify,
    published,
)

COUNT = 60


def _ar1() -> np.ndarray:
    values = [1000.0]
    for _ in range(COUNT + 5):
        values.append(200.0 + 0.7 * values[-1])
    return np.array(values)


def _ar2() -> np.ndarray:
    values = [1000.0, 1300.0]
    for _ in range(COUNT + 5):
        values.append(300.0 + 1.6 * values[-1] - 0.8 * values[-2])
    return np.array(values)


def _ari() -> np.ndarray:
    steps = [80.0]
    for _ in range(COUNT + 5):
        steps.append(5.0 + 0.8 * steps[-1])
    return 1000.0 + np.cumsum(steps)


def _drift() -> np.ndarray:
    return 500.0 + 7.0 * np.arange(COUNT + 6.0)


def _season() -> np.ndarray:
    """A load that jumps with the time of day: no linear model of two values foresees it."""
    day = np.array([100.0, 900.0, 300.0, 300.0, 700.0, 100.0, 500.0, 500.0])
    return np.tile(day, COUNT // len(day) + 2)


SERIES: dict[str, tuple[Predictor, np.ndarray]] = {
    "ARIMA(1,0,0)": (Autoregression(1, 0), _ar1()),
    "ARIMA(1,1,0)": (Autoregression(1, 1), _ari()),
    "ARIMA(2,0,0)": (Autoregression(2, 0), _ar2()),
    "ARIMA(0,1,0)": (Autoregression(0, 1), _drift()),
    "regression tree": (RegressionTree(8), _season()),
}


@pytest.mark.parametrize("name", SERIES)
def test_f_004_56_a_predictor_is_exact_on_the_series_it_models(name: str) -> None:
    """F-004-56: without noise, at leads of one and three periods."""
    predictor, series = SERIES[name]
    assert predictor.name == name
    said = predictor.predict(tuple(series[:COUNT]), (1, 3))
    assert said == pytest.approx([series[COUNT], series[COUNT + 2]], rel=1e-6)


def test_f_004_56_smoothing_finds_the_weight_that_made_a_series() -> None:
    """F-004-56: a level that moves by 0.3 of each surprise; what is said next is the level."""
    draw = np.random.default_rng(4)
    level, values = 1000.0, []
    for surprise in draw.normal(0.0, 20.0, 72):
        values.append(level + surprise)
        level += 0.3 * surprise
    said = ExponentialSmoothing().predict(tuple(values), (1, 3))
    assert said == pytest.approx([level, level], rel=0.01)


def _error(predictor, series: np.ndarray) -> float:
    errors = [
        abs(predictor.predict(tuple(series[:at]), (1,))[0] / series[at] - 1.0)
        for at in range(40, len(series))
    ]
    return float(np.mean(errors))


def _noisy(kind: str) -> np.ndarray:
    """AR(1) around 1,000; a random walk that drifts; a day that jumps."""
    draw = np.random.default_rng(8)
    if kind == "ARIMA(1,0,0)":
        values = [1000.0]
        for noise in draw.normal(0.0, 60.0, 110):
            values.append(1000.0 - 0.6 * (values[-1] - 1000.0) + noise)
        return np.array(values)
    if kind == "ARIMA(0,1,0)":
        return 1000.0 + np.cumsum(draw.normal(8.0, 15.0, 110))
    return np.tile(_season()[:8], 14) * (1.0 + draw.normal(0.0, 0.02, 112))


@pytest.mark.parametrize("best", ["ARIMA(1,0,0)", "ARIMA(0,1,0)", "regression tree"])
def test_f_004_56_each_is_best_on_its_own_series(best: str) -> None:
    """Issue 21: AR(1), random walk and tree; more parameters than the series has cost more than they give."""
    pool: tuple[Predictor, ...] = (
        Autoregression(1, 0),
        Autoregression(0, 1),
        RegressionTree(8),
    )
    errors = {one.name: _error(one, _noisy(best)) for one in pool}
    assert min(errors, key=errors.__getitem__) == best, errors


@pytest.mark.parametrize("dimensions", [2, 3])
def test_f_004_51_a_plane_that_separates_is_found(dimensions: int) -> None:
    """F-004-51: the capacity it says is within 5 % of the true plane's."""
    draw = np.random.default_rng(3)
    scale = np.array([2000.0, 800.0, 40.0 if dimensions == 3 else 0.0])
    points = draw.uniform(0.0, 1.0, (200, 3)) * scale + np.array([0.0, 0.0, 8.0])
    value = 2600.0 - points @ np.array([1.0, 2.0, 20.0])
    points, value = points[abs(value) > 100.0], value[abs(value) > 100.0]
    labels = np.where(value > 0.0, 1, -1)
    plane = boundary.learn(points, labels, classify)
    assert plane is not None
    sides = [plane.side(MemberLoad(*point)) for point in points]
    assert np.sign(sides).tolist() == labels.tolist()
    ratio = plane.ratio(MemberLoad(1000.0, 500.0, 10.0))
    assert ratio == pytest.approx(2000.0 / (2600.0 - 20.0 * 10.0), rel=0.05)


def test_the_pool_is_the_published_one_and_a_short_history_says_the_last_value() -> None:
    models = Models(published(288))
    assert models.predictors == (
        "ARIMA(1,0,0)",
        "ARIMA(1,1,0)",
        "ARIMA(0,1,1)",
        "ARIMA(2,0,0)",
        "ARIMA(0,1,0)",
        "regression tree",
    )
    assert models.predictions((5.0, 7.0), (1, 3)) == [[7.0, 7.0]] * 6


@pytest.mark.parametrize("value", [0.0, 300.0])
def test_a_load_that_never_changes_is_predicted_to_stay(value: float) -> None:
    said = np.array(Models(published(8)).predictions((value,) * 50, (1, 3)))
    assert said == pytest.approx(np.full((6, 2), value), abs=1e-6)


def test_a_damped_trend_goes_on_where_a_line_goes_on_and_stays_where_nothing_grows() -> None:
    line = [1000.0 + 50.0 * at for at in range(COUNT)]
    (ahead,) = DampedTrend().predict(line, (3,))
    assert line[-1] + 100.0 < ahead < line[-1] + 150.0
    assert DampedTrend().predict([700.0] * COUNT, (1, 3)) == pytest.approx([700.0, 700.0])
