# SPDX-License-Identifier: Apache-2.0
"""Hosts for the servers of a group: leafs from the fabric's planner, hosts in them from our score and nova's filters.

The group is planned in the first pass of its request, for all its servers::

    leafs       planned by usable hosts: those that Placement offers and no one has refused yet
    hosts       the best of each planned leaf are judged, and nova's later filters asked
                one that is refused is usable no longer: planned again, until all that are planned have passed
    spares      the next hosts, for failed claims and builds
    claim       once, where the group asks to be alone and holds nothing yet; lost to another group: planned again

Later passes go down the same list. Nova takes hosts in the order of the weights, and goes on to the next one where a
claim fails, without a word: hosts that came before the one that it took have been tried and lost.
"""

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, Protocol

import numpy as np

from nova_numa_ext.fabrics import FabricState, GroupOwner, only_shares
from nova_numa_ext.policy.network.groups import (
    Claims,
    GroupRequest,
    LeafPlaces,
    LeafPlan,
    NoLeafs,
    PlanOptions,
)
from nova_numa_ext.policy.network.leafs import Leafs
from nova_numa_ext.policy.network.terms import sentence
from nova_numa_ext.policy.numa.coarse_terms import Integers, Mask
from nova_numa_ext.policy.numa.score import Floats
from nova_numa_ext.scheduler.groups import ServerGroup
from placement_traits import names
from placement_traits.claim_store import ForeignConsumerError, NoRoomError
from placement_traits.claims import Amounts
from placement_traits.errors import ConflictError
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.network_request import NetworkRequest

LOG = logging.getLogger(__name__)

_LEAST_SPARES: Final = 16
_SPARES_PER_SERVERS: Final = 8
_CLAIM_TRIES: Final = 3
_NO_FABRIC: Final = "no fabric is in Placement: openstack numa fabric apply puts one there."
_LOST: Final = f"other groups took the planned leafs {_CLAIM_TRIES} times in a row: ask again."


class Fabrics(Protocol):
    """Fabrics in Placement, and what groups hold of them."""

    def read(self) -> Sequence[FabricState]:
        """Return the fabrics as they are now."""

    def held(self, owner: GroupOwner) -> Amounts:
        """Return what a group holds; {} for nothing.

        :raises ForeignConsumerError: it is another project's
        """

    def claim(self, fabric: FabricState, owner: GroupOwner, found: LeafPlan) -> None:
        """Let a group that holds nothing hold what was planned, all or nothing.

        :raises NoRoomError: another group has some of it
        :raises ConflictError: others have planned since the fabric was read
        """

    def keep(self, owner: GroupOwner, amounts: Amounts) -> None:
        """Let a group hold what it holds, new for all who have read it before: none of them may release it any more.

        :raises ConflictError: it holds something else by now
        """

    def share(self, fabric: FabricState, owner: GroupOwner, found: LeafPlan) -> None:
        """Let others see whose uplinks a group uses beside them.

        :raises NoRoomError: another group has some of them alone
        :raises ConflictError: the group's servers are placed by someone else, too
        """

    def release(self, group: str) -> None:
        """Let a group hold nothing."""

    def providers_of(self, server: str) -> frozenset[str]:
        """Return the providers of which a server has something; none before it has a host."""


@dataclass(frozen=True, slots=True)
class GroupPlaces:
    """Where the servers of a request go.

    :param group: that is placed
    :param places: root providers in order of ranks, one for each server that has no host yet
    :param spares: root providers of the hosts that come after them
    :param leafs: leaf of each of them
    :param reasons: sentences
    :param claimed: the group has something of its leafs by this request, and had nothing before
    :param lost: claims that other groups were faster with
    """

    group: ServerGroup
    places: tuple[str, ...]
    spares: tuple[str, ...] = ()
    leafs: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    claimed: bool = False
    lost: int = 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """Root providers in the order in which nova should take them."""
        return tuple(dict.fromkeys((*self.places, *self.spares)))

    def after(self, taken: str, *, in_order: bool) -> "GroupPlaces":
        """Return the plan for the servers after one that has got a host.

        :param taken: root provider of the host
        :param in_order: nova has tried all hosts that came before it
        """
        order = self.hosts
        if taken not in order:
            return self
        lost = frozenset(order[: order.index(taken)] if in_order else ())
        places = [root for root in self.places if root not in lost]
        if taken in places:
            places.remove(taken)
        used = {taken, *lost} - {*places}
        spares = tuple(root for root in self.spares if root not in used)
        return replace(self, places=tuple(places), spares=spares)

    def weights(self, roots: Sequence[str], others: Floats) -> Floats:
        """Return weights by which hosts come in the order of the plan whatever the other weighers say.

        :param roots: root providers
        :param others: their weights without ours
        """
        position = {root: at for at, root in enumerate(self.hosts)}
        step = 1.0 + float(others.max() - others.min()) if len(others) else 1.0
        return -step * np.array([position.get(root, len(position)) for root in roots], float)


@dataclass(frozen=True, slots=True)
class NoPlan:
    """A group has no place.

    :param reasons: sentences, never empty
    :param lost: claims that other groups were faster with
    """

    reasons: tuple[str, ...]
    lost: int = 0


Planner = Callable[[Leafs, GroupRequest, PlanOptions], LeafPlan | NoLeafs]
Passing = Callable[[Sequence[int]], set[int]]
"""Judges hosts by their positions and asks nova's later filters; returns those that pass both."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Hosts that Placement offers for each server of a group.

    :param roots: root providers
    :param ordered: positions in ``roots``, the best first
    :param possible: whether a server can go there by what is remembered; stale knowledge refuses nothing
    """

    roots: Sequence[str]
    ordered: Integers
    possible: Mask


class GroupPlanner:
    """Plans groups and claims their leafs.

    :param fabrics: returns those in Placement; called when the first group comes
    :param planner: chooses leafs
    :param options: the operator's
    """

    def __init__(
        self, fabrics: Callable[[], Fabrics], planner: Planner, options: PlanOptions | None = None
    ) -> None:
        self._made = functools.cache(fabrics)
        self._planner = planner
        self._options = options or PlanOptions()

    def plan(
        self,
        group: ServerGroup,
        offered: Offered,
        arrays: FleetArrays,
        passing: Passing,
        *,
        claims: bool,
    ) -> GroupPlaces | NoPlan:
        """Plan a group, and let it hold its leafs when its first servers come; one that shares is noted on its uplinks.

        One that has servers and holds nothing was placed while nothing was claimed: what others are beside it by now is
        no place to hold. One whose servers are all gone begins again: hosts that it still holds are kept from those who
        sweep, and where it only shared and asks to be alone now, its uplinks are forgotten.

        :param arrays: hosts with the traits that name their leafs
        :param claims: false: nothing is claimed
        """
        search = _Search(group, offered, arrays, passing, self._choose, where=self._where)
        begins = not (group.hosts or group.moves)
        for attempt in range(_CLAIM_TRIES):
            try:
                held = self._made().held(group.owner)
            except ForeignConsumerError as error:
                return NoPlan((str(error),))
            if claims and begins and group.request.claims and only_shares(held):
                self._made().release(group.uuid)
                held = {}
            refusals: list[str] = []
            for fabric in self._made().read():
                if held and not fabric.nodes(held):
                    continue
                answer = search.in_fabric(fabric, fabric.held(held))
                if isinstance(answer, GroupPlaces):
                    break
                refusals += answer.reasons
            else:
                return NoPlan(tuple(refusals) or (_NO_FABRIC,), attempt)
            if not claims:
                return answer
            try:
                took = self._take(fabric, group, search.chosen, held, begins=begins)
            except (NoRoomError, ConflictError) as error:
                if not begins and attempt == _CLAIM_TRIES - 1:  # it is there, seen or not
                    LOG.warning("Server group %s shares uplinks unseen: %s", group.uuid, error)
                    return replace(answer, lost=_CLAIM_TRIES)
                LOG.info("Server group %s is planned again: %s", group.uuid, error)
                continue
            return replace(answer, claimed=took and begins and not held, lost=attempt)
        return NoPlan((_LOST,), _CLAIM_TRIES)

    def _take(
        self,
        fabric: FabricState,
        group: ServerGroup,
        found: LeafPlan,
        held: Amounts,
        *,
        begins: bool,
    ) -> bool:
        """Let a group hold what was planned, or be seen on the uplinks that it shares; return whether it takes any.

        :param held: what it held before it was planned
        :raises NoRoomError: another group has some of it
        :raises ConflictError: others have planned since, or have released what it held
        """
        if begins and fabric.held(held):
            self._made().keep(group.owner, held)
            return True
        if not group.request.claims and found.uplinks:
            self._made().share(fabric, group.owner, found)
            return True
        if group.request.claims and begins:
            self._made().claim(fabric, group.owner, found)
            return True
        return False

    def _choose(self, leafs: Leafs, asked: GroupRequest) -> LeafPlan | NoLeafs:
        return self._planner(leafs, asked, self._options)

    def _where(self, server: str) -> frozenset[str]:
        return self._made().providers_of(server)

    def release(self, found: GroupPlaces) -> None:
        """Give back what this request has claimed: none of its servers gets a host."""
        if found.claimed:
            self._made().release(found.group.uuid)


def leaf_of_hosts(arrays: FleetArrays, fabric: FabricState) -> dict[str, str]:
    """Return the leaf of each host of a fabric by its root provider; one that is cabled wrong has none."""
    leaf_of_kind = [
        ""
        if names.MISCABLED in traits
        else next((leaf for each in traits if (leaf := fabric.leaf_of_trait.get(each))), "")
        for traits in arrays.trait_sets
    ]
    kinds = arrays.hosts["kind"].tolist()
    return {
        root: leaf
        for root, kind in zip(arrays.rows, kinds, strict=True)
        if (leaf := leaf_of_kind[kind])
    }


class _Search:
    """The hosts of one request, with what was learnt of them since it began.

    :param group: that is placed
    :param offered: hosts
    :param arrays: hosts with their traits
    :param passing: judges hosts
    :param choose: leafs
    :param where: returns the providers of a server
    """

    def __init__(
        self,
        group: ServerGroup,
        offered: Offered,
        arrays: FleetArrays,
        passing: Passing,
        choose: Callable[[Leafs, GroupRequest], LeafPlan | NoLeafs],
        *,
        where: Callable[[str], frozenset[str]],
    ) -> None:
        self._group = group
        self._offered = offered
        self._arrays = arrays
        self._passing = passing
        self._choose = choose
        self._where = where
        self._own: frozenset[str] | None = None
        self._passed: set[int] = set()
        self._refused: set[int] = set()
        self.chosen = LeafPlan(())

    def in_fabric(self, fabric: FabricState, holds: Claims) -> GroupPlaces | NoPlan:
        """Plan the group in one fabric: by hosts that are probably possible, and where these are too few by all."""
        levels, request = fabric.leafs.levels, self._group.request
        if request.bound in levels and request.within in levels[levels.index(request.bound) + 1 :]:
            return NoPlan((_too_wide(request, levels),))
        leaf_of = leaf_of_hosts(self._arrays, fabric)
        asked = self._asked(leaf_of, holds)
        every = np.ones(len(self._offered.roots), bool)
        answer = self._among(fabric, leaf_of, asked, self._offered.possible)
        return self._among(fabric, leaf_of, asked, every) if isinstance(answer, NoPlan) else answer

    def _among(
        self, fabric: FabricState, leaf_of: Mapping[str, str], asked: GroupRequest, mask: Mask
    ) -> GroupPlaces | NoPlan:
        group, roots = self._group, self._offered.roots
        further = 0
        while True:
            usable = self._usable(leaf_of, mask)
            leafs = tuple(
                replace(each, free=len(usable.get(each.name, ()))) for each in fabric.leafs.leafs
            )
            found = self._choose(replace(fabric.leafs, leafs=leafs), asked)
            if isinstance(found, NoLeafs):
                return NoPlan(tuple(map(sentence, found.reasons)))
            chosen = [at for each in found.places for at in usable[each.leaf][: each.hosts]]
            if self._all_pass(chosen):
                break
            further = max(len(chosen), 2 * further)
            self._judge_further(further, found.places, usable)
        self.chosen = found
        spares = self._spares(found.spares, usable, chosen)
        places = [roots[at] for at in chosen for _ in range(group.per_host)][: group.servers]
        named = {roots[at]: leaf_of[roots[at]] for at in (*chosen, *spares)}
        reasons = tuple(map(sentence, found.reasons))
        return GroupPlaces(group, tuple(places), tuple(roots[at] for at in spares), named, reasons)

    def _asked(self, leaf_of: Mapping[str, str], holds: Claims) -> GroupRequest:
        group, request = self._group, self._group.request
        return GroupRequest(
            group.hosts_needed,
            request.share,
            request.within or None,
            request.slice_size,
            request.balance,
            request.net_class,
            members=self._members(leaf_of),
            holds=holds,
            spares=max(_LEAST_SPARES, group.servers // _SPARES_PER_SERVERS),
            is_move=group.moves,
        )

    def _members(self, leaf_of: Mapping[str, str]) -> Mapping[str, int]:
        """Return how many hosts the group has in each leaf."""
        if self._own is None:
            self._own = self._hosts_of_group()
        return Counter(leaf for root in self._own if (leaf := leaf_of.get(root)))

    def _hosts_of_group(self) -> frozenset[str]:
        """Return the root providers of the hosts with servers of the group.

        Nova names these hosts as nova-compute is configured, Placement by their hypervisors: where the names differ, it
        is asked for the servers one by one.
        """
        hosts = {*self._group.hosts}
        if not hosts:
            return frozenset()
        arrays = self._arrays
        texts = arrays.hosts["name"].tolist()
        found = {
            root
            for root, number in zip(arrays.rows, texts, strict=True)
            if arrays.text(number) in hosts
        }
        for server in self._group.members:
            if len(found) >= len(hosts):
                break
            found |= self._where(server) & arrays.rows.keys()
        return frozenset(found)

    def _usable(self, leaf_of: Mapping[str, str], mask: Mask) -> dict[str, list[int]]:
        """Return the hosts of each leaf that may still take a server, the best first."""
        found: dict[str, list[int]] = {}
        for at in self._offered.ordered.tolist():
            leaf = leaf_of.get(self._offered.roots[at])
            if leaf and mask[at] and at not in self._refused:
                found.setdefault(leaf, []).append(at)
        return found

    def _all_pass(self, chosen: Sequence[int]) -> bool:
        unknown = [at for at in chosen if at not in self._passed]
        passed = self._passing(unknown) if unknown else set()
        self._passed |= passed
        self._refused |= {*unknown} - passed
        return len(passed) == len(unknown)

    def _judge_further(
        self, hosts: int, planned: Iterable[LeafPlaces], usable: Mapping[str, Sequence[int]]
    ) -> None:
        """Judge so many more hosts, those of planned leafs first.

        Twice as many each time: where most hosts are refused, each plan less is a look at the whole fabric less.
        """
        leafs = dict.fromkeys((*(each.leaf for each in planned), *usable))
        known = self._passed | self._refused
        unknown = (at for leaf in leafs for at in usable[leaf] if at not in known)
        self._all_pass(list(islice(unknown, hosts)))

    def _spares(
        self,
        named: Iterable[LeafPlaces],
        usable: Mapping[str, Sequence[int]],
        chosen: Sequence[int],
    ) -> list[int]:
        """Return hosts for failed claims and builds; of those that are refused no other takes the place."""
        taken = {*chosen}
        found = [
            at
            for each in named
            for at in [at for at in usable.get(each.leaf, ()) if at not in taken][: each.hosts]
        ]
        self._all_pass(found)
        return [at for at in found if at in self._passed]


def _too_wide(request: NetworkRequest, levels: Sequence[str]) -> str:
    allowed = ", ".join(levels[: levels.index(request.bound) + 1])
    return (
        f"The scheduler hint numa_ext_within={request.within} is wider than the flavor allows; "
        f"allowed: {allowed}."
    )
