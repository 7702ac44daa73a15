# SPDX-License-Identifier: Apache-2.0
"""Messages on the socket between agent and helper: four bytes of length, most significant first, then JSON."""

import json
import socket
import struct
from typing import Any, Final, NoReturn

from placement_traits.errors import InvalidValueError

MOST_BYTES: Final = 1 << 20  # Python needs up to 24 times as much for what is read of it

_LENGTH: Final = struct.Struct("!I")
_ALLOWED: Final = "a JSON text of finite numbers"


def pack(value: Any) -> bytes:
    """Return the message of a value of numbers, texts, None and sequences.

    :raises InvalidValueError: it is too large, or holds what JSON has not
    """
    try:
        data = _ENCODER.encode(value).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidValueError("message", str(error), _ALLOWED) from error
    _check_length(len(data))
    return _LENGTH.pack(len(data)) + data


def unpack(data: bytes) -> Any:
    """Return the value of a message, without its length.

    :raises InvalidValueError: it is none
    """
    try:
        return _DECODER.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidValueError("message", str(error), _ALLOWED) from error


def receive(connection: socket.socket) -> bytes | None:
    """Return the next message without its length, None when the peer has closed the connection.

    :raises InvalidValueError: it is too large, so that what follows cannot be understood either
    :raises OSError: the connection is broken
    """
    head = _exactly(connection, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    _check_length(length)
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


def _check_length(length: int) -> None:
    if length > MOST_BYTES:
        raise InvalidValueError("length of a message", length, f"at most {MOST_BYTES} bytes")


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)


# Made once: dumps() and loads() make new ones in each call, and a round has hundreds of messages.
_ENCODER: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)
