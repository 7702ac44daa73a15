# SPDX-License-Identifier: Apache-2.0
"""The agent's journal: every action with its reason, what it was based on, and its result.

The entries are :class:`host_agent.model.journal.Entry`, the file is a :class:`placement_traits.journal.Journal`. The
agent writes it in a thread of its own, a command at once.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from host_agent.conf.options import Options
from host_agent.model.journal import Entry
from host_agent.util.background import BackgroundTasks
from placement_traits.best_effort import ignore_loss
from placement_traits.errors import CapabilityMissingError
from placement_traits.journal import Journal

LOG = logging.getLogger(__name__)

_MOST_WAITING: Final = 4096  # some MB; the first round on a full host makes some hundreds
_PATIENCE_S: Final = 10.0


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
        self.append(to_plain(entry, self._clock()))

    def append(self, plain: Mapping[str, Any]) -> None:
        """Append the fields of an entry, see :func:`to_plain`."""
        self._file.append(plain)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class BackgroundJournal:
    """A journal in a file that a thread of its own writes: a disk that is slow holds up neither rounds nor throttles.

    Entries keep their order, and the time at which they were made.

    :param journal: the file
    :param lost: called with "journal" for each entry that is dropped: too many wait, or the disk hangs at the end
    :param most: entries that may wait
    :param patience_s: how long the end waits for the disk
    """

    def __init__(
        self,
        journal: FileJournal,
        lost: Callable[[str], None] = ignore_loss,
        *,
        most: int = _MOST_WAITING,
        patience_s: float = _PATIENCE_S,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._journal = journal
        self._lost = lost
        self._patience_s = patience_s
        self._clock = clock
        self._tasks = BackgroundTasks("journal", most)

    def write(self, entry: Entry) -> None:
        """Take an entry; does not wait; any thread may."""
        if not self._tasks.submit(self._journal.append, to_plain(entry, self._clock())):
            self._lost("journal")

    def close(self) -> None:
        """Write what waits, and close the file."""
        left = self._tasks.finish(self._patience_s)
        for _entry in range(left):
            self._lost("journal")
        if left:
            LOG.warning("%d entries are not in the journal: its disk does not answer", left)
        else:
            self._journal.close()


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

    def close(self) -> None:
        """Close nothing: each entry is out."""


def open_journal(options: Options, lost: Callable[[str], None] = ignore_loss) -> FileJournal:
    """Return the journal with its configured sizes; see :class:`FileJournal`."""
    return FileJournal(
        options.paths.journal,
        max_bytes=options.agent.journal_mb << 20,
        keep=options.agent.journal_files,
        lost=lost,
    )
