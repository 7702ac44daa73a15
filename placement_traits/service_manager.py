# SPDX-License-Identifier: Apache-2.0
"""What a service of ours reports to the service manager that has started it: systemd, or the agent's supervisor.

The protocol is sd_notify's (:mod:`placement_traits.notify`). ``READY=1`` comes after the first finished round,
``WATCHDOG=1`` after each: a round that hangs is followed by none, and the service manager ends a service that finishes
no round within ``WatchdogSec``. ``STOPPING=1`` comes when the service shuts down, and nothing after it, though a round
may still end. What the agent applies between two rounds, up to fifty times a second, counts as a round, and is reported
once a second.
"""

import logging
import threading
import time
from collections.abc import Callable, MutableMapping
from math import inf
from typing import Final

from placement_traits import notify

LOG = logging.getLogger(__name__)

_EVERY_S: Final = 1.0


class ServiceManager:
    """Where notifications go; with the agent one of its listeners.

    :param address: of its socket; "" when there is no service manager
    :param clock: monotonic seconds
    """

    def __init__(self, address: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sender = notify.Sender(address) if address else None
        self._clock = clock
        self._reported_s = -inf
        self._problem = ""
        self._stopping = False
        self._lock = threading.Lock()

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> "ServiceManager":
        """Return the one that the environment names, and take it out: what we start must not report for it."""
        return cls(environment.pop(notify.VARIABLE, ""))

    def on_round(self, done: object = None) -> None:
        """Take note of a finished round."""
        with self._lock:
            now, first = self._clock(), self._reported_s == -inf
            if now - self._reported_s < _EVERY_S:
                return
            self._reported_s = now
            self._send(*((notify.READY,) if first else ()), notify.WATCHDOG)

    def stopping(self) -> None:
        """Report that the service shuts down; another thread may be in the middle of a round."""
        with self._lock:
            self._send(notify.STOPPING)
            self._stopping = True

    def _send(self, *states: str) -> None:
        if self._sender is None or self._stopping:
            return
        problem = ""
        try:
            self._sender.send(*states)
        except OSError as error:
            problem = error.strerror or str(error)
        if problem and problem != self._problem:
            LOG.warning(
                "the service manager cannot be notified and may end this service: %s", problem
            )
        self._problem = problem
