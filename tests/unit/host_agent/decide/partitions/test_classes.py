# SPDX-License-Identifier: Apache-2.0
"""Best-effort servers that share classes of service."""

import random
import time
from collections.abc import Sequence
from itertools import combinations

import pytest

from host_agent.decide.lanes.grouping import grouped
from host_agent.decide.partitions.classes import BeClass, distribute
from host_agent.model.partition import PartitionRequest
from placement_traits.names import Tier


def servers(number: int, seed: int) -> list[PartitionRequest]:
    """So many servers in one or two L3 domains, with few different levels: most choices are a tie."""
    random_ = random.Random(seed)
    return [
        PartitionRequest(
            f"{random_.getrandbits(32):08x}-{n}",
            Tier.BE,
            (0, 1)[: random_.randint(1, 2)],
            {},
            {domain: random_.choice([10, 50, 100]) for domain in (0, 1)},
        )
        for n in range(number)
    ]


def merged_pair_by_pair(members: Sequence[PartitionRequest], budget: int) -> list[BeClass]:
    """The rule as the module's docstring has it, looked up afresh for each merge."""
    classes = [BeClass("", (member,)) for member in members]

    def cost(pair: tuple[BeClass, BeClass]) -> tuple[int, int, list[str]]:
        joined = pair[0].joined(pair[1])
        loss = joined.loss() - pair[0].loss() - pair[1].loss()
        return loss, len(joined.members), [member.uuid for member in joined.members]

    while len(classes) > budget:
        first, second = min(combinations(classes, 2), key=cost)
        classes = [
            first.joined(second),
            *(each for each in classes if each is not first and each is not second),
        ]
    return classes


@pytest.mark.parametrize("seed", range(20))
def test_those_are_merged_that_lose_least_by_it(seed: int) -> None:
    members = servers(seed % 12 + 2, seed)
    budget = seed % 4 + 1
    found = distribute(members, {}, [], budget)

    together = {frozenset(member.uuid for member in each.members) for each in found}
    expected = merged_pair_by_pair(members, budget)
    assert together == {frozenset(member.uuid for member in each.members) for each in expected}


def test_lanes_are_grouped_by_another_rule_for_it_would_cost_classes_more() -> None:
    """F-003-39: why the most demanding ones are not alone, the others together, as in the thesis."""
    levels = {"a": 100, "b": 100, "c": 100, "d": 10}
    members = [
        PartitionRequest(name, Tier.BE, (0,), {}, {0: level}) for name, level in levels.items()
    ]
    as_lanes = grouped({name: [float(level)] for name, level in levels.items()}, 2)
    of_lanes = [
        BeClass("", tuple(each for each in members if each.uuid in lane)) for lane in as_lanes
    ]
    assert sum(each.loss() for each in of_lanes) == 180
    assert sum(each.loss() for each in distribute(members, {}, [], 2)) == 0


def test_a_first_distribution_of_many_servers_over_few_classes_takes_no_time() -> None:
    began = time.process_time()
    found = distribute(servers(200, 1), {}, [], 3)
    assert time.process_time() - began < 4
    assert [each.name for each in found] == [f"numa_ext-be-{n}" for n in range(3)]
    assert sum(len(each.members) for each in found) == 200


def test_of_a_class_that_is_split_the_server_that_wins_most_goes() -> None:
    levels = {"a": 90, "b": 10, "c": 100}
    members = [PartitionRequest(u, Tier.BE, (0,), {}, {0: level}) for u, level in levels.items()]
    shared = dict.fromkeys(levels, "numa_ext-be-0")
    found = distribute(members, shared, ["numa_ext-be-0"], 2)

    assert {each.name: [m.uuid for m in each.members] for each in found} == {
        "numa_ext-be-0": ["a", "c"],
        "numa_ext-be-1": ["b"],
    }
