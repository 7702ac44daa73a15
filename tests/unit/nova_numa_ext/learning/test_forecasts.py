# SPDX-License-Identifier: Apache-2.0
"""Forecasts of the frozen services' loads; where the extra is not installed, the packaging tests run these."""

import pytest

from benchmarks.bench_elastic import LEADS, SEASON, Remembering, errors, plants
from nova_numa_ext.learning import models

pytest.importorskip("sklearn", reason="needs the extra elastic")
pytest.importorskip("statsmodels", reason="needs the extra elastic")


@pytest.mark.parametrize(("number", "shape"), [(1, "diurnal"), (6, "ramp"), (11, "regime")])
def test_f_004_57_the_majority_is_near_the_best_and_needs_the_order_of_time(
    number: int, shape: str
) -> None:
    """F-004-57, relative: one period ahead beside the best predictor in hindsight; the control sees shuffled time."""
    plant = plants(60)[number]
    assert plant.shape == shape
    reads = plant.totals()[:, 0].tolist()
    learner = Remembering(models.Models(models.ours(SEASON)), LEADS)
    ahead = errors(reads, learner, 1)
    assert ahead.majority <= 1.05 * min(ahead.single)
    shuffled = errors(reads, learner, 1, shuffle=True)
    assert shuffled.majority > 2.0 * shuffled.naive
