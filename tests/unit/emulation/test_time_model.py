# SPDX-License-Identifier: Apache-2.0
"""The closed time model against the speed-ups that follow from the source's tables."""

import pytest

from emulation.physics import published
from emulation.physics.time_model import transfer_time
from host_agent.decide.pages.weights import canonical_weights, uniform

CASES = [
    (name, workers)
    for name, table in (("A", published.MODEL_SPEEDUPS_A), ("B", published.MODEL_SPEEDUPS_B))
    for workers in table
]


@pytest.mark.parametrize(("machine", "workers"), CASES)
def test_f_004_03_canonical_weights_are_faster_by_what_the_tables_give(
    machine: str, workers: tuple[int, ...]
) -> None:
    weights = {"A": published.CANONICAL_A, "B": published.CANONICAL_B}[machine][workers]
    expected = {"A": published.MODEL_SPEEDUPS_A, "B": published.MODEL_SPEEDUPS_B}[machine][workers]
    bandwidth = {n: dict.fromkeys(workers, value) for n, value in enumerate(weights)}
    best = transfer_time(canonical_weights(bandwidth, workers), bandwidth, workers)
    for rival, speed_up in zip((uniform(workers), uniform(bandwidth)), expected, strict=True):
        time = transfer_time(rival, bandwidth, workers)
        assert time / best == pytest.approx(speed_up, abs=0.005)


def test_f_004_03_the_slowest_worker_of_several_decides() -> None:
    bandwidth = {0: {0: 10.0, 1: 5.0}, 1: {0: 4.0, 1: 8.0}}
    assert transfer_time({0: 0.5, 1: 0.5}, bandwidth, [0, 1], data=8.0) == pytest.approx(1.0)
