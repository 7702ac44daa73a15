# SPDX-License-Identifier: Apache-2.0
"""Files of proc(5), of which a round reads hundreds."""

import os
from typing import Final

_MOST_BYTES: Final = 1 << 16


def read_small(file: str) -> bytes:
    """Read a file that the kernel gives in one piece (``stat``, ``status``, ``comm``), with three system calls.

    :raises OSError: it cannot be read; ProcessLookupError: its thread ended when the file was open
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
