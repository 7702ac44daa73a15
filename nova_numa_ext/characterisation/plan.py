# SPDX-License-Identifier: Apache-2.0
"""Which runs characterise workloads on a host, and on which of its GPUs. Pure."""

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from nova_numa_ext.policy.gpu.graph import GpuGraph, mask_of
from placement_traits.errors import CapabilityMissingError, InvalidValueError


class Surroundings(StrEnum):
    """In what surroundings a workload runs."""

    PACK = "pack"
    SPREAD = "spread"
    BESIDE = "beside"
    REMOTE = "remote"
    LOADED = "loaded"


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is measured several times.

    :param workload: whose run time is measured
    :param surroundings: where it runs
    :param gpus: its GPUs, by their numbers in the graph; () when they are on another host
    :param other: the workload beside it, which starts again until the measured one has ended; "" without
    :param other_gpus: that one's GPUs
    """

    workload: str
    surroundings: Surroundings
    gpus: tuple[int, ...] = ()
    other: str = ""
    other_gpus: tuple[int, ...] = ()


def experiments(
    graph: GpuGraph, workloads: Sequence[str], gpus: int, remote: Collection[str] = ()
) -> tuple[Experiment, ...]:
    """Return all experiments for some workloads on an empty host.

    :param graph: the host's GPUs
    :param workloads: names, each once
    :param gpus: GPUs that each workload uses
    :param remote: those of them that can use a GPU of another host
    :raises InvalidValueError: a workload that occurs twice or is unknown, or no GPU
    :raises CapabilityMissingError: the host cannot hold two packed workloads on one socket
    """
    if gpus < 1:
        raise InvalidValueError("gpus", gpus, "a number >= 1")
    if len(set(workloads)) != len(workloads) or not workloads:
        raise InvalidValueError("workloads", list(workloads), "at least one name, each once")
    if unknown := sorted(set(remote) - set(workloads)):
        raise InvalidValueError("remote", unknown[0], ", ".join(workloads))
    packed, second = _two_packed(graph, gpus)
    spread = _spread(graph, gpus)
    return tuple(_experiments(workloads, packed, second, spread, remote))


def _experiments(
    workloads: Sequence[str],
    packed: tuple[int, ...],
    second: tuple[int, ...],
    spread: tuple[int, ...],
    remote: Collection[str],
) -> Iterator[Experiment]:
    for workload in workloads:
        yield Experiment(workload, Surroundings.PACK, packed)
        if spread:
            yield Experiment(workload, Surroundings.SPREAD, spread)
        for other in workloads:
            yield Experiment(workload, Surroundings.BESIDE, packed, other, second)
        if workload in remote:
            yield Experiment(workload, Surroundings.REMOTE)
            yield Experiment(workload, Surroundings.LOADED)


def _two_packed(graph: GpuGraph, gpus: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The two nearest sets of GPUs of one socket that have none in common; the lowest numbers of equal ones."""
    pairs = [
        (max(_distance(graph, one), _distance(graph, two)), one, two)
        for mask in graph.socket_masks
        for one, two in itertools.combinations(_sets(graph, mask, gpus), 2)
        if not set(one) & set(two)
    ]
    if not pairs:
        most = max((mask.bit_count() for mask in graph.socket_masks), default=0)
        raise CapabilityMissingError(
            f"to measure two workloads of {gpus} GPUs beside each other, a socket needs {2 * gpus} GPUs; "
            f"the largest of this host has {most}"
        )
    _, one, two = min(pairs)
    return one, two


def _spread(graph: GpuGraph, gpus: int) -> tuple[int, ...]:
    """The farthest set of GPUs; () where all sets are alike: for one GPU, and on one socket without distances."""
    sets = list(_sets(graph, graph.all, gpus))
    farthest = max(_distance(graph, one) for one in sets)
    if gpus == 1 or farthest == min(_distance(graph, one) for one in sets):
        return ()
    return next(one for one in sets if _distance(graph, one) == farthest)


def _sets(graph: GpuGraph, mask: int, gpus: int) -> Iterator[tuple[int, ...]]:
    numbers = [gpu for gpu in range(len(graph.gpus)) if mask & mask_of((gpu,))]
    return itertools.combinations(numbers, gpus)


def _distance(graph: GpuGraph, gpus: Sequence[int]) -> float:
    return sum(graph.distances[a][b] for a, b in itertools.combinations(gpus, 2))
