# SPDX-License-Identifier: Apache-2.0
"""Page-move plans: exact shares, least bytes, both directions; beside the source's interleave by layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.interleave import fault_in, interleave_layers, rebind
from emulation.physics.published import CANONICAL_A as A_WEIGHTS
from emulation.physics.published import CANONICAL_B as B_WEIGHTS
from emulation.physics.published import shares
from host_agent.decide.pages.weights import dwp_step, dwp_weights
from host_agent.model.pages import (
    MovePlan,
    Run,
    apportion,
    plan_moves,
    resident_bytes,
    share_error,
)
from tests.support.runs import resident_shares

KB4, MB2 = 4096, 2 * 1024 * 1024


def applied(runs: list[Run], plan: MovePlan) -> list[Run]:
    """Move the units one by one, as the kernel would, and join nothing."""
    node_of = {}
    for run in runs:
        for unit in range(run.units):
            node_of[run.start + unit * run.unit_bytes] = (run.unit_bytes, run.node)
    for move in plan.moves:
        for address in move.addresses:
            unit_bytes, node = node_of[address]
            assert (unit_bytes, node) == (move.unit_bytes, move.source), "each unit moves once"
            node_of[address] = (unit_bytes, move.target)
    return [Run(a, unit, 1, node) for a, (unit, node) in sorted(node_of.items())]


def test_f_004_13_a_guest_on_one_node_is_spread_to_exact_shares() -> None:
    runs = [Run(0, KB4, 10_000, 3)]
    desired = {0: 0.5, 1: 0.25, 2: 0.15, 3: 0.10}
    plan = plan_moves(runs, desired)
    assert plan.bytes == plan.minimum_bytes == 9_000 * KB4
    assert share_error(resident_shares(applied(runs, plan)), desired) < 1e-9


def test_f_004_13_and_back_again_with_the_least_bytes() -> None:
    spread = [Run(n * 100 * MB2, MB2, 100, n) for n in range(4)]
    narrow = plan_moves(spread, {0: 0.5, 1: 0.5})
    assert narrow.bytes == narrow.minimum_bytes == 200 * MB2
    assert {move.source for move in narrow.moves} == {2, 3}


def test_f_004_14_widening_reaches_what_mbind_cannot() -> None:
    canonical = {0: 0.15, 1: 0.15, 2: 0.35, 3: 0.35}
    workers = {0, 1}
    step = dwp_step(canonical, workers, 0.10)
    pages = 20_000
    by_mbind = fault_in(interleave_layers(canonical, pages))
    runs = [Run(i * KB4, KB4, 1, node) for i, node in enumerate(by_mbind)]
    for number, expected in ((1, (0.20, 0.20, 0.30, 0.30)), (2, (0.25, 0.25, 0.25, 0.25))):
        desired = dwp_weights(canonical, workers, number * step)
        assert desired == pytest.approx(dict(enumerate(expected)))
        by_mbind = rebind(by_mbind, interleave_layers(desired, pages))
        assert by_mbind.count(0) / pages == pytest.approx(0.15, abs=0.001)  # the source's is stuck
        runs = applied(runs, plan_moves(runs, desired))
        assert share_error(resident_shares(runs), desired) < 0.01


@pytest.mark.parametrize(
    ("row", "calls"),
    [
        *zip(A_WEIGHTS.values(), (8, 6, 7, 7), strict=True),
        *zip(B_WEIGHTS.values(), (4, 4, 1), strict=True),
    ],
)
def test_f_004_11_layers_of_uniform_interleave_give_the_weights(
    row: tuple[float, ...], calls: int
) -> None:
    pages = 200_000
    layers = interleave_layers(shares(row), pages)
    assert len(layers) == calls
    placed = fault_in(layers)
    assert len(placed) == pages
    for node, share in shares(row).items():
        assert placed.count(node) / pages == pytest.approx(share, abs=1e-4)


@pytest.mark.parametrize(
    ("row", "workers"),
    [
        (row, workers)
        for table in (A_WEIGHTS, B_WEIGHTS)
        for workers, row in table.items()
        if len(workers) < len(row)
    ],
)
def test_f_004_12_each_step_of_dwp_is_within_one_per_cent(
    row: tuple[float, ...], workers: tuple[int, ...]
) -> None:
    canonical = shares(row)
    step = dwp_step(canonical, workers, 0.10)
    pages = 20_000
    runs = [
        Run(i * KB4, KB4, 1, n) for i, n in enumerate(fault_in(interleave_layers(canonical, pages)))
    ]
    dwp = 0.0
    while dwp < 1.0:
        dwp = min(1.0, dwp + step)
        desired = dwp_weights(canonical, workers, dwp)
        plan = plan_moves(runs, desired)
        assert plan.bytes <= 0.1001 * pages * KB4
        runs = applied(runs, plan)
        assert share_error(resident_shares(runs), desired) < 0.001


def test_huge_pages_move_as_one_and_small_ones_fill_the_rest() -> None:
    runs = [Run(0, MB2, 10, 0), Run(10 * MB2, KB4, 1024, 0)]
    desired = {0: 0.45, 1: 0.55}
    plan = plan_moves(runs, desired)
    assert plan.bytes == plan.minimum_bytes
    assert all(move.start % move.unit_bytes == 0 for move in plan.moves)
    assert share_error(resident_shares(applied(runs, plan)), desired) < 1e-3


def test_pages_go_to_the_nearest_node_that_needs_some() -> None:
    line = {a: {b: 10 + 10 * abs(a - b) for b in range(4)} for a in range(4)}
    runs = [Run(0, MB2, 100, 0), Run(100 * MB2, MB2, 100, 3)]
    plan = plan_moves(runs, {0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25}, distances=line)
    assert {(move.source, move.target) for move in plan.moves} == {(0, 1), (3, 2)}


def test_what_moves_is_spread_over_the_addresses() -> None:
    runs = [Run(0, MB2, 1000, 0)]
    after = applied(runs, plan_moves(runs, {0: 0.6, 1: 0.2, 2: 0.2}))
    for start in range(0, 1000, 100):  # each tenth of the guest has about the same shares
        part = resident_shares(after[start : start + 100])
        assert share_error(part, {0: 0.6, 1: 0.2, 2: 0.2}) < 0.05


def test_nothing_moves_when_nothing_is_wrong() -> None:
    runs = [Run(0, MB2, 50, 0), Run(50 * MB2, MB2, 50, 1)]
    assert plan_moves(runs, {0: 0.5, 1: 0.5}).moves == ()
    assert plan_moves([], {0: 1.0}).moves == ()


@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 40), st.sampled_from([KB4, MB2])),
        min_size=1,
        max_size=12,
    ),
    raw=st.lists(st.integers(0, 20), min_size=4, max_size=4).filter(any),
)
def test_any_plan_is_exact_and_minimal_up_to_one_unit_per_pair(
    pieces: list[tuple[int, int, int]], raw: list[int]
) -> None:
    runs, at = [], 0
    for node, units, unit in pieces:
        at = -(-at // unit) * unit
        runs.append(Run(at, unit, units, node))
        at += units * unit
    desired = {n: value / sum(raw) for n, value in enumerate(raw)}
    plan = plan_moves(runs, desired)
    after = applied(runs, plan)
    assert resident_bytes(after) == {n: b for n, b in plan.result_bytes.items() if b}
    total = sum(run.bytes for run in runs)
    rounding = 16 * max(run.unit_bytes for run in runs)
    assert plan.bytes <= plan.minimum_bytes + rounding
    assert share_error(resident_shares(after), desired) * total <= rounding


@given(
    total=st.integers(0, 10_000),
    raw=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
)
def test_apportioned_units_sum_to_the_total(total: int, raw: list[int]) -> None:
    desired = {n: value / sum(raw) for n, value in enumerate(raw)}
    whole = apportion(total, desired)
    assert sum(whole.values()) == total
    assert all(abs(whole[n] - total * desired[n]) < 1 + 1e-6 for n in desired)
