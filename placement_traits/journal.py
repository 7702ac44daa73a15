# SPDX-License-Identifier: Apache-2.0
"""The scheduler's decision journal: one JSON object per line, oldest first, rotated by size.

Several processes may append to one file: a line is one ``write`` to a file opened for appending, and the rotation
happens under a lock, by whoever finds the file too large.
"""

import fcntl
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

LOG = logging.getLogger(__name__)


class Journal:
    """Writer of a journal.

    :param path: the file; its folder is made when it is missing
    :param max_bytes: size at which the file becomes ``.1``
    :param backups: how many old files are kept
    """

    def __init__(self, path: Path, max_bytes: int, backups: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._complained = False
        self._lock = threading.Lock()

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one entry; a journal that cannot be written is logged once and never disturbs the caller."""
        line = json.dumps(entry, separators=(",", ":"), sort_keys=True).encode() + b"\n"
        try:
            with self._lock:
                self._write(line)
        except OSError as error:
            if not self._complained:
                LOG.warning("The decision journal %s cannot be written: %s", self._path, error)
            self._complained = True
        else:
            self._complained = False

    def _write(self, line: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._path.exists() and self._path.stat().st_size >= self._max_bytes:
                self._rotate()
            with self._path.open("ab", buffering=0) as file:
                file.write(line)

    def _rotate(self) -> None:
        if not self._backups:
            self._path.unlink()
            return
        for number in range(self._backups - 1, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(backup(self._path, number), backup(self._path, number + 1))
        os.replace(self._path, backup(self._path, 1))


def backup(path: Path, number: int) -> Path:
    """Name of the ``number``-th old journal."""
    return path.with_name(f"{path.name}.{number}")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all entries, oldest first, old files included; a line that is no JSON (a torn write) is passed over."""
    numbers: list[int] = []
    while backup(path, len(numbers) + 1).exists():
        numbers.append(len(numbers) + 1)
    for file in (*(backup(path, number) for number in reversed(numbers)), path):
        with suppress(FileNotFoundError), file.open(encoding="utf-8") as lines:
            for line in lines:
                with suppress(json.JSONDecodeError):
                    yield json.loads(line)
