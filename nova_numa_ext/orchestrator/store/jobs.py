# SPDX-License-Identifier: Apache-2.0
"""The changes of stored jobs, compare-and-set, each with an event beside it; and the queries for them."""

import uuid as uuids
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from oslo_db.exception import DBDuplicateEntry
from sqlalchemy import Connection, Select, delete, func, insert, select, update

from nova_numa_ext.orchestrator.store import job_rows, tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.job_rows import KnownRows
from nova_numa_ext.orchestrator.store.stored_job import (
    Event,
    NewJob,
    QueuedJob,
    Step,
    StoredJob,
    StoredPart,
)
from nova_numa_ext.orchestrator.store.tables import Now
from nova_numa_ext.orchestrator.store.trusts import ended
from nova_numa_ext.orchestrator.store.unreadable import Unreadable
from nova_numa_ext.policy.jobs.job import JobKind
from nova_numa_ext.policy.jobs.states import JobState, check_transition
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.errors import NumaExtError
from placement_traits.reason import Reason

FINAL: Final = tuple(state for state in JobState if state.final)
NOT_FINAL: Final = tuple(state for state in JobState if not state.final)
# After this what nova has not answered is taken for not done.
LATEST_S: Final = 600.0


class ExistsError(NumaExtError):
    """There is a job of this uuid already."""


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
        query = job_rows.JOBS.where(tables.job.c.uuid == uuid)
        found = self._select(query, incomplete=incomplete)
        return found[0] if found else None

    def find(
        self,
        *,
        project: str | None = None,
        states: Collection[JobState] = tuple(JobState),
        kind: JobKind | None = None,
        after: str | None = None,
        limit: int | None = None,
        unreadable: Unreadable | None = None,
        incomplete: bool = False,
        known: KnownRows | None = None,
    ) -> list[StoredJob]:
        """Return jobs in the order of their submission.

        :param project: only those of a project
        :param states: only those in one of these
        :param kind: only those of this kind
        :param after: uuid of the last job of the page before; of one that is not there nothing comes after
        :param limit: so many at most
        :param unreadable: called with the uuid of each job that is stored in another form than this release's, which
            is left out; None: the first one is raised
        :param incomplete: jobs of which ``unreadable`` would be called are returned as far as they can be read
        :param known: of the reading before, by who reads the same jobs again and again
        """
        query = job_rows.JOBS.where(tables.job.c.state.in_(states)).order_by(tables.job.c.id)
        if project is not None:
            query = query.where(tables.job.c.project_id == project)
        if kind is not None:
            query = query.where(tables.job.c.kind == kind)
        if after is not None:
            marker = select(tables.job.c.id).where(tables.job.c.uuid == after)
            query = query.where(tables.job.c.id > marker.scalar_subquery())
        return self._select(query.limit(limit), unreadable, incomplete=incomplete, known=known)

    def projects(self, ended_s: float) -> list[str]:
        """Return the projects that have a job of servers which has not ended, or has only lately.

        :param ended_s: so many seconds ago at most
        """
        columns = tables.job.c
        lately = columns.ended_at >= Now() - ended_s
        query = select(columns.project_id).where(
            columns.kind == JobKind.SERVERS, columns.state.in_(NOT_FINAL) | lately
        )
        with self._database.transaction() as connection:
            return list(connection.execute(query.distinct()).scalars())

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

    def counts(self) -> dict[JobKind, tuple[dict[JobState, int], float]]:
        """Return of each kind how many jobs have not ended, by state, and how long one is in the queue at most.

        The time is in seconds, 0 where none is in the queue.
        """
        columns = tables.job.c
        query = (
            select(columns.kind, columns.state, func.count(), Now() - func.min(columns.queued_at))
            .where(columns.kind.in_(tuple(JobKind)), columns.state.in_(NOT_FINAL))
            .group_by(columns.kind, columns.state)
        )
        numbers: dict[JobKind, dict[JobState, int]] = {kind: {} for kind in JobKind}
        longest_s = dict.fromkeys(JobKind, 0.0)
        with self._database.transaction() as connection:
            for kind, state, number, waited_s in connection.execute(query):
                numbers[JobKind(kind)][JobState(state)] = int(number)
                if state == JobState.QUEUED:
                    longest_s[JobKind(kind)] = float(waited_s)
        return {kind: (numbers[kind], longest_s[kind]) for kind in JobKind}

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
            return [job_rows.event(row) for row in connection.execute(query)]

    def last_event(self) -> int:
        """Return the largest number of an event, 0 without one: a database that was restored has a smaller one."""
        with self._database.transaction() as connection:
            return int(connection.execute(select(func.max(tables.event.c.id))).scalar() or 0)

    def unanswered(self) -> list[StoredJob]:
        """Return jobs without places of which something may come to be that nova did not answer: of some minutes."""
        columns = tables.job.c
        lately = columns.unanswered_at > Now() - LATEST_S
        without = columns.state.in_((JobState.QUEUED, *FINAL))
        return self._select(job_rows.JOBS.where(lately, without).order_by(columns.id))

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
        changes |= job_rows.came(to)
        if to is JobState.PLANNED:
            changes |= job_rows.waited()
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
            actor.fence(connection)
            changed = connection.execute(
                update(tables.part)
                .where(
                    columns.job_id == job.number,
                    columns.name == part.name,
                    columns.version == part.version,
                )
                .values(
                    servers=job_rows.by_member(servers),
                    hosts=job_rows.by_member(hosts),
                    replaced=part.replaced if replaced is None else replaced,
                    version=part.version + 1,
                )
            )
            if changed.rowcount != 1:
                raise LostRaceError(f"Part {part.name} of job {job.uuid} has other servers by now.")
            return job_rows.read_again(connection, job)

    def purge(self, before: float, most: int = 1000) -> int:
        """Delete jobs that ended before a time, with parts and events; return how many.

        Those that asked for remote GPUs go with their leases: :meth:`.leases.Leases.purge`.

        :param before: seconds since 1970
        :param most: so many at once; call again while it returns that
        """
        columns = tables.job.c
        with self._database.transaction() as connection:
            old = select(columns.id).where(
                columns.state.in_(FINAL),
                columns.ended_at < before,
                columns.kind == JobKind.SERVERS,
            )
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
        values = job_rows.job_values(changes | {"reasons": tuple(reasons)})
        with self._database.transaction() as connection:
            actor.fence(connection)
            changed = connection.execute(
                update(tables.job)
                .where(tables.job.c.id == job.number, tables.job.c.version == job.version)
                .values(**values, version=job.version + 1)
            )
            if changed.rowcount != 1:
                raise LostRaceError(f"Job {job.uuid} has changed since it was read.")
            state = changes.get("state", job.state)
            if what:
                job_rows.note(connection, job.number, actor, state, what=what, reasons=reasons)
            if state.final:
                ended(connection, job.trust, _kept_until(job))
            return job_rows.read_again(connection, job)

    def _select(
        self,
        query: Select[Any],
        unreadable: Unreadable | None = None,
        *,
        incomplete: bool = False,
        known: KnownRows | None = None,
    ) -> list[StoredJob]:
        with self._database.transaction() as connection:
            rows = connection.execute(query).all()
            return job_rows.read_jobs(
                connection, rows, unreadable, incomplete=incomplete, known=known
            )


def _insert(connection: Connection, uuid: str, new: NewJob, reasons: Sequence[Reason]) -> None:
    values = asdict(new)
    del values["parts"]
    row = insert(tables.job).values(
        job_rows.job_values(values) | {"uuid": uuid} | job_rows.first_values(reasons)
    )
    try:
        number = connection.execute(row).lastrowid
    except DBDuplicateEntry as error:
        raise ExistsError(f"There is a job {uuid} already.") from error
    connection.execute(
        insert(tables.part), [{"job_id": number} | job_rows.part_values(part) for part in new.parts]
    )
    job_rows.note(
        connection, number, Actor(new.user), JobState.QUEUED, what="state", reasons=reasons
    )


def _kept_until(job: StoredJob) -> float | None:
    """Return until when a job's trust is of use after its end: with it what comes late is deleted."""
    return None if job.unanswered_at is None else job.unanswered_at + LATEST_S
