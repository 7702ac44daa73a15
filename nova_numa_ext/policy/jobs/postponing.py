# SPDX-License-Identifier: Apache-2.0
"""Should a job take a place that is not good enough, or wait for a better one?

TOPO-AWARE-P (Amaral 2019, algorithm 1) postpones a job whose best place has a utility below its minimum, and lets
others pass. The system has no bound; DRMaestro, of the same author, allows ten postponements, after which a job takes
what there is. A postponement is counted when a job is offered such a place again after a time (the ``interval`` of
algorithm 1, for which no value is given), not with each round: rounds follow each other in seconds.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from nova_numa_ext.policy.jobs.job import Job

MOST_POSTPONEMENTS: Final = 10
RETRY_S: Final = 60.0


def postpones(job: Job, utility: float, minimum: float, most: int | None) -> bool:
    """Return whether a job waits for a better place than the best there is now.

    :param utility: of the best place, in [0, 1]
    :param minimum: below which it waits
    :param most: postponements after which it takes any place; None: it waits for ever
    """
    return utility < minimum and (most is None or job.postponed < most)


def counts(job: Job, now: float, retry_s: float) -> bool:
    """Return whether a postponement now is one more, or still the last one.

    :param retry_s: seconds between two that count
    """
    return job.postponed_at is None or now - job.postponed_at >= retry_s


def refused(job: Job, hosts: Iterable[str], now: float) -> Job:
    """Return a job that nova found no valid host for: postponed once more, and without these hosts in the next round.

    :param hosts: root providers of the hosts that were planned
    """
    return replace(job, excluded=frozenset(hosts), postponed=job.postponed + 1, postponed_at=now)
