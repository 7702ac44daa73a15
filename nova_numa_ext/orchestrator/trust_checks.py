# SPDX-License-Identifier: Apache-2.0
"""For which jobs Keystone is asked whether their users may still do what they do.

A token for each job and round would be hundreds a second. Users are few beside jobs: in each interval of rounds one job
of each user and project is asked for, of so many as the operator allows; who was not asked for longest goes first.
Where Keystone refuses one, all other jobs of that user and project are asked for in the next round. Beside that each
job that waits is asked for at its own interval, because a trust may be deleted alone.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from typing import Final

from nova_numa_ext.orchestrator.conf import EngineOptions
from nova_numa_ext.orchestrator.store.stored_job import StoredJob
from nova_numa_ext.policy.jobs.states import JobState

# So many parts of an interval are jobs' first looks spread over.
_SPREAD: Final = 64

_Owner = tuple[str, str]
"""User and project: what a trust passes on."""


class TrustChecks:
    """Keeps when each job and each user was asked for; for one thread.

    :param options: the operator's
    :param clock: monotonic seconds; injected by tests
    """

    def __init__(self, options: EngineOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._jobs_s: dict[str, float] = {}
        self._users_s: dict[_Owner, float] = {}
        self._suspected: dict[_Owner, set[str]] = {}
        self._users_next_s = -inf

    def due(self, waiting: Collection[StoredJob], active: Iterable[StoredJob]) -> list[StoredJob]:
        """Return the jobs to be asked for in this round; of active ones those that run: the others are on their way."""
        now_s = self._clock()
        running = [job for job in active if job.state is JobState.RUNNING]
        by_owner: dict[_Owner, list[StoredJob]] = {}
        for job in (*waiting, *running):
            by_owner.setdefault((job.user, job.project), []).append(job)
        found = {job.uuid: job for job in self._at_their_interval(waiting, now_s)}
        found |= {job.uuid: job for job in self._of_users(by_owner, now_s)}
        found |= {job.uuid: job for job in self._of_suspects(by_owner)}
        self._jobs_s |= dict.fromkeys(found.keys() & self._jobs_s.keys(), now_s)
        return [*found.values()]

    def _at_their_interval(self, waiting: Iterable[StoredJob], now_s: float) -> Iterable[StoredJob]:
        """Yield jobs that wait, the ones after the others: a service that starts may have thousands.

        One whose user has lost the rights is looked at more often: its user, who has them again, waits.
        """
        every_s = self._options.trust_check_s
        lost_every_s = min(self._options.watch_interval_s, every_s)
        known, self._jobs_s = self._jobs_s, {}
        for job in waiting:
            first_s = now_s - every_s * (job.number % _SPREAD) / _SPREAD
            checked_s = self._jobs_s[job.uuid] = known.get(job.uuid, first_s)
            if now_s - checked_s >= (every_s if job.trust_lost_at is None else lost_every_s):
                yield job

    def _of_users(
        self, by_owner: Mapping[_Owner, list[StoredJob]], now_s: float
    ) -> Iterable[StoredJob]:
        """Yield one job of each of few users: of their jobs that Keystone has not refused."""
        self._users_s = {each: self._users_s.get(each, -inf) for each in by_owner}
        if now_s < self._users_next_s:
            return
        self._users_next_s = now_s + self._options.round_interval_s
        longest_ago = sorted(by_owner, key=lambda each: self._users_s[each])
        for owner in longest_ago[: self._options.user_checks_per_round]:
            self._users_s[owner] = now_s
            good = [job for job in by_owner[owner] if job.trust_lost_at is None]
            yield from good[:1]

    def _of_suspects(self, by_owner: Mapping[_Owner, list[StoredJob]]) -> Iterable[StoredJob]:
        """Yield all jobs of users of whom Keystone has refused one, each of them once."""
        known, self._suspected = self._suspected, {}
        for owner, jobs in by_owner.items():
            if any(job.trust_lost_at is not None for job in jobs):
                asked = known.get(owner, set())
                self._suspected[owner] = {job.uuid for job in jobs}
                yield from (
                    job for job in jobs if job.trust_lost_at is None and job.uuid not in asked
                )
