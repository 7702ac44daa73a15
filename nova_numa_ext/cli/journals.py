# SPDX-License-Identifier: Apache-2.0
"""The decision journals of one controller or of all: files, folders of collected files, or what comes through a pipe.

Each controller writes a journal of its own, and every entry names it; what collects logs collects these files.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from placement_traits import journal
from placement_traits.errors import NumaExtError

PIPE: Final = "-"
_JOURNALS: Final = "*.jsonl"


class NoJournalError(NumaExtError):
    """A folder holds no journal."""


def read(sources: Sequence[str], containing: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of several journals, one journal after the other.

    :param sources: journals, whose rotated files are read, too; folders, in which all ``*.jsonl`` are read; ``-`` for
        standard input
    :param containing: only lines with this server uuid or request id
    :raises NoJournalError: there is none in a folder
    :raises OSError: a file is there and cannot be read
    """
    for source in sources:
        if source == PIPE:
            yield from journal.entries(sys.stdin.buffer, containing)
            continue
        for path in _files(Path(source)):
            yield from journal.read(path, containing)


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    found = sorted(source.rglob(_JOURNALS))
    if not found:
        raise NoJournalError(f"there is no journal ({_JOURNALS}) in {source}")
    return found
