# SPDX-License-Identifier: Apache-2.0
"""Which one of several engines writes: a row that expires by the database's clock, with a term that only grows.

An engine that was paused for longer than its row lasts finds another term in the row and does nothing more. The pause
may hit between the check and a call to another service; those calls carry what tells them apart (a generation, a tag).
"""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, select, update

from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.tables import Now, leader
from placement_traits.errors import NumaExtError

LASTS_S: Final = 15.0


class NotLeaderError(NumaExtError):
    """This engine does not lead (any more): another one may write now."""


@dataclass(frozen=True, slots=True)
class Term:
    """One engine's time as leader.

    :param holder: which engine
    :param number: larger than that of every term before
    """

    holder: str
    number: int

    def fence(self, connection: Connection, lasts_s: float = LASTS_S) -> None:
        """Renew the row, within the transaction that must not happen when this term is over.

        The row is written, not only read: nodes of a Galera cluster compare what transactions write.

        :raises NotLeaderError: this term is over
        """
        changed = connection.execute(
            update(leader)
            .where(leader.c.holder == self.holder, leader.c.term == self.number)
            .values(expires_at=Now() + lasts_s)
        )
        if changed.rowcount != 1:
            raise NotLeaderError(f"Term {self.number} of {self.holder} is over.")


class Election:
    """One engine's part in choosing the leader.

    :param database: shared by all engines
    :param holder: names this process and no other one, a restarted one neither
    :param lasts_s: seconds from the last renewal to the end of a term
    """

    def __init__(self, database: Database, holder: str, lasts_s: float = LASTS_S) -> None:
        self._database = database
        self._holder = holder
        self._lasts_s = lasts_s
        self._term: Term | None = None

    def campaign(self) -> Term | None:
        """Renew the term, or begin one when the row has expired; None: another engine leads, or was faster.

        :raises ServiceUnavailableError: the database does not answer
        """
        try:
            with self._database.transaction() as connection:
                self._term = self._renewed(connection) or self._begun(connection)
        except LostRaceError:
            self._term = None
        return self._term

    def check(self) -> None:
        """Renew the term, to be called right before each call that changes something outside of the database.

        :raises NotLeaderError: the term is over, or another transaction was faster
        :raises ServiceUnavailableError: the database does not answer
        """
        if self._term is None:
            raise NotLeaderError(f"{self._holder} does not lead.")
        try:
            with self._database.transaction() as connection:
                self._term.fence(connection, self._lasts_s)
        except LostRaceError as error:
            raise NotLeaderError(f"{self._holder} could not renew its term.") from error

    def resign(self) -> None:
        """Let another engine lead at once; harmless where this one does not lead."""
        with self._database.transaction() as connection:
            connection.execute(
                update(leader).where(leader.c.holder == self._holder).values(expires_at=Now())
            )
        self._term = None

    def _renewed(self, connection: Connection) -> Term | None:
        if self._term is None:
            return None
        try:
            self._term.fence(connection, self._lasts_s)
        except NotLeaderError:
            return None
        return self._term

    def _begun(self, connection: Connection) -> Term | None:
        changed = connection.execute(
            update(leader)
            .where(leader.c.expires_at <= Now())
            .values(holder=self._holder, term=leader.c.term + 1, expires_at=Now() + self._lasts_s)
        )
        if changed.rowcount != 1:
            return None
        return Term(self._holder, connection.execute(select(leader.c.term)).scalar_one())
