# SPDX-License-Identifier: Apache-2.0
"""The host's ends of the virtio-serial ports in which guests report latencies: UNIX sockets, watched by epoll.

QEMU listens, one client at a time. A socket that is gone or refuses is tried again after a second, so that the end of a
guest, of libvirt or of another reader costs nothing but silence. At most ``READ_BYTES`` are taken at a time, as many of
each guest that has sent some: what one floods stays in QEMU's buffer and delays that guest, not the control of all.
"""

import errno
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

READ_BYTES: Final = 32768  # some 15 ms to understand
_LEAST_BYTES: Final = 1024
_RETRY_S: Final = 1.0


class PortSockets:
    """Connections by server.

    :param clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._epoll = select.epoll()
        self._paths: dict[str, str] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._servers: dict[int, str] = {}
        self._retry: dict[str, float] = {}
        self._problems: dict[str, str] = {}

    def serve(self, paths: Mapping[str, str]) -> None:
        """Hold exactly the connections to these sockets: UUID -> path. A new path means a new process."""
        for uuid in list(self._sockets):
            if paths.get(uuid) != self._paths.get(uuid):
                self._drop(uuid)
        self._retry = {u: at for u, at in self._retry.items() if paths.get(u) == self._paths.get(u)}
        self._problems = {uuid: text for uuid, text in self._problems.items() if uuid in paths}
        self._paths = dict(paths)

    def adopt(self, uuid: str, connection: socket.socket) -> None:
        """Take a connection that is open already (a host model's, a test's)."""
        self._drop(uuid)
        connection.setblocking(False)
        self._sockets[uuid] = connection
        self._servers[connection.fileno()] = uuid
        self._paths.setdefault(uuid, "")
        self._epoll.register(connection.fileno(), select.EPOLLIN)

    def receive(self, timeout_s: float) -> list[tuple[str, bytes]]:
        """Wait for reports and return what has come: (UUID, bytes).

        :param timeout_s: longest wait, seconds
        """
        self._connect()
        found = []
        ready = self._epoll.poll(timeout_s)
        most = max(_LEAST_BYTES, READ_BYTES // max(1, len(ready)))
        for descriptor, _events in ready:
            uuid = self._servers.get(descriptor)
            if uuid is None:
                continue
            data = self._read(uuid, most)
            if data:
                found.append((uuid, data))
        return found

    @property
    def problems(self) -> Mapping[str, str]:
        """UUID -> why its socket cannot be opened now."""
        return dict(self._problems)

    @property
    def connected(self) -> frozenset[str]:
        """Servers whose socket is open."""
        return frozenset(self._sockets)

    def close(self) -> None:
        """Close all connections."""
        for uuid in list(self._sockets):
            self._drop(uuid)
        self._epoll.close()

    def _connect(self) -> None:
        now = self._clock()
        for uuid, path in self._paths.items():
            if not path or uuid in self._sockets or now < self._retry.get(uuid, now):
                continue
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.setblocking(False)
                connection.connect(path)
            except OSError as error:
                connection.close()
                self._retry[uuid] = now + _RETRY_S
                self._problems[uuid] = f"{path}: {error.strerror or error}"
                continue
            self._problems.pop(uuid, None)
            self.adopt(uuid, connection)

    def _read(self, uuid: str, most: int) -> bytes:
        try:
            data = self._sockets[uuid].recv(most)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return b""
            data = b""
        if not data:  # the guest has ended, or QEMU prefers another reader
            self._drop(uuid)
            self._retry[uuid] = self._clock() + _RETRY_S
        return data

    def _drop(self, uuid: str) -> None:
        connection = self._sockets.pop(uuid, None)
        if connection is not None:
            descriptor = connection.fileno()
            self._servers.pop(descriptor, None)
            self._epoll.unregister(descriptor)
            connection.close()
