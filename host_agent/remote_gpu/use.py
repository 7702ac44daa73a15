# SPDX-License-Identifier: Apache-2.0
"""How much of its time each lease has kept its GPU busy, by what its transport counts.

A transport that can tell (:class:`~host_agent.transports.transport.UseSensor`) counts seconds since the start of its
server. What is reported is their part of a window: of a lease that is served for less than that nothing is reported,
and a server that was started again counts from its start.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 300.0
_SAMPLES: Final = 30
"""Kept of each window, so that the oldest one is hardly older than that."""


class UseMeter:
    """The part of the last window in which each lease used its GPU; for any thread.

    :param window_s: seconds
    :param clock: monotonic seconds
    :param most: a rate that is not exceeded, whatever is counted
    """

    def __init__(
        self,
        window_s: float = WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
        most: float = 1.0,
    ) -> None:
        self._window_s, self._clock, self._most = window_s, clock, most
        self._samples: dict[str, deque[tuple[float, float]]] = {}
        self._shares: dict[str, float] = {}
        self._lock = threading.Lock()

    def of_link(self) -> "UseMeter":
        """Return one of the same window and clock for what goes over a link: megabytes are counted, with no bound."""
        return UseMeter(self._window_s, self._clock, math.inf)

    def note(self, lease: str, busy_s: float | None) -> None:
        """Take note of what the transport counts now.

        :param busy_s: seconds since the start of the lease's server; None: it cannot tell
        """
        with self._lock:
            if busy_s is None:
                self._forget(lease)
                return
            now_s = self._clock()
            samples = self._samples.setdefault(lease, deque())
            if samples and busy_s < samples[-1][1]:
                self._forget(lease)
                samples = self._samples.setdefault(lease, deque())
            if not samples or now_s - samples[-1][0] >= self._window_s / _SAMPLES:
                samples.append((now_s, busy_s))
            while len(samples) > 1 and now_s - samples[1][0] >= self._window_s:
                samples.popleft()
            since_s, before_s = samples[0]
            if now_s - since_s >= self._window_s:
                self._shares[lease] = min((busy_s - before_s) / (now_s - since_s), self._most)

    def forget(self, lease: str) -> None:
        """Know nothing of a lease any more: it is not served."""
        with self._lock:
            self._forget(lease)

    def shares(self) -> dict[str, float]:
        """Return the part of each lease that was served for a whole window, in [0, 1]."""
        with self._lock:
            return dict(self._shares)

    def _forget(self, lease: str) -> None:
        self._samples.pop(lease, None)
        self._shares.pop(lease, None)
