# SPDX-License-Identifier: Apache-2.0
"""Jobs that ask for remote GPUs: rows of the table ``job`` without parts, which are where their leases are.

Such a job is stored in one transaction with its leases, and each change of one of these takes it along, in one
transaction, too. So one never says what the other does not, whenever a process dies, nor in a backup::

    QUEUED     a lease of it waits, and no GPU is chosen for it
    PLANNED    a GPU is chosen for each that waits; Placement has not granted all
    RUNNING    none waits any more: Placement holds what they need
    ENDING     all that are left are being released
    DONE       all are gone, and it had run
    FAILED     all are gone, and it never ran: no GPU had room, or it waited too long
    CANCELLED  all are gone, as its user or the end of its server would have it

Nothing here asks whether a state follows another: after an older database was restored, leases may be anywhere. Where
two transactions change two leases of one job at a time, neither sees the other's, and the job may lag behind until the
next step of one of them. It does not for good: the last step of each lease is the engine's, one after the other.
"""

import json
import uuid as uuids
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, Row, Text, insert, select, type_coerce, update

from nova_numa_ext.orchestrator.store import job_rows, tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.stored_job import AttachJob, StoredJob
from nova_numa_ext.orchestrator.store.stored_lease import LeaseSpec
from nova_numa_ext.policy.jobs.job import JobKind
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.remote_gpu.lease_terms import OF_LEASES, LeaseTerm
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits.reason import Reason

Moved = Callable[[StoredJob, Sequence[Reason]], None]
"""Called with each job that has come to a state, and the reasons, once that is committed."""

_SEEN: Final = "attach_jobs_seen"
_ENDS: Final = frozenset({LeaseState.RELEASING, LeaseState.GONE})
# Ends as they were asked for, of a job that never ran.
_AS_ASKED: Final = frozenset({LeaseTerm.RELEASED, LeaseTerm.CANCELLED, LeaseTerm.SERVER_GONE})


def insert_attach(
    connection: Connection,
    owner: tuple[str, str],
    server: str,
    asked: LeaseSpec,
    *,
    why: Reason,
    actor: Actor,
) -> str:
    """Store a job in state QUEUED whose leases follow in the same transaction; return its uuid.

    :param owner: project and user
    :param server: that its leases are for, by which it is named; '' for none
    :param asked: of each of its leases
    :param why: it is asked for
    """
    uuid, (project, user), reasons = str(uuids.uuid4()), owner, _of_leases((why,))
    row = insert(tables.job).values(
        uuid=uuid,
        project_id=project,
        user_id=user,
        trust_id="",
        name=server,
        held=False,
        priority=asked.priority,
        max_wait_s=asked.max_wait_s,
        preemptible=False,
        fingerprint="",
        kind=JobKind.ATTACH,
        **job_rows.first_values(reasons),
    )
    number = connection.execute(row).lastrowid
    job_rows.note(connection, number, actor, JobState.QUEUED, what="state", reasons=reasons)
    _see(connection, number, reasons)
    return uuid


def follow(connection: Connection, uuid: str, actor: Actor, reasons: Sequence[Reason]) -> None:
    """Take a job along with a change of one of its leases; one that has ended, or is not there, stays so.

    Where only a number in why it waits is another, no event is stored: it may be in each round.

    :param uuid: of the job
    :param reasons: of the lease
    :raises LostRaceError: its user has changed it meanwhile
    """
    columns = tables.job.c
    job = connection.execute(select(tables.job).where(columns.uuid == uuid)).first()
    if job is None or JobState(job.state).final:
        return
    of_it = select(tables.lease.c.state, tables.lease.c.claimed, tables.lease.c.gpu)
    found = connection.execute(of_it.where(tables.lease.c.job == uuid)).all()
    was, to = JobState(job.state), _state(job, found, reasons)
    of_leases = _of_leases(reasons)
    asked = job.held or job.cancelled
    waits = to is JobState.QUEUED and not asked and job_rows.plain(of_leases) != job.reasons
    if to is was and not waits:
        return
    changed = connection.execute(
        update(tables.job)
        .where(columns.id == job.id, columns.version == job.version)
        .values(
            state=to,
            version=job.version + 1,
            reasons=job_rows.plain(of_leases),
            **_times(was, to),
        )
    )
    if changed.rowcount != 1:
        raise LostRaceError(f"Job {uuid} has changed since it was read.")
    if to is was and _terms(reasons) == [each["term"] for each in job.reasons]:
        return
    what = "reasons" if to is was else "state"
    job_rows.note(connection, job.id, actor, to, what=what, reasons=of_leases)
    if to is not was:
        _see(connection, job.id, of_leases)


def seen_by(connection: Connection) -> list[tuple[StoredJob, Sequence[Reason]]]:
    """Return a list to which the jobs are added that come to another state in a transaction, with the reasons."""
    found: list[tuple[StoredJob, Sequence[Reason]]] = []
    connection.execution_options(**{_SEEN: found})
    return found


def _see(connection: Connection, number: int, reasons: Sequence[Reason]) -> None:
    seen = connection.get_execution_options().get(_SEEN)
    if seen is not None:
        seen.append((job_rows.read_by_number(connection, number, incomplete=True), reasons))


def says(job: AttachJob, reasons: Sequence[Reason]) -> bool:
    """Return whether why a job waits is why its leases do; never where the database has a form of its own for JSON."""
    return job.reasons == json.dumps(job_rows.plain(_of_leases(reasons)))


def flags(connection: Connection, uuid: str) -> tuple[bool, bool]:
    """Return whether a job's user has it held, and has cancelled it; '' is no job."""
    columns = tables.job.c
    query = select(columns.held, columns.cancelled).where(columns.uuid == uuid)
    found = connection.execute(query).first()
    return (False, False) if found is None else (found.held, found.cancelled)


def unfinished(connection: Connection) -> dict[str, AttachJob]:
    """Return the jobs that ask for remote GPUs and have not ended, by uuid."""
    columns = tables.job.c
    query = select(
        columns.uuid,
        columns.priority,
        columns.submitted_at,
        columns.queued_at,
        columns.waited_s,
        columns.held,
        columns.cancelled,
        columns.max_wait_s,
        columns.state == JobState.QUEUED,
        type_coerce(columns.reasons, Text),
    ).where(
        columns.kind == JobKind.ATTACH,
        columns.state.in_([each for each in JobState if not each.final]),
    )
    return {row.uuid: AttachJob(*row) for row in connection.execute(query)}


def _state(job: Row[Any], found: Sequence[Row[Any]], reasons: Sequence[Reason]) -> JobState:
    waiting = [each for each in found if each.state == LeaseState.RESERVED and not each.claimed]
    if waiting:
        return JobState.PLANNED if all(each.gpu for each in waiting) else JobState.QUEUED
    if not all(each.state in _ENDS for each in found):
        return JobState.RUNNING
    if any(each.state != LeaseState.GONE for each in found):
        return JobState.ENDING
    if job.cancelled:
        return JobState.CANCELLED
    if job.started_at is not None:
        return JobState.DONE
    as_asked = not _AS_ASKED.isdisjoint(_terms(reasons))
    return JobState.CANCELLED if as_asked else JobState.FAILED


def _times(was: JobState, to: JobState) -> dict[str, Any]:
    """Return what a job's way from one state to another says of times; it may leave the queue for any other one."""
    if to is was:
        return {}
    return job_rows.came(to) | (job_rows.waited() if was is JobState.QUEUED else {})


def _terms(reasons: Sequence[Reason]) -> list[str]:
    return [each.term for each in reasons]


def _of_leases(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    return tuple(replace(each, where=OF_LEASES) for each in reasons)
