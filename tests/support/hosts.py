# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for hosts of every shape; :mod:`emulation.hosts` has the one to calculate with."""

from collections.abc import Collection
from dataclasses import replace

from hypothesis import strategies as st

from placement_traits.names import GpuLink, NeighbourTrait, PackingTrait, Tier
from placement_traits.offers import L3State, TreeSettings
from placement_traits.rdt_capability import L3Cat, Mba, RdtCapability, RdtMonitoring
from placement_traits.topology import (
    Core,
    Gpu,
    GpuEdge,
    HostTopology,
    HugePages,
    L3Domain,
    NumaNode,
    Socket,
    implied_link,
)

SETTINGS = TreeSettings(PackingTrait.PACK)


_small = st.integers(0, 40)


@st.composite
def rdt_capabilities(draw: st.DrawFn, l3_ids: tuple[int, ...]) -> RdtCapability:
    """Every mix of CAT, MBA and monitoring, with small and large figures."""
    ways = draw(st.integers(1, 20))
    cat = L3Cat(
        draw(st.integers(1, 16)),
        ways,
        draw(st.integers(0, 2**ways - 1)),
        draw(st.integers(1, 3)),
        draw(st.booleans()),
    )
    mba = Mba(draw(st.integers(1, 16)), 10, 10)
    features = draw(
        st.sets(st.sampled_from(["llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"]))
    )
    return RdtCapability(
        draw(st.sampled_from([cat, None])),
        draw(st.sampled_from([mba, None])),
        RdtMonitoring(draw(st.integers(1, 300)), tuple(sorted(features))) if features else None,
        draw(st.booleans()),
        draw(st.sampled_from([l3_ids, l3_ids[1:]])),
    )


@st.composite
def topologies(draw: st.DrawFn) -> HostTopology:
    """Any consistent host: chassis, L3 and nodes many-to-many, memory-only nodes, SMT, holes in the numbering."""
    sockets = tuple(
        Socket(i, draw(st.integers(0, 2)))
        for i in sorted(draw(st.sets(_small, min_size=1, max_size=3)))
    )
    node_ids = sorted(draw(st.sets(_small, min_size=1, max_size=5)))
    with_l3 = draw(st.booleans())
    l3_ids = sorted(draw(st.sets(_small, min_size=1, max_size=5))) if with_l3 else []
    socket_of_l3 = {i: draw(st.sampled_from(sockets)).id for i in l3_ids}
    cores: list[Core] = []
    cpu = 0
    for l3 in l3_ids * 2 if l3_ids else [None] * 3:
        socket = draw(st.sampled_from(sockets)).id if l3 is None else socket_of_l3[l3]
        threads = draw(st.integers(1, 2))
        cores.append(
            Core(
                len(cores),
                draw(st.sampled_from(node_ids)),
                socket,
                l3,
                tuple(range(cpu, cpu + threads)),
            )
        )
        cpu += threads
    domains = tuple(
        L3Domain(
            i, socket_of_l3[i], tuple(sorted({c.node for c in cores if c.l3 == i})), 1024 * (1 + i)
        )
        for i in l3_ids
    )
    return _with_gpus(draw, sockets, node_ids, domains, tuple(cores))


def _with_gpus(
    draw: st.DrawFn,
    sockets: tuple[Socket, ...],
    node_ids: list[int],
    domains: tuple[L3Domain, ...],
    cores: tuple[Core, ...],
) -> HostTopology:
    gpus = tuple(
        Gpu(
            f"0000:{bus:02x}:00.0",
            draw(st.sampled_from([None, *node_ids])),
            draw(st.sampled_from([None, 0, 1])),
            "10de:20b0",
        )
        for bus in sorted(draw(st.sets(st.integers(0, 255), max_size=4)))
    )
    links = st.sampled_from([None, *GpuLink])
    edges = tuple(
        GpuEdge(a.address, b.address, link)
        for i, a in enumerate(gpus)
        for b in gpus[i + 1 :]
        if (link := draw(links)) is not None and link is not implied_link(a, b)
    )
    size = len(node_ids)
    bandwidth = st.sampled_from([None, 1, 999, 38_400])
    socket_of = {n: {c.socket for c in cores if c.node == n} for n in node_ids}
    return HostTopology(
        sockets=sockets,
        nodes=tuple(
            NumaNode(
                n,
                next(iter(socket_of[n])) if len(socket_of[n]) == 1 else None,
                draw(st.integers(0, 10**6)),
                (HugePages(2048, draw(st.integers(0, 99))),),
                draw(bandwidth),
            )
            for n in node_ids
        ),
        l3_domains=domains,
        cores=cores,
        distances=tuple(
            tuple(10 if a == b else 20 + a + b for b in range(size)) for a in range(size)
        ),
        gpus=gpus,
        gpu_links=edges,
        rdt=draw(st.none() | rdt_capabilities(tuple(d.id for d in domains))),
    )


tree_settings = st.builds(
    TreeSettings,
    packing=st.sampled_from(PackingTrait),
    tiers=st.frozensets(st.sampled_from(Tier)),
    min_be_ways=st.integers(0, 6),
    foreign_groups=st.integers(0, 4),
)

l3_states = st.builds(
    L3State,
    neighbours=st.frozensets(st.sampled_from(NeighbourTrait)),
    reserved_bandwidth_mbps=st.integers(-5, 50_000),
)


@st.composite
def hosts(
    draw: st.DrawFn,
) -> tuple[HostTopology, TreeSettings, dict[int, L3State]]:
    """A topology with settings and a state for some of its L3 domains."""
    topology = draw(topologies())
    ids = [domain.id for domain in topology.l3_domains]
    state = draw(st.dictionaries(st.sampled_from(ids), l3_states)) if ids else {}
    return topology, draw(tree_settings), state


def shown(host: HostTopology, offline: Collection[int]) -> HostTopology:
    """Return what sysfs and resctrl show of a host while CPUs are offline: nothing but their nodes."""
    cores = [
        replace(core, cpus=tuple(cpu for cpu in core.cpus if cpu not in offline))
        for core in host.cores
    ]
    awake = [core for core in cores if core.cpus]
    nodes_of = {
        domain.id: {c.node for c in awake if c.l3 == domain.id} for domain in host.l3_domains
    }
    sockets_of = {node: {c.socket for c in awake if c.node == node} for node in host.node_ids}
    rdt = host.rdt and replace(host.rdt, l3_ids=tuple(l3 for l3 in host.rdt.l3_ids if nodes_of[l3]))
    return replace(
        host,
        sockets=tuple(s for s in host.sockets if any(core.socket == s.id for core in awake)),
        nodes=tuple(
            replace(
                node,
                socket=next(iter(sockets_of[node.id])) if len(sockets_of[node.id]) == 1 else None,
                offline_cpus=tuple(cpu for cpu in host.cpus_of_node(node.id) if cpu in offline),
            )
            for node in host.nodes
        ),
        l3_domains=tuple(
            replace(domain, nodes=tuple(sorted(nodes_of[domain.id])))
            for domain in host.l3_domains
            if nodes_of[domain.id]
        ),
        cores=tuple(replace(core, id=number) for number, core in enumerate(awake)),
        rdt=rdt,
    )
