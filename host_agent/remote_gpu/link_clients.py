# SPDX-License-Identifier: Apache-2.0
"""Clients over the link: the gateway of a lease (``numa-ext-rgpu gateway``), a process beside the lease's server.

It takes doormen by TLS 1.3, by the operator's certificates. The files of these are not seen in the lease's namespaces:
the server, of the same user, could read the host's key. The supervisor sends what they hold, and this process passes it
on; the gateway keeps its memory from the server. That holds for one that was there before the first client, as the
server might watch the start of a second one: it is not started again, and the lease's process ends with it.
"""

import asyncio
import json
import socket
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from host_agent.remote_gpu.link_files import digest
from host_agent.util.parent import die_with_parent
from placement_traits.errors import ServiceUnavailableError

_BACKLOG: Final = 128
_STARTS_S: Final = 5.0
_REPORTED: Final = ("epoch", "bytes", "trouble", "session")
_MOST_LINE_BYTES: Final = 256 << 20  # a session that is handed over: 32 streams, 2 MiB each way


class LinkClients:
    """The gateway of one lease.

    :param program: ``numa-ext-rgpu``
    :param lease: its uuid
    :param ports: of the server, on 127.0.0.1
    :param holder: socket of what holds the server's connections while the lease moves; '': it does not
    """

    def __init__(self, program: Path, lease: str, ports: Sequence[int], holder: str = "") -> None:
        self._program, self._lease, self._ports = program, lease, ports
        self._holder = ("-holder", holder) if holder else ()
        self._turn = asyncio.Lock()
        self._gateway: Process | None = None
        self._counts = ""  # digest of the certificates that do

    async def begin(self, listening: socket.socket, server: int, lock: int) -> None:
        """See :class:`~host_agent.remote_gpu.clients.Clients`; until it has certificates it takes no doorman."""
        listening.listen(_BACKLOG)
        words = ("-handed", "-lease", self._lease, "-listen", f"fd:{listening.fileno()}")
        ports = ",".join(map(str, self._ports))
        self._gateway = await asyncio.create_subprocess_exec(
            *(str(self._program), "gateway", *words, *self._holder),
            *("-ports", ports, "-server", str(server)),
            env={},
            limit=_MOST_LINE_BYTES,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(listening.fileno(), lock),
            preexec_fn=die_with_parent,  # this process has one thread
        )
        try:
            async with asyncio.timeout(_STARTS_S):
                await self._asked({})
        except (OSError, TimeoutError) as error:
            self._gateway.kill()
            raise ServiceUnavailableError("The gateway does not start.") from error

    async def obey(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`~host_agent.remote_gpu.clients.Clients`; of who is not meant no byte counts when it returns.

        :param asked: ``epoch``, ``client`` and ``mbps``, or ``pki``, ``freeze`` or ``thaw``, or neither
        :returns: ``epoch``; ``bytes`` that came from the server and went to it; ``pki``, digest of the certificates
            that count; ``trouble``, why others do not; ``session``, what another gateway needs after ``freeze``
        """
        answer = await self._asked(asked)
        if "pki" in asked and "trouble" not in answer:
            self._counts = digest(asked["pki"])
        reported = {name: answer[name] for name in _REPORTED if name in answer}
        return reported | {"pki": self._counts}

    async def cut(self) -> None:
        """See :class:`~host_agent.remote_gpu.clients.Clients`: the kernel ends its connections."""
        if self._gateway is not None:
            with suppress(ProcessLookupError):
                self._gateway.kill()
            await self._gateway.wait()

    async def ended(self) -> None:
        """See :class:`~host_agent.remote_gpu.clients.Clients`."""
        if self._gateway is not None:
            await self._gateway.wait()

    async def _asked(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the gateway answers.

        :raises ConnectionError: it has ended
        """
        process = self._gateway
        if process is None or process.stdin is None or process.stdout is None:
            raise ConnectionResetError("the gateway does not run")
        async with self._turn:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        if not line:
            raise ConnectionResetError("the gateway has ended")
        found: Mapping[str, Any] = json.loads(line)
        return found
