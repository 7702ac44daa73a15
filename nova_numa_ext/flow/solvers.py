# SPDX-License-Identifier: Apache-2.0
"""Minimum-cost flow by libraries: OR-tools (cost scaling), or SciPy's HiGHS (a linear programme) where that is missing.

Both come with the extra ``flow`` and are needed on the hosts of engines only. SciPy alone took 1 s of processor time
for a round with 512 waiting jobs on 10,000 hosts (``make bench-flow``); more jobs were not measured. All exact solvers
find the same least cost (Amaral 2019, section 5.4.1), which flow it has may differ.
"""

from importlib.util import find_spec

import numpy as np

from nova_numa_ext.policy.remote_gpu.network import FlowNetwork, Integers, Solver
from placement_traits.errors import NumaExtError


class FlowError(NumaExtError):
    """A network has no flow that satisfies its supplies, or there is nothing that solves it."""


def with_ortools(network: FlowNetwork) -> Integers:
    """Return the flow of each arc, by OR-tools.

    :raises FlowError: there is none
    """
    from ortools.graph.python import min_cost_flow

    solver = min_cost_flow.SimpleMinCostFlow()
    arcs = solver.add_arcs_with_capacity_and_unit_cost(
        network.tails, network.heads, network.capacities, network.costs
    )
    solver.set_nodes_supplies(np.arange(len(network.supplies)), network.supplies)
    status = solver.solve()
    if status != solver.OPTIMAL:
        raise FlowError(f"OR-tools finds no flow: {status.name.lower()}.")
    return np.asarray(solver.flows(arcs), dtype=np.int64)


def with_highs(network: FlowNetwork) -> Integers:
    """Return the flow of each arc, by SciPy's HiGHS.

    Its vertices are integers, because the matrix of a network is totally unimodular.

    :raises FlowError: there is none
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    arcs = np.arange(len(network.tails))
    ones = np.ones(len(arcs))
    leave_and_enter = csr_matrix(
        (
            np.concatenate((ones, -ones)),
            (np.concatenate((network.tails, network.heads)), np.concatenate((arcs, arcs))),
        ),
        shape=(len(network.supplies), len(arcs)),
    )
    found = linprog(
        network.costs,
        A_eq=leave_and_enter,
        b_eq=network.supplies,
        bounds=np.column_stack((np.zeros(len(arcs)), network.capacities)),
        method="highs-ds",
    )
    if found.x is None:
        raise FlowError(f"HiGHS finds no flow: {found.message}")
    return np.asarray(np.rint(found.x), dtype=np.int64)


def installed_solver() -> Solver:
    """Return the fastest solver that is installed.

    :raises FlowError: there is none
    """
    if find_spec("ortools") is not None:
        return with_ortools
    if find_spec("scipy") is not None:
        return with_highs
    raise FlowError("No solver of flow networks: install nova-numa-ext[flow] on this host.")
