# SPDX-License-Identifier: Apache-2.0
"""What this process opens: a count that holds on a busy machine, too. Python's audit events tell of each open(2)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

PER_SERVER: Final = 5
PER_ROUND: Final = 10
_EVENTS: Final = frozenset({"open", "os.listdir", "os.scandir"})
_counting: list[list[str]] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _counting and event in _EVENTS:
        for found in _counting:
            found.append(str(arguments[0]))


@cache
def _hooked() -> None:
    sys.addaudithook(_note)  # for ever: there is no way to take one out


@contextmanager
def opened() -> Iterator[list[str]]:
    """Collect the files and folders that are opened within the block, in any thread."""
    _hooked()
    found: list[str] = []
    _counting.append(found)
    try:
        yield found
    finally:
        _counting.remove(found)


def ceiling(servers: int, threads: int) -> int:
    """Return the most files and folders that a round between two resyncs may open.

    Each thread of a server is read, and a few files of each server and of the host; nothing for each process or CPU of
    the host, which would break it on a large one.

    :param threads: of all servers together
    """
    return threads + PER_SERVER * servers + PER_ROUND
