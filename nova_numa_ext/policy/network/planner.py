# SPDX-License-Identifier: Apache-2.0
"""Plans one group: a policy for its leafs, what it holds for them, and where else its servers can go.

A group that holds leafs already stays in them: what it holds and has no server on comes first, and for more hosts it
is refused. Only a server that moves may go beside, and further. A group that holds nothing grows near its servers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from nova_numa_ext.policy.network import uplinks
from nova_numa_ext.policy.network.allocation import (
    Allocate,
    Found,
    Take,
    Takes,
    in_order,
    too_few,
)
from nova_numa_ext.policy.network.exclusive import exclusive
from nova_numa_ext.policy.network.first import first_available, first_contiguous
from nova_numa_ext.policy.network.groups import (
    DEFAULT_PLAN,
    Claims,
    GroupRequest,
    LeafPlaces,
    LeafPlan,
    NoLeafs,
    PlanOptions,
    PolicyName,
)
from nova_numa_ext.policy.network.leafs import Leaf, Leafs
from nova_numa_ext.policy.network.mixing import Company, company
from nova_numa_ext.policy.network.terms import GroupTerm
from nova_numa_ext.policy.network.tree_fit import balanced, best_fit, block, least_free
from nova_numa_ext.policy.network.vnb import Vnb
from placement_traits import names
from placement_traits.names import LEAF_UPLINK_UNITS, WHOLE_UPLINK, UplinkShare
from placement_traits.reason import Reason

SHARING: Final[Mapping[PolicyName, Allocate]] = {
    PolicyName.FIRST_AVAILABLE: first_available,
    PolicyName.FIRST_CONTIGUOUS: first_contiguous,
    PolicyName.BEST_FIT: best_fit,
    PolicyName.LEAST_FREE: least_free,
    PolicyName.BALANCED: balanced,
    PolicyName.BLOCK: block,
}
"""The policies that hold nothing."""

_BY_ORDER: Final = (PolicyName.FIRST_AVAILABLE, PolicyName.FIRST_CONTIGUOUS, PolicyName.VNB)
_WITHOUT_OTHERS: Final = (PolicyName.VNB, PolicyName.EXCLUSIVE)


def plan(
    leafs: Leafs, request: GroupRequest, options: PlanOptions = DEFAULT_PLAN
) -> LeafPlan | NoLeafs:
    """Return leafs for a group, or why it has none."""
    if problem := _problem(leafs, request):
        return NoLeafs((problem,), ever=False)
    found = _found(leafs, request, options)
    if isinstance(found, Reason):
        alone = replace(request, members={}, holds={})
        shared = sum(bool(leaf.residents) for leaf in leafs.leafs)
        with_others = request.share is UplinkShare.SHARED or request.hosts <= leafs.usual_size
        drained = sum(bool(leaf.drained) for leaf in leafs.leafs)
        beside = [
            *[Reason(GroupTerm.SHARING, shared)] * (shared > 0 and not with_others),
            *[Reason(GroupTerm.DRAINED, drained)] * (drained > 0),
        ]
        return NoLeafs(
            (found, *beside), not isinstance(_found(_emptied(leafs), alone, options), Reason)
        )
    spares, next_best = _others(leafs, request, found)
    return replace(_plan(leafs, request, options, found), spares=spares, next_best=next_best)


def places(
    leafs: Leafs, request: GroupRequest, options: PlanOptions = DEFAULT_PLAN
) -> LeafPlan | Reason:
    """Return the same leafs as :func:`plan`, or the first reason; for callers who ask thousands of times.

    Spares and the next best leafs are left out, and whether a group without a place would ever have one.
    """
    found = _problem(leafs, request) or _found(leafs, request, options)
    return found if isinstance(found, Reason) else _plan(leafs, request, options, found)


def policy_name(request: GroupRequest, options: PlanOptions) -> PolicyName:
    """Return which policy chooses a group's leafs."""
    if request.share is UplinkShare.EXCLUSIVE:
        return PolicyName.EXCLUSIVE
    if request.share is UplinkShare.QUIET:
        return options.quiet
    return PolicyName.BALANCED if request.is_balanced else options.shared


def _problem(leafs: Leafs, request: GroupRequest) -> Reason | None:
    if request.within is not None and request.within not in leafs.levels:
        return Reason(GroupTerm.LEVEL, request.within, ", ".join(leafs.levels))
    if request.hosts > leafs.size:
        return Reason(GroupTerm.FABRIC_SIZE, leafs.size, request.hosts, "the fabric")
    if request.hosts % request.slice_hosts and not request.members and not request.holds:
        return Reason(GroupTerm.SLICES, request.hosts, request.slice_hosts)
    return None


def _emptied(leafs: Leafs) -> Leafs:
    empty = leafs.emptied
    return replace(empty, leafs=tuple(replace(leaf, free=leaf.size) for leaf in empty.leafs))


def _found(leafs: Leafs, request: GroupRequest, options: PlanOptions) -> Found:
    if request.holds:
        return _in_own(leafs, request)
    if request.members:
        return _near_own(leafs, request, SHARING.get(options.shared, best_fit))
    name = policy_name(request, options)
    allocate = _policy(name, request, options)
    if request.within is None or (name in _WITHOUT_OTHERS and request.hosts <= leafs.usual_size):
        return _in_company(leafs, range(len(leafs.leafs)), request, name, allocate)
    nodes = _nodes(leafs, request.within)
    if name not in _BY_ORDER:
        nodes.sort(key=lambda node: sum(leafs.leafs[at].room for at in node))
    most = max(sum(leafs.leafs[at].room for at in node) for node in nodes)
    refused = Reason(GroupTerm.WITHIN, most, request.hosts, request.within)
    for node in nodes:
        found = _in_company(leafs, node, request, name, allocate)
        if not isinstance(found, Reason):
            return found
        if most >= request.hosts:
            refused = found
    return refused


def _policy(name: PolicyName, request: GroupRequest, options: PlanOptions) -> Allocate:
    if name is PolicyName.VNB:
        return Vnb(options.remainders_most, request.is_balanced)
    return exclusive if name is PolicyName.EXCLUSIVE else SHARING[name]


def _nodes(leafs: Leafs, level: str) -> list[list[int]]:
    """Return the leafs below each node of a level, in order."""
    number = leafs.levels.index(level)
    found: dict[str, list[int]] = {}
    for at, leaf in enumerate(leafs.leafs):
        found.setdefault((leaf.name, *leaf.above)[number], []).append(at)
    return list(found.values())


def _in_company(
    leafs: Leafs,
    allowed: Sequence[int],
    request: GroupRequest,
    name: PolicyName,
    allocate: Allocate,
) -> Found:
    """Choose leafs in good company, if there are any; a group in one leaf uses no uplink, and may be beside anyone."""
    found = allocate(leafs, allowed, request.hosts, request.slice_hosts)
    if isinstance(found, Reason) or name in _WITHOUT_OTHERS:
        return found
    if any(map(leafs.is_closed, allowed)):
        beside, allowed = found, _open(leafs, allowed)
        found = allocate(leafs, allowed, request.hosts, request.slice_hosts)
        if len(beside) == 1 and (isinstance(found, Reason) or len(found) > 1):
            return beside
        if isinstance(found, Reason):
            return _kept_off(leafs, allowed, request.hosts)
    if len(found) == 1:
        return found
    for worst in (Company.GOOD, Company.FAIR):
        if all(company(leafs.leafs[one.at], request.net_class) <= worst for one in found):
            break
        narrower = [at for at in allowed if company(leafs.leafs[at], request.net_class) <= worst]
        better = allocate(leafs, narrower, request.hosts, request.slice_hosts)
        if not isinstance(better, Reason):
            return better
    return found


def _open(leafs: Leafs, allowed: Sequence[int]) -> list[int]:
    return [at for at in allowed if not leafs.is_closed(at)]


def _kept_off(leafs: Leafs, allowed: Sequence[int], hosts: int) -> Reason:
    return Reason(GroupTerm.QUIET, sum(leafs.leafs[at].room for at in allowed), hosts)


def _in_own(leafs: Leafs, request: GroupRequest) -> Found:
    """Take what the group holds and does not use; a server that moves may go beside, then near, then anywhere."""
    taken: dict[int, int] = {}
    for at, leaf in enumerate(leafs.leafs):
        held = sum(request.holds.get(leaf.name, {}).values())
        unused = min(leaf.free, max(0, held - request.members.get(leaf.name, 0)))
        taken[at] = min(unused, request.hosts - sum(taken.values()))
    found = sum(taken.values())
    if found == request.hosts:
        return in_order(taken)
    if request.is_move:
        return _near_own(leafs, request, best_fit)
    return Reason(GroupTerm.HELD, found, request.hosts, "it grows in its own leafs only")


def _near_own(leafs: Leafs, request: GroupRequest, allocate: Allocate) -> Found:
    """Take hosts in the group's leafs, then in one of its pods, then anywhere; below its node where it must stay."""
    own = [
        at for at, leaf in enumerate(leafs.leafs) if leaf.name in {*request.members, *request.holds}
    ]
    allowed: Sequence[int] = range(len(leafs.leafs))
    if request.within is not None:
        nodes = _nodes(leafs, request.within)
        allowed = [at for node in nodes if not set(node).isdisjoint(own) for at in node]
    taken: dict[int, int] = {}
    for at in sorted(own, key=lambda at: (-request.members.get(leafs.leafs[at].name, 0), at)):
        taken[at] = min(leafs.leafs[at].room, request.hosts - sum(taken.values()))
    left = request.hosts - sum(taken.values())
    if not left:
        return in_order(taken)
    pods = {leafs.leafs[at].pod for at in own}
    others = [at for at in allowed if at not in taken]
    near = [at for at in others if leafs.leafs[at].pod in pods]
    areas = [near, others] if request.is_move else []
    if not request.is_move or request.share is UplinkShare.SHARED:
        areas = [_open(leafs, near), _open(leafs, others), *areas]
    if not request.holds and not request.is_move and any(map(leafs.is_closed, own)):
        areas = []  # its own servers would use uplinks that are not for it
    found: Found = too_few({}, left)
    for area in areas:
        found = allocate(leafs, area, left, 1)
        if not isinstance(found, Reason):
            break
    if isinstance(found, Reason):
        if not request.is_move and not isinstance(allocate(leafs, others, left, 1), Reason):
            return _kept_off(leafs, _open(leafs, allowed), request.hosts)
        free = sum(leafs.leafs[at].room for at in allowed)
        if request.within is not None:
            return Reason(GroupTerm.WITHIN, free, request.hosts, request.within)
        return Reason(GroupTerm.FREE_HOSTS, free, request.hosts)
    return in_order({**taken, **{one.at: one.hosts for one in found}})


def _plan(leafs: Leafs, request: GroupRequest, options: PlanOptions, takes: Takes) -> LeafPlan:
    claims = request.holds or _claims(leafs, request, takes)
    least = -(-request.hosts // leafs.largest)
    return LeafPlan(
        tuple(LeafPlaces(leafs.leafs[one.at].name, one.hosts) for one in takes),
        claims,
        _uplinks(leafs, request, takes),
        {
            leafs.leafs[one.at].name: one.layout
            for one in takes
            if one.holds and leafs.leafs[one.at].layout is not one.layout
        },
        reasons=(
            Reason(GroupTerm.POLICY, _chosen_by(request, options)),
            Reason(GroupTerm.LEAFS, len(takes), least),
        ),
    )


def _chosen_by(request: GroupRequest, options: PlanOptions) -> str:
    if request.holds or request.members:
        return "its leafs, where it is"
    return policy_name(request, options)


def _claims(leafs: Leafs, request: GroupRequest, takes: Takes) -> Claims:
    if request.share is UplinkShare.SHARED:
        return {}
    found: dict[str, Mapping[str, int]] = {leafs.leafs[one.at].name: one.holds for one in takes}
    if len(takes) > 1:
        units = WHOLE_UPLINK if request.share is UplinkShare.EXCLUSIVE else 1
        for one in takes:
            pod = leafs.leafs[one.at].pod
            if pod:
                found[pod] = {names.POD_UPLINK: units}
    return found


def _uplinks(leafs: Leafs, request: GroupRequest, takes: Takes) -> dict[str, int]:
    """Return what a group takes of the uplinks of leafs; what it holds already has them."""
    held = {leafs.leafs[one.at].name: one for one in takes}
    of_group = {*held, *request.members}
    used = [leaf for leaf in leafs.leafs if leaf.name in of_group]
    if len(used) < 2 or request.holds:
        return {}
    units = uplinks.SHARES[request.net_class]
    if request.share is UplinkShare.EXCLUSIVE:
        units = LEAF_UPLINK_UNITS
    if request.share is not UplinkShare.QUIET:
        return dict.fromkeys((leaf.name for leaf in used), units)
    return {
        leaf.name: uplinks.of_blocks(leaf.size, leaf.block, blocks) if blocks else units
        for leaf in used
        if leaf.name in held
        for blocks in [held[leaf.name].holds.get(names.LEAF_BLOCK, 0)]
    }


def _others(
    leafs: Leafs, request: GroupRequest, takes: Takes
) -> tuple[tuple[LeafPlaces, ...], tuple[str, ...]]:
    """Return spares, and all leafs with room that have no place; both the nearest first, and where the group may be."""
    placed = {one.at: one for one in takes}
    beside = [(at, _beside(leafs.leafs[at], one, request)) for at, one in placed.items()]
    pods = {leafs.leafs[at].pod for at in placed}
    middle = sum(placed) / len(placed)
    allowed = _below_same(leafs, request.within, placed)
    rest = [at for at in allowed if at not in placed and leafs.leafs[at].room]
    rest.sort(key=lambda at: (leafs.leafs[at].pod not in pods, abs(at - middle), at))
    is_shared = request.share is UplinkShare.SHARED  # another would leave its uplinks for others'
    further = ((at, leafs.leafs[at].room) for at in rest if is_shared and not leafs.is_closed(at))
    spares, left = [], request.spares
    for at, room in chain(beside, further):
        if not left:
            break
        if hosts := min(left, room):
            spares.append(LeafPlaces(leafs.leafs[at].name, hosts))
            left -= hosts
    return tuple(spares), tuple(leafs.leafs[at].name for at in rest)


def _below_same(leafs: Leafs, level: str | None, places: Collection[int]) -> list[int]:
    """Return the leafs of the nodes of a level in which there are places; all leafs without a level."""
    if level is None:
        return list(range(len(leafs.leafs)))
    nodes = _nodes(leafs, level)
    return [at for node in nodes if not set(node).isdisjoint(places) for at in node]


def _beside(leaf: Leaf, take: Take, request: GroupRequest) -> int:
    """Return the hosts of a leaf that are left beside a take: free, and held by no other group."""
    others = leaf.held_hosts - sum(request.holds.get(leaf.name, {}).values())
    return max(0, min(leaf.free, leaf.size - others) - take.hosts)
