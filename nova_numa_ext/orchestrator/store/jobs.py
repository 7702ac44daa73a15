# SPDX-License-Identifier: Apache-2.0
"""Jobs as they are stored, and their changes: compare-and-set, each with an event beside it."""

import uuid as uuids
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, delete, func, insert, select, update

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.leader import Term
from nova_numa_ext.orchestrator.store.tables import Now
from nova_numa_ext.policy.jobs.job import BuildFailure, Scope, ScopeWait
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState, check_transition
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.reason import Reason

FINAL: Final = tuple(state for state in JobState if state.final)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a flavor was when the job was submitted; ``memory_mb`` in MiB, ``disk_gb`` in GiB."""

    vcpus: int
    memory_mb: int
    disk_gb: int


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of a job; what is not explained here is as in :class:`nova_numa_ext.policy.jobs.job.Part`.

    :param sizes: of its flavor
    :param extra_specs: of its flavor, with those that the part adds
    :param servers: member's number, from 0 -> uuid of the server that counts as this member; '' where the job goes on
        without one
    :param replaced: how often a server of it was made again
    :param version: number of changes of ``servers``
    """

    name: str
    count: int
    flavor: str
    sizes: Sizes
    extra_specs: Mapping[str, str]
    image: str = ""
    networks: tuple[str, ...] = ()
    wait_for: tuple[ScopeWait, ...] = (ScopeWait(Scope.FLEET),)
    apart: bool = False
    on_failure: BuildFailure = BuildFailure.FAIL
    servers: Mapping[int, str] = field(default_factory=dict)
    replaced: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is done outside of the database: stored before it begins, undone in reverse order.

    :param name: what is done
    :param about: on what: a uuid, or a part's name
    """

    name: str
    about: str


@dataclass(frozen=True, slots=True)
class NewJob:
    """What is submitted; parameters as of :class:`nova_numa_ext.policy.jobs.job.Job`.

    :param trust: id of the Keystone trust by which the service acts for the user
    """

    project: str
    user: str
    trust: str
    name: str
    parts: tuple[StoredPart, ...]
    priority: int = 0
    walltime_s: float | None = None
    deadline_at: float | None = None
    max_wait_s: float | None = None
    held: bool = False
    preemptible: bool = False


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as it was read; what is not explained here is as in :class:`nova_numa_ext.policy.jobs.job.Job`.

    :param number: order of submission
    :param version: number of changes: a change of what was read is one of this version or none
    :param cancelled: its user wants it to end, whatever it does now
    :param target: the state that it goes to when ENDING is over
    :param plan: its places
    :param refusals: how often in a row nova has refused it
    :param reasons: of its state
    :param steps: what was begun outside of the database and is not undone, in order
    """

    number: int
    uuid: str
    project: str
    user: str
    trust: str
    name: str
    state: JobState
    version: int
    parts: tuple[StoredPart, ...]
    held: bool
    cancelled: bool
    priority: int
    walltime_s: float | None
    deadline_at: float | None
    max_wait_s: float | None
    preemptible: bool
    target: JobState | None
    plan: Plan[HostPlace] | None
    refusals: int
    not_before: float
    postponed: int
    postponed_at: float | None
    excluded: frozenset[str]
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    reasons: tuple[Reason, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a job.

    :param number: larger than that of every event before
    :param at: when, by the database's clock
    :param actor: user's id, or the engine's name
    :param term: the engine's, None where it was no engine
    :param state: the job's afterwards
    :param what: ``state`` for a transition, else the column that changed
    """

    number: int
    at: float
    actor: str
    term: int | None
    state: JobState
    what: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Actor:
    """Who changes something.

    :param name: user's id, or the engine's name
    :param term: of an engine; its change happens within the term or not at all
    """

    name: str
    term: Term | None = None


class Jobs:
    """The tables ``job``, ``part`` and ``event``.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when the database does not answer; those
    that change something for an engine raise :class:`.leader.NotLeaderError` when its term is over.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, new: NewJob) -> StoredJob:
        """Store a job in state QUEUED."""
        uuid = str(uuids.uuid4())
        reasons = (Reason(JobTerm.SUBMITTED, new.user),)
        self._database.again(lambda connection: _insert(connection, uuid, new, reasons))
        job = self.read(uuid)
        assert job is not None, f"job {uuid} went right after it was stored"
        return job

    def read(self, uuid: str) -> StoredJob | None:
        """Return a job, None when there is none."""
        found = self._select(select(tables.job).where(tables.job.c.uuid == uuid))
        return found[0] if found else None

    def find(
        self,
        *,
        project: str | None = None,
        states: Collection[JobState] = tuple(JobState),
        after: str | None = None,
        limit: int | None = None,
    ) -> list[StoredJob]:
        """Return jobs in the order of their submission.

        :param project: only those of a project
        :param states: only those in one of these
        :param after: uuid of the last job of the page before; of one that is not there nothing comes after
        :param limit: so many at most
        """
        query = select(tables.job).where(tables.job.c.state.in_(states)).order_by(tables.job.c.id)
        if project is not None:
            query = query.where(tables.job.c.project_id == project)
        if after is not None:
            marker = select(tables.job.c.id).where(tables.job.c.uuid == after)
            query = query.where(tables.job.c.id > marker.scalar_subquery())
        return self._select(query.limit(limit))

    def usage(self, project: str) -> tuple[int, int]:
        """Return jobs of a project that have not ended, and their servers."""
        query = (
            select(func.count(tables.job.c.id.distinct()), func.sum(tables.part.c.count))
            .join(tables.part)
            .where(tables.job.c.project_id == project, tables.job.c.state.not_in(FINAL))
        )
        with self._database.transaction() as connection:
            jobs, servers = connection.execute(query).one()
        return int(jobs), int(servers or 0)

    def events(self, job: StoredJob, after: int = 0) -> list[Event]:
        """Return what happened to a job, oldest first.

        :param after: only events with a larger number
        """
        query = (
            select(tables.event)
            .where(tables.event.c.job_id == job.number, tables.event.c.id > after)
            .order_by(tables.event.c.id)
        )
        with self._database.transaction() as connection:
            return [_event(row) for row in connection.execute(query)]

    def last_event(self) -> int:
        """Return the largest number of an event, 0 without one: a database that was restored has a smaller one."""
        with self._database.transaction() as connection:
            return int(connection.execute(select(func.max(tables.event.c.id))).scalar() or 0)

    def move(
        self, job: StoredJob, to: JobState, reasons: Sequence[Reason], actor: Actor, **changes: Any
    ) -> StoredJob:
        """Let a job go to another state.

        :param reasons: why; never empty
        :param changes: fields of :class:`StoredJob` that change with it
        :raises TransitionError: its state does not lead there
        :raises LostRaceError: it has changed since it was read
        """
        check_transition(job.uuid, job.state, to)
        if to is JobState.RUNNING:
            changes["started_at"] = Now()
        if to.final:
            changes["ended_at"] = Now()
        return self._change(job, "state", actor, reasons, state=to, **changes)

    def set(
        self, job: StoredJob, actor: Actor, reasons: Sequence[Reason] = (), **changes: Any
    ) -> StoredJob:
        """Change fields of a job that stays in its state.

        :param reasons: of its state from now on; (): they stay
        :param changes: fields of :class:`StoredJob`; the first one names the event
        :raises LostRaceError: it has changed since it was read
        """
        return self._change(job, next(iter(changes)), actor, reasons or job.reasons, **changes)

    def set_servers(
        self,
        job: StoredJob,
        part: StoredPart,
        servers: Mapping[int, str],
        actor: Actor,
        *,
        replaced: int | None = None,
    ) -> StoredJob:
        """Say which servers count as members of a part.

        :param replaced: how often one was made again; None: as often as before

        :raises LostRaceError: they have changed since the part was read: whose uuids were written first, counts
        """
        columns = tables.part.c
        with self._database.transaction() as connection:
            _fence(connection, actor)
            changed = connection.execute(
                update(tables.part)
                .where(
                    columns.job_id == job.number,
                    columns.name == part.name,
                    columns.version == part.version,
                )
                .values(
                    servers=_servers(servers),
                    replaced=part.replaced if replaced is None else replaced,
                    version=part.version + 1,
                )
            )
            if changed.rowcount != 1:
                raise LostRaceError(f"Part {part.name} of job {job.uuid} has other servers by now.")
            (now,) = _with_parts(connection, [_row(connection, job)])
        return now

    def purge(self, before: float, most: int = 1000) -> int:
        """Delete jobs that ended before a time, with parts and events; return how many.

        :param before: seconds since 1970
        :param most: so many at once; call again while it returns that
        """
        columns = tables.job.c
        with self._database.transaction() as connection:
            old = select(columns.id).where(columns.state.in_(FINAL), columns.ended_at < before)
            ids = connection.execute(old.limit(most)).scalars().all()
            connection.execute(delete(tables.job).where(columns.id.in_(ids)))
        return len(ids)

    def _change(
        self,
        job: StoredJob,
        what: str,
        actor: Actor,
        reasons: Sequence[Reason],
        **changes: Any,
    ) -> StoredJob:
        values = {_COLUMNS.get(name, name): _plain(value) for name, value in changes.items()}
        with self._database.transaction() as connection:
            _fence(connection, actor)
            changed = connection.execute(
                update(tables.job)
                .where(tables.job.c.id == job.number, tables.job.c.version == job.version)
                .values(**values, version=job.version + 1, reasons=_plain(tuple(reasons)))
            )
            if changed.rowcount != 1:
                raise LostRaceError(f"Job {job.uuid} has changed since it was read.")
            state = changes.get("state", job.state)
            _note(connection, job.number, actor, state, what=what, reasons=reasons)
            (now,) = _with_parts(connection, [_row(connection, job)])
        return now

    def _select(self, query: Select[Any]) -> list[StoredJob]:
        with self._database.transaction() as connection:
            return _with_parts(connection, connection.execute(query).all())


_COLUMNS: Final = {"project": "project_id", "user": "user_id", "trust": "trust_id"}


def _insert(connection: Connection, uuid: str, new: NewJob, reasons: Sequence[Reason]) -> None:
    values = asdict(new)
    del values["parts"]
    stored = connection.execute(
        insert(tables.job).values(
            {_COLUMNS.get(name, name): value for name, value in values.items()}
            | {
                "uuid": uuid,
                "state": JobState.QUEUED,
                "version": 0,
                "cancelled": False,
                "refusals": 0,
                "not_before": 0.0,
                "postponed": 0,
                "excluded": [],
                "submitted_at": Now(),
                "reasons": _plain(tuple(reasons)),
                "steps": [],
            }
        )
    )
    number = stored.lastrowid
    connection.execute(
        insert(tables.part), [{"job_id": number} | _part_values(part) for part in new.parts]
    )
    _note(connection, number, Actor(new.user), JobState.QUEUED, what="state", reasons=reasons)


def _part_values(part: StoredPart) -> dict[str, Any]:
    waits = [
        [each.scope, None if each.wait_s == float("inf") else each.wait_s] for each in part.wait_for
    ]
    return asdict(part) | {
        "networks": list(part.networks),
        "wait_for": waits,
        "servers": _servers(part.servers),
    }


def _servers(servers: Mapping[int, str]) -> dict[str, str]:
    return {str(number): uuid for number, uuid in servers.items()}


def _note(
    connection: Connection,
    number: int,
    actor: Actor,
    state: JobState,
    *,
    what: str,
    reasons: Sequence[Reason],
) -> None:
    connection.execute(
        insert(tables.event).values(
            job_id=number,
            at=Now(),
            actor=actor.name,
            term=actor.term.number if actor.term else None,
            state=state,
            what=what,
            reasons=_plain(tuple(reasons)),
        )
    )


def _fence(connection: Connection, actor: Actor) -> None:
    if actor.term:
        actor.term.fence(connection)


def _plain(value: Any) -> Any:
    """Return a field as its column takes it."""
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [asdict(each) for each in value]
    if isinstance(value, Plan):
        return asdict(value)
    return value


def _row(connection: Connection, job: StoredJob) -> Row[Any]:
    return connection.execute(select(tables.job).where(tables.job.c.id == job.number)).one()


def _with_parts(connection: Connection, rows: Sequence[Row[Any]]) -> list[StoredJob]:
    parts: dict[int, list[StoredPart]] = {row.id: [] for row in rows}
    query = select(tables.part).where(tables.part.c.job_id.in_(parts)).order_by(tables.part.c.id)
    for row in connection.execute(query):
        parts[row.job_id].append(_part(row))
    return [_job(row, tuple(parts[row.id])) for row in rows]


def _job(row: Row[Any], parts: tuple[StoredPart, ...]) -> StoredJob:
    return StoredJob(
        number=row.id,
        uuid=row.uuid,
        project=row.project_id,
        user=row.user_id,
        trust=row.trust_id,
        name=row.name,
        state=JobState(row.state),
        version=row.version,
        parts=parts,
        held=row.held,
        cancelled=row.cancelled,
        priority=row.priority,
        walltime_s=row.walltime_s,
        deadline_at=row.deadline_at,
        max_wait_s=row.max_wait_s,
        preemptible=row.preemptible,
        target=JobState(row.target) if row.target else None,
        plan=_plan(row.plan) if row.plan else None,
        refusals=row.refusals,
        not_before=row.not_before,
        postponed=row.postponed,
        postponed_at=row.postponed_at,
        excluded=frozenset(row.excluded),
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        reasons=_reasons(row.reasons),
        steps=tuple(Step(**step) for step in row.steps),
    )


def _part(row: Row[Any]) -> StoredPart:
    return StoredPart(
        name=row.name,
        count=row._mapping["count"],
        flavor=row.flavor,
        sizes=Sizes(**row.sizes),
        extra_specs=row.extra_specs,
        image=row.image,
        networks=tuple(row.networks),
        wait_for=tuple(
            ScopeWait(Scope(scope), float("inf") if wait_s is None else wait_s)
            for scope, wait_s in row.wait_for
        ),
        apart=row.apart,
        on_failure=BuildFailure(row.on_failure),
        servers={int(number): uuid for number, uuid in row.servers.items()},
        replaced=row.replaced,
        version=row.version,
    )


def _plan(stored: Mapping[str, Any]) -> Plan[HostPlace]:
    return Plan(
        tuple(HostPlace(**place) for place in stored["places"]),
        stored["utility"],
        tuple(ProviderAmount(**amount) for amount in stored["claims"]),
        _reasons(stored["reasons"]),
    )


def _event(row: Row[Any]) -> Event:
    return Event(
        row.id, row.at, row.actor, row.term, JobState(row.state), row.what, _reasons(row.reasons)
    )


def _reasons(stored: Sequence[Mapping[str, Any]]) -> tuple[Reason, ...]:
    return tuple(Reason(**reason) for reason in stored)
