# SPDX-License-Identifier: Apache-2.0
"""Which hosts have lanes, for flavors that require them: a trait of the host's root in Placement.

It is there while an uplink of the host has lanes, and goes when these are withdrawn or the unit ends. The agent leaves
it alone. Others may take it away: an operator, or an agent of an earlier release, which takes it for one of its own. So
it is looked at again each minute. Placement that does not answer is asked again in the next turn.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from host_agent.util.background import BackgroundTasks
from placement_traits.errors import NumaExtError

if TYPE_CHECKING:
    from placement_traits.reporter import SyncReport

_LOG: Final = logging.getLogger(__name__)

LOOK_S: Final = 60.0
"""After so long the trait is looked at though nothing has changed here."""


class LaneWriter(Protocol):
    """What writes the trait: :class:`placement_traits.reporter.Reporter`."""

    def laned(self, host: str, *, has_lanes: bool) -> "SyncReport":
        """Let a host's root have the trait of lanes, or not have it."""


class LaneTrait:
    """Keeps the trait.

    :param writer: returns what writes it; called when there is something to write, and again after it has failed
    :param host: returns the name of nova's root provider
    :param tasks: runs what waits for Placement
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        writer: Callable[[], LaneWriter],
        host: Callable[[], str],
        tasks: BackgroundTasks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_writer = writer
        self._name = host
        self._clock = clock
        self._tasks = tasks
        self._is_writing = False
        self._writer: tuple[LaneWriter, str] | None = None
        self._written: bool | None = None
        self._due_s = 0.0
        self._problem = ""

    def show(self, *, has_lanes: bool) -> None:
        """Have the trait written where it has changed, or was not looked at for :data:`LOOK_S`; does not wait.

        What Placement does not take is tried again with the next call.

        :param has_lanes: an uplink has lanes
        """
        is_due = has_lanes is not self._written or self._clock() >= self._due_s
        if is_due and not self._is_writing:
            self._is_writing = True
            self._tasks.submit(self._write, has_lanes)

    def write(self, *, has_lanes: bool) -> None:
        """Compare the trait with what Placement has, and write it where it differs; waits for Placement.

        What Placement does not take is logged, once until it does.

        :param has_lanes: an uplink has lanes
        """
        problem = self._attempt(has_lanes=has_lanes)
        if problem and problem != self._problem:
            _LOG.warning("Placement does not show whether this host has lanes: %s", problem)
        self._problem = problem
        self._written = None if problem else has_lanes
        self._due_s = self._clock() + LOOK_S

    def _attempt(self, *, has_lanes: bool) -> str:
        """Write it; return what was in the way."""
        try:
            if self._writer is None:
                self._writer = self._make_writer(), self._name()
            writer, host = self._writer
            return "; ".join(writer.laned(host, has_lanes=has_lanes).problems)
        except NumaExtError as error:
            self._writer = None
            return str(error)

    def _write(self, has_lanes: bool) -> None:
        try:
            self.write(has_lanes=has_lanes)
        finally:
            self._is_writing = False
