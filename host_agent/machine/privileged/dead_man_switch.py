# SPDX-License-Identifier: Apache-2.0
"""The dead-man switch: when the agent dies or hangs, best-effort servers must not stay throttled for ever.

It is held in the helper, which outlives the agent. The agent reports again and again that it is in control. When it has
not done so for some time – it was killed, crashed, or hangs – the helper takes all throttles of ours off: bandwidth
levels of our RDT groups and quotas of vCPUs. Masks, pins and pages stay, which hurt no server. An agent that shuts down
gracefully says so, and what it left then stays. One that goes on after it has hung is in control again.

A file marks that an agent is in control, and which helper waits for it. The next helper takes it over, so that
throttles are released though helper and agent have died together; the one before, if it still lives, sees that and lets
go. How often throttles were released is counted in a file beside it: an agent that was killed could not tell.
"""

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Final

from placement_traits.best_effort import BestEffortWriter
from placement_traits.errors import NumaExtError
from placement_traits.json_store import JsonStore

LOG = logging.getLogger(__name__)

_RETRY_S: Final = 5.0
_VERSION: Final = 1
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def count_in(folder: Path) -> JsonStore[int]:
    """Return the file of how often throttles were released."""
    return JsonStore(
        folder / "dead-man-switch.json",
        _VERSION,
        lambda found: found.member("fired").integer(),
        lambda fired: {"fired": fired},
    )


class DeadManSwitch:
    """The helper's end.

    :param mark: the file; its folder must be there, for the file of the count, too
    :param after_s: seconds without a report of the agent after which throttles are released
    :param release: releases them; returns what was written
    :param clock: seconds, monotonic

    :ivar fired: how often it has released throttles, in this helper and in those before
    """

    def __init__(
        self,
        mark: Path,
        after_s: float,
        release: Callable[[], tuple[str, ...]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.after_s = after_s
        self._mark = mark
        self._release = release
        self._clock = clock
        self._own = str(uuid.uuid4())
        self._lock = threading.Lock()
        self._due_s = inf
        self._marked = False
        self._problem = ""
        self._count = count_in(mark.parent)
        self._counting = BestEffortWriter("count of the dead-man switch")
        self.fired = self._count.load() or 0
        if mark.exists():
            LOG.info("waiting %g s for the agent, which was in control before", after_s)
            self.in_control()

    @property
    def held(self) -> bool:
        """An agent is in control, or was and throttles are still to be released."""
        return self._due_s < inf

    def in_control(self) -> None:
        """Begin to wait again."""
        with self._lock:
            if self._due_s == inf:
                self._write_mark()
            self._due_s = self._clock() + self.after_s

    def throttled(self) -> None:
        """Take note of a throttle: begin to wait where no agent is waited for, or not any more.

        While throttles are being released it waits for that.
        """
        with self._lock:
            waits = self._clock() < self._due_s < inf
        if not waits:
            self.in_control()

    def leave(self) -> None:
        """Stop waiting; throttles stay."""
        with self._lock:
            if self._due_s < inf:
                self._let_go()

    def turn(self) -> float:
        """Release throttles where it is time, and again some time later where that fails.

        :returns: seconds after which it is to be called again at the latest
        """
        with self._lock:
            now = self._clock()
            if now < self._due_s:
                return min(self._due_s - now, self.after_s)
            if self._superseded():
                LOG.info("another helper waits for the agent now")
                self._due_s = inf
            elif self._released():
                self.fired += 1
                self._counting.attempt(lambda: self._count.save(self.fired))
                self._let_go()
            else:
                self._due_s = self._clock() + _RETRY_S
                return _RETRY_S
            return self.after_s

    def _superseded(self) -> bool:
        return self._read_mark() != (self._own if self._marked else "")

    def _released(self) -> bool:
        LOG.warning("the agent has not been in control for %g s", self.after_s)
        try:
            for write in self._release():
                LOG.warning("released: %s", write)
        except (NumaExtError, OSError) as error:
            LOG.error("throttles were not released: %s", error)
            return False
        return True

    def _let_go(self) -> None:
        self._due_s = inf
        if self._read_mark() == self._own:
            self._mark.unlink(missing_ok=True)
        self._marked = False

    def _write_mark(self) -> None:
        """Write it; without a mark all is well as long as this process lives."""
        problem = ""
        try:
            descriptor = os.open(self._mark, _FLAGS, 0o600)
            try:
                os.write(descriptor, self._own.encode())
            finally:
                os.close(descriptor)
            self._marked = True
        except OSError as error:
            self._marked = False
            problem = f"{self._mark} cannot be written ({error.strerror})"
        if problem and problem != self._problem:
            LOG.warning("throttles would stay if agent and helper died together: %s", problem)
        self._problem = problem

    def _read_mark(self) -> str:
        try:
            return self._mark.read_text()
        except OSError:
            return ""
