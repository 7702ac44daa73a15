# SPDX-License-Identifier: Apache-2.0
"""What is asked of a planner of groups, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from placement_traits.fabric import LeafLayout
from placement_traits.names import NetClass, UplinkShare
from placement_traits.reason import Reason

Claims: TypeAlias = Mapping[str, Mapping[str, int]]
"""Node of the fabric -> resource class -> amount."""


class PolicyName(StrEnum):
    """The ways to choose leafs."""

    FIRST_AVAILABLE = "first_available"
    FIRST_CONTIGUOUS = "first_contiguous"
    BEST_FIT = "best_fit"
    LEAST_FREE = "least_free"
    BALANCED = "balanced"
    BLOCK = "block"
    VNB = "vnb"
    EXCLUSIVE = "exclusive"


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A group of servers, counted in hosts: as many as it needs by its servers per host.

    :param hosts: to be found now, >= 1
    :param share: whom it shares uplinks with: any group, and nothing is held in Placement; other groups in remainder
        leafs only; no group of several leafs, in whole pods
    :param within: the level of which one node must hold all of it; None: any
    :param slice_hosts: equal slices of so many hosts, each in one leaf; 1: none
    :param is_balanced: the same number of hosts in each leaf
    :param net_class: how much it uses shared links
    :param members: hosts that its servers have already, by leaf
    :param holds: what it holds already, by node
    :param spares: hosts that are named besides, at most
    :param is_move: a server of it leaves its host: it may go beyond what the group holds, where nothing else is left
    """

    hosts: int
    share: UplinkShare = UplinkShare.SHARED
    within: str | None = None
    slice_hosts: int = 1
    is_balanced: bool = False
    net_class: NetClass = NetClass.MODERATE
    members: Mapping[str, int] = field(default_factory=dict)
    holds: Claims = field(default_factory=dict)
    spares: int = 0
    is_move: bool = False


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What operators choose.

    :param shared: for groups that share
    :param quiet: for quiet groups
    :param remainders_most: remainder leafs of a pod, at most; one is made when a remainder comes that no other can
        take, and is partitioned again when it is empty
    """

    shared: PolicyName = PolicyName.BEST_FIT
    quiet: PolicyName = PolicyName.VNB
    remainders_most: int = 2


DEFAULT_PLAN: Final = PlanOptions()


@dataclass(frozen=True, slots=True)
class LeafPlaces:
    """Hosts of one leaf.

    :param leaf: its name
    :param hosts: how many, >= 1
    """

    leaf: str
    hosts: int


@dataclass(frozen=True, slots=True)
class LeafPlan:
    """Where a group goes.

    :param places: in the order of the fabric: ranks go there one leaf after the other
    :param claims: all that it should hold then, by node; empty for groups that share
    :param uplinks: units of :data:`placement_traits.names.LEAF_UPLINK` that it should have then, by leaf, see
        :mod:`.uplinks`
    :param layouts: leafs that need this layout first, because they are untouched and have another one
    :param spares: hosts beyond the places, the best first: beside the places, then in the next best leafs
    :param next_best: all other leafs with room, the best first
    :param reasons: why there
    """

    places: tuple[LeafPlaces, ...]
    claims: Claims = field(default_factory=dict)
    uplinks: Mapping[str, int] = field(default_factory=dict)
    layouts: Mapping[str, LeafLayout] = field(default_factory=dict)
    spares: tuple[LeafPlaces, ...] = ()
    next_best: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class NoLeafs:
    """No place for a group.

    :param reasons: why; never empty
    :param ever: it would fit if all other groups and servers were gone
    """

    reasons: tuple[Reason, ...]
    ever: bool = True
