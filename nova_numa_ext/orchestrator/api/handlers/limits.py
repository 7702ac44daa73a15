# SPDX-License-Identifier: Apache-2.0
"""What a project may have: shown, and looked at before it gets more."""

from typing import Any, Final

from nova_numa_ext.orchestrator import queued
from nova_numa_ext.orchestrator.api import intake, policies, request, views
from nova_numa_ext.orchestrator.api.handlers import unreadable_leases
from nova_numa_ext.orchestrator.api.rights import Rights
from nova_numa_ext.orchestrator.conf import ApiOptions
from nova_numa_ext.orchestrator.store.stored_job import NewJob
from nova_numa_ext.orchestrator.store.stored_lease import LeaseSpec
from nova_numa_ext.orchestrator.store.stores import Stores
from nova_numa_ext.policy.jobs import limits as of_projects
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import sentence

_ACTIVE: Final = tuple(state for state in JobState if state.active)


class ProjectLimits:
    """Limits of projects.

    :param queue: as the engines have it
    """

    def __init__(
        self, stores: Stores, rights: Rights, options: ApiOptions, queue: QueueSettings
    ) -> None:
        self._stores = stores
        self._rights = rights
        self._options = options
        self._queue = queue

    def show(self) -> Any:
        asking = request.asking()
        self._rights.allow(asking, policies.LIMITS)
        waiting = self._stores.jobs.usage(asking.project, [JobState.QUEUED])
        placed = self._stores.jobs.usage(asking.project, _ACTIVE)
        return {
            "limits": [
                *views.waiting_limits(self._options, *waiting),
                *views.queue_limits(self._queue.limits_of(asking.project), *placed),
                *self._of_leases(asking.project),
            ]
        }

    def check_job(self, new: NewJob) -> None:
        """Look whether a project may have one more job.

        :raises OverQuotaError: it would wait for ever, or too many wait already
        """
        never = of_projects.unsatisfiable(queued.submitted(new), self._queue.limits_of(new.project))
        if never:
            why = "; ".join(map(sentence, never))
            raise intake.OverQuotaError(f"The job would wait for ever: {why}.")
        used = self._stores.jobs.usage(new.project, [JobState.QUEUED])
        asked = (1, sum(part.count for part in new.parts))
        for limit, more in zip(views.waiting_limits(self._options, *used), asked, strict=True):
            if limit["used"] + more > limit["limit"]:
                raise intake.OverQuotaError(
                    f"Limit {limit['name']} of the project is {limit['limit']}, {limit['used']} are in use, and the "
                    f"job needs {more}."
                )

    def check_lease(self, project: str, asked: LeaseSpec) -> None:
        """Look whether a project may have one more lease.

        :raises OverQuotaError: it has too many already, or too much memory
        """
        for limit, more in zip(self._of_leases(project), (1, asked.memory_mb), strict=True):
            if limit["limit"] is not None and limit["used"] + more > limit["limit"]:
                raise intake.OverQuotaError(
                    f"Limit {limit['name']} of the project is {limit['limit']}, {limit['used']} are in use, and the "
                    f"lease needs {more}."
                )

    def _of_leases(self, project: str) -> list[dict[str, Any]]:
        used = self._stores.leases.usage(project, unreadable_leases.leave_out)
        return views.lease_limits(self._queue.limits_of(project), *used)
