# SPDX-License-Identifier: Apache-2.0
"""Cables that can be pulled out, between two processes."""

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

_PIECE_BYTES: Final = 1 << 18


class Cable:
    """A network cable: while it is out, bytes of both ways wait, and so does who connects; nobody hears of an end.

    :ivar carried: bytes
    """

    def __init__(self) -> None:
        self._in, self._open = threading.Event(), ExitStack()
        self._ways: dict[str, str] = {}
        self.carried = 0
        self._in.set()

    def pull(self) -> None:
        """Pull it out."""
        self._in.clear()

    def plug(self) -> None:
        """Plug it in."""
        self._in.set()

    def to(self, address: str) -> str:
        """Return the address at which ADDRESS:PORT is reached over it."""
        if address not in self._ways:
            listening = self._open.enter_context(socket.create_server(("127.0.0.1", 0)))
            self._begin(self._serve, listening, address)
            self._ways[address] = f"127.0.0.1:{listening.getsockname()[1]}"
        return self._ways[address]

    def close(self) -> None:
        """Let nothing more come by it."""
        self._in.set()
        self._open.close()

    @staticmethod
    def _begin(what: Callable[..., None], *given: object) -> None:
        threading.Thread(target=what, args=given, daemon=True).start()

    def _serve(self, listening: socket.socket, address: str) -> None:
        host, _, port = address.rpartition(":")
        with suppress(OSError):  # it is closed
            while True:
                near = listening.accept()[0]
                self._begin(self._join, near, (host, int(port)))

    def _join(self, near: socket.socket, address: tuple[str, int]) -> None:
        self._in.wait()
        try:
            far = socket.create_connection(address)
        except OSError:
            near.close()
            return
        self._begin(self._carry, near, far)
        self._begin(self._carry, far, near)

    def _carry(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE_BYTES):
                self._in.wait()
                to.sendall(piece)
                self.carried += len(piece)
        self._in.wait()
        for each in (source, to):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
