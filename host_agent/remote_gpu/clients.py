# SPDX-License-Identifier: Apache-2.0
"""What leads clients of a lease to its server, as :mod:`.lease_process` uses it: plain TCP, or the link's gateway."""

import socket
from collections.abc import Mapping
from typing import Any, Final, Protocol

LOCAL: Final = "127.0.0.1"
"""Where the server of a lease listens."""


class Clients(Protocol):
    """Takes clients of one lease at the epoch that counts."""

    async def begin(self, listening: socket.socket, server: int, lock: int) -> None:
        """Take clients; the server serves.

        :param listening: bound socket, of the host's network
        :param server: number of the server's process
        :param lock: open file that every process of the lease holds
        :raises ServiceUnavailableError: none can be taken
        """

    async def obey(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """Let what the supervisor says count; return what counts then, among it ``epoch``."""

    async def cut(self) -> None:
        """Cut all clients, and take none."""

    async def ended(self) -> None:
        """Return when no client can be taken any more."""
