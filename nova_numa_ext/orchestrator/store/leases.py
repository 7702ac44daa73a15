# SPDX-License-Identifier: Apache-2.0
"""Leases of remote GPUs as they are stored.

Which state follows which, and which epoch counts, :mod:`nova_numa_ext.policy.remote_gpu.leases` says and nothing else:
a change of a stored lease is one of its functions, written by compare-and-set.

A lease's row is there before its claim in Placement, and stays until that is released. So a claim without a row of a
lease that lives is of none, whenever a process dies.
"""

import uuid as uuids
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Connection, Insert, Row, Select, delete, func, insert, select, update

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.tables import Now
from nova_numa_ext.orchestrator.store.unreadable import Unreadable, UnreadableError
from nova_numa_ext.policy.remote_gpu import leases
from nova_numa_ext.policy.remote_gpu.choosing import Unmet
from nova_numa_ext.policy.remote_gpu.lease_terms import LeaseTerm
from nova_numa_ext.policy.remote_gpu.leases import Lease, LeaseState
from placement_traits.claims import Amounts, Claim
from placement_traits.errors import ConflictError
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.reason import Reason

LIVING: Final = tuple(state for state in LeaseState if not state.final)

Step = Callable[[Lease], Lease]
"""A function of :mod:`nova_numa_ext.policy.remote_gpu.leases`."""


@dataclass(frozen=True, slots=True)
class LeaseSpec:
    """What is asked for.

    :param memory_mb: of the GPU, MiB
    :param level: part of its time
    :param api: by which it is used
    :param network_mbps: promised on the NIC of its host, megabytes a second; 0: what others leave
    :param pool: the host whose GPU it must be; '': any
    :param unmet: whether it waits where none has room
    :param priority: among leases that wait, more is earlier
    :param migratable: its GPU must be one whose leases can move
    :param gang: common to leases that are had together or not at all; '': by itself
    """

    memory_mb: int
    level: ServiceLevel
    api: RemoteGpuApi
    network_mbps: int = 0
    pool: str = ""
    unmet: Unmet = Unmet.WAIT
    priority: int = 0
    migratable: bool = False
    gang: str = ""


@dataclass(frozen=True, slots=True)
class LeaseTransfer:
    """Where a lease is to go.

    :param asked: the host that it was asked to go to; '': any
    :param second: the consumer that keeps in Placement what the lease leaves; '' while nothing is chosen
    :param host: that lends the chosen GPU
    :param gpu: its provider
    :param amounts: that the lease holds there
    """

    asked: str = ""
    second: str = ""
    host: str = ""
    gpu: str = ""
    amounts: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as it was read.

    :param number: order in which they were asked for
    :param lease: what the life cycle knows of it
    :param version: number of changes
    :param server: uuid of the server that it is for; '' where none is named
    :param gpu: provider of its GPU; '' before one is chosen
    :param amounts: what its claim holds, or is to hold
    :param claimed: Placement has granted the claim, and it is not released
    :param reasons: of its state
    :param address: where its server process listens, as its GPU's host has reported; '' before
    :param move: where it is to go, or goes; None: nowhere
    """

    number: int
    lease: Lease
    version: int
    project: str
    user: str
    server: str
    asked: LeaseSpec
    gpu: str
    amounts: Amounts
    claimed: bool
    created_at: float
    changed_at: float
    ended_at: float | None
    reasons: tuple[Reason, ...]
    address: str = ""
    move: LeaseTransfer | None = None

    @property
    def uuid(self) -> str:
        """Its uuid, and its consumer's."""
        return self.lease.uuid

    @property
    def state(self) -> LeaseState:
        """Where it is in its life."""
        return self.lease.state


@dataclass(frozen=True, slots=True)
class LeaseChoice:
    """What a lease is to hold.

    :param host: that lends the GPU
    :param gpu: its provider
    :param amounts: of its claim
    """

    host: str
    gpu: str
    amounts: Amounts


NOTHING: Final = LeaseChoice("", "", MappingProxyType({}))
"""Of a lease that is to be given another GPU."""


class Leases:
    """The table ``lease``.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when the database does not answer; those
    that change something for an engine raise :class:`.leader.NotLeaderError` when its term is over.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, project: str, user: str, asked: LeaseSpec, server: str = "") -> StoredLease:
        """Store a lease in state RESERVED, of which Placement holds nothing yet.

        :param user: who asks
        :param server: uuid of the server that it is for; '' for none
        """
        fresh = Lease(str(uuids.uuid4()), gpu_host="")
        why = Reason(LeaseTerm.ASKED, user)
        return self._create(fresh, (project, user), asked, server, why, **_NOTHING)

    def request(
        self, owner: tuple[str, str], asked: LeaseSpec, count: int, server: str, actor: Actor
    ) -> None:
        """Store the leases that a server's flavor asks for, all or none: as of :meth:`create`, and of one gang.

        :param owner: project and user of the server
        :param count: of GPUs
        """
        gang = str(uuids.uuid4()) if count > 1 else ""
        why = Reason(LeaseTerm.FLAVOR, "")
        with self._database.transaction() as connection:
            actor.fence(connection)
            for _ in range(count):
                fresh = Lease(str(uuids.uuid4()), gpu_host="")
                spec = replace(asked, gang=gang)
                connection.execute(_row(fresh, owner, spec, server, why, **_NOTHING))

    def answered(self, servers: Collection[str]) -> frozenset[str]:
        """Return which of some servers have got what their flavors ask for.

        Those with a lease that lives, and those whose leases ended otherwise than with the server: who has released
        one is not given another one.
        """
        columns = tables.lease.c
        query = select(columns.server, columns.state, columns.reasons)
        rows = self._rows(query.where(columns.server.in_(servers)))
        return frozenset(row.server for row in rows if not _ended_with_server(row))

    def adopt(
        self, lease: Lease, claim: Claim, asked: LeaseSpec, server: str, gpu: str
    ) -> StoredLease:
        """Store a lease that an old database does not know, and for which Placement holds its claim.

        :param server: that it is for; '' where no host names one
        :param gpu: its provider
        """
        why, owner = Reason(LeaseTerm.ADOPTED, ""), (claim.project, claim.user)
        values = {"gpu": gpu, "amounts": claim.amounts, "claimed": True}
        return self._create(lease, owner, asked, server, why, **values)

    def recover(
        self,
        stored: StoredLease,
        lease: Lease,
        actor: Actor,
        gpu: str,
        amounts: Amounts,
        *,
        claimed: bool,
    ) -> StoredLease:
        """Store what became of a lease since the backup of an old database.

        :param gpu: the provider that its claim holds; '' for none
        :param amounts: of its claim, or that it is to hold
        :param claimed: Placement holds it, or is to again
        :raises LostRaceError: it has changed since it was read
        """
        gone = lease.state.final
        more = {"gpu": gpu, "amounts": amounts, "claimed": claimed, "move": None}
        reasons = (Reason(LeaseTerm.ENDED_SINCE if gone else LeaseTerm.ADOPTED, ""),)
        ended = {"ended_at": Now()} if gone else {}
        return self._write(stored, lease, actor, reasons, **more, **ended)

    def read(self, uuid: str) -> StoredLease | None:
        """Return a lease, None when there is none.

        :raises UnreadableError: it is stored in another form
        """
        found = self._rows(select(tables.lease).where(tables.lease.c.uuid == uuid))
        return _lease(found[0]) if found else None

    def find(
        self,
        *,
        project: str | None = None,
        states: Collection[LeaseState] = tuple(LeaseState),
        after: str | None = None,
        limit: int | None = None,
        unreadable: Unreadable | None = None,
    ) -> list[StoredLease]:
        """Return leases in the order in which they were asked for.

        :param project: only those of a project
        :param states: only those in one of these
        :param after: uuid of the last lease of the page before; of one that is not there nothing comes after
        :param limit: so many at most
        :param unreadable: called with the uuid of each lease that is stored in another form than this release's, which
            is left out, and why; None: such a lease is an error
        :raises UnreadableError: one is, and ``unreadable`` is None
        """
        columns = tables.lease.c
        query = select(tables.lease).where(columns.state.in_(states)).order_by(columns.id)
        if project is not None:
            query = query.where(columns.project_id == project)
        if after is not None:
            marker = select(columns.id).where(columns.uuid == after)
            query = query.where(columns.id > marker.scalar_subquery())
        found, left = list[StoredLease](), limit
        while True:
            rows = self._rows(query.limit(left))
            found += _readable(rows, unreadable)
            if left is None or limit is None or len(rows) < left or len(found) == limit:
                return found
            query, left = query.where(columns.id > rows[-1].id), limit - len(found)

    def usage(self, project: str, unreadable: Unreadable) -> tuple[int, int]:
        """Return how many leases of a project live, and their memory of GPUs together, MiB.

        :param unreadable: called with each lease that cannot be read, which is not counted
        """
        found = self.find(project=project, states=LIVING, unreadable=unreadable)
        return len(found), sum(each.asked.memory_mb for each in found)

    def of_host(self, host: str, unreadable: Unreadable) -> list[StoredLease]:
        """Return leases that have not ended and whose GPU, or whose client, a host has.

        :param unreadable: as of :meth:`living`
        """
        columns = tables.lease.c
        mine = (columns.gpu_host == host) | (columns.client_host == host)
        query = select(tables.lease).where(mine, columns.state != LeaseState.GONE)
        return _readable(self._rows(query.order_by(columns.id)), unreadable)

    def living(self, unreadable: Unreadable) -> list[StoredLease]:
        """Return leases that have not ended.

        :param unreadable: as of :meth:`find`; also called with leases whose state this release does not know
        """
        columns = tables.lease.c
        query = select(tables.lease).where(columns.state != LeaseState.GONE).order_by(columns.id)
        return _readable(self._rows(query), unreadable)

    def now(self) -> float:
        """Return the database's time, of which :attr:`StoredLease.created_at` is one; seconds since 1970."""
        return self._database.now()

    def counts(self) -> dict[LeaseState, int]:
        """Return how many leases live, by state."""
        columns = tables.lease.c
        query = select(columns.state, func.count()).where(columns.state.in_(LIVING))
        with self._database.transaction() as connection:
            found = connection.execute(query.group_by(columns.state))
            return {LeaseState(state): int(number) for state, number in found}

    def choose(
        self, members: Sequence[StoredLease], choices: Sequence[LeaseChoice], actor: Actor
    ) -> list[StoredLease]:
        """Say what leases are to hold, before it is claimed, of all or of none.

        :param choices: one for each, in order
        :raises ConflictError: one is claimed already, or does not wait for that
        :raises LostRaceError: one has changed since it was read
        """
        for each in members:
            if each.claimed or each.state is not LeaseState.RESERVED:
                raise ConflictError(f"Lease {each.uuid} is {each.state} and keeps its GPU.")
        with self._database.transaction() as connection:
            for each, choice in zip(members, choices, strict=True):
                placed = replace(each.lease, gpu_host=choice.host)
                more = {"gpu": choice.gpu, "amounts": dict(choice.amounts)}
                _change(connection, each, placed, actor, each.reasons, **more)
            return [_read(connection, each.number) for each in members]

    def assign(self, stored: StoredLease, server: str, actor: Actor) -> StoredLease:
        """Say which server a lease is for that was asked for without one.

        :raises ConflictError: it is for another one, or ends
        :raises LostRaceError: it has changed since it was read
        """
        if stored.server == server:
            return stored
        if stored.server:
            raise ConflictError(f"Lease {stored.uuid} is for server {stored.server}.")
        if stored.state is LeaseState.RELEASING or stored.state.final:
            raise ConflictError(f"Lease {stored.uuid} has ended, or is about to.")
        return self._write(stored, stored.lease, actor, stored.reasons, server=server)

    def wait(self, stored: StoredLease, reasons: Sequence[Reason], actor: Actor) -> StoredLease:
        """Say why a lease of which Placement holds nothing waits.

        :raises LostRaceError: it has changed since it was read
        """
        if stored.reasons == tuple(reasons):
            return stored
        return self._write(stored, stored.lease, actor, reasons)

    def hold(self, stored: StoredLease, actor: Actor) -> StoredLease:
        """Say that Placement has granted a lease's claim.

        :raises LostRaceError: it has changed since it was read
        """
        reasons = (Reason(LeaseTerm.HELD, ""),)
        return self._write(stored, stored.lease, actor, reasons, claimed=True)

    def ask_move(self, stored: StoredLease, host: str, actor: Actor) -> StoredLease:
        """Ask for another GPU for a lease; asked for already is asked for.

        :param host: that lends it; '': any
        :raises ConflictError: no server uses it now, it moves already, or may be of one other host only
        :raises LostRaceError: it has changed since it was read
        """
        if stored.move is not None and stored.move.asked == host:
            return stored
        if stored.state is not LeaseState.ATTACHED or stored.move is not None:
            what = "moves" if stored.move is not None else f"is {stored.state}"
            raise ConflictError(
                f"Lease {stored.uuid} {what}; only one that is attached can be moved."
            )
        if stored.asked.pool and host not in ("", stored.asked.pool):
            raise ConflictError(
                f"Lease {stored.uuid} was asked for of one host: it can go to another GPU of that only."
            )
        return self.plan_move(
            stored, LeaseTransfer(host), actor, (Reason(LeaseTerm.MOVE_ASKED, ""),)
        )

    def plan_move(
        self,
        stored: StoredLease,
        move: LeaseTransfer | None,
        actor: Actor,
        reasons: Sequence[Reason] = (),
    ) -> StoredLease:
        """Say where a lease is to go, None for nowhere.

        :param reasons: of its state from now on; (): they stay
        :raises LostRaceError: it has changed since it was read
        """
        kept = None if move is None else asdict(move)
        return self._write(stored, stored.lease, actor, reasons or stored.reasons, move=kept)

    def change(
        self,
        stored: StoredLease,
        step: Step,
        actor: Actor,
        reasons: Sequence[Reason] = (),
        *,
        moved: bool = False,
        arrived: bool = False,
    ) -> StoredLease:
        """Let a lease take a step of its life; of one that has ended, Placement holds nothing.

        :param step: a function of :mod:`nova_numa_ext.policy.remote_gpu.leases`
        :param reasons: of its state from now on; (): they stay
        :param moved: it holds from now on what its move says
        :param arrived: its move is over
        :raises LeaseError: its state does not lead there
        :raises UnfencedError: the GPU's host may still serve a client of it
        :raises LostRaceError: it has changed since it was read
        """
        lease = step(stored.lease)
        if lease == stored.lease:
            return stored
        more: dict[str, Any] = (
            {"claimed": False, "ended_at": Now(), "move": None} if lease.state.final else {}
        )
        if moved and stored.move is not None:
            more = {"gpu": stored.move.gpu, "amounts": dict(stored.move.amounts)}
        if arrived:
            more = {"move": None, "address": ""}
        return self._write(stored, lease, actor, reasons or stored.reasons, **more)

    def acknowledge(
        self, stored: StoredLease, host: str, epoch: int, address: str, actor: Actor
    ) -> StoredLease:
        """Take note of what a GPU's host reports: :func:`nova_numa_ext.policy.remote_gpu.leases.acknowledge`.

        :param address: where the lease's server process listens; '': there is none
        :raises LostRaceError: it has changed since it was read
        """
        lease = leases.acknowledge(stored.lease, host, epoch)
        if host != lease.gpu_host or (lease, address) == (stored.lease, stored.address):
            return stored
        return self._write(stored, lease, actor, stored.reasons, address=address)

    def fail(self, stored: StoredLease, host: str, epoch: int, actor: Actor) -> StoredLease:
        """Take note that a lease's process is gone: :func:`nova_numa_ext.policy.remote_gpu.leases.fail`.

        :raises LostRaceError: it has changed since it was read
        """
        step = partial(leases.fail, host=host, epoch=epoch)
        return self.change(stored, step, actor, (Reason(LeaseTerm.PROCESS_GONE, ""),))

    def requeue(self, stored: StoredLease, actor: Actor) -> StoredLease:
        """Release a lease whose GPU's host is silent and ask for the same, both or none; return the new one, RESERVED.

        What the old one holds stays its own until that host serves it no more: the new one waits behind all that were
        asked for before it.

        :raises ConflictError: it is not LOST, or can be had of that host only
        :raises LostRaceError: it has changed since it was read
        """
        if stored.state is not LeaseState.LOST:
            raise ConflictError(
                f"Lease {stored.uuid} is {stored.state}; only one that is lost is asked for again."
            )
        if stored.asked.pool:
            raise ConflictError(
                f"Lease {stored.uuid} was asked for of one host, which is silent: release it, and ask for another one."
            )
        fresh = Lease(str(uuids.uuid4()), gpu_host="")
        owner = (stored.project, stored.user)
        row = _row(
            fresh,
            owner,
            stored.asked,
            stored.server,
            Reason(LeaseTerm.IN_PLACE_OF, stored.uuid),
            **_NOTHING,
        )
        released = leases.release(stored.lease)
        why = (Reason(LeaseTerm.REPLACED, fresh.uuid),)
        with self._database.transaction() as connection:
            _change(connection, stored, released, actor, why)
            return _read(connection, connection.execute(row).lastrowid)

    def write_off(self, stored: StoredLease, actor: Actor) -> StoredLease:
        """End a lease whose GPU's host is off, and ask for the same, both or none; return it.

        What it holds is free at once. One that ends already is not asked for again, nor is one that can be had of that
        host only.

        :raises ConflictError: it waits for a GPU, or has ended
        :raises LostRaceError: it has changed since it was read
        """
        if stored.state.final or (stored.state is LeaseState.RESERVED and not stored.claimed):
            raise ConflictError(f"Lease {stored.uuid} is {stored.state} and has no GPU.")
        if stored.state is LeaseState.RELEASING and stored.lease.fenced:
            return stored
        why = [Reason(LeaseTerm.HOST_OFF, "")]
        again = stored.state is not LeaseState.RELEASING and not stored.asked.pool
        fresh = Lease(str(uuids.uuid4()), gpu_host="")
        if again:
            why.append(Reason(LeaseTerm.REPLACED, fresh.uuid))
        elif stored.state is LeaseState.RELEASING:
            why += stored.reasons
        with self._database.transaction() as connection:
            _change(connection, stored, leases.write_off(stored.lease), actor, why)
            if again:
                owner = (stored.project, stored.user)
                in_place = Reason(LeaseTerm.IN_PLACE_OF, stored.uuid)
                row = _row(fresh, owner, stored.asked, stored.server, in_place, **_NOTHING)
                connection.execute(row)
            return _read(connection, stored.number)

    def purge(self, before: float, most: int = 1000) -> int:
        """Delete leases that ended before a time; return how many.

        Those of servers that ask for remote GPUs still stay: by them it is known that a server has had its leases.

        :param before: seconds since 1970
        :param most: so many at once; call again while it returns that
        """
        columns = tables.lease.c
        with self._database.transaction() as connection:
            requests = connection.execute(select(tables.lease_host.c.requests)).scalars()
            asking = {each["server_id"] for of_host in requests for each in of_host or ()}
            old = select(columns.id).where(
                columns.state == LeaseState.GONE,
                columns.ended_at < before,
                columns.server.not_in(asking),
            )
            ids = connection.execute(old.limit(most)).scalars().all()
            connection.execute(delete(tables.lease).where(columns.id.in_(ids)))
        return len(ids)

    def _create(
        self,
        lease: Lease,
        owner: tuple[str, str],
        asked: LeaseSpec,
        server: str,
        why: Reason,
        **more: Any,
    ) -> StoredLease:
        row = _row(lease, owner, asked, server, why, **more)

        def stored(connection: Connection) -> StoredLease:
            number = connection.execute(row).lastrowid
            return _read(connection, number)

        return self._database.again(stored)

    def _write(
        self,
        stored: StoredLease,
        lease: Lease,
        actor: Actor,
        reasons: Sequence[Reason],
        **more: Any,
    ) -> StoredLease:
        with self._database.transaction() as connection:
            _change(connection, stored, lease, actor, reasons, **more)
            return _read(connection, stored.number)

    def _rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        with self._database.transaction() as connection:
            return connection.execute(query).all()


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({"gpu": "", "amounts": {}, "claimed": False})
"""Of a lease of which Placement holds nothing."""


def _row(
    lease: Lease,
    owner: tuple[str, str],
    asked: LeaseSpec,
    server: str,
    why: Reason,
    **more: Any,
) -> Insert:
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


def _change(
    connection: Connection,
    stored: StoredLease,
    lease: Lease,
    actor: Actor,
    reasons: Sequence[Reason],
    **more: Any,
) -> None:
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


def _columns(lease: Lease) -> dict[str, Any]:
    """Return what changes of a lease in its life."""
    return {
        "state": lease.state,
        "epoch": lease.epoch,
        "acknowledged": lease.acknowledged,
        "gpu_host": lease.gpu_host,
        "client_host": lease.client_host,
    }


def _ended_with_server(row: Row[Any]) -> bool:
    """Return whether a lease has ended, or ends, for its server was on no host any more."""
    terms = {each["term"] for each in row.reasons}
    return row.state in _ENDS and LeaseTerm.SERVER_GONE in terms


_ENDS: Final = frozenset({LeaseState.RELEASING, LeaseState.GONE})


def _readable(rows: Iterable[Row[Any]], unreadable: Unreadable | None) -> list[StoredLease]:
    found = []
    for row in rows:
        try:
            found.append(_lease(row))
        except UnreadableError as error:
            if unreadable is None:
                raise
            unreadable(row.uuid, error)
    return found


def _read(connection: Connection, number: int) -> StoredLease:
    return _lease(connection.execute(select(tables.lease).where(tables.lease.c.id == number)).one())


def _lease(row: Row[Any]) -> StoredLease:
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
    )


def _spec(stored: Mapping[str, Any]) -> LeaseSpec:
    known = {
        "level": ServiceLevel(stored["level"]),
        "api": RemoteGpuApi(stored["api"]),
        "unmet": Unmet(stored.get("unmet", Unmet.WAIT)),
    }
    return LeaseSpec(**{**stored, **known})
