# SPDX-License-Identifier: Apache-2.0
"""Which hosts have lanes, for flavors that require them: a trait of the host's root in Placement.

It is there while an uplink of the host has lanes, and goes when these are withdrawn or the unit ends. The agent leaves
it alone. Placement that does not answer is asked again in the next turn.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from placement_traits.errors import NumaExtError

_LOG: Final = logging.getLogger(__name__)


class LaneWriter(Protocol):
    """What writes the trait: :class:`placement_traits.reporter.Reporter`."""

    def laned(self, host: str, *, has_lanes: bool) -> Any:
        """Let a host's root have the trait of lanes, or not have it."""


class LaneTrait:
    """Keeps the trait.

    :param writer: returns what writes it; called when there is something to write
    :param host: returns the name of nova's root provider
    """

    def __init__(self, writer: Callable[[], LaneWriter], host: Callable[[], str]) -> None:
        self._writer = writer
        self._host = host
        self._written: bool | None = None
        self._problem = ""

    def show(self, *, has_lanes: bool) -> None:
        """Write what has changed; what Placement does not take is tried again with the next call.

        :param has_lanes: an uplink has lanes
        """
        if has_lanes is self._written:
            return
        try:
            self._writer().laned(self._host(), has_lanes=has_lanes)
        except NumaExtError as error:
            if str(error) != self._problem:
                _LOG.warning("Placement does not show whether this host has lanes: %s", error)
            self._problem = str(error)
            return
        self._problem = ""
        self._written = has_lanes
