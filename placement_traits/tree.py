# SPDX-License-Identifier: Apache-2.0
"""What a host publishes <-> its provider tree. Pure.

:func:`~placement_traits.offers.publish` decides *what* is published; :func:`to_tree` spells it as providers,
inventories and traits, and :func:`from_tree` is its exact inverse: the second step loses nothing.

The tree of a host with four L3 domains and one GPU::

    compute1                     traits: HOST, RDT_*, NODES_4, SOCKETS_2, L3_DOMAINS_4, CELLS_PACK, TIER_LC, TIER_BE
    ├─ compute1:rdt              CUSTOM_RDT_CLOS = num_closids - root - foreign - 1 for BE
    │                            CUSTOM_NUMA_EXT_PROBE = 1; traits: SHARD_1, SUBSHARD_0
    ├─ compute1:l3_0             CUSTOM_LLC_WAY = cbm_len - shareable - minimum for BE; CUSTOM_MEMORY_BANDWIDTH_MBPS;
    │                            CUSTOM_LLC_NEIGHBOURHOOD = 1000
    │                            traits: L3_0, NODE_0, SOCKET_0, CHASSIS_0, neighbourhood; CPUS_0_7 … where the
    │                            node has another L3 domain
    ├─ compute1:l3_1 …
    └─ compute1:gpu-0000:81:00.0 traits: GPU, NODE_0, SWITCH_0, links

and of one whose servers reach remote GPUs also (:mod:`placement_traits.pool_tree`)::

    compute1                     traits: RGPU_CLIENT, RGPU_FABRIC_*
    └─ compute1:rgpu             CUSTOM_RGPU_NET_MBPS; trait: RGPU_CLIENT_NIC, and no OWNER: views compare it not
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from placement_traits import formats, names
from placement_traits.errors import InvalidValueError
from placement_traits.names import (
    NeighbourTrait,
    ObserveTrait,
    PackingTrait,
    RdtTrait,
    Tier,
    TierTrait,
)
from placement_traits.offers import (
    L3Offer,
    L3State,
    Published,
    RemoteGpuClient,
    TreeSettings,
    publish,
    single,
)
from placement_traits.shards import shard_of
from placement_traits.topology import (
    Gpu,
    GpuEdge,
    HostTopology,
    L3Domain,
    NumaNode,
    Socket,
)

MAX_UNIT: Final = 2**31 - 1  # Placement's own default


@dataclass(frozen=True, slots=True)
class Inventory:
    """One inventory as Placement's API has it; ``reserved`` None in a desired one: as it is there."""

    total: int
    reserved: int | None = 0
    min_unit: int = 1
    max_unit: int = MAX_UNIT
    step_size: int = 1
    allocation_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Provider:
    """One resource provider: its name, what it counts and what it is."""

    name: str
    traits: frozenset[str] = frozenset()
    inventories: Mapping[str, Inventory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProviderTree:
    """Our part of a compute node's tree.

    :param root: name of nova's root provider, the hypervisor hostname
    :param root_traits: our traits on it; its other traits and its inventories are nova's
    :param children: our providers, all directly under the root, by name
    """

    root: str
    root_traits: frozenset[str]
    children: tuple[Provider, ...]

    def child(self, name: str) -> Provider | None:
        """Return the child of that name, or None."""
        return next((child for child in self.children if child.name == name), None)


def desired_tree(
    root: str,
    topology: HostTopology,
    settings: TreeSettings,
    state: Mapping[int, L3State] | None = None,
) -> ProviderTree:
    """Return the tree that Placement should hold for a host: :func:`publish`, then :func:`to_tree`."""
    return to_tree(root, publish(topology, settings, state))


def with_reserved(tree: ProviderTree, more: Mapping[str, Mapping[str, int]]) -> ProviderTree:
    """Return a tree in which more is reserved, up to all that there is.

    What the desired tree leaves open (``reserved`` None) stays open.

    :param more: amounts by resource class by provider name
    """
    return dataclasses.replace(
        tree,
        children=tuple(
            dataclasses.replace(child, inventories=_reserving(child.inventories, more[child.name]))
            if child.name in more
            else child
            for child in tree.children
        ),
    )


def _reserving(
    inventories: Mapping[str, Inventory], more: Mapping[str, int]
) -> dict[str, Inventory]:
    return {
        name: inventory
        if inventory.reserved is None
        else dataclasses.replace(
            inventory, reserved=min(inventory.total, inventory.reserved + more.get(name, 0))
        )
        for name, inventory in inventories.items()
    }


def to_tree(root: str, published: Published) -> ProviderTree:
    """Spell what a host publishes as providers, inventories and traits.

    :param root: name of nova's root provider
    :param published: what to spell
    """
    topology = published.topology
    children = [
        *([_rdt_provider(root, published)] if published.rdt else []),
        *(_l3_provider(root, published, domain) for domain in topology.l3_domains),
        *(_gpu_provider(root, topology, gpu) for gpu in topology.gpus),
    ]
    if children:
        children[0] = _with_probe(root, children[0])
    if published.remote_gpus is not None and published.remote_gpus.network_mbps:
        children.append(_client_nic(root, published.remote_gpus.network_mbps))
    return ProviderTree(
        root, _root_traits(published), tuple(sorted(children, key=lambda child: child.name))
    )


def _with_probe(root: str, child: Provider) -> Provider:
    """Let queries find the host by this provider; one of each host, or the host would be found twice."""
    return Provider(
        child.name,
        child.traits | {*shard_of(root).traits},
        {**child.inventories, names.PROBE: Inventory(1, max_unit=1)},
    )


def _client_nic(root: str, mbps: int) -> Provider:
    return Provider(
        names.client_provider(root),
        frozenset({names.REMOTE_GPU_CLIENT_NIC}),
        {names.REMOTE_GPU_NETWORK_MBPS: Inventory(mbps, max_unit=mbps)},
    )


def _root_traits(published: Published) -> frozenset[str]:
    topology, client = published.topology, published.remote_gpus
    nodes_with_l3 = {node for domain in topology.l3_domains for node in domain.nodes}
    sockets_with_l3 = {domain.socket for domain in topology.l3_domains}
    return frozenset(
        {
            names.HOST,
            formats.TRAIT,
            published.packing.value,
            *(TierTrait[tier.name].value for tier in published.tiers),
            *(trait.value for trait in published.rdt),
            *(trait.value for trait in published.observed),
            *([names.REMOTE_GPU_CLIENT, *map(names.fabric, client.fabrics)] if client else ()),
            names.numbered("NODES", len(topology.nodes)),
            names.numbered("SOCKETS", len(topology.sockets)),
            names.numbered("L3_DOMAINS", len(topology.l3_domains)),
            *(names.numbered("NODE", n) for n in topology.node_ids if n not in nodes_with_l3),
            *(
                names.numbered("SOCKET", socket.id)
                for socket in topology.sockets
                if socket.id not in sockets_with_l3
            ),
        }
    )


def _rdt_provider(root: str, published: Published) -> Provider:
    clos = {names.RDT_CLOS: Inventory(published.clos, max_unit=1)} if published.clos else {}
    return Provider(names.rdt_provider(root), frozenset({names.OWNER}), clos)


def _l3_provider(root: str, published: Published, domain: L3Domain) -> Provider:
    offer = published.offers[domain.id]
    whole = names.WHOLE_NEIGHBOURHOOD
    inventories = {
        names.LLC_NEIGHBOURHOOD: Inventory(
            whole, reserved=offer.reserved_neighbourhood, max_unit=whole
        )
    }
    if offer.ways:
        inventories[names.LLC_WAY] = Inventory(
            offer.ways, min_unit=offer.min_ways, max_unit=offer.ways
        )
    if offer.bandwidth_mbps:
        inventories[names.MEMORY_BANDWIDTH_MBPS] = Inventory(
            offer.bandwidth_mbps, reserved=offer.reserved_mbps, max_unit=offer.bandwidth_mbps
        )
    traits = {
        names.OWNER,
        names.numbered("L3", domain.id),
        names.numbered("SOCKET", domain.socket),
        names.numbered("CHASSIS", published.topology.socket(domain.socket).chassis),
        *(names.numbered("NODE", node) for node in domain.nodes),
        *(names.cpu_range(first, last) for first, last in offer.cpus),
        *(trait.value for trait in offer.neighbours),
    }
    return Provider(names.l3_provider(root, domain.id), frozenset(traits), inventories)


def _gpu_provider(root: str, topology: HostTopology, gpu: Gpu) -> Provider:
    return Provider(
        names.gpu_provider(root, gpu.address),
        frozenset({names.OWNER, names.GPU, *gpu_traits(topology, gpu)}),
    )


def gpu_traits(topology: HostTopology, gpu: Gpu) -> frozenset[str]:
    """Return the traits that place a GPU: its node, its switch and its listed links."""
    position = {other.address: i for i, other in enumerate(topology.gpus)}
    traits = {
        names.gpu_link(edge.link, position[edge.a], position[edge.b])
        for edge in topology.gpu_links
        if gpu.address in (edge.a, edge.b)
    }
    if gpu.node is not None:
        traits.add(names.numbered("NODE", gpu.node))
    if gpu.switch is not None:
        traits.add(names.numbered("SWITCH", gpu.switch))
    return frozenset(traits)


# Reading it back ----------------------------------------------------------------------------------------------------


# Hosts of one kind have the same domains, and a fleet is read again each few seconds.
_PLACES: Final = 4096


@dataclass(frozen=True, slots=True)
class L3Place:
    """Where an L3 domain is, as its provider's traits show it."""

    l3_id: int
    nodes: tuple[int, ...]
    socket: int
    chassis: int
    neighbours: frozenset[NeighbourTrait]
    cpus: tuple[tuple[int, int], ...]


def l3_place(traits: Iterable[str]) -> L3Place | None:
    """Read the traits of an L3 provider; None when they do not describe one completely."""
    return _l3_place(frozenset(traits))


@lru_cache(maxsize=_PLACES)
def _l3_place(traits: frozenset[str]) -> L3Place | None:
    numbers = _numbers(traits)
    l3_id, socket = single(numbers.get("L3", ())), single(numbers.get("SOCKET", ()))
    nodes = tuple(sorted(numbers.get("NODE", ())))
    if l3_id is None or socket is None or not nodes:
        return None
    chassis = single(numbers.get("CHASSIS", ())) or 0
    neighbours = frozenset(NeighbourTrait(t) for t in traits & frozenset(NeighbourTrait))
    ranges = (names.parse_cpu_range(trait) for trait in traits)
    cpus = tuple(sorted(found for found in ranges if found is not None))
    return L3Place(l3_id, nodes, socket, chassis, neighbours, cpus)


def gpu_place(traits: Iterable[str]) -> tuple[int | None, int | None]:
    """Return (node, switch) from the traits of a GPU provider."""
    numbers = _numbers(traits)
    return single(numbers.get("NODE", ())), single(numbers.get("SWITCH", ()))


def gpu_edges(traits_of: Mapping[str, Iterable[str]]) -> tuple[GpuEdge, ...]:
    """Find the links of a host's GPUs.

    :param traits_of: traits by PCI address
    :returns: links ascending by ends; a link trait that is not held by exactly two GPUs is half written and left out
    """
    holders: dict[str, list[str]] = {}
    for address, traits in sorted(traits_of.items()):
        for trait in traits:
            holders.setdefault(trait, []).append(address)
    edges = []
    for trait, ends in holders.items():
        link = names.parse_gpu_link(trait)
        if link is not None and len(ends) == 2:
            edges.append(GpuEdge(ends[0], ends[1], link[0]))
    return tuple(sorted(edges, key=lambda edge: (edge.a, edge.b)))


def from_tree(tree: ProviderTree) -> Published:
    """Read back what :func:`to_tree` spelt.

    :raises InvalidValueError: a provider or trait that :func:`to_tree` would not have written
    """
    places: dict[int, L3Place] = {}
    offers: dict[int, L3Offer] = {}
    gpus: dict[str, frozenset[str]] = {}
    clos = mbps = 0
    gpu_prefix = names.gpu_provider(tree.root, "")
    for child in tree.children:
        if child.name == names.rdt_provider(tree.root):
            clos = child.inventories.get(names.RDT_CLOS, Inventory(0)).total
        elif child.name == names.client_provider(tree.root):
            mbps = child.inventories.get(names.REMOTE_GPU_NETWORK_MBPS, Inventory(0)).total
        elif child.name.startswith(gpu_prefix):
            gpus[child.name.removeprefix(gpu_prefix)] = child.traits
        else:
            place = l3_place(child.traits)
            if place is None or child.name != names.l3_provider(tree.root, place.l3_id):
                allowed = "a provider of one L3 domain, with traits L3, NODE and SOCKET"
                raise InvalidValueError(f"provider {child.name}", sorted(child.traits), allowed)
            places[place.l3_id] = place
            offers[place.l3_id] = _read_offer(child, place)
    packing = _only_packing(tree)
    return Published(
        topology=_read_topology(tree, places, gpus),
        packing=packing,
        tiers=frozenset(tier for tier in Tier if TierTrait[tier.name] in tree.root_traits),
        rdt=frozenset(trait for trait in RdtTrait if trait in tree.root_traits),
        clos=clos,
        offers=offers,
        observed=frozenset(trait for trait in ObserveTrait if trait in tree.root_traits),
        remote_gpus=RemoteGpuClient(names.fabrics(tree.root_traits), mbps)
        if names.REMOTE_GPU_CLIENT in tree.root_traits
        else None,
    )


def _only_packing(tree: ProviderTree) -> PackingTrait:
    found = [trait for trait in PackingTrait if trait in tree.root_traits]
    if len(found) != 1:
        allowed = f"exactly one of {', '.join(PackingTrait)}"
        raise InvalidValueError(f"provider {tree.root}", sorted(found), allowed)
    return found[0]


def _read_offer(child: Provider, place: L3Place) -> L3Offer:
    ways = child.inventories.get(names.LLC_WAY, Inventory(0))
    bandwidth = child.inventories.get(names.MEMORY_BANDWIDTH_MBPS, Inventory(0))
    neighbourhood = child.inventories.get(names.LLC_NEIGHBOURHOOD, Inventory(0))
    return L3Offer(
        ways.total,
        ways.min_unit,
        bandwidth.total,
        bandwidth.reserved,
        place.neighbours,
        neighbourhood.reserved or 0,
        place.cpus,
    )


def _read_topology(
    tree: ProviderTree, places: Mapping[int, L3Place], gpus: Mapping[str, frozenset[str]]
) -> HostTopology:
    root = _numbers(tree.root_traits)
    chassis_of = dict.fromkeys(root.get("SOCKET", ()), 0)
    sockets_of_node: dict[int, set[int]] = {node: set() for node in root.get("NODE", ())}
    for place in places.values():
        chassis_of[place.socket] = place.chassis
        for node in place.nodes:
            sockets_of_node.setdefault(node, set()).add(place.socket)
    return HostTopology(
        sockets=tuple(Socket(socket, chassis_of[socket]) for socket in sorted(chassis_of)),
        nodes=tuple(NumaNode(n, single(sockets_of_node[n])) for n in sorted(sockets_of_node)),
        l3_domains=tuple(
            L3Domain(place.l3_id, place.socket, place.nodes)
            for place in sorted(places.values(), key=lambda place: place.l3_id)
        ),
        gpus=tuple(Gpu(address, *gpu_place(gpus[address])) for address in sorted(gpus)),
        gpu_links=gpu_edges(gpus),
    )


def _numbers(traits: Iterable[str]) -> dict[str, set[int]]:
    """Numbered traits by kind."""
    found: dict[str, set[int]] = {}
    for trait in traits:
        parsed = names.parse_numbered(trait)
        if parsed is not None:
            found.setdefault(parsed[0], set()).add(parsed[1])
    return found
