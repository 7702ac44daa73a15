# SPDX-License-Identifier: Apache-2.0
"""What Placement should hold after a round: the provider tree, and the claims of servers. Pure."""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence

from host_agent.conf.options import Options
from host_agent.decide.amounts.claims import DomainPart, ServerClaim
from host_agent.decide.partitions.requests import l3_amounts
from host_agent.model.assignment import Guest
from host_agent.model.modes import Feature
from host_agent.model.round import Round
from host_agent.model.workload import Activity
from placement_traits.interference import NEIGHBOURHOOD_UNITS
from placement_traits.names import (
    CLASS_TRAITS,
    GPU_COMM_TRAITS,
    TIER_TRAITS,
    NeighbourTrait,
    ObserveTrait,
    PackingTrait,
    Tier,
)
from placement_traits.offers import L3State, TreeSettings
from placement_traits.topology import HostTopology
from placement_traits.tree import ProviderTree, desired_tree

_PACKING: Mapping[str, PackingTrait] = {"pack": PackingTrait.PACK, "spread": PackingTrait.SPREAD}


def neighbours(
    done: Round, *, pinned: bool = True, unsatisfiable: Container[str] = ()
) -> dict[int, frozenset[NeighbourTrait]]:
    """Return who lives in each L3 domain: a server lives in all domains that its vCPUs may run in.

    Paused servers count: they come back.

    :param pinned: vCPUs are where they were decided to be; else they are where they are
    :param unsatisfiable: servers whose objective cannot be kept here
    """
    topology = done.observation.topology
    found: dict[int, set[NeighbourTrait]] = {domain.id: set() for domain in topology.l3_domains}
    for guest in done.observation.guests:
        request = guest.workload.request
        if request is None or guest.workload.activity is Activity.OFF:
            continue
        traits = {
            trait
            for trait in (
                TIER_TRAITS.get(request.tier) if request.tier else None,
                CLASS_TRAITS.get(request.interference_class),
                NeighbourTrait.UNMET_SLO if guest.uuid in unsatisfiable else None,
            )
            if trait
        }
        for l3 in _domains(done, guest, pinned=pinned):
            found[l3] |= traits
        if guest.gpus and request.gpu_comm:
            for l3 in _near_gpus(topology, guest):
                found[l3].add(GPU_COMM_TRAITS[request.gpu_comm])
    return {l3: frozenset(traits) for l3, traits in found.items()}


def _near_gpus(topology: HostTopology, guest: Guest) -> set[int]:
    """L3 domains on the NUMA nodes of a server's devices: who uses a socket's buses is shown there."""
    nodes = {node for node in guest.gpus.values() if node is not None}
    return {domain.id for node in nodes for domain in topology.l3_of_node(node)}


def _domains(done: Round, guest: Guest, *, pinned: bool) -> set[int]:
    """L3 domains of the CPUs that a server's vCPUs may run on, by the best that is known of each vCPU."""
    topology, domain = done.observation.topology, guest.workload.domain
    assignment = done.decision.get(guest.uuid) if pinned else None
    decided = assignment.vcpu_cpus if assignment else {}
    seen = guest.vcpu_cpus
    every = frozenset(topology.cpus)
    anywhere = every if domain.vcpu_cpuset is None else domain.vcpu_cpuset
    chosen = every & frozenset[int]().union(
        *(
            decided.get(vcpu) or seen.get(vcpu) or domain.vcpu_pins.get(vcpu) or anywhere
            for vcpu in range(domain.vcpus)
        )
    )
    return {l3 for cpu in chosen if (l3 := topology.l3_of_cpu(cpu)) is not None}


def reserved_neighbourhood(done: Round, *, pinned: bool = True) -> dict[int, int]:
    """Return the units of each L3 domain's cache neighbourhood that servers there hold without a claim.

    Counted are servers that nova has bound to cells, for as long as they are defined: nova keeps their CPUs while they
    are shut off. What their flavors claim is left out where they live, and counted in every further domain that their
    vCPUs may run in. A floating server is not counted: the agent keeps it away from a neighbourhood that is taken.

    :param pinned: as of :func:`neighbours`
    """
    topology, found = done.observation.topology, Counter[int]()
    for guest in done.observation.guests:
        request, domain = guest.workload.request, guest.workload.domain
        if request is None or guest.workload.floating:
            continue
        units = NEIGHBOURHOOD_UNITS[request.interference_class]
        claimed: Container[int] = ()
        if request.strict:
            claimed = l3_amounts(topology, domain.cells, domain.vcpu_pins, request.l3)
        for l3 in _domains(done, guest, pinned=pinned):
            found[l3] += 0 if l3 in claimed else units
    return dict(found)


def pins(done: Round, options: Options) -> bool:
    """Tell whether vCPUs are where they were decided to be."""
    return options.pinning.enabled and done.modes.act(Feature.PINNING)


def declarations(
    done: Round, placed: Sequence[ServerClaim], *, pinned: bool = True
) -> list[ServerClaim]:
    """Return the claims with those of servers that the agent places: their bandwidth is split over their domains.

    :param placed: of the servers that nova has bound to cells
    """
    return [*placed, *_unbound(done, placed, pinned=pinned)]


def in_use(done: Round, declared: Sequence[ServerClaim]) -> tuple[ServerClaim, ...]:
    """Return the claims of servers that run: a paused one may be arriving, and nova has not finished with it."""
    running = {
        guest.uuid
        for guest in done.observation.guests
        if guest.workload.activity is Activity.RUNNING
    }
    return tuple(claim for claim in declared if claim.uuid in running)


def _unbound(done: Round, placed: Sequence[ServerClaim], *, pinned: bool) -> Iterator[ServerClaim]:
    known = {claim.uuid for claim in placed}
    for guest in done.observation.guests:
        workload = guest.workload
        request = workload.request
        if request is None or not request.bandwidth_mbps or guest.uuid in known:
            continue
        domains = sorted(_domains(done, guest, pinned=pinned))
        parts = tuple(DomainPart(l3, 0, request.bandwidth_mbps // len(domains)) for l3 in domains)
        yield ServerClaim(guest.uuid, workload.title, parts)


def published_tree(
    done: Round,
    root: str,
    options: Options,
    foreign_groups: int,
    reserved_mbps: Mapping[int, int] | None = None,
    *,
    unsatisfiable: Container[str] = (),
) -> ProviderTree:
    """Return the tree that Placement should hold after a round.

    :param root: name of nova's root provider
    :param foreign_groups: resctrl control groups of other software
    :param reserved_mbps: bandwidth that is not for sale now, by L3 domain; one that is missing keeps what Placement
        has, None: nothing is held back
    :param unsatisfiable: servers whose objective cannot be kept here
    """
    partitions = options.rdt.enabled and done.modes.act(Feature.RDT)
    settings = TreeSettings(
        packing=_PACKING[options.placement.cell_packing],
        tiers=frozenset(Tier) if partitions else frozenset({Tier.BE}),
        min_be_ways=options.rdt.shared_ways_min,
        foreign_groups=foreign_groups,
        observed=frozenset(ObserveTrait[feature.name] for feature in done.modes.observed),
        remote_gpus=options.remote_gpus.reach(),
    )
    pinned = pins(done, options)
    units = reserved_neighbourhood(done, pinned=pinned)
    states = {
        l3: L3State(traits, 0 if reserved_mbps is None else reserved_mbps.get(l3), units.get(l3, 0))
        for l3, traits in neighbours(done, pinned=pinned, unsatisfiable=unsatisfiable).items()
    }
    return desired_tree(root, done.observation.topology, settings, states)
