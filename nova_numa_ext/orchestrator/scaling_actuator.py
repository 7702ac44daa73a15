# SPDX-License-Identifier: Apache-2.0
"""Who carries out what is decided on elastic groups: servers of nova, or a stack of Heat.

Both keep the same limits (:mod:`nova_numa_ext.policy.elastic.fleet`), for both look at what there is before they say
what may be carried out.
"""

from collections.abc import Callable
from typing import Protocol

from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.scaling import Act, StackTemplate, StoredScaling
from nova_numa_ext.policy.elastic.decide import ScalingDecision
from nova_numa_ext.policy.elastic.fleet import ElasticFleet


class Actuator(Protocol):
    """Carries out what is decided on groups that are enforced; for one thread at a time."""

    def fleet(self, group: StoredScaling) -> ElasticFleet:
        """Look at a group, and return what limits decisions on it.

        :raises NumaExtError: it cannot be seen, or nothing may be changed now: the sentence says why
        """

    def lacking(self, group: StoredScaling) -> str:
        """Return what no host has for one more member; '' where one may have it, or that is not known."""

    def act(self, group: StoredScaling, decision: ScalingDecision) -> Act:
        """Return what is to be stored of a decision that changes something; :meth:`fleet` was asked right before."""

    def carry_on(self, group: StoredScaling, actor: Actor, may: Callable[[], None]) -> str:
        """Do what is next; return what stands in the way, '' for nothing.

        :param may: called right before each write; raises where this process does not lead any more
        :raises NotLeaderError: the term is over
        :raises LostRaceError: an operator has changed the group meanwhile; the next round goes on
        """

    def forget(self, group: str) -> None:
        """Look at a group again in the next round."""


class Actuators:
    """Of each group the right :class:`Actuator`.

    :param servers: of groups of which members are made one by one
    :param stacks: of groups whose members a stack has
    """

    def __init__(self, servers: Actuator, stacks: Actuator) -> None:
        self._servers, self._stacks = servers, stacks

    def fleet(self, group: StoredScaling) -> ElasticFleet:
        """See :meth:`Actuator.fleet`."""
        return self._of(group).fleet(group)

    def lacking(self, group: StoredScaling) -> str:
        """See :meth:`Actuator.lacking`."""
        return self._of(group).lacking(group)

    def act(self, group: StoredScaling, decision: ScalingDecision) -> Act:
        """See :meth:`Actuator.act`."""
        return self._of(group).act(group, decision)

    def carry_on(self, group: StoredScaling, actor: Actor, may: Callable[[], None]) -> str:
        """See :meth:`Actuator.carry_on`."""
        return self._of(group).carry_on(group, actor, may)

    def forget(self, group: str) -> None:
        """See :meth:`Actuator.forget`."""
        self._servers.forget(group)
        self._stacks.forget(group)

    def _of(self, group: StoredScaling) -> Actuator:
        return self._stacks if isinstance(group.template, StackTemplate) else self._servers
