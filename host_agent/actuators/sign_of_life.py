# SPDX-License-Identifier: Apache-2.0
"""Tell the dead man's switch, round by round, that the agent is in control; see :mod:`host_agent.privileged.guard`."""

import logging

from host_agent.loop import Round
from host_agent.privileged.seam import Privileged
from placement_traits.errors import NumaExtError

LOG = logging.getLogger(__name__)


class SignOfLife:
    """A :class:`~host_agent.loop.Listener`.

    :param privileged: the seam
    :param after_s: seconds without a round after which throttles are taken off
    """

    def __init__(self, privileged: Privileged, after_s: float) -> None:
        self._privileged = privileged
        self._after_s = after_s
        self._problem = ""

    def heard(self, done: Round) -> None:
        """Give a sign of life."""
        problem = ""
        try:
            self._privileged.alive(self._after_s)
        except (NumaExtError, OSError) as error:
            problem = str(error)
        if problem and problem != self._problem:
            LOG.warning("nobody would release throttles if the agent died: %s", problem)
        self._problem = problem
