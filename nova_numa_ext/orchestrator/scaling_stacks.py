# SPDX-License-Identifier: Apache-2.0
"""How groups come to their size whose members a stack of Heat has: the actuator on a ``desired_capacity``.

A stack is one of Heat's whose template takes the ``desired_capacity`` of a group from a parameter, and whose servers
are in the server group. Heat makes and deletes the servers; which one leaves is Heat's to say, and hooks are Heat's.
The service sets the parameter, no more than that::

    decided    the size before and the size after are stored with the decision
    asked      that Heat is asked is stored, then the stack is updated with the size after
    done       the stack says the size after, and has come to rest

What is set is a size, never a difference: an engine that dies at any point leaves one size that is asked for, and who
follows asks for the same or finds it there. Heat is asked once. When nothing comes of it for a minute it is forgotten,
and decided again where the load still needs it; likewise when the stack was given another size meanwhile.
What Heat refuses or fails at is not asked for during a while, ever longer.

A stack may be resized while it is at rest and has as many servers in the server group as its parameter says. One that
Heat updates, that has failed, is suspended, or says another number is waited for, and ``show`` says so; the service
neither repairs a stack nor asks it for anything then. Servers in the group that the stack does not have are their
user's: they count for the least and the most, and stay.

Right before Heat is asked the leader's term is renewed, the group is checked, and nova is asked again for the servers:
beyond the least and the most nothing is asked for, whatever has come or gone since the decision. What Heat has begun
goes on in a pause.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nova_numa_ext.orchestrator.cloud.stacks import Stack, StackRefusedError, UserStacks
from nova_numa_ext.orchestrator.cloud.trusts import Trusts
from nova_numa_ext.orchestrator.scaling_saga import LATE_S, back_off_s
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.leader import NotLeaderError
from nova_numa_ext.orchestrator.store.scaling import (
    Act,
    Resize,
    ScalingGroups,
    StackTemplate,
    StoredScaling,
)
from nova_numa_ext.orchestrator.store.scaling_members import ScalingMembers
from nova_numa_ext.policy.elastic.decide import ScalingDecision
from nova_numa_ext.policy.elastic.fleet import ElasticFleet
from placement_traits.errors import NumaExtError
from placement_traits.words import counted

_LOG: Final = logging.getLogger(__name__)

_LOOK_S: Final = 60.0


class StackNotReadyError(NumaExtError):
    """A stack cannot be resized now, or not at all; the sentence says why."""


@dataclass(frozen=True, slots=True)
class SeenStack:
    """A stack and its servers as they are now.

    :param size: what its parameter says
    :param made: uuids of its servers that are in the server group
    :param servers: uuids of all servers of the server group
    """

    stack: Stack
    size: int
    made: frozenset[str]
    servers: frozenset[str]

    @property
    def unready(self) -> str:
        """Why it may not be resized, '' where it may."""
        stack = self.stack
        if not stack.can_be_resized:
            why = f": {stack.reason}" if stack.reason and not stack.is_moving else ""
            return f"stack {stack.name} is {stack.status}{why}"
        if self.size != len(self.made):
            said = counted(self.size, "server")
            return f"stack {stack.name} says {said}, and {len(self.made)} of its are in the server group"
        return ""


class StackActuator:
    """Gives stacks their size; see :class:`.scaling_actuator.Actuator`.

    :param members: where it is stored what is under way
    """

    def __init__(self, groups: ScalingGroups, members: ScalingMembers, trusts: Trusts) -> None:
        self._groups, self._members, self._trusts = groups, members, trusts
        self._looked_s: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._sizes: dict[str, int] = {}

    def fleet(self, group: StoredScaling) -> ElasticFleet:
        """See :meth:`.scaling_actuator.Actuator.fleet`.

        :raises StackNotReadyError: the stack is not there, is not at rest, or is to come to another size
        :raises TrustError: who has set the group has no rights any more
        :raises ServiceUnavailableError: nova, Heat, Keystone or the database does not answer
        """
        resize = group.resize
        if resize is not None:
            raise StackNotReadyError(
                f"stack {_template(group).name} comes from {counted(resize.before, 'server')} to {resize.after}"
            )
        seen = self._seen(group, self._trusts.stacks(group.trust))
        if seen.unready:
            raise StackNotReadyError(seen.unready)
        self._sizes[group.uuid] = seen.size
        return ElasticFleet(seen.servers, seen.made)

    def lacking(self, _group: StoredScaling) -> str:
        """See :meth:`.scaling_actuator.Actuator.lacking`: of what its servers are made only the stack knows."""
        return ""

    def act(self, group: StoredScaling, decision: ScalingDecision) -> Act:
        """See :meth:`.scaling_actuator.Actuator.act`."""
        size = self._sizes[group.uuid]
        return Act(resize=Resize(size, size + decision.change))

    def carry_on(self, group: StoredScaling, actor: Actor, may: Callable[[], None]) -> str:
        """See :meth:`.scaling_actuator.Actuator.carry_on`; a stack that stays as it is is looked at once a minute."""
        now_s = time.monotonic()
        if group.resize is None and now_s < self._looked_s.get(group.uuid, -_LOOK_S) + _LOOK_S:
            return self._said.get(group.uuid, "")
        try:
            stacks = self._trusts.stacks(group.trust)
            seen = self._seen(group, stacks)
            said = seen.unready
            if group.resize is not None:
                now, resize = self._groups.now(), group.resize
                said = _Resizing(
                    group, resize, seen, stacks, actor, may, self._members, now
                ).go_on()
        except (NotLeaderError, LostRaceError):
            raise
        except NumaExtError as error:
            said = str(error)
        self._looked_s[group.uuid], self._said[group.uuid] = now_s, said
        return said

    def forget(self, group: str) -> None:
        """Look at a group again in the next round."""
        for known in (self._looked_s, self._said, self._sizes):
            known.pop(group, None)

    def _seen(self, group: StoredScaling, stacks: UserStacks) -> SeenStack:
        template = _template(group)
        stack = stacks.get(template.stack, template.name)
        made = None if stack is None else stacks.servers(template.stack, template.name)
        if stack is None or made is None:
            raise StackNotReadyError(
                f"stack {template.name} is not there for who has set the elastic group"
            )
        size = stack.size(template.parameter)
        if size is None:
            raise StackNotReadyError(
                f"parameter {template.parameter} of stack {template.name} is no number of servers"
            )
        servers = self._trusts.servers(group.trust).members(group.uuid)
        if servers is None:
            raise StackNotReadyError(
                f"server group {group.uuid} is not there for who has set the elastic group"
            )
        return SeenStack(stack, size, made & servers, servers)


@dataclass(frozen=True, slots=True)
class _Resizing:
    """A resize that is carried on.

    :param seen: the stack now
    :param now: by the database's clock
    """

    group: StoredScaling
    resize: Resize
    seen: SeenStack
    stacks: UserStacks
    actor: Actor
    may: Callable[[], None]
    members: ScalingMembers
    now: float

    def go_on(self) -> str:
        """Do what is next; return what stands in the way."""
        if self.resize.asked_at is not None:
            return self._follow(self.resize.asked_at)
        if self.seen.stack.is_moving:
            return self.seen.unready
        if self.seen.size != self.resize.before or self.seen.unready:
            return self._given_up()
        return self._ask()

    def _follow(self, asked_at: float) -> str:
        """See what comes of what Heat was asked for."""
        stack, is_late = self.seen.stack, self.now >= asked_at + LATE_S
        if stack.has_failed:
            return self._refused(self.seen.unready)
        if self.seen.size not in (self.resize.before, self.resize.after):
            return self._given_up()
        # Nova may have a server a little later in the group than Heat says so, and Heat may begin a little late.
        is_there = self.seen.size == self.resize.after and (is_late or not self.seen.unready)
        if stack.is_moving or not (is_there or is_late):
            return ""
        if is_there:
            self.members.end_resize(self.group, self.actor, refusals=0)
            return self.seen.unready
        if stack.went_back:
            return self._refused(
                f"stack {stack.name} has gone back to {counted(self.resize.before, 'server')}: {stack.reason}"
            )
        return self._given_up()

    def _ask(self) -> str:
        """Ask Heat for a size, once."""
        seen, resize, settings = self.seen, self.resize, self.group.settings
        count = len(seen.servers) - len(seen.made) + resize.after
        grows = resize.after > resize.before
        if count > settings.most if grows else count < settings.least:
            return self._given_up()
        self.members.ask_stack(self.group, self.actor)
        self.may()
        self.members.check(self.group, self.actor)
        template = _template(self.group)
        try:
            self.stacks.resize(template.stack, template.name, template.parameter, resize.after)
        except StackRefusedError as error:
            return self._refused(str(error))
        return ""

    def _given_up(self) -> str:
        """Forget it: others have changed stack or group since it was decided, or nothing has come of it."""
        _LOG.warning(
            "elastic group %s: stack %s does not come from %d servers to %d: it is %s with %d now",
            self.group.uuid,
            self.seen.stack.name,
            self.resize.before,
            self.resize.after,
            self.seen.stack.status,
            self.seen.size,
        )
        self.members.end_resize(self.group, self.actor)
        return self.seen.unready

    def _refused(self, why: str) -> str:
        """Forget it, and ask for none for a while, ever longer."""
        self.members.refused(self.group, back_off_s(self.group), self.actor)
        self.members.end_resize(self.group, self.actor)
        return why


def _template(group: StoredScaling) -> StackTemplate:
    assert isinstance(group.template, StackTemplate), f"elastic group {group.uuid} has no stack"
    return group.template
