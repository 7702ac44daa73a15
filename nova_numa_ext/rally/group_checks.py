# SPDX-License-Identifier: Apache-2.0
"""Who shares uplinks with whom among groups that a task has placed on a fabric, from where their servers hang.

What sharing costs an application is not here: that needs its time alone, and nothing on a real fabric measures it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from nova_numa_ext.policy.network.pairs import PlacedGroup, shares_leaf, shares_pod
from nova_numa_ext.rally import samples
from nova_numa_ext.rally.samples import Topic
from placement_traits.errors import InvalidValueError

_SERVER: Final = "server"
COLUMNS: Final = ("group", "servers", "leafs", "pods", "placed after, s", "shares with")


def placed(name: str, rows: Any, submitted_at: float, started_at: float) -> PlacedGroup:
    """Return a group that is there, and goes on to be.

    :param name: unlike all others'
    :param rows: what ``openstack numa group topology --names`` prints: of each server the nodes above it by level, the
        leaf first
    :param submitted_at: when it was asked for, s
    :param started_at: when all of it was there, s
    :raises InvalidValueError: these are no such rows, or a server hangs on no fabric
    """
    try:
        nodes = [[str(node) for level, node in row.items() if level != _SERVER] for row in rows]
    except (AttributeError, TypeError) as error:
        raise InvalidValueError("topology", rows, "a list of servers with their nodes") from error
    if not nodes or not all(nodes):
        raise InvalidValueError("topology", rows, "servers that hang on a fabric")
    return PlacedGroup(
        name,
        len(nodes),
        submitted_at,
        started_at,
        float("inf"),
        frozenset(above[0] for above in nodes),
        frozenset(node for above in nodes for node in above[1:2]),
    )


@dataclass(frozen=True, slots=True)
class SharingFindings:
    """Who shares.

    :param groups: that were there at the same time
    :param others: of each the names of those with which it shares uplinks of a leaf or of a pod
    :param leaf_pairs: pairs that share those of a leaf
    :param pod_pairs: pairs that share those of a pod
    """

    groups: tuple[PlacedGroup, ...]
    others: Mapping[str, Sequence[str]]
    leaf_pairs: int
    pod_pairs: int

    @classmethod
    def of(cls, groups: Sequence[PlacedGroup]) -> "SharingFindings":
        """Return who shares among groups."""
        others: dict[str, list[str]] = {each.name: [] for each in groups}
        pairs = {
            (one.name, other.name)
            for one, other in combinations(groups, 2)
            if shares_leaf(one, other) or shares_pod(one, other)
        }
        for one, other in sorted(pairs):
            others[one].append(other)
            others[other].append(one)
        of_leafs = sum(shares_leaf(*pair) for pair in combinations(groups, 2))
        of_pods = sum(shares_pod(*pair) for pair in combinations(groups, 2))
        return cls(tuple(groups), others, of_leafs, of_pods)

    def chart(self) -> dict[str, Any]:
        """Return the sample: groups of several leafs, for others use no uplinks, and those of them that share."""
        large = sum(len(each.leafs) > 1 for each in self.groups)
        return samples.chart(Topic.SHARING, large, sum(map(bool, self.others.values())))

    def rows(self) -> list[list[Any]]:
        """Return a row of :data:`COLUMNS` for each group."""
        return [
            [
                each.name,
                each.hosts,
                len(each.leafs),
                len(each.pods),
                round(each.started_at - each.submitted_at, 1),
                ", ".join(self.others[each.name]) or "-",
            ]
            for each in self.groups
        ]

    def sentence(self) -> str:
        """Return the metrics of sharing, for people."""
        count = len(self.groups)
        shared = [*map(len, self.others.values())]
        mean = sum(shared) / max(1, count)
        return (
            f"{sum(map(bool, shared))} of {count} groups share uplinks, with {mean:.2f} others each in the mean; "
            f"pairs that share those of a leaf: {self.leaf_pairs}, of a pod: {self.pod_pairs}"
        )
