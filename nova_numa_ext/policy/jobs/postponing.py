# SPDX-License-Identifier: Apache-2.0
"""Should a job take a place that is not good enough, or wait for a better one?

TOPO-AWARE-P (Amaral 2019, algorithm 1) postpones a job whose best place has a utility below its minimum, and lets
others pass. The system has no bound; DRMaestro, of the same author, allows ten postponements, after which a job takes
what there is. A postponement is counted when a job is offered such a place again after a time (the ``interval`` of
algorithm 1, for which no value is given), not with each round: rounds follow each other in seconds.
"""

from collections.abc import Iterable
from typing import Any, Final

from nova_numa_ext.policy.jobs.job import Job
from placement_traits.names import GpuPolicy
from placement_traits.workload_request import WorkloadRequest

MOST_POSTPONEMENTS: Final = 10
BINDING_REFUSALS: Final = 4
RETRY_S: Final = 60.0


def postpones(job: Job, utility: float, minimum: float, most: int | None) -> bool:
    """Return whether a job waits for a better place than the best there is now.

    :param utility: of the best place, in [0, 1]
    :param minimum: below which it waits
    :param most: postponements after which it takes any place; None: it waits for ever
    """
    return utility < minimum and not takes_any(job.postponed, most)


def waits_for_better(request: WorkloadRequest) -> bool:
    """Return whether what is requested may be postponed; else its minimum utility holds however long it waits."""
    return request.gpu_policy is GpuPolicy.TOPO_P and request.min_utility > 0


def takes_any(postponed: int, most: int | None) -> bool:
    """Return whether a job that was postponed so often takes any place.

    :param most: postponements after which it does; None: it never does
    """
    return most is not None and postponed >= most


def counts(job: Job, now: float, retry_s: float) -> bool:
    """Return whether a postponement now is one more, or still the last one.

    :param retry_s: seconds between two that count
    """
    return job.postponed_at is None or now - job.postponed_at >= retry_s


def refused(
    excluded: frozenset[str], postponed: int, hosts: Iterable[str], now: float
) -> dict[str, Any]:
    """Return what changes of a job that nova found no valid host for, as fields of :class:`.job.Job`.

    It is postponed once more. These hosts are left out, too, from now on: a planner that forgot the ones before them
    would go to and fro between two sets of hosts for ever.

    :param excluded: root providers of hosts that were left out before
    :param postponed: how often it was before
    :param hosts: root providers of the hosts that were planned
    """
    return {
        "excluded": excluded.union(hosts),
        "postponed": postponed + 1,
        "postponed_at": now,
    }


def binds(refusals: int) -> bool:
    """Return whether the planned hosts are all that nova may take, or it is to choose for itself.

    A plan knows what Placement counts. What it does not know (required traits, aggregates of flavors, images and
    projects, hosts that are down) may keep nova from all that it will ever name.

    :param refusals: how often in a row nova has refused the job
    """
    return refusals < BINDING_REFUSALS
