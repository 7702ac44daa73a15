# SPDX-License-Identifier: Apache-2.0
"""What this scheduler has just placed, added to a view that does not show it yet.

The agents publish who lives in an L3 domain only once a server runs there, and the view reads it later still. Until
then the scheduler's own picks stand in. They only rank: nova does not report which host it took, takes another one
when a claim fails, and undoes claims. Amounts need this only *within* one request: nova got the candidates of all its
servers from Placement before the first one was claimed. Between requests Placement counts them exactly.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from placement_traits.fleet import Amount, HostView, L3View
from placement_traits.names import (
    CLASS_TRAITS,
    TIER_TRAITS,
    InterferenceClass,
    NeighbourTrait,
    Tier,
)
from placement_traits.workload_request import L3Amount


@dataclass(frozen=True, slots=True)
class Pick:
    """A server that this scheduler has placed.

    :param server: its uuid
    :param host: root provider of the host
    :param tier: its tier
    :param interference_class: its class
    :param l3: amounts by L3 provider
    :param nodes: NUMA nodes it was predicted on, None for a floating guest
    :param gpus: providers of its GPUs; one that several servers share comes once for each part that it gives
    :param gpu_comm: how much they communicate
    """

    server: str
    host: str
    tier: Tier | None
    interference_class: InterferenceClass
    l3: tuple[tuple[str, L3Amount], ...] = ()
    nodes: tuple[int, ...] | None = None
    gpus: tuple[str, ...] = ()
    gpu_comm: int = 0


def each_part(parts: Mapping[str, int]) -> tuple[str, ...]:
    """Return providers ascending, each as often as it gives a part: see :attr:`Pick.gpus`."""
    return tuple(sorted(Counter(parts).elements()))


def with_neighbours(host: HostView, picks: Iterable[Pick]) -> HostView:
    """Return the host with picked servers among the neighbours of the L3 domains they use.

    A floating guest may run anywhere: its tier is noted in every domain, its class only where the host has a single
    one, for elsewhere the agent will choose the domain with the classes in mind.
    """
    added: dict[str, set[NeighbourTrait]] = {}
    for pick in picks:
        domains = _domains(host, pick)
        settled = bool(pick.l3) or pick.nodes is not None or len(domains) == 1
        traits = {TIER_TRAITS[pick.tier]} if pick.tier else set()
        if settled and pick.interference_class in CLASS_TRAITS:
            traits.add(CLASS_TRAITS[pick.interference_class])
        for domain in domains:
            added.setdefault(domain.uuid, set()).update(traits)
    if not any(added.values()):
        return host
    l3 = tuple(
        replace(domain, neighbours=domain.neighbours | added.get(domain.uuid, set()))
        for domain in host.l3
    )
    return replace(host, l3=l3)


def without_class(host: HostView, interference_class: InterferenceClass) -> HostView:
    """Return the host that a server lives on without the server's own class: a server is not its own neighbour.

    Whether the trait has another owner, too, is not in the view, so the trait alone is nothing against that host.
    Its class before a resize would cost nova a database call, so it is taken to be the one asked for.
    """
    own = CLASS_TRAITS.get(interference_class)
    return replace(
        host, l3=tuple(replace(domain, neighbours=domain.neighbours - {own}) for domain in host.l3)
    )


def with_amounts(host: HostView, picks: Iterable[Pick]) -> HostView:
    """Return the host with the amounts of picked servers taken from its L3 domains."""
    taken: dict[str, list[L3Amount]] = {}
    for pick in picks:
        for uuid, amount in pick.l3:
            taken.setdefault(uuid, []).append(amount)
    if not taken:
        return host
    return replace(host, l3=tuple(_taken(domain, taken.get(domain.uuid, ())) for domain in host.l3))


def _domains(host: HostView, pick: Pick) -> list[L3View]:
    if pick.l3:
        used = {uuid for uuid, _ in pick.l3}
        return [domain for domain in host.l3 if domain.uuid in used]
    if pick.nodes is not None:
        return [domain for domain in host.l3 if set(domain.nodes) & set(pick.nodes)]
    return list(host.l3)


def _taken(domain: L3View, amounts: Collection[L3Amount]) -> L3View:
    return replace(
        domain,
        ways=_used(domain.ways, sum(amount.ways for amount in amounts)),
        bandwidth_mbps=_used(
            domain.bandwidth_mbps, sum(amount.bandwidth_mbps for amount in amounts)
        ),
        neighbourhood=_used(domain.neighbourhood, sum(amount.neighbourhood for amount in amounts)),
    )


def _used(amount: Amount | None, more: int) -> Amount | None:
    return None if amount is None else replace(amount, used=amount.used + more)
