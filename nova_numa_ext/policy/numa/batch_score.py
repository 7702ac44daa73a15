# SPDX-License-Identifier: Apache-2.0
"""The terms of :mod:`.score` for all hosts of a :class:`.batch.Batch` at once.

Shapes as in :mod:`.batch`. A term that is not known is NaN.
"""

from dataclasses import dataclass

import numpy as np

from nova_numa_ext.policy.numa.arrays import (
    Bits,
    Floats,
    HostArrays,
    Integers,
    Mask,
    Records,
    count_bits,
    union,
)
from nova_numa_ext.policy.numa.batch import Batch, Offered, Question, other_tier, penalties
from nova_numa_ext.policy.numa.candidates import OTHER_TIER
from nova_numa_ext.policy.numa.score import WORST_PENALTY, Spare
from nova_numa_ext.policy.terms import Term
from placement_traits.request import WorkloadRequest


@dataclass(frozen=True, slots=True)
class Spares:
    """:class:`.score.Spare` of each host; NaN where it is unknown.

    :param local: MB/s, H
    :param cross_socket: MB/s, H
    """

    local: Floats
    cross_socket: Floats

    def most(self) -> Spare:
        """Return the largest ones; 0 where none is known."""
        return Spare(
            float(np.nanmax(self.local, initial=0.0)),
            float(np.nanmax(self.cross_socket, initial=0.0)),
        )


@dataclass(frozen=True, slots=True)
class Offers:
    """Hosts with the best they can do, as :class:`.score.HostOffer` has it for one host.

    :param cells: ``CELL`` records, H x C
    :param domains: ``DOMAIN`` records, H x D
    :param picked: cells that the guest gets, H x C
    :param nodes: the same as bits, H
    :param used: domains of the best candidate, H x D
    :param ways: what it takes there, H x D
    :param bandwidth: what it takes there, MB/s, H x D
    :param home: domains that the guest will live in, H x D
    :param spare: bandwidth that is free
    :param gpu: utility of its GPU set, H
    """

    cells: Records
    domains: Records
    picked: Mask
    nodes: Bits
    used: Mask
    ways: Integers
    bandwidth: Integers
    home: Mask
    spare: Spares
    gpu: Floats


def offers(hosts: HostArrays, offered: Offered, batch: Batch, rows: Integers) -> Offers:
    """Return what the hosts in ``rows`` offer."""
    domains, cells, picked = hosts.domains[rows], hosts.cells[rows], batch.chosen[rows]
    used = np.zeros(domains.shape, bool)
    ways, bandwidth = np.zeros(domains.shape, np.int64), np.zeros(domains.shape, np.int64)
    having = np.flatnonzero(batch.kept[rows] > 0)
    best = batch.order[batch.first[rows[having]]]
    for group in range(offered.domain.shape[1]):
        uses = offered.domain[best, group] >= 0
        where = having[uses], offered.domain[best[uses], group]
        used[where] = True
        ways[where] = offered.ways[best[uses], group]
        bandwidth[where] = offered.bandwidth[best[uses], group]
    nodes = union(np.where(picked, cells["node"], np.uint64(0)))
    gpu = np.full(len(rows), np.nan)
    if offered.devices is not None:
        gpu[having] = offered.devices.utility(best)
    home = _lived_in(domains, nodes, used)
    spare = _spares(domains, home, (nodes != 0) | used.any(axis=1))
    return Offers(cells, domains, picked, nodes, used, ways, bandwidth, home, spare, gpu)


def _lived_in(domains: Records, nodes: Bits, used: Mask) -> Mask:
    """L3 domains that the guests will use, H x D."""
    on_nodes = domains["nodes"] & nodes[:, None] != 0
    near: Mask = domains["present"] & ((nodes == 0)[:, None] | on_nodes)
    claimed = used & near
    lived_in: Mask = np.where(np.any(claimed, axis=1, keepdims=True), claimed, near)
    return lived_in


def _spares(domains: Records, home: Mask, settled: Mask) -> Spares:
    """Return the memory bandwidth that is free in each host.

    :param home: domains that the guest will live in, H x D
    :param settled: they are known; otherwise the guest is taken to live on the socket with most spare bandwidth, H
    """
    free = np.maximum(0, domains["bandwidth_free"] * domains["bandwidth_known"])
    best, near = np.zeros(len(domains), np.int64), np.zeros(len(domains), np.int64)
    for socket in np.unique(domains["socket"]):
        on = domains["socket"] == socket
        of_socket = (free * on).sum(axis=1)
        best = np.maximum(best, of_socket)
        near += np.where((home & on).any(axis=1), of_socket, 0)
    known = domains["bandwidth_known"].any(axis=1)
    local = np.where(settled, (free * home).sum(axis=1), best)
    cross_socket = free.sum(axis=1) - np.where(settled, near, best)
    return Spares(np.where(known, local, np.nan), np.where(known, cross_socket, np.nan))


def terms(question: Question, offer: Offers, most: Spare) -> dict[Term, Floats]:
    """Return each term for each host.

    :param most: :func:`.score.most_spare` of all hosts that are compared
    """
    spare, spreads = offer.spare, question.request.spreads
    left = _left(offer, "bandwidth", offer.bandwidth)
    return {
        Term.SLICES: _slices(question, offer),
        Term.NEIGHBOURS: _neighbours(question.request, offer),
        Term.WAYS: _left(offer, "ways", offer.ways),
        Term.BANDWIDTH: np.where(offer.used.any(axis=1), left, _share(spare.local, most.local)),
        Term.CROSS_SOCKET_BANDWIDTH: _share(
            spare.cross_socket, most.cross_socket if spreads else 0.0
        ),
        Term.FRAGMENTATION: _usable(question, offer),
        Term.GPU: offer.gpu,
    }


def _slices(question: Question, offer: Offers) -> Floats:
    cells, placed = offer.cells, offer.nodes != 0
    sockets = np.where(offer.picked, cells["socket"], np.uint64(0))
    unknown = (offer.picked & (cells["socket"] == 0)).any(axis=1)
    spanned = np.maximum(1, count_bits(union(sockets)))
    strict = np.where(placed & ~unknown, 1.0 / spanned, np.nan)
    if not question.request.floating:
        return strict
    return np.where(placed, strict, _fewest_nodes(question.request, cells))


def _fewest_nodes(request: WorkloadRequest, cells: Records) -> Floats:
    """1 / number of nodes that hold a floating guest when the roomiest are taken, 0 where all together do not."""
    present = cells["present"]
    keys = (-cells["free_memory_mb"], -np.minimum(cells["cpus"], request.vcpus), ~present)
    roomiest = np.lexsort(keys, axis=-1)
    cpus = np.cumsum(np.take_along_axis(cells["cpus"], roomiest, axis=1), axis=1)
    memory_mb = np.cumsum(np.take_along_axis(cells["free_memory_mb"], roomiest, axis=1), axis=1)
    enough = (cpus >= request.vcpus) & (memory_mb >= request.memory_mb)
    if not cells.shape[1]:
        return np.full(len(cells), np.nan)
    share = np.where(enough.any(axis=1), 1.0 / (enough.argmax(axis=1) + 1), 0.0)
    return np.where(present.any(axis=1), share, np.nan)


def _neighbours(request: WorkloadRequest, offer: Offers) -> Floats:
    domains, among = offer.domains, offer.home
    others: Mask = other_tier(OTHER_TIER[request.tier])[domains["neighbours"]] & among
    penalty = (penalties(request.interference_class)[domains["neighbours"]] * among).max(
        axis=1, initial=0
    )
    count = among.sum(axis=1)
    shared = others.sum(axis=1) / np.maximum(1, count)
    return np.where(count > 0, 1.0 - 0.5 * shared - 0.5 * penalty / WORST_PENALTY, np.nan)


def _share(values: Floats, most: float) -> Floats:
    return values / most if most > 0 else np.full(len(values), np.nan)


def _left(offer: Offers, what: str, taken: Integers) -> Floats:
    """Share of the capacity of the used domains that stays free."""
    known = offer.used & offer.domains[f"{what}_known"]
    capacity = (offer.domains[f"{what}_capacity"] * known).sum(axis=1)
    free = ((offer.domains[f"{what}_free"] - taken) * known).sum(axis=1)
    return np.where(capacity > 0, np.clip(free / np.maximum(1, capacity), 0.0, 1.0), np.nan)


def _usable(question: Question, offer: Offers) -> Floats:
    """Share of the free dedicated CPUs that cells of the guest's shape can still use once it is placed."""
    if not question.guest or not question.guest[0].pcpus:
        return np.full(len(offer.cells), np.nan)
    shape = question.guest[0]
    cpus = offer.cells["free_pcpus"] - shape.pcpus * offer.picked
    memory_mb = offer.cells["free_memory_mb"] - shape.memory_mb * offer.picked
    by_memory = memory_mb // shape.memory_mb if shape.memory_mb else cpus
    usable = np.maximum(0, np.minimum(cpus // shape.pcpus, by_memory)).sum(axis=1) * shape.pcpus
    free = cpus.sum(axis=1)
    share = np.where(free > 0, np.clip(usable / np.maximum(1, free), 0.0, 1.0), 1.0)
    return np.where(offer.nodes != 0, share, np.nan)
