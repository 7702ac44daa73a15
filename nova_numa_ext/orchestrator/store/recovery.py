# SPDX-License-Identifier: Apache-2.0
"""Whether the database is an old one that was restored, and what engines do on it: nothing.

The leader's row has a mark that each renewal counts up. An engine keeps the highest one that it has seen, in memory and
in a file: a database with a lower one has lost what happened since. From then on it *recovers*: no engine leads, so
nothing is made, deleted or released for any job, until its operator has seen what would be
(``numa-ext-manage recover``) and commits it. An operator who restores a database may say so, too: engines whose file is
gone cannot know it.

What begins to recover gets a mark and a term above all that there were: 1 + the largest of the database's, of what the
engine has seen, and of the clock. So a second restore, of a backup from before the first one, is known as well.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from sqlalchemy import select, update

from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.tables import Now, leader
from placement_traits.errors import cut
from placement_traits.json_store import JsonStore

_LOG: Final = logging.getLogger(__name__)

_VERSION: Final = 1
_SAVED_S: Final = 30.0
# So fast no engine counts: what is begun by the clock is above all that was counted since any backup.
_PER_S: Final = 1e6
_LONGEST_WHY: Final = 250


@dataclass(frozen=True, slots=True)
class Recovering:
    """The database recovers.

    :param since: when that began, by the database's clock
    :param why: what has begun it
    """

    since: float
    why: str


def seen_in(path: Path) -> JsonStore[int]:
    """Return the file in which a process keeps the highest mark that it has seen."""
    return JsonStore(
        path,
        _VERSION,
        lambda found: found.member("mark").integer(),
        lambda mark: {"mark": mark},
    )


class Recovery:
    """Holds the database's mark against what was seen; for one thread at a time.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when the database does not answer.

    :param seen: where the highest mark is kept when this process ends; None: nowhere
    :param clock: monotonic seconds; injected by tests
    """

    def __init__(
        self,
        database: Database,
        seen: JsonStore[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._store = seen
        self._clock = clock
        self._seen = (seen.load() if seen else None) or 0
        self._saved_s = -inf
        self._trouble = ""

    def recovering(self) -> Recovering | None:
        """Return since when and why the database recovers, None where it does not."""
        return self._read()[1]

    def look(self) -> Recovering | None:
        """Return the same, after a look whether the database is an old one: from now on it recovers then.

        :raises LostRaceError: another transaction was faster; on a node of a Galera cluster that lags behind, too
        """
        mark, recovering = self._read()
        if mark < self._seen and recovering is None:
            why = f"the database is older than what this engine has seen: mark {mark}, seen {self._seen}"
            self._begin(why, self._seen)
            mark, recovering = self._read()
        if mark >= self._seen:
            self._seen = mark
            if self._clock() >= self._saved_s + _SAVED_S:
                self.save()
        return recovering

    def begin(self, why: str) -> None:
        """Have the database recover from now on; one that recovers does so for the reason that it has.

        :param why: in words, for operators
        """
        self._begin(why)

    def end(self) -> None:
        """Let engines lead again."""
        with self._database.transaction() as connection:
            connection.execute(update(leader).values(recover_at=None, recover_why=""))

    def save(self) -> None:
        """Keep what was seen; where that fails, it is tried again later."""
        self._saved_s = self._clock()
        if self._store is None or not self._seen:
            return
        trouble = ""
        try:
            self._store.save(self._seen)
        except OSError as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            _LOG.warning("an old database would not be known after a restart: %s", trouble)
        self._trouble = trouble

    def _begin(self, why: str, below: int | None = None) -> None:
        """Begin, within one transaction: of the leader's term nothing more can be written.

        :param below: only where the mark is lower than this
        """
        query = update(leader).where(leader.c.recover_at.is_(None))
        if below is not None:
            query = query.where(leader.c.mark < below)
        with self._database.transaction() as connection:
            mark, term, now = connection.execute(select(leader.c.mark, leader.c.term, Now())).one()
            above = 1 + max(int(mark), int(term), self._seen, int(now * _PER_S))
            changed = connection.execute(
                query.values(
                    holder="",
                    term=above,
                    expires_at=Now(),
                    mark=above,
                    recover_at=Now(),
                    recover_why=cut(why, _LONGEST_WHY),
                )
            )
        if changed.rowcount:
            _LOG.warning("nothing is done for jobs until numa-ext-manage recover --commit: %s", why)

    def _read(self) -> tuple[int, Recovering | None]:
        columns = leader.c
        with self._database.transaction() as connection:
            mark, since, why = connection.execute(
                select(columns.mark, columns.recover_at, columns.recover_why)
            ).one()
        return int(mark), None if since is None else Recovering(since, why)
