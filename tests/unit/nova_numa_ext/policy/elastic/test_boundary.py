# SPDX-License-Identifier: Apache-2.0
"""The plane between good and bad loads, and the capacity it says; with a classifier of numpy alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.elastic.boundary import Plane, learn, moved
from nova_numa_ext.policy.elastic.cells import MeasuredCell
from nova_numa_ext.policy.elastic.load import MemberLoad
from tests.support.elastic import perceptron

PUBLISHED = Plane(-1.0, -2.0, 0.0, 3000.0)  # r + 2 w = 3000


def test_f_004_52_capacity_is_where_the_ray_meets_the_plane() -> None:
    """F-004-52: (w - c) / c = -1/3 for 1,000 reads and 500 writes."""
    ratio = PUBLISHED.ratio(MemberLoad(1000.0, 500.0, 1.0))
    assert ratio is not None
    assert ratio - 1.0 == pytest.approx(-1.0 / 3.0)


def test_the_size_of_the_data_stays_along_the_ray() -> None:
    """1,000 reads of 10 KiB: at most 3,000 - 100 * 10 reads; taken literally the ray would end at 1,500."""
    plane = Plane(-1.0, 0.0, -100.0, 3000.0)
    assert plane.ratio(MemberLoad(1000.0, 0.0, 10.0)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("plane", "load"),
    [
        (Plane(-1.0, 0.0, 0.0, 0.0), MemberLoad(1.0)),
        (Plane(-1.0, 0.0, 0.0, -5.0), MemberLoad(1.0)),
        (Plane(-1.0, 0.0, -1.0, 5.0), MemberLoad(1.0, 0.0, 6.0)),
        (Plane(1.0, 0.0, 0.0, 5.0), MemberLoad(1.0)),
        (Plane(1.0, -1.0, 0.0, 5.0), MemberLoad(1.0, 1.0)),
    ],
    ids=["offset 0", "offset < 0", "size beyond it", "rising", "along it"],
)
def test_a_plane_that_tells_no_capacity_is_no_model(plane: Plane, load: MemberLoad) -> None:
    assert plane.ratio(load) is None


def test_an_idle_member_uses_nothing() -> None:
    assert PUBLISHED.ratio(MemberLoad(0.0, 0.0, 1.0)) == 0.0
    assert Plane(-1.0, 0.0, 0.0, -1.0).ratio(MemberLoad(0.0)) is None


@pytest.mark.parametrize("dimensions", [2, 3])
def test_f_004_51_a_plane_that_separates_is_found(dimensions: int) -> None:
    """F-004-51: reads and writes; then the size, too. All samples are on their side of it."""
    draw = np.random.default_rng(3)
    scale = np.array([2000.0, 800.0, 40.0 if dimensions == 3 else 0.0])
    points = draw.uniform(0.0, 1.0, (120, 3)) * scale + np.array([0.0, 0.0, 8.0])
    value = 2600.0 - points @ np.array([1.0, 2.0, 20.0])
    points, value = points[abs(value) > 150.0], value[abs(value) > 150.0]
    labels = np.where(value > 0.0, 1, -1)
    plane = learn(points, labels, perceptron)
    assert plane is not None
    assert plane.size != 0.0 if dimensions == 3 else plane.size == 0.0
    sides = [plane.side(MemberLoad(*point)) for point in points]
    assert np.sign(sides).tolist() == labels.tolist()


@pytest.mark.parametrize("labels", [[1, 1, 1], [-1, -1, -1], []])
def test_labels_of_one_kind_are_no_model(labels: list[int]) -> None:
    points = np.arange(3.0 * len(labels)).reshape(-1, 3)
    assert learn(points, np.array(labels, dtype=np.int64), perceptron) is None


def measured(*rows: tuple[float, float]) -> list[MeasuredCell]:
    """Cells of reads per second and milliseconds, all with as many readings."""
    return [MeasuredCell(MemberLoad(reads), latency_ms, 10) for reads, latency_ms in rows]


READS = Plane(-1.0, 0.0, 0.0, 1000.0)


@pytest.mark.parametrize(
    ("cells", "capacity"),
    [
        # 20 and 61.25 ms are as far from 35 ms by their logarithms.
        (measured((800.0, 20.0), (1200.0, 61.25)), 1000.0),
        (measured((800.0, 20.0), (1600.0, 61.25)), 1200.0),
        (measured((900.0, 35.0), (1600.0, 61.25)), 900.0),
        # What is out of order counts together: 800 and 1,000 reads as 900 with 20 ms.
        (measured((800.0, 40.0), (1000.0, 10.0), (1500.0, 61.25)), 1200.0),
        (measured((800.0, 0.0), (1200.0, 61.25)), 1200.0),
    ],
    ids=["half-way", "far beyond", "at the objective", "out of order", "no time"],
)
def test_a_plane_is_moved_to_where_latencies_reach_the_objective(
    cells: list[MeasuredCell], capacity: float
) -> None:
    ratio = moved(READS, cells, 35.0).ratio(MemberLoad(600.0))
    assert ratio == pytest.approx(600.0 / capacity, rel=2e-3)


@pytest.mark.parametrize(
    "cells",
    [[], measured((800.0, 20.0)), measured((800.0, 20.0), (900.0, 30.0)), measured((0.0, 40.0))],
)
def test_a_plane_stays_where_nothing_crosses_the_objective(cells: list[MeasuredCell]) -> None:
    assert moved(READS, cells, 35.0) == READS


@given(st.lists(st.tuples(st.floats(1.0, 1e4), st.floats(0.0, 1e4)), max_size=12))
def test_a_plane_is_never_moved_beyond_what_was_seen(rows: list[tuple[float, float]]) -> None:
    capacity = 1000.0 / -moved(READS, measured(*rows), 35.0).reads
    assert capacity == 1000.0 or min(rows)[0] * 0.999 <= capacity <= max(rows)[0] * 1.001


PLANES = st.builds(
    Plane, st.floats(-5, 5), st.floats(-5, 5), st.floats(-1, 1), st.floats(-1e4, 1e4)
)
LOADS = st.builds(MemberLoad, st.floats(0.0, 1e4), st.floats(0.0, 1e4), st.floats(0.0, 100.0))


@given(PLANES, LOADS)
def test_a_load_is_beyond_its_capacity_where_the_plane_says_violated(
    plane: Plane, load: MemberLoad
) -> None:
    ratio = plane.ratio(load)
    if ratio is not None and abs(ratio - 1.0) > 1e-6:
        assert (ratio < 1.0) == (plane.side(load) > 0.0)
