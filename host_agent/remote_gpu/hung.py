# SPDX-License-Identifier: Apache-2.0
"""The process that listens on a Unix socket: found by the kernel's word, and killed where it hangs.

No file holds its number. The kernel says who listens (unix(7), ``SO_PEERCRED``); a pidfd is opened for it, and when it
listens still, under the same number, the pidfd is of no other process.
"""

import os
import select
import signal
import socket
import struct
from pathlib import Path
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")
_CONNECT_S: Final = 1.0


def kill_listener(path: Path, limit_s: float) -> bool:
    """Kill the process that listens on a socket; return whether none listens any more.

    :param limit_s: how long to wait for its end, seconds
    :raises OSError: it cannot be found or killed
    """
    process = _listener(path)
    if process is None:
        return True
    descriptor = os.pidfd_open(process)
    try:
        if _listener(path) != process:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        ended, _, _ = select.select([descriptor], [], [], limit_s)
        return bool(ended)
    except ProcessLookupError:
        return True
    finally:
        os.close(descriptor)


def _listener(path: Path) -> int | None:
    """Return the process that listens, None where none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(_CONNECT_S)
        try:
            asked.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        found = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, _user, _group = _CREDENTIALS.unpack(found)
    return int(process)
