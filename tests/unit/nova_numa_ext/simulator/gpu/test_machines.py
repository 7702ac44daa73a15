# SPDX-License-Identifier: Apache-2.0
"""Machines of the source and fleets of them."""

import pytest

from nova_numa_ext.simulator.gpu.machines import dgx1, fleet, graph
from placement_traits.errors import InvalidValueError
from placement_traits.names import GpuLink


def test_a_dgx1_has_eight_gpus_on_two_sockets_and_16_links() -> None:
    topology = dgx1()
    assert [gpu.node for gpu in topology.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len(topology.gpu_links) == 16
    # The first pair is linked, the second not: they meet above the sockets.
    first, second = topology.gpus[0].address, topology.gpus[5].address
    assert topology.gpu_link(first, topology.gpus[4].address) is GpuLink.NV1
    assert topology.gpu_link(first, second) is GpuLink.SYS


def test_a_mixed_fleet_shares_one_graph_per_type() -> None:
    machines = fleet("minsky:2, dgx1:1")
    assert [len(machine.gpus) for machine in machines] == [4, 4, 8]
    assert machines[0] is machines[1] is graph("minsky")


@pytest.mark.parametrize("text", ["minsky", "minsky:0", "minsky:x", "cray:5", ""])
def test_a_fleet_that_cannot_be_built_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        fleet(text)
