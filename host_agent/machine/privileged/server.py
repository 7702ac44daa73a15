# SPDX-License-Identifier: Apache-2.0
"""The helper's end of the socket: serves the table of operations to the agent and to root, and to no other user.

The kernel says which user has connected (``SO_PEERCRED``). A request is a list of an operation's name and its
arguments; each is answered, with its result or with one refusal. Whatever comes – another shape, a value out of bounds,
an operation that is not there, no JSON at all – is such a refusal and changes nothing. There is a thread for each
connection, because the agent throttles while it moves pages; a connection has one request at a time. The first one says
which release and options the other side has (:mod:`.edition`).
"""

import logging
import os
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from host_agent.machine.privileged import arguments, frames, wire
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.privileged.edition import Edition, Succession
from host_agent.machine.privileged.operations import OPERATIONS, HostOperations
from host_agent.machine.privileged.table import Operation
from placement_traits.errors import InvalidValueError, NumaExtError, shown

LOG = logging.getLogger(__name__)

HELLO: Final = "hello"
DONE: Final = "done"
REFUSED: Final = "refused"
FAILED: Final = "failed"
FIRST_DESCRIPTOR: Final = 3  # SD_LISTEN_FDS_START

_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid
_REQUEST_S: Final = 1.0
_CONNECTIONS_MAX: Final = 16  # of one user: the agent has some threads, ctl one


def answer(
    operations: Privileged, request: bytes, meet: Callable[[Edition], bool] = lambda _other: True
) -> bytes:
    """Carry out a request.

    :param request: the message, without its length
    :param meet: answers ``["hello", release, options]``, see :class:`.edition.Succession`
    :returns: the answer's message: ``["done", result]``, ``["refused", class of the error, its arguments]``, or
        ``["failed", errno, text]`` of the operating system
    """
    try:
        return frames.pack((DONE, _carry_out(operations, frames.unpack(request), meet)))
    except NumaExtError as error:
        return _refusal(error)
    except OSError as error:
        return frames.pack((FAILED, error.errno or 0, str(error.strerror or error)))
    except Exception as error:  # the outermost guard: one request never ends the helper
        LOG.exception("a request failed")
        return _refusal(NumaExtError(f"the helper failed: {type(error).__name__}: {error}"))


def _carry_out(operations: Privileged, request: Any, meet: Callable[[Edition], bool]) -> Any:
    match request:
        case [str(name), str(release), str(options)] if name == HELLO:
            return meet(Edition(release, options))
    operation, values = _understood(request)
    names = tuple(operation.shape.parameters)
    if len(values) != len(names):
        raise InvalidValueError(f"arguments of {operation.name}", len(values), str(len(names)))
    built = tuple(map(wire.decode, operation.arguments, values))
    arguments.check_call(operation.name, names, built)
    return wire.encode(getattr(operations, operation.name)(*built))


def _understood(request: Any) -> tuple[Operation, list[Any]]:
    match request:
        case [str(name), *values] if name in OPERATIONS:
            return OPERATIONS[name], values
    raise InvalidValueError("request", request, f"one of {sorted(OPERATIONS)} and its arguments")


def _refusal(error: NumaExtError) -> bytes:
    """Return the message of an error; of arguments that do not travel, their beginning as text."""
    try:
        return frames.pack((REFUSED, type(error).__name__, wire.encode(error.args)))
    except InvalidValueError:
        texts = [part if isinstance(part, str) else shown(part) for part in error.args]
        return frames.pack((REFUSED, type(error).__name__, texts))


class Server:
    """Serves one listening socket.

    :param listening: the socket
    :param operations: what is served; its dead-man switch is looked at between connections
    :param users: ids of users that are served
    :param succession: tells when the next helper has to serve instead
    :param idle_s: end after so many seconds without a connection and without an agent in control; None: never
    """

    def __init__(
        self,
        listening: socket.socket,
        operations: HostOperations,
        users: Collection[int],
        succession: Succession,
        idle_s: float | None = None,
    ) -> None:
        self._succession = succession
        self._listening = listening
        self._operations = operations
        self._switch = operations.dead_man_switch
        self._users = frozenset(users)
        self._idle_s = idle_s
        self._open: Counter[int] = Counter()  # user -> connections
        self._lock = threading.Lock()
        self._refused: set[int] = set()

    def run(self, woken: int, stopped: threading.Event) -> None:
        """Serve until it is stopped, idle, or has to make room.

        A connection that comes when it has to is not accepted, but left on the socket for the next helper.

        :param woken: descriptor that becomes readable with ``stopped``
        """
        self._listening.setblocking(False)
        listening = self._listening.fileno()
        heard = select.poll()
        for descriptor in (listening, woken):
            heard.register(descriptor, select.POLLIN)
        busy_s = time.monotonic()
        while not stopped.is_set():
            pause_s = self._switch.turn() if self._switch else None
            if (self._switch and self._switch.held) or self._connections():
                busy_s = time.monotonic()
            elif self._idle_s is not None:
                left_s = busy_s + self._idle_s - time.monotonic()
                if left_s <= 0:
                    return
                pause_s = left_s if pause_s is None else min(pause_s, left_s)
            readable = heard.poll(None if pause_s is None else 1000 * pause_s)
            if self._succession.over:
                return
            if any(descriptor == listening for descriptor, _ in readable):
                with suppress(BlockingIOError, ConnectionAbortedError):
                    self._accept(self._listening.accept()[0])

    def _connections(self) -> int:
        with self._lock:
            return self._open.total()

    def _accept(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        pid, user, _group = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user not in self._users:
            if user not in self._refused:
                LOG.warning("process %d of user %d was refused: see [helper]agent_user", pid, user)
                self._refused.add(user)
            connection.close()
            return
        with self._lock:
            if self._open[user] >= _CONNECTIONS_MAX:
                connection.close()
                return
            self._open[user] += 1
        thread = threading.Thread(
            target=self._serve, args=(connection, user), name="connection", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            LOG.error("process %d is not served: %s", pid, error)
            connection.close()
            with self._lock:
                self._open[user] -= 1

    def _serve(self, connection: socket.socket, user: int) -> None:
        try:
            with connection, suppress(OSError):  # the agent has gone
                while (request := _next(connection)) is not None:
                    connection.sendall(answer(self._operations, request, self._succession.meet))
        finally:
            with self._lock:
                self._open[user] -= 1


def _next(connection: socket.socket) -> bytes | None:
    """Return the next request, None when there is none any more."""
    try:
        return frames.receive(connection)
    except InvalidValueError as error:
        connection.sendall(_refusal(error))
        return None


def refuse(listening: socket.socket, error: NumaExtError, seconds: float) -> None:
    """Answer whatever is asked with one error, for so long: for a helper that cannot serve.

    Its clients learn why at once, and start it no more often than that.
    """
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        listening.settimeout(left_s)
        with suppress(OSError):  # no one else has come, or who came has gone
            connection, _address = listening.accept()
            with connection:
                connection.settimeout(_REQUEST_S)
                if _next(connection) is not None:
                    connection.sendall(_refusal(error))


def listen(path: os.PathLike[str]) -> socket.socket:
    """Make the socket on a path; what stood there is replaced. Everybody may connect: credentials are looked at later.

    :raises OSError: it cannot be made
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    with suppress(FileNotFoundError):
        os.unlink(path)
    listening.bind(os.fspath(path))
    os.chmod(path, 0o666)
    listening.listen(_CONNECTIONS_MAX)
    return listening


def inherited(environment: Mapping[str, str]) -> socket.socket | None:
    """Return the listening socket that systemd, or the supervisor, has made; None when there is none.

    Source: sd_listen_fds(3).

    :raises InvalidValueError: there is another number of sockets
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    number = environment.get("LISTEN_FDS", "")
    if number != "1":
        raise InvalidValueError("LISTEN_FDS", number, "1: one listening unix socket")
    return socket.socket(fileno=FIRST_DESCRIPTOR)
