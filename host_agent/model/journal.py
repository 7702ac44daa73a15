# SPDX-License-Identifier: Apache-2.0
"""An action and its result, as the agent's journal keeps it.

Fields: ``time`` (ISO 8601, UTC), ``action``, ``server`` (UUID, "" for the host), ``title``, ``what`` (the values),
``reasons``, ``measured``, ``result`` (``done``, ``failed``, ``would``, ``noted``), ``problem``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Result(StrEnum):
    """How an action ended."""

    DONE = "done"
    FAILED = "failed"
    WOULD = "would"  # dry run, or what only observes
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


class ActionJournal(Protocol):
    """Where actions are noted."""

    def write(self, entry: Entry) -> None:
        """Append an entry; the time is set here."""


class OwnedJournal(ActionJournal, Protocol):
    """The same for the one who has opened it."""

    def close(self) -> None:
        """Write what still waits, and close it."""
