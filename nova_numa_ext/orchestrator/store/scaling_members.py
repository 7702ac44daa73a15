# SPDX-License-Identifier: Apache-2.0
"""Members that the service adds to elastic groups and takes out of them, as they are stored.

A member is stored before nova is asked for its server, with a token of its own: the server carries it as a tag. So a
server is of a group when the database has its token *and* it has the tags, and of nothing else.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import delete, select, update

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.scaling import StoredScaling, fence
from nova_numa_ext.orchestrator.store.tables import Now
from nova_numa_ext.policy.elastic.member_steps import MemberStep


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of an elastic group.

    :param token: what its server carries as a tag
    :param server: uuid, '' before nova has answered
    :param since: when it came to its step, by the database's clock
    :param asked_at: when nova was asked for its server; None: not yet
    """

    number: int
    token: str
    server: str
    step: MemberStep
    since: float
    asked_at: float | None


class ScalingMembers:
    """The table ``scaling_member``.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when the database does not answer; those
    that change something raise :class:`.leader.NotLeaderError` when the engine's term is over, and
    :class:`.database.LostRaceError` where the group or the member has changed since it was read.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, group: StoredScaling) -> list[StoredMember]:
        """Return the members of a group, the oldest first."""
        member = tables.scaling_member
        query = select(member).where(member.c.group_id == group.number).order_by(member.c.id)
        with self._database.transaction() as connection:
            return [
                StoredMember(
                    row.id, row.token, row.server, MemberStep(row.step), row.since, row.asked_at
                )
                for row in connection.execute(query)
            ]

    def check(self, group: StoredScaling, actor: Actor) -> None:
        """Check right before something is done beside the database that no operator has changed the group."""
        with self._database.transaction() as connection:
            fence(connection, group, actor)

    def ask(self, group: StoredScaling, member: StoredMember, actor: Actor) -> StoredMember:
        """Store right before nova is asked that a server of a member may come to be."""
        return self._set(group, member, actor, asked_at=Now())

    def move(
        self,
        group: StoredScaling,
        member: StoredMember,
        step: MemberStep,
        actor: Actor,
        **changes: Any,
    ) -> StoredMember:
        """Let a member go to a step, before that is begun.

        :param changes: ``server``
        """
        return self._set(group, member, actor, step=step, since=Now(), **changes)

    def remove(self, group: StoredScaling, member: StoredMember, actor: Actor) -> None:
        """Forget a member, of which nothing is left."""
        columns = tables.scaling_member.c
        with self._database.transaction() as connection:
            fence(connection, group, actor)
            connection.execute(delete(tables.scaling_member).where(columns.id == member.number))

    def refused(self, group: StoredScaling, wait_s: float, actor: Actor) -> None:
        """Have no member asked for during some seconds: nova has refused one."""
        columns = tables.scaling_group.c
        values = {"not_before": Now() + wait_s, "refusals": columns.refusals + 1}
        with self._database.transaction() as connection:
            fence(connection, group, actor)
            mine = columns.id == group.number
            connection.execute(update(tables.scaling_group).where(mine).values(values))

    def made(self, group: StoredScaling, actor: Actor) -> None:
        """Forget that nova has refused members: it has made one."""
        columns = tables.scaling_group.c
        with self._database.transaction() as connection:
            fence(connection, group, actor)
            mine = columns.id == group.number
            connection.execute(update(tables.scaling_group).where(mine).values(refusals=0))

    def ask_stack(self, group: StoredScaling, actor: Actor) -> None:
        """Store right before Heat is asked that a stack may come to another size."""
        assert group.resize is not None, f"elastic group {group.uuid} is not to be resized"
        columns = tables.scaling_group.c
        with self._database.transaction() as connection:
            fence(connection, group, actor)
            now = float(connection.execute(select(Now())).scalar_one())
            asked = asdict(replace(group.resize, asked_at=now))
            mine = columns.id == group.number
            connection.execute(update(tables.scaling_group).where(mine).values(resize=asked))

    def end_resize(self, group: StoredScaling, actor: Actor, **values: Any) -> None:
        """Forget a resize of a group's stack: it is done, or nothing comes of it.

        :param values: other columns of the group
        """
        columns = tables.scaling_group.c
        with self._database.transaction() as connection:
            fence(connection, group, actor)
            mine = columns.id == group.number
            ended = {"resize": None, **values}
            connection.execute(update(tables.scaling_group).where(mine).values(ended))

    def _set(
        self, group: StoredScaling, member: StoredMember, actor: Actor, **values: Any
    ) -> StoredMember:
        table = tables.scaling_member
        mine = (table.c.id == member.number, table.c.step == member.step)
        with self._database.transaction() as connection:
            fence(connection, group, actor)
            if not connection.execute(update(table).where(*mine).values(values)).rowcount:
                raise LostRaceError(f"Member {member.token} has changed since it was read.")
            row = connection.execute(select(table).where(table.c.id == member.number)).one()
        return replace(
            member,
            server=row.server,
            step=MemberStep(row.step),
            since=row.since,
            asked_at=row.asked_at,
        )
