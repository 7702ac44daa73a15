# SPDX-License-Identifier: Apache-2.0
"""Equations 2.2 to 2.4, 3.1 and 5.1 to 5.4, by hand (F-003-25)."""

import pytest

from nova_numa_ext.simulator.network.contention import (
    SharedRun,
    effectiveness,
    least_contention,
    normalised_time,
    total_contention_s,
    wasted_gflop,
    wasted_host_s,
)
from placement_traits.errors import InvalidValueError

RUNS = (SharedRun(2, 10.0, 13.0), SharedRun(4, 20.0, 25.0))
LESS = (SharedRun(2, 10.0, 11.0), SharedRun(4, 20.0, 22.75))


def test_the_example_by_hand() -> None:
    assert [run.contention_s for run in RUNS] == [3, 5]
    assert wasted_host_s(RUNS) == 2 * 3 + 4 * 5 == 26
    assert wasted_host_s(LESS) == 13
    assert effectiveness(wasted_host_s(RUNS), wasted_host_s(LESS)) == 2
    assert total_contention_s(RUNS) == 8
    assert wasted_gflop(RUNS, 100.0) == 2600


def test_the_best_configuration_is_that_with_least_contention() -> None:
    assert least_contention({"1:1": RUNS, "1:2": LESS, "2:1": LESS}) == "1:2"
    with pytest.raises(InvalidValueError, match="configurations"):
        least_contention({})


def test_one_that_wastes_nothing_is_infinitely_better_unless_nothing_was_wasted() -> None:
    assert effectiveness(5, 0) == float("inf")
    assert effectiveness(0, 0) == 1
    assert effectiveness(0, 5) == 0
    with pytest.raises(InvalidValueError, match="host seconds"):
        effectiveness(-1, 5)


def test_time_is_normalised_by_a_crossbar() -> None:
    assert normalised_time(0.2, 0.1, 0.1) == pytest.approx(2)
    with pytest.raises(InvalidValueError, match="crossbar"):
        normalised_time(0, 1, 1)


@pytest.mark.parametrize(
    "wrong", [(0, 1.0, 1.0), (1, 0.0, 1.0), (1, float("nan"), 1.0), (1, 1.0, -1.0)]
)
def test_a_run_has_hosts_and_times(wrong: tuple[int, float, float]) -> None:
    with pytest.raises(InvalidValueError, match="run"):
        SharedRun(*wrong)
