# SPDX-License-Identifier: Apache-2.0
"""Elastic groups as they are stored: what an operator has decided about a server group, and what was decided on it.

An elastic group has the uuid of its server group in nova. What the models have learnt is not stored: it follows from
the group's source, and the engine that leads next learns it again. ``version`` counts what operators change; an engine
records decisions of the version that it has read, and none else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.tables import Now
from nova_numa_ext.orchestrator.store.unreadable import UnreadableError
from nova_numa_ext.policy.elastic.cells import Grid
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from placement_traits.errors import cut

KEPT_DECISIONS: Final = 8064
"""Of each group, the newest: four weeks of five minutes."""

_LONGEST_TROUBLE: Final = 255  # of the column

Line = Mapping[str, Any]
"""A line of a decision log: :meth:`nova_numa_ext.policy.elastic.following.DecidedPeriod.as_json`."""


@dataclass(frozen=True, slots=True)
class ScalingSource:
    """Where load and latencies of a group's members come from.

    :param csv: name of a file in the engine's folder of traces
    """

    csv: str


@dataclass(frozen=True, slots=True)
class StoredScaling:
    """An elastic group as it was read.

    :param uuid: of its server group
    :param project: whose the server group is
    :param user: who set it last
    :param paused: nothing is decided on it
    :param version: number of changes by operators
    :param trouble: why the engine cannot decide on it; '': it can
    """

    number: int
    uuid: str
    project: str
    user: str
    settings: ScalingSettings
    source: ScalingSource
    paused: bool
    version: int
    trouble: str
    created_at: float
    changed_at: float


@dataclass(frozen=True, slots=True)
class ListedScaling:
    """An elastic group in a list, whatever release has stored it.

    :param uuid: of its server group
    :param project: whose the server group is
    :param paused: nothing is decided on it
    :param trouble: why nothing can be decided on it; '': it can
    """

    uuid: str
    project: str
    paused: bool
    trouble: str
    changed_at: float


class ScalingGroups:
    """The tables ``scaling_group`` and ``scaling_decision``.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when the database does not answer; those
    that change something for an engine raise :class:`.leader.NotLeaderError` when its term is over.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def set(
        self,
        uuid: str,
        project: str,
        user: str,
        settings: ScalingSettings,
        source: ScalingSource,
    ) -> StoredScaling:
        """Store a group, or change one. Decisions by what was set before are deleted; a pause stays.

        :param uuid: of its server group
        """
        group = tables.scaling_group
        values = {
            "project_id": project,
            "user_id": user,
            "settings": asdict(settings),
            "source": asdict(source),
            "trouble": "",
            "changed_at": Now(),
        }

        def stored(connection: Connection) -> StoredScaling:
            mine = group.c.uuid == uuid
            changed = connection.execute(
                update(group).where(mine).values(version=group.c.version + 1, **values)
            )
            if not changed.rowcount:
                fresh = {"uuid": uuid, "paused": False, "version": 0, "created_at": Now()}
                connection.execute(insert(group).values(**fresh, **values))
            row = connection.execute(select(group).where(mine)).one()
            decision = tables.scaling_decision
            connection.execute(delete(decision).where(decision.c.group_id == row.id))
            return _understood(row)

        return self._database.again(stored)

    def pause(self, uuid: str, user: str, *, paused: bool) -> StoredScaling | None:
        """Have nothing decided on a group, or again; return it, None when there is none.

        :raises UnreadableError: it is stored in another form
        """
        group = tables.scaling_group
        mine = group.c.uuid == uuid
        change = update(group).where(mine, group.c.paused != paused)
        values = {"paused": paused, "user_id": user, "trouble": "", "changed_at": Now()}

        def stored(connection: Connection) -> Row[Any] | None:
            connection.execute(change.values(version=group.c.version + 1, **values))
            return connection.execute(select(group).where(mine)).one_or_none()

        row = self._database.again(stored)
        return None if row is None else _read(row)

    def delete(self, uuid: str) -> bool:
        """Forget a group and the decisions on it, in whatever form it is stored; return whether there was one."""
        group, decision = tables.scaling_group, tables.scaling_decision

        def deleted(connection: Connection) -> bool:
            query = select(group.c.id).where(group.c.uuid == uuid)
            number = connection.execute(query).scalar_one_or_none()
            if number is None:
                return False
            connection.execute(delete(decision).where(decision.c.group_id == number))
            return bool(connection.execute(delete(group).where(group.c.id == number)).rowcount)

        return self._database.again(deleted)

    def find(
        self, *, project: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[ListedScaling]:
        """Return groups in the order in which they were set first.

        :param project: only those of a project
        :param after: uuid of the last group of the page before; of one that is not there nothing comes after
        :param limit: so many at most
        """
        group = tables.scaling_group
        query = select(group).order_by(group.c.id).limit(limit)
        if project is not None:
            query = query.where(group.c.project_id == project)
        if after is not None:
            marker = select(group.c.id).where(group.c.uuid == after)
            query = query.where(group.c.id > marker.scalar_subquery())
        with self._database.transaction() as connection:
            return list(map(_listed, connection.execute(query).all()))

    def read(self, uuid: str) -> StoredScaling | None:
        """Return a group, None when there is none.

        :raises UnreadableError: it is stored in another form
        """
        query = select(tables.scaling_group).where(tables.scaling_group.c.uuid == uuid)
        with self._database.transaction() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else _read(row)

    def followed(self) -> list[StoredScaling | UnreadableError]:
        """Return the groups that are not paused, oldest first; of one that cannot be read, why."""
        group = tables.scaling_group
        query = select(group).where(group.c.paused.is_(False)).order_by(group.c.id)
        with self._database.transaction() as connection:
            rows = connection.execute(query).all()
        found: list[StoredScaling | UnreadableError] = []
        for row in rows:
            try:
                found.append(_read(row))
            except UnreadableError as error:
                found.append(error)
        return found

    def decisions(
        self, uuid: str, *, after: float | None = None, limit: int | None = None
    ) -> list[Line]:
        """Return lines of the decision log of a group, oldest first.

        :param after: only those of later periods: ``at_s`` of the last line of the page before
        :param limit: so many at most
        """
        group, decision = tables.scaling_group, tables.scaling_decision
        query = select(decision.c.line).join(group, group.c.id == decision.c.group_id)
        query = query.where(group.c.uuid == uuid).order_by(decision.c.at_s).limit(limit)
        if after is not None:
            query = query.where(decision.c.at_s > after)
        with self._database.transaction() as connection:
            return list(connection.execute(query).scalars())

    def last_decision(self, group: StoredScaling) -> Line | None:
        """Return the newest line of the decision log of a group, None before the first one."""
        decision = tables.scaling_decision
        query = select(decision.c.line).where(decision.c.group_id == group.number)
        with self._database.transaction() as connection:
            newest = query.order_by(decision.c.at_s.desc()).limit(1)
            line: Line | None = connection.execute(newest).scalar_one_or_none()
        return line

    def counts(self) -> tuple[int, int, int]:
        """Return how many groups are followed, how many of these cannot be decided on, and how many are paused."""
        group = tables.scaling_group
        query = select(group.c.paused, group.c.trouble != "", func.count())
        with self._database.transaction() as connection:
            rows = connection.execute(query.group_by(group.c.paused, group.c.trouble != "")).all()
        followed = sum(number for paused, _, number in rows if not paused)
        troubled = sum(number for paused, trouble, number in rows if trouble and not paused)
        return followed, troubled, sum(number for *_, number in rows) - followed

    def record(self, group: StoredScaling, lines: Sequence[Line], actor: Actor) -> None:
        """Add lines to the decision log of a group that can be decided on; only the newest are kept.

        :raises LostRaceError: an operator has changed the group since it was read
        """
        decision = tables.scaling_decision
        mine = decision.c.group_id == group.number
        with self._database.transaction() as connection:
            self._fence(connection, group, actor, "")
            if not lines:
                return
            rows = [
                {"group_id": group.number, "at_s": each["at_s"], "line": each} for each in lines
            ]
            connection.execute(insert(decision), rows)
            newest = select(decision.c.at_s).where(mine).order_by(decision.c.at_s.desc())
            oldest = connection.execute(newest.offset(KEPT_DECISIONS).limit(1)).scalar_one_or_none()
            if oldest is not None:
                connection.execute(delete(decision).where(mine, decision.c.at_s <= oldest))

    def trouble(self, group: StoredScaling, why: str, actor: Actor) -> None:
        """Say why a group cannot be decided on.

        :raises LostRaceError: an operator has changed the group since it was read
        """
        shown = cut(why, _LONGEST_TROUBLE)[:_LONGEST_TROUBLE]
        if shown == group.trouble:
            return
        with self._database.transaction() as connection:
            self._fence(connection, group, actor, shown)

    def _fence(
        self, connection: Connection, group: StoredScaling, actor: Actor, trouble: str
    ) -> None:
        """Write what is known of trouble, as who leads and of the version that was read."""
        actor.fence(connection)
        columns = tables.scaling_group.c
        mine = (columns.id == group.number, columns.version == group.version)
        there = select(columns.id).where(*mine).with_for_update()
        if connection.execute(there).one_or_none() is None:
            raise LostRaceError(f"Elastic group {group.uuid} has changed since it was read.")
        connection.execute(update(tables.scaling_group).where(*mine).values(trouble=trouble))


def _read(row: Row[Any]) -> StoredScaling:
    try:
        return _understood(row)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise UnreadableError("Elastic group", row.uuid, row.project_id, why) from error


def _listed(row: Row[Any]) -> ListedScaling:
    try:
        trouble = _read(row).trouble
    except UnreadableError:
        trouble = "It is stored in a form of another release."
    return ListedScaling(row.uuid, row.project_id, row.paused, trouble, row.changed_at)


def _understood(row: Row[Any]) -> StoredScaling:
    return StoredScaling(
        number=row.id,
        uuid=row.uuid,
        project=row.project_id,
        user=row.user_id,
        settings=ScalingSettings(**{**row.settings, "grid": Grid(**row.settings["grid"])}),
        source=ScalingSource(**row.source),
        paused=row.paused,
        version=row.version,
        trouble=row.trouble,
        created_at=row.created_at,
        changed_at=row.changed_at,
    )
