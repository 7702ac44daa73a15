# SPDX-License-Identifier: Apache-2.0
"""The command line of a QEMU process, which that process may write itself."""

from pathlib import Path
from typing import Final

_BYTES_MAX: Final = 1 << 20  # QEMU's with hundreds of devices has a tenth


def read(process: Path) -> tuple[bytes, ...]:
    """Return its arguments; none where it is longer than any of QEMU's.

    By prctl(2), PR_SET_MM_MAP, a process lets it begin and end where it likes, and so makes it as long as its memory.

    :param process: ``/proc/PID``
    :raises OSError: it cannot be read
    """
    with (process / "cmdline").open("rb") as file:
        content = file.read(_BYTES_MAX + 1)
    return tuple(content.split(b"\0")) if len(content) <= _BYTES_MAX else ()
