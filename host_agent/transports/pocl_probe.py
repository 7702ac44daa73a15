# SPDX-License-Identifier: Apache-2.0
"""The probe of transport ``pocl``: whether a ``pocld`` serves a device, has our fixes, and keeps to its slice.

Run as a file, ``pocl_probe.py PORT [SLICE_BYTES]``, in the folder of its server; status 0: all of it is so. It imports
the standard library only, and little of that. Source: PoCL 6.0, ``include/messages.h``.
"""

import os
import socket
import struct
import sys
from typing import Final

_REQUEST: Final = struct.Struct("<Q16sQQIIIIIQI")
_SESSION: Final = struct.Struct("<QHBB4x")
_REPLY: Final = struct.Struct("<QIIIIIiQQQ56s32s")
_CREATE_SESSION, _SERVER_INFO = 1, 2
_LOSS_IS_AN_ERROR: Final = 0x6C6F7373
_WAITS_S: Final = 8.0

COUNTERS: Final = struct.Struct("=8sQQQQQQQ")
"""Of the layer of slices (``slice.c``): mark, limit, held, peak, objects, refused, busy_ns, since_ns."""

COUNTERS_MARK: Final = b"numslic1"
COUNTERS_FILE: Final = "slice"


def devices(port: int, mark: int = _LOSS_IS_AN_ERROR) -> int | None:
    """Return how many devices a server offers to a client; None: it gives it no session.

    :param port: of its commands, on 127.0.0.1
    :param mark: by which a client says that it takes a lost server for an error
    :raises OSError: nothing listens there, or does not answer in time
    """
    with socket.create_connection(("127.0.0.1", port), _WAITS_S) as client:
        return offered(client, mark)


def offered(client: socket.socket, mark: int = _LOSS_IS_AN_ERROR) -> int | None:
    """Return how many devices a server offers; None: it gives no session.

    :param client: connected to its port of commands
    :param mark: by which a client says that it takes a lost server for an error
    :raises OSError: it does not answer in time
    """
    request = _request(_CREATE_SESSION, mark=mark) + _SESSION.pack(1, 0, 0, 1)
    client.sendall(_sized(request))
    answer = _received(client, _REPLY.size)
    if answer is None:
        return None
    session, key = struct.unpack("<Q16s8x", _REPLY.unpack(answer)[-1])
    client.sendall(_sized(_request(_SERVER_INFO, session, key)))
    answer = _received(client, _REPLY.size)
    if answer is None:
        return None
    counts = _received(client, _REPLY.unpack(answer)[7])
    return None if counts is None else sum(each[0] for each in struct.iter_unpack("<I", counts))


def counters(folder: str) -> tuple[int, ...] | None:
    """Return what the layer of slices counts of a server: limit, held, peak, objects, refused, busy_ns, since_ns.

    :param folder: of the server
    """
    try:
        with open(os.path.join(folder, COUNTERS_FILE), "rb") as file:
            found = COUNTERS.unpack(file.read(COUNTERS.size))
    except (OSError, struct.error):
        return None
    return found[1:] if found[0] == COUNTERS_MARK else None


def _request(kind: int, session: int = 0, key: bytes = b"", mark: int = 0) -> bytes:
    return _REQUEST.pack(session, key, 1, 0, 0, 0, 0, 0, kind, mark, 0)


def _sized(request: bytes) -> bytes:
    return struct.pack("<I", len(request)) + request


def _received(client: socket.socket, count: int) -> bytes | None:
    found = b""
    while len(found) < count:
        try:
            part = client.recv(count - len(found))
        except ConnectionResetError:
            part = b""
        if not part:
            return None
        found += part
    return found


def main() -> int:
    """Return whether the server is as it has to be; what is not so goes to standard error."""
    port = int(sys.argv[1])
    try:
        if not devices(port):
            sys.stderr.write("pocl: no OpenCL device answers\n")
            return 1
        if devices(port, mark=0) is not None:
            sys.stderr.write("pocl: this pocld is without the fixes\n")
            return 1
    except OSError:
        return 1
    found = counters(".")
    if len(sys.argv) > 2 and (found is None or found[0] != int(sys.argv[2])):
        sys.stderr.write("pocl: the layer that keeps slices is not at work\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
