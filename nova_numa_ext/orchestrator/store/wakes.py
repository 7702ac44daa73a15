# SPDX-License-Identifier: Apache-2.0
"""By which the engine that leads learns at once that there is something new, from processes that are not its own.

What a user or a host changes puts a row into the table ``wake``, in the same transaction. It does not say what is new.
The engine looks a few times a second whether there is one, deletes what it finds and begins a round, which sees
whatever was committed with these rows. Where that fails, or no engine looks, the next round comes in its time all the
same: nothing depends on a row.

Rows are inserted and deleted, never changed: two nodes of a Galera cluster do not stand in each other's way.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from sqlalchemy import Connection, delete, insert, select

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.tables import Now

_AT_ONCE: Final = 1000


def wake(connection: Connection, actor: Actor | None = None) -> None:
    """Let a round begin when this transaction is committed.

    :param actor: who makes the change; an engine needs no waking by itself. None: a host
    """
    if actor is None or actor.term is None:
        connection.execute(insert(tables.wake).values(at=Now()))


class Wakes:
    """The table ``wake``.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when the database does not answer.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def waits(self) -> bool:
        """Return whether there is something new.

        :raises LostRaceError: as of a read that Galera has aborted
        """
        return bool(self._found(1))

    def take(self) -> None:
        """Delete all that is there, such as of days without an engine: a round begins that sees what came with it.

        Row by row, by what was read: a range would wait for transactions that have not ended.

        :raises LostRaceError: others were faster each time
        """
        found = self._found()
        for first in range(0, len(found), _AT_ONCE):
            some = found[first : first + _AT_ONCE]
            self._database.again(partial(_deleted, some))

    def _found(self, most: int | None = None) -> list[int]:
        query = select(tables.wake.c.id).limit(most)
        with self._database.transaction() as connection:
            return list(connection.execute(query).scalars())


def _deleted(found: Sequence[int], connection: Connection) -> None:
    connection.execute(delete(tables.wake).where(tables.wake.c.id.in_(found)))
