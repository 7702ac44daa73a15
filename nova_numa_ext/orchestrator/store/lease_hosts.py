# SPDX-License-Identifier: Apache-2.0
"""Hosts that lend GPUs or use leases: when each has last reported, and which servers that ask for leases it runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Connection, Row, insert, select, update

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.tables import Now
from nova_numa_ext.orchestrator.store.wakes import wake
from nova_numa_ext.policy.remote_gpu.leases import LeaseState

FRESH_S: Final = 5.0
"""Seconds within which a report that says nothing new is not written again."""


@dataclass(frozen=True, slots=True)
class LeaseUse:
    """What the host of a lease's GPU says of its use; None: nothing.

    :param busy: part of the time in which it kept its GPU busy
    :param link_mbps: what goes over its link, megabytes a second
    :param used_mb: memory of the GPU that it has in use, MiB
    """

    busy: float | None = None
    link_mbps: float | None = None
    used_mb: float | None = None


NO_USE: Final = LeaseUse()


@dataclass(frozen=True, slots=True)
class LeaseHost:
    """A host, as of its last report.

    :param seen_at: when that was, seconds since 1970, to :data:`FRESH_S`
    :param servers: uuids of those that run there, of those for which a lease is
    :param kept: the whole report, as the API has checked it, where the database recovers
    :param requests: for GPUs of other hosts, of flavors of its servers, as the API has checked them
    :param busy: lease -> part of the time in which it kept its GPU busy, by the word of the host
    :param link_mbps: lease -> what goes over its link, megabytes a second, by the word of the host
    :param can_move: leases come to its GPUs, and leave them, with all that their processes have
    :param used_mb: lease -> memory of its GPU that it has in use, MiB, by the word of the host
    """

    host: str
    seen_at: float
    servers: frozenset[str]
    kept: Mapping[str, Any] | None = None
    requests: tuple[Mapping[str, Any], ...] = ()
    busy: Mapping[str, float] = field(default_factory=dict)
    can_move: bool = False
    link_mbps: Mapping[str, float] = field(default_factory=dict)
    used_mb: Mapping[str, float] = field(default_factory=dict)

    def use_of(self, lease: str) -> LeaseUse:
        """Return what it says of the use of a lease of its GPUs."""
        return LeaseUse(self.busy.get(lease), self.link_mbps.get(lease), self.used_mb.get(lease))


class LeaseHosts:
    """The table ``lease_host``.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when the database does not answer.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def report(
        self,
        host: str,
        servers: Collection[str] | None,
        kept: Mapping[str, Any] | None = None,
        requests: Sequence[Mapping[str, Any]] = (),
        busy: Mapping[str, float] = MappingProxyType({}),
        *,
        can_move: bool = False,
        link_mbps: Mapping[str, float] = MappingProxyType({}),
        used_mb: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Take note that a host has reported; where servers ask for other GPUs, or leases' come or go, wake the engine.

        :param servers: that it runs; None: those that it reported before, and what they requested
        :param kept: the whole report, where the database recovers
        :param requests: of its servers
        :param busy: by the leases that it serves
        :param can_move: as of :class:`LeaseHost`
        :param link_mbps: as of :class:`LeaseHost`
        :param used_mb: as of :class:`LeaseHost`
        """
        there = self.read(host)
        if servers is None:
            servers = there.servers if there is not None else ()
            requests = there.requests if there is not None else ()
        new = (frozenset(servers), kept, tuple(requests), can_move)
        same = (
            there is not None and (there.servers, there.kept, there.requests, there.can_move) == new
        )
        if there is not None and same and self._database.now() - there.seen_at < FRESH_S:
            return
        values = {
            "seen_at": Now(),
            "servers": sorted(servers),
            "kept": kept,
            "requests": list(requests) or None,
            "busy": dict(busy) or None,
            "can_move": can_move,
            "link_mbps": dict(link_mbps) or None,
            "used_mb": dict(used_mb) or None,
        }
        mine = tables.lease_host.c.host == host
        before = there.servers if there is not None else frozenset()
        asks = tuple(requests) != (there.requests if there is not None else ())
        other = before.symmetric_difference(servers)

        def stored(connection: Connection) -> None:
            changed = connection.execute(update(tables.lease_host).where(mine).values(**values))
            if not changed.rowcount:
                connection.execute(insert(tables.lease_host).values(host=host, **values))
            if asks or _have_leases(connection, other):
                wake(connection)

        self._database.again(stored)

    def read(self, host: str) -> LeaseHost | None:
        """Return a host, None when it has never reported."""
        return self.all(host).get(host)

    def silent_s(self, host: str) -> float | None:
        """Return for how many seconds a host has not reported, None when it has never done so."""
        found = self.read(host)
        return None if found is None else max(self._database.now() - found.seen_at, 0.0)

    def all(self, host: str | None = None) -> dict[str, LeaseHost]:
        """Return hosts that have ever reported, by name.

        :param host: only this one
        """
        query = select(tables.lease_host)
        if host is not None:
            query = query.where(tables.lease_host.c.host == host)
        with self._database.transaction() as connection:
            rows = connection.execute(query).all()
        return {row.host: host_of(row) for row in rows}


def host_of(row: Row[Any]) -> LeaseHost:
    """Return the host of a row of the table ``lease_host``."""
    return LeaseHost(
        row.host,
        row.seen_at,
        frozenset(row.servers),
        row.kept,
        tuple(row.requests or ()),
        busy=row.busy or {},
        can_move=bool(row.can_move),
        link_mbps=row.link_mbps or {},
        used_mb=row.used_mb or {},
    )


def _have_leases(connection: Connection, servers: Collection[str]) -> bool:
    """Return whether a lease that has not ended is for one of some servers."""
    if not servers:
        return False
    columns = tables.lease.c
    query = select(columns.id).where(columns.server.in_(servers), columns.state != LeaseState.GONE)
    return connection.execute(query.limit(1)).first() is not None
