# SPDX-License-Identifier: Apache-2.0
"""A journal: one JSON object a line, only appended to, rotated by size (``NAME``, ``NAME.1`` … the oldest is highest).

Any number of threads and processes may append to one file. A line is one ``write`` to a file opened for appending, so a
process that is killed leaves whole lines; where the disk was full in the middle of one, the next line closes it. Before
each line the writer looks whether another process has rotated the file. Two that find it too large at the same time
agree by a lock (flock(2)) on the file itself.

For readers a line ends at a newline byte and nowhere else: what Unicode calls a line separator may stand in an entry,
and bytes that are no JSON cost their own line only.
"""

import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from placement_traits.best_effort import BestEffortWriter, ignore_loss
from placement_traits.regular_file import open_regular


class Journal:
    """Writer of a journal; a journal that cannot be written never disturbs the caller.

    :param path: the file; its folder is made when it is missing
    :param max_bytes: size at which a new file is begun
    :param backups: old files that are kept
    :param name: what it is called in the log
    :param lost: called with ``name`` for each entry that could not be written, with "rotated " before it for each new
        file that could not be begun; entries then go to the old one
    :param follow_links: false where root may write into a folder of another user
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        backups: int,
        *,
        name: str = "journal",
        lost: Callable[[str], None] = ignore_loss,
        follow_links: bool = True,
    ) -> None:
        self._path = path
        self._flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._flags |= 0 if follow_links else os.O_NOFOLLOW
        self._max_bytes = max_bytes
        self._backups = backups
        self._entries = BestEffortWriter(name, lost)
        self._rotation = BestEffortWriter(f"rotated {name}", lost)
        self._file = -1
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open the file now, for a caller who wants to know.

        :raises OSError: it cannot be written
        """
        with self._lock:
            self._follow()

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one entry, where the disk lets us; any thread may."""
        text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"), default=str)
        # A lone surrogate (a file name that is no UTF-8) becomes its JSON escape.
        line = text.encode(errors="backslashreplace") + b"\n"
        with self._lock:
            self._entries.attempt(lambda: self._write(line))

    def close(self) -> None:
        """Close the file; another entry opens it again."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def _write(self, line: bytes) -> None:
        if self._file < 0:
            self._follow()
        else:
            self._rotation.attempt(self._follow)
        size = os.fstat(self._file).st_size
        if size and size + len(line) > self._max_bytes:
            self._rotation.attempt(self._rotate)
            size = os.fstat(self._file).st_size
        torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        data = b"\n" + line if torn else line
        if os.write(self._file, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _follow(self) -> None:
        """Open the file that has the name now; others may have rotated what we have open."""
        if self._file >= 0 and self._is_current():
            return
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        new = os.open(self._path, self._flags, 0o640)
        if self._file >= 0:
            os.close(self._file)
        self._file = new

    def _is_current(self) -> bool:
        try:
            named = self._path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(self._file))

    def _rotate(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            if self._is_current():  # otherwise another process was faster
                self._shift()
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._follow()

    def _shift(self) -> None:
        if not self._backups:
            os.ftruncate(self._file, 0)
            return
        for number in range(self._backups, 0, -1):
            newer = backup(self._path, number - 1)
            if newer.exists():
                newer.replace(backup(self._path, number))


def backup(path: Path, number: int) -> Path:
    """Return the name of the ``number``-th old file; number 0 is the journal itself."""
    return path.with_name(f"{path.name}.{number}") if number else path


def read(
    path: Path, containing: str = "", *, follow_links: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield the entries of a journal and its old files, oldest first; a line that holds no entry is passed over.

    All files are opened before the first entry is read, newest first: what is rotated meanwhile is neither missed nor
    read twice.

    :param path: the newest file
    :param containing: only lines with this text, see :func:`entries`
    :param follow_links: false where root may read in a folder of another user: then no pipe is waited for either
    :raises OSError: a file is there and cannot be read
    """
    with ExitStack() as opened:
        files: dict[tuple[int, int], BinaryIO] = {}
        for number in _newest_first(path):
            try:
                part = backup(path, number)
                file = opened.enter_context(part.open("rb") if follow_links else open_regular(part))
            except FileNotFoundError:
                continue
            status = os.fstat(file.fileno())
            files.setdefault((status.st_dev, status.st_ino), file)
        for oldest in reversed(files.values()):
            yield from entries(oldest, containing)


def _newest_first(path: Path) -> Iterator[int]:
    yield 0
    suffixes = (file.name.rpartition(".")[2] for file in path.parent.glob(f"{path.name}.*"))
    numbers = sorted({int(suffix) for suffix in suffixes if suffix.isdecimal()})
    yield from numbers
    yield (numbers[-1] if numbers else 0) + 1  # where a rotation puts the oldest meanwhile


def entries(file: Iterable[bytes], containing: str = "") -> Iterator[dict[str, Any]]:
    """Yield the entries of one open file; a line that holds no entry is passed over.

    :param file: its lines
    :param containing: only lines with this text, which must be ASCII that JSON does not escape; of a large journal
        only those are decoded
    """
    needle = containing.encode()
    for line in file:
        if needle not in line:
            continue
        try:
            entry = json.loads(line.decode())
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            yield entry
