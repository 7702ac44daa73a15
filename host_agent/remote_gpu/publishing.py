# SPDX-License-Identifier: Apache-2.0
"""What this host lends, in Placement: compared now and then, in a thread of its own.

Leases and reports wait for none of it: a host whose Placement hangs serves its leases and is not taken for silent.
"""

import logging
import threading
from typing import Final

from placement_traits.errors import NumaExtError
from placement_traits.pool_reporter import PoolReporter
from placement_traits.pool_tree import LentPool

_LOG: Final = logging.getLogger(__name__)
_FIRST_WAIT_S: Final = 5.0


class Publishing:
    """Keeps Placement equal to what is lent.

    :param pool: what this host lends; without GPUs, nothing
    :param interval_s: seconds from one comparison to the next
    """

    def __init__(self, pool: LentPool, reporter: PoolReporter, interval_s: float) -> None:
        self._pool = pool
        self._reporter = reporter
        self._interval_s = interval_s
        self._failures = 0

    def turn(self) -> float:
        """Make Placement equal to what is lent; return how long to wait until the next turn, seconds.

        A host that lends nothing takes its pool out. After a failure the pause is short, then twice as long each time.
        """
        try:
            if self._pool.gpus:
                self._reporter.sync(self._pool)
            else:
                self._reporter.remove(self._pool.host)
        except NumaExtError as error:
            wait_s = min(self._interval_s, _FIRST_WAIT_S * 2.0 ** min(self._failures, 10))
            self._failures += 1
            _LOG.warning(
                "what this host lends is not published, and will be tried again in %g s: %s",
                wait_s,
                error,
            )
            return wait_s
        self._failures = 0
        return self._interval_s

    def run(self, stop: threading.Event) -> None:
        """Take turns until the end is asked for."""
        while not stop.wait(self.turn()):
            pass

    def start(self, stop: threading.Event) -> None:
        """Take turns in a thread that holds up no end of this process."""
        threading.Thread(target=self.run, args=(stop,), name="publishing", daemon=True).start()
