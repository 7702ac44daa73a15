# SPDX-License-Identifier: Apache-2.0
"""Report to the dead-man switch that the agent is in control; see :mod:`host_agent.machine.privileged.dead_man_switch`.

Reports come from the loop's own thread, at the end of a round and between the servers within it: with many servers a
round may take longer than the switch waits. A loop that hangs makes no progress and sends none. One whose rounds fail
is not in control though it begins each of them: then only a whole round is reported again.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Final

from host_agent.machine.privileged.api import Privileged
from host_agent.model.round import Round
from host_agent.report.metrics import Sample
from placement_traits.errors import NumaExtError

LOG = logging.getLogger(__name__)

_EVERY: Final = 0.1  # of the time that the switch waits: reports in between are not passed on


class InControl:
    """A :class:`~host_agent.control.agent.Listener` that has metrics.

    :param privileged: the seam
    :param after_s: seconds without a report after which throttles are taken off
    """

    def __init__(
        self,
        privileged: Privileged,
        after_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._privileged = privileged
        self._after_s = after_s
        self._clock = clock
        self._sent_s, self._taken_s = -math.inf, clock()
        self._failing = False
        self._problem = ""
        self._fired: int | None = None  # not known before the first report

    def on_round(self, done: Round) -> None:
        """Take note of a whole round."""
        self._failing = False
        self._send()

    def progress(self) -> None:
        """Take note of a step within a round."""
        if not self._failing:
            self._send()

    def failed(self) -> None:
        """Take note of a round that failed as a whole."""
        self._failing = True

    def lapsed(self) -> bool:
        """Tell whether the switch waits no longer: it takes all throttles off until the next report.

        Any thread may ask.
        """
        return self._clock() - self._taken_s >= self._after_s

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics."""
        yield "numa_ext_in_control", (), float(not self.lapsed())
        if self._fired is not None:
            yield "numa_ext_dead_man_switch_fired", (), self._fired

    def _send(self) -> None:
        now = self._clock()
        if now - self._sent_s < _EVERY * self._after_s:
            return
        self._sent_s = now
        problem = ""
        try:
            self._fired = self._privileged.in_control()
            self._taken_s = now
        except (NumaExtError, OSError) as error:
            problem = str(error)
        if problem and problem != self._problem:
            LOG.warning("throttles would not be released if the agent died: %s", problem)
        self._problem = problem
