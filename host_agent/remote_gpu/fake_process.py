# SPDX-License-Identifier: Apache-2.0
"""The transport ``fake``: a lease's server process without a GPU, which sends back what a client sends.

Run as ``python -m host_agent.remote_gpu.fake_process CONTROL ADDRESS``. By the Unix socket CONTROL it learns which
epoch counts, one JSON object a line, each answered with ``{"epoch": E, "address": A}``::

    {"epoch": 3}    serve epoch 3; clients of another one are cut before the answer
    {}              what is served?
    {"end": true}   cut all, answer, and end

A client connects to the address by TCP and begins with a line, its epoch; the answer is the line ``ok``, then an echo,
or ``refused``, then the end. Nothing is encrypted and the epoch is the only thing that is checked: for tests of the
control plane.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from nova_numa_ext.policy.remote_gpu.gateway import Gateway

_MOST_BYTES: Final = 65_536
_FIRST_LINE_S: Final = 10.0


class FakeServer:
    """The server process of one lease."""

    def __init__(self) -> None:
        self._gateway = Gateway()
        self._clients: set[asyncio.StreamWriter] = set()
        self._address = ""
        self._ends = asyncio.Event()

    async def run(self, control: str, host: str) -> None:
        """Serve until the end is asked for.

        :param control: path of the Unix socket
        :param host: address on which clients are served
        """
        served = await asyncio.start_server(self._client, host, 0)
        name, port = served.sockets[0].getsockname()[:2]
        self._address = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        # Renamed when it listens: a file of that name is one to connect to.
        listening = f"{control}.new"
        await asyncio.start_unix_server(self._asked, listening)
        os.rename(listening, control)
        await self._ends.wait()

    async def _asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the host's supervisor."""
        try:
            while line := await reader.readline():
                asked = json.loads(line)
                if asked.get("end"):
                    self._learn(None)
                elif "epoch" in asked:
                    self._learn(asked["epoch"])
                writer.write(json.dumps(self._state()).encode() + b"\n")
                await writer.drain()
                if asked.get("end"):
                    self._ends.set()
        except (ConnectionError, ValueError, AttributeError, TypeError) as error:
            sys.stderr.write(f"control: {error}\n")
        finally:
            writer.close()

    def _state(self) -> dict[str, Any]:
        return {"epoch": self._gateway.epoch, "address": self._address}

    def _learn(self, epoch: int | None) -> None:
        found = self._gateway.learn(epoch)
        if found != self._gateway:
            for client in self._clients:
                client.transport.abort()
        self._gateway = found

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_FIRST_LINE_S):
                line = await reader.readline()
            # Nothing is awaited between the question and the entry: an epoch that comes later cuts this client.
            if not (line.strip().isdigit() and self._gateway.accepts(int(line))):
                writer.write(b"refused\n")
                return
            self._clients.add(writer)
            writer.write(b"ok\n")
            while data := await reader.read(_MOST_BYTES):
                writer.write(data)
                await writer.drain()
        except (OSError, TimeoutError, ValueError) as error:
            sys.stderr.write(f"client: {error}\n")
        finally:
            self._clients.discard(writer)
            writer.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one lease; return the exit status."""
    control, host = sys.argv[1:] if arguments is None else arguments
    asyncio.run(FakeServer().run(control, host))
    return 0


if __name__ == "__main__":
    sys.exit(main())
