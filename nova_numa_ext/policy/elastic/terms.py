# SPDX-License-Identifier: Apache-2.0
"""Why a group grows, shrinks or stays: the terms of its decisions, each with its sentence."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from placement_traits import reason as reasons
from placement_traits.reason import Reason


class ScalingTerm(StrEnum):
    """Reasons of decisions."""

    # Why it stays.
    NO_MEMBERS = "no_members"
    STALE = "stale"
    BUILDING = "building"
    LEAVING = "leaving"
    REBALANCING = "rebalancing"
    NO_MODEL = "no_model"
    ENOUGH = "enough"
    MOST = "most"
    LEAST = "least"
    COOL_DOWN = "cool_down"
    BUDGET = "budget"
    NOT_OURS = "not_ours"
    # Why nothing of it is carried out.
    MEMBERS_DIFFER = "members_differ"
    BACK_OFF = "back_off"
    NO_HOST = "no_host"
    UNSEEN = "unseen"
    MISSED = "missed"
    # Why it changes.
    BELOW_LEAST = "below_least"
    ABOVE_MOST = "above_most"
    BEYOND = "beyond"
    SPARE = "spare"


SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        ScalingTerm.NO_MEMBERS: "no member carries load",
        ScalingTerm.STALE: "the newest data is {value} s old, {against} s is the limit",
        ScalingTerm.BUILDING: "members that are being built: {value}",
        ScalingTerm.LEAVING: "members that are leaving: {value}",
        ScalingTerm.REBALANCING: "the service moves data between its members",
        ScalingTerm.NO_MODEL: "the model cannot say yet what {where} can carry",
        ScalingTerm.ENOUGH: "load beyond capacity: {value} members, beyond it are {against}",
        ScalingTerm.MOST: "would need {value} members, {against} is the most",
        ScalingTerm.LEAST: "would do with {value} members, {against} is the least",
        ScalingTerm.COOL_DOWN: "the last action was {value} s ago, {against} s must pass",
        ScalingTerm.BUDGET: "actions in the last hour: {value}, {against} are allowed",
        ScalingTerm.NOT_OURS: "none of its {value} members was created by this service",
        ScalingTerm.MEMBERS_DIFFER: "source and server group differ in {value} members, {where} among them",
        ScalingTerm.BACK_OFF: "a member was refused, none is asked for during the next {value} s",
        ScalingTerm.NO_HOST: "no host for this flavor: none has {value} free",
        ScalingTerm.UNSEEN: "what the group has cannot be seen now: {value}",
        ScalingTerm.MISSED: "was decided {value} s after its time, when there were newer periods",
        ScalingTerm.BELOW_LEAST: "has {value} members, {against} is the least",
        ScalingTerm.ABOVE_MOST: "has {value} members, {against} is the most",
        ScalingTerm.BEYOND: "load beyond capacity: {value} members; members beyond it: {against}",
        ScalingTerm.SPARE: "capacity that is not needed: {value} members, {against} are kept spare",
    }
)


def sentence(reason: Reason) -> str:
    """Return what a reason means, for people."""
    return reasons.sentence(reason, SENTENCES)
