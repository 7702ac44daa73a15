# SPDX-License-Identifier: Apache-2.0
"""Who changes what is stored."""

from dataclasses import dataclass

from sqlalchemy import Connection

from nova_numa_ext.orchestrator.store.leader import Term


@dataclass(frozen=True, slots=True)
class Actor:
    """Who changes something.

    :param name: user's id, or the engine's name
    :param term: of an engine; its change happens within the term or not at all
    """

    name: str
    term: Term | None = None

    def fence(self, connection: Connection) -> None:
        """Renew an engine's term within the transaction of its change; a user has none.

        :raises NotLeaderError: see :meth:`.leader.Term.fence`
        """
        if self.term:
            self.term.fence(connection)
