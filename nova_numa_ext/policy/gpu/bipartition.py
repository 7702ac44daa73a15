# SPDX-License-Identifier: Apache-2.0
"""Dual recursive bipartitioning: cut the free GPUs in two, give each half its share of the tasks, go on inside.

Amaral 2019, algorithms 2 and 3, after Ercal and SCOTCH. The physical graph is cut first, by Fiduccia and
Mattheyses' moves; the job's graph follows by utility. Two things are ours. Amaral leaves open what a cut of an
uneven set should be: we minimise the *ratio* cut (cut / (size * size)), so that four linked GPUs and a lone fifth
are cut there. And because a task's place is never reconsidered in algorithm 3, :func:`refine` moves single tasks
afterwards while the utility rises.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from nova_numa_ext.policy.gpu.graph import GpuGraph, mask_of, members
from nova_numa_ext.policy.gpu.utility import DECIMALS, Scene

Sides: TypeAlias = tuple[int, int]

_MEMORY: Final = 1 << 16


@lru_cache(maxsize=_MEMORY)
def bipartition(graph: GpuGraph, mask: int) -> Sides:
    """Cut a set of at least two GPUs where they are least near each other.

    Passes of Fiduccia and Mattheyses: every GPU changes sides once, the best gain first, and the best state on the
    way is kept; until a pass brings nothing. The first state gathers the GPUs round the two that are farthest
    apart. Nearness is the reciprocal of distance, so all pairs are edges and a pass is linear in edges.

    :returns: two masks that make up ``mask``; the lowest GPU is in the first
    """
    gpus = list(members(mask))
    size = range(len(gpus))
    nearness = [
        [0.0 if a == b else 1.0 / graph.distances[gpus[a]][gpus[b]] for b in size] for a in size
    ]
    _, one, other = max(
        (graph.distances[gpus[a]][gpus[b]], -a, -b) for a in size for b in range(a + 1, len(gpus))
    )
    sides = [int(nearness[a][-other] > nearness[a][-one]) for a in size]
    sides[-one], sides[-other] = 0, 1
    ratio = _ratio(_cut(nearness, sides), sides)
    while True:
        better, sides_after = _best_of_pass(nearness, sides)
        if better >= ratio - 1e-12:
            break
        ratio, sides = better, sides_after
    first = mask_of(gpu for gpu, side in zip(gpus, sides, strict=True) if side == sides[0])
    return first, mask & ~first


def _best_of_pass(
    nearness: Sequence[Sequence[float]], start: Sequence[int]
) -> tuple[float, list[int]]:
    sides = list(start)
    gains = [
        sum(w if sides[a] != sides[b] else -w for b, w in enumerate(row))
        for a, row in enumerate(nearness)
    ]
    cut = _cut(nearness, sides)
    best, best_sides = _ratio(cut, sides), list(sides)
    unlocked = set(range(len(sides)))
    while movable := [a for a in unlocked if sides.count(sides[a]) > 1]:
        moved = max(movable, key=lambda a: (gains[a], -a))
        unlocked.remove(moved)
        cut -= gains[moved]
        gains[moved] = -gains[moved]
        sides[moved] = 1 - sides[moved]
        for other, weight in enumerate(nearness[moved]):
            if other != moved:
                gains[other] += -2 * weight if sides[other] == sides[moved] else 2 * weight
        if _ratio(cut, sides) < best - 1e-12:
            best, best_sides = _ratio(cut, sides), list(sides)
    return best, best_sides


def _cut(nearness: Sequence[Sequence[float]], sides: Sequence[int]) -> float:
    return sum(nearness[a][b] for a in range(len(sides)) for b in range(a) if sides[a] != sides[b])


def _ratio(cut: float, sides: Sequence[int]) -> float:
    ones = sum(sides)
    return cut / (ones * (len(sides) - ones))


def drb(scene: Scene) -> tuple[int, ...]:
    """Map the tasks of a scene's part to free GPUs (algorithm 2); the caller has checked that they fit.

    :returns: GPU of each task
    """
    tasks = range(scene.part.tasks)
    region = dict.fromkeys(tasks, scene.host.free)
    _map(scene, tuple(tasks), scene.host.free, region)
    return tuple(region[task].bit_length() - 1 for task in tasks)


def _map(scene: Scene, tasks: tuple[int, ...], mask: int, region: dict[int, int]) -> None:
    if not tasks:
        return
    if mask.bit_count() == 1:
        region[tasks[0]] = mask
        return
    sides = bipartition(scene.graph, mask)
    shares = bipartition_job(scene, tasks, sides, region)
    for side, share in zip(sides, shares, strict=True):
        region.update(dict.fromkeys(share, side))
    for side, share in zip(sides, shares, strict=True):
        _map(scene, share, side, region)


def bipartition_job(
    scene: Scene, tasks: tuple[int, ...], sides: Sides, region: Mapping[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Share tasks between two sides by utility (algorithm 3).

    The tasks go to one side together where they fit and the utility is best so, else task by task, the one that
    communicates most first. The printed prose swaps the sides and the printed code does not look whether the second
    side has room; both are repaired here.

    :param region: where every task outside ``tasks`` will be (cost array C of algorithm 3)
    """
    outside = {task: mask for task, mask in region.items() if task not in tasks}
    choices = [dict.fromkeys(tasks, side) for side in sides if len(tasks) <= side.bit_count()]
    choices.append(_task_by_task(scene, tasks, sides, outside))
    best = max(choices, key=lambda choice: _estimate(scene, {**outside, **choice}, tasks))
    first = tuple(task for task in tasks if best[task] == sides[0])
    return first, tuple(task for task in tasks if best[task] == sides[1])


def _task_by_task(
    scene: Scene, tasks: Sequence[int], sides: Sides, outside: Mapping[int, int]
) -> dict[int, int]:
    """Place one task after the other; next is the one that communicates most with those placed, then most at all."""
    weights = {(a, b): weight for a, b, weight in scene.part.edges}
    weights |= {(b, a): weight for (a, b), weight in weights.items()}
    room = {side: side.bit_count() for side in sides}
    placed = dict(outside)
    left = set(tasks)
    while left:

        def communication(task: int) -> tuple[float, float, int]:
            near = sum(weights.get((task, other), 0.0) for other in placed)
            return (near, near + sum(weights.get((task, other), 0.0) for other in left), -task)

        task = max(left, key=communication)
        left.remove(task)
        side = max(
            (side for side in sides if room[side]),
            key=lambda side: _estimate(scene, {**placed, task: side}, (task,)),
        )
        placed[task] = side
        room[side] -= 1
    return {task: placed[task] for task in tasks}


def _estimate(scene: Scene, region: Mapping[int, int], tasks: Sequence[int]) -> float:
    """Utility of tasks that are known to be somewhere in their regions, as exact as regions allow."""
    mine = frozenset(tasks)
    cost = sum(
        weight * mean_distance(scene.graph, region[a], region[b])
        for a, b, weight in scene.part.edges
        if (a in mine or b in mine) and a in region and b in region
    )
    if scene.part.edges:
        cost /= scene.part.total * scene.graph.farthest
    around = sum(_around(scene, region[task]) for task in tasks) / len(tasks)
    return round(-scene.options.communication * cost - around, DECIMALS)


def _around(scene: Scene, side: int) -> float:
    sockets = [1 << socket for socket in members(scene.graph.touched(side))]
    return sum(scene.around(socket)[2] for socket in sockets) / len(sockets)


@lru_cache(maxsize=_MEMORY)
def mean_distance(graph: GpuGraph, one: int, other: int) -> float:
    """Return the mean distance between different GPUs of two sets, 0 for one GPU and itself."""
    distances = [graph.distances[a][b] for a in members(one) for b in members(other) if a != b]
    return sum(distances) / len(distances) if distances else 0.0


def refine(scene: Scene, gpus: Sequence[int]) -> tuple[int, ...]:
    """Climb from an assignment while moving one task to a free GPU, or swapping two tasks, raises the utility."""
    best = tuple(gpus)
    utility = scene.terms(best).utility
    while True:
        nearby = [
            (scene.terms(other).utility, tuple(-gpu for gpu in other))
            for other in _moves(scene, best)
        ]
        if not nearby or max(nearby)[0] <= utility:
            return best
        utility, negated = max(nearby)
        best = tuple(-gpu for gpu in negated)


def _moves(scene: Scene, gpus: tuple[int, ...]) -> list[tuple[int, ...]]:
    spare = list(members(scene.host.free & ~mask_of(gpus)))
    moves = [(*gpus[:t], gpu, *gpus[t + 1 :]) for t in range(len(gpus)) for gpu in spare]
    if not scene.part.uniform:
        for t, gpu in enumerate(gpus):
            moves += [
                (*gpus[:t], gpus[u], *gpus[t + 1 : u], gpu, *gpus[u + 1 :])
                for u in range(t + 1, len(gpus))
            ]
    return moves
