# SPDX-License-Identifier: Apache-2.0
"""The server of transport ``fake``: sends back what it gets. Run as a file, ``echo.py PORT``; it starts in no time.

It imports the standard library only, and little of that: a host may start one for each of hundreds of leases.
"""

import socket
import sys
import threading
from contextlib import suppress
from typing import Final

_MOST_BYTES: Final = 65_536


def main() -> None:
    """Serve until the process is ended."""
    with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listening:
        while True:
            client, _address = listening.accept()
            threading.Thread(target=_echo, args=(client,), daemon=True).start()


def _echo(client: socket.socket) -> None:
    with client, suppress(ConnectionError):
        while data := client.recv(_MOST_BYTES):
            client.sendall(data)


if __name__ == "__main__":
    main()
