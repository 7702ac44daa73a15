# SPDX-License-Identifier: Apache-2.0
"""Trusts that are of no use any more: kept until Keystone has deleted them, whatever stands in the way meanwhile."""

from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.tables import Now

_FIRST_BACK_OFF_S: Final = 60.0
_LONGEST_BACK_OFF_S: Final = 3600.0


class EndedTrusts:
    """The table ``trust``.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when the database does not answer.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, trust: str) -> None:
        """Have a trust deleted; one that is to be deleted already stays so."""
        self._database.again(lambda connection: ended(connection, trust))

    def due(self, most: int = 10) -> list[str]:
        """Return trusts whose deletion is to be tried now, who has waited longest first.

        :param most: so many at once: who stops waits for as many answers of Keystone
        """
        columns = tables.trust.c
        query = select(columns.trust_id).where(columns.not_before <= Now())
        with self._database.transaction() as connection:
            return list(
                connection.execute(query.order_by(columns.not_before).limit(most)).scalars()
            )

    def all(self) -> set[str]:
        """Return all trusts that are to be deleted."""
        with self._database.transaction() as connection:
            return set(connection.execute(select(tables.trust.c.trust_id)).scalars())

    def deleted(self, trust: str) -> None:
        """Forget a trust: Keystone has it no more."""
        with self._database.transaction() as connection:
            connection.execute(delete(tables.trust).where(tables.trust.c.trust_id == trust))

    def refused(self, trust: str) -> int:
        """Try a trust again later; return how often that was so."""
        columns = tables.trust.c
        of_trust = columns.trust_id == trust
        with self._database.transaction() as connection:
            tries = connection.execute(select(columns.tries).where(of_trust)).scalar() or 0
            wait_s = min(_FIRST_BACK_OFF_S * 2.0 ** min(tries, 10), _LONGEST_BACK_OFF_S)
            connection.execute(
                update(tables.trust)
                .where(of_trust)
                .values(tries=tries + 1, not_before=Now() + wait_s)
            )
        return tries + 1


def ended(connection: Connection, trust: str, not_before: float | None = None) -> None:
    """Note within a transaction that a trust is to be deleted.

    :param not_before: until when it is still of use, by the database's clock; None: it is of none
    """
    if connection.execute(select(tables.trust).where(tables.trust.c.trust_id == trust)).first():
        return
    connection.execute(
        insert(tables.trust).values(
            trust_id=trust,
            ended_at=Now(),
            tries=0,
            not_before=Now() if not_before is None else not_before,
        )
    )
