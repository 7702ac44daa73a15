# SPDX-License-Identifier: Apache-2.0
"""Places for parts whose servers are one group on the fabric: leafs with counts, then hosts in them.

The leafs come from the planner that nova-scheduler asks, too (:mod:`nova_numa_ext.policy.network.planner`), with as
many free hosts as the aspects of hosts leave; a host takes one server of a group. So leafs, host and GPUs are decided
together: it is tried first with hosts whose agents report and whose GPUs are good enough, then with worse ones. How
near each other the servers must be is the narrower of what the group requests and what the part still waits for.

Nova plans the group again when it makes the servers, with what is free then, and lets it hold its leafs. Until
Placement shows that, :class:`GroupTakes` keeps other groups of the queue off.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nova_numa_ext.policy.jobs.job import Scope
from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlaces, LeafPlan, PlanOptions
from nova_numa_ext.policy.network.leafs import Leaf, Leafs
from nova_numa_ext.policy.network.planner import plan
from nova_numa_ext.policy.numa.coarse_terms import Integers, Mask
from placement_traits.names import WHOLE_UPLINK, NetClass, UplinkShare
from placement_traits.network_request import NetworkRequest
from placement_traits.reason import Reason

_LEVEL_OF: Final = {Scope.LEAF: 0, Scope.POD: 1}


@dataclass(frozen=True, slots=True, eq=False)
class NumberedLeafs:
    """A fabric and its hosts.

    :param leafs: of the fabric; without free hosts, which depend on the server
    :param number: of each leaf in ``leafs``, as hosts are numbered by leaf; less than 0 where no host is known by it
    """

    leafs: Leafs
    number: Sequence[int]

    @property
    def empty(self) -> "NumberedLeafs":
        """The same fabric without any group, and no leaf of it drained."""
        return replace(self, leafs=self.leafs.emptied)


class GroupTakes:
    """What groups of the queue use of leafs beyond what Placement shows; less than nothing where they give it back.

    :ivar large: by leaf and use: how many groups of several leafs
    """

    def __init__(self, large: Mapping[tuple[int, str], int] | None = None) -> None:
        self.large = Counter[tuple[int, str]](large or {})

    def add(self, network: NetworkRequest, leafs: Sequence[int], sign: int) -> None:
        """Add a group, or take one away; within one leaf it uses no uplink.

        :param leafs: of its hosts
        :param sign: 1 or -1
        """
        if len(leafs) < 2:
            return
        use = network.net_class if network.share is UplinkShare.SHARED else network.share
        for leaf in leafs:
            self.large[leaf, use] += sign

    def copy(self) -> "GroupTakes":
        """Return takes of their own."""
        return GroupTakes(self.large)

    def either(self, other: "GroupTakes") -> "GroupTakes":
        """Return the takes that leave what is left in both."""
        keys = {*self.large, *other.large}
        return GroupTakes({key: max(self.large[key], other.large[key]) for key in keys})

    def on(self, fabric: NumberedLeafs, free: Mapping[int, int]) -> Leafs:
        """Return the leafs of a fabric as a group finds them.

        :param free: hosts that may take a server of the group, by number of the leaf
        """
        uplinks = dict(fabric.leafs.uplinks)
        leafs = []
        for leaf, number in zip(fabric.leafs.leafs, fabric.number, strict=True):
            alone = sum(
                self.large[number, use] for use in (UplinkShare.QUIET, UplinkShare.EXCLUSIVE)
            )
            pods = self.large[number, UplinkShare.EXCLUSIVE]
            if leaf.pod and pods:
                uplinks[leaf.pod] = WHOLE_UPLINK if pods > 0 else 0
            leafs.append(
                replace(
                    leaf,
                    free=free.get(number, 0),
                    held=_held(leaf, alone),
                    residents=tuple(self._residents(leaf, number)),
                )
            )
        return replace(fabric.leafs, leafs=tuple(leafs), uplinks=uplinks)

    def closed(self, fabrics: Sequence[NumberedLeafs]) -> frozenset[int]:
        """Return the numbers of the leafs whose uplinks a group has alone."""
        found: set[int] = set()
        for fabric in fabrics:
            leafs = self.on(fabric, {}) if self.large else fabric.leafs
            found |= {each for at, each in enumerate(fabric.number) if leafs.is_closed(at)}
        return frozenset(found)

    def _residents(self, leaf: Leaf, number: int) -> Iterator[NetClass]:
        there = Counter(leaf.residents)
        for use in NetClass:
            yield from [use] * max(0, there[use] + self.large[number, use])


def _held(leaf: Leaf, alone: int) -> Mapping[str, int]:
    """Return what groups hold of a leaf when one more has it alone, or the one that has."""
    if not alone:
        return leaf.held
    return leaf.whole_claim() if alone > 0 else {}


@dataclass(frozen=True, slots=True)
class GroupPart:
    """A part that is one group.

    :param network: what it requests of the fabric
    :param count: servers
    :param scope: how near each other they must be, beside what the group requests
    :param spares: hosts beside, at most
    """

    network: NetworkRequest
    count: int
    scope: Scope
    spares: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """Hosts that may take a server of a group.

    :param order: rows of the hosts, the best first
    :param good: which of all hosts have an agent that reports and GPUs that are good enough, H
    :param leaf: number of each host's leaf, H
    """

    order: Integers
    good: Mask
    leaf: Integers


@dataclass(frozen=True, slots=True)
class GroupHosts:
    """Hosts of a group.

    :param rows: one host for each server, in the order of the fabric
    :param spares: hosts that come after them
    """

    rows: tuple[int, ...]
    spares: tuple[int, ...] = ()


def places(
    part: GroupPart,
    candidates: Candidates,
    fabrics: Sequence[NumberedLeafs],
    takes: GroupTakes,
    options: PlanOptions,
) -> GroupHosts | tuple[Reason, ...]:
    """Return hosts for all servers of a group, or why it has none; () without a fabric."""
    order = candidates.order
    good = order[candidates.good[order]]
    reasons: tuple[Reason, ...] = ()
    for rows in (good, order) if len(good) < len(order) else (order,):
        by_leaf = _by_leaf(rows, candidates.leaf)
        free = {number: len(hosts) for number, hosts in by_leaf.items()}
        for fabric in fabrics:
            found = plan(takes.on(fabric, free), _asked(part, fabric.leafs), options)
            if isinstance(found, LeafPlan):
                return _hosts(found, fabric, by_leaf, part.spares)
            reasons = found.reasons
    return reasons


def _asked(part: GroupPart, leafs: Leafs) -> GroupRequest:
    network = part.network
    return GroupRequest(
        part.count,
        network.share,
        _within(network.within, part.scope, leafs.levels),
        network.slice_size,
        network.balance,
        network.net_class,
        spares=part.spares,
    )


def _within(level: str, scope: Scope, levels: Sequence[str]) -> str | None:
    """Return the narrower of a level and a scope, None for neither; a level that the fabric has not is refused."""
    if scope not in _LEVEL_OF or (level and level not in levels):
        return level or None
    of_scope = min(_LEVEL_OF[scope], len(levels) - 1)
    return levels[min(of_scope, levels.index(level))] if level else levels[of_scope]


def _by_leaf(rows: Integers, leaf: Integers) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row, number in zip(rows.tolist(), leaf[rows].tolist(), strict=True):
        found.setdefault(number, []).append(row)
    return found


def _hosts(
    found: LeafPlan,
    fabric: NumberedLeafs,
    by_leaf: Mapping[int, Sequence[int]],
    spares: int,
) -> GroupHosts:
    names = [leaf.name for leaf in fabric.leafs.leafs]
    number = dict(zip(names, fabric.number, strict=True))

    def of(places: Sequence[LeafPlaces], taken: frozenset[int] = frozenset()) -> Iterator[int]:
        for each in places:
            left = [row for row in by_leaf[number[each.leaf]] if row not in taken]
            yield from left[: each.hosts]

    rows = tuple(of(found.places))
    return GroupHosts(rows, tuple(of(found.spares, frozenset(rows)))[:spares])
