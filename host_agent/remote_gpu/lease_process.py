# SPDX-License-Identifier: Apache-2.0
"""The process of one lease: starts the server of its transport, and leads clients of the right epoch to it::

    doorman ── TLS 1.3 ──> gateway of the link ── 127.0.0.1:PORT ──> server of the transport
                           (:mod:`.link_clients`)                    (fake, or what a file declares)
    client ── TCP ──> this process (:mod:`.plain_clients`) ─────────> the same

Started by :mod:`.processes`; all of it in namespaces of its own (:mod:`.isolation`) where it is given a control group.
The sockets are made before, in the host's network, and taken along. Where it is given the link's program, a gateway
takes the clients, else it does itself, unencrypted. By the Unix socket CONTROL, on which it listens once its server
serves, it learns which epoch counts, one JSON object a line, each answered with ``{"epoch": E, "address": A}``, and
with ``"busy_s"`` and ``"held_bytes"`` where its transport can tell
(:class:`~host_agent.transports.transport.UseSensor`, :class:`~host_agent.transports.transport.MemorySensor`)::

    {"epoch": 3, "client": HOST, "mbps": N}   serve epoch 3 to that host; clients of others are cut before the answer
    {"pki": {"ca": PEM, ...}}                 let these certificates count; the answer has the digest of those that
                                              do as "pki", and where these cannot count, why, as "trouble"
    {}                                        what is served?
    {"freeze": true}                          cut all; the answer has what is known of the server beside its memory
    {"thaw": true}                            let the server, and its clients' connections, go on
    {"spaces": true}                          the answer comes with open files of the namespaces
    {"end": true}                             cut all, end the server, answer, and end

With CRIU (``--criu``) the server has a parent that holds its connections while it moves, and writes to no log of the
host: it can be dumped then (:mod:`.checkpoint`). With ``--images`` it is made of a dump, once a line by standard input
says that it is there.

Plain TCP knows neither hosts nor certificates. It ends with its server or its gateway, and they with it, whatever the
one or the other dies of.
"""

import argparse
import array
import asyncio
import fcntl
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from host_agent.remote_gpu import checkpoint, groups, isolation
from host_agent.remote_gpu.clients import LOCAL, Clients
from host_agent.remote_gpu.link_clients import LinkClients
from host_agent.remote_gpu.plain_clients import PlainClients
from host_agent.transports.registry import Transports
from host_agent.transports.transport import (
    GpuServer,
    MemorySensor,
    RemoteGpuTransport,
    ServerCommand,
    UseSensor,
)
from host_agent.util.parent import die_with_parent
from placement_traits.errors import NumaExtError, ServiceUnavailableError

STARTS_S: Final = 10.0
"""How long a server may take until it serves, seconds."""

IMAGES_ARE_THERE: Final = b"\n"
"""On its standard input, to a process that waits for images."""

_LOOK_S: Final = 0.02
_TRIES: Final = 50
_MOST_LINE_BYTES: Final = 64 << 20  # lists of revoked certificates can be long


class LeaseServer:
    """The server of one lease.

    :param ports: of the server, on 127.0.0.1
    :param clients: leads them to it
    :param apart: it is in a control group of its own, by which its end is seen
    :param transport: whose server it is, which may tell how that uses its GPU
    :param holder: command line before the server's own, of the parent that it has where it can move
    """

    def __init__(
        self,
        ports: Sequence[int],
        clients: Clients,
        *,
        apart: bool,
        transport: RemoteGpuTransport,
        holder: Sequence[str] = (),
    ) -> None:
        self._ports = ports
        self._clients = clients
        self._apart = apart
        self._transport = transport
        self._holder = tuple(holder)
        self._tree = self._pid = 0
        self._frozen: checkpoint.Frozen | None = None
        self._address = ""
        self._asked_to_end = asyncio.Event()
        self._has_ended = asyncio.Event()

    async def run(self, command: ServerCommand, lock: int, sockets: "Sockets") -> int:
        """Start the server and serve until the end is asked for, or server or gateway end; return the exit status.

        :param command: of the server
        :param lock: open file with a lock; one that is not apart, and all that it starts, hold it, too: by it their end
            is seen, and a server that is apart would have a file of the host to write to
        :param sockets: on which it is to listen
        :raises ServiceUnavailableError: the server, or what takes clients, does not start
        """
        # A session of its own, so that all its processes can be killed; this process has one thread.
        server = await asyncio.create_subprocess_exec(
            *(*self._holder, *command.argv),
            env=dict(command.environment),
            cwd=command.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            # A file of the host cannot be dumped.
            stderr=asyncio.subprocess.DEVNULL if self._holder else None,
            pass_fds=() if self._apart else (lock,),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._tree = self._pid = server.pid
        ends = asyncio.create_task(server.wait())

        async def begin() -> None:
            await self._served(command, ends)
            if self._holder:
                self._pid = await _held()
            await self._clients.begin(sockets.clients, self._pid, lock)

        return await self._until_the_end(ends, begin, sockets)

    async def run_restored(self, frozen: checkpoint.Frozen, lock: int, sockets: "Sockets") -> int:
        """As :meth:`run`, of a server that was made of a dump, as a child of this process."""
        self._tree, self._pid = frozen.tree, frozen.server
        ends = asyncio.create_task(_child_ends(frozen.tree))

        async def begin() -> None:
            await self._clients.begin(sockets.clients, self._pid, lock)
            await self._clients.obey({"thaw": frozen.session})

        return await self._until_the_end(ends, begin, sockets)

    async def _until_the_end(
        self,
        ends: "asyncio.Task[int]",
        begin: Callable[[], Awaitable[None]],
        sockets: "Sockets",
    ) -> int:
        asked = asyncio.create_task(self._asked_to_end.wait())
        closed: asyncio.Task[None] | None = None
        try:
            await begin()
            closed = asyncio.create_task(self._clients.ended())
            await self._listen(sockets)
            await asyncio.wait({ends, asked, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                who = f"server has ended with status {ends.result()}" if ends.done() else ""
                sys.stderr.write(f"the {who or 'gateway has ended'}\n")
            return 0 if asked.done() else 1
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._tree, signal.SIGKILL)
            await ends
            await self._clients.cut()
            self._has_ended.set()
            for each in (asked, closed):
                if each is not None:
                    each.cancel()
            # The answer to the request for the end has been waiting for that.
            await asyncio.sleep(_LOOK_S)

    async def _served(self, command: ServerCommand, ends: "asyncio.Task[int]") -> None:
        until_s = time.monotonic() + STARTS_S
        while not await self._serves(command, until_s - time.monotonic()):
            if ends.done() or time.monotonic() > until_s:
                why = "has ended" if ends.done() else f"does not serve after {STARTS_S:g} s"
                raise ServiceUnavailableError(f"The server {command.argv[0]} {why}.")
            await asyncio.sleep(_LOOK_S)
        if ends.done():
            raise ServiceUnavailableError(f"The server {command.argv[0]} has ended.")

    async def _serves(self, command: ServerCommand, limit_s: float) -> bool:
        if command.probe:
            return await _succeeds(command, limit_s)
        for port in self._ports:
            try:
                _reader, writer = await asyncio.open_connection(LOCAL, port)
            except OSError:
                return False
            writer.close()
        return True

    async def _listen(self, sockets: "Sockets") -> None:
        name, port = sockets.clients.getsockname()[:2]
        self._address = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        await asyncio.start_unix_server(self._asked, sock=sockets.control, limit=_MOST_LINE_BYTES)

    async def _asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the host's supervisor."""
        try:
            while line := await reader.readline():
                asked = json.loads(line)
                if asked.get("spaces"):
                    _send_spaces(writer.get_extra_info("socket").fileno())
                    continue
                answer = await self._obeyed(asked)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError, AttributeError, TypeError) as error:
            sys.stderr.write(f"control: {error}\n")
        finally:
            writer.close()

    async def _obeyed(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if asked.get("end"):
            self._asked_to_end.set()  # before its gateway ends: that is no fault then
            await self._clients.cut()
            await self._has_ended.wait()
            return {"address": self._address}
        if asked.get("freeze"):
            return await self._freeze()
        if asked.get("thaw"):
            await self._thaw()
            asked = {}
        answer = await self._clients.obey(asked)
        stopped = {} if self._frozen is None else {"frozen": True}
        return {**answer, **self._used(), **stopped, "address": self._address}

    def _used(self) -> dict[str, float]:
        """Return what the server's transport can tell now of its use of the GPU."""
        found: dict[str, float | None] = {}
        if isinstance(self._transport, UseSensor):
            found["busy_s"] = self._transport.busy_s(self._pid)
        if isinstance(self._transport, MemorySensor):
            found["held_bytes"] = self._transport.held_bytes(self._pid)
        return {name: value for name, value in found.items() if value is not None}

    async def _freeze(self) -> dict[str, Any]:
        """Cut all clients; return :class:`.checkpoint.Frozen`, and nothing of it where it cannot move."""
        if not self._holder:
            return {"address": self._address}
        if self._frozen is None:
            session = (await self._clients.obey({"freeze": True}))["session"]
            self._frozen = checkpoint.Frozen(self._tree, self._pid, tuple(self._ports), session)
        return {"address": self._address, "moves": asdict(self._frozen)}

    async def _thaw(self) -> None:
        if self._frozen is not None:
            await self._clients.obey({"thaw": self._frozen.session})
            self._frozen = None


async def _held() -> int:
    """Return the number of the server that the holder has started."""
    reader, writer = await asyncio.open_unix_connection(checkpoint.HOLDER.replace("@", "\0"))
    try:
        writer.write(b"s")
        await writer.drain()
        return int.from_bytes(await reader.readexactly(4), "little")
    finally:
        writer.close()


async def _child_ends(process: int) -> int:
    """Return the exit status of a child that was not started by this process."""
    pidfd = os.pidfd_open(process)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
    _process, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def _send_spaces(connection: int) -> None:
    """Send open files of this process's namespaces, as of :data:`.checkpoint.SPACES`."""
    found = [os.open(f"/proc/self/ns/{each}", os.O_RDONLY) for each in checkpoint.SPACES]
    try:
        with socket.socket(fileno=os.dup(connection)) as own:
            own.sendmsg([b"\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", found))])
    finally:
        for each in found:
            os.close(each)


async def _succeeds(command: ServerCommand, limit_s: float) -> bool:
    """Return whether the command that sees whether the server serves ends with 0 in time."""
    probe = await asyncio.create_subprocess_exec(
        *command.probe,
        env=dict(command.environment),
        cwd=command.folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )
    try:
        async with asyncio.timeout(max(limit_s, 0)):
            return await probe.wait() == 0
    except TimeoutError:
        probe.kill()
        await probe.wait()
        return False


class Ports(AbstractContextManager[Sequence[int]]):
    """Consecutive ports of 127.0.0.1 that no process listens on, and that no other lease is given meanwhile.

    The kernel chooses them, and an abstract socket for each, which lasts as long as this process, keeps them from other
    leases: two servers that are given one port would serve each other's clients.

    :param count: how many
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept = ExitStack()

    def __enter__(self) -> Sequence[int]:
        """Return the ports.

        :raises ServiceUnavailableError: none are found
        """
        for _try in range(_TRIES):
            with ExitStack() as kept, suppress(OSError, OverflowError):
                found = self._found(kept)
                self._kept = kept.pop_all()
                return found
        raise ServiceUnavailableError(f"No {self._count} consecutive ports of {LOCAL} are free.")

    def __exit__(self, *_error: object) -> None:
        """Let others have them."""
        self._kept.close()

    def _found(self, kept: ExitStack) -> Sequence[int]:
        with ExitStack() as bound:
            first = bound.enter_context(socket.socket())
            first.bind((LOCAL, 0))
            port = first.getsockname()[1]
            for other in range(port + 1, port + self._count):
                bound.enter_context(socket.socket()).bind((LOCAL, other))
            found = range(port, port + self._count)
            for each in found:
                name = f"\0numa-ext-lease-port-{each}"
                kept.enter_context(socket.socket(socket.AF_UNIX)).bind(name)
            return found


@dataclass(frozen=True, slots=True)
class Sockets:
    """What a process listens on when its server serves; until then connections are refused.

    :param control: for the host's supervisor
    :param clients: for clients
    """

    control: socket.socket
    clients: socket.socket

    @classmethod
    def bound(cls, control: Path, host: str) -> "Sockets":
        """Return sockets of the network that this process is in.

        :param control: name of the Unix socket; a file that is there is of a process that has gone
        :param host: address of the other, whose port the kernel chooses
        """
        control.unlink(missing_ok=True)
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        own.bind(str(control))
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        clients = socket.socket(family, kind)
        clients.bind(address)
        return cls(own, clients)


def _alone(file: Path) -> int:
    """Return a file that this process has locked; it and all that inherits it hold the lock.

    It is no folder: by one that is open the server would reach all of the host.

    :raises ServiceUnavailableError: another process runs for the lease, or the lease has ended
    """
    found = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(found), file.stat()):
            return found
    except (BlockingIOError, FileNotFoundError):
        pass
    raise ServiceUnavailableError("Another process runs for it, or it has ended.")


def _bound(tasks: int) -> None:
    """Bound what this process and all that it starts can fork, in a user namespace of its own.

    The kernel counts tasks by user namespace (Linux 5.14, ``RLIMIT_NPROC``), so leases of one user do not count for
    each other.

    :param tasks: processes and threads of the lease, together
    """
    resource.setrlimit(resource.RLIMIT_NPROC, (tasks, tasks))


def _serve(given: argparse.Namespace) -> int:
    if given.group is not None:
        groups.enter(given.group)
    transport = Transports(given.transports).named(given.transport)
    if given.enforced and not transport.capabilities().enforced:
        raise ServiceUnavailableError(
            f"Transport {transport.name} keeps no lease to its memory, as it did when this host began to lend; what is "
            "missing has to be installed again, or numa-host-agent-leases restarted."
        )
    # One that a supervisor started before it died may still be on its way, or a server of one that was killed.
    lock = _alone(given.control.with_suffix(".lock"))
    folder = given.control.with_suffix(".files")
    folder.mkdir(mode=0o700, exist_ok=True)
    sockets = Sockets.bound(given.control, given.host)
    frozen: checkpoint.Frozen | None = None
    if given.images is not None:
        _await_images()
        frozen = checkpoint.Frozen.read(Path(f"/proc/self/fd/{given.images}"))
    if given.group is not None:
        paths = (*transport.paths(), *filter(None, (given.link, given.criu)), *given.around)
        visible = isolation.Visible(folder, paths, tuple(given.device), given.folder_mb)
        isolation.enter(visible, partial(_restored, given, frozen))
        folder = isolation.FOLDER
        _bound(given.tasks)
    capabilities = transport.capabilities()
    moves = given.criu is not None and given.link is not None and given.group is not None
    with Ports(capabilities.ports) as found:
        ports = found if frozen is None else frozen.ports
        asked = GpuServer(given.control.stem, given.gpu, given.memory_mb, ports[0], folder)
        clients: Clients = PlainClients(ports)
        if given.link is not None:
            holder = checkpoint.HOLDER if moves else ""
            clients = LinkClients(given.link, given.control.stem, ports, holder)
        hold = (str(given.link), "hold", "-socket", checkpoint.HOLDER, "--") if moves else ()
        apart = given.group is not None
        server = LeaseServer(ports, clients, apart=apart, transport=transport, holder=hold)
        if frozen is not None:
            return asyncio.run(server.run_restored(frozen, lock, sockets))
        return asyncio.run(server.run(transport.server_command(asked), lock, sockets))


def _await_images() -> None:
    """Wait for the supervisor.

    :raises ServiceUnavailableError: it has ended, or they do not come
    """
    if os.read(sys.stdin.fileno(), len(IMAGES_ARE_THERE)) != IMAGES_ARE_THERE:
        raise ServiceUnavailableError("Its images have not come.")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)


def _restored(given: argparse.Namespace, frozen: checkpoint.Frozen | None) -> None:
    """Make the server of a dump, in the lease's namespaces, with all rights over these."""
    if frozen is not None:
        around = checkpoint.Around((), tuple(given.resume)).of(frozen.server)
        checkpoint.restore(given.criu, given.images, around.resume)
        os.close(given.images)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one lease; return the exit status."""
    parser = argparse.ArgumentParser(prog="lease_process")
    parser.add_argument("control", type=Path)
    parser.add_argument("--host", required=True)
    parser.add_argument("--transport", required=True)
    parser.add_argument("--transports", type=Path, required=True)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--memory-mb", type=int, required=True)
    parser.add_argument("--device", type=Path, action="append", default=[])
    parser.add_argument("--group", type=Path)
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--folder-mb", type=int, required=True)
    parser.add_argument("--link", type=Path)
    parser.add_argument("--criu", type=Path)
    parser.add_argument("--images", type=int)
    parser.add_argument("--around", type=Path, action="append", default=[])
    parser.add_argument("--resume", type=json.loads, default=())
    parser.add_argument("--enforced", action="store_true")
    given = parser.parse_args(arguments)
    try:
        return _serve(given)
    except (NumaExtError, OSError) as error:
        sys.stderr.write(f"lease {given.control.stem}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
