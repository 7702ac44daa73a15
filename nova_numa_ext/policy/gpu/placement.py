# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a host a job gets, and whether it should take them.

Policies, and the order in which they prefer placements:

``pack``
    GPUs near each other, then utility, then low GPU numbers
``spread``
    many sockets, evenly shared, then utility, then low GPU numbers
``topo``
    utility, then low GPU numbers
``topo_p``
    the same; a job whose best placement is below its minimum utility waits (TOPO-AWARE-P of Amaral 2019)

All of utility but the distance of the GPUs depends only on *which sockets* are touched. So the exact search keeps,
for each combination of sockets, the nearest free GPUs; that is geometry, remembered per host shape, free set and job
graph, and a decision compares three entries on a machine of two sockets. It is used up to ``exact_limit``
assignments: there ``benchmarks/bench_gpu.py`` measures the first look at a free set at about 3 ms, the goal for a
decision. That holds every data-parallel job on up to 16 free GPUs. Above, dual recursive bipartitioning
(:mod:`nova_numa_ext.policy.gpu.bipartition`) takes over.

Use from a scheduler filter, per host: :func:`rank` for candidate sets that exist already, :func:`choose` for the
best of all.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from nova_numa_ext.policy.gpu.bipartition import drb, refine
from nova_numa_ext.policy.gpu.graph import GpuGraph, mask_of, members
from nova_numa_ext.policy.gpu.job import COMM_PROFILES, GpuJob, JobGraph, ProfileStore
from nova_numa_ext.policy.gpu.utility import (
    DECIMALS,
    THIRDS,
    HostGpus,
    Scene,
    Terms,
    UtilityOptions,
    communication,
)
from nova_numa_ext.policy.terms import Term
from placement_traits.names import GpuPolicy
from placement_traits.reason import Reason

# Sets of jobs whose end is looked at when a job is refused: all of nine jobs; it bounds the time of a refusal.
MOST_ENDINGS: Final = 512
SHOWN_DECIMALS: Final = 3  # of a utility in a reason
_MEMORY: Final = 1 << 14

Table: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int16]]


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs for a part of a job.

    :param gpus: GPU of each task
    :param terms: what they cost
    """

    gpus: tuple[int, ...]
    terms: Terms

    @property
    def utility(self) -> float:
        """U of the placement."""
        return self.terms.utility

    @property
    def mask(self) -> int:
        """The GPUs as a mask."""
        return mask_of(self.gpus)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a policy makes of one host.

    :param ranked: placements, best first; empty when the job does not fit
    :param satisfied: the first reaches the job's minimum utility
    :param reasons: of the first placement, or why there is none; when it is not satisfied also what would be needed
    """

    ranked: tuple[Placement, ...]
    satisfied: bool
    reasons: tuple[Reason, ...]

    @property
    def best(self) -> Placement | None:
        """The first placement."""
        return self.ranked[0] if self.ranked else None


def assignments(part: JobGraph, free: int) -> int:
    """Number of different assignments: sets of GPUs for a uniform graph, ordered sets otherwise."""
    count = math.comb if part.uniform else math.perm
    return count(free, part.tasks)


@lru_cache(maxsize=64)
def _table(free: int, tasks: int, ordered: bool) -> Table:
    """All assignments of tasks to positions of free GPUs, in lexicographic order: shape (assignments, tasks)."""
    rows = (itertools.permutations if ordered else itertools.combinations)(range(free), tasks)
    return np.array(list(rows), dtype=np.int16).reshape(-1, tasks)


@lru_cache(maxsize=_MEMORY)
def nearest(
    graph: GpuGraph, free: int, part: JobGraph, even: bool = False
) -> Mapping[int, tuple[int, ...]]:
    """Return the best assignment for every combination of sockets, by exact search.

    :param free: mask of free GPUs
    :param even: first share the tasks evenly among the sockets, then look at distances
    :returns: mask of sockets touched -> GPU of each task, lowest numbers among equals
    """
    table = _table(free.bit_count(), part.tasks, not part.uniform)
    rows = np.array(list(members(free)), dtype=np.int16)[table]
    sockets = np.array(graph.sockets)[rows]
    distances = np.array(graph.distances)
    cost = np.zeros(len(rows))
    for a, b, weight in part.edges:
        cost += weight * distances[rows[:, a], rows[:, b]]
    if even:
        count = len(graph.socket_masks)
        tasks_per_socket = (sockets[:, :, None] == np.arange(count)).sum(axis=1)
        cost += tasks_per_socket.max(axis=1) * (part.total + 1) * graph.farthest
    touched = np.bitwise_or.reduce(1 << sockets, axis=1)
    best: dict[int, tuple[int, ...]] = {}
    order = np.lexsort((np.round(cost, 9), touched))
    _, firsts = np.unique(touched[order], return_index=True)
    for row in order[firsts]:
        best[int(touched[row])] = tuple(int(gpu) for gpu in rows[row])
    return best


def search(scene: Scene, *, even: bool = False) -> list[Placement]:
    """Return the best placement per combination of sockets (exact), or the one that bipartitioning finds."""
    part, host = scene.part, scene.host
    if assignments(part, host.free.bit_count()) <= scene.options.exact_limit:
        found = list(nearest(host.graph, host.free, part, even).values())
    elif even:
        found = [_round_robin(host, part.tasks)]
    else:
        found = [refine(scene, drb(scene))]
    return [Placement(gpus, scene.terms(gpus)) for gpus in found]


def _round_robin(host: HostGpus, tasks: int) -> tuple[int, ...]:
    """Take one GPU of each socket in turn, the socket with most free GPUs first."""
    queues = [list(members(mask & host.free)) for mask in host.graph.socket_masks]
    turns = itertools.zip_longest(*sorted(queues, key=len, reverse=True))
    taken = [gpu for turn in turns for gpu in turn if gpu is not None]
    return tuple(sorted(taken[:tasks]))


def preference(placement: Placement, graph: GpuGraph, policy: GpuPolicy) -> tuple[float, ...]:
    """Return the sort key of a placement under a policy, smallest first (the lists in the module's text)."""
    if policy is GpuPolicy.PACK:
        return (round(placement.terms.communication, DECIMALS), -placement.utility)
    if policy is GpuPolicy.SPREAD:
        shares = [(mask & placement.mask).bit_count() for mask in graph.socket_masks]
        return (-sum(map(bool, shares)), max(shares), -placement.utility)
    return (-placement.utility,)


def in_order(
    placements: Iterable[Placement], graph: GpuGraph, policy: GpuPolicy
) -> tuple[Placement, ...]:
    """Sort placements as the policy prefers them, ties to the lowest GPU numbers."""
    return tuple(
        sorted(placements, key=lambda found: (preference(found, graph, policy), found.gpus))
    )


def _preferred_graph(part: JobGraph, policy: GpuPolicy) -> JobGraph:
    """The graph that the policy places: ``pack`` keeps GPUs near each other even without communication in the job."""
    if policy is GpuPolicy.PACK and not part.edges:
        return JobGraph.complete(part.tasks, 1.0)
    return part


def rank(
    job: GpuJob,
    host: HostGpus,
    candidates: Iterable[Sequence[int]],
    policy: GpuPolicy = GpuPolicy.TOPO,
    *,
    store: ProfileStore = COMM_PROFILES,
    options: UtilityOptions = THIRDS,
) -> tuple[Placement, ...]:
    """Order given GPU sets, such as those of Placement's allocation candidates.

    :param job: a job of one part
    :param candidates: GPUs of each set; the tasks of a graph that is not uniform get them in the order given
    """
    scene = Scene(_preferred_graph(job.graph, policy), job.profile, host, store, options)
    placements = [Placement(tuple(gpus), scene.terms(gpus)) for gpus in candidates]
    return in_order(placements, host.graph, policy)


@lru_cache(maxsize=_MEMORY)
def choose(
    job: GpuJob,
    host: HostGpus,
    policy: GpuPolicy = GpuPolicy.TOPO,
    *,
    store: ProfileStore = COMM_PROFILES,
    options: UtilityOptions = THIRDS,
) -> Choice:
    """Choose GPUs of one host for a job of one part.

    Answers are remembered: hosts of one shape with the same free GPUs and the same neighbours get the same answer.

    :returns: ranked placements; ``satisfied`` is whether the best one reaches the job's minimum utility, and the
        caller decides whether that refuses or postpones the job
    """
    part = _preferred_graph(job.graph, policy)
    if not host.fits(job, part):
        return Choice((), False, _misfit(job, part, host))
    scene = Scene(part, job.profile, host, store, options)
    placements = search(scene, even=policy is GpuPolicy.SPREAD)
    ranked = in_order(placements, host.graph, policy)
    best = ranked[0]
    reasons = (Reason(Term.GPU_POLICY, policy.value), *best.terms.reasons)
    if best.utility >= job.min_utility:
        return Choice(ranked, True, reasons)
    needed = _needed(job, host, policy, store, options)
    below = Reason(Term.GPU_BELOW_MINIMUM, best.utility, job.min_utility)
    return Choice(ranked, False, (below, *reasons, needed))


def _misfit(job: GpuJob, part: JobGraph, host: HostGpus) -> tuple[Reason, ...]:
    reasons = [Reason(Term.GPUS_FREE, host.free.bit_count(), part.tasks)]
    if host.bandwidth_mbps is not None:
        reasons.append(Reason(Term.BANDWIDTH_FREE, host.bandwidth_mbps, job.bandwidth_mbps))
    return tuple(reasons)


def _needed(
    job: GpuJob,
    host: HostGpus,
    policy: GpuPolicy,
    store: ProfileStore,
    options: UtilityOptions,
) -> Reason:
    """Name the jobs that would have to end for the job to be satisfied: as few as :func:`_endings` offers."""
    for ended in _endings(len(host.neighbours)):
        free = host.free | mask_of(gpu for i in ended for gpu in members(host.neighbours[i].gpus))
        left = tuple(other for i, other in enumerate(host.neighbours) if i not in ended)
        later = HostGpus(host.graph, free, left, host.bandwidth_mbps)
        scene = Scene(_preferred_graph(job.graph, policy), job.profile, later, store, options)
        best = in_order(search(scene, even=policy is GpuPolicy.SPREAD), host.graph, policy)[0]
        if best.utility >= job.min_utility:
            gpus = ", ".join(host.graph.gpus[gpu] for gpu in best.gpus)
            busy = ", ".join(host.graph.gpus[gpu] for gpu in members(free & ~host.free))
            return Reason(Term.GPU_NEEDED, round(best.utility, SHOWN_DECIMALS), busy, gpus)
    return Reason(Term.GPU_NEVER, job.min_utility)


def _endings(jobs: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of jobs, small ones first, and all jobs last; of many jobs not every set in between."""
    sets = itertools.chain.from_iterable(
        itertools.combinations(range(jobs), count) for count in range(1, jobs)
    )
    yield from itertools.islice(sets, MOST_ENDINGS)
    yield tuple(range(jobs))


def place_parts(
    job: GpuJob,
    hosts: Mapping[str, HostGpus],
    policy: GpuPolicy = GpuPolicy.TOPO,
    *,
    store: ProfileStore = COMM_PROFILES,
    options: UtilityOptions = THIRDS,
) -> dict[int, tuple[str, Placement]] | None:
    """Place every part of a job on a host of its own, the largest part first (section 4.2).

    :returns: part -> (host, placement), or None when a part finds no host: all or nothing
    """
    chosen: dict[int, tuple[str, Placement]] = {}
    left = dict(hosts)
    for number in sorted(range(len(job.parts)), key=lambda n: -job.parts[n].tasks):
        single = GpuJob(
            (job.parts[number],), job.profile, job.min_utility, bandwidth_mbps=job.bandwidth_mbps
        )
        offers = [
            (host, choice.ranked[0])
            for host, gpus in left.items()
            if (choice := choose(single, gpus, policy, store=store, options=options)).ranked
        ]
        if not offers:
            return None
        host, placement = max(offers, key=lambda offer: offer[1].utility)
        chosen[number] = (host, placement)
        del left[host]
    return chosen


def spread_stretch(graph: GpuGraph, part: JobGraph, gpus: Sequence[int], spread: float) -> float:
    """Return the run time of a placement over that with all tasks at the nearest distance of the host.

    Linear in the mean distance between the two measured ends: 1 where all pairs are as near as the nearest pair,
    ``spread`` where all are as far as the farthest.
    """
    if not part.edges or graph.farthest == graph.nearest:
        return 1.0
    low = graph.nearest / graph.farthest
    return 1.0 + (spread - 1.0) * (communication(graph, part, gpus) - low) / (1.0 - low)
