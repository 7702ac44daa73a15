# SPDX-License-Identifier: Apache-2.0
"""Projects whose quota is used up: their jobs start a few at a time, until nova refuses none of them any more.

Each job that is started above a quota takes places of others for as long as nova needs to refuse it, and a project may
have a thousand that wait. So what nova says to one of them holds for all of them for a time; then one starts, the first
in the queue that does not back off itself. If nova does not refuse it, two start, then four: that a large job does not
fit into what a quota leaves says nothing about small ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from nova_numa_ext.policy.jobs.job import Job

ANSWERED_S: Final = 60.0  # until nova has said of a job whether the quota allows it
_MOST: Final = 64  # after so many at a time a project is as others


@dataclass(frozen=True, slots=True)
class QuotaWait:
    """A project of which nova has refused a job because of a quota.

    :param until: none of its jobs starts before
    :param batch: so many start then, before nova's answers are waited for
    :param left: how many of these have not started yet
    """

    until: float
    batch: int = 1
    left: int = 1

    def started(self, now: float) -> "QuotaWait":
        """Return the same after one of its jobs has started."""
        if self.left > 1:
            return replace(self, left=self.left - 1)
        return QuotaWait(now + ANSWERED_S, 2 * self.batch, 2 * self.batch)


def waits(
    before: Mapping[str, QuotaWait], waiting: Iterable[Job], now: float
) -> dict[str, QuotaWait]:
    """Return which projects wait for a quota.

    :param before: what the last round knew
    :param waiting: jobs that wait
    """
    found: dict[str, QuotaWait] = {}
    for job in waiting:
        known = before.get(job.project)
        if job.at_quota and job.not_before > now:
            found[job.project] = QuotaWait(now + ANSWERED_S)
        elif known is not None and known.batch <= _MOST:
            found.setdefault(job.project, known)
    return found
