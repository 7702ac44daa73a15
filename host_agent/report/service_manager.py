# SPDX-License-Identifier: Apache-2.0
"""What the agent reports to the service manager that has started it: systemd, or our supervisor without one.

The protocol is sd_notify's: one datagram to the socket that ``NOTIFY_SOCKET`` names. ``READY=1`` comes after the first
finished round, ``WATCHDOG=1`` after each: a round that hangs or fails is followed by none, and the service manager ends
an agent that finishes no round within ``WatchdogSec``. ``STOPPING=1`` comes when the agent shuts down.

The protocol is a dozen lines here because no library fits: those that are maintained bind libsystemd in C, or bring
oslo.service with all that it needs.
"""

import logging
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

from host_agent.model.round import Round

LOG = logging.getLogger(__name__)

VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = "READY=1"
WATCHDOG: Final = "WATCHDOG=1"
STOPPING: Final = "STOPPING=1"


class ServiceManager:
    """Where notifications go; a :class:`~host_agent.control.agent.Listener`.

    :param address: of the socket: a path, or a name that begins with ``@``; "" when no service manager listens
    """

    def __init__(self, address: str = "") -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        self._ready = False
        self._problem = ""

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> "ServiceManager":
        """Return the one that the environment names, and take it out: what the agent starts must not report for it."""
        return cls(environment.pop(VARIABLE, ""))

    def on_round(self, done: Round) -> None:
        """Take note of a finished round."""
        self._send(WATCHDOG if self._ready else f"{READY}\n{WATCHDOG}")
        self._ready = True

    def stopping(self) -> None:
        """Report that the agent shuts down."""
        self._send(STOPPING)

    def _send(self, state: str) -> None:
        if not self._address:
            return
        problem = ""
        try:
            if self._socket is None:
                self._socket = socket.socket(
                    socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
                )
                self._socket.setblocking(False)
            with suppress(BlockingIOError):  # a receiver with a full queue has enough to read
                self._socket.sendto(state.encode(), self._address)
        except OSError as error:
            problem = error.strerror or str(error)
        if problem and problem != self._problem:
            LOG.warning("the service manager cannot be notified and may end the agent: %s", problem)
        self._problem = problem
