# SPDX-License-Identifier: Apache-2.0
"""Which worker sets the canonical tuner has to measure.

There are 2^N sets of nodes, but a guest is only ever put on *rational* ones (no other set of that size is closer
together) and a symmetric machine has many sets that look the same. Two sets are symmetric when a permutation of the
nodes that keeps every distance maps one to the other; one representative is measured and the permutation carries its
weights.

Source: Gureya 2021, section 4.3 (L1161-1173).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from host_agent.model.pages import Shares
from host_agent.model.traffic import NodeBandwidth

MAX_SETS: Final = 5000
"""Sets of one size that are looked at; larger machines take contiguous growths only."""


@dataclass(frozen=True, slots=True)
class ProfileSet:
    """One worker set to measure.

    :param workers: the representative
    :param members: every rational set of its symmetry class, with the permutation that maps the representative to it
    """

    workers: frozenset[int]
    members: Mapping[frozenset[int], Mapping[int, int]]

    def weights_of(self, member: frozenset[int], measured: Shares) -> dict[int, float]:
        """Return a member's canonical weights, made from those of the representative."""
        permutation = self.members[member]
        return {permutation[node]: share for node, share in measured.items()}


def profile_sets(distances: Mapping[int, Mapping[int, int]]) -> tuple[ProfileSet, ...]:
    """Return the sets to measure, small ones first.

    :param distances: node -> node -> SLIT distance
    """
    nodes = sorted(distances)
    result: list[ProfileSet] = []
    for size in range(1, len(nodes) + 1):
        classes: list[tuple[frozenset[int], dict[frozenset[int], Mapping[int, int]]]] = []
        for members in _rational(nodes, distances, size):
            for representative, known in classes:
                permutation = _automorphism(distances, representative, members)
                if permutation is not None:
                    known[members] = permutation
                    break
            else:
                classes.append((members, {members: {node: node for node in nodes}}))
        result += [ProfileSet(representative, known) for representative, known in classes]
    return tuple(result)


def widest_sets(pairs: NodeBandwidth, workers: Collection[int]) -> tuple[frozenset[int], ...]:
    """Return, for each number of workers, the set with the most aggregate bandwidth between its nodes.

    Guests are put on such sets once the pairs are measured: AsymSched's rule, which Gureya 2021 follows.

    :param pairs: memory node -> worker -> MB/s, one pair at a time
    :param workers: nodes with CPUs
    """

    def between(members: tuple[int, ...]) -> float:
        return sum(pairs[a][b] for a in members for b in members if a != b)

    nodes, far = sorted(workers), _narrowness(pairs)
    widest = (max(_candidates(nodes, far, size), key=between) for size in range(1, len(nodes) + 1))
    return tuple(frozenset(members) for members in widest)


def _narrowness(pairs: NodeBandwidth) -> dict[int, dict[int, int]]:
    """Return the pairs as distances, for machines on which not every set can be looked at."""
    return {a: {b: -round(mbps) for b, mbps in row.items()} for a, row in pairs.items()}


def _rational(
    nodes: list[int], distances: Mapping[int, Mapping[int, int]], size: int
) -> list[frozenset[int]]:
    def spread(members: tuple[int, ...]) -> int:
        return sum(distances[a][b] for a in members for b in members)

    candidates = list(_candidates(nodes, distances, size))
    closest = min(spread(members) for members in candidates)
    return [frozenset(members) for members in candidates if spread(members) == closest]


def _candidates(
    nodes: list[int], distances: Mapping[int, Mapping[int, int]], size: int
) -> Iterator[tuple[int, ...]]:
    count = 1
    for taken in range(size):
        count = count * (len(nodes) - taken) // (taken + 1)
    if count <= MAX_SETS:
        yield from combinations(nodes, size)
        return
    seen = set()
    for first in nodes:
        grown = sorted(nodes, key=lambda node: (distances[first][node], node))[:size]
        members = tuple(sorted(grown))
        if members not in seen:
            seen.add(members)
            yield members


def _automorphism(
    distances: Mapping[int, Mapping[int, int]], source: frozenset[int], target: frozenset[int]
) -> dict[int, int] | None:
    """Find a permutation of the nodes that keeps all distances and maps ``source`` onto ``target``."""
    order = sorted(source) + sorted(set(distances) - source)
    profile = {
        node: (
            tuple(sorted(distances[node].values())),
            tuple(sorted(distances[o][node] for o in distances)),
        )
        for node in distances
    }

    def extend(mapped: dict[int, int]) -> dict[int, int] | None:
        if len(mapped) == len(order):
            return dict(mapped)
        node = order[len(mapped)]
        for image in sorted(target if node in source else set(distances) - target):
            fits = (
                image not in mapped.values()
                and profile[image] == profile[node]
                and distances[node][node] == distances[image][image]
                and all(
                    distances[node][other] == distances[image][there]
                    and distances[other][node] == distances[there][image]
                    for other, there in mapped.items()
                )
            )
            if fits:
                mapped[node] = image
                found = extend(mapped)
                if found is not None:
                    return found
                del mapped[node]
        return None

    return extend({})
