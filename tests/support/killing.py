# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed while others do something."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_LOOK_S: Final = 0.003


def words_of(process: int) -> list[str]:
    """Return the command line of a process, [] where it has gone."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")[:-1]
    except OSError:
        return []


def descendants() -> list[int]:
    """Return the processes that this one has started, and those that they have."""
    parents: dict[int, int] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with suppress(OSError):
                stat = (each / "stat").read_text().rpartition(")")[2].split()
                parents[int(each.name)] = int(stat[1])
    found = [os.getpid()]
    for process in found:
        found += [each for each, parent in parents.items() if parent == process]
    return found[1:]


@contextmanager
def killing(
    when: Callable[[], object], victims: Callable[[], Iterable[int]], after_s: float
) -> Iterator[list[int]]:
    """In the block, kill the first process that is a victim once something is so, and a moment has passed.

    :returns: a list, in which the process is when it was killed
    """
    over, killed = threading.Event(), list[int]()

    def watch() -> None:
        while not over.is_set() and not when():
            time.sleep(_LOOK_S)
        time.sleep(after_s)
        while not over.is_set() and not killed:
            for process in list(victims())[:1]:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)
            time.sleep(_LOOK_S)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield killed
    finally:
        over.set()
        watching.join()
