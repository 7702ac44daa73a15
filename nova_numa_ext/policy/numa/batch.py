# SPDX-License-Identifier: Apache-2.0
"""The decisions of :mod:`.requirements`, :mod:`.cells` and :mod:`.candidates` about all hosts at once.

Those modules define the decision, one host at a time; here the same is computed over :mod:`.arrays`. A property
test holds the two against each other. Only requests whose guest cells are all alike are decided this way
(:func:`decidable`): then a guest cell fits a host cell or not whatever the other guest cells do, and the first
permutation of host cells in which all fit is simply the first so many cells that fit, in nova's order.

Shapes as in :mod:`.arrays`; besides, ``N`` candidates of all hosts, each with at most ``G`` L3 domains.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from nova_numa_ext.policy.numa import requirements
from nova_numa_ext.policy.numa.arrays import (
    NEIGHBOURS,
    Bits,
    HostArrays,
    Integers,
    Mask,
    Records,
    count_bits,
    union,
)
from nova_numa_ext.policy.numa.batch_devices import CandidateDevices
from nova_numa_ext.policy.numa.candidates import OTHER_TIER, worst_penalty
from nova_numa_ext.policy.numa.cells import (
    KIB_PER_MIB,
    PAGES_ANY,
    PAGES_LARGE,
    PAGES_SMALL,
    GuestCell,
    ThreadPolicy,
)
from nova_numa_ext.policy.terms import Term
from placement_traits.fleet import HostView
from placement_traits.names import InterferenceClass, NeighbourTrait, PackingTrait, RemoteMemory
from placement_traits.reason import Reason
from placement_traits.request import WorkloadRequest

_CLASSES: Final = (None, *requirements.CLASS_OF_TRAIT.values())
_SETS: Final = tuple(
    frozenset(trait for bit, trait in enumerate(NEIGHBOURS) if number >> bit & 1)
    for number in range(1 << len(NEIGHBOURS))
)
_NO_ID: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about all hosts.

    :param request: the flavor
    :param guest: the guest's cells
    :param isolated_emulator: emulator threads get a dedicated CPU of their own
    :param fresh: the view of Placement may be trusted
    :param pack: packing strategy where a host does not publish its own
    :param device_order: 1 where nova tries cells with few free PCI devices first, -1 with many, 0 for neither
    """

    request: WorkloadRequest
    guest: tuple[GuestCell, ...]
    isolated_emulator: bool = False
    fresh: bool = True
    pack: bool = False
    device_order: int = 0


@dataclass(frozen=True, slots=True)
class Offered:
    """Allocation candidates of all hosts, in the order of hosts and of nova's list.

    :param host: N, row of the host
    :param index: N, position in the host's list
    :param fallback: N, it allocates VCPU for a guest that asks for dedicated CPUs
    :param domain: N x G, columns of the L3 domains it uses, ordered by provider; -1 for none
    :param ways: N x G, ways it takes there
    :param bandwidth: N x G, bandwidth it takes there, MB/s
    :param taken: N x G, an earlier server of the request has taken something there
    :param devices: what they hold of devices; None when the server asks for none
    """

    host: Integers
    index: Integers
    fallback: Mask
    domain: Integers
    ways: Integers
    bandwidth: Integers
    taken: Mask
    devices: CandidateDevices | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What was decided about all hosts.

    :param reasons: why hosts are refused, by row
    :param order: positions in :class:`Offered`, best first within each host, removed candidates last
    :param first: H, where a host's candidates begin in ``order``
    :param kept: H, how many of them are possible
    :param chosen: H x C, the cells that nova-compute will pick with the best candidate
    :param tied: rows of hosts in which two candidates differ in nothing that was compared here
    """

    reasons: Mapping[int, tuple[Reason, ...]]
    order: Integers
    first: Integers
    kept: Integers
    chosen: Mask
    tied: Integers


def decidable(guest: Sequence[GuestCell], isolated_emulator: bool, *, devices: bool) -> bool:
    """Return whether guests of this shape can be decided here.

    :param devices: the server asks for devices; which cells they allow together is not known cell by cell
    """
    if len(guest) <= 1:
        return True
    if devices:
        return False
    alike = all(cell == guest[0] for cell in guest)
    stateless = (guest[0].page_size_kb or 0) >= 0
    return alike and stateless and not isolated_emulator


def decide(question: Question, hosts: HostArrays, offered: Offered) -> Batch:
    """Judge all hosts and order their candidates."""
    height = len(hosts.kind)
    picked = picked_cells(question, hosts, offered)
    nodes = _nodes(picked, hosts, offered)
    neighbours = _lookup(_conflicts(question.request.interference_class), offered, hosts)
    against = _first_nonzero(neighbours)
    order, same = _ordered(question.request, hosts, offered, nodes, against)
    kept = np.bincount(offered.host[against == 0], minlength=height)
    first = np.searchsorted(offered.host, np.arange(height))
    reasons = _host_reasons(question, hosts)
    removed = np.bincount(offered.host, minlength=height) - kept
    for row in np.flatnonzero((removed > 0) & (kept == 0)).tolist():
        codes = against[first[row] : first[row] + removed[row]].tolist()
        reasons.setdefault(row, _conflict_reasons(question.request, codes))
    if question.guest:
        placed = np.bincount(offered.host[(against == 0) & (nodes != 0)], minlength=height)
        unplaced = (placed == 0) & (kept > 0) & hosts.cells["present"].any(axis=1)
        lacking = (Reason(Term.NUMA_CELLS, 0, len(question.guest)),)
        for row in np.flatnonzero(unplaced).tolist():
            reasons.setdefault(row, lacking)
    having = np.flatnonzero(kept > 0)
    best = order[first[having]]
    if offered.devices is not None:
        for row, number in zip(having.tolist(), offered.devices.number[best].tolist(), strict=True):
            poor = offered.devices.judged.refusal(number, fresh=question.fresh)
            if poor:
                reasons.setdefault(row, poor)
    chosen = np.zeros(hosts.cells.shape, bool)
    chosen[having] = picked[having if offered.devices is None else best]
    return Batch(reasons, order, first, kept, chosen, np.unique(offered.host[same]))


def _nodes(picked: Mask, hosts: HostArrays, offered: Offered) -> Bits:
    """NUMA nodes (bits) that nova-compute will pick with each candidate, N."""
    if offered.devices is None:
        return union(np.where(picked, hosts.cells["node"], np.uint64(0)))[offered.host]
    return union(np.where(picked, hosts.cells["node"][offered.host], np.uint64(0)))


# Requirements of hosts ------------------------------------------------------------------------------------------------


def _host_reasons(question: Question, hosts: HostArrays) -> dict[int, tuple[Reason, ...]]:
    """Why hosts are refused whatever their candidates: capabilities, local memory, neighbours."""
    request = question.request
    capabilities = [requirements.capabilities(request, kind) for kind in hosts.kinds]
    remote = _must_be_remote(request, hosts)
    incapable = np.array([bool(reasons) for reasons in capabilities], bool)[hosts.kind]
    neighbours = _worst_everywhere(request.interference_class, hosts.domains)
    if not question.fresh:
        incapable[:], neighbours[:] = False, 0
    local = (Reason(Term.LOCAL_MEMORY, request.vcpus, f"{request.memory_mb} MiB"),)
    reasons = {}
    for row in np.flatnonzero(incapable | remote | (neighbours > 0)).tolist():
        neighbour = _CLASSES[neighbours[row]]
        reasons[row] = (
            *(capabilities[hosts.kind[row]] if incapable[row] else ()),
            *(local if remote[row] else ()),
            *(
                (Reason(Term.NEIGHBOURS, neighbour, request.interference_class),)
                if neighbour
                else ()
            ),
        )
    return reasons


def _must_be_remote(request: WorkloadRequest, hosts: HostArrays) -> Mask:
    """:func:`.requirements.local_memory`."""
    cells = hosts.cells
    if request.remote_memory is not RemoteMemory.SENSITIVE or not request.floating:
        return np.zeros(len(cells), bool)
    holds = (
        cells["present"]
        & (cells["cpus"] >= request.vcpus)
        & (cells["free_memory_mb"] >= request.memory_mb)
    )
    held, known = np.any(holds, axis=1), np.any(cells["present"], axis=1)
    remote: Mask = known & ~held
    return remote


def _worst_everywhere(mine: InterferenceClass, domains: Records) -> Integers:
    """:func:`.requirements.neighbours`: the first domain's class where no domain is free of conflicts, otherwise 0."""
    neighbours = np.where(domains["present"], _conflicts(mine)[domains["neighbours"]], 0)
    free = domains["present"] & (neighbours == 0)
    return np.where(free.any(axis=1), 0, _first_nonzero(neighbours))


def _conflict_reasons(request: WorkloadRequest, codes: Sequence[int]) -> tuple[Reason, ...]:
    mine = request.interference_class
    found = [_CLASSES[code] for code in dict.fromkeys(codes)]
    return tuple(
        Reason(Term.DOMAIN_NEIGHBOURS, neighbour, mine) for neighbour in found if neighbour
    )


@functools.cache
def _conflicts(mine: InterferenceClass) -> Integers:
    """By set of neighbours, the number of the class that ``mine`` must not share a cache with; 0 for none."""
    return np.array([_CLASSES.index(requirements.conflict(mine, each)) for each in _SETS])


@functools.cache
def penalties(mine: InterferenceClass) -> Integers:
    """By set of neighbours, the worst penalty of ``mine`` with one of them."""
    return np.array([worst_penalty(mine, each) for each in _SETS])


@functools.cache
def other_tier(others: frozenset[NeighbourTrait]) -> Mask:
    """By set of neighbours, whether one of ``others`` is among them."""
    return np.array([not others.isdisjoint(each) for each in _SETS])


def _first_nonzero(values: Integers) -> Integers:
    """First number of each row that is not 0."""
    if not values.shape[1]:
        return np.zeros(len(values), np.int64)
    where = (values != 0).argmax(axis=1)
    found: Integers = values[np.arange(len(values)), where]
    return found


# Nova's choice of cells -----------------------------------------------------------------------------------------------


def picked_cells(question: Question, hosts: HostArrays, offered: Offered) -> Mask:
    """:func:`.cells.predict`; no cell where the guest fits nowhere.

    :returns: H x C; with devices N x C, because each candidate has its own
    """
    cells, requested, devices = hosts.cells, len(question.guest), offered.devices
    if not requested:
        height = len(cells) if devices is None else len(offered.host)
        return np.zeros((height, cells.shape[1]), bool)
    order = _novas_order(question, hosts)
    fits = cells["present"] & _fits(
        cells, question.guest[0], hosts, int(question.isolated_emulator)
    )
    if devices is not None:
        near = (cells["node"][offered.host] & devices.near[:, None]) != 0
        order, fits = order[offered.host], fits[offered.host] & near
    sorted_fits = np.take_along_axis(fits, order, axis=1)
    rank = np.cumsum(sorted_fits, axis=1)
    picked = sorted_fits & (rank <= requested) & (rank.max(axis=1, initial=0) >= requested)[:, None]
    chosen = np.zeros(fits.shape, bool)
    np.put_along_axis(chosen, order, picked, axis=1)
    return chosen


def _novas_order(question: Question, hosts: HostArrays) -> Integers:
    """Columns of the cells in the order in which nova tries them, absent cells last."""
    cells, first = hosts.cells, question.guest[0]
    packs = np.array([_packs(kind, question.pack) for kind in hosts.kinds], bool)[hosts.kind]
    most_used_first = np.where(packs, 1, -1)[:, None]
    cpus = cells["free_pcpus"] if first.pinned else -cells["cpu_usage"]
    chooses = cells["present"].sum(axis=1, keepdims=True) > len(question.guest)
    keys = (
        chooses * most_used_first * cells["free_memory_mb"],
        chooses * most_used_first * cpus,
        chooses * question.device_order * cells["pci_free"],
        ~cells["present"],
    )
    return np.lexsort(keys, axis=-1)


def _packs(kind: HostView | None, default: bool) -> bool:
    traits = kind.traits if kind is not None else frozenset()
    if PackingTrait.PACK in traits:
        return True
    return False if PackingTrait.SPREAD in traits else default


def _fits(cells: Records, guest: GuestCell, hosts: HostArrays, reserved: int) -> Mask:
    fits = _memory_fits(cells, guest)
    if guest.floats:
        fits &= guest.cpus <= cells["cpus"]
        fits &= cells["cpu_usage"] + guest.cpus <= cells["cpus"] * hosts.cpu_ratio[:, None]
        fits &= (
            cells["memory_usage_mb"] + guest.memory_mb
            <= cells["memory_mb"] * hosts.ram_ratio[:, None]
        )
    if guest.pinned:
        requested = guest.pcpus + reserved
        fits &= (requested <= cells["pcpus"]) & (requested <= cells["free_pcpus"])
        fits &= _threads_fit(cells, guest, reserved)
    return fits


def _memory_fits(cells: Records, guest: GuestCell) -> Mask:
    requested_kb = guest.memory_mb * KIB_PER_MIB
    pools = np.arange(cells["page_kb"].shape[-1])
    last = cells["pools"][..., None] - 1
    size_kb = cells["page_kb"]
    whole: Mask = (size_kb > 0) & (requested_kb % np.maximum(size_kb, 1) == 0)
    fits: Mask
    if guest.page_size_kb:
        allowed: Mask = {
            PAGES_ANY: pools <= last,
            PAGES_SMALL: pools == last,
            PAGES_LARGE: pools < last,
        }.get(guest.page_size_kb, size_kb == guest.page_size_kb)
        fits = np.any(allowed & whole & (requested_kb <= cells["page_free_kb"]), axis=-1)
        return fits
    available_kb = cells["page_free_kb"] if guest.pinned else cells["page_total_kb"]
    fits = np.any((pools == last) & whole & (requested_kb <= available_kb), axis=-1)
    memory_mb = cells["free_memory_mb"] if guest.pinned else cells["memory_mb"]
    return np.where(cells["pools"] > 0, fits, guest.memory_mb <= memory_mb)


def _threads_fit(cells: Records, guest: GuestCell, reserved: int) -> Mask:
    requested, threads = guest.pcpus, cells["threads_per_core"]
    fits: Mask
    if reserved and not requested:
        fits = np.zeros(cells.shape, bool)
    elif guest.thread_policy is ThreadPolicy.ISOLATE:
        fits = (threads == 1) | cells["legacy_pinning"]
        fits &= (requested > 0) & (requested <= cells["whole_cores"])
        if reserved:
            fits &= cells["usable_cores"] - requested >= reserved
    elif guest.thread_policy is ThreadPolicy.REQUIRE:
        most = cells["most_sibling_cpus"]
        fits = (threads > 1) & (most > 0) & (most >= requested)
    else:
        fits = requested + reserved <= cells["free_threads"]
    return fits


# Order of candidates --------------------------------------------------------------------------------------------------


def _ordered(
    request: WorkloadRequest,
    hosts: HostArrays,
    offered: Offered,
    nodes: Bits,
    against: Integers,
) -> tuple[Integers, Mask]:
    """Return the order of :class:`.candidates.CandidateRank`, and which candidates may equal one of the same host."""
    used = offered.domain >= 0
    domains = _used_domains(offered, hosts)
    short = (offered.taken & used & ~_holds(domains, offered)).sum(axis=1)
    ids = np.sort(np.where(used, domains["l3_id"], _NO_ID), axis=1)
    shared = other_tier(OTHER_TIER[request.tier])[domains["neighbours"]] & used
    penalty = penalties(request.interference_class)[domains["neighbours"]] * used
    away = _off_node(domains["nodes"], used, nodes)
    gpus = None if offered.devices is None else offered.devices.columns()
    if gpus is not None:
        away += np.where(nodes != 0, count_bits(gpus.nodes & ~nodes), 0)
    # Small numbers of a fixed range first, joined to one; Rank's order.
    small = offered.host
    for value in (
        against != 0,
        offered.fallback,
        short if offered.devices is None else short + offered.devices.taken,
        *([gpus.below] if gpus is not None else ()),
        away,
        penalty.max(axis=1, initial=0),
        shared.sum(axis=1),
    ):
        small = small * (int(value.max(initial=0)) + 1) + value
    keys = [
        small,
        *(gpus.preference.T if gpus is not None else ()),
        -(domains["ways_free"] * used).sum(axis=1),
        -(domains["bandwidth_free"] * used).sum(axis=1),
        *np.where(ids == _NO_ID, -1, ids).T,
        *([gpus.addresses] if gpus is not None else ()),
    ]
    order = np.lexsort(keys[::-1])
    same = np.zeros(len(order), bool)
    if len(order) > 1:
        same[1:] = np.all([key[order[1:]] == key[order[:-1]] for key in keys], axis=0)
    tied = np.zeros(len(order), bool)
    tied[order] = same & (against[order] == 0)
    return order, tied


def _used_domains(offered: Offered, hosts: HostArrays) -> Records:
    """``DOMAIN`` records of the candidates, N x G; of no meaning where a candidate uses fewer."""
    return (
        hosts.domains[offered.host[:, None], np.maximum(offered.domain, 0)]
        if hosts.domains.shape[1]
        else np.zeros(offered.domain.shape, hosts.domains.dtype)
    )


def _lookup(table: Integers, offered: Offered, hosts: HostArrays) -> Integers:
    """Values of ``table`` by the neighbours in the domains of the candidates, N x G; 0 where there is no domain."""
    found = table[_used_domains(offered, hosts)["neighbours"]]
    return np.where(offered.domain >= 0, found, 0)


def _holds(domains: Records, offered: Offered) -> Mask:
    """:func:`.requirements.holds`."""
    return (domains["ways_free"] >= offered.ways) & (domains["bandwidth_free"] >= offered.bandwidth)


def _off_node(domains: Bits, used: Mask, nodes: Bits) -> Integers:
    """Domains away from the nodes, plus nodes without a domain; 0 where nodes or domains are not known."""
    away = (used & (domains & nodes[:, None] == 0)).sum(axis=1)
    bare = count_bits(nodes & ~union(domains * used))
    return np.where((nodes != 0) & used.any(axis=1), away + bare, 0)
