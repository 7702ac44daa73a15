# SPDX-License-Identifier: Apache-2.0
"""In which order should hosts be judged, and how many of them? A guess over arrays; it ranks, it refuses nothing.

Judging ten thousand hosts one by one costs more than a decision allows. So the order in which they are judged comes
from a *coarse score*: the terms of :mod:`.score` from what the view and earlier requests know of each host, with the
NUMA nodes that nova would probably pick. Hosts that cannot serve the request by that knowledge come last, in the same
order among themselves: knowledge may be stale, so the judge still has the last word about them.

Shapes: ``H`` hosts, ``C`` cells and ``D`` L3 domains of the largest host; smaller hosts have absent ones at the end of
their rows. Sets of NUMA nodes and of neighbours are bits of a number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from nova_numa_ext.policy.numa import requirements
from nova_numa_ext.policy.numa.candidates import OTHER_TIER, packs_devils
from nova_numa_ext.policy.numa.cells import GuestCell
from nova_numa_ext.policy.numa.score import SCORED, WORST_PENALTY, Floats, combine
from nova_numa_ext.policy.terms import Term
from placement_traits.fleet_arrays import L3_AMOUNTS, NEIGHBOURS, NODE_BITS, UNKNOWN, FleetArrays
from placement_traits.interference import penalty
from placement_traits.names import (
    CLASS_TRAITS,
    WHOLE_NEIGHBOURHOOD,
    InterferenceClass,
    NeighbourTrait,
    PackingTrait,
)
from placement_traits.request import WorkloadRequest

Integers: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Columns: TypeAlias = Mapping[str, npt.NDArray[Any]]

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

LEAST_PASSED: Final = 8
LEGACY: Final = "legacy"
_ANYWHERE: Final = frozenset({"preferred", "socket"})
_SHARE_OF_THE_BEST: Final = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of all hosts.

    :param request: the flavor
    :param guest: the guest's cells, empty for a floating guest
    :param fresh: the view of Placement may be trusted
    :param pack: packing strategy where a host does not publish its own
    :param devices: what is asked of pools of devices
    :param device_order: 1 where nova tries cells with few free PCI devices first, -1 with many, 0 for neither
    """

    request: WorkloadRequest
    guest: tuple[GuestCell, ...]
    fresh: bool = True
    pack: bool = False
    devices: tuple["Devices", ...] = ()
    device_order: int = 0


@dataclass(frozen=True, slots=True)
class Devices:
    """What is asked of all hosts' pools of devices at once.

    :param count: devices
    :param kinds: which kinds of pools have such devices
    :param policy: where they must be: nova's PCI NUMA affinity policy
    """

    count: int
    kinds: Mask
    policy: str = LEGACY


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
    asked: Asked, arrays: FleetArrays, rows: Integers, known: Known, weights: Floats
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
    domains = _domains(arrays, rows)
    picked, fits = _picked(asked, known, packs)
    place = _place(asked, cells, picked, domains)
    terms = _terms(asked, cells, picked, domains, place)
    return Coarse(combine(np.stack([terms[t] for t in SCORED], axis=1), weights), able & fits)


@dataclass(frozen=True, slots=True)
class Size:
    """How long the list is.

    :param hosts: hosts in it, at least
    :param per_cell: hosts that each of nova's cells has in it, at least, if it has one among the best
    """

    hosts: int
    per_cell: int = 0

    @classmethod
    def of(cls, option: int, servers: int, attempts: int) -> "Size":
        """Return the size.

        :param option: ``[numa_ext]shortlist``
        :param servers: of the request
        :param attempts: hosts that nova tries one after the other, all of one cell
        """
        return cls(max(option, 2 * servers), attempts)


def enough(servers: int) -> int:
    """Return how many hosts must pass all filters before the rest of the hosts is left out."""
    return max(LEAST_PASSED, 2 * servers)


def order(totals: Floats, possible: Mask) -> Integers:
    """Return the hosts in the order in which they are judged: H positions.

    :param totals: coarse totals of all weighers, H
    """
    found: Integers = np.lexsort((-totals, ~possible))
    return found


def chosen(
    ordered: Integers, possible: Mask, raw: Sequence[Floats], cells: Sequence[str], size: Size
) -> Integers:
    """Return the positions that are judged first: the best ones, and those that keep nova's ways of choosing.

    Nova stretches what a weigher says over the hosts at hand, so those with the least and the most of each weigher
    are in the list, too; and nova tries a server again in the cell of its first host only.

    :param ordered: what :func:`order` returns
    :param raw: what each of nova's weighers says, H each
    :param cells: nova's cell of each host, H
    """
    best = ordered[: size.hosts]
    known = np.flatnonzero(possible)
    extremes = [
        known[at]
        for values in raw
        if len(known)
        for at in (int(values[known].argmin()), int(values[known].argmax()))
    ]
    names = np.array(cells, dtype=object)
    extra = [
        at
        for cell in dict.fromkeys(names[best[: max(1, size.hosts // _SHARE_OF_THE_BEST)]].tolist())
        for at in ordered[_first(names[ordered] == cell, size.per_cell)].tolist()
    ]
    found: Integers = np.array(
        list(dict.fromkeys([*best.tolist(), *map(int, extremes), *extra])), np.int64
    )
    return found


def _first(mask: Mask, count: int) -> Integers:
    return np.flatnonzero(mask)[:count]


# What a host is -------------------------------------------------------------------------------------------------------


def _kinds(arrays: FleetArrays, rows: Integers) -> Integers:
    """Kind of each host; the last one is that of hosts without an agent."""
    none = len(arrays.trait_sets)
    if not len(arrays.hosts):
        return np.full(len(rows), none)
    return np.where(rows == UNKNOWN, none, arrays.hosts["kind"][rows])


def _able(asked: Asked, traits: frozenset[str] | None) -> bool:
    if not asked.fresh:
        return True
    lacking = requirements.lacking_traits(asked.request, traits)
    return not lacking and not requirements.is_missed(asked.request, traits)


def _packs(asked: Asked, traits: frozenset[str] | None) -> bool:
    published = traits or frozenset()
    return PackingTrait.PACK in published or (asked.pack and PackingTrait.SPREAD not in published)


def _domains(arrays: FleetArrays, rows: Integers) -> Columns:
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


# Where the guest would be ---------------------------------------------------------------------------------------------


def _picked(asked: Asked, known: Known, packs: Mask) -> tuple[Mask, Mask]:
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


def _near(devices: Devices, known: Known, guest: Sequence[GuestCell]) -> tuple[Integers, Integers]:
    """Free devices of one kind that a guest can have in each cell, H x C, and wherever it is, H."""
    cells, pools = known.cells, known.pools
    count = np.where(np.append(devices.kinds, False)[pools["kind"]], pools["count"], 0)
    if not guest or devices.policy in _ANYWHERE:
        return np.zeros(cells.shape, np.int64), count.sum(axis=1)
    there = (count[:, None, :] * (pools["node"][:, None, :] == cells["node"][:, :, None])).sum(
        axis=2
    )
    loose = (count * (pools["node"] == UNKNOWN)).sum(axis=1)
    return there, loose * (devices.policy == LEGACY)


def _enough(
    asked: Sequence[Devices],
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


@dataclass(frozen=True, slots=True)
class _Place:
    """L3 domains of each host as the server would use them.

    :param home: it lives there, H x D
    :param claimed: it claims something there, H x D
    """

    home: Mask
    claimed: Mask


def _place(asked: Asked, cells: npt.NDArray[Any], picked: Mask, domains: Columns) -> _Place:
    present, groups = domains["present"], asked.request.l3
    bits = np.left_shift(np.uint64(1), np.clip(cells["node"], 0, NODE_BITS - 1).astype(np.uint64))
    nodes = np.bitwise_or.reduce(np.where(picked, bits, np.uint64(0)), axis=1)[:, None]
    near = present & ((nodes == 0) | (domains["node_bits"] & nodes != 0))
    if not groups:
        return _Place(near, np.zeros(present.shape, bool))
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
        _has(domains, *OTHER_TIER[asked.request.tier]),
        ~_has_devil(domains) if packs_devils(asked.request) else np.zeros(present.shape, bool),
        _penalties(asked, domains),
        ~near,
        ~holds,
    )
    first = np.lexsort(keys, axis=-1)[:, : len(groups)]
    claimed = np.zeros(present.shape, bool)
    if present.shape[1]:
        np.put_along_axis(claimed, first, True, axis=1)
    claimed &= holds
    lived = claimed & near
    return _Place(np.where(lived.any(axis=1, keepdims=True), lived, near), claimed)


# Terms of the score ---------------------------------------------------------------------------------------------------


def _terms(
    asked: Asked, cells: npt.NDArray[Any], picked: Mask, domains: Columns, place: _Place
) -> dict[Term, Floats]:
    request, groups = asked.request, asked.request.l3
    ways = max((group.ways for group in groups), default=0)
    taken = max((group.bandwidth_mbps for group in groups), default=0)
    local, cross = _spare(domains, place, picked)
    claims = place.claimed.any(axis=1)
    return {
        Term.SLICES: _slices(request, cells, picked),
        Term.NEIGHBOURS: _neighbours(asked, domains, place),
        Term.DEVIL_PACKING: _devil_packing(asked, domains, place.claimed),
        Term.WAYS: _left(domains, "ways", place.claimed, ways),
        Term.BANDWIDTH: np.where(
            claims, _left(domains, "bandwidth_mbps", place.claimed, taken), _share(local)
        ),
        Term.CROSS_SOCKET_BANDWIDTH: _share(cross)
        if request.spreads
        else np.full(len(cells), np.nan),
        Term.FRAGMENTATION: _usable(asked.guest, cells, picked),
        Term.GPU: np.full(len(cells), np.nan),
    }


def _penalties(asked: Asked, domains: Columns) -> Integers:
    """Worst penalty of the request's class with what lives in each domain, H x D."""
    found = np.zeros(domains["present"].shape, np.int64)
    for other, trait in CLASS_TRAITS.items():
        if other is InterferenceClass.DEVIL and packs_devils(asked.request):
            continue
        there = _has(domains, trait).astype(np.int64)
        found = np.maximum(found, there * penalty(asked.request.interference_class, other))
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


def _neighbours(asked: Asked, domains: Columns, place: _Place) -> Floats:
    home, count = place.home, place.home.sum(axis=1)
    shared = (_has(domains, *OTHER_TIER[asked.request.tier]) & home).sum(axis=1) / np.maximum(
        1, count
    )
    worst = (_penalties(asked, domains) * home).max(axis=1, initial=0)
    values = 1.0 - 0.5 * shared - 0.5 * worst / WORST_PENALTY
    if asked.request.strict:
        values = np.where((home & place.claimed).any(axis=1), values, 0.0)
    return np.where(count > 0, values, np.nan)


def _devil_packing(asked: Asked, domains: Columns, claimed: Mask) -> Floats:
    count = claimed.sum(axis=1)
    if not packs_devils(asked.request):
        return np.full(len(count), np.nan)
    among = (_has_devil(domains) & claimed).sum(axis=1)
    return np.where(count > 0, among / np.maximum(1, count), np.nan)


def _left(domains: Columns, name: str, claimed: Mask, taken: int) -> Floats:
    known = claimed & domains[f"{name}_known"]
    capacity = (domains[f"{name}_capacity"] * known).sum(axis=1)
    free = ((domains[f"{name}_free"] - taken) * known).sum(axis=1)
    return np.where(capacity > 0, np.clip(free / np.maximum(1, capacity), 0.0, 1.0), np.nan)


def _spare(domains: Columns, place: _Place, picked: Mask) -> tuple[Floats, Floats]:
    """Free bandwidth where the server would live and on the other sockets, MB/s; NaN where none is known."""
    known = domains["bandwidth_mbps_known"]
    free = np.maximum(0, domains["bandwidth_mbps_free"]) * known
    best, near = np.zeros(len(free)), np.zeros(len(free))
    for socket in np.unique(domains["socket"]).tolist():
        on = domains["present"] & (domains["socket"] == socket)
        of_socket = (free * on).sum(axis=1)
        best = np.maximum(best, of_socket)
        near += np.where((place.home & on).any(axis=1), of_socket, 0)
    settled = picked.any(axis=1) | place.claimed.any(axis=1)
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
