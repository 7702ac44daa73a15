# SPDX-License-Identifier: Apache-2.0
"""Jobs as they are stored, and their changes: compare-and-set, each with an event beside it."""

import json
import uuid as uuids
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final

from oslo_db.exception import DBDuplicateEntry
from sqlalchemy import (
    JSON,
    Connection,
    Row,
    Select,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    type_coerce,
    update,
)

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.leader import Term
from nova_numa_ext.orchestrator.store.tables import Now
from nova_numa_ext.orchestrator.store.trusts import ended
from nova_numa_ext.policy.jobs.job import BuildFailure, Scope, ScopeWait
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState, check_transition
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.errors import NumaExtError, cut
from placement_traits.reason import Reason

FINAL: Final = tuple(state for state in JobState if state.final)
NOT_FINAL: Final = tuple(state for state in JobState if not state.final)
# After this what nova has not answered is taken for not done.
LATEST_S: Final = 600.0


Unreadable = Callable[[str, Exception], None]


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
    :param hosts: member's number -> root provider of the host that its server is on, of those of which that is known
    :param replaced: how often a server of it was made again
    :param version: number of changes of ``servers`` and ``hosts``
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
    hosts: Mapping[int, str] = field(default_factory=dict)
    replaced: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is done outside of the database: stored before it begins, undone in reverse order.

    :param name: what is done
    :param about: on what: a uuid, or a part's name
    :param asked_at: when another service was last asked to make something, of which no answer is stored: it may come
        to be later; None: all was answered
    """

    name: str
    about: str
    asked_at: float | None = None


@dataclass(frozen=True, slots=True)
class NewJob:
    """What is submitted; parameters as of :class:`nova_numa_ext.policy.jobs.job.Job`.

    :param trust: id of the Keystone trust by which the service acts for the user
    :param fingerprint: of the request that submits it: a second one with the same uuid is known by it
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
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as it was read; what is not explained here is as in :class:`nova_numa_ext.policy.jobs.job.Job`.

    :param number: order of submission
    :param version: number of changes: a change of what was read is one of this version or none
    :param cancelled: its user wants it to end, whatever it does now
    :param target: the state that it goes to when ENDING is over
    :param plan: its places: the host that a server is on where that is known, else the planned one
    :param reserved: what a consumer of ours may hold for it while it waits
    :param refusals: how often in a row nova has refused it
    :param reasons: of its state
    :param building_at: since when its servers have time to become active
    :param ending_at: when it last came into ENDING
    :param trust_lost_at: since when Keystone has refused each time to let the service act for its user; None: it lets
    :param unanswered_at: when nova was last asked to make something of it, did not answer, and had not made it when
        the job's end was undone: it may come to be all the same
    :param steps: what was begun outside of the database and is not undone, in order
    :param whole: all of it could be read; else what other releases may write in another form is missing: parts, plan,
        steps, what is reserved and excluded, and the reasons, of which it is the only one that it is so
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
    fingerprint: str
    target: JobState | None
    plan: Plan[HostPlace] | None
    refusals: int
    not_before: float
    postponed: int
    postponed_at: float | None
    excluded: frozenset[str]
    reserved: tuple[ProviderAmount, ...]
    submitted_at: float
    queued_at: float
    waited_s: float
    building_at: float | None
    started_at: float | None
    ending_at: float | None
    ended_at: float | None
    trust_lost_at: float | None
    unanswered_at: float | None
    reasons: tuple[Reason, ...]
    steps: tuple[Step, ...]
    whole: bool = True


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


class ExistsError(NumaExtError):
    """There is a job of this uuid already."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """What a job's place in the queue depends on; fields as of :class:`StoredJob`."""

    uuid: str
    priority: int
    submitted_at: float
    queued_at: float
    waited_s: float

    def waiting_s(self, now: float) -> float:
        """Return for how long it has waited, seconds, all stays in the queue together."""
        return self.waited_s + now - self.queued_at


class Jobs:
    """The tables ``job``, ``part`` and ``event``.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when the database does not answer; those
    that change something for an engine raise :class:`.leader.NotLeaderError` when its term is over.

    :param moved: called after each move of a job to another state, with its reasons
    """

    def __init__(
        self,
        database: Database,
        moved: Callable[[StoredJob, Sequence[Reason]], None] = lambda _job, _reasons: None,
    ) -> None:
        self._database = database
        self._moved = moved

    def create(self, new: NewJob, uuid: str | None = None) -> StoredJob:
        """Store a job in state QUEUED.

        :param uuid: that it gets; None: a random one
        :raises ExistsError: a job has it already
        """
        uuid = uuid or str(uuids.uuid4())
        reasons = (Reason(JobTerm.SUBMITTED, new.user),)
        self._database.again(lambda connection: _insert(connection, uuid, new, reasons))
        job = self.read(uuid)
        assert job is not None, f"job {uuid} went right after it was stored"
        return job

    def read(self, uuid: str, *, incomplete: bool = False) -> StoredJob | None:
        """Return a job, None when there is none.

        :param incomplete: also one that is stored in another form than this release's; else that is an error
        """
        query = select(tables.job).where(tables.job.c.uuid == uuid)
        found = self._select(query, incomplete=incomplete)
        return found[0] if found else None

    def find(
        self,
        *,
        project: str | None = None,
        states: Collection[JobState] = tuple(JobState),
        after: str | None = None,
        limit: int | None = None,
        unreadable: Unreadable | None = None,
        incomplete: bool = False,
        known: "KnownRows | None" = None,
    ) -> list[StoredJob]:
        """Return jobs in the order of their submission.

        :param project: only those of a project
        :param states: only those in one of these
        :param after: uuid of the last job of the page before; of one that is not there nothing comes after
        :param limit: so many at most
        :param unreadable: called with the uuid of each job that is stored in another form than this release's, which
            is left out; None: the first one is raised
        :param incomplete: jobs of which ``unreadable`` would be called are returned as far as they can be read
        :param known: of the reading before, by who reads the same jobs again and again
        """
        query = select(tables.job).where(tables.job.c.state.in_(states)).order_by(tables.job.c.id)
        if project is not None:
            query = query.where(tables.job.c.project_id == project)
        if after is not None:
            marker = select(tables.job.c.id).where(tables.job.c.uuid == after)
            query = query.where(tables.job.c.id > marker.scalar_subquery())
        return self._select(query.limit(limit), unreadable, incomplete=incomplete, known=known)

    def projects(self, ended_s: float) -> list[str]:
        """Return the projects that have a job which has not ended, or has only lately.

        :param ended_s: so many seconds ago at most
        """
        columns = tables.job.c
        lately = columns.ended_at >= Now() - ended_s
        query = select(columns.project_id).where(columns.state.in_(NOT_FINAL) | lately).distinct()
        with self._database.transaction() as connection:
            return list(connection.execute(query).scalars())

    def usage(self, project: str, states: Collection[JobState] = NOT_FINAL) -> tuple[int, int]:
        """Return the number of a project's jobs in one of these states, and of their servers."""
        query = (
            select(func.count(tables.job.c.id.distinct()), func.sum(tables.part.c.count))
            .join(tables.part)
            .where(tables.job.c.project_id == project, tables.job.c.state.in_(states))
        )
        with self._database.transaction() as connection:
            jobs, servers = connection.execute(query).one()
        return int(jobs), int(servers or 0)

    def in_queue(self) -> tuple[list[QueuedJob], float]:
        """Return what the order of jobs depends on, of all that are neither held nor cancelled, and the time."""
        columns = tables.job.c
        query = select(
            columns.uuid,
            columns.priority,
            columns.submitted_at,
            columns.queued_at,
            columns.waited_s,
        ).where(
            columns.state == JobState.QUEUED, columns.held.is_(False), columns.cancelled.is_(False)
        )
        with self._database.transaction() as connection:
            found = [QueuedJob(*row) for row in connection.execute(query.order_by(columns.id))]
            return found, float(connection.execute(select(Now())).scalar_one())

    def counts(self) -> tuple[dict[JobState, int], float]:
        """Return how many jobs have not ended, by state, and how long one is in the queue at most, seconds."""
        columns = tables.job.c
        query = (
            select(columns.state, func.count(), Now() - func.min(columns.queued_at))
            .where(columns.state.in_(NOT_FINAL))
            .group_by(columns.state)
        )
        with self._database.transaction() as connection:
            found = {
                JobState(state): (int(number), float(waited_s))
                for state, number, waited_s in connection.execute(query)
            }
        longest_s = found[JobState.QUEUED][1] if JobState.QUEUED in found else 0.0
        return {state: number for state, (number, _) in found.items()}, longest_s

    def events(self, job: StoredJob, after: int = 0, limit: int | None = None) -> list[Event]:
        """Return what happened to a job, oldest first.

        :param after: only events with a larger number
        :param limit: so many at most
        """
        query = (
            select(tables.event)
            .where(tables.event.c.job_id == job.number, tables.event.c.id > after)
            .order_by(tables.event.c.id)
            .limit(limit)
        )
        with self._database.transaction() as connection:
            return [_event(row) for row in connection.execute(query)]

    def last_event(self) -> int:
        """Return the largest number of an event, 0 without one: a database that was restored has a smaller one."""
        with self._database.transaction() as connection:
            return int(connection.execute(select(func.max(tables.event.c.id))).scalar() or 0)

    def unanswered(self) -> list[StoredJob]:
        """Return jobs without places of which something may come to be that nova did not answer: of some minutes."""
        columns = tables.job.c
        lately = columns.unanswered_at > Now() - LATEST_S
        without = columns.state.in_((JobState.QUEUED, *FINAL))
        return self._select(select(tables.job).where(lately, without).order_by(columns.id))

    def trusts(self) -> set[str]:
        """Return the trusts of jobs that have not ended."""
        query = select(tables.job.c.trust_id).where(tables.job.c.state.in_(NOT_FINAL))
        with self._database.transaction() as connection:
            return set(connection.execute(query).scalars())

    def move(
        self, job: StoredJob, to: JobState, reasons: Sequence[Reason], actor: Actor, **changes: Any
    ) -> StoredJob:
        """Let a job go to another state; the trust of one that has ended is to be deleted.

        :param reasons: why; never empty
        :param changes: fields of :class:`StoredJob` that change with it
        :raises TransitionError: its state does not lead there
        :raises LostRaceError: it has changed since it was read
        """
        check_transition(job.uuid, job.state, to)
        if to is JobState.QUEUED:
            changes["queued_at"] = Now()
        if to is JobState.PLANNED:
            changes["waited_s"] = tables.job.c.waited_s + Now() - tables.job.c.queued_at
        if to is JobState.BUILDING:
            changes["building_at"] = Now()
        if to is JobState.RUNNING:
            changes["started_at"] = Now()
        if to is JobState.ENDING:
            changes["ending_at"] = Now()
        if to.final:
            changes["ended_at"] = Now()
        moved = self._change(job, "state", actor, reasons, state=to, **changes)
        self._moved(moved, reasons)
        return moved

    def set(
        self, job: StoredJob, actor: Actor, reasons: Sequence[Reason] = (), **changes: Any
    ) -> StoredJob:
        """Change fields of a job that stays in its state.

        :param reasons: of its state from now on; (): they stay
        :param changes: fields of :class:`StoredJob`; the first one names the event, the reasons if there is none
        :raises LostRaceError: it has changed since it was read
        """
        what = next(iter(changes), "reasons")
        return self._change(job, what, actor, reasons or job.reasons, **changes)

    def set_steps(
        self, job: StoredJob, steps: Sequence[Step], actor: Actor, **changes: Any
    ) -> StoredJob:
        """Change what was begun outside of the database: no event, as nothing has happened to the job.

        :param changes: fields of :class:`StoredJob` that change with it
        :raises LostRaceError: it has changed since it was read
        """
        return self._change(job, "", actor, job.reasons, steps=tuple(steps), **changes)

    def set_servers(
        self,
        job: StoredJob,
        part: StoredPart,
        servers: Mapping[int, str],
        actor: Actor,
        *,
        hosts: Mapping[int, str] | None = None,
        replaced: int | None = None,
    ) -> StoredJob:
        """Say which servers count as members of a part.

        :param hosts: where they are; None: those that stay are where they were
        :param replaced: how often one was made again; None: as often as before
        :raises LostRaceError: they have changed since the part was read: whose uuids were written first, counts
        """
        columns = tables.part.c
        if hosts is None:
            stay = servers.items() & part.servers.items()
            hosts = {member: part.hosts[member] for member, _ in stay if member in part.hosts}
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
                    servers=_by_member(servers),
                    hosts=_by_member(hosts),
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
        """Change a job; with an event unless ``what`` is ''."""
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
            if what:
                _note(connection, job.number, actor, state, what=what, reasons=reasons)
            if state.final:
                ended(connection, job.trust, _kept_until(job))
            (now,) = _with_parts(connection, [_row(connection, job)])
        return now

    def _select(
        self,
        query: Select[Any],
        unreadable: Unreadable | None = None,
        *,
        incomplete: bool = False,
        known: "KnownRows | None" = None,
    ) -> list[StoredJob]:
        with self._database.transaction() as connection:
            rows = connection.execute(query.with_only_columns(*_OF_JOB)).all()
            return _with_parts(connection, rows, unreadable, incomplete=incomplete, known=known)


class KnownRows:
    """Jobs as of the reading before: what has not changed is not made again; for one thread at a time.

    Rows are compared as the database has them, whole: a restored database, or an operator's hand, may bring back a
    version that there was before.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[Any, StoredJob]] = {}
        self._now: dict[int, tuple[Any, StoredJob]] = {}

    @property
    def size(self) -> int:
        """Number of jobs that it keeps."""
        return len(self._now)

    def begin(self) -> None:
        """Begin a reading: jobs that the last one did not find are forgotten."""
        self._before, self._now = self._now, {}

    def job(self, row: Row[Any], parts: Sequence[Row[Any]]) -> StoredJob:
        """Return the job of a row and the rows of its parts."""
        rows = (tuple(row), tuple(map(tuple, parts)))
        before = self._before.get(row.id)
        found = before[1] if before is not None and before[0] == rows else _read_job(row, parts)
        self._now[row.id] = rows, found
        return found


def _texts(table: Table) -> tuple[Any, ...]:
    """Return a table's columns, JSON as the text that is stored."""
    return tuple(
        type_coerce(each, Text).label(each.name) if isinstance(each.type, JSON) else each
        for each in table.c
    )


_OF_JOB: Final = _texts(tables.job)
_OF_PART: Final = _texts(tables.part)
_JSON: Final = frozenset(
    each.name for of in (tables.job, tables.part) for each in of.c if isinstance(each.type, JSON)
)


def _decoded(row: Row[Any]) -> SimpleNamespace:
    """Return a row with what its texts say."""
    values = row._asdict()
    for name in _JSON & values.keys():
        if values[name] is not None:
            values[name] = json.loads(values[name])
    return SimpleNamespace(**values)


def _read_job(row: Row[Any], parts: Sequence[Row[Any]]) -> StoredJob:
    return _job(_decoded(row), tuple(_part(_decoded(part)) for part in parts))


_COLUMNS: Final = {"project": "project_id", "user": "user_id", "trust": "trust_id"}


def _insert(connection: Connection, uuid: str, new: NewJob, reasons: Sequence[Reason]) -> None:
    values = asdict(new)
    del values["parts"]
    row = insert(tables.job).values(
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
            "reserved": [],
            "submitted_at": Now(),
            "queued_at": Now(),
            "waited_s": 0.0,
            "reasons": _plain(tuple(reasons)),
            "steps": [],
        }
    )
    try:
        number = connection.execute(row).lastrowid
    except DBDuplicateEntry as error:
        raise ExistsError(f"There is a job {uuid} already.") from error
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
        "servers": _by_member(part.servers),
        "hosts": _by_member(part.hosts),
    }


def _by_member(values: Mapping[int, str]) -> dict[str, str]:
    return {str(number): value for number, value in values.items()}


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


def _kept_until(job: StoredJob) -> float | None:
    """Return until when a job's trust is of use after its end: with it what comes late is deleted."""
    return None if job.unanswered_at is None else job.unanswered_at + LATEST_S


def _row(connection: Connection, job: StoredJob) -> Row[Any]:
    return connection.execute(select(*_OF_JOB).where(tables.job.c.id == job.number)).one()


def _with_parts(
    connection: Connection,
    rows: Sequence[Row[Any]],
    unreadable: Unreadable | None = None,
    *,
    incomplete: bool = False,
    known: KnownRows | None = None,
) -> list[StoredJob]:
    made = _read_job
    if known is not None:
        known.begin()
        made = known.job
    parts: dict[int, list[Row[Any]]] = {row.id: [] for row in rows}
    query = select(*_OF_PART).where(tables.part.c.job_id.in_(parts)).order_by(tables.part.c.id)
    for part in connection.execute(query):
        parts[part.job_id].append(part)
    found = []
    for row in rows:
        try:
            found.append(made(row, parts[row.id]))
        except Exception as error:
            if incomplete:
                found.append(_incomplete(row, error))
            elif unreadable is not None:
                unreadable(row.uuid, error)
            else:
                raise
    return found


def _incomplete(row: Row[Any], error: Exception) -> StoredJob:
    """Return a job as far as it can be read."""
    reason = Reason(JobTerm.OTHER_FORM, cut(f"{type(error).__name__}: {error}"))
    nothing = dict.fromkeys(("excluded", "reserved", "steps", "reasons"), ())
    known = {**row._mapping, **nothing, "plan": None, "target": None}
    job = _job(SimpleNamespace(**known), ())
    return replace(job, reasons=(reason,), whole=False)


def _job(row: SimpleNamespace, parts: tuple[StoredPart, ...]) -> StoredJob:
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
        fingerprint=row.fingerprint,
        target=JobState(row.target) if row.target else None,
        plan=_real(_plan(row.plan), parts) if row.plan else None,
        refusals=row.refusals,
        not_before=row.not_before,
        postponed=row.postponed,
        postponed_at=row.postponed_at,
        excluded=frozenset(row.excluded),
        reserved=tuple(ProviderAmount(**each) for each in row.reserved),
        submitted_at=row.submitted_at,
        queued_at=row.queued_at,
        waited_s=row.waited_s,
        building_at=row.building_at,
        started_at=row.started_at,
        ending_at=row.ending_at,
        ended_at=row.ended_at,
        trust_lost_at=row.trust_lost_at,
        unanswered_at=row.unanswered_at,
        reasons=_reasons(row.reasons),
        steps=tuple(Step(**step) for step in row.steps),
    )


def _part(row: SimpleNamespace) -> StoredPart:
    return StoredPart(
        name=row.name,
        count=row.count,
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
        hosts={int(number): host for number, host in row.hosts.items()},
        replaced=row.replaced,
        version=row.version,
    )


def _plan(stored: Mapping[str, Any]) -> Plan[HostPlace]:
    return Plan(
        tuple(HostPlace(**place) for place in stored["places"]),
        stored["utility"],
        tuple(ProviderAmount(**amount) for amount in stored["claims"]),
        _reasons(stored["reasons"]),
        tuple(HostPlace(**place) for place in stored["spare"]),
    )


def _real(plan: Plan[HostPlace], parts: Sequence[StoredPart]) -> Plan[HostPlace]:
    """Return a plan with the real hosts of the servers of which they are known."""
    places: list[HostPlace] = []
    for part in parts:
        planned = [place for place in plan.places if place.part == part.name]
        on = Counter(part.hosts.values())
        known = on.total() + sum(not uuid for uuid in part.servers.values())
        if known:
            rest = list((Counter({each.host: each.count for each in planned}) - on).elements())
            counts = on + Counter(rest[: part.count - known])
            planned = [HostPlace(part.name, host, count) for host, count in counts.items()]
        places += planned
    return replace(plan, places=tuple(places))


def _event(row: Row[Any]) -> Event:
    return Event(
        row.id, row.at, row.actor, row.term, JobState(row.state), row.what, _reasons(row.reasons)
    )


def _reasons(stored: Sequence[Mapping[str, Any]]) -> tuple[Reason, ...]:
    return tuple(Reason(**reason) for reason in stored)
