# SPDX-License-Identifier: Apache-2.0
"""Small hosts as the view shows them, and hypothesis strategies for more."""

from hypothesis import strategies as st

from nova_numa_ext.policy.numa.home import Home
from placement_traits.fleet import Amount, HostView, L3View, RdtView
from placement_traits.names import NeighbourTrait, RdtTrait, TierTrait
from placement_traits.request import parse
from placement_traits.workload_request import L3Amount

ALL_TRAITS = frozenset({TierTrait.LC, TierTrait.BE, RdtTrait.L3_CAT})


def domain(
    number,
    ways=(13, 0),
    bandwidth=(10_000, 0),
    neighbours=(),
    nodes=None,
    *,
    neighbourhood=(1_000, 0),
):
    return L3View(
        uuid=f"l3-{number}",
        l3_id=number,
        nodes=(number,) if nodes is None else nodes,
        socket=number // 2,
        chassis=0,
        ways=Amount(*ways),
        bandwidth_mbps=Amount(*bandwidth),
        neighbours=frozenset(neighbours),
        neighbourhood=Amount(*neighbourhood),
    )


def host(*domains, traits=ALL_TRAITS, clos=(6, 0), name="h1"):
    return HostView(f"root-{name}", name, traits, RdtView(f"rdt-{name}", Amount(*clos)), domains)


def at(nodes, view):
    """Home of a guest whose cells nova puts on these nodes; None for None."""
    if nodes is None:
        return None
    groups = tuple(frozenset(d.uuid for d in view.l3 if node in d.nodes) for node in nodes)
    return Home(nodes, groups, frozenset().union(*groups))


def lc(ways=4, bandwidth_mbps=0, vcpus=2, memory_mb=1024, **extra):
    specs = {
        "numa_ext:tier": "LC",
        "hw:cpu_policy": "dedicated",
        "hw:numa_nodes": "1",
        "resources:CUSTOM_RDT_CLOS": "1",
        "resources_NODE:CUSTOM_LLC_WAY": str(ways),
        "resources_NODE:CUSTOM_MEMORY_BANDWIDTH_MBPS": str(bandwidth_mbps),
    }
    return parse({**specs, **extra}, vcpus=vcpus, memory_mb=memory_mb)


def be(vcpus=2, memory_mb=1024, **extra):
    return parse({"numa_ext:tier": "BE", **extra}, vcpus=vcpus, memory_mb=memory_mb)


def amount(ways, bandwidth_mbps=0):
    return L3Amount("_NODE", ways, bandwidth_mbps)


@st.composite
def hosts(draw):
    """Hosts of 1 to 4 L3 domains in any state."""
    neighbours = st.frozensets(st.sampled_from(list(NeighbourTrait)), max_size=4)
    domains = tuple(
        domain(
            number,
            ways=(13, draw(st.integers(0, 13))),
            bandwidth=(10_000, draw(st.integers(0, 10)) * 1000),
            neighbours=draw(neighbours),
        )
        for number in range(draw(st.integers(1, 4)))
    )
    return host(*domains)
