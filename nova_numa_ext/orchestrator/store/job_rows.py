# SPDX-License-Identifier: Apache-2.0
"""Rows of the tables ``job``, ``part`` and ``event``, and what they stand for: both ways."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from types import SimpleNamespace
from typing import Any, Final

from sqlalchemy import JSON, Connection, Row, Table, Text, bindparam, insert, select, type_coerce

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.stored_job import Event, Sizes, Step, StoredJob, StoredPart
from nova_numa_ext.orchestrator.store.tables import Now
from nova_numa_ext.orchestrator.store.unreadable import Unreadable
from nova_numa_ext.orchestrator.store.wakes import wake
from nova_numa_ext.policy.jobs.job import BuildFailure, JobKind, Scope, ScopeWait
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.errors import cut
from placement_traits.reason import Reason

_STEP_FIELDS: Final = {each.name for each in fields(Step)}
_RENAMED: Final = {"project": "project_id", "user": "user_id", "trust": "trust_id"}
# The column that has the time when a job came into a state, of those that have one.
_CAME: Final = {
    JobState.QUEUED: "queued_at",
    JobState.BUILDING: "building_at",
    JobState.RUNNING: "started_at",
    JobState.ENDING: "ending_at",
} | {state: "ended_at" for state in JobState if state.final}


def _texts(table: Table) -> tuple[Any, ...]:
    """Return a table's columns, JSON as the text that is stored."""
    return tuple(
        type_coerce(each, Text).label(each.name) if isinstance(each.type, JSON) else each
        for each in table.c
    )


# Statements of each round are made once: SQLAlchemy takes longer to make them than SQLite to answer.
JOBS: Final = select(*_texts(tables.job))
_PARTS: Final = (
    select(*_texts(tables.part))
    .where(tables.part.c.job_id.in_(bindparam("jobs", expanding=True)))
    .order_by(tables.part.c.id)
)
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


def read_jobs(
    connection: Connection,
    rows: Sequence[Row[Any]],
    unreadable: Unreadable | None = None,
    *,
    incomplete: bool = False,
    known: KnownRows | None = None,
) -> list[StoredJob]:
    """Return the jobs of rows of :data:`JOBS`; other parameters as of :meth:`.jobs.Jobs.find`."""
    made = _read_job
    if known is not None:
        known.begin()
        made = known.job
    parts: dict[int, list[Row[Any]]] = {row.id: [] for row in rows}
    for part in connection.execute(_PARTS, {"jobs": list(parts)}):
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


def read_again(connection: Connection, job: StoredJob) -> StoredJob:
    """Return a job as it is stored by now."""
    return read_by_number(connection, job.number)


def read_by_number(connection: Connection, number: int, *, incomplete: bool = False) -> StoredJob:
    """Return a job, by its number; ``incomplete`` as of :meth:`.jobs.Jobs.find`."""
    row = connection.execute(JOBS.where(tables.job.c.id == number)).one()
    (now,) = read_jobs(connection, [row], incomplete=incomplete)
    return now


def job_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what columns of ``job`` take for fields of :class:`StoredJob`."""
    return {_RENAMED.get(name, name): plain(value) for name, value in fields.items()}


def first_values(reasons: Sequence[Reason]) -> dict[str, Any]:
    """Return what columns of ``job`` hold of any job that is new, whatever it asks for: it is QUEUED."""
    return {
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
        "reasons": plain(tuple(reasons)),
        "steps": [],
    }


def came(to: JobState) -> dict[str, Any]:
    """Return what columns of ``job`` say of the time when a job comes into a state, now."""
    return {_CAME[to]: Now()} if to in _CAME else {}


def waited() -> dict[str, Any]:
    """Return what columns of ``job`` say of the time in the queue of a job that leaves it now."""
    columns = tables.job.c
    return {"waited_s": columns.waited_s + Now() - columns.queued_at}


def part_values(part: StoredPart) -> dict[str, Any]:
    """Return what columns of ``part`` take for a part."""
    waits = [
        [each.scope, None if each.wait_s == float("inf") else each.wait_s] for each in part.wait_for
    ]
    return asdict(part) | {
        "networks": list(part.networks),
        "wait_for": waits,
        "servers": by_member(part.servers),
        "hosts": by_member(part.hosts),
    }


def by_member(values: Mapping[int, str]) -> dict[str, str]:
    """Return what belongs to members' numbers as JSON takes it."""
    return {str(number): value for number, value in values.items()}


def plain(value: Any) -> Any:
    """Return a field as its column takes it."""
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [asdict(each) for each in value]
    if isinstance(value, Plan):
        return asdict(value)
    return value


def note(
    connection: Connection,
    number: int,
    actor: Actor,
    state: JobState,
    *,
    what: str,
    reasons: Sequence[Reason],
) -> None:
    """Store an event of a job; a user's wakes the engine.

    :param number: of the job
    :param state: of the job afterwards
    :param what: as of :class:`.stored_job.Event`
    """
    connection.execute(
        insert(tables.event).values(
            job_id=number,
            at=Now(),
            actor=actor.name,
            term=actor.term.number if actor.term else None,
            state=state,
            what=what,
            reasons=plain(tuple(reasons)),
        )
    )
    wake(connection, actor)


def _incomplete(row: Row[Any], error: Exception) -> StoredJob:
    """Return a job as far as it can be read."""
    reason = Reason(JobTerm.OTHER_FORM, cut(f"{type(error).__name__}: {error}"))
    nothing = dict.fromkeys(("excluded", "reserved", "steps", "reasons"), ())
    kind = row.kind if row.kind in tuple(JobKind) else JobKind.SERVERS
    known = {**row._mapping, **nothing, "plan": None, "target": None, "kind": kind}
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
        steps=tuple(map(_step, row.steps)),
        kind=JobKind(row.kind),
    )


def _step(stored: Mapping[str, Any]) -> Step:
    """Return a step without what a later release may say of it: each such field means, left out, "not known"."""
    return Step(**{name: stored[name] for name in _STEP_FIELDS & stored.keys()})


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


def event(row: Row[Any]) -> Event:
    """Return the event of a row."""
    return Event(
        row.id, row.at, row.actor, row.term, JobState(row.state), row.what, _reasons(row.reasons)
    )


def _reasons(stored: Sequence[Mapping[str, Any]]) -> tuple[Reason, ...]:
    return tuple(Reason(**reason) for reason in stored)
