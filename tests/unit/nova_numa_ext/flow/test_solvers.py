# SPDX-License-Identifier: Apache-2.0
"""The solvers find flows of the least cost: that of networkx, on networks drawn at random (F-000-25)."""

import random

import numpy as np
import pytest

from benchmarks.flow_networks import least_cost, random_network
from nova_numa_ext.flow.solvers import FlowError, installed_solver, with_highs, with_ortools
from nova_numa_ext.policy.remote_gpu.network import FlowNetwork, Solver

SOLVERS = {"highs": with_highs, "ortools": with_ortools}


@pytest.fixture(params=SOLVERS)
def solve(request: pytest.FixtureRequest) -> Solver:
    if request.param == "ortools":
        pytest.importorskip("ortools", reason="the extra `flow` is not installed here")
    return SOLVERS[request.param]


def assert_flow(network: FlowNetwork, flows: np.ndarray) -> None:
    """Eq. 7 and 8: what a node gives is what leaves it less what enters; each arc between 0 and its capacity."""
    assert (flows >= 0).all()
    assert (flows <= network.capacities).all()
    balance = np.zeros_like(network.supplies)
    np.add.at(balance, network.tails, flows)
    np.add.at(balance, network.heads, -flows)
    assert (balance == network.supplies).all()


def test_the_cost_is_that_of_networkx(solve: Solver) -> None:
    for seed in range(40):
        network = random_network(random.Random(seed), tasks=12, machines=6)
        flows = solve(network)
        assert_flow(network, flows)
        assert network.cost(flows) == least_cost(network), seed


def test_a_network_without_a_flow_is_refused(solve: Solver) -> None:
    one = np.array([1])
    network = FlowNetwork(one, 0 * one, one, one, np.array([-2, 2]))
    with pytest.raises(FlowError, match="no flow"):
        solve(network)


def test_highs_solves_where_ortools_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"ortools"}
    monkeypatch.setattr(
        "nova_numa_ext.flow.solvers.find_spec", lambda name: None if name in missing else object()
    )
    assert installed_solver() is with_highs
    missing.clear()
    assert installed_solver() is with_ortools
    missing |= {"ortools", "scipy"}
    with pytest.raises(FlowError, match=r"install nova-numa-ext\[flow\]"):
        installed_solver()
