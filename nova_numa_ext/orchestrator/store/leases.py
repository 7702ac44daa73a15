# SPDX-License-Identifier: Apache-2.0
"""Leases of remote GPUs as they are stored.

Which state follows which, and which epoch counts, :mod:`nova_numa_ext.policy.remote_gpu.leases` says and nothing else:
a change of a stored lease is one of its functions, written by compare-and-set.

A lease's row is there before its claim in Placement, and stays until that is released. So a claim without a row of a
lease that lives is of none, whenever a process dies.
"""

import uuid as uuids
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, delete, func, select

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.attach_jobs import (
    Moved,
    flags,
    follow,
    insert_attach,
    says,
    seen_by,
    unfinished,
)
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.lease_hosts import NO_USE, host_of
from nova_numa_ext.orchestrator.store.lease_rows import (
    UNCLAIMED,
    change_row,
    ended_with_server,
    lease_of,
    new_row,
    read_again,
    readable,
)
from nova_numa_ext.orchestrator.store.stored_job import AttachJob, StoredJob
from nova_numa_ext.orchestrator.store.stored_lease import (
    LeaseChoice,
    LeaseSpec,
    LeaseTransfer,
    StoredLease,
)
from nova_numa_ext.orchestrator.store.tables import Now
from nova_numa_ext.orchestrator.store.unreadable import Unreadable
from nova_numa_ext.policy.remote_gpu import leases
from nova_numa_ext.policy.remote_gpu.lease_terms import LeaseTerm
from nova_numa_ext.policy.remote_gpu.leases import Lease, LeaseState
from nova_numa_ext.policy.remote_gpu.pool_use import PoolUse
from placement_traits.claims import Amounts, Claim
from placement_traits.errors import ConflictError
from placement_traits.reason import Reason

LIVING: Final = tuple(state for state in LeaseState if not state.final)

_MOVES_HAVE: Final = frozenset({"asked", "second", "host", "gpu", "amounts"})
"""What releases before this one expect of each move."""

Step = Callable[[Lease], Lease]
"""A function of :mod:`nova_numa_ext.policy.remote_gpu.leases`."""


class Leases:
    """The table ``lease``.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when the database does not answer; those
    that change something for an engine raise :class:`.leader.NotLeaderError` when its term is over.

    :param moved: called with each job of leases that comes to another state by a change here; None: nothing is sent
    """

    def __init__(self, database: Database, moved: Moved | None = None) -> None:
        self._database, self._moved = database, moved

    def create(self, project: str, user: str, asked: LeaseSpec, server: str = "") -> StoredLease:
        """Store a lease in state RESERVED, of which Placement holds nothing yet, and the job by which it waits.

        :param user: who asks
        :param server: uuid of the server that it is for; '' for none
        """
        why, owner = Reason(LeaseTerm.ASKED, user), (project, user)

        def stored(connection: Connection) -> StoredLease:
            job = insert_attach(connection, owner, server, asked, why=why, actor=Actor(user))
            return _waiting(connection, owner, server, asked, why=why, job=job)

        return self._again(stored)

    def request(
        self, owner: tuple[str, str], asked: LeaseSpec, count: int, server: str, actor: Actor
    ) -> None:
        """Store the leases that a server's flavor asks for, all or none: as of :meth:`create`, of one gang and one job.

        :param owner: project and user of the server
        :param count: of GPUs
        """
        gang = str(uuids.uuid4()) if count > 1 else ""
        why = Reason(LeaseTerm.FLAVOR, "")
        with self._changes() as connection:
            actor.fence(connection)
            job = insert_attach(connection, owner, server, asked, why=why, actor=actor)
            for _ in range(count):
                _waiting(connection, owner, server, replace(asked, gang=gang), why=why, job=job)

    def jobs(self) -> dict[str, AttachJob]:
        """Return the jobs by which leases wait, those of leases that live included, by uuid."""
        with self._database.transaction() as connection:
            return unfinished(connection)

    def of_jobs(self, jobs: Collection[str]) -> dict[str, list[str]]:
        """Return the leases of some jobs, by the uuid of the job, in the order in which they were asked for."""
        columns = tables.lease.c
        query = select(columns.job, columns.uuid).where(columns.job.in_(jobs))
        found: dict[str, list[str]] = {each: [] for each in jobs}
        for row in self._rows(query.order_by(columns.id)):
            found[row.job].append(row.uuid)
        return found

    def answered(self, servers: Collection[str]) -> frozenset[str]:
        """Return which of some servers have got what their flavors ask for.

        Those with a lease that lives, and those whose leases ended otherwise than with the server, before they are
        purged: who has released one is not given another one.
        """
        columns = tables.lease.c
        query = select(columns.server, columns.state, columns.reasons)
        rows = self._rows(query.where(columns.server.in_(servers)))
        return frozenset(row.server for row in rows if not ended_with_server(row))

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
        return lease_of(found[0]) if found else None

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
            found += readable(rows, unreadable)
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
        """Return leases that have not ended and whose GPU, or whose client, a host has, and those that come to it.

        :param unreadable: as of :meth:`living`
        """
        columns = tables.lease.c
        mine = (columns.gpu_host == host) | (columns.client_host == host)
        mine |= columns.state == LeaseState.MOVING
        query = select(tables.lease).where(mine, columns.state != LeaseState.GONE)
        found = readable(self._rows(query.order_by(columns.id)), unreadable)
        return [each for each in found if _is_of(each, host)]

    def living(self, unreadable: Unreadable) -> list[StoredLease]:
        """Return leases that have not ended.

        :param unreadable: as of :meth:`find`; also called with leases whose state this release does not know
        """
        columns = tables.lease.c
        query = select(tables.lease).where(columns.state != LeaseState.GONE).order_by(columns.id)
        return readable(self._rows(query), unreadable)

    def now(self) -> float:
        """Return the database's time, as :attr:`.stored_lease.StoredLease.created_at` is; seconds since 1970."""
        return self._database.now()

    def counts(self) -> dict[LeaseState, int]:
        """Return how many leases live, by state."""
        columns = tables.lease.c
        query = select(columns.state, func.count()).where(columns.state.in_(LIVING))
        with self._database.transaction() as connection:
            found = connection.execute(query.group_by(columns.state))
            return {LeaseState(state): int(number) for state, number in found}

    def held_mb(self) -> int:
        """Return the memory of GPUs that leases hold in Placement, MiB."""
        columns = tables.lease.c
        query = select(columns.asked).where(columns.claimed, columns.state != LeaseState.GONE)
        return sum(int(row.asked.get("memory_mb", 0)) for row in self._rows(query))

    def pools(self) -> dict[str, PoolUse]:
        """Return what leases use of the GPUs of each host of which some is held."""
        columns = tables.lease.c
        held = select(columns.uuid, columns.gpu_host, columns.asked).where(
            columns.claimed, columns.state != LeaseState.GONE, columns.gpu_host != ""
        )
        reported = {row.host: host_of(row) for row in self._rows(select(tables.lease_host))}
        found: dict[str, PoolUse] = {}
        for row in self._rows(held):
            host = reported.get(row.gpu_host)
            use = NO_USE if host is None else host.use_of(row.uuid)
            one = PoolUse(
                memory_mb=int(row.asked.get("memory_mb", 0)),
                busy=use.busy or 0.0,
                link_mbps=use.link_mbps or 0.0,
                used_mb=use.used_mb or 0.0,
            )
            found[row.gpu_host] = found.get(row.gpu_host, PoolUse()).plus(one)
        return found

    def choose(
        self, members: Sequence[StoredLease], choices: Sequence[LeaseChoice], actor: Actor
    ) -> list[StoredLease]:
        """Say what leases are to hold, before it is claimed, of all or of none.

        :param members: of one job
        :param choices: one for each, in order
        :raises ConflictError: one is claimed already, or does not wait for that
        :raises LostRaceError: one has changed since it was read, or a GPU is chosen and the user has their job held, or
            has cancelled it
        """
        for each in members:
            if each.claimed or each.state is not LeaseState.RESERVED:
                raise ConflictError(f"Lease {each.uuid} is {each.state} and keeps its GPU.")
        with self._changes() as connection:
            for each, choice in zip(members, choices, strict=True):
                placed = replace(each.lease, gpu_host=choice.host)
                more = {"gpu": choice.gpu, "amounts": dict(choice.amounts)}
                change_row(connection, each, placed, actor, each.reasons, **more)
            # After the writes, so that no change of the job comes between; the round had read it before.
            if any(choice.gpu for choice in choices) and any(flags(connection, members[0].job)):
                raise LostRaceError(f"Job {members[0].job} has been held or cancelled.")
            return [read_again(connection, each.number) for each in members]

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

    def wait(
        self,
        stored: StoredLease,
        reasons: Sequence[Reason],
        actor: Actor,
        job: AttachJob | None = None,
    ) -> StoredLease:
        """Say why a lease of which Placement holds nothing waits.

        :param job: its job as of this round, which may say otherwise where its user has held and released it
        :raises LostRaceError: it has changed since it was read
        """
        if stored.reasons != tuple(reasons):
            return self._write(stored, stored.lease, actor, reasons)
        if job is not None and not says(job, reasons):
            with self._changes() as connection:
                actor.fence(connection)
                follow(connection, stored.job, actor, reasons)
        return stored

    def stop(
        self, members: Sequence[StoredLease], reasons: Sequence[Reason], actor: Actor
    ) -> list[StoredLease]:
        """Let leases end of which Placement holds nothing, all or none: what is left of a gang would be a smaller one.

        :raises LeaseError: one ends already
        :raises LostRaceError: one has changed since it was read
        """
        with self._changes() as connection:
            for each in members:
                change_row(connection, each, leases.release(each.lease), actor, reasons)
            return [read_again(connection, each.number) for each in members]

    def hold(self, stored: StoredLease, actor: Actor) -> StoredLease:
        """Say that Placement has granted a lease's claim: no room is kept for it any more.

        :raises LostRaceError: it has changed since it was read
        """
        reasons = (Reason(LeaseTerm.HELD, ""),)
        return self._write(stored, stored.lease, actor, reasons, claimed=True, room=None)

    def rewire(self, stored: StoredLease, amounts: Amounts, actor: Actor) -> StoredLease:
        """Say what a lease holds now that its server is reached by other NICs.

        :raises LostRaceError: it has changed since it was read
        """
        return self._write(stored, stored.lease, actor, stored.reasons, amounts=dict(amounts))

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
        kept = None if move is None else _kept(move)
        return self._write(stored, stored.lease, actor, reasons or stored.reasons, move=kept)

    def begin_moves(
        self,
        moves: Iterable[tuple[StoredLease, LeaseTransfer]],
        why: Reason,
        actor: Actor,
    ) -> None:
        """Say that leases go elsewhere, all or none.

        :param moves: leases, and where they go
        :raises LostRaceError: one has changed since it was read
        """
        with self._changes() as connection:
            for each, move in moves:
                change_row(connection, each, each.lease, actor, (why,), move=_kept(move))

    def make_room(
        self,
        moves: Iterable[tuple[StoredLease, LeaseTransfer]],
        members: Sequence[StoredLease],
        room: Sequence[Amounts],
        actor: Actor,
    ) -> list[StoredLease]:
        """Say that leases go elsewhere so that others have room, all or none; return the others.

        :param moves: leases, and where they go
        :param members: leases of one gang that wait
        :param room: what each of these is to hold afterwards, in order
        :raises LostRaceError: one has changed since it was read
        """
        why = (Reason(LeaseTerm.MAKES_ROOM, ""),)
        with self._changes() as connection:
            for each, move in moves:
                change_row(connection, each, each.lease, actor, why, move=_kept(move))
            return _with_room(connection, members, [dict(each) for each in room], actor)

    def forget_room(self, members: Sequence[StoredLease], actor: Actor) -> list[StoredLease]:
        """Say that no room is kept for leases of one gang any more; return them.

        :raises LostRaceError: one has changed since it was read
        """
        with self._changes() as connection:
            return _with_room(connection, members, [None] * len(members), actor)

    def moved_lately(self, seconds: float) -> int:
        """Return how many leases went to other GPUs in the last seconds, those that have ended since included."""
        columns = tables.lease.c
        query = select(func.count()).where(columns.moved_at > Now() - seconds)
        with self._database.transaction() as connection:
            return int(connection.execute(query).scalar_one())

    def change(
        self,
        stored: StoredLease,
        step: Step,
        actor: Actor,
        reasons: Sequence[Reason] = (),
        *,
        moved: bool = False,
        arrived: bool = False,
        stayed: bool = False,
    ) -> StoredLease:
        """Let a lease take a step of its life; of one that has ended, Placement holds nothing.

        :param step: a function of :mod:`nova_numa_ext.policy.remote_gpu.leases`
        :param reasons: of its state from now on; (): they stay
        :param moved: it holds from now on what its move says
        :param arrived: its move is over
        :param stayed: it goes on with the GPU that it would have left
        :raises LeaseError: its state does not lead there
        :raises UnfencedError: the GPU's host may still serve a client of it
        :raises LostRaceError: it has changed since it was read
        """
        lease = step(stored.lease)
        if lease == stored.lease:
            return stored
        more: dict[str, Any] = (
            {"claimed": False, "ended_at": Now(), "move": None, "room": None}
            if lease.state.final
            else {}
        )
        if moved and stored.move is not None:
            more = {
                "gpu": stored.move.gpu,
                "amounts": dict(stored.move.amounts),
                "moved_at": Now(),
            }
        if arrived:
            more = {"move": None, "address": ""}
        if stayed and stored.move is not None:
            left = stored.move
            more = {"move": None, "gpu": left.left_gpu, "amounts": dict(left.left)}
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

        :raises ConflictError: it is not LOST, can be had of that host only, or its job is cancelled
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
        released = leases.release(stored.lease)
        with self._changes() as connection:
            silent = Reason(LeaseTerm.IN_PLACE_OF, stored.uuid)
            fresh = _in_place_of(connection, stored, actor, silent)
            why = (Reason(LeaseTerm.REPLACED, fresh.uuid),)
            change_row(connection, stored, released, actor, why)
            # After the writes: SQLite refuses a transaction that reads first where another has written since.
            if _is_cancelled(connection, stored):
                raise ConflictError(
                    f"Lease {stored.uuid} is of job {stored.job}, which is cancelled: it is being released."
                )
            return fresh

    def give_way(self, scavengers: Sequence[StoredLease], actor: Actor) -> None:
        """Release leases and ask for the same again, all or none; the new ones wait behind all others.

        :raises LostRaceError: one has changed since it was read, or its job was cancelled
        """
        with self._changes() as connection:
            for each in scavengers:
                why = Reason(LeaseTerm.AGAIN, each.uuid)
                fresh = _in_place_of(connection, each, actor, why)
                reasons = (Reason(LeaseTerm.GIVES_WAY, ""), Reason(LeaseTerm.REPLACED, fresh.uuid))
                change_row(connection, each, leases.release(each.lease), actor, reasons)
                if _is_cancelled(connection, each):
                    raise LostRaceError(f"Job {each.job} has been cancelled.")

    def write_off(self, stored: StoredLease, actor: Actor) -> StoredLease:
        """End a lease whose GPU's host is off, and ask for the same, both or none; return it.

        What it holds is free at once. One that ends already is not asked for again, nor is one whose job is cancelled,
        nor one that can be had of that host only.

        :raises ConflictError: it waits for a GPU, or has ended
        :raises LostRaceError: it has changed since it was read
        """
        if stored.state.final or (stored.state is LeaseState.RESERVED and not stored.claimed):
            raise ConflictError(f"Lease {stored.uuid} is {stored.state} and has no GPU.")
        if stored.state is LeaseState.RELEASING and stored.lease.fenced:
            return stored
        why = [Reason(LeaseTerm.HOST_OFF, "")]
        again = stored.state is not LeaseState.RELEASING and not stored.asked.pool
        if stored.state is LeaseState.RELEASING:
            why += stored.reasons
        if again:
            with self._database.transaction() as connection:
                again = not _is_cancelled(connection, stored)
        with self._changes() as connection:
            if again:
                silent = Reason(LeaseTerm.IN_PLACE_OF, stored.uuid)
                fresh = _in_place_of(connection, stored, actor, silent)
                why.append(Reason(LeaseTerm.REPLACED, fresh.uuid))
            change_row(connection, stored, leases.write_off(stored.lease), actor, why)
            if again and _is_cancelled(connection, stored):
                raise LostRaceError(f"Job {stored.job} has been cancelled.")
            return read_again(connection, stored.number)

    def purge(self, before: float, most: int = 1000) -> int:
        """Delete leases that ended before a time, and the jobs of which none is left; return how many leases.

        Those of servers that ask for remote GPUs still stay: by them it is known that a server has had its leases.
        A job and the last of its leases are deleted in one transaction.

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
            gone = columns.id.in_(ids)
            of_them = select(columns.job).where(gone, columns.job != "").distinct()
            jobs = connection.execute(of_them).scalars().all()
            connection.execute(delete(tables.lease).where(gone))
            left = select(columns.job).where(columns.job.in_(jobs))
            of_none = tables.job.c.uuid.in_(jobs) & tables.job.c.uuid.not_in(left)
            connection.execute(delete(tables.job).where(of_none))
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
        row = new_row(lease, owner, asked, server, why, **more)

        def stored(connection: Connection) -> StoredLease:
            number = connection.execute(row).lastrowid
            return read_again(connection, number)

        return self._database.again(stored)

    def _write(
        self,
        stored: StoredLease,
        lease: Lease,
        actor: Actor,
        reasons: Sequence[Reason],
        **more: Any,
    ) -> StoredLease:
        with self._changes() as connection:
            change_row(connection, stored, lease, actor, reasons, **more)
            return read_again(connection, stored.number)

    @contextmanager
    def _changes(self) -> Iterator[Connection]:
        """Begin a transaction; when it is committed, pass on the jobs that have come to another state in it."""
        with self._database.transaction() as connection:
            seen = [] if self._moved is None else seen_by(connection)
            yield connection
        self._tell(seen)

    def _again(self, change: Callable[[Connection], StoredLease]) -> StoredLease:
        """Make a change as of :meth:`.database.Database.again`, and pass on what :meth:`_changes` does."""
        seen: list[tuple[StoredJob, Sequence[Reason]]] = []

        def watched(connection: Connection) -> StoredLease:
            nonlocal seen
            seen = [] if self._moved is None else seen_by(connection)
            return change(connection)

        found = self._database.again(watched)
        self._tell(seen)
        return found

    def _tell(self, seen: Iterable[tuple[StoredJob, Sequence[Reason]]]) -> None:
        if self._moved is not None:
            for job, reasons in seen:
                self._moved(job, reasons)

    def _rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        with self._database.transaction() as connection:
            return connection.execute(query).all()


def _waiting(
    connection: Connection,
    owner: tuple[str, str],
    server: str,
    asked: LeaseSpec,
    *,
    why: Reason,
    job: str,
) -> StoredLease:
    """Store a lease of a job, of which Placement holds nothing yet."""
    fresh = Lease(str(uuids.uuid4()), gpu_host="")
    row = new_row(fresh, owner, asked, server, why, job=job, **UNCLAIMED)
    return read_again(connection, connection.execute(row).lastrowid)


def _is_of(stored: StoredLease, host: str) -> bool:
    """Return whether a host has something to do for a lease."""
    comes = stored.move is not None and stored.move.carried and stored.move.host == host
    return host in (stored.lease.gpu_host, stored.lease.client_host) or comes


def _kept(move: LeaseTransfer) -> dict[str, Any]:
    """Return a move as it is stored; without what says nothing as releases before this one know it."""
    found = asdict(move)
    return {name: each for name, each in found.items() if each or name in _MOVES_HAVE}


def _with_room(
    connection: Connection,
    members: Iterable[StoredLease],
    room: Iterable[dict[str, Any] | None],
    actor: Actor,
) -> list[StoredLease]:
    """Write what each of some leases is to hold when others have gone; return them."""
    found = []
    for each, held in zip(members, room, strict=True):
        change_row(connection, each, each.lease, actor, each.reasons, room=held)
        found.append(read_again(connection, each.number))
    return found


def _is_cancelled(connection: Connection, stored: StoredLease) -> bool:
    _, cancelled = flags(connection, stored.job)
    return cancelled


def _in_place_of(
    connection: Connection, stored: StoredLease, actor: Actor, why: Reason
) -> StoredLease:
    """Ask for the same again, by a job of its own: it waits behind all that were asked for before it."""
    owner = (stored.project, stored.user)
    job = insert_attach(connection, owner, stored.server, stored.asked, why=why, actor=actor)
    return _waiting(connection, owner, stored.server, stored.asked, why=why, job=job)
