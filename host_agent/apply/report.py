# SPDX-License-Identifier: Apache-2.0
"""What the executor reports of its actions: to the journal, the log and the metrics, and each failure once."""

import logging
from collections.abc import Callable
from typing import Any

from host_agent.model.assignment import Guest
from host_agent.model.journal import ActionJournal, Entry, Result

LOG = logging.getLogger(__name__)

Count = Callable[[str, Result], None]


def _ignore_count(_action: str, _result: Result) -> None:
    """Count nothing."""


class ActionReport:
    """Reports actions; what was reported last of a server and an action is not repeated.

    :param journal: where actions are noted
    :param count: counts actions for the metrics
    """

    def __init__(self, journal: ActionJournal, count: Count = _ignore_count) -> None:
        self._journal = journal
        self._count = count
        self._reported: dict[tuple[str, str], str] = {}

    def done(self, guest: Guest | None, action: str, **more: Any) -> None:
        """Report an action that was carried out; with None it is about the host."""
        self.settled(guest.uuid if guest else "", action)
        self.entry(guest, action, Result.DONE, **more)
        self._count(action, Result.DONE)

    def would(self, guest: Guest | None, action: str, **more: Any) -> None:
        """Report and count once what is not carried out now: it would be the same in every round."""
        if self._is_new(guest, action, f"would {more.get('what')}"):
            self.entry(guest, action, Result.WOULD, **more)
            self._count(action, Result.WOULD)

    def failed(self, guest: Guest | None, action: str, problem: str, **more: Any) -> None:
        """Report a failure, and count it however often it happens."""
        self._count(action, Result.FAILED)
        if self._is_new(guest, action, problem):
            LOG.warning("%s of %s: %s", action, guest.uuid if guest else "this host", problem)
            self.entry(guest, action, Result.FAILED, problem=problem, **more)

    def noted(self, guest: Guest | None, action: str, problem: str) -> None:
        """Report why nothing is done."""
        if self._is_new(guest, action, problem):
            self.entry(guest, action, Result.NOTED, problem=problem)

    def entry(self, guest: Guest | None, action: str, result: Result, **more: Any) -> None:
        """Write an entry of the journal, whatever was written before."""
        server = guest.uuid if guest else ""
        title = guest.workload.title if guest else ""
        self._journal.write(Entry(action, result, server, title, **more))

    def settled(self, uuid: str, action: str) -> None:
        """Take note that an action has no problem: the same one would be reported again."""
        self._reported.pop((uuid, action), None)

    def gone(self, uuid: str, nodes: tuple[int, ...]) -> None:
        """Report a server that is not here any more, and forget it."""
        self._reported = {key: text for key, text in self._reported.items() if key[0] != uuid}
        self._journal.write(Entry("gone", Result.NOTED, uuid, what={"nodes": nodes}))

    def _is_new(self, guest: Guest | None, action: str, problem: str) -> bool:
        key = (guest.uuid if guest else "", action)
        if self._reported.get(key) == problem:
            return False
        self._reported[key] = problem
        return True
