# SPDX-License-Identifier: Apache-2.0
"""Waiting for a program that was started: its socket says when it is there."""

import socket
from pathlib import Path


def listens(path: Path) -> bool:
    """Tell whether something listens on a path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True
