# SPDX-License-Identifier: Apache-2.0
"""How many servers of a part find a place on each host, and where they are best: one answer for each aspect of a host.

An aspect is a plug-in of :class:`.host_planner.HostPlanner`. The planner takes the smallest of the counts that they
return, and prefers hosts by the first aspect that tells them apart.

Shapes: ``H`` hosts.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

import numpy as np

from nova_numa_ext.policy.gpu.candidate_sets import (
    DEFAULT_RULES,
    GpuRequest,
    GpuRules,
    best_of_host,
)
from nova_numa_ext.policy.jobs import postponing
from nova_numa_ext.policy.jobs.host_view import L3_CLASSES, HostClaims, HostsView, Integers, Mask
from nova_numa_ext.policy.jobs.job import Part
from nova_numa_ext.policy.numa import coarse, requirements
from nova_numa_ext.policy.numa.coarse import CELL, POOL, CoarseRequest, Known, PoolRequest
from nova_numa_ext.policy.numa.score import Floats
from placement_traits import names
from placement_traits.fleet_arrays import UNKNOWN, Records
from placement_traits.request import WorkloadRequest

MANY: Final = 1 << 40  # servers, where nothing limits them
_JUDGED: Final = 8  # hosts whose GPUs are judged one by one, the best by the guess


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """What the operator decides about planning.

    :param rules: how GPUs are judged
    :param most_postponements: after so many a job takes any place
    """

    rules: GpuRules = DEFAULT_RULES
    most_postponements: int | None = postponing.MOST_POSTPONEMENTS


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
        counts = np.where(self._able(part.request, view), MANY, 0)
        for need in view.needs(part):
            if not need.columns:
                return Offer(np.zeros(len(view.roots), np.int64))
            at = list(need.columns)
            free = (view.capacity[at] - view.used[at] - claims.taken[at]).sum(axis=0)
            np.minimum(counts, np.maximum(0, free) // need.amount, out=counts)
        whole = view.remembered(("whole", part.request), lambda: _whole(part.request, view))
        if whole is not None:
            pieces, columns = whole
            untouched = (claims.taken[list(columns)] == 0).all(axis=0)
            counts = np.where(untouched, np.minimum(counts, pieces), counts)
        return Offer(counts)

    def _able(self, request: WorkloadRequest, view: HostsView) -> Mask:
        def make() -> Mask:
            kinds = (*view.arrays.trait_sets, None)
            able = np.array(
                [not requirements.lacking_traits(request, traits) for traits in kinds], bool
            )
            return able[_kinds(view)] & ~view.closed

        return view.remembered(("able", request), make)


def _kinds(view: HostsView) -> Integers:
    none = len(view.arrays.trait_sets)
    if not len(view.arrays.hosts):
        return np.full(len(view.rows), none)
    return np.where(view.rows == UNKNOWN, none, view.arrays.hosts["kind"][view.rows])


def _whole(request: WorkloadRequest, view: HostsView) -> tuple[Integers, tuple[int, ...]] | None:
    """Servers whose amounts find whole L3 domains and devices, H, and the resource classes that this is about."""
    counts = np.full(len(view.roots), MANY)
    classes: set[str] = set()
    row_of = np.full(len(view.arrays.hosts), UNKNOWN)
    known = np.flatnonzero(view.rows != UNKNOWN)
    row_of[view.rows[known]] = known

    def limit(hosts: Integers, held: Integers, together: int) -> None:
        at = row_of[hosts]
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
    numbers = {text: number for number, text in enumerate(view.arrays.all_texts())}
    for of_class, parts in view.devices(request):
        kinds = [numbers[name] for name in of_class if name in numbers]
        free = (devices["capacity"] - devices["used"]) * np.isin(devices["resource_class"], kinds)
        classes |= of_class
        limit(devices["host"], np.maximum(0, free) // max(parts), len(parts))
    columns = tuple(sorted(view.classes[name] for name in classes if name in view.classes))
    return (counts, columns) if columns else None


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
        key = ("guess", part.request, settings.rules)
        everywhere = np.arange(len(view.roots))
        guess = view.remembered(
            key, lambda: self._guess(part, view, settings, everywhere, claims.taken * 0)
        )
        columns = [
            view.classes[name] for of_class, _ in asked for name in of_class if name in view.classes
        ]
        touched = np.flatnonzero((claims.taken[columns] != 0).any(axis=0))
        utility = guess.copy()
        if len(touched):
            utility[touched] = self._guess(part, view, settings, touched, claims.taken)
        if part.request.min_utility > 0:
            self._judge(part, view, settings, utility, frozenset(touched.tolist()))
        return Offer(counts, np.nan_to_num(utility, nan=0.0))

    def asked(
        self, request: WorkloadRequest, view: HostsView
    ) -> tuple[tuple[frozenset[str], tuple[int, ...]], ...]:
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

    def _judge(
        self,
        part: Part,
        view: HostsView,
        settings: PlannerSettings,
        utility: Floats,
        touched: frozenset[int],
    ) -> None:
        """Replace the guesses about the best hosts by what the filter will find."""
        rules = settings.rules
        gpu_request = GpuRequest.of(part.request, part.flavor, rules)
        asked = self.asked(part.request, view)
        classes = frozenset[str]().union(*(of_class for of_class, _ in asked))
        parts = tuple(each for _, of_parts in asked for each in of_parts)

        def judged(row: int) -> float:
            host = view.arrays.view(int(view.rows[row]))
            devices = tuple(each for each in host.devices if each.resource_class in classes)
            best, _ = best_of_host(gpu_request, rules, replace(host, devices=devices), parts)
            return best.utility if best is not None else 0.0

        known = np.flatnonzero(~np.isnan(utility) & (view.rows != UNKNOWN))
        for row in known[np.argsort(-utility[known], kind="stable")][:_JUDGED].tolist():
            if row not in touched:
                key = ("judged", row, gpu_request, rules, parts)
                utility[row] = view.remembered(key, partial(judged, row))

    def _guess(
        self,
        part: Part,
        view: HostsView,
        settings: PlannerSettings,
        rows: Integers,
        taken: Integers,
    ) -> Floats:
        """Guess the utility on some hosts, NaN where too few GPUs are free or known."""
        known, total, kind_numbers = view.remembered("gpu pools", lambda: _pools(view))
        asked = self.asked(part.request, view)
        pools = known.pools[rows].copy()
        texts = len(view.arrays.text_ends) + 1
        requests = []
        for classes, parts in asked:
            kinds = np.zeros(texts, bool)
            kinds[[kind_numbers[name] for name in classes if name in kind_numbers]] = True
            columns = [view.classes[name] for name in classes if name in view.classes]
            _take(pools, total[rows], kinds, taken[columns][:, rows].sum(axis=0))
            requests.append(PoolRequest(len(parts), kinds[:-1], "preferred", by_alias=True))
        rules = settings.rules
        wanted = CoarseRequest(
            part.request,
            (),
            devices=tuple(requests),
            gpus=(GpuRequest.of(part.request, part.flavor, rules), rules),
        )
        here = Known(known.cells[rows], pools)
        nowhere = np.zeros(here.cells.shape, bool)
        return coarse.gpu_utility(wanted, view.arrays, view.rows[rows], here, nowhere)


def _take(pools: Records, total: Integers, kinds: Mask, taken: Integers) -> None:
    """Take devices from the pools of each host in their order, or give them back where fewer than none are taken."""
    mine = kinds[pools["kind"]]
    free = np.where(mine, pools["count"], 0)
    used = np.where(mine, total - pools["count"], 0)
    pools["count"] += _filled(used, -taken) - _filled(free, taken)


def _filled(room: Integers, amount: Integers) -> Integers:
    """Fill the pools of each host in their order."""
    before = np.cumsum(room, axis=1) - room
    found: Integers = np.clip(amount[:, None] - before, 0, room)
    return found


def _pools(view: HostsView) -> tuple[Known, Integers, dict[str, int]]:
    """NUMA nodes and devices of each host, as :mod:`nova_numa_ext.policy.numa.coarse` takes them.

    :returns: them, devices of each pool that are there in all, and the number of each kind by its resource class
    """
    arrays = view.arrays
    hosts = len(view.roots)
    row_of = np.full(len(arrays.hosts), UNKNOWN)
    known = np.flatnonzero(view.rows != UNKNOWN)
    row_of[view.rows[known]] = known
    l3 = np.repeat(np.arange(len(arrays.l3)), arrays.l3["nodes_count"])
    node = arrays.nodes
    host = row_of[arrays.l3["host"][l3]]
    found = np.unique(np.stack([host, node, arrays.l3["socket"][l3]], axis=1), axis=0)
    found = found[found[:, 0] >= 0]
    cells = np.zeros((hosts, _most(found[:, 0], hosts)), CELL)
    at = (found[:, 0], _places(found[:, 0]))
    cells["node"][at], cells["socket"][at], cells["present"][at] = found[:, 1], found[:, 2], True
    devices = arrays.devices
    texts = max(1, len(arrays.text_ends))
    gpus = arrays.gpus["host"] * texts + arrays.gpus["address"]
    order = np.argsort(gpus)
    wanted = devices["host"] * texts + devices["address"]
    near = np.full(len(devices), UNKNOWN)
    if len(gpus):
        index = order[np.minimum(np.searchsorted(gpus[order], wanted), len(gpus) - 1)]
        near = np.where(gpus[index] == wanted, arrays.gpus["node"][index], UNKNOWN)
    of_host = row_of[devices["host"]]
    here = np.flatnonzero(of_host >= 0)
    here = here[np.argsort(of_host[here], kind="stable")]
    pools = np.zeros((hosts, _most(of_host[here], hosts)), POOL)
    pools["kind"] = len(arrays.text_ends)  # none, where a host has fewer
    at = (of_host[here], _places(of_host[here]))
    pools["kind"][at] = devices["resource_class"][here]
    pools["node"][at] = near[here]
    pools["count"][at] = np.maximum(0, devices["capacity"] - devices["used"])[here]
    total = np.zeros(pools.shape, np.int64)
    total[at] = devices["capacity"][here]
    names_of = {text: number for number, text in enumerate(arrays.all_texts())}
    return Known(cells, pools), total, names_of


def _most(rows: Integers, hosts: int) -> int:
    return int(np.bincount(rows, minlength=hosts).max(initial=0))


def _places(rows: Integers) -> Integers:
    """Place of each record among those of its host, for records in the order of hosts."""
    starts = np.searchsorted(rows, rows)
    found: Integers = np.arange(len(rows)) - starts
    return found
