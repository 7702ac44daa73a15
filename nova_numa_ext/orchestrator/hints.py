# SPDX-License-Identifier: Apache-2.0
"""What nova-scheduler learns of a job's servers: where its plan lets them go, and what its part requests."""

import time
from collections.abc import Callable

from nova_numa_ext.job_hint import HintKeys, JobHint
from nova_numa_ext.orchestrator import queued
from nova_numa_ext.orchestrator.store.stored_job import StoredJob, StoredPart
from nova_numa_ext.policy.jobs import postponing
from nova_numa_ext.policy.jobs.job import Scope
from nova_numa_ext.policy.jobs.part_specs import for_scheduler


class PlanHints:
    """Makes the scheduler hints of jobs' servers.

    :param keys: without one there are no hints: nova chooses among all hosts, by the flavor alone
    :param most_postponements: after so many a job takes any place
    :param clock: seconds since 1970, as nova-scheduler's
    """

    def __init__(
        self,
        keys: HintKeys,
        most_postponements: int | None = postponing.MOST_POSTPONEMENTS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._most = most_postponements
        self._clock = clock

    def text(self, job: StoredJob, part: StoredPart) -> str:
        """Return the hint of a server of a part, '' without a key or a plan."""
        if not self._keys or job.plan is None:
            return ""
        # Nova keeps one host by a server group; of leafs and pods it knows nothing.
        in_area = part.wait_for[0].scope in (Scope.LEAF, Scope.POD)
        binds = in_area or postponing.binds(job.refusals)
        places, spare = (job.plan.places, job.plan.spare) if binds else ((), ())
        hint = JobHint(
            job=job.uuid,
            part=part.name,
            project=job.project,
            flavor=part.flavor,
            hosts=tuple(place.host for place in places if place.part == part.name),
            spare=tuple(place.host for place in spare if place.part == part.name),
            extra_specs=for_scheduler(part.extra_specs),
            any_utility=postponing.takes_any(job.postponed, self._most)
            and postponing.waits_for_better(queued.part(part).request),
        )
        return self._keys.seal(hint, self._clock())
