# SPDX-License-Identifier: Apache-2.0
"""The modelled service under an elastic group."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from nova_numa_ext.simulator.elastic import shapes
from nova_numa_ext.simulator.elastic.plant import LEAST, OBJECTIVE_MS, draws

FROZEN = Path(__file__).parents[5] / "benchmarks/elastic_plants.json"
PLANTS = draws(60, 21)


def test_the_plants_of_the_benchmark_are_those_that_were_frozen() -> None:
    """They were drawn before anything was tuned: a model that changes must not draw others unseen."""
    assert [dataclasses.asdict(plant) for plant in PLANTS] == json.loads(FROZEN.read_text())


@pytest.mark.parametrize("plant", PLANTS[:8], ids=lambda plant: plant.shape)
def test_training_goes_above_what_the_first_members_carry(plant) -> None:
    operations = plant.totals().sum(axis=1) / plant.member_operations_per_s
    assert max(operations[: shapes.WARM_UP]) > LEAST
    assert operations[shapes.WARM_UP - 1] < LEAST
    assert max(operations) < 1.2 * plant.peak_members


def test_a_mean_member_is_at_the_objective_with_its_operations() -> None:
    plant = dataclasses.replace(PLANTS[0], spread=0.0)
    total = plant.member_operations_per_s
    loads = plant.loads((total * plant.read_share, total * (1 - plant.read_share)), 0, [7])
    assert plant.latency_ms(7, loads[7]) == pytest.approx(OBJECTIVE_MS)
    assert plant.latency_ms(7, loads[7].times(1.01)) > OBJECTIVE_MS
    assert plant.latency_ms(7, loads[7].times(9.0)) < 1e5, "latency stays a number"


def test_loads_are_all_of_the_total_and_do_not_depend_on_what_was_before() -> None:
    plant = PLANTS[1]
    loads = plant.loads((900.0, 100.0), 5, [0, 1, 4])
    assert sum(load.reads_per_s for load in loads.values()) == pytest.approx(900.0)
    assert sum(load.writes_per_s for load in loads.values()) == pytest.approx(100.0)
    assert loads == plant.loads((900.0, 100.0), 5, [0, 1, 4])
    assert np.array_equal(plant.totals(), plant.totals())


def test_readings_lie_around_the_latency() -> None:
    plant = PLANTS[2]
    readings = [one for period in range(50) for one in plant.readings_ms(period, 0, 30.0)]
    assert np.exp(np.mean(np.log(readings))) == pytest.approx(30.0, rel=0.02)
    assert np.std(np.log(readings)) == pytest.approx(plant.reading_noise, rel=0.1)
