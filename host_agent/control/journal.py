# SPDX-License-Identifier: Apache-2.0
"""The agent's journal: every action with its reason, what it was based on, and its result.

The entries are :class:`host_agent.model.journal.Entry`, the file is a :class:`placement_traits.journal.Journal`.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from host_agent.conf.options import Options
from host_agent.model.journal import Entry
from placement_traits.best_effort import ignore_loss
from placement_traits.errors import CapabilityMissingError
from placement_traits.journal import Journal


def utc_now() -> datetime:
    """Return the wall clock."""
    return datetime.now(UTC)


def to_plain(entry: Entry, now: datetime) -> dict[str, Any]:
    """Return the fields of a line, the time first, without those that are empty."""
    fields = {"time": now.isoformat(timespec="milliseconds"), **asdict(entry)}
    return {key: value for key, value in fields.items() if value not in ("", (), [], {})}


class FileJournal:
    """A journal in a file; see :class:`placement_traits.journal.Journal`.

    :param path: file; its folder is made
    :param max_bytes: size at which a new file is begun
    :param keep: rotated files that are kept
    :param lost: called with "journal" for each entry that could not be written, "rotated journal" for each new file
        that could not be begun; the caller goes on
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
        self._file = Journal(path, max_bytes, keep, lost=lost, follow_links=False)
        self._clock = clock
        try:
            self._file.open()
        except OSError as error:
            raise CapabilityMissingError(
                f"the journal {path} cannot be written: {error.strerror}; "
                "give [agent]state_dir a folder that the agent may write"
            ) from error

    def write(self, entry: Entry) -> None:
        """Append an entry, where the disk lets us; any thread may."""
        self._file.append(to_plain(entry, self._clock()))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


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
        plain = to_plain(entry, self._clock())
        self._out(json.dumps(plain, ensure_ascii=False, default=str) + "\n")


def open_journal(options: Options, lost: Callable[[str], None] = ignore_loss) -> FileJournal:
    """Return the journal with its configured sizes; see :class:`FileJournal`."""
    return FileJournal(
        options.paths.journal,
        max_bytes=options.agent.journal_mb << 20,
        keep=options.agent.journal_files,
        lost=lost,
    )
