# SPDX-License-Identifier: Apache-2.0
"""Elastic groups as they are stored: what an operator has decided about a server group, and what was decided on it.

An elastic group has the uuid of its server group in nova. What the models have learnt is not stored: it follows from
the group's source, and the engine that leads next learns it again. ``version`` counts what operators change; an engine
records decisions of the version that it has read, and none else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.tables import Now
from nova_numa_ext.orchestrator.store.trusts import ended
from nova_numa_ext.orchestrator.store.unreadable import UnreadableError
from nova_numa_ext.policy.elastic.cells import Grid
from nova_numa_ext.policy.elastic.member_steps import MemberStep
from nova_numa_ext.policy.elastic.monitored import MonitoredQueries
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from placement_traits.errors import cut

KEPT_DECISIONS: Final = 8064
"""Of each group, the newest: four weeks of five minutes."""

_LONGEST_TROUBLE: Final = 255  # of the column
_ACTIONS_KEPT_S: Final = 86_400.0  # no cool-down is longer

Line = Mapping[str, Any]
"""A line of a decision log: :meth:`nova_numa_ext.policy.elastic.following.DecidedPeriod.as_json`."""


@dataclass(frozen=True, slots=True)
class ScalingSource:
    """Where load and latencies of a group's members come from: one of both.

    :param csv: name of a file in the engine's folder of traces, '' for none
    :param prometheus: what the engine's Prometheus is asked
    """

    csv: str = ""
    prometheus: MonitoredQueries | None = None


@dataclass(frozen=True, slots=True)
class MemberTemplate:
    """Of what the members of a group are made that the service adds.

    :param name: of their servers, before a number of their own
    :param flavor: id; ``image`` and ``networks``: uuids, as of
        :class:`nova_numa_ext.orchestrator.cloud.servers.ServerRequest`
    :param hook: file in the engines' folder of hooks, '' for none
    """

    name: str
    flavor: str
    image: str
    networks: tuple[str, ...] = ()
    hook: str = ""


@dataclass(frozen=True, slots=True)
class StackTemplate:
    """The stack of Heat whose size is that of a group.

    :param stack: uuid
    :param parameter: from which its template takes the ``desired_capacity``
    """

    stack: str
    name: str
    parameter: str


Template = MemberTemplate | StackTemplate
"""What an elastic group is enforced with."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Another size of a stack, which was decided and is not there yet.

    :param before: its size when that was decided
    :param after: its size then
    :param since: when it was decided, by the database's clock
    :param asked_at: when Heat was asked for it; None: not yet
    """

    before: int
    after: int
    since: float = 0.0
    asked_at: float | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """What is to be done of a decision, stored with it.

    :param tokens: of members that are to be added
    :param leaving: servers of members that are to leave
    :param resize: what a stack is to be; its time is that of the database
    """

    tokens: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    resize: Resize | None = None


@dataclass(frozen=True, slots=True)
class StoredScaling:
    """An elastic group as it was read.

    :param uuid: of its server group
    :param project: whose the server group is
    :param user: who set it last
    :param paused: nothing is decided on it
    :param version: number of changes by operators
    :param trouble: why the engine cannot decide on it; '': it can
    :param template: of members that the service adds, or the stack that it resizes; None: it observes
    :param trust: by which the service acts for who has set it; '' while it observes
    :param actions_s: when it was acted lately, by the database's clock
    :param not_before: until when no member is asked for, because nova has refused one
    :param refusals: how often it did so since it has made one
    :param resize: of its stack, that is under way
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
    template: Template | None
    trust: str
    actions_s: tuple[float, ...]
    not_before: float
    refusals: int
    resize: Resize | None = None


@dataclass(frozen=True, slots=True)
class ListedScaling:
    """An elastic group in a list, whatever release has stored it.

    :param uuid: of its server group
    :param project: whose the server group is
    :param paused: nothing is decided on it
    :param trouble: why nothing can be decided on it; '': it can
    :param enforced: decisions are carried out
    """

    uuid: str
    project: str
    paused: bool
    trouble: str
    changed_at: float
    enforced: bool


class ScalingGroups:
    """The tables ``scaling_group`` and ``scaling_decision``; it begins members in ``scaling_member``.

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
        *,
        template: Template | None = None,
        trust: str = "",
    ) -> StoredScaling:
        """Store a group, or change one. Decisions by what was set before are deleted; a pause and members stay.

        The trust of before is to be deleted.

        :param uuid: of its server group
        :param template: see :class:`StoredScaling`; ``trust`` likewise
        """
        group = tables.scaling_group
        values = {
            "project_id": project,
            "user_id": user,
            "settings": asdict(settings),
            "source": asdict(source),
            "template": None if template is None else asdict(template),
            "trust_id": trust,
            "not_before": 0.0,
            "refusals": 0,
            "resize": None,
            "trouble": "",
            "changed_at": Now(),
        }

        def stored(connection: Connection) -> StoredScaling:
            mine = group.c.uuid == uuid
            _end_trust(connection, uuid, but=trust)
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
        """Forget a group with decisions and members, in whatever form it is stored; return whether there was one.

        Servers stay as they are.
        """
        group, decision = tables.scaling_group, tables.scaling_decision

        def deleted(connection: Connection) -> bool:
            query = select(group.c.id).where(group.c.uuid == uuid)
            number = connection.execute(query).scalar_one_or_none()
            if number is None:
                return False
            _end_trust(connection, uuid)
            for table in (decision, tables.scaling_member):
                connection.execute(delete(table).where(table.c.group_id == number))
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

    def trusts(self) -> frozenset[str]:
        """Return the trusts of all groups."""
        column = tables.scaling_group.c.trust_id
        with self._database.transaction() as connection:
            return frozenset(connection.execute(select(column).where(column != "")).scalars())

    def now(self) -> float:
        """Return the database's clock, seconds since 1970."""
        return self._database.now()

    def members(self) -> Mapping[str, int]:
        """Return how many members that the service has added are in each step, in all groups."""
        step = tables.scaling_member.c.step
        with self._database.transaction() as connection:
            rows = connection.execute(select(step, func.count()).group_by(step)).all()
        found = {name: int(number) for name, number in rows}
        return {name: found.get(name, 0) for name in MemberStep}

    def counts(self) -> tuple[int, int, int]:
        """Return how many groups are followed, how many of these cannot be decided on, and how many are paused."""
        group = tables.scaling_group
        query = select(group.c.paused, group.c.trouble != "", func.count())
        with self._database.transaction() as connection:
            rows = connection.execute(query.group_by(group.c.paused, group.c.trouble != "")).all()
        followed = sum(number for paused, _, number in rows if not paused)
        troubled = sum(number for paused, trouble, number in rows if trouble and not paused)
        return followed, troubled, sum(number for *_, number in rows) - followed

    def record(
        self,
        group: StoredScaling,
        lines: Sequence[Line],
        actor: Actor,
        trouble: str = "",
        act: Act | None = None,
    ) -> None:
        """Add lines to the decision log of a group that can be decided on; only the newest are kept.

        :param trouble: what stands in the way of carrying out, all the same
        :param act: what is to be done of the last one; stored in the same transaction
        :raises LostRaceError: an operator has changed the group since it was read, or a member its step
        """
        with self._database.transaction() as connection:
            fence(connection, group, actor)
            columns = tables.scaling_group.c
            mine = columns.id == group.number
            shown = shown_trouble(trouble)
            connection.execute(update(tables.scaling_group).where(mine).values(trouble=shown))
            if lines:
                _add_lines(connection, group, lines)
            if act is not None:
                _begin(connection, group, act)

    def trouble(self, group: StoredScaling, why: str, actor: Actor) -> None:
        """Say why a group cannot be decided on.

        :raises LostRaceError: an operator has changed the group since it was read
        """
        shown = shown_trouble(why)
        if shown == group.trouble:
            return
        columns = tables.scaling_group.c
        with self._database.transaction() as connection:
            fence(connection, group, actor)
            mine = columns.id == group.number
            connection.execute(update(tables.scaling_group).where(mine).values(trouble=shown))


def fence(connection: Connection, group: StoredScaling, actor: Actor) -> None:
    """Let a transaction change a group as who leads, and of the version that was read, or not at all.

    :raises NotLeaderError: another engine leads
    :raises LostRaceError: an operator has changed the group since it was read
    """
    actor.fence(connection)
    columns = tables.scaling_group.c
    there = select(columns.id).where(columns.id == group.number, columns.version == group.version)
    if connection.execute(there.with_for_update()).one_or_none() is None:
        raise LostRaceError(f"Elastic group {group.uuid} has changed since it was read.")


def shown_trouble(trouble: str) -> str:
    """Return as much of a trouble as is stored."""
    return cut(trouble, _LONGEST_TROUBLE)[:_LONGEST_TROUBLE]


def _add_lines(connection: Connection, group: StoredScaling, lines: Sequence[Line]) -> None:
    decision = tables.scaling_decision
    mine = decision.c.group_id == group.number
    rows = [{"group_id": group.number, "at_s": each["at_s"], "line": each} for each in lines]
    connection.execute(insert(decision), rows)
    newest = select(decision.c.at_s).where(mine).order_by(decision.c.at_s.desc())
    oldest = connection.execute(newest.offset(KEPT_DECISIONS).limit(1)).scalar_one_or_none()
    if oldest is not None:
        connection.execute(delete(decision).where(mine, decision.c.at_s <= oldest))


def _begin(connection: Connection, group: StoredScaling, act: Act) -> None:
    """Store members that are to come, that others are to leave, and when that was."""
    now = float(connection.execute(select(Now())).scalar_one())
    member = tables.scaling_member
    for token in act.tokens:
        row = {"group_id": group.number, "token": token, "server": "", "since": now}
        connection.execute(insert(member).values(step=MemberStep.ASKED, **row))
    for server in act.leaving:
        of_group = (member.c.group_id == group.number, member.c.server == server)
        left = update(member).where(*of_group, member.c.step == MemberStep.JOINED)
        changed = connection.execute(left.values(step=MemberStep.DRAINING, since=now))
        if changed.rowcount != 1:
            raise LostRaceError(f"Member {server} of {group.uuid} has changed since it was read.")
    acted = [*(each for each in group.actions_s if each > now - _ACTIONS_KEPT_S), now]
    values: dict[str, Any] = {"actions": acted}
    if act.resize is not None:
        values["resize"] = asdict(replace(act.resize, since=now))
    columns = tables.scaling_group.c
    connection.execute(
        update(tables.scaling_group).where(columns.id == group.number).values(values)
    )


def _end_trust(connection: Connection, uuid: str, but: str = "") -> None:
    """Have the trust of a group deleted, unless it is one that stays."""
    columns = tables.scaling_group.c
    query = select(columns.trust_id).where(columns.uuid == uuid)
    trust = connection.execute(query).scalar_one_or_none()
    if trust and trust != but:
        ended(connection, trust)


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
    enforced = row.trust_id != ""
    return ListedScaling(row.uuid, row.project_id, row.paused, trouble, row.changed_at, enforced)


def _understood(row: Row[Any]) -> StoredScaling:
    return StoredScaling(
        number=row.id,
        uuid=row.uuid,
        project=row.project_id,
        user=row.user_id,
        settings=ScalingSettings(**{**row.settings, "grid": Grid(**row.settings["grid"])}),
        source=_source(row.source),
        paused=row.paused,
        version=row.version,
        trouble=row.trouble,
        created_at=row.created_at,
        changed_at=row.changed_at,
        template=None if row.template is None else _template(row.template),
        trust=row.trust_id,
        actions_s=tuple(row.actions or ()),
        not_before=row.not_before,
        refusals=row.refusals,
        resize=None if row.resize is None else Resize(**row.resize),
    )


def _source(found: Mapping[str, Any]) -> ScalingSource:
    queries = found.get("prometheus")
    return ScalingSource(found["csv"], None if queries is None else MonitoredQueries(**queries))


def _template(found: Mapping[str, Any]) -> Template:
    if "stack" in found:
        return StackTemplate(**found)
    return MemberTemplate(**{**found, "networks": tuple(found["networks"])})
