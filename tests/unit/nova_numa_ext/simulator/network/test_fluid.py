# SPDX-License-Identifier: Apache-2.0
"""Rates on shared links: by hand, by what makes them max-min fair, and by an LP that knows nothing of filling."""

import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.simulator.network.fluid import (
    Pattern,
    Rates,
    alone,
    capacities,
    demands,
    max_min,
)
from placement_traits.errors import InvalidValueError
from tests.support.fabrics import fabric

Case = tuple[list[dict[str, float]], dict[str, float]]
SLACK = 1e-9


def drawn(seed: int) -> Case:
    """Groups and links of one case: up to 8 groups on up to 6 links."""
    chance = random.Random(seed)
    links = {f"l{n}": chance.uniform(0.5, 10) for n in range(chance.randint(1, 6))}
    groups = [
        {link: chance.uniform(0.1, 8) for link in links if chance.random() < 1 / 3}
        for _ in range(chance.randint(1, 8))
    ]
    return groups, links


def is_max_min(
    groups: Sequence[Mapping[str, float]], links: Mapping[str, float], rates: Rates
) -> bool:
    """Whether each group has rate 1 or a full link on which no other is faster: that is so for one allocation only."""
    used = {
        link: sum(rate * each.get(link, 0.0) for each, rate in zip(groups, rates, strict=True))
        for link in links
    }
    if any(used[link] > capacity * (1 + SLACK) for link, capacity in links.items()):
        return False

    def is_held(group: int) -> bool:
        return any(
            used[link] >= links[link] * (1 - SLACK)
            and all(
                rates[group] >= rate * (1 - SLACK)
                for each, rate in zip(groups, rates, strict=True)
                if link in each
            )
            for link in groups[group]
        )

    return all(rate >= 1 - SLACK or is_held(group) for group, rate in enumerate(rates))


def test_groups_on_one_link_are_equally_fast_and_what_one_leaves_others_get() -> None:
    assert max_min([{"l": 1.0}, {"l": 3.0}], {"l": 2.0}).tolist() == [0.5, 0.5]
    rates = max_min([{"l": 1.0, "m": 1.0}, {"l": 1.0}, {"m": 1.0}, {}], {"l": 1.5, "m": 0.5})
    assert rates.tolist() == pytest.approx([0.25, 1.0, 0.25, 1.0])
    assert max_min([{}], {}).tolist() == [1.0]
    assert max_min([], {}).tolist() == []


@given(st.integers(0, 2**32))
def test_no_group_could_be_faster_at_the_cost_of_faster_ones_only(seed: int) -> None:
    groups, links = drawn(seed)
    assert is_max_min(groups, links, max_min(groups, links))


def test_what_is_not_max_min_is_seen() -> None:
    groups, links = [{"l": 1.0}, {"l": 1.0}], {"l": 1.0}
    for rates, fair in (
        ([0.5, 0.5], True),
        ([0.4, 0.6], False),
        ([0.4, 0.4], False),
        ([1, 1], False),
    ):
        assert is_max_min(groups, links, np.array(rates, np.float64)) is fair


def by_programs(groups: Sequence[Mapping[str, float]], links: Mapping[str, float]) -> Rates:
    """The same by linear programs: the largest rate that all can have, then of those that can have more, and so on."""
    optimize = pytest.importorskip("scipy.optimize")
    matrix = np.array([[each.get(link, 0.0) for each in groups] for link in links])
    room = np.array([*links.values()])
    fixed: dict[int, float] = {}

    def solved(
        costs: Sequence[float], rows: Rates, limits: Rates, bounds: Sequence[tuple[float, float]]
    ) -> float:
        done = optimize.linprog(costs, A_ub=rows, b_ub=limits, bounds=bounds, method="highs")
        assert done.success
        return -float(done.fun)

    while len(fixed) < len(groups):
        free = [group for group in range(len(groups)) if group not in fixed]
        below = np.zeros((len(free), len(groups) + 1))
        for row, group in enumerate(free):
            below[row, group], below[row, -1] = -1.0, 1.0
        rows = np.vstack([np.hstack([matrix, np.zeros((len(room), 1))]), below])
        bounds = [(fixed.get(group, 0.0), fixed.get(group, 1.0)) for group in range(len(groups))]
        least = solved(
            [0.0] * len(groups) + [-1.0],
            rows,
            np.concatenate([room, np.zeros(len(free))]),
            [*bounds, (0.0, 1.0)],
        )
        held = {
            group: least
            for group in free
            if solved(
                [-1.0 if each == group else 0.0 for each in range(len(groups))],
                matrix,
                room,
                [
                    bounds[each] if each in fixed else (least - SLACK, 1.0)
                    for each in range(len(groups))
                ],
            )
            <= least + 1e-6
        }
        fixed |= held or dict.fromkeys(free, least)
    return np.array([fixed[group] for group in range(len(groups))])


def test_a_group_alone_is_as_fast_as_one_of_one_group() -> None:
    for groups, links in map(drawn, range(50)):
        for group in filter(None, groups):
            assert [alone(group, links)] == max_min([group], links).tolist()


def largest_difference(cases: range) -> float:
    worst = 0.0
    for seed in cases:
        groups, links = drawn(seed)
        difference = np.abs(max_min(groups, links) - by_programs(groups, links))
        worst = max(worst, float(difference.max()))
    return worst


def test_linear_programs_give_the_same_rates() -> None:
    assert largest_difference(range(20)) <= SLACK


@pytest.mark.long
def test_linear_programs_give_the_same_rates_in_a_thousand_cases() -> None:
    assert largest_difference(range(1000)) <= SLACK


@pytest.mark.parametrize(
    ("groups", "links"),
    [([{"l": 0.0}], {"l": 1.0}), ([{"l": 1.0}], {"l": 0.0}), ([{"l": float("nan")}], {"l": 1.0})],
)
def test_demands_and_capacities_are_above_zero(
    groups: list[dict[str, float]], links: dict[str, float]
) -> None:
    with pytest.raises(InvalidValueError, match="above 0"):
        max_min(groups, links)


def test_what_leaves_a_leaf_and_a_pod() -> None:
    plan = fabric([4, 4, 4, 4])
    within = demands(plan, {"l000": 2}, Pattern.ALL_TO_ALL)
    assert within == {}
    pod = demands(plan, {"l000": 2, "l001": 2}, Pattern.ALL_TO_ALL)
    assert pod == {"l000": pytest.approx(4 / 3), "l001": pytest.approx(4 / 3)}
    across = demands(plan, {"l000": 2, "l002": 2}, Pattern.RING)
    assert across == dict.fromkeys(("l000", "l002", "p00", "p01"), 1.0)
    assert capacities(plan, 2.0) == dict.fromkeys(plan.leafs, 2.0) | {"p00": 4.0, "p01": 4.0}
    with pytest.raises(InvalidValueError, match="1 or more"):
        capacities(plan, 0.5)


def test_groups_of_blocks_on_a_leaf_of_18_hosts_that_passes_a_quarter() -> None:
    """All to all of 32 hosts on two leafs of 16: 16 x 16 / 31 leave each, 4.5 may."""
    plan = fabric([18, 18])
    places = {"l000": 16, "l001": 16}
    group = demands(plan, places, Pattern.ALL_TO_ALL)
    (rate,) = max_min([group], capacities(plan, 4.0))
    assert rate == pytest.approx(4.5 * 31 / 256)
