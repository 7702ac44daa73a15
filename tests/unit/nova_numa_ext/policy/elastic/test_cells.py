# SPDX-License-Identifier: Apache-2.0
"""Readings in cells, and their labels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.elastic.cells import MET, VIOLATED, Cells, Grid, label
from nova_numa_ext.policy.elastic.load import MemberLoad
from placement_traits.errors import InvalidValueError


@pytest.mark.parametrize(
    ("good", "confidence", "expected"),
    [(11, 0.5, MET), (10, 0.5, MET), (9, 0.5, VIOLATED), (19, 0.95, MET), (18, 0.95, VIOLATED)],
)
def test_f_004_50_a_cell_is_labelled_by_the_share_of_its_readings(
    good: int, confidence: float, expected: int
) -> None:
    """F-004-50: 20 readings, some of them within 35 ms."""
    readings = [35.0] * good + [35.1] * (20 - good)
    assert label(readings, 35.0, confidence) == expected


def test_a_load_lies_in_the_cell_around_it() -> None:
    grid = Grid(500.0, 200.0, 5.0)
    cell = grid.cell(MemberLoad(1499.0, 200.0, 0.0))
    assert cell == (2, 1, 0)
    assert grid.centre(cell) == (1250.0, 300.0, 2.5)


def test_a_cell_forgets_its_oldest_readings() -> None:
    cells = Cells(Grid(), kept=3)
    load = MemberLoad(100.0)
    cells.add(load, [50.0, 50.0, 50.0])
    assert cells.labelled(35.0, 0.5)[1].tolist() == [VIOLATED]
    cells.add(load, [20.0, 20.0])
    assert cells.labelled(35.0, 0.5)[1].tolist() == [MET]


def test_the_cell_that_was_not_read_for_the_longest_time_is_dropped() -> None:
    cells = Cells(Grid(100.0, 100.0, 5.0), most=2)
    for reads in (50.0, 150.0, 50.0, 250.0):
        cells.add(MemberLoad(reads), [1.0])
    points, labels = cells.labelled(35.0, 0.5)
    assert sorted(points[:, 0].tolist()) == [50.0, 250.0]
    assert len(labels) == len(cells) == 2


@given(st.lists(st.floats(0.0, 99.0), min_size=1, max_size=60), st.floats(0.0, 1.0))
def test_a_cell_meets_the_objective_just_where_its_label_says_so(
    readings: list[float], confidence: float
) -> None:
    cells = Cells(Grid())
    cells.add(MemberLoad(100.0), readings)
    (cell,) = cells.measured(confidence)
    expected = MET if confidence == 0.0 or cell.latency_ms <= 35.0 else VIOLATED
    assert cells.labelled(35.0, confidence)[1].tolist() == [expected]


def test_a_cell_has_the_mean_of_the_loads_it_still_knows() -> None:
    cells = Cells(Grid(), kept=4)
    for reads in (10.0, 100.0, 300.0):
        cells.add(MemberLoad(reads, 2.0, 1.0), [1.0, 2.0])
        cells.measured(0.5)
    (cell,) = cells.measured(0.5)
    assert (cell.load, cell.readings) == (MemberLoad(200.0, 2.0, 1.0), 4)
    assert [cells.measured(share)[0].latency_ms for share in (0.5, 1.0, 0.5)] == [1.0, 2.0, 1.0]


def test_no_readings_are_no_points() -> None:
    points, labels = Cells(Grid()).labelled(35.0, 0.5)
    assert points.shape == (0, 3)
    assert labels.shape == (0,)


@pytest.mark.parametrize("side", [0.0, -1.0, float("nan"), float("inf")])
def test_a_side_that_cuts_nothing_is_refused(side: float) -> None:
    with pytest.raises(InvalidValueError, match="granularity"):
        Grid(writes_per_s=side)
