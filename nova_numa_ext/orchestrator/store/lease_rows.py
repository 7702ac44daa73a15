# SPDX-License-Identifier: Apache-2.0
"""Rows of the table ``lease``: how a lease is written and read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Connection, Insert, Row, insert, select, update

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.attach_jobs import follow
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.stored_lease import LeaseSpec, LeaseTransfer, StoredLease
from nova_numa_ext.orchestrator.store.tables import Now
from nova_numa_ext.orchestrator.store.unreadable import Unreadable, UnreadableError
from nova_numa_ext.orchestrator.store.wakes import wake
from nova_numa_ext.policy.remote_gpu.choosing import Unmet
from nova_numa_ext.policy.remote_gpu.lease_terms import LeaseTerm
from nova_numa_ext.policy.remote_gpu.leases import Lease, LeaseState
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.reason import Reason

UNCLAIMED: Final[Mapping[str, Any]] = MappingProxyType({"gpu": "", "amounts": {}, "claimed": False})
"""Of a lease of which Placement holds nothing."""

_SPEC_FIELDS: Final = {each.name for each in fields(LeaseSpec)}


def new_row(
    lease: Lease,
    owner: tuple[str, str],
    asked: LeaseSpec,
    server: str,
    why: Reason,
    **more: Any,
) -> Insert:
    """Return what inserts a lease that begins."""
    project, user = owner
    return insert(tables.lease).values(
        uuid=lease.uuid,
        project_id=project,
        user_id=user,
        server=server,
        asked=asdict(asked),
        version=0,
        created_at=Now(),
        changed_at=Now(),
        reasons=[asdict(why)],
        **_columns(lease),
        **more,
    )


def change_row(
    connection: Connection,
    stored: StoredLease,
    lease: Lease,
    actor: Actor,
    reasons: Sequence[Reason],
    **more: Any,
) -> None:
    """Write a lease that has changed, and its job with it; another change than the engine's own wakes that.

    :raises LostRaceError: another has changed it, or its job, since it was read
    """
    actor.fence(connection)
    columns = tables.lease.c
    changed = connection.execute(
        update(tables.lease)
        .where(columns.id == stored.number, columns.version == stored.version)
        .values(
            version=stored.version + 1,
            changed_at=Now(),
            reasons=[asdict(each) for each in reasons],
            **_columns(lease),
            **more,
        )
    )
    if changed.rowcount != 1:
        raise LostRaceError(f"Lease {stored.uuid} has changed since it was read.")
    wake(connection, actor)
    if stored.job:
        follow(connection, stored.job, actor, reasons)


def _columns(lease: Lease) -> dict[str, Any]:
    """Return what changes of a lease in its life."""
    return {
        "state": lease.state,
        "epoch": lease.epoch,
        "acknowledged": lease.acknowledged,
        "gpu_host": lease.gpu_host,
        "client_host": lease.client_host,
    }


def ended_with_server(row: Row[Any]) -> bool:
    """Return whether a lease has ended, or ends, for its server was on no host any more, or did not run for long."""
    terms = {each["term"] for each in row.reasons}
    return row.state in _ENDS and not _WITH_SERVER.isdisjoint(terms)


_ENDS: Final = frozenset({LeaseState.RELEASING, LeaseState.GONE})
_WITH_SERVER: Final = frozenset({LeaseTerm.SERVER_GONE, LeaseTerm.STOPPED_LONG})


def readable(rows: Iterable[Row[Any]], unreadable: Unreadable | None) -> list[StoredLease]:
    """Return the leases of rows.

    :param unreadable: called with each that cannot be read; None: the error is raised
    """
    found = []
    for row in rows:
        try:
            found.append(lease_of(row))
        except UnreadableError as error:
            if unreadable is None:
                raise
            unreadable(row.uuid, error)
    return found


def read_again(connection: Connection, number: int) -> StoredLease:
    """Return a lease, by its number."""
    return lease_of(
        connection.execute(select(tables.lease).where(tables.lease.c.id == number)).one()
    )


def lease_of(row: Row[Any]) -> StoredLease:
    """Return the lease of a row.

    :raises UnreadableError: it cannot be read
    """
    try:
        return _understood(row)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise UnreadableError("Lease", row.uuid, row.project_id, why) from error


def _understood(row: Row[Any]) -> StoredLease:
    return StoredLease(
        number=row.id,
        lease=Lease(
            row.uuid,
            row.gpu_host,
            row.client_host,
            LeaseState(row.state),
            row.epoch,
            row.acknowledged,
        ),
        version=row.version,
        project=row.project_id,
        user=row.user_id,
        server=row.server,
        asked=_spec(row.asked),
        gpu=row.gpu,
        amounts=row.amounts,
        claimed=row.claimed,
        created_at=row.created_at,
        changed_at=row.changed_at,
        ended_at=row.ended_at,
        reasons=tuple(Reason(**each) for each in row.reasons),
        address=row.address,
        move=None if row.move is None else LeaseTransfer(**row.move),
        job=row.job,
        moved_at=row.moved_at,
        room=row.room or {},
    )


def _spec(stored: Mapping[str, Any]) -> LeaseSpec:
    """Return what was asked for, without what a later release may ask for more: the lease goes on without it."""
    known = {
        "level": ServiceLevel(stored["level"]),
        "api": RemoteGpuApi(stored["api"]),
        "unmet": Unmet(stored.get("unmet", Unmet.WAIT)),
    }
    plain = {name: stored[name] for name in _SPEC_FIELDS & stored.keys()}
    return LeaseSpec(**{**plain, **known})
