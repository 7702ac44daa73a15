# SPDX-License-Identifier: Apache-2.0
"""Interference classes as data: who may share a cache, and what is gained by a domain of one's own.

The classes are three of Xie & Loh's animal classes (reference: Lakew et al., *Optimising Virtual Resource Mapping in
Multi-Level NUMA Disaggregated Systems*, tables 3 and 4): a *sheep* neither suffers nor disturbs, a *rabbit* degrades
quickly when it shares a cache, a *devil* thrashes it. The prose of Lakew et al. keeps devils apart from each other,
their table lets them share; we follow the table for what *may* share and let :func:`penalty` prefer them apart.

:data:`NEIGHBOURHOOD_UNITS` is the same table as amounts that Placement can count: together, servers of an L3 domain
never take more than :data:`~placement_traits.names.WHOLE_NEIGHBOURHOOD` units exactly when all of them may share it.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from placement_traits.names import WHOLE_NEIGHBOURHOOD, InterferenceClass

SHEEP, RABBIT, DEVIL = InterferenceClass.SHEEP, InterferenceClass.RABBIT, InterferenceClass.DEVIL


class IsolationLevel(StrEnum):
    """A level of the machine that a server can have for itself, smallest first."""

    SOCKET = "socket"
    NODE = "node"
    CHASSIS = "chassis"


Benefits: TypeAlias = Mapping[IsolationLevel, Mapping[InterferenceClass, float]]

MAY_SHARE: Final[Mapping[InterferenceClass, frozenset[InterferenceClass]]] = MappingProxyType(
    {
        SHEEP: frozenset({SHEEP, RABBIT, DEVIL}),
        RABBIT: frozenset({SHEEP}),
        DEVIL: frozenset({SHEEP, DEVIL}),
    }
)

NEIGHBOURHOOD_UNITS: Final[Mapping[InterferenceClass, int]] = MappingProxyType(
    {SHEEP: 0, RABBIT: WHOLE_NEIGHBOURHOOD, DEVIL: 1}
)

BENEFIT_MIN: Final = 1.0
BENEFIT_MAX: Final = 10.0

INITIAL_BENEFIT: Final[Benefits] = MappingProxyType(
    {
        IsolationLevel.SOCKET: MappingProxyType({SHEEP: 1.0, RABBIT: 4.0, DEVIL: 7.0}),
        IsolationLevel.NODE: MappingProxyType({SHEEP: 1.0, RABBIT: 5.0, DEVIL: 8.0}),
        IsolationLevel.CHASSIS: MappingProxyType({SHEEP: 1.0, RABBIT: 6.0, DEVIL: 9.0}),
    }
)


def may_share(one: InterferenceClass, other: InterferenceClass) -> bool:
    """Return whether two classes may share an L3 domain (table 3)."""
    return other in MAY_SHARE[one]


def penalty(one: InterferenceClass, other: InterferenceClass) -> int:
    """How unwelcome two classes are in one L3 domain: 0 welcome, 1 allowed but better apart, 2 not allowed."""
    if not may_share(one, other):
        return 2
    return 1 if one is DEVIL and other is DEVIL else 0


def updated_benefit(
    benefit: Benefits,
    domain: IsolationLevel,
    interference_class: InterferenceClass,
    observed: float,
    *,
    keep: float = 0.8,
) -> Benefits:
    """Return the benefit matrix after one move was observed (table 4 is "dynamically updated during runtime").

    :param observed: what the move gained on the matrix' scale of 1 to 10
    :param keep: weight of the old value; the rest goes to ``observed``
    """
    old = benefit[domain][interference_class]
    new = min(BENEFIT_MAX, max(BENEFIT_MIN, keep * old + (1.0 - keep) * observed))
    row = {**benefit[domain], interference_class: new}
    return MappingProxyType({**benefit, domain: MappingProxyType(row)})
