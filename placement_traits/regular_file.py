# SPDX-License-Identifier: Apache-2.0
"""Reading a file in a folder that another user writes: no link is followed and no pipe waited for."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading.

    :raises OSError: there is none, it cannot be read, or is no regular file: a link, a pipe, a device
    """
    file = open(os.open(path, _FLAGS), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return file
