# SPDX-License-Identifier: Apache-2.0
"""The terms of :mod:`.score` over arrays: L3 domains of all hosts side by side, and what they are worth to a server.

Shapes: ``H`` hosts, ``C`` cells and ``D`` L3 domains of the largest host; smaller hosts have absent ones at the end of
their rows. Sets of NUMA nodes and of neighbours are bits of a number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nova_numa_ext.policy.numa.candidates import OTHER_TIER, packs_devils
from nova_numa_ext.policy.numa.cells import GuestCell
from nova_numa_ext.policy.numa.score import WORST_PENALTY, Floats
from nova_numa_ext.policy.terms import Term
from placement_traits.fleet_arrays import L3_AMOUNTS, NEIGHBOURS, NODE_BITS, UNKNOWN, FleetArrays
from placement_traits.interference import penalty
from placement_traits.names import (
    CLASS_TRAITS,
    WHOLE_NEIGHBOURHOOD,
    InterferenceClass,
    NeighbourTrait,
)
from placement_traits.workload_request import WorkloadRequest

Integers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Columns: TypeAlias = Mapping[str, npt.NDArray[Any]]


def domains_of(arrays: FleetArrays, rows: Integers) -> Columns:
    """L3 domains of each host side by side, H x D."""
    known = np.flatnonzero(rows != UNKNOWN)
    hosts = arrays.hosts[rows[known]]
    start, count = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    start[known], count[known] = hosts["l3_start"], hosts["l3_count"]
    place = np.arange(count.max(initial=0))
    present = place < count[:, None]
    index = np.where(present, start[:, None] + place, 0)
    l3 = arrays.l3
    return {
        "present": present,
        "node_bits": l3["node_bits"][index],
        "socket": l3["socket"][index],
        "neighbours": l3["neighbours"][index],
        **{
            f"{name}_{what}": values
            for name in L3_AMOUNTS
            for what, values in _amount(l3, name, index, present).items()
        },
    }


def _amount(l3: npt.NDArray[Any], name: str, index: Integers, present: Mask) -> Columns:
    capacity = l3[f"{name}_capacity"][index]
    return {
        "known": l3[f"{name}_known"][index] & present,
        "capacity": capacity,
        "free": capacity - l3[f"{name}_used"][index],
    }


@dataclass(frozen=True, slots=True)
class Footprint:
    """NUMA cells and L3 domains of each host as the server would use them.

    :param picked: NUMA cells of a guest with such cells, H x C
    :param home: it lives there, H x D
    :param claimed: it claims something there, H x D
    """

    picked: Mask
    home: Mask
    claimed: Mask


def place_of(
    request: WorkloadRequest, cells: npt.NDArray[Any], picked: Mask, domains: Columns
) -> Footprint:
    """Find out which L3 domains the server would use.

    :param cells: what is remembered of the hosts' NUMA cells, H x C
    :param picked: those that nova would probably pick, H x C
    :param domains: of :func:`domains_of`
    """
    present, groups = domains["present"], request.l3
    bits = np.left_shift(np.uint64(1), np.clip(cells["node"], 0, NODE_BITS - 1).astype(np.uint64))
    nodes = np.bitwise_or.reduce(np.where(picked, bits, np.uint64(0)), axis=1)[:, None]
    near = present & ((nodes == 0) | (domains["node_bits"] & nodes != 0))
    if not groups:
        return Footprint(picked, near, np.zeros(present.shape, bool))
    ways = max(group.ways for group in groups)
    bandwidth = max(group.bandwidth_mbps for group in groups)
    units = max(group.neighbourhood for group in groups)
    holds = (
        present
        & (domains["ways_free"] >= ways)
        & (domains["bandwidth_mbps_free"] >= bandwidth)
        & (domains["neighbourhood_free"] >= units)
    )
    # In the order of CandidateRank, as far as it is known here.
    keys = (
        -domains["ways_free"],
        _has(domains, *OTHER_TIER[request.tier]),
        ~_has_devil(domains) if packs_devils(request) else np.zeros(present.shape, bool),
        _penalties(request, domains),
        ~near,
        ~holds,
    )
    first = np.lexsort(keys, axis=-1)[:, : len(groups)]
    claimed = np.zeros(present.shape, bool)
    if present.shape[1]:
        np.put_along_axis(claimed, first, True, axis=1)
    claimed &= holds
    lived = claimed & near
    return Footprint(picked, np.where(lived.any(axis=1, keepdims=True), lived, near), claimed)


def terms(
    request: WorkloadRequest,
    guest: Sequence[GuestCell],
    cells: npt.NDArray[Any],
    domains: Columns,
    place: Footprint,
) -> dict[Term, Floats]:
    """Return what the terms are for each host, NaN where one is unknown, H each; that of GPUs is :mod:`.coarse`'s.

    Parameters as of :func:`place_of`.
    """
    groups = request.l3
    ways = max((group.ways for group in groups), default=0)
    taken = max((group.bandwidth_mbps for group in groups), default=0)
    local, cross = _spare(domains, place)
    claims = place.claimed.any(axis=1)
    return {
        Term.SLICES: _slices(request, cells, place.picked),
        Term.NEIGHBOURS: _neighbours(request, domains, place),
        Term.DEVIL_PACKING: _devil_packing(request, domains, place.claimed),
        Term.WAYS: _left(domains, "ways", place.claimed, ways),
        Term.BANDWIDTH: np.where(
            claims, _left(domains, "bandwidth_mbps", place.claimed, taken), _share(local)
        ),
        Term.CROSS_SOCKET_BANDWIDTH: _share(cross)
        if request.spreads
        else np.full(len(cells), np.nan),
        Term.FRAGMENTATION: _usable(guest, cells, place.picked),
    }


def _penalties(request: WorkloadRequest, domains: Columns) -> Integers:
    """Worst penalty of the request's class with what lives in each domain, H x D."""
    found = np.zeros(domains["present"].shape, np.int64)
    for other, trait in CLASS_TRAITS.items():
        if other is InterferenceClass.DEVIL and packs_devils(request):
            continue
        there = _has(domains, trait).astype(np.int64)
        found = np.maximum(found, there * penalty(request.interference_class, other))
    return found


def _has_devil(domains: Columns) -> Mask:
    """Domains with a devil, by Placement's count or as an agent has published it, H x D."""
    counted = domains["neighbourhood_known"] & (domains["neighbourhood_free"] < WHOLE_NEIGHBOURHOOD)
    found: Mask = counted | _has(domains, NeighbourTrait.DEVIL)
    return found


def _has(domains: Columns, *traits: NeighbourTrait) -> Mask:
    """Domains with one of these neighbours, H x D."""
    bits = sum(1 << NEIGHBOURS.index(trait) for trait in traits)
    found: Mask = (domains["neighbours"] & np.uint32(bits)) != 0
    return found


def _slices(request: WorkloadRequest, cells: npt.NDArray[Any], picked: Mask) -> Floats:
    if not cells.shape[1]:
        return np.full(len(cells), np.nan)
    present = cells["present"]
    if request.floating:
        whole = (
            present
            & (cells["cpus"] >= request.vcpus)
            & (cells["free_memory_mb"] >= request.memory_mb)
        )
        return np.where(present.any(axis=1), np.where(whole.any(axis=1), 1.0, 0.5), np.nan)
    socket = np.where(picked, cells["socket"], np.iinfo(np.int64).max)
    ordered = np.sort(socket, axis=1)
    spanned = 1 + ((np.diff(ordered, axis=1) > 0) & (ordered[:, 1:] < socket.max())).sum(axis=1)
    known = picked.any(axis=1) & ~(picked & (cells["socket"] == UNKNOWN)).any(axis=1)
    return np.where(known, 1.0 / spanned, np.nan)


def _neighbours(request: WorkloadRequest, domains: Columns, place: Footprint) -> Floats:
    home, count = place.home, place.home.sum(axis=1)
    shared = (_has(domains, *OTHER_TIER[request.tier]) & home).sum(axis=1) / np.maximum(1, count)
    worst = (_penalties(request, domains) * home).max(axis=1, initial=0)
    values = 1.0 - 0.5 * shared - 0.5 * worst / WORST_PENALTY
    if request.strict:
        values = np.where((home & place.claimed).any(axis=1), values, 0.0)
    return np.where(count > 0, values, np.nan)


def _devil_packing(request: WorkloadRequest, domains: Columns, claimed: Mask) -> Floats:
    count = claimed.sum(axis=1)
    if not packs_devils(request):
        return np.full(len(count), np.nan)
    among = (_has_devil(domains) & claimed).sum(axis=1)
    return np.where(count > 0, among / np.maximum(1, count), np.nan)


def _left(domains: Columns, name: str, claimed: Mask, taken: int) -> Floats:
    known = claimed & domains[f"{name}_known"]
    capacity = (domains[f"{name}_capacity"] * known).sum(axis=1)
    free = ((domains[f"{name}_free"] - taken) * known).sum(axis=1)
    return np.where(capacity > 0, np.clip(free / np.maximum(1, capacity), 0.0, 1.0), np.nan)


def _spare(domains: Columns, place: Footprint) -> tuple[Floats, Floats]:
    """Free bandwidth where the server would live and on the other sockets, MB/s; NaN where none is known."""
    known = domains["bandwidth_mbps_known"]
    free = np.maximum(0, domains["bandwidth_mbps_free"]) * known
    best, near = np.zeros(len(free)), np.zeros(len(free))
    for socket in np.unique(domains["socket"]).tolist():
        on = domains["present"] & (domains["socket"] == socket)
        of_socket = (free * on).sum(axis=1)
        best = np.maximum(best, of_socket)
        near += np.where((place.home & on).any(axis=1), of_socket, 0)
    settled = place.picked.any(axis=1) | place.claimed.any(axis=1)
    local = np.where(settled, (free * place.home).sum(axis=1), best)
    cross = free.sum(axis=1) - np.where(settled, near, best)
    some = known.any(axis=1)
    return np.where(some, local, np.nan), np.where(some, cross, np.nan)


def _share(values: Floats) -> Floats:
    most = np.nanmax(values, initial=0.0)
    return values / most if most > 0 else np.full(len(values), np.nan)


def _usable(guest: Sequence[GuestCell], cells: npt.NDArray[Any], picked: Mask) -> Floats:
    if not guest or not guest[0].pcpus:
        return np.full(len(cells), np.nan)
    shape = guest[0]
    cpus = cells["free_pcpus"] - shape.pcpus * picked
    memory_mb = cells["free_memory_mb"] - shape.memory_mb * picked
    fitting = np.minimum(cpus // shape.pcpus, memory_mb // max(1, shape.memory_mb))
    usable = (np.maximum(0, fitting) * cells["present"]).sum(axis=1) * shape.pcpus
    free = (cpus * cells["present"]).sum(axis=1)
    share = np.where(free > 0, np.clip(usable / np.maximum(1, free), 0.0, 1.0), 1.0)
    return np.where(picked.any(axis=1), share, np.nan)
