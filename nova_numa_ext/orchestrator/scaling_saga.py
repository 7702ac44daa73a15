# SPDX-License-Identifier: Apache-2.0
"""How members of elastic groups come and leave: the actuator on nova's server groups.

Each step of a member is stored before it is begun, so that an engine that dies at any point leaves a member that the
next one carries on::

    ASKED      nova is asked for a server with the member's token     BUILDING, or LOST when nothing comes of it
    BUILDING   until it is active                                     ADDING, or DROPPED when it fails
    ADDING     hook add                                               JOINING
    JOINING    hook ready, until it carries load                      JOINED
    JOINED     until a decision has it leave, or it is gone           DRAINING, DELETING
    DRAINING   hook drain                                             DELETING
    DELETING   nova deletes it; when it is gone, hook delete          forgotten
    DROPPED    nova deletes it: the service never took it in          forgotten
    LOST       what comes late is deleted, for some minutes           forgotten

What nova did not answer is found by the token, which no other request has: a member is asked for once. All is done with
the rights of who has set the group, by a trust. Right before each request that changes something, and each call of a
hook, the leader's term is renewed and the group is checked: when a pause has been answered nothing more begins. After a
hook, which takes its time, nova is asked again for what there is.

Deleted is what the database has as a member of the group and what carries its tags, both. A server that has lost its
tags stays, and so does one with the tags that the database does not know; which ones is said. Of servers with a
member's tags that are not its own, such as clones, only those go that are in the server group and have the name that
was asked for: nova has made the server twice. A member that is to leave is taken in again where the group would have
fewer than its least without it, because others have gone meanwhile.
"""

import logging
import time
import uuid as uuids
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nova_numa_ext.orchestrator.cloud.room import ServerRoom
from nova_numa_ext.orchestrator.cloud.servers import (
    ElasticServer,
    JobServer,
    MemberRequest,
    QuotaError,
    RefusedError,
    UserServers,
)
from nova_numa_ext.orchestrator.cloud.trusts import Trusts
from nova_numa_ext.orchestrator.scaling_hooks import HookEvent, ScalingHooks
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.jobs import LATEST_S
from nova_numa_ext.orchestrator.store.leader import NotLeaderError
from nova_numa_ext.orchestrator.store.scaling import (
    Act,
    MemberTemplate,
    ScalingGroups,
    StoredScaling,
)
from nova_numa_ext.orchestrator.store.scaling_members import ScalingMembers, StoredMember
from nova_numa_ext.policy.elastic.decide import ScalingDecision
from nova_numa_ext.policy.elastic.fleet import ElasticFleet
from nova_numa_ext.policy.elastic.member_steps import COMING, GOING, MemberStep
from placement_traits.errors import NumaExtError

_LOG: Final = logging.getLogger(__name__)

LATE_S: Final = 60.0
"""Seconds after which a server that nova did not answer for, and that is not there, is given up."""

_LOOK_S: Final = 60.0
_LONGEST_BACK_OFF_S: Final = 3600.0
_UNKNOWN: Final = "UNKNOWN"
_GONE: Final = ("DELETED", "SOFT_DELETED")
_KEEPS_TAG: Final = (
    MemberStep.JOINED,
    MemberStep.DRAINING,
    MemberStep.DELETING,
    MemberStep.DROPPED,
)


def back_off_s(group: StoredScaling) -> float:
    """Return how long nothing is asked for after one more refusal."""
    return min(group.settings.period_s * 2.0 ** min(group.refusals, 10), _LONGEST_BACK_OFF_S)


class ForeignServerError(NumaExtError):
    """A server that is to be deleted does not carry the tags of its group, or others than its own: it stays."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A group as it is now.

    :param template: of members that are added
    :param members: as they are stored
    :param tagged: servers with its tag, the oldest first
    :param servers: uuids of all servers of the server group
    """

    template: MemberTemplate
    members: tuple[StoredMember, ...]
    tagged: tuple[ElasticServer, ...]
    servers: frozenset[str]

    def name(self, member: StoredMember) -> str:
        """Return what a member's server is called."""
        return f"{self.template.name}-{member.token[:8]}"

    def made(self, member: StoredMember) -> list[JobServer]:
        """Return what nova has made for a member and is not being deleted: token, name and group are its own."""
        return [
            each.server
            for each in self.tagged
            if (each.token, each.name) == (member.token, self.name(member))
            and each.server.uuid in self.servers
            and each.server.status not in _GONE
        ]

    def find(self, member: StoredMember) -> JobServer | None:
        """Return a member's server, where it carries the member's token."""
        mine = (
            each.server
            for each in self.tagged
            if (each.token, each.server.uuid) == (member.token, member.server)
        )
        return next(mine, None)

    def strays(self) -> list[str]:
        """Return servers with the group's tag that are not members' by the database, and not made for one."""
        known = {each.server for each in self.members}
        known |= {server.uuid for each in self.members for server in self.made(each)}
        return [
            each.server.uuid
            for each in self.tagged
            if each.server.uuid not in known and each.server.status not in _GONE
        ]

    def fleet(self) -> ElasticFleet:
        """Return what limits decisions."""

        def of(steps: Collection[MemberStep]) -> frozenset[str]:
            return frozenset(
                each.server for each in self.members if each.server and each.step in steps
            )

        steps = [each.step for each in self.members]
        joined = {
            each.server
            for each in self.members
            if each.step is MemberStep.JOINED and self.find(each) is not None
        }
        return ElasticFleet(
            self.servers,
            self.servers & joined,
            of(COMING),
            of(GOING),
            steps.count(MemberStep.ASKED),
            steps.count(MemberStep.LOST),
        )


class ScalingSaga:
    """Lets members of groups come and leave; for one thread at a time.

    :param build_timeout_s: after so many a server that is not active has failed
    :param room: says whether any host has room for a member; None: nova alone says it
    """

    def __init__(
        self,
        groups: ScalingGroups,
        members: ScalingMembers,
        trusts: Trusts,
        hooks: ScalingHooks,
        build_timeout_s: float,
        *,
        room: ServerRoom | None = None,
    ) -> None:
        self._groups, self._members = groups, members
        self._trusts, self._hooks = trusts, hooks
        self._room = room
        self._build_timeout_s = build_timeout_s
        self._looked_s: dict[str, float] = {}
        self._said: dict[str, str] = {}

    def fleet(self, group: StoredScaling) -> ElasticFleet:
        """See :meth:`.scaling_actuator.Actuator.fleet`; errors as of :meth:`seen`."""
        return self.seen(group).fleet()

    def lacking(self, group: StoredScaling) -> str:
        """See :meth:`.scaling_actuator.Actuator.lacking`. Where no answer comes nova is asked, and says why."""
        if self._room is None or not isinstance(group.template, MemberTemplate):
            return ""
        try:
            servers = self._trusts.servers(group.trust)
            return self._room.lacking(servers, group.template.flavor)
        except NumaExtError as error:
            _LOG.info(
                "elastic group %s: it is not known whether a host has room: %s", group.uuid, error
            )
            return ""

    def act(self, group: StoredScaling, decision: ScalingDecision) -> Act:
        """See :meth:`.scaling_actuator.Actuator.act`."""
        tokens = tuple(str(uuids.uuid4()) for _ in range(max(decision.change, 0)))
        return Act(tokens, decision.leaving)

    def seen(self, group: StoredScaling) -> Seen:
        """Look at a group.

        :raises TrustError: who has set it has no rights any more
        :raises ServiceUnavailableError: nova, Keystone or the database does not answer
        :raises ForeignServerError: its server group is not there
        """
        return self._seen(group, self._trusts.servers(group.trust))

    def carry_on(self, group: StoredScaling, actor: Actor, may: Callable[[], None]) -> str:
        """Do what is next for each member; return what stands in the way, '' for nothing.

        A group of which nothing comes or leaves is looked at once a minute.

        :param may: called right before each write; raises where this process does not lead any more
        :raises NotLeaderError: the term is over
        :raises LostRaceError: an operator has changed the group meanwhile; the next round goes on
        """
        members = self._members.of(group)
        quiet = all(each.step is MemberStep.JOINED for each in members)
        now_s = time.monotonic()
        if quiet and now_s < self._looked_s.get(group.uuid, -_LOOK_S) + _LOOK_S:
            return self._said.get(group.uuid, "")
        try:
            servers = self._trusts.servers(group.trust)
            said = self._all(group, servers, actor, may)
        except (NotLeaderError, LostRaceError):
            raise
        except NumaExtError as error:
            said = [str(error)]
        self._looked_s[group.uuid], self._said[group.uuid] = now_s, "; ".join(said)
        return self._said[group.uuid]

    def forget(self, group: str) -> None:
        """Look at a group again in the next round."""
        self._looked_s.pop(group, None)
        self._said.pop(group, None)

    def _seen(self, group: StoredScaling, servers: UserServers) -> Seen:
        assert isinstance(group.template, MemberTemplate), (
            f"elastic group {group.uuid} is enforced without template"
        )
        there = servers.members(group.uuid)
        if there is None:
            raise ForeignServerError(
                f"server group {group.uuid} is not there for who has set the elastic group"
            )
        members = tuple(self._members.of(group))
        return Seen(group.template, members, tuple(servers.of_elastic(group.uuid)), there)

    def _all(
        self,
        group: StoredScaling,
        servers: UserServers,
        actor: Actor,
        may: Callable[[], None],
    ) -> list[str]:
        seen, said = self._seen(group, servers), list[str]()
        turn = _Turn(group, servers, seen, actor, may, self._members, self._hooks)
        now = self._groups.now()
        for number in [each.number for each in seen.members]:
            if turn.called:
                try:
                    turn.seen, turn.called = self._seen(group, servers), False
                except NumaExtError as error:
                    said.append(str(error))
                    break
                now = self._groups.now()
            member = next((each for each in turn.seen.members if each.number == number), None)
            if member is None:
                continue
            try:
                self._step(turn, member, now)
            except (NotLeaderError, LostRaceError):
                raise
            except NumaExtError as error:
                said.append(str(error))
        strays = turn.seen.strays()
        if strays:
            said.append(
                f"servers with the tag of this group that are not in the database stay: {', '.join(strays)}"
            )
        return said

    def _step(self, turn: "_Turn", member: StoredMember, now: float) -> None:
        match member.step:
            case MemberStep.ASKED:
                self._ask(turn, member, now)
            case MemberStep.LOST:
                left = turn.seen.made(member)
                turn.delete(left)
                if not left and now >= member.since + LATEST_S:
                    turn.remove(member)
            case _:
                self._with_server(turn, member, now)

    def _ask(self, turn: "_Turn", member: StoredMember, now: float) -> None:
        """Ask nova for a member's server once; find what it did not answer."""
        mine = turn.seen.made(member)
        if mine:
            turn.move(member, MemberStep.BUILDING, server=mine[0].uuid)
        elif member.asked_at is None:
            # Others have come since it was decided, or nova has just refused one.
            if turn.is_refused or turn.seen.fleet().at_most > turn.group.settings.most:
                turn.remove(member)
                return
            member = turn.members.ask(turn.group, member, turn.actor)
            try:
                server = turn.create(member)
            except (QuotaError, RefusedError):
                turn.refused()
                turn.remove(member)
                raise
            turn.move(member, MemberStep.BUILDING, server=server)
        elif now >= member.asked_at + LATE_S:
            turn.move(member, MemberStep.LOST)

    def _with_server(self, turn: "_Turn", member: StoredMember, now: float) -> None:
        turn.delete([each for each in turn.seen.made(member) if each.uuid != member.server])
        tagged = turn.seen.find(member)
        server = tagged or turn.servers.get(member.server)
        gone = server is None
        leaves = server is not None and server.status in _GONE
        if tagged is None and server is not None and server.status == _UNKNOWN:
            return  # its cell does not answer
        if tagged is None and not gone and not leaves and member.step in _KEEPS_TAG:
            raise ForeignServerError(
                f"server {member.server} does not carry the tags of this group any more: it is not deleted"
            )
        match member.step:
            case MemberStep.BUILDING:
                self._build(turn, member, server, now)
            case MemberStep.DROPPED:
                if gone:
                    turn.remove(member)
                elif tagged and not leaves:
                    turn.delete([tagged])
            case MemberStep.DELETING:
                self._delete(turn, member, tagged, gone=gone, leaves=leaves)
            case MemberStep.ADDING | MemberStep.JOINING | MemberStep.JOINED | MemberStep.DRAINING:
                if gone or leaves:
                    turn.move(member, MemberStep.DELETING)
                elif member.step is MemberStep.DRAINING and turn.is_needed():
                    turn.move(member, MemberStep.ADDING)
                elif member.step in _HOOKS:
                    event, after = _HOOKS[member.step]
                    if turn.call(event, member):
                        turn.move(member, after)

    def _build(
        self, turn: "_Turn", member: StoredMember, server: JobServer | None, now: float
    ) -> None:
        late = now >= member.since + self._build_timeout_s
        if server is None or server.status in _GONE:
            turn.move(member, MemberStep.DROPPED)
        elif server.status == "ACTIVE":
            turn.members.made(turn.group, turn.actor)
            turn.move(member, MemberStep.ADDING)
        elif server.failure is not None or late:
            turn.refused()
            turn.move(member, MemberStep.DROPPED)
            why = server.fault or f"it was not active after {self._build_timeout_s:.0f} s"
            _LOG.warning("elastic group %s: server %s: %s", turn.group.uuid, server.uuid, why)

    @staticmethod
    def _delete(
        turn: "_Turn",
        member: StoredMember,
        tagged: JobServer | None,
        *,
        gone: bool,
        leaves: bool,
    ) -> None:
        if gone:
            if turn.call(HookEvent.DELETE, member):
                turn.remove(member)
        elif tagged is not None and not leaves:
            if turn.is_needed():
                turn.move(member, MemberStep.ADDING)
            else:
                turn.delete([tagged])


_HOOKS: Final = {
    MemberStep.ADDING: (HookEvent.ADD, MemberStep.JOINING),
    MemberStep.JOINING: (HookEvent.READY, MemberStep.JOINED),
    MemberStep.DRAINING: (HookEvent.DRAIN, MemberStep.DELETING),
}


@dataclass(slots=True)
class _Turn:
    """What is done in a group at a time.

    :param seen: the last look at it
    :param called: a hook was called since
    :param is_refused: a member was refused; no other one is asked for
    """

    group: StoredScaling
    servers: UserServers
    seen: Seen
    actor: Actor
    may: Callable[[], None]
    members: ScalingMembers
    hooks: ScalingHooks
    called: bool = False
    is_refused: bool = False

    def is_needed(self) -> bool:
        """Return whether the group has fewer servers than its least without those that leave."""
        return len(self.seen.fleet().serving) < self.group.settings.least

    def move(self, member: StoredMember, step: MemberStep, **changes: str) -> None:
        """Let a member go to its next step."""
        self.members.move(self.group, member, step, self.actor, **changes)

    def remove(self, member: StoredMember) -> None:
        """Forget a member."""
        self.members.remove(self.group, member, self.actor)
        left = tuple(each for each in self.seen.members if each.number != member.number)
        self.seen = replace(self.seen, members=left)

    def refused(self) -> None:
        """Ask for no member for a while, ever longer; what is refused in one turn counts once."""
        if self.is_refused:
            return
        self.is_refused = True
        self.members.refused(self.group, back_off_s(self.group), self.actor)

    def create(self, member: StoredMember) -> str:
        """Have nova make a member's server; return its uuid."""
        template = self.seen.template
        request = MemberRequest(
            self.group.uuid,
            member.token,
            self.seen.name(member),
            template.flavor,
            template.image,
            template.networks,
        )
        self.may()
        return self.servers.create_member(request)

    def delete(self, found: Sequence[JobServer]) -> None:
        """Have servers deleted that carry the tags of one of the group's members."""
        if found:
            self.servers.delete(self._led(found))

    def call(self, event: HookEvent, member: StoredMember) -> bool:
        """Return whether a hook is done."""
        about = {
            "group": self.group.uuid,
            "project": self.group.project,
            "name": self.seen.name(member),
        }
        self._check()
        hook = self.seen.template.hook
        self.called = bool(hook)
        return self.hooks.call(hook, event, member.server, about)

    def _led(self, found: Sequence[JobServer]) -> Iterable[str]:
        """Yield uuids, term and group checked right before each."""
        for each in found:
            self._check()
            yield each.uuid

    def _check(self) -> None:
        self.may()
        self.members.check(self.group, self.actor)
