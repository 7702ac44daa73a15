# SPDX-License-Identifier: Apache-2.0
"""How good are hosts probably? A guess over arrays; it ranks, it refuses nothing.

Judging ten thousand hosts one by one costs more than a decision allows. So the order in which they are judged
(:mod:`.shortlist`) comes from a *coarse score*: the terms of :mod:`.score` from what the view and earlier requests know
of each host, with the NUMA nodes that nova would probably pick.

Shapes: ``H`` hosts, ``C`` cells of the largest host; smaller hosts have absent ones at the end of their rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nova_numa_ext.policy.gpu.candidate_sets import GpuRequest, GpuRules
from nova_numa_ext.policy.gpu.coarse import NodeGpus, utility
from nova_numa_ext.policy.gpu.graph import NVLINKS
from nova_numa_ext.policy.numa import coarse_terms, requirements
from nova_numa_ext.policy.numa.cells import GuestCell
from nova_numa_ext.policy.numa.coarse_terms import Columns, Footprint, Integers, Mask
from nova_numa_ext.policy.numa.score import SCORED, Floats, combine
from nova_numa_ext.policy.terms import Term
from placement_traits.fleet_arrays import LINKS, NEIGHBOURS, NODE_BITS, UNKNOWN, FleetArrays
from placement_traits.names import GPU_COMM_TRAITS, GpuLink, PackingTrait
from placement_traits.workload_request import WorkloadRequest

CELL: Final = np.dtype(
    [
        ("node", "i8"),
        ("socket", "i8"),  # UNKNOWN where nova does not know
        ("cpus", "i8"),
        ("cpu_usage", "i8"),
        ("free_pcpus", "i8"),
        ("memory_mb", "i8"),
        ("free_memory_mb", "i8"),
        ("free_devices", "i8"),
        ("present", "?"),
    ]
)
"""What is remembered of one NUMA cell of a host."""

POOL: Final = np.dtype([("kind", "i8"), ("node", "i8"), ("count", "i8")])
"""What is remembered of one pool of PCI devices of a host: node :data:`UNKNOWN` where nova does not know it."""


LEGACY: Final = "legacy"
_ANYWHERE: Final = frozenset({"preferred", "socket"})
_DIRECT: Final = [LINKS.index(link) for link in (*NVLINKS, GpuLink.PIX)]


@dataclass(frozen=True, slots=True)
class CoarseRequest:
    """What is asked of all hosts.

    :param request: the flavor
    :param guest: the guest's cells, empty for a floating guest
    :param fresh: the view of Placement may be trusted
    :param pack: packing strategy where a host does not publish its own
    :param devices: what is asked of pools of devices
    :param device_order: 1 where nova tries cells with few free PCI devices first, -1 with many, 0 for neither
    :param gpus: what is asked of those devices that may be GPUs, and how they are judged; None: they are not
    :param net_block: how well each host's leaf suits, NaN where one hangs on none, H; None: all hang on none
    """

    request: WorkloadRequest
    guest: tuple[GuestCell, ...]
    fresh: bool = True
    pack: bool = False
    devices: tuple["PoolRequest", ...] = ()
    device_order: int = 0
    gpus: tuple[GpuRequest, GpuRules] | None = None
    net_block: Floats | None = None


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """What is asked of all hosts' pools of devices at once.

    :param count: devices
    :param kinds: which kinds of pools have such devices
    :param policy: where they must be: nova's PCI NUMA affinity policy
    :param by_alias: the flavor asks for them, so they may be GPUs; what a port asks for is none
    """

    count: int
    kinds: Mask
    policy: str = LEGACY
    by_alias: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What is remembered of hosts.

    :param cells: :data:`CELL` records, H x C
    :param pools: :data:`POOL` records, H x pools of the host with most
    """

    cells: npt.NDArray[Any]
    pools: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Coarse:
    """What is guessed of all hosts.

    :param scores: coarse score in [0, 1], H
    :param possible: by what is known, the host can serve the request, H
    """

    scores: Floats
    possible: Mask


def coarse(
    asked: CoarseRequest, arrays: FleetArrays, rows: Integers, known: Known, weights: Floats
) -> Coarse:
    """Guess how good hosts are.

    :param arrays: the fleet
    :param rows: each host's place in it, :data:`UNKNOWN` for one without an agent, H
    :param known: what is remembered of the hosts
    :param weights: weight of each term for each host, H x terms
    """
    cells = known.cells
    kinds = _kinds(arrays, rows)
    able = np.array([_able(asked, traits) for traits in (*arrays.trait_sets, None)], bool)[kinds]
    packs = np.array([_packs(asked, t) for t in (*arrays.trait_sets, None)], bool)[kinds]
    domains = coarse_terms.domains_of(arrays, rows)
    picked, fits = _picked(asked, known, packs)
    place = coarse_terms.place_of(asked.request, cells, picked, domains)
    terms = coarse_terms.terms(asked.request, asked.guest, cells, domains, place)
    terms[Term.GPU] = _gpu_utility(asked, arrays, rows, known, place)
    unknown = np.full(len(rows), np.nan)
    terms[Term.NET_BLOCK] = unknown if asked.net_block is None else asked.net_block
    return Coarse(combine(np.stack([terms[t] for t in SCORED], axis=1), weights), able & fits)


# What a host is -------------------------------------------------------------------------------------------------------


def _kinds(arrays: FleetArrays, rows: Integers) -> Integers:
    """Kind of each host; the last one is that of hosts without an agent."""
    none = len(arrays.trait_sets)
    if not len(arrays.hosts):
        return np.full(len(rows), none)
    return np.where(rows == UNKNOWN, none, arrays.hosts["kind"][rows])


def _able(asked: CoarseRequest, traits: frozenset[str] | None) -> bool:
    if not asked.fresh:
        return True
    lacking = requirements.lacking_traits(asked.request, traits)
    return not lacking and not requirements.is_missed(asked.request, traits)


def _packs(asked: CoarseRequest, traits: frozenset[str] | None) -> bool:
    published = traits or frozenset()
    return PackingTrait.PACK in published or (asked.pack and PackingTrait.SPREAD not in published)


# Where the guest would be ---------------------------------------------------------------------------------------------


def _picked(asked: CoarseRequest, known: Known, packs: Mask) -> tuple[Mask, Mask]:
    """Cells that nova would probably pick, H x C, and hosts in which the guest fits, H."""
    guest, cells = asked.guest, known.cells
    present = cells["present"]
    picked = np.zeros(cells.shape, bool)
    near = [_near(devices, known, guest) for devices in asked.devices]
    if not guest:
        return picked, _enough(asked.devices, near, present, cells.shape[1])
    if not cells.shape[1]:
        return picked, np.ones(len(cells), bool)
    need = max(guest, key=lambda cell: (cell.pcpus, cell.cpus, cell.memory_mb))
    room = present & (cells["free_memory_mb" if need.pinned else "memory_mb"] >= need.memory_mb)
    if need.pinned:
        room &= cells["free_pcpus"] >= need.pcpus
    if need.floats:
        room &= cells["cpus"] >= need.cpus
    if len(guest) == 1:
        for devices, (there, loose) in zip(asked.devices, near, strict=True):
            room &= there + loose[:, None] >= devices.count
    sign = np.where(packs, 1, -1)[:, None]
    keys = (
        sign * cells["free_memory_mb"],
        sign * cells["free_pcpus"] if guest[0].pinned else -sign * cells["cpu_usage"],
        asked.device_order * cells["free_devices"],
        ~room,
    )
    first = np.lexsort(keys, axis=-1)[:, : len(guest)]
    fits = room.sum(axis=1) >= len(guest)
    fits &= _enough(asked.devices, near, room, len(guest))
    np.put_along_axis(picked, first, fits[:, None], axis=1)
    return picked, fits | ~present.any(axis=1)


def _near(
    devices: PoolRequest, known: Known, guest: Sequence[GuestCell]
) -> tuple[Integers, Integers]:
    """Free devices of one kind that a guest can have in each cell, H x C, and wherever it is, H."""
    cells, pools = known.cells, known.pools
    count = _free(devices, pools)
    if not guest or devices.policy in _ANYWHERE:
        return np.zeros(cells.shape, np.int64), count.sum(axis=1)
    there = sums_by_cell(count, pools, cells)
    loose = (count * (pools["node"] == UNKNOWN)).sum(axis=1)
    return there, loose * (devices.policy == LEGACY)


def _free(devices: PoolRequest, pools: npt.NDArray[Any]) -> Integers:
    """Free devices of each pool that are asked for, H x pools."""
    return np.where(np.append(devices.kinds, False)[pools["kind"]], pools["count"], 0)


def sums_by_cell(count: Integers, pools: npt.NDArray[Any], cells: npt.NDArray[Any]) -> Integers:
    """Return what pools of devices have near each cell, H x C.

    :param count: of each pool, H x pools
    """
    near = pools["node"][:, None, :] == cells["node"][:, :, None]
    found: Integers = (count[:, None, :] * near).sum(axis=2)
    return found


def _enough(
    asked: Sequence[PoolRequest],
    near: Sequence[tuple[Integers, Integers]],
    room: Mask,
    most: int,
) -> Mask:
    """Hosts whose devices suffice, H, for a guest in as many cells with room."""
    found = np.ones(len(room), bool)
    for devices, (there, loose) in zip(asked, near, strict=True):
        best = np.sort(there * room, axis=1)[:, room.shape[1] - most :]
        found &= best.sum(axis=1) + loose >= devices.count
    return found


# GPUs -----------------------------------------------------------------------------------------------------------------


def _gpu_utility(
    asked: CoarseRequest, arrays: FleetArrays, rows: Integers, known: Known, place: Footprint
) -> Floats:
    """Utility of the GPUs that the server would probably get, H; NaN where it asks for none, or none are known."""
    found = np.full(len(rows), np.nan)
    devices = [each for each in asked.devices if each.by_alias]
    if asked.gpus is None or not devices or not len(arrays.gpus):
        return found
    at = np.flatnonzero((rows != UNKNOWN) & (arrays.hosts["gpus_count"][rows] > 0))
    if not len(at):
        return found
    cells, pools = known.cells[at], known.pools[at]
    total, direct, switched = gpus_by_cell(arrays, rows[at], cells)
    free, usable = np.zeros_like(total), np.zeros_like(total)
    for each in devices:
        there = sums_by_cell(_free(each, pools), pools, cells)
        near_it = asked.guest and each.policy not in _ANYWHERE
        free += there
        usable += there * place.picked[at] if near_it else there
    gpus = NodeGpus(
        cells["socket"],
        total,
        np.minimum(free, total),
        np.minimum(usable, total),
        weights_by_cell(coarse_terms.domains_of(arrays, rows[at]), cells),
        direct,
        switched,
    )
    gpu_request, rules = asked.gpus
    found[at] = utility(gpu_request, rules, sum(each.count for each in devices), gpus)
    return found


def gpus_by_cell(
    arrays: FleetArrays, rows: Integers, cells: npt.NDArray[Any]
) -> tuple[Integers, Floats, Mask]:
    """Return GPUs of each cell, H x C, shares of pairs with a direct link, 3 x H, and whether there are switches, H.

    Shares are those of the pairs of one cell, of two cells of one socket, and of two sockets.
    """
    hosts = len(rows)
    host_of = np.full(len(arrays.hosts), UNKNOWN)
    host_of[rows] = np.arange(hosts)
    host = host_of[arrays.gpus["host"]]
    near = (cells["node"][host] == arrays.gpus["node"][:, None]) & cells["present"][host]
    near &= (host != UNKNOWN)[:, None]
    cell = np.where(near.any(axis=1), near.argmax(axis=1), UNKNOWN)
    placed = np.flatnonzero(cell != UNKNOWN)
    count = np.bincount(host[placed] * cells.shape[1] + cell[placed], minlength=cells.size)
    total = count.reshape(cells.shape)
    switched = np.zeros(hosts, bool)
    switched[host[placed[arrays.gpus["switch"][placed] != UNKNOWN]]] = True
    return total, _linked(arrays, host, cell, cells, total), switched


def _linked(
    arrays: FleetArrays,
    host: Integers,
    cell: Integers,
    cells: npt.NDArray[Any],
    total: Integers,
) -> Floats:
    """Shares of pairs with a direct link, as :func:`gpus_by_cell` returns them.

    :param host: of each GPU of the fleet
    :param cell: of each GPU of the fleet
    """
    links = arrays.links[np.isin(arrays.links["link"], _DIRECT)]
    # The other end is known by its address on the same host.
    texts = max(1, len(arrays.text_ends))
    names = arrays.gpus["host"] * texts + arrays.gpus["address"]
    address = arrays.gpus["host"][links["gpu"]] * texts + links["address"]
    ordered = np.argsort(names)
    found = ordered[np.minimum(np.searchsorted(names[ordered], address), len(names) - 1)]
    there = (names[found] == address) & (cell[links["gpu"]] != UNKNOWN) & (cell[found] != UNKNOWN)
    one, other = links["gpu"][there], found[there]
    at, first, second = host[one], cell[one], cell[other]
    socket = cells["socket"]
    near, in_socket = first == second, socket[at, first] == socket[at, second]
    levels = (near, in_socket & ~near, ~in_socket)
    shares = [
        np.bincount(at[level], minlength=len(cells)) / np.maximum(1, pairs)
        for level, pairs in zip(levels, _pairs(socket, total), strict=True)
    ]
    return np.minimum(1.0, np.stack(shares))


def _pairs(socket: Integers, total: Integers) -> tuple[Integers, Integers, Integers]:
    """Ordered pairs of GPUs of one cell, of two cells of one socket, and of two sockets, H each."""
    same = socket[:, :, None] == socket[:, None, :]
    every = total[:, :, None] * total[:, None, :]
    in_socket = (every * same).sum(axis=(1, 2))
    near = (total * total).sum(axis=1)
    return near - total.sum(axis=1), in_socket - near, every.sum(axis=(1, 2)) - in_socket


def weights_by_cell(domains: Columns, cells: npt.NDArray[Any]) -> Integers:
    """Return bit *w* for each communication weight *w* that is published near a cell, H x C."""
    bit = np.left_shift(np.uint64(1), np.clip(cells["node"], 0, NODE_BITS - 1).astype(np.uint64))
    near = (domains["node_bits"][:, None, :] & bit[:, :, None] != 0) & domains["present"][:, None]
    found = np.zeros(cells.shape, np.int64)
    for weight, trait in GPU_COMM_TRAITS.items():
        has = domains["neighbours"] >> np.uint32(NEIGHBOURS.index(trait)) & np.uint32(1) != 0
        found |= (near & has[:, None]).any(axis=2).astype(np.int64) << weight
    return found
