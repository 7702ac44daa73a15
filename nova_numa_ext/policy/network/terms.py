# SPDX-License-Identifier: Apache-2.0
"""Why a group has its leafs, or none: the terms of the reasons, each with the sentence that explains it to people."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from placement_traits import reason as reasons
from placement_traits.reason import Reason


class GroupTerm(StrEnum):
    """What a planner of groups looks at."""

    # Why there is no place.
    FABRIC_SIZE = "fabric_size"
    FREE_HOSTS = "free_hosts"
    WITHIN = "within"
    LEVEL = "level"
    SLICES = "net_slices"
    BALANCE = "net_balance"
    ONE_LEAF = "one_leaf"
    BLOCKS = "blocks"
    WHOLE_LEAFS = "whole_leafs"
    REMAINDER = "remainder"
    PODS = "pods"
    QUIET = "net_quiet"
    SHARING = "net_sharing"
    DRAINED = "net_drained"
    HELD = "net_held"
    # Why these places.
    POLICY = "net_policy"
    LEAFS = "leafs"
    NET_CLASS = "net_class"


SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        GroupTerm.FABRIC_SIZE: "the group needs {against} hosts, and {where} has {value} in all",
        GroupTerm.FREE_HOSTS: "the group needs {against} hosts, and {value} are free for it",
        GroupTerm.WITHIN: "the group must stay in one {where}: the best has {value} free hosts, needed are {against}",
        GroupTerm.LEVEL: "the fabric has no level {value}, its levels are {against}",
        GroupTerm.SLICES: "slices of {against} hosts, each in one leaf: {value} hosts are no whole number of them",
        GroupTerm.BALANCE: "no number of leafs has an equal share of {against} hosts each; free hosts: {value}",
        GroupTerm.ONE_LEAF: "the group fits in one leaf and stays in one: the best has {value} free hosts for it, "
        "needed are {against}",
        GroupTerm.BLOCKS: "free blocks for large groups: {value}, needed: {against}",
        GroupTerm.WHOLE_LEAFS: "free whole leafs for large groups: {value}, needed: {against}",
        GroupTerm.REMAINDER: "no leaf for remainders has {against} free hosts, and none can become one: {value}",
        GroupTerm.PODS: "pods without another group on their uplinks have {value} free hosts, needed are {against}",
        GroupTerm.QUIET: "the group needs {against} hosts, and {value} are free for it where no quiet or exclusive "
        "group has the uplinks",
        GroupTerm.SHARING: "groups that share use the uplinks of {value} leafs, where one that does not has no place",
        GroupTerm.DRAINED: "leafs that are drained, and take no group: {value}",
        GroupTerm.HELD: "the group holds {value} hosts that are free there, needed are {against}, and {where}",
        GroupTerm.POLICY: "leafs chosen by {value}",
        GroupTerm.LEAFS: "leafs: {value}, at least needed: {against}",
        GroupTerm.NET_CLASS: "leafs are shared that should not be, by how much groups use the network: {value}",
    }
)


def sentence(reason: Reason) -> str:
    """Return what a reason means, for people; terms without a sentence show their figures."""
    return reasons.sentence(reason, SENTENCES)
