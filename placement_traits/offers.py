# SPDX-License-Identifier: Apache-2.0
"""What a host publishes in Placement: amounts from its topology, the settings and the state of its L3 domains. Pure.

How it is spelt as providers, inventories and traits is :mod:`placement_traits.tree`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from placement_traits import names
from placement_traits.names import NeighbourTrait, ObserveTrait, PackingTrait, RdtTrait, Tier
from placement_traits.rdt_capability import RdtCapability
from placement_traits.topology import Gpu, HostTopology, L3Domain, NumaNode, Socket


@dataclass(frozen=True, slots=True)
class RemoteGpuClient:
    """How a host's servers reach pools of remote GPUs (:mod:`placement_traits.pool_tree`).

    :param fabrics: networks in which the pools are
    :param network_mbps: of its NIC that may be promised together, megabytes a second; 0: none is
    """

    fabrics: frozenset[str]
    network_mbps: int = 0


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """What the operator and the rest of the agent decide about the tree.

    :param tiers: tiers that the agent accepts; LC is published only where L3 allocation works
    :param packing: nova's cell-packing strategy on this host
    :param min_be_ways: ways of each L3 domain kept for everything that is not LC
    :param foreign_groups: resctrl control groups of other software, each holding a class of service
    :param observed: features of the agent that only observe
    :param remote_gpus: how servers reach remote GPUs; None: not at all
    """

    packing: PackingTrait
    tiers: frozenset[Tier] = frozenset(Tier)
    min_be_ways: int = 1
    foreign_groups: int = 0
    observed: frozenset[ObserveTrait] = frozenset()
    remote_gpus: RemoteGpuClient | None = None


@dataclass(frozen=True, slots=True)
class L3State:
    """What changes in an L3 domain while servers come and go.

    :param neighbours: what runs there now
    :param reserved_bandwidth_mbps: measured use beyond what running servers declared, MB/s; None: not measured yet,
        Placement keeps what it has
    :param reserved_neighbourhood: units of the cache neighbourhood of servers there that did not claim them
    """

    neighbours: frozenset[NeighbourTrait] = frozenset()
    reserved_bandwidth_mbps: int | None = 0
    reserved_neighbourhood: int = 0


@dataclass(frozen=True, slots=True)
class L3Offer:
    """What one L3 domain offers.

    :param ways: ways that LC servers may have together; 0 = no inventory
    :param min_ways: fewest ways that one server may ask for
    :param bandwidth_mbps: memory bandwidth, MB/s; 0 = unknown, no inventory
    :param reserved_mbps: part of it that is not for sale now; None: what Placement has
    :param neighbours: what runs there now
    :param reserved_neighbourhood: part of the cache neighbourhood that is not for sale now; more than is free where
        servers have claimed it already: they keep their claims, and no other gets one
    :param cpus: where a node of the domain has another one, the domain's CPUs as ranges, first and last: the NUMA node
        of a server does not say which of them it uses
    """

    ways: int = 0
    min_ways: int = 1
    bandwidth_mbps: int = 0
    reserved_mbps: int | None = 0
    neighbours: frozenset[NeighbourTrait] = frozenset()
    reserved_neighbourhood: int = 0
    cpus: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """Everything that a host publishes in Placement.

    :param topology: the topology without what is not published: cores, distances, sizes, products, RDT details
    :param packing: nova's cell-packing strategy
    :param tiers: tiers accepted
    :param rdt: RDT capability
    :param clos: classes of service that LC servers may have; 0 = no inventory
    :param offers: by L3 id
    :param observed: features of the agent that only observe
    :param remote_gpus: how servers reach remote GPUs; None: not at all
    """

    topology: HostTopology
    packing: PackingTrait
    tiers: frozenset[Tier]
    rdt: frozenset[RdtTrait]
    clos: int
    offers: Mapping[int, L3Offer]
    observed: frozenset[ObserveTrait] = frozenset()
    remote_gpus: RemoteGpuClient | None = None


def publish(
    topology: HostTopology,
    settings: TreeSettings,
    state: Mapping[int, L3State] | None = None,
) -> Published:
    """Decide what a host publishes.

    :param topology: as discovered
    :param settings: the operator's part
    :param state: by L3 id; a domain without one has no neighbours and no use beyond what was declared
    """
    state = state or {}
    rdt = topology.rdt or RdtCapability()
    traits = _rdt_traits(rdt)
    tiers = {tier for tier in settings.tiers if tier is not Tier.LC or rdt.cat is not None}
    shares = bandwidth_shares(topology)
    return Published(
        topology=publishable(topology),
        packing=settings.packing,
        tiers=frozenset(tiers),
        rdt=traits,
        clos=max(0, rdt.num_closids - 1 - settings.foreign_groups - 1),
        offers={
            domain.id: _offer(
                topology,
                domain,
                settings,
                shares.get(domain.id, 0),
                state.get(domain.id, L3State()),
            )
            for domain in topology.l3_domains
        },
        observed=settings.observed,
        remote_gpus=settings.remote_gpus,
    )


def _offer(
    topology: HostTopology, domain: L3Domain, settings: TreeSettings, share: int, state: L3State
) -> L3Offer:
    ways, min_ways = 0, 1
    rdt = topology.rdt or RdtCapability()
    reserved = state.reserved_bandwidth_mbps
    # A domain whose CPUs are all offline is in no schemata; it is back before a server runs there.
    if rdt.cat is not None and (domain.id in rdt.l3_ids or topology.sleeps(domain.id)):
        kept = max(settings.min_be_ways, rdt.cat.min_cbm_bits)
        ways = rdt.cat.cbm_len - rdt.cat.shareable_ways - kept
        min_ways = rdt.cat.min_cbm_bits
        if ways < min_ways:
            ways, min_ways = 0, 1
    return L3Offer(
        ways=ways,
        min_ways=min_ways,
        bandwidth_mbps=share,
        reserved_mbps=None if reserved is None else min(max(0, reserved), share),
        neighbours=state.neighbours,
        reserved_neighbourhood=min(state.reserved_neighbourhood, names.WHOLE_NEIGHBOURHOOD),
        cpus=_cpu_ranges(topology, domain),
    )


def _cpu_ranges(topology: HostTopology, domain: L3Domain) -> tuple[tuple[int, int], ...]:
    """CPUs of a domain as ranges, none where every node of it has no other domain."""
    if all(len(topology.l3_of_node(node)) == 1 for node in domain.nodes):
        return ()
    cores = (core for core in topology.cores if core.l3 == domain.id)
    cpus = sorted(cpu for core in cores for cpu in (*core.cpus, *core.offline))
    firsts = [cpu for cpu, before in zip(cpus, [None, *cpus], strict=False) if before != cpu - 1]
    lasts = [cpu for cpu, after in zip(cpus, [*cpus[1:], None], strict=True) if after != cpu + 1]
    return tuple(zip(firsts, lasts, strict=True))


def _rdt_traits(rdt: RdtCapability) -> frozenset[RdtTrait]:
    present = {
        RdtTrait.L3_CAT: rdt.cat is not None,
        RdtTrait.L2_CAT: rdt.l2_cat,
        RdtTrait.CDP: rdt.cat is not None and rdt.cat.cdp,
        RdtTrait.MBA: rdt.mba is not None,
        RdtTrait.CMT: rdt.monitors("llc_occupancy"),
        RdtTrait.MBM: rdt.monitors("mbm_total_bytes") and rdt.monitors("mbm_local_bytes"),
    }
    return frozenset(trait for trait, there in present.items() if there)


def bandwidth_shares(topology: HostTopology) -> dict[int, int]:
    """Divide each node's memory bandwidth over the L3 domains with cores in it, in proportion to those cores.

    The shares of a node add up to its capacity exactly. A domain that touches a node of unknown capacity has none.

    :returns: MB/s by L3 id
    """
    shares = {domain.id: 0 for domain in topology.l3_domains}
    unknown: set[int] = set()
    for node in topology.nodes:
        domains = topology.l3_of_node(node.id)
        if node.bandwidth_mbps is None:
            unknown.update(domain.id for domain in domains)
            continue
        cores = topology.cores_of_node(node.id)
        weights = [sum(core.l3 == domain.id for core in cores) for domain in domains]
        for domain, share in zip(domains, _divide(node.bandwidth_mbps, weights), strict=True):
            shares[domain.id] += share
    return {l3_id: share for l3_id, share in shares.items() if l3_id not in unknown}


def _divide(amount: int, weights: list[int]) -> list[int]:
    """Split an integer in proportion to weights, losing nothing to rounding."""
    total, passed, edges = sum(weights), 0, [0]
    for weight in weights:
        passed += weight
        edges.append(amount * passed // total if total else 0)
    return [end - start for start, end in pairwise(edges)]


def publishable(topology: HostTopology) -> HostTopology:
    """Drop everything that the tree does not hold; the rest survives a way there and back in :mod:`.tree` unchanged.

    A node whose CPUs have no L3 loses its socket, and a socket without L3 its chassis: no provider could carry it.
    """
    sockets_of_node: dict[int, set[int]] = {node.id: set() for node in topology.nodes}
    for domain in topology.l3_domains:
        for node_id in domain.nodes:
            sockets_of_node[node_id].add(domain.socket)
    with_l3 = {domain.socket for domain in topology.l3_domains}
    return HostTopology(
        sockets=tuple(
            Socket(socket.id, socket.chassis if socket.id in with_l3 else 0)
            for socket in topology.sockets
        ),
        nodes=tuple(NumaNode(node.id, single(sockets_of_node[node.id])) for node in topology.nodes),
        l3_domains=tuple(L3Domain(d.id, d.socket, d.nodes) for d in topology.l3_domains),
        gpus=tuple(Gpu(gpu.address, gpu.node, gpu.switch) for gpu in topology.gpus),
        gpu_links=topology.gpu_links,
    )


def single(values: Iterable[int]) -> int | None:
    """The single value, None when there is none or more than one."""
    found = set(values)
    return found.pop() if len(found) == 1 else None
