# SPDX-License-Identifier: Apache-2.0
"""How many servers of a part find a place on each host, and where they are best: one answer for each aspect of a host.

An aspect is a plug-in of :class:`.host_planner.HostPlanner`. The planner takes the smallest of the counts that they
return, and prefers hosts by the first aspect that tells them apart.

Shapes: ``H`` hosts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from nova_numa_ext.policy.gpu.candidate_sets import (
    DEFAULT_RULES,
    GpuRequest,
    GpuRules,
    best_of_host,
)
from nova_numa_ext.policy.gpu.coarse import NodeGpus
from nova_numa_ext.policy.gpu.coarse import utility as utility_of_nodes
from nova_numa_ext.policy.jobs import postponing
from nova_numa_ext.policy.jobs.host_view import L3_CLASSES, HostClaims, HostsView, Integers, Mask
from nova_numa_ext.policy.jobs.job import Part
from nova_numa_ext.policy.jobs.limits import SECTION
from nova_numa_ext.policy.network.groups import DEFAULT_PLAN, PlanOptions
from nova_numa_ext.policy.network.singles import Singles
from nova_numa_ext.policy.numa import coarse, coarse_terms, requirements
from nova_numa_ext.policy.numa.coarse import CELL, POOL
from nova_numa_ext.policy.numa.score import Floats
from placement_traits import names
from placement_traits.fleet_arrays import UNKNOWN, Records
from placement_traits.options import Section, option
from placement_traits.workload_request import WorkloadRequest

_Devices: TypeAlias = tuple[tuple[frozenset[str], tuple[int, ...]], ...]

MANY: Final = 1 << 40  # servers, where nothing limits them
_JUDGED: Final = 8  # hosts whose GPUs are judged one by one, the best by the guess


@dataclass(frozen=True, slots=True)
class PlannerSettings(Section):
    """What the operator decides about planning.

    :param rules: how GPUs are judged: made of options and files
    :param leafs: how leafs are chosen for groups
    :param singles: what becomes of servers of no group on leafs that a group has alone
    """

    section: ClassVar = SECTION
    title: ClassVar = "How jobs are planned"

    rules: GpuRules = DEFAULT_RULES
    leafs: PlanOptions = DEFAULT_PLAN
    singles: Singles = Singles.AVOID
    most_postponements: int = option(
        postponing.MOST_POSTPONEMENTS,
        "Postponements after which a job of ``numa_ext:gpu_policy=topo_p`` takes any place.",
        minimum=0,
        change="jobs rather start than wait (lower), or rather wait (raise)",
        leave="you have not measured what a worse place costs your jobs",
    )


@dataclass(frozen=True, slots=True)
class Offer:
    """What one aspect says of all hosts.

    :param counts: servers of the part that find a place, H
    :param utility: how good a host is, in [0, 1], H; None where the aspect does not tell hosts apart
    """

    counts: Integers
    utility: Floats | None = None


class Aspect(Protocol):
    """One thing that hosts have and servers need."""

    def offer(
        self, part: Part, view: HostsView, claims: HostClaims, settings: PlannerSettings
    ) -> Offer:
        """Return how many servers of a part find a place on each host, and how good it is."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """What Placement counts, and which hosts are able to do what a server needs."""

    def offer(
        self, part: Part, view: HostsView, claims: HostClaims, settings: PlannerSettings
    ) -> Offer:
        """Return how many servers' amounts are free."""
        counts = np.zeros(len(view.roots), np.int64)
        # Most hosts of a cloud are full: those that one amount leaves are the only ones that the next is looked for on.
        rows: Integers | slice = slice(None)
        here = np.full(len(view.roots), MANY)
        for need in view.needs(part):
            if not need.columns:
                return Offer(counts)
            left = sum(view.free[at][rows] - claims.taken[at][rows] for at in need.columns)
            fits = np.flatnonzero(left >= need.amount)
            rows = fits if isinstance(rows, slice) else rows[fits]
            here = np.minimum(here[fits], left[fits] // need.amount)
        key = ("whole", part.request.l3, part.request.devices)
        whole = view.remembered(key, lambda: _whole(part.request, view))
        if whole is not None:
            pieces, columns = whole
            untouched = (claims.taken[list(columns)][:, rows] == 0).all(axis=0)
            here = np.where(untouched, np.minimum(here, pieces[rows]), here)
        counts[rows] = here
        return Offer(counts * self._able(part.request, view))

    def _able(self, request: WorkloadRequest, view: HostsView) -> Mask:
        """Return which hosts may take servers of a request, H."""
        if view.vacated:
            return np.ones(len(view.roots), bool)

        def make() -> Mask:
            kinds = (*view.arrays.trait_sets, None)
            able = np.array(
                [not requirements.lacking_traits(request, traits) for traits in kinds], bool
            )
            return able[_kinds(view)] & ~view.closed

        # A flavor's tier and whether it asks for ways is all that traits of a host are held against.
        return view.remembered(("able", request.tier, request.ways > 0), make)


def missed(request: WorkloadRequest, view: HostsView) -> Mask:
    """Return on which hosts a server would count on an agent that is silent: they rank behind all others, H."""

    def make() -> Mask:
        kinds = (*view.arrays.trait_sets, None)
        silent = np.array([requirements.is_missed(request, traits) for traits in kinds], bool)
        found: Mask = silent[_kinds(view)]
        return found

    return view.remembered(("missed", request.tier), make)


def _kinds(view: HostsView) -> Integers:
    none = len(view.arrays.trait_sets)
    if not len(view.arrays.hosts):
        return np.full(len(view.rows), none)
    return np.where(view.rows == UNKNOWN, none, view.arrays.hosts["kind"][view.rows])


def _whole(request: WorkloadRequest, view: HostsView) -> tuple[Integers, tuple[int, ...]] | None:
    """Servers whose amounts find whole L3 domains and devices, H, and the resource classes that this is about."""
    counts = np.full(len(view.roots), MANY)
    classes: set[str] = set()

    def limit(hosts: Integers, held: Integers, together: int) -> None:
        at = view.row_of_arrays[hosts]
        sums = np.bincount(at[at >= 0], held[at >= 0], len(counts)).astype(np.int64)
        np.minimum(counts, sums // together, out=counts)

    if request.l3:
        l3 = view.arrays.l3
        held = np.full((len(request.l3), len(l3)), MANY)
        for group, of_group in zip(request.l3, held, strict=True):
            for name, resource in L3_CLASSES.items():
                amount = getattr(group, name)
                if amount:
                    classes.add(resource)
                    free = (l3[f"{name}_capacity"] - l3[f"{name}_used"]) * l3[f"{name}_known"]
                    np.minimum(of_group, np.maximum(0, free) // amount, out=of_group)
        # Groups of one server take different domains, so the one that fits most often bounds them all.
        limit(l3["host"], held.max(axis=0), len(request.l3))
    devices = view.arrays.devices
    numbers = view.remembered("texts", lambda: _numbers(view))
    for of_class, parts in view.devices(request):
        kinds = [numbers[name] for name in of_class if name in numbers]
        free = (devices["capacity"] - devices["used"]) * np.isin(devices["resource_class"], kinds)
        classes |= of_class
        limit(devices["host"], np.maximum(0, free) // max(parts), len(parts))
    columns = tuple(sorted(view.classes[name] for name in classes if name in view.classes))
    return (counts, columns) if columns else None


def _numbers(view: HostsView) -> dict[str, int]:
    """Number of each text, names of resource classes among them."""
    return {text: number for number, text in enumerate(view.arrays.all_texts())}


@dataclass(frozen=True, slots=True)
class _RequestedGpus:
    """GPUs that a server requests.

    :param gpus: how they are judged
    :param rules: the operator's choices
    :param devices: their resource classes, and the parts asked of each
    """

    gpus: GpuRequest
    rules: GpuRules
    devices: _Devices


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs near each other, by the utility of :mod:`nova_numa_ext.policy.gpu.utility`.

    All hosts are guessed over arrays; the best of them are judged as the filter will, where no job of this queue has
    taken GPUs that the view still shows as free.
    """

    offers: frozenset[str] = field(default=frozenset({names.VGPU, names.PGPU}))

    def offer(
        self, part: Part, view: HostsView, claims: HostClaims, settings: PlannerSettings
    ) -> Offer:
        """Return the utility of the GPUs that a server would get; hosts below its minimum are not left out."""
        counts = np.full(len(view.roots), MANY)
        asked = self.asked(part.request, view)
        if not asked:
            return Offer(counts)
        rules = settings.rules
        requested = _RequestedGpus(GpuRequest.of(part.request, part.flavor, rules), rules, asked)
        any_utility = replace(requested, gpus=replace(requested.gpus, min_utility=0.0))
        guess = view.remembered(("guess", any_utility), lambda: self._untouched(any_utility, view))
        columns = [
            [view.classes[name] for name in classes if name in view.classes] for classes, _ in asked
        ]
        of_all = [column for of_kind in columns for column in of_kind]
        touched = np.flatnonzero((claims.taken[of_all] != 0).any(axis=0))
        utility = guess.copy()
        if len(touched):
            taken = np.stack(
                [
                    claims.taken[np.array(each, int)[:, None], touched].sum(axis=0)
                    for each in columns
                ]
            )
            utility[touched] = self._touched(any_utility, view, touched, taken)
        if part.request.min_utility > 0:
            judged = self._judged(requested, view, utility, touched)
            utility[list(judged)] = list(judged.values())
        return Offer(counts, np.nan_to_num(utility, nan=0.0))

    def asked(self, request: WorkloadRequest, view: HostsView) -> _Devices:
        """Return which of the devices that a request asks for are GPUs."""
        gpus = view.remembered("gpu classes", lambda: self._classes(view))
        return tuple((classes, parts) for classes, parts in view.devices(request) if classes & gpus)

    def _classes(self, view: HostsView) -> frozenset[str]:
        """Resource classes of the GPUs whose places are published, and nova's own of GPUs."""
        arrays = view.arrays
        texts = max(1, len(arrays.text_ends))
        published = arrays.gpus["host"] * texts + arrays.gpus["address"]
        devices = arrays.devices
        here = np.isin(devices["host"] * texts + devices["address"], published)
        found = {
            arrays.text(number) for number in np.unique(devices["resource_class"][here]).tolist()
        }
        return self.offers | (found - {""})

    def _judged(
        self, requested: _RequestedGpus, view: HostsView, utility: Floats, touched: Integers
    ) -> dict[int, float]:
        """Return what the filter will find on those of the best hosts of which no job has taken GPUs."""
        classes = frozenset[str]().union(*(of_class for of_class, _ in requested.devices))
        parts = tuple(each for _, of_parts in requested.devices for each in of_parts)

        def judged(row: int) -> float:
            host = view.arrays.view(int(view.rows[row]))
            devices = tuple(each for each in host.devices if each.resource_class in classes)
            offered = replace(host, devices=devices)
            best, _ = best_of_host(requested.gpus, requested.rules, offered, parts)
            return best.utility if best is not None else 0.0

        known = np.flatnonzero(~np.isnan(utility) & (view.rows != UNKNOWN))
        best = known[np.argsort(-utility[known], kind="stable")][:_JUDGED]
        return {
            row: view.remembered(("judged", row, requested), partial(judged, row))
            for row in np.setdiff1d(best, touched).tolist()
        }

    def _untouched(self, requested: _RequestedGpus, view: HostsView) -> Floats:
        """Guess the utility on all hosts where jobs have taken nothing: once for those that are alike."""
        first, alike = view.remembered("alike", lambda: _known(view).alike())
        nothing = np.zeros((len(requested.devices), len(first)), np.int64)
        return self._guess(requested, view, first, nothing)[alike]

    def _touched(
        self, requested: _RequestedGpus, view: HostsView, rows: Integers, taken: Integers
    ) -> Floats:
        """Guess it where jobs have taken some: once for hosts that are alike and of which as many are taken.

        Nothing but these is what a guess depends on, and a round asks thousands of times.

        :param taken: of these hosts, kinds of devices x hosts
        """
        _, alike = view.remembered("alike", lambda: _known(view).alike())
        known: dict[tuple[int, ...], float] = view.remembered(("touched", requested), dict)
        keys = list(zip(alike[rows].tolist(), *taken.tolist(), strict=True))
        new = {key: at for at, key in enumerate(keys) if key not in known}
        if new:
            at = [*new.values()]
            guessed = self._guess(requested, view, rows[at], taken[:, at])
            known.update(zip(new, guessed.tolist(), strict=True))
        return np.array([known[key] for key in keys], np.float64)

    def _guess(
        self, requested: _RequestedGpus, view: HostsView, rows: Integers, taken: Integers
    ) -> Floats:
        """Guess the utility on some hosts, NaN where too few GPUs are free or known.

        :param taken: what jobs have taken of them, kinds of devices x hosts; negative where they give back
        """
        gpus = _known(view).at(rows)
        free = np.zeros(gpus.total.shape, np.int64)
        for (classes, _), more in zip(requested.devices, taken, strict=True):
            kinds = np.zeros(len(view.arrays.text_ends) + 1, bool)
            kinds[[gpus.numbers[name] for name in classes if name in gpus.numbers]] = True
            mine = kinds[gpus.pools["kind"]]
            left = np.where(mine, gpus.pools["count"], 0)
            used = np.where(mine, gpus.devices - gpus.pools["count"], 0)
            left = left + _filled(used, -more) - _filled(left, more)
            free += coarse.sums_by_cell(left, gpus.pools, gpus.cells)
        free = np.minimum(free, gpus.total)
        first, alike = _alike(gpus.kind, *free.T)  # few hosts differ from all others
        some, left = gpus.at(first), free[first]
        here = NodeGpus(
            some.cells["socket"], some.total, left, left, some.weights, some.direct, some.switched
        )
        count = sum(len(parts) for _, parts in requested.devices)
        return utility_of_nodes(requested.gpus, requested.rules, count, here)[alike]


def _alike(*columns: npt.NDArray[Any]) -> tuple[Integers, Integers]:
    """Return the first row of each kind of rows that are equal in all columns, and the kind of each row."""
    first = alike = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, of_row = np.unique(column, return_inverse=True)
        _, first, alike = np.unique(
            alike * max(1, len(values)) + of_row, return_index=True, return_inverse=True
        )
    return first, alike


def _filled(room: Integers, amount: Integers) -> Integers:
    """Fill the pools of each host in their order."""
    before = np.cumsum(room, axis=1) - room
    found: Integers = np.clip(amount[:, None] - before, 0, room)
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    """What a view knows of GPUs; ``C`` NUMA nodes of the largest host, ``P`` devices of the host with most.

    :param cells: NUMA nodes, H x C, as of :data:`~nova_numa_ext.policy.numa.coarse.CELL`
    :param pools: one for each device, H x P, as of :data:`~nova_numa_ext.policy.numa.coarse.POOL`
    :param devices: what each pool has when all is free, H x P
    :param total: GPUs of each node, H x C
    :param weights: as of :class:`~nova_numa_ext.policy.gpu.coarse.NodeGpus`
    :param direct: as there
    :param switched: as there
    :param numbers: number of each kind of devices by its resource class
    :param kind: a number for each host, equal where all is that a guess depends on, but what is free, H
    """

    cells: Records
    pools: Records
    devices: Integers
    total: Integers
    weights: Integers
    direct: Floats
    switched: Mask
    numbers: Mapping[str, int]
    kind: Integers

    @classmethod
    def of(cls, view: HostsView) -> "_Known":
        """Return what a view knows."""
        cells, (pools, devices) = _cells(view), _pools(view)
        total, direct, switched = coarse.gpus_by_cell(view.arrays, view.rows, cells)
        weights = coarse.weights_by_cell(coarse_terms.domains_of(view.arrays, view.rows), cells)
        numbers = view.remembered("texts", lambda: _numbers(view))
        _, kind = _alike(*cells["socket"].T, *total.T, *weights.T, *direct, switched)
        return cls(cells, pools, devices, total, weights, direct, switched, numbers, kind)

    def alike(self) -> tuple[Integers, Integers]:
        """Return the first of each kind of hosts that are equal in all a guess depends on, and the kind of each."""
        pools = (self.pools[name].T for name in POOL.names or ())
        columns = (self.cells["node"].T, self.devices.T, *pools)
        return _alike(self.kind, *(column for each in columns for column in each))

    def at(self, rows: Integers) -> "_Known":
        """Return what is known of some of the hosts."""
        return replace(
            self,
            cells=self.cells[rows],
            pools=self.pools[rows],
            devices=self.devices[rows],
            total=self.total[rows],
            weights=self.weights[rows],
            direct=self.direct[:, rows],
            switched=self.switched[rows],
            kind=self.kind[rows],
        )


def _known(view: HostsView) -> _Known:
    return view.remembered("gpus", lambda: _Known.of(view))


def _cells(view: HostsView) -> Records:
    arrays = view.arrays
    l3 = np.repeat(np.arange(len(arrays.l3)), arrays.l3["nodes_count"])
    host = view.row_of_arrays[arrays.l3["host"][l3]]
    found = np.unique(np.stack([host, arrays.nodes, arrays.l3["socket"][l3]], axis=1), axis=0)
    found = found[found[:, 0] != UNKNOWN]
    cells = np.zeros((len(view.roots), _most(found[:, 0])), CELL)
    at = (found[:, 0], _places(found[:, 0]))
    cells["node"][at], cells["socket"][at], cells["present"][at] = found[:, 1], found[:, 2], True
    return cells


def _pools(view: HostsView) -> tuple[Records, Integers]:
    """Devices of each host, and what they have when all is free."""
    arrays = view.arrays
    devices, texts = arrays.devices, max(1, len(arrays.text_ends))
    gpus = arrays.gpus["host"] * texts + arrays.gpus["address"]
    requested = devices["host"] * texts + devices["address"]
    node = np.full(len(devices), UNKNOWN)
    if len(gpus):
        order = np.argsort(gpus)
        index = order[np.minimum(np.searchsorted(gpus[order], requested), len(gpus) - 1)]
        node = np.where(gpus[index] == requested, arrays.gpus["node"][index], UNKNOWN)
    host = view.row_of_arrays[devices["host"]]
    here = np.flatnonzero(host != UNKNOWN)
    here = here[np.argsort(host[here], kind="stable")]
    pools = np.zeros((len(view.roots), _most(host[here])), POOL)
    pools["kind"] = len(arrays.text_ends)  # none, where a host has fewer
    at = (host[here], _places(host[here]))
    pools["kind"][at], pools["node"][at] = devices["resource_class"][here], node[here]
    total = np.zeros(pools.shape, np.int64)
    total[at] = devices["capacity"][here]
    pools["count"][at] = np.clip(total[at] - devices["used"][here], 0, total[at])
    return pools, total


def _most(rows: Integers) -> int:
    """Return how many records the host with most has."""
    return int(np.bincount(rows).max(initial=0))


def _places(rows: Integers) -> Integers:
    """Place of each record among those of its host, for records in the order of hosts."""
    starts = np.searchsorted(rows, rows)
    found: Integers = np.arange(len(rows)) - starts
    return found
