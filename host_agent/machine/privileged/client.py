# SPDX-License-Identifier: Apache-2.0
"""The agent's end of the helper's socket: a connection for each thread, made when it is first needed.

A connection that breaks is made again, once: systemd starts a helper that has ended with the next connection, and each
operation may be carried out twice with the same end.
"""

import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from host_agent.machine.privileged import frames, wire
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.privileged.edition import Edition
from host_agent.machine.privileged.operations import OPERATIONS
from host_agent.machine.privileged.server import DONE, FAILED, HELLO, REFUSED
from host_agent.machine.privileged.table import Operation, Way
from placement_traits.errors import InvalidValueError, NumaExtError, ServiceUnavailableError

_PATIENCE_S: Final = 120.0  # twice what an operation may take


class Helper:
    """Asks the helper.

    :param path: of its socket
    :param edition: this process's, for the helper to compare with its own
    :param patience_s: longest wait for an answer
    """

    def __init__(
        self, path: Path, edition: Edition | None = None, patience_s: float = _PATIENCE_S
    ) -> None:
        self._path, self._edition, self._patience_s = path, edition, patience_s
        self._local = threading.local()

    def ask(self, operation: Operation, arguments: tuple[Any, ...]) -> Any:
        """Have the helper carry out an operation.

        :raises NumaExtError: what the operation raised there, or a refusal
        :raises OSError: the operating system refused it there
        :raises ServiceUnavailableError: no helper answers
        """
        message = frames.pack((operation.name, *wire.encode(arguments)))
        return wire.decode(operation.result, _result(self._exchanged(message)))

    def _exchanged(self, message: bytes) -> bytes:
        """Send a message and return its answer."""
        again = self._connection is not None
        while True:
            try:
                return _exchange(self._connection or self._connected(), message)
            except OSError as error:
                self._close()
                if not again or not isinstance(error, ConnectionError):
                    raise self._silent(error) from error
                again = False
            except NumaExtError:
                self._close()
                raise

    def greet(self) -> None:
        """Connect and say the edition, and ask nothing: who is not served learns why.

        :raises NumaExtError: the helper's refusal
        :raises ServiceUnavailableError: no helper answers
        """
        try:
            self._connected()
        except OSError as error:
            raise self._silent(error) from error
        finally:
            self._close()

    def _silent(self, error: OSError) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"the helper does not answer on {self._path} ({error.strerror or error}): start "
            "numa-host-agent-helper.socket, or the agent by numa-host-agent-supervisor"
        )

    @property
    def _connection(self) -> socket.socket | None:
        found: socket.socket | None = getattr(self._local, "connection", None)
        return found

    def _connected(self) -> socket.socket:
        connection = self._connect()
        if self._edition is None:
            return connection
        hello = frames.pack((HELLO, self._edition.release, self._edition.options))
        if not _result(_exchange(connection, hello)):
            self._close()
            connection = self._connect()
            if not _result(_exchange(connection, hello)):
                raise ConnectionRefusedError(errno.ECONNREFUSED, "it is being replaced")
        return connection

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._local.connection = connection
        connection.settimeout(self._patience_s)
        connection.connect(str(self._path))
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._local.connection = None


def over_socket(path: Path, edition: Edition | None = None) -> Privileged:
    """Return the way to the operations through the helper that listens on a path; see :class:`Helper`."""
    return cast("Privileged", Way(OPERATIONS, Helper(path, edition).ask))


def serves(path: Path, edition: Edition) -> bool:
    """Tell whether a helper of an edition answers on a path, or one that has to say itself what is wrong with it.

    A helper of another edition ends when it is asked; where nothing holds its socket, no other follows.
    """
    helper = Helper(path, edition)
    try:
        helper.greet()
    except ServiceUnavailableError as error:
        return not isinstance(error.__cause__, (ConnectionError, FileNotFoundError))
    except NumaExtError:
        return True
    return True


def _exchange(connection: socket.socket, message: bytes) -> bytes:
    connection.sendall(message)
    answer = frames.receive(connection)
    if answer is None:
        raise ConnectionResetError("it has closed the connection")
    return answer


def _result(answer: bytes) -> Any:
    """Return the result that an answer holds, as it came over the wire, or raise its error."""
    match frames.unpack(answer):
        case [str(kind), result] if kind == DONE:
            return result
        case [str(kind), str(name), [*values]] if kind == REFUSED:
            raise _error(name, values)
        case [str(kind), int(number), str(text)] if kind == FAILED:
            raise OSError(number, text)
        case other:
            raise InvalidValueError("answer of the helper", other, "a result or an error")


def _error(name: str, values: list[Any]) -> NumaExtError:
    """Make an error of ours again, as it was in the helper."""
    kind = next((kind for kind in _family(NumaExtError) if kind.__name__ == name), None)
    if kind is not None:
        try:
            return kind(*map(frozen, values))
        except TypeError:
            pass
    return NumaExtError(f"{name}: {', '.join(map(str, values))}")


def frozen(value: Any) -> Any:
    """Return a value with tuples where JSON has lists."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def _family(kind: type[NumaExtError]) -> Iterator[type[NumaExtError]]:
    yield kind
    for derived in kind.__subclasses__():
        yield from _family(derived)
