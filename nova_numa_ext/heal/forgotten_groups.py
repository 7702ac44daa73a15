# SPDX-License-Identifier: Apache-2.0
"""Which claims of server groups that nova does not know may be used by servers that still run.

Nova does not say which servers were a deleted group's. So a claim is held to be unused while no server of its project
is on a host of its leafs, is being placed, or is in a cell that does not answer; and only where this nova has all hosts
of these leafs, for another region's servers are not seen at all. Servers get hosts some time after the claim: that must
have been so for a grace time, in which the claim has not changed.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from placement_traits.claims import Amounts, Claim

ANYWHERE: Final = ""
"""In place of the host of a server that may be anywhere."""


class NovaHosts(Protocol):
    """Where nova has servers."""

    def hosts_of_projects(self) -> Mapping[str, frozenset[str]]:
        """Return the compute nodes with servers of each project; :data:`ANYWHERE` where nova does not say it."""

    def compute_nodes(self) -> frozenset[str]:
        """Return all compute nodes."""


class LeafHosts(Protocol):
    """Which hosts hang on leafs."""

    def hosts(self, amounts: Amounts) -> frozenset[str]:
        """Return the compute nodes on the leafs of which there is something among some amounts."""


class ForgottenGroups:
    """Remembers since when claims have been unused; one for all rounds of a process.

    :param grace_s: how long, in seconds, a claim must have been unused
    :param clock: seconds that only rise
    """

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._unused: dict[tuple[str, int | None], float] = {}

    def round(self, fabrics: LeafHosts, nova: NovaHosts) -> Callable[[Claim], bool]:
        """Return what says whether a claim may be used, or was within the grace time.

        Claims that a round does not ask about are forgotten.
        """
        before, self._unused = self._unused, {}
        used_now = usage(fabrics, nova)

        def may_be_used(claim: Claim) -> bool:
            if used_now(claim):
                return True
            key, now = (claim.consumer, claim.generation), self._clock()
            began = self._unused[key] = before.get(key, now)
            return now - began < self._grace_s

        return may_be_used


def usage(fabrics: LeafHosts, nova: NovaHosts) -> Callable[[Claim], bool]:
    """Return what says whether servers may be using a claim; nova is asked once, when the first claim comes.

    Those of its project may that are on its leafs or have no host yet; any may where this nova lacks a host of them.
    """
    users: dict[str, frozenset[str]] = {}
    known: set[str] = set()

    def may_be_used(claim: Claim) -> bool:
        if not known:
            users.update(nova.hosts_of_projects())
            known.update(nova.compute_nodes())
        hosts = fabrics.hosts(claim.amounts)
        used = users.get(claim.project, frozenset())
        return ANYWHERE in used or not used.isdisjoint(hosts) or not hosts <= known

    return may_be_used
