# SPDX-License-Identifier: Apache-2.0
"""Weights by trial end where all together gain no more (F-003-34)."""

import pytest

from nova_numa_ext.simulator.network.slots import progress
from nova_numa_ext.simulator.network.tuning import WeightTrials
from placement_traits.errors import InvalidValueError

SLOTS = 26_000


def found(trials: WeightTrials, of_weight: "dict[int, float]") -> list[int]:
    tried = []
    while not trials.done:
        tried.append(trials.weight)
        trials.took(of_weight[trials.weight])
    return tried


def test_it_ends_at_the_best_weight_of_the_slot_model() -> None:
    """Which is the burst of who sends less: 1.857 of 2 slots are used, 1.444 with equal weights."""
    trials = WeightTrials()
    each_slot = {
        weight: sum(progress((weight, 1), 0, slots=SLOTS)) / SLOTS for weight in (1, 2, 3, 4)
    }
    assert found(trials, each_slot) == [1, 2, 3, 4]
    assert trials.weight == 3
    assert each_slot[trials.weight] == pytest.approx(1.857, abs=1e-3)


def test_what_has_become_worse_is_taken_back() -> None:
    trials = WeightTrials()
    assert found(trials, {1: 10.0, 2: 9.0}) == [1, 2]
    assert trials.weight == 1


def test_a_gain_within_chance_is_none() -> None:
    trials = WeightTrials(gain=0.05)
    assert found(trials, {1: 10.0, 2: 10.4}) == [1, 2]
    assert trials.weight == 1
    trials.took(1e9)
    assert trials.weight == 1, "it is done"


def test_there_is_a_heaviest_weight() -> None:
    trials = WeightTrials()
    found(trials, {weight: float(weight) for weight in range(1, 9)})
    assert trials.weight == 8


@pytest.mark.parametrize("gain", [-0.1, 1.0, float("nan")])
def test_a_gain_is_a_share(gain: float) -> None:
    with pytest.raises(InvalidValueError, match="gain"):
        WeightTrials(gain)
