# SPDX-License-Identifier: Apache-2.0
"""Says to Placement what servers of this host send, and reads what is reported of its leaf; waits for neither.

A host that asks for nothing, and whose best-effort servers send little, asks Placement for nothing either. What was
read is of account for :data:`LASTS_S`, whatever becomes of Placement or its clock.
"""

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from host_agent.util.background import BackgroundTasks
from placement_traits.errors import NumaExtError
from placement_traits.leaf_limits import LeafLimit, NetworkDemand

_LOG: Final = logging.getLogger(__name__)

EVERY_S: Final = 30.0
LASTS_S: Final = 90.0


class Sayer(Protocol):
    """:class:`placement_traits.network_demand.DemandWriter`."""

    def write(self, demand: NetworkDemand) -> None:
        """Write what servers send."""

    def withdraw(self) -> None:
        """Have nothing reported."""


class Listening(Protocol):
    """:class:`placement_traits.network_demand.LeafReader`."""

    def read(self) -> LeafLimit | None:
        """Return what is reported of the leaf."""


class LeafExchange:
    """Exchanges both.

    :param sides: returns what writes and what reads; called again after it has failed
    :param tasks: runs what waits for Placement
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        sides: Callable[[], tuple[Sayer, Listening]],
        tasks: BackgroundTasks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_sides, self._tasks, self._clock = sides, tasks, clock
        self._sides: tuple[Sayer, Listening] | None = None
        self._read: LeafLimit | None = None
        self._read_s = -LASTS_S
        self._due_s = 0.0
        self._asked = False
        self._is_open = False
        self._is_busy = False
        self._problem = ""

    @property
    def limit(self) -> LeafLimit | None:
        """What is reported of the leaf; None where nothing is, or it was read too long ago."""
        return self._read if self._clock() - self._read_s < LASTS_S else None

    def show(self, demand: NetworkDemand, *, listens: bool) -> None:
        """Have it reported and read where that is due; at once where the host begins or ceases to ask. Does not wait.

        :param listens: best-effort servers send so much that what is reported of the leaf matters
        """
        asks = demand.asked > 0
        is_needed = asks or listens or self.limit is not None
        is_due = self._clock() >= self._due_s or asks is not self._asked
        if self._is_busy or not is_due or not (is_needed or self._is_open):
            return
        self._is_busy, self._asked = True, asks
        self._is_open = is_needed
        self._due_s = self._clock() + EVERY_S
        if not self._tasks.submit(self._exchange, demand, is_needed):
            self._is_busy = False

    def rest(self) -> None:
        """Have nothing reported any more, and hear nothing: nothing is watched on this host."""
        self._read_s = -LASTS_S
        if self._is_open:
            self._is_open = self._asked = False
            self._tasks.submit(self._exchange, NetworkDemand(), False)

    def _exchange(self, demand: NetworkDemand, is_needed: bool) -> None:
        try:
            problem = self._attempt(demand, is_needed=is_needed)
            if problem and problem != self._problem:
                _LOG.warning("the leaf of this host is not spoken with: %s", problem)
            self._problem = problem
        finally:
            self._is_busy = False

    def _attempt(self, demand: NetworkDemand, *, is_needed: bool) -> str:
        """Say and read; return what was in the way. What was read before lapses by itself."""
        try:
            self._sides = self._sides or self._make_sides()
            writer, reader = self._sides
            if not is_needed:
                writer.withdraw()
                return ""
            found = reader.read()
            self._read, self._read_s = found, self._clock()
            if demand.asked or found is not None:
                writer.write(demand)
            else:
                writer.withdraw()
        except NumaExtError as error:
            self._sides = None
            return str(error)
        return ""
