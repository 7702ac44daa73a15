# SPDX-License-Identifier: Apache-2.0
"""How good is a host for a server? One number in [0, 1] with its terms.

The score is a weighted mean. A term lies in [0, 1], 1 is best:

==========================  ==========================================================================================
term                        value
==========================  ==========================================================================================
``slices``                  NUMA guest: 1 / sockets it spans. Floating guest: 1 / fewest nodes that could hold it.
``neighbours``              1 − ½ · (share of its L3 domains in which the other tier runs) − ½ · (worst penalty / 2);
                            its domains: the chosen ones of those it will run in, or all it will run in, or all of
                            the host; 0 where a strict server will run in none that it claims
``devil_packing``           of a strict devil: share of the domains that it claims in which there is a devil already
``ways``                    ways that stay free in the chosen domains / their capacity
``bandwidth``               local bandwidth that stays free: in the chosen domains / their capacity; of a server without
                            a chosen domain, as :class:`Spare` / the largest among the hosts (most spare wins)
``cross_socket_bandwidth``  of a server whose pages may spread over sockets: as :class:`Spare` / the largest among the
                            hosts
``fragmentation``           share of the free dedicated CPUs that guest cells of the same shape can still use afterwards
``gpu``                     utility of the GPU set
``net_block``               of a server of no group: how little its leaf of the fabric is in the way of groups,
                            :mod:`nova_numa_ext.policy.network.singles`
==========================  ==========================================================================================

A host whose agent is silent keeps no promise to a latency-critical server: its score is less by 1, so that it comes
after all others.

A term that is unknown for a host counts there as the mean of the hosts for which it is known; a term that is unknown
for all hosts is left out.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from nova_numa_ext.policy.numa.candidates import (
    Candidate,
    class_penalty,
    newly_taken,
    packs_devils,
    shared_tiers,
)
from nova_numa_ext.policy.numa.cells import GuestCell, HostCell
from nova_numa_ext.policy.numa.home import Home
from nova_numa_ext.policy.numa.requirements import is_missed
from nova_numa_ext.policy.terms import Term
from placement_traits.fleet import Amount, HostView, L3View
from placement_traits.workload_request import WorkloadRequest

Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]

SCORED: Final = (
    Term.SLICES,
    Term.NEIGHBOURS,
    Term.DEVIL_PACKING,
    Term.WAYS,
    Term.BANDWIDTH,
    Term.CROSS_SOCKET_BANDWIDTH,
    Term.FRAGMENTATION,
    Term.GPU,
    Term.NET_BLOCK,
)
NEUTRAL: Final = 0.5
WORST_PENALTY: Final = 2


@dataclass(frozen=True, slots=True)
class HostOffer:
    """One host with the best it can do for a server.

    :param view: our part of its provider tree, None when unknown
    :param cells: its NUMA cells, empty when nova knows none
    :param home: where nova-compute will put the guest, None when it has no cells or that is not known
    :param candidate: its best allocation candidate, None when it has none
    :param guest: the guest's cells, empty for a floating guest
    :param gpu_utility: utility of the candidate's GPU set, None without GPUs
    :param net_block: how well its leaf suits a server of no group, in [0, 1]; None: it hangs on none
    """

    view: HostView | None = None
    cells: tuple[HostCell, ...] = ()
    home: Home | None = None
    candidate: Candidate | None = None
    guest: tuple[GuestCell, ...] = ()
    gpu_utility: float | None = None
    net_block: float | None = None


@dataclass(frozen=True, slots=True)
class Spare:
    """Memory bandwidth that is free on a host, as one server sees it, MB/s.

    The CPUs of a server that has neither chosen domains nor known nodes are taken to be on the socket with most spare
    bandwidth: that is where the agent can put it. What the other sockets have is what the agent can move its pages to
    when a latency-critical neighbour needs the local bandwidth (Gureya 2021, chapter 5).

    :param local: in the L3 domains that it will live in
    :param cross_socket: on all other sockets
    """

    local: float = 0.0
    cross_socket: float = 0.0


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a host.

    :param value: in [0, 1], less 1 for each reason to come after all other hosts
    :param terms: each term's value; None where it was unknown and the mean of the others stood in
    """

    value: float
    terms: Mapping[Term, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of hosts.

    :param values: one per host, in [0, 1], less 1 for each reason to come after all others
    :param rows: their terms in the order of :data:`SCORED`, one row per host; NaN where one is unknown
    :param last: which hosts come after all others, by reason
    """

    values: Floats
    rows: Floats
    last: Mapping[Term, Mask]

    @classmethod
    def made(cls, rows: Floats, weights: Floats, last: Mapping[Term, Sequence[bool]]) -> "Scores":
        """Combine terms; parameters as of :func:`combine`."""
        after = {term: np.array(hosts, bool) for term, hosts in last.items()}
        less = np.sum([*after.values()], axis=0, dtype=float) if after else 0.0
        return cls(combine(rows, weights) - less, rows, after)

    def of(self, host: int) -> Score:
        """Return the score of one host."""
        row = self.rows[host].tolist()
        found: dict[Term, float | None] = {
            term: None if math.isnan(value) else value
            for term, value in zip(SCORED, row, strict=True)
        }
        for term, hosts in self.last.items():
            if hosts.any():
                found[term] = -float(hosts[host])
        return Score(float(self.values[host]), found)


def terms(request: WorkloadRequest, offer: HostOffer, most: Spare) -> dict[Term, float | None]:
    """Return the terms of one host, None where one is unknown.

    :param most: :func:`most_spare` of the hosts that are compared
    """
    free = spare(offer)
    local, cross_socket = (free.local, free.cross_socket) if free is not None else (None, None)
    return {
        Term.SLICES: _slices(request, offer),
        Term.NEIGHBOURS: _neighbours(request, offer),
        Term.DEVIL_PACKING: _devil_packing(request, _chosen(offer)),
        Term.WAYS: _left([(d.ways, amount) for d, amount, _ in _amounts(offer)]),
        Term.BANDWIDTH: _left([(d.bandwidth_mbps, amount) for d, _, amount in _amounts(offer)])
        if _chosen(offer)
        else _share(local, most.local),
        Term.CROSS_SOCKET_BANDWIDTH: _share(cross_socket, most.cross_socket)
        if request.spreads
        else None,
        Term.FRAGMENTATION: _usable(offer),
        Term.GPU: offer.gpu_utility,
        Term.NET_BLOCK: offer.net_block,
    }


def comes_last(request: WorkloadRequest, offer: HostOffer) -> bool:
    """Return whether a host comes after all others."""
    return offer.view is not None and is_missed(request, offer.view.traits)


def spare(offer: HostOffer) -> Spare | None:
    """Return the memory bandwidth that is free on a host, None when it is unknown."""
    domains = offer.view.l3 if offer.view is not None else ()
    known = [(d, max(0, d.bandwidth_mbps.free)) for d in domains if d.bandwidth_mbps is not None]
    if not known:
        return None
    free_of_socket: Counter[int] = Counter()
    for domain, free in known:
        free_of_socket[domain.socket] += free
    if offer.home is None and not _chosen(offer):
        local = max(free_of_socket.values())
        return Spare(local, free_of_socket.total() - local)
    home = _lived_in(offer)
    uuids, sockets = {domain.uuid for domain in home}, {domain.socket for domain in home}
    return Spare(
        sum(free for domain, free in known if domain.uuid in uuids),
        sum(free for socket, free in free_of_socket.items() if socket not in sockets),
    )


def most_spare(spares: Iterable[Spare | None]) -> Spare:
    """Return the largest spare bandwidth of hosts, local and cross-socket apart; 0 where none is known."""
    known = [each for each in spares if each is not None]
    return Spare(
        max((each.local for each in known), default=0.0),
        max((each.cross_socket for each in known), default=0.0),
    )


def combine(rows: Floats, weights: Floats) -> Floats:
    """Return the score of each host.

    :param rows: terms in the order of :data:`SCORED`, one row per host; NaN where one is unknown
    :param weights: weight of each term for each host (aggregates may differ), >= 0, of the same shape
    """
    known = ~np.isnan(rows)
    count = known.sum(axis=0)
    means = np.where(known, rows, 0.0).sum(axis=0) / np.maximum(1, count)
    weights = weights * (count > 0)
    total = (weights * np.where(known, rows, means)).sum(axis=1)
    weight = weights.sum(axis=1)
    some = weight > 0
    return np.clip(np.where(some, total / np.where(some, weight, 1.0), NEUTRAL), 0.0, 1.0)


def _amounts(offer: HostOffer) -> list[tuple[L3View, int, int]]:
    """L3 domains of the candidate with the ways and the bandwidth that it takes there."""
    if offer.view is None or offer.candidate is None:
        return []
    requested = dict(offer.candidate.l3)
    return [
        (domain, requested[domain.uuid].ways, requested[domain.uuid].bandwidth_mbps)
        for domain in offer.view.l3
        if domain.uuid in requested
    ]


def _chosen(offer: HostOffer) -> list[L3View]:
    return [domain for domain, _, _ in _amounts(offer)]


def _lived_in(offer: HostOffer) -> list[L3View]:
    """L3 domains that the server will use: those it claims, unless nova-compute will pick nodes away from them all."""
    reachable = _reachable(offer)
    claimed = {domain.uuid for domain in _chosen(offer)}
    return [domain for domain in reachable if domain.uuid in claimed] or reachable


def _reachable(offer: HostOffer) -> list[L3View]:
    """L3 domains with CPUs of the guest, or all when it floats."""
    if offer.view is None:
        return []
    if offer.home is None:
        return list(offer.view.l3)
    return [domain for domain in offer.view.l3 if domain.uuid in offer.home.domains]


def _slices(request: WorkloadRequest, offer: HostOffer) -> float | None:
    if not offer.cells:
        return None
    if offer.home is not None:
        sockets = {cell.socket for cell in offer.cells if cell.id in offer.home.nodes}
        return None if None in sockets else 1.0 / len(sockets)
    if not request.floating:
        return None
    cpus = memory_mb = 0
    roomiest = sorted(offer.cells, key=lambda c: (-min(c.cpus, request.vcpus), -c.free_memory_mb))
    for count, cell in enumerate(roomiest, start=1):
        cpus += cell.cpus
        memory_mb += cell.free_memory_mb
        if cpus >= request.vcpus and memory_mb >= request.memory_mb:
            return 1.0 / count
    return 0.0


def _neighbours(request: WorkloadRequest, offer: HostOffer) -> float | None:
    domains = _lived_in(offer)
    if not domains:
        return None
    if request.strict and not any(domain in _chosen(offer) for domain in domains):
        return 0.0
    shared = shared_tiers(request, domains) / len(domains)
    return 1.0 - 0.5 * shared - 0.5 * class_penalty(request, domains) / WORST_PENALTY


def _devil_packing(request: WorkloadRequest, domains: Sequence[L3View]) -> float | None:
    if not domains or not packs_devils(request):
        return None
    return 1.0 - newly_taken(request, domains) / len(domains)


def _left(amounts: Sequence[tuple[Amount | None, int]]) -> float | None:
    known = [(amount, taken) for amount, taken in amounts if amount is not None]
    capacity = sum(amount.capacity for amount, _ in known)
    if capacity <= 0:
        return None
    return _clamp(sum(amount.free - taken for amount, taken in known) / capacity)


def _share(value: float | None, most: float) -> float | None:
    return None if value is None or most <= 0 else value / most


def _usable(offer: HostOffer) -> float | None:
    """Share of the free dedicated CPUs that cells of the guest's shape can still use once it is placed."""
    if offer.home is None or not offer.guest or not offer.guest[0].pcpus:
        return None
    shape = offer.guest[0]
    taken = dict(zip(offer.home.nodes, offer.guest, strict=True))
    free_cpus = usable = 0
    for cell in offer.cells:
        guest = taken.get(cell.id)
        cpus = cell.free_pcpus - (guest.pcpus if guest else 0)
        memory_mb = cell.free_memory_mb - (guest.memory_mb if guest else 0)
        fits = min(cpus // shape.pcpus, memory_mb // shape.memory_mb if shape.memory_mb else cpus)
        free_cpus += cpus
        usable += max(0, fits) * shape.pcpus
    return _clamp(usable / free_cpus) if free_cpus > 0 else 1.0


def _clamp(value: float) -> float:
    return min(1.0, max(0.0, value))
