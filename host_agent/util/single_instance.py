# SPDX-License-Identifier: Apache-2.0
"""One agent per host: a locked file in the state folder, which the kernel lets go of however the agent ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from placement_traits.errors import CapabilityMissingError, ConflictError


@contextmanager
def single_instance(lock: Path, advice: str) -> Iterator[None]:
    """Be the only one that writes to this host while the context lasts.

    :param lock: the file; its folder must be there
    :param advice: what to do when another process is, the end of the error's sentence
    :raises ConflictError: another process is; the error names it
    :raises CapabilityMissingError: the file cannot be opened, or is a link
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(lock, flags, 0o640)
    except OSError as error:
        raise CapabilityMissingError(f"{lock} cannot be opened: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 32).decode().strip() or "unknown"
            raise ConflictError(
                f"process {holder} controls this host already ({lock}): {advice}"
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)
