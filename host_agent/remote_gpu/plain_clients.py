# SPDX-License-Identifier: Apache-2.0
"""Clients over TCP that nothing encrypts: to try the control plane, on hosts without certificates.

A client begins with a line, ``EPOCH`` or ``EPOCH N`` for port N of a server that has several. The answer is the line
``ok``, after which all bytes are the server's, or ``refused``, then the end. The epoch is the only thing that is
checked: any program that reaches the address can guess it.
"""

import asyncio
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from host_agent.remote_gpu.clients import LOCAL
from nova_numa_ext.policy.remote_gpu.gateway import Gateway

_MOST_BYTES: Final = 65_536
_FIRST_LINE_S: Final = 10.0


class PlainClients:
    """The clients that are led to a server.

    :param ports: of the server, on 127.0.0.1
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._gateway = Gateway()
        self._connected: set[asyncio.StreamWriter] = set()

    async def begin(self, listening: socket.socket, _server: int, _lock: int) -> None:
        """See :class:`~host_agent.remote_gpu.clients.Clients`."""
        await asyncio.start_server(self._client, sock=listening)

    async def obey(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`~host_agent.remote_gpu.clients.Clients`; clients of older epochs are cut before it returns."""
        if "epoch" in asked:
            self._learn(asked["epoch"])
        return {"epoch": self._gateway.epoch}

    async def cut(self) -> None:
        """See :class:`~host_agent.remote_gpu.clients.Clients`."""
        self._learn(None)

    async def ended(self) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    def _learn(self, epoch: int | None) -> None:
        found = self._gateway.learn(epoch)
        if found != self._gateway:
            for client in self._connected:
                client.transport.abort()
        self._gateway = found

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = None
        try:
            async with asyncio.timeout(_FIRST_LINE_S):
                epoch, port = self._first(await reader.readline())
                if port and self._gateway.accepts(epoch):
                    from_server, server = await asyncio.open_connection(LOCAL, port)
            # Nothing is awaited between the question and the entry: an epoch that comes later cuts this client.
            if server is None or not self._gateway.accepts(epoch):
                writer.write(b"refused\n")
                return
            self._connected.add(writer)
            writer.write(b"ok\n")
            async with asyncio.TaskGroup() as both:
                both.create_task(_copied(reader, server))
                both.create_task(_copied(from_server, writer))
        except (OSError, TimeoutError, ValueError) as error:
            sys.stderr.write(f"client: {error}\n")
        finally:
            self._connected.discard(writer)
            for each in (writer, server):
                if each is not None:
                    each.close()

    def _first(self, line: bytes) -> tuple[int, int]:
        """Return the epoch and the server's port that a client asks for; 0 where it asks for none that there is."""
        epoch, _, number = line.strip().partition(b" ")
        number = number or b"0"
        if not (epoch.isdigit() and number.isdigit() and int(number) < len(self._ports)):
            return 0, 0
        return int(epoch), self._ports[int(number)]


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy all that comes, and the end of it; where the one is cut, so is the other."""
    try:
        while data := await reader.read(_MOST_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()
