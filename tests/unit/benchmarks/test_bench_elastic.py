# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of elastic groups judges by; with models of numpy alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from benchmarks import bench_elastic
from benchmarks.bench_elastic import DRAWN, Remembering, errors, judge, plants, summary
from nova_numa_ext.learning import models
from nova_numa_ext.policy.elastic.forecast import LastValue
from nova_numa_ext.simulator.elastic.shapes import SHAPES
from tests.support.elastic import SimpleModels

LINE = tuple(1000.0 + 50.0 * np.arange(60.0))


@dataclass(frozen=True)
class Line:
    """Goes on as in the last period."""

    name: str = "line"

    def predict(self, history: Sequence[float], leads: Sequence[int]) -> list[float]:
        step = history[-1] - history[-2] if len(history) > 1 else 0.0
        return [history[-1] + lead * step for lead in leads]


def learner(*pool) -> Remembering:
    return Remembering(SimpleModels(pool), (1, 3))


def test_there_are_at_least_fifty_services_and_each_shape_as_often() -> None:
    found = [plant.shape for plant in plants(1000)]
    assert len(found) >= 50
    assert {found.count(shape) for shape in SHAPES} == {len(found) // len(SHAPES)}


def test_what_is_followed_is_as_good_as_the_predictor_that_is_right() -> None:
    found = errors(LINE, learner(LastValue(), Line()), 3)
    assert found.single == (found.naive, pytest.approx(0.0))
    assert found.majority < 0.01 * found.naive, "the last value was wrong before it is judged"
    assert found.naive == pytest.approx(
        np.mean([100.0 * 150.0 / LINE[at + 3] for at in range(16, 57)])
    )


def test_shuffled_time_loses_the_gain() -> None:
    found = errors(LINE, learner(LastValue(), Line()), 3, shuffle=True)
    assert found.majority > found.naive


def test_a_history_is_predicted_once_for_all_policies() -> None:
    asked = []

    class Counting(SimpleModels):
        def predictions(self, history, leads):
            asked.append(history)
            return super().predictions(history, leads)

    remembering = Remembering(Counting(), (1, 3))
    assert remembering.predictions((1.0, 2.0), (3,)) == [[2.0]]
    assert remembering.predictions((1.0, 2.0 + 1e-12), (1, 3)) == [[2.0, 2.0]]
    assert len(asked) == 1


def test_figures_of_three_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "Models", lambda pool: SimpleModels((LastValue(), Line())))
    found = [judge(plant, control=True) for plant in plants(4)]
    assert [one.shape for one in found if one.errors] == list(DRAWN)
    figures = summary(found)
    assert figures["plants"] == 4
    assert figures["met_share_oracle"] == 1.0
    assert 0.0 < figures["met_share_literal"] < 1.0
    assert figures["vmh_default_vs_oracle"] > 1.0
    assert figures["wma_vs_best"] > 0.9, "errors of several cancel out in part, but not much"
    assert figures["lead3_vs_naive_shuffled"] > figures["lead3_vs_naive"]


def test_a_noisy_neighbour_is_compared_with_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "Models", lambda pool: SimpleModels())
    figures = bench_elastic.show_noise(2)
    assert figures["capacity_change_by_noise_alone"] == 0.0, "what is reported does not train"
    assert figures["capacity_change_unread"] == figures["capacity_change_noisy"]
    assert figures["capacity_change_noisy_median"] < figures["capacity_change_noisy_unreported"]


def test_a_figure_stands_beside_its_goal() -> None:
    assert bench_elastic.beside_goal("met_share_default", 0.94) == ("≥ 0.95", "missed")
    assert bench_elastic.beside_goal("decision_ms_100_groups_50_vms", 29e3) == ("≤ 30000", "met")
    assert bench_elastic.beside_goal("met_share_literal", 0.8) == ("", "")


def test_the_cost_is_of_a_hundred_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "Models", lambda pool: SimpleModels())
    (cost_ms,) = bench_elastic.cost(2).values()
    assert cost_ms > 100.0
