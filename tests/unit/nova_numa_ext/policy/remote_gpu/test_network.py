# SPDX-License-Identifier: Apache-2.0
"""The network of a phase has the cheapest machines of each kind only, and loses nothing by it."""

import random
from collections import Counter
from itertools import product

import numpy as np
import pytest

from benchmarks.flow_networks import least_cost
from nova_numa_ext.policy.remote_gpu.network import COST_UNIT, TaskNode, phase_network

TASKS, MACHINES, KINDS = 3, 7, 2


def units(cost: float) -> int:
    return int(np.rint(cost * COST_UNIT))


def by_trying_all(tasks: list[TaskNode], room: np.ndarray, cost: np.ndarray) -> int:
    """The least cost of all ways to place the tasks."""
    ways = [
        [
            (units(task.queue_cost + 1 / COST_UNIT), None, None),
            *((units(each), machine, None) for machine, each in task.preferred),
            *(
                (units(task.cost) + units(cost[task.kind, machine]), machine, task.kind)
                for machine in range(MACHINES)
                if task.cost is not None
            ),
        ]
        for task in tasks
    ]
    return min(sum(each[0] for each in way) for way in product(*ways) if has_room(way, room))


def has_room(way: tuple, room: np.ndarray) -> bool:
    used = Counter(machine for _cost, machine, _kind in way if machine is not None)
    of_kinds = Counter((kind, machine) for _cost, machine, kind in way if kind is not None)
    return all(number <= room[:, machine].max() for machine, number in used.items()) and all(
        number <= room[kind, machine] for (kind, machine), number in of_kinds.items()
    )


@pytest.mark.parametrize("seed", range(20))
def test_no_placement_of_all_machines_costs_less(seed: int) -> None:
    draw = random.Random(seed)
    tasks = [
        TaskNode(
            number,
            draw.randrange(KINDS),
            draw.choice((None, draw.uniform(0, 2))),
            draw.uniform(0, 3),
            tuple((machine, draw.uniform(0, 2)) for machine in draw.sample(range(MACHINES), 1)),
        )
        for number in range(TASKS)
    ]
    room = np.array([[draw.choice((0, 1, 1, 2)) for _ in range(MACHINES)] for _ in range(KINDS)])
    cost = np.array([[draw.uniform(0, 1) for _ in range(MACHINES)] for _ in range(KINDS)])
    network = phase_network(tasks, room, cost, room.max(axis=0))
    assert least_cost(network) == by_trying_all(tasks, room, cost)


def test_a_fleet_of_ten_thousand_hosts_is_no_larger_network_than_it_has_tasks() -> None:
    tasks = [TaskNode(number, 0, 1.0, 2.0) for number in range(10)]
    ones = np.ones((1, 10_000), dtype=np.int64)
    cost = np.arange(10_000.0)[::-1].reshape(1, -1)
    network = phase_network(tasks, ones, cost, ones[0])
    assert len(network.tails) == 10 * 2 + 10 + 10 + 10
    heads = network.heads[network.tails == 10_001]
    assert sorted(heads) == list(range(9_991, 10_001))


def test_machines_that_take_no_task_stand_in_no_places_of_others() -> None:
    """The cheapest two take none; with them in the network the only task would have no machine."""
    tasks = [TaskNode(0, 0, 1.0, 9.0)]
    room, cost = np.ones((1, 3), dtype=np.int64), np.array([[0.0, 0.1, 0.2]])
    network = phase_network(tasks, room, cost, np.array([0, 0, 1]))
    assert least_cost(network) == units(1.0) + units(0.2)


def test_a_network_without_kinds_has_arcs_to_the_queue_alone() -> None:
    tasks = [TaskNode(0, 0, None, 9.0)]
    none, no_cost = np.zeros((0, 2), dtype=np.int64), np.zeros((0, 2))
    network = phase_network(tasks, none, no_cost, np.array([0, 0]))
    assert least_cost(network) == units(9.0 + 1 / COST_UNIT)
