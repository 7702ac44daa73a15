# SPDX-License-Identifier: Apache-2.0
"""Which groups have shared the network, and the six metrics of a log of groups (Jokanović, sections 2.2.5 and 4.3).

A group uses the uplinks of its leafs where it has several leafs, and those of its pods where it has several pods. Two
groups share a level where they run at the same time, both use it, and have a node of it in common.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from placement_traits.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """A group that has run.

    :param name: unlike all others'
    :param hosts: that it had
    :param submitted_at: s
    :param started_at: s
    :param ended_at: s
    :param leafs: on which its hosts were
    :param pods: above these
    """

    name: str
    hosts: int
    submitted_at: float
    started_at: float
    ended_at: float
    leafs: frozenset[str]
    pods: frozenset[str]


@dataclass(frozen=True, slots=True)
class LogMetrics:
    """What a policy has made of a log.

    :param completion_s: from the first submission to the last end
    :param utilisation: mean share of the hosts that had a group, in [0, 1]
    :param waiting_s: mean time that groups waited
    :param per_group: mean number of other groups with which one shared
    :param sharing: share of the groups that shared with any, in [0, 1]
    :param leaf_pairs: pairs that shared uplinks of a leaf
    :param pod_pairs: pairs that shared uplinks of a pod
    """

    completion_s: float
    utilisation: float
    waiting_s: float
    per_group: float
    sharing: float
    leaf_pairs: int
    pod_pairs: int


def shares_leaf(one: PlacedGroup, other: PlacedGroup) -> bool:
    """Return whether two groups have used the uplinks of a leaf at the same time."""
    large = len(one.leafs) > 1 and len(other.leafs) > 1
    return large and _overlap(one, other) and not one.leafs.isdisjoint(other.leafs)


def shares_pod(one: PlacedGroup, other: PlacedGroup) -> bool:
    """Return whether two groups have used the uplinks of a pod at the same time."""
    large = len(one.pods) > 1 and len(other.pods) > 1
    return large and _overlap(one, other) and not one.pods.isdisjoint(other.pods)


def metrics(groups: Sequence[PlacedGroup], hosts: int) -> LogMetrics:
    """Return the metrics of a log.

    :param groups: all that have run, at least one
    :param hosts: of the fabric
    :raises InvalidValueError: there is no group, or nothing has taken any time
    """
    if not groups:
        raise InvalidValueError("groups", 0, "at least one")
    completion = max(each.ended_at for each in groups) - min(each.submitted_at for each in groups)
    if completion <= 0 or hosts < 1:
        raise InvalidValueError("log", (completion, hosts), "hosts and time > 0")
    of_leafs = [pair for pair in combinations(groups, 2) if shares_leaf(*pair)]
    of_pods = [pair for pair in combinations(groups, 2) if shares_pod(*pair)]
    pairs = {(one.name, other.name) for one, other in (*of_leafs, *of_pods)}
    others = Counter(name for pair in pairs for name in pair)
    busy = sum(each.hosts * (each.ended_at - each.started_at) for each in groups)
    return LogMetrics(
        completion_s=completion,
        utilisation=busy / (hosts * completion),
        waiting_s=sum(each.started_at - each.submitted_at for each in groups) / len(groups),
        per_group=sum(others.values()) / len(groups),
        sharing=len(others) / len(groups),
        leaf_pairs=len(of_leafs),
        pod_pairs=len(of_pods),
    )


def _overlap(one: PlacedGroup, other: PlacedGroup) -> bool:
    return one.started_at < other.ended_at and other.started_at < one.ended_at
