# SPDX-License-Identifier: Apache-2.0
"""Flow networks drawn at random, and the least cost of a flow by networkx."""

import random

import networkx
import numpy as np

from nova_numa_ext.policy.remote_gpu.network import FlowNetwork, TaskNode, phase_network


def random_network(draw: random.Random, tasks: int, machines: int, kinds: int = 3) -> FlowNetwork:
    """Return the network of a phase with random tasks, rooms and costs."""
    nodes = [
        TaskNode(
            job=number // 2,
            kind=draw.randrange(kinds),
            cost=draw.choice((None, draw.uniform(0, 3))),
            queue_cost=draw.uniform(0, 4),
            preferred=tuple(
                (machine, draw.uniform(0, 2))
                for machine in draw.sample(range(machines), draw.randrange(min(3, machines)))
            ),
        )
        for number in range(tasks)
    ]
    room = np.array([[draw.choice((0, 1, 2)) for _ in range(machines)] for _ in range(kinds)])
    cost = np.array([[draw.uniform(0, 1) for _ in range(machines)] for _ in range(kinds)])
    return phase_network(nodes, room, cost, room.max(axis=0))


def least_cost(network: FlowNetwork) -> int:
    """Return the cost of the best flow, by networkx; arcs between the same nodes stay apart."""
    graph = networkx.MultiDiGraph()
    for node, supply in enumerate(network.supplies.tolist()):
        graph.add_node(node, demand=-supply)
    arcs = (network.tails, network.heads, network.capacities, network.costs)
    for tail, head, capacity, cost in zip(*(each.tolist() for each in arcs), strict=True):
        graph.add_edge(tail, head, capacity=capacity, weight=cost)
    return int(networkx.network_simplex(graph)[0])
