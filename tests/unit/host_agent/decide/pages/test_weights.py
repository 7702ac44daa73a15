# SPDX-License-Identifier: Apache-2.0
"""Canonical weights and the proximity factor, against the source's tables."""

import math
import random
from collections.abc import Collection
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.physics.published import CANONICAL_A as A_WEIGHTS
from emulation.physics.published import CANONICAL_B as B_WEIGHTS
from emulation.physics.published import shares
from host_agent.control.calibration_store import distances
from host_agent.decide.pages.weights import canonical_weights, dwp_step, dwp_weights, uniform
from host_agent.decide.pages.worker_sets import profile_sets
from placement_traits.errors import InvalidValueError
from placement_traits.presets import load

A_TO_NODE_0 = (1, 0.596, 0.438, 0.390, 0.305, 0.202, 0.298, 0.195)


def test_f_004_01_one_worker_gets_weights_in_proportion_to_bandwidth() -> None:
    bandwidth = {node: {0: value} for node, value in enumerate(A_TO_NODE_0)}
    weights = canonical_weights(bandwidth, [0])
    for node, percent in enumerate(A_WEIGHTS[(0,)]):
        assert weights[node] * 100 == pytest.approx(percent, abs=0.1)


def test_f_004_02_several_workers_are_served_by_the_least_bandwidth() -> None:
    # node 1 gives 6 to worker 0 but only 2 to worker 1: its share follows the 2
    bandwidth = {0: {0: 10.0, 1: 4.0}, 1: {0: 6.0, 1: 2.0}, 2: {0: 4.0, 1: 8.0}}
    assert canonical_weights(bandwidth, [0, 1]) == pytest.approx({0: 0.4, 1: 0.2, 2: 0.4})
    assert canonical_weights(bandwidth, [0]) == pytest.approx({0: 0.5, 1: 0.3, 2: 0.2})


def test_f_004_04_no_other_weights_are_faster_in_the_time_model() -> None:
    chance = random.Random(4)
    bandwidth = {n: {w: chance.uniform(1, 10) for w in range(3)} for n in range(6)}
    least = {n: min(bandwidth[n].values()) for n in bandwidth}

    def time(weights: dict[int, float]) -> float:
        return max(weights[n] / least[n] for n in weights)

    best = time(canonical_weights(bandwidth, [0, 1, 2]))
    for _ in range(10_000):
        raw = [chance.expovariate(1.0) for _ in range(6)]
        assert time({n: value / sum(raw) for n, value in enumerate(raw)}) >= best - 1e-12


@pytest.mark.parametrize("workers", list(A_WEIGHTS))
def test_f_004_05_measured_bandwidths_of_machine_a_give_its_table(workers: tuple[int, ...]) -> None:
    # a counter back end that reports the profile of one worker set: the least of each source is the table's row
    row = A_WEIGHTS[workers]
    chance = random.Random(5)
    bandwidth = {}
    for node, value in enumerate(row):
        to = {w: value * chance.uniform(1.0, 2.0) for w in workers}
        to[chance.choice(workers)] = value
        bandwidth[node] = to
    weights = canonical_weights(bandwidth, workers)
    for node, value in enumerate(row):
        assert weights[node] * 100 == pytest.approx(value, abs=0.1)


def test_f_004_06_symmetric_worker_sets_are_measured_once() -> None:
    near, far = 16, 22
    two_by_two = {
        a: {b: 10 if a == b else near if a // 2 == b // 2 else far for b in range(4)}
        for a in range(4)
    }
    sets = profile_sets(two_by_two)
    assert [sorted(s.workers) for s in sets] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    pair = sets[1]
    assert {tuple(sorted(m)) for m in pair.members} == {(0, 1), (2, 3)}  # 0+2 is irrational
    carried = pair.weights_of(frozenset({2, 3}), {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1})
    assert {carried[2], carried[3]} == {0.4, 0.3}


def test_f_004_06_asymmetric_sets_are_all_measured() -> None:
    chain = {a: {b: 10 + 6 * abs(a - b) for b in range(4)} for a in range(4)}
    pairs = [sorted(s.workers) for s in profile_sets(chain) if len(s.workers) == 2]
    assert pairs == [[0, 1], [1, 2]]  # 2+3 mirrors 0+1, the middle pair does not


@pytest.mark.parametrize("preset", ["opteron-6272-8-nodes", "xeon-e5-2660v4-cod"])
def test_f_004_06_workers_are_the_nodes_with_most_bandwidth_between_them(preset: str) -> None:
    """Before anything is measured the distances stand for it: what is nearer has more."""
    far = distances(load(preset).topology)

    def between(workers: Collection[int]) -> int:
        return sum(255 - far[a][b] for a in workers for b in workers if a != b)

    for profile in profile_sets(far):
        most = max(between(found) for found in combinations(far, len(profile.workers)))
        assert {between(member) for member in profile.members} == {most}


def test_f_004_07_dwp_keeps_the_ratios_inside_each_cluster() -> None:
    canonical = shares(A_WEIGHTS[(0,)])
    assert dwp_weights(canonical, {0}, 0.0) == pytest.approx(canonical)
    assert dwp_weights(canonical, {0}, 1.0)[0] == pytest.approx(1.0)
    step = dwp_weights(canonical, {0}, 0.1412)
    assert step[0] == pytest.approx(0.392, abs=1e-3)
    assert step[1] / step[2] == pytest.approx(canonical[1] / canonical[2])


@pytest.mark.parametrize(
    ("row", "workers", "percent"),
    [
        (A_WEIGHTS[(0,)], {0}, 14.12),
        (A_WEIGHTS[(0, 1)], {0, 1}, 16.26),
        (A_WEIGHTS[(0, 1, 2, 3)], {0, 1, 2, 3}, 23.75),
        (B_WEIGHTS[(0,)], {0}, 15.13),
        (B_WEIGHTS[(0, 1)], {0, 1}, 23.92),
    ],
)
def test_f_004_08_a_step_is_ten_per_cent_of_all_pages(
    row: tuple[float, ...], workers: set[int], percent: float
) -> None:
    assert dwp_step(shares(row), workers, 0.10) * 100 == pytest.approx(percent, abs=0.01)


def test_a_step_ends_the_search_where_all_nodes_are_workers() -> None:
    assert dwp_step(uniform(range(4)), range(4), 0.1) == 1.0


@given(
    raw=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8),
    dwp=st.floats(0.0, 1.0),
    count=st.integers(1, 8),
)
def test_weights_always_sum_to_one(raw: list[float], dwp: float, count: int) -> None:
    canonical = {n: value / sum(raw) for n, value in enumerate(raw)}
    weights = dwp_weights(canonical, range(min(count, len(raw))), dwp)
    assert math.isclose(sum(weights.values()), 1.0)
    assert min(weights.values()) >= -1e-12


def test_wrong_input_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(InvalidValueError, match="at least one NUMA node"):
        canonical_weights({0: {0: 1.0}}, [])
    with pytest.raises(InvalidValueError, match=r"0\.0 to 1\.0"):
        dwp_weights({0: 1.0}, [0], 1.5)
