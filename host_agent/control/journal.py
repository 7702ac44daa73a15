# SPDX-License-Identifier: Apache-2.0
"""The append-only journal: every action with its reason, what it was based on, and its result; one JSON object a line.

Fields: ``time`` (ISO 8601, UTC), ``action``, ``server`` (UUID, "" for the host), ``title``, ``what`` (the values),
``reasons``, ``measured``, ``result`` (``done``, ``failed``, ``would``, ``noted``), ``problem``. A line is written by
one system call, so that a killed agent leaves whole lines, and readers skip what they cannot parse.
"""

import errno
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from host_agent.util.best_effort import Keeper, ignore_loss
from placement_traits.errors import CapabilityMissingError


class Result(StrEnum):
    """How an action ended."""

    DONE = "done"
    FAILED = "failed"
    WOULD = "would"  # dry run
    NOTED = "noted"  # nothing was to be done, but it is worth knowing


@dataclass(frozen=True, slots=True)
class Entry:
    """One line; see the module's list of fields."""

    action: str
    result: Result
    server: str = ""
    title: str = ""
    what: Mapping[str, Any] = field(default_factory=dict)
    reasons: Sequence[str] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    time: str = ""


class Journal(Protocol):
    """Where actions are told."""

    def write(self, entry: Entry) -> None:
        """Append an entry; the time is set here."""


def utc_now() -> datetime:
    """Return the wall clock."""
    return datetime.now(UTC)


def _line(entry: Entry, now: datetime) -> str:
    fields = {**asdict(entry), "time": now.isoformat(timespec="milliseconds")}
    kept = {key: fields[key] for key in ("time", *fields) if fields[key] not in ("", (), [], {})}
    return json.dumps(kept, ensure_ascii=False, sort_keys=False, default=str) + "\n"


class FileJournal:
    """A journal in a file, rotated by size (``NAME``, ``NAME.1`` … the oldest has the highest number).

    :param path: file; its folder is made
    :param max_bytes: size at which a new file is begun
    :param keep: rotated files that are kept
    :param lost: told "journal" for each entry that could not be written, "rotated journal" for each new file that could
        not be begun; the caller goes on
    :raises CapabilityMissingError: it cannot be written at all
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = 16 << 20,
        keep: int = 5,
        lost: Callable[[str], None] = ignore_loss,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._clock = clock
        self._keeper = Keeper("journal", lost)
        self._rotation = Keeper("rotated journal", lost)
        self._torn = b""
        self._writing = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._descriptor = _open(path)
        except OSError as error:
            raise CapabilityMissingError(
                f"the journal {path} cannot be written: {error.strerror}; "
                "give [agent]state_dir a folder that the agent may write"
            ) from error

    def write(self, entry: Entry) -> None:
        """Append an entry, where the disk lets us; any thread may."""
        data = _line(entry, self._clock()).encode()
        with self._writing:
            size = os.fstat(self._descriptor).st_size
            if size and size + len(data) > self._max_bytes:
                self._rotation.attempt(self._rotate)
            self._keeper.attempt(lambda: self._append(data))

    def _append(self, line: bytes) -> None:
        data = self._torn + line
        written = os.write(self._descriptor, data)
        if written:
            self._torn = b"\n" if written < len(data) else b""
        if written < len(
            data
        ):  # the disk is full to the byte; the torn line is closed by the next one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _rotate(self) -> None:
        """Begin a new file; until it is there entries go to the old one."""
        new = self._path.with_name(f"{self._path.name}.new")
        descriptor = _open(new)
        try:
            for number in range(self._keep, 0, -1):
                older = _numbered(self._path, number - 1)
                if older.exists():
                    older.replace(_numbered(self._path, number))
            new.replace(self._path)
        except OSError:
            os.close(descriptor)
            raise
        os.close(self._descriptor)
        self._descriptor = descriptor

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class PrintedJournal:
    """A journal that only prints: the twin for ``--dry-run``, which writes nothing.

    :param out: takes one line
    """

    def __init__(
        self, out: Callable[[str], object], clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._out = out
        self._clock = clock

    def write(self, entry: Entry) -> None:
        """Print an entry."""
        self._out(_line(entry, self._clock()))


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a journal and its rotated files, oldest first; broken lines are skipped."""
    numbers = [
        int(suffix)
        for file in path.parent.glob(f"{path.name}.*")
        if (suffix := file.name.rpartition(".")[2]).isdecimal()
    ]
    for number in (*sorted(numbers, reverse=True), 0):
        try:
            text = _numbered(path, number).read_text(errors="replace")
        except FileNotFoundError:
            continue  # rotated away meanwhile, or never written
        yield from _entries(text.splitlines())


def _entries(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry
