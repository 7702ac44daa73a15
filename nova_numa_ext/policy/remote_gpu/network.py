# SPDX-License-Identifier: Apache-2.0
"""The flow network of a phase (Amaral 2019, section 5.3.3, after Quincy and Firmament).

::

                     preference arcs, cost of Eq. 12 with P = 1
    task ─────────────────────────────────────────────────► machine ──► sink
      │  cost of Eq. 12 with P = 2     cost of the network    ▲
      ├────────────► aggregator of a kind ────────────────────┘
      │  cost of Eq. 13
      └────────────► unscheduled, one node a job ───────────────────► sink

Each task supplies one unit, and the flow of least cost (Eq. 6 to 9) says where it goes. Tasks of a *kind* ask for the
same: they reach machines over one aggregator, so the arcs grow with tasks plus kinds times machines, not with tasks
times machines. Of these only the cheapest are in the network, as many as there are tasks: a task on a dearer one could
go to one of those on which no task is, at no more cost. So a large fleet costs little more than a small one.

A machine takes several kinds; its arc to the sink has the room for the smallest of them, as Eq. 10 makes one number of
all resources. That can promise too much, so the rounds count each resource by itself afterwards.

A solver is any function from a network to the flow of each arc; costs are integers, :data:`COST_UNIT` makes one of
them.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
COST_UNIT: Final = 10_000
# A place that costs as much as staying in the queue is taken.
_TIE: Final = 1 / COST_UNIT


@dataclass(frozen=True, slots=True)
class FlowNetwork:
    """Arcs with capacities and costs, and what each node supplies; all integers.

    :param tails: node where each arc begins
    :param heads: node where it ends
    :param capacities: most units on it
    :param costs: of one unit on it
    :param supplies: units that each node gives, negative where it takes; their sum is 0
    """

    tails: Integers
    heads: Integers
    capacities: Integers
    costs: Integers
    supplies: Integers

    def cost(self, flows: Integers) -> int:
        """Return the cost of a flow."""
        return int(self.costs @ flows)


Solver: TypeAlias = Callable[[FlowNetwork], Integers]


@dataclass(frozen=True, slots=True)
class TaskNode:
    """A task that looks for a machine.

    :param job: number of its job; the tasks of a job share the unscheduled node
    :param kind: row of the kinds' tables
    :param cost: of any machine of its kind; None: it takes a preferred one or none
    :param queue_cost: of staying in the queue
    :param preferred: machines that it prefers, with their costs
    """

    job: int
    kind: int
    cost: float | None
    queue_cost: float
    preferred: tuple[tuple[int, float], ...] = ()


def solve_phase(
    tasks: Sequence[TaskNode],
    room: Integers,
    kind_cost: NDArray[np.float64],
    machine_room: Integers,
    solve: Solver,
) -> list[int | None]:
    """Return the machine of each task, None for those that stay in the queue.

    :param tasks: the tasks, the order in which equal ones choose
    :param room: for each kind and machine how many tasks find room, shape (kinds, machines)
    :param kind_cost: for each kind and machine what the machine adds to the cost, same shape
    :param machine_room: for each machine the most tasks of any kind
    :param solve: solver
    """
    if not tasks:
        return []
    network = phase_network(tasks, room, kind_cost, machine_room)
    return _machines(tasks, network, room.shape, solve(network))


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Where the kinds of nodes begin: sink 0, machines 1…, aggregators, jobs, tasks."""

    aggregators: int
    jobs: int
    tasks: int


def _nodes(tasks: Sequence[TaskNode], shape: tuple[int, ...]) -> _Nodes:
    kinds, machines = shape
    jobs = 1 + max(task.job for task in tasks)
    aggregators = 1 + machines
    return _Nodes(aggregators, aggregators + kinds, aggregators + kinds + jobs)


def phase_network(
    tasks: Sequence[TaskNode],
    room: Integers,
    kind_cost: NDArray[np.float64],
    machine_room: Integers,
) -> FlowNetwork:
    """Return the network that :func:`solve_phase` solves; the arcs of tasks come first, the sink is node 0."""
    nodes = _nodes(tasks, room.shape)
    rows: list[tuple[int, int, int, float]] = []
    for number, task in enumerate(tasks, nodes.tasks):
        rows.append((number, nodes.jobs + task.job, 1, task.queue_cost + _TIE))
        if task.cost is not None:
            rows.append((number, nodes.aggregators + task.kind, 1, task.cost))
        rows += [(number, 1 + machine, 1, cost) for machine, cost in task.preferred]
    of_tasks = np.array(rows, dtype=np.float64)
    kinds, machines = _cheapest(room * (machine_room > 0), kind_cost, len(tasks))
    of_kinds = np.column_stack(
        (nodes.aggregators + kinds, 1 + machines, room[kinds, machines], kind_cost[kinds, machines])
    )
    used = np.union1d(machines, [machine for task in tasks for machine, _ in task.preferred])
    used = used.astype(np.int64)[machine_room[used.astype(np.int64)] > 0]
    of_machines = np.column_stack((1 + used, 0 * used, machine_room[used], 0 * used))
    jobs, count = np.unique([task.job for task in tasks], return_counts=True)
    of_jobs = np.column_stack((nodes.jobs + jobs, 0 * jobs, count, 0 * jobs))
    arcs = np.concatenate((of_tasks, of_kinds, of_machines, of_jobs))
    whole = arcs[:, :3].astype(np.int64)
    costs = np.rint(arcs[:, 3] * COST_UNIT).astype(np.int64)
    supplies = np.zeros(nodes.tasks + len(tasks), dtype=np.int64)
    supplies[nodes.tasks :] = 1
    supplies[0] = -len(tasks)
    return FlowNetwork(whole[:, 0], whole[:, 1], whole[:, 2], costs, supplies)


def _cheapest(
    room: Integers, kind_cost: NDArray[np.float64], most: int
) -> tuple[Integers, Integers]:
    """Return kinds and machines of the arcs between them: of each kind its cheapest machines that have room.

    :param room: none on machines that take no task at all: these would stand in the places of others
    :param most: so many of a kind
    """
    none = np.zeros(0, dtype=np.int64)
    kinds, found = [none], [none]
    for kind, costs in enumerate(kind_cost):
        machines = np.nonzero(room[kind] > 0)[0]
        if len(machines) > most:
            machines = np.sort(machines[np.argsort(costs[machines], kind="stable")[:most]])
        kinds.append(np.full(len(machines), kind, dtype=np.int64))
        found.append(machines)
    return np.concatenate(kinds), np.concatenate(found)


def _machines(
    tasks: Sequence[TaskNode], network: FlowNetwork, shape: tuple[int, ...], flows: Integers
) -> list[int | None]:
    """Read the machine of each task out of a flow; those of a kind share what its aggregator got, in their order."""
    nodes = _nodes(tasks, shape)
    used = np.nonzero(flows > 0)[0]
    over = (network.tails[used] >= nodes.aggregators) & (network.tails[used] < nodes.jobs)
    arcs = used[over]
    through: dict[int, list[int]] = defaultdict(list)
    for arc in arcs[np.argsort(network.costs[arcs], kind="stable")]:
        kind = int(network.tails[arc]) - nodes.aggregators
        through[kind] += [int(network.heads[arc]) - 1] * int(flows[arc])
    taken = {kind: iter(machines) for kind, machines in through.items()}
    found: list[int | None] = [None] * len(tasks)
    for arc in used[network.tails[used] >= nodes.tasks]:
        number, head = int(network.tails[arc]) - nodes.tasks, int(network.heads[arc])
        if head < nodes.aggregators:
            found[number] = head - 1
        elif head < nodes.jobs:
            found[number] = next(taken[tasks[number].kind])
    return found
