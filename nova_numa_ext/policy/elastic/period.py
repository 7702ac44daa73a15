# SPDX-License-Identifier: Apache-2.0
"""What monitoring knows of a group in one control period."""

from dataclasses import dataclass

from nova_numa_ext.policy.elastic.load import MemberLoad


@dataclass(frozen=True, slots=True)
class Member:
    """One server that carries load.

    :param name: its id
    :param load: its work in the period
    :param readings_ms: latencies of its reads, as its service's monitoring reports them
    :param created_here: the group's controller created it: it is in its database and has its tag
    :param disturbed: something else than its load made it slow: the host's agent reports interference, or throttles it
    :param cannot_fix: the host's agent has given up: what disturbs it stays
    :param placement: how good its place is, in [0, 1]; the higher the better
    :param age_s: seconds since it was created
    """

    name: str
    load: MemberLoad
    readings_ms: tuple[float, ...] = ()
    created_here: bool = False
    disturbed: bool = False
    cannot_fix: bool = False
    placement: float = 1.0
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Period:
    """All of a group.

    :param at_s: when it is decided, seconds of any clock
    :param data_at_s: when the newest of the data was taken, same clock
    :param members: all that carry load
    :param building: members that were asked for and carry no load yet
    :param leaving: members that are drained or deleted
    :param rebalancing: the service moves data between its members
    """

    at_s: float
    data_at_s: float
    members: tuple[Member, ...]
    building: int = 0
    leaving: int = 0
    rebalancing: bool = False
