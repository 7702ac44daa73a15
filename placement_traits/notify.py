# SPDX-License-Identifier: Apache-2.0
"""sd_notify's protocol, both ends: one datagram a notification, to the socket that ``NOTIFY_SOCKET`` names.

It is some lines here because no library fits: those that are maintained bind libsystemd in C, or bring oslo.service
with all that it needs.
"""

import socket
import struct
from contextlib import suppress
from typing import Final

VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = "READY=1"
WATCHDOG: Final = "WATCHDOG=1"
STOPPING: Final = "STOPPING=1"

_MOST_BYTES: Final = 4096
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Sender:
    """The service's end.

    :param address: a path, or a name that begins with ``@``
    """

    def __init__(self, address: str) -> None:
        self._address = _spelt(address)
        self._socket: socket.socket | None = None

    def send(self, *states: str) -> None:
        """Send a notification; never waits.

        :raises OSError: no receiver is there
        """
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        with suppress(BlockingIOError):  # a receiver with a full queue has enough to read
            self._socket.sendto("\n".join(states).encode(), self._address)


class Receiver:
    """The service manager's end; the kernel tells which process sent a notification.

    :ivar address: for ``NOTIFY_SOCKET``
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("")  # the kernel picks a name in the abstract namespace
        self._socket.setblocking(False)
        self.address = "@" + self._socket.getsockname()[1:].decode()

    def fileno(self) -> int:
        """Return the descriptor that is readable when a notification has come."""
        return self._socket.fileno()

    def received(self, pid: int) -> list[str]:
        """Return the states that a process has sent since the last call; those of others are dropped."""
        found: list[str] = []
        while True:
            try:
                data, extra, _flags, _address = self._socket.recvmsg(
                    _MOST_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except BlockingIOError:
                return found
            senders = [
                _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0]
                for level, kind, content in extra
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
            ]
            if senders == [pid]:
                found += data.decode(errors="replace").splitlines()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _spelt(address: str) -> str:
    return f"\0{address[1:]}" if address.startswith("@") else address
