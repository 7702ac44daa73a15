# SPDX-License-Identifier: Apache-2.0
"""Which jobs threads of the engine have in hand, which give trouble, and how much was done."""

import logging
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

from nova_numa_ext.orchestrator.store.stored_job import StoredJob
from placement_traits.errors import NumaExtError

_LOG: Final = logging.getLogger(__name__)
_FAILURES_AT_ONCE: Final = 10
_LONGEST_REST_S: Final = 60.0


class Concern(StrEnum):
    """What may give trouble beside jobs, leases and groups, which are known by their uuids."""

    QUEUE = "queue"
    CLAIMS = "claims"
    LATE = "late servers"
    GIVEN = "given trusts"
    TRUSTS = "trusts"
    RECOVERY = "recovery"
    LEASES = "leases"
    LEASE_CLAIMS = "claims of leases"
    SCALING = "elastic groups"
    WAKES = "wakes"
    UPLINKS = "uplinks of leafs"


@dataclass(frozen=True, slots=True)
class Done:
    """What was done since the round before.

    :param changed: jobs that were changed
    :param failed: jobs that could not be carried on, for now
    """

    changed: int
    failed: int


@dataclass(frozen=True, slots=True)
class _Failures:
    """How often in a row a job could not be carried on.

    :param count: so often
    :param rests_until_s: monotonic seconds before which it is not tried again
    """

    count: int = 0
    rests_until_s: float = -inf

    def one_more(self, now_s: float) -> "_Failures":
        """Return what is so after another one: at first each round tries again, then ever fewer."""
        more = self.count + 1 - _FAILURES_AT_ONCE
        if more < 0:
            return _Failures(self.count + 1)
        return _Failures(self.count + 1, now_s + min(2.0 ** min(more, 10), _LONGEST_REST_S))


class JobsInHand:
    """Which jobs are being changed, and what became of it; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._troubles: dict[str, str] = {}
        self._failures: dict[str, _Failures] = {}
        self._changed = 0
        self._failed = 0

    def holds(self, job: StoredJob) -> bool:
        """Return whether a job is being changed."""
        with self._lock:
            return job.uuid in self._held

    def rests(self, job: StoredJob) -> bool:
        """Return whether a job has failed so often in a row that it is not tried now."""
        with self._lock:
            found = self._failures.get(job.uuid)
            return found is not None and time.monotonic() < found.rests_until_s

    def take(self, job: StoredJob) -> bool:
        """Return whether a job was not in hand; now it is."""
        with self._lock:
            if job.uuid in self._held:
                return False
            self._held.add(job.uuid)
            return True

    def put_back(self, job: StoredJob) -> None:
        """Let another change the job."""
        with self._lock:
            self._held.discard(job.uuid)

    @contextmanager
    def alone(self, job: StoredJob) -> Iterator[bool]:
        """Have a job in hand, unless it is in hand already; yields whether that is so."""
        taken = self.take(job)
        try:
            yield taken
        finally:
            if taken:
                self.put_back(job)

    def well(self, what: str, *, changed: bool = False) -> None:
        """Take note that a job, or the queue, gives no trouble."""
        with self._lock:
            self._troubles.pop(what, None)
            self._failures.pop(what, None)
            self._changed += changed

    def trouble(self, what: str, sentence: str, error: Exception) -> None:
        """Log what is wrong with a job, or the queue: once, until it is something else or well again."""
        said = f"{type(error).__name__}: {error}"
        with self._lock:
            self._failed += 1
            self._failures[what] = self._failures.get(what, _Failures()).one_more(time.monotonic())
            known = self._troubles.get(what) == said
            self._troubles[what] = said
        if not known:
            foreseen = isinstance(error, NumaExtError)
            _LOG.warning("%s: %s", sentence, error, exc_info=None if foreseen else error)

    def forget_others(self, jobs: Collection[str]) -> None:
        """Keep what is known of these jobs only."""
        with self._lock:
            kept = {*jobs, *Concern}
            self._troubles = {key: said for key, said in self._troubles.items() if key in kept}
            self._failures = {key: each for key, each in self._failures.items() if key in kept}

    def done(self) -> Done:
        """Return what was done since this was asked before."""
        with self._lock:
            done = Done(self._changed, self._failed)
            self._changed = self._failed = 0
            return done
