# SPDX-License-Identifier: Apache-2.0
"""Which one of several engines writes: a row that expires by the database's clock, with a term that only grows.

A heartbeat renews the row, however long the engine's rounds take. An engine that was paused for longer than its row
lasts finds another term in the row and does nothing more. The pause may hit between the check and a call to another
service; those calls carry what tells them apart (a generation, a tag).

Where the database's clock was set back, a row would seem to last for as long. One that lasts for minutes longer than
any term is taken for over: should its engine live after all, it finds another term, as one that was paused.

Each renewal counts up the row's mark. One that is lower than it was is that of an old database, which was restored:
nothing is done on it, as on one that recovers (:mod:`.recovery`).
"""

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy import Connection, Double, bindparam, select, update

from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.tables import Now, leader
from placement_traits.errors import NumaExtError, ServiceUnavailableError

_LOG: Final = logging.getLogger(__name__)

LASTS_S: Final = 15.0
_RENEWALS: Final = 5  # while a term lasts: some may fail
_TOO_LONG_S: Final = 300.0  # beyond a term: more than clocks of a cluster's nodes differ


# Made once, as part of each change: SQLAlchemy takes longer to make it than SQLite to write.
_RENEWAL: Final = (
    update(leader)
    .where(
        leader.c.holder == bindparam("by"),
        leader.c.term == bindparam("number"),
        leader.c.mark >= bindparam("since"),
        leader.c.recover_at.is_(None),
    )
    .values(expires_at=Now() + bindparam("s", type_=Double), mark=leader.c.mark + 1)
)


class NotLeaderError(NumaExtError):
    """This engine does not lead (any more): another one may write now."""


@dataclass(frozen=True, slots=True)
class Term:
    """One engine's time as leader.

    :param holder: which engine
    :param number: larger than that of every term before
    :param lasts_s: seconds from its last renewal to its end
    :param mark: the row's, when the term was last known to go on
    """

    holder: str
    number: int
    lasts_s: float = LASTS_S
    mark: int = field(default=0, compare=False)

    def fence(self, connection: Connection) -> None:
        """Renew the row, within the transaction that must not happen when this term is over.

        The row is written, not only read: nodes of a Galera cluster compare what transactions write.

        :raises NotLeaderError: this term is over, or the database is an old one or recovers
        """
        lasts = {"by": self.holder, "number": self.number, "since": self.mark, "s": self.lasts_s}
        changed = connection.execute(_RENEWAL, lasts)
        if changed.rowcount != 1:
            raise NotLeaderError(f"Term {self.number} of {self.holder} is over.")


class Election:
    """One engine's part in choosing the leader; any thread may use it.

    :param database: shared by all engines
    :param holder: names this process and no other one, a restarted one neither
    :param lasts_s: seconds from the last renewal to the end of a term
    """

    def __init__(self, database: Database, holder: str, lasts_s: float = LASTS_S) -> None:
        self._database = database
        self._holder = holder
        self.lasts_s = lasts_s
        self._lock = threading.Lock()
        self._led: Term | None = None  # the last term, also while it cannot be renewed
        self._term: Term | None = None
        self._mark = 0

    def campaign(self) -> Term | None:
        """Renew the term, or begin one when the row has expired; None: another engine leads, or was faster.

        None, too, where the database is an old one, or recovers.

        :raises ServiceUnavailableError: the database does not answer
        """
        return self._settle(lambda connection: self._renewed(connection) or self._begun(connection))

    def renew(self) -> None:
        """Renew the term; harmless without one. One that is over is not begun again here: what it did must end first.

        :raises ServiceUnavailableError: the database does not answer
        """
        if self._term:
            self._settle(self._renewed)

    def check(self, term: Term) -> None:
        """Renew a term, to be called right before each call that changes something outside of the database.

        :param term: in which the call was decided
        :raises NotLeaderError: it is over, or another transaction was faster
        :raises ServiceUnavailableError: the database does not answer
        """
        if self._term != term:
            raise NotLeaderError(f"{self._holder} does not lead in term {term.number}.")
        try:
            with self._database.transaction() as connection:
                term.fence(connection)
        except LostRaceError as error:
            raise NotLeaderError(f"{self._holder} could not renew its term.") from error

    def resign(self) -> None:
        """Let another engine lead at once; harmless where this one does not lead.

        No transaction that is still open can renew the row then.
        """
        with self._lock:
            self._term = self._led = None
            with self._database.transaction() as connection:
                connection.execute(
                    update(leader)
                    .where(leader.c.holder == self._holder)
                    .values(holder="", expires_at=Now())
                )

    def _settle(self, ask: Callable[[Connection], Term | None]) -> Term | None:
        """Find out whether this engine leads: who cannot know that does not."""
        with self._lock:
            led = None
            try:
                with self._database.transaction() as connection:
                    found = ask(connection)
                led = found
            except LostRaceError as error:
                _LOG.info("%s does not lead for now: %s", self._holder, error)
            finally:
                self._term = led
            self._led = led or self._led
            self._mark = led.mark if led else self._mark
            return led

    def _renewed(self, connection: Connection) -> Term | None:
        if self._led is None:
            return None
        try:
            self._led.fence(connection)
        except NotLeaderError:
            return None
        mark = connection.execute(select(leader.c.mark)).scalar_one()
        return replace(self._led, mark=mark)

    def _begun(self, connection: Connection) -> Term | None:
        changed = connection.execute(
            update(leader)
            .where(
                (leader.c.expires_at <= Now())
                | (leader.c.expires_at > Now() + (self.lasts_s + _TOO_LONG_S)),
                leader.c.mark >= self._mark,
                leader.c.recover_at.is_(None),
            )
            .values(
                holder=self._holder,
                term=leader.c.term + 1,
                expires_at=Now() + self.lasts_s,
                mark=leader.c.mark + 1,
            )
        )
        if changed.rowcount != 1:
            return None
        number, mark = connection.execute(select(leader.c.term, leader.c.mark)).one()
        _LOG.info("%s leads: term %d", self._holder, number)
        return Term(self._holder, number, self.lasts_s, mark)


class Heartbeat:
    """Renews the term of an election from a thread of its own, until it is stopped.

    :param election: whose
    """

    def __init__(self, election: Election) -> None:
        self._election = election
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Renew no more; return whether the last renewal has ended within some seconds."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        longest_s = self._election.lasts_s / _RENEWALS
        while not self._stop.wait(longest_s * random.uniform(0.8, 1.0)):
            try:
                self._election.renew()
            except ServiceUnavailableError as error:
                _LOG.warning("the term of this engine is not renewed: %s", error)
