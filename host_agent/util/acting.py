# SPDX-License-Identifier: Apache-2.0
"""Rounds hold a lock while they act on the host, so that a command that needs the host at rest can wait for them."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from placement_traits.errors import CapabilityMissingError

_LOOK_S: Final = 0.1


@contextmanager
def acting(lock: Path) -> Iterator[bool]:
    """Act while the context lasts, beside others that do; false while a command keeps the host at rest.

    :param lock: the file; its folder must be there
    :raises CapabilityMissingError: the file cannot be opened, or is a link
    """
    descriptor = _open(lock)
    try:
        yield _locked(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


@contextmanager
def at_rest(lock: Path, patience_s: float) -> Iterator[bool]:
    """Keep the host at rest while the context lasts; false where the agent still acts after ``patience_s`` seconds.

    :param lock: the file; its folder must be there
    :raises CapabilityMissingError: the file cannot be opened, or is a link
    """
    descriptor = _open(lock)
    try:
        end_s = time.monotonic() + patience_s
        while not (rests := _locked(descriptor, fcntl.LOCK_EX)) and time.monotonic() < end_s:
            time.sleep(_LOOK_S)
        yield rests
    finally:
        os.close(descriptor)


def _open(lock: Path) -> int:
    try:
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise CapabilityMissingError(f"{lock} cannot be opened: {error.strerror}") from error


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
