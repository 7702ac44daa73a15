# SPDX-License-Identifier: Apache-2.0
"""Ports of loopback that a test gives to a process which it starts later."""

import socket
from random import SystemRandom

DRAWN = SystemRandom()
LOWEST, BEYOND = 10_000, 21_000
"""Below the lab's, and far below those that the kernel gives to connections: it may give such a port away meanwhile."""


def free_port() -> int:
    """A TCP port of loopback that nobody listens on now."""
    while True:
        port = DRAWN.randrange(LOWEST, BEYOND)
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
