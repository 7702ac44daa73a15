# SPDX-License-Identifier: Apache-2.0
"""What a round of the engine changes of jobs: each change is one thread's, of a job as the round has read it."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from nova_numa_ext.orchestrator.cloud.trusts import TrustError
from nova_numa_ext.orchestrator.in_hand import JobsInHand
from nova_numa_ext.orchestrator.reservations import reserve, unanswered
from nova_numa_ext.orchestrator.saga import Engaged, Saga
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.leader import NotLeaderError
from nova_numa_ext.orchestrator.store.stored_job import StoredJob
from nova_numa_ext.orchestrator.workers import Workers
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.reason import Reason

_LOG: Final = logging.getLogger(__name__)


class JobTurn:
    """What one engine changes in one round; a job that cannot be changed holds up no other one.

    :ivar now: the database's clock at its beginning
    :ivar over: the engine does not lead any more
    :ivar lead: as of :class:`.saga.Engaged`
    """

    def __init__(self, engaged: Engaged, now: float, hands: JobsInHand) -> None:
        self.now = now
        self.over = False
        self._engaged = engaged
        self.lead = engaged.lead
        self._jobs = engaged.jobs
        self._actor = engaged.actor
        self._saga = Saga(engaged, now)
        self._hands = hands

    def carry_on(self, job: StoredJob, workers: Workers) -> None:
        """Do what is next, until the job has to wait for nova, or has no place any more.

        One that has failed often rests a while, unless its user has cancelled it since.
        """
        is_to_be_cancelled = job.cancelled and job.target is not JobState.CANCELLED
        if self._hands.rests(job) and not is_to_be_cancelled:
            return
        self._give(job, partial(_carried_on, self._saga), workers)

    def end(
        self, job: StoredJob, to: JobState, reasons: Sequence[Reason], workers: Workers
    ) -> None:
        """Let a job end, or go back to the queue."""
        self._give(job, lambda job: self._saga.end(self._released(job), to, reasons), workers)

    def check(self, job: StoredJob, workers: Workers) -> None:
        """Look whether a job's user has the rights still; one without them for long has failed.

        A look at a job that runs is another task of the same workers, and is not to be replaced by this one.
        """
        if not self._hands.holds(job):
            name = f"trust of {job.uuid}"
            workers.give(name, partial(self._attempt, job, partial(self._checked, job)))

    def _checked(self, job: StoredJob) -> StoredJob:
        try:
            self._engaged.trusts.check(job.trust)
        except TrustError as error:
            return self._saga.without_user(self._released(self._unchanged(job)), error)
        return job if job.trust_lost_at is None else self._saga.with_user(self._unchanged(job))

    def start(self, job: StoredJob, plan: Plan[HostPlace], workers: Workers) -> None:
        """Give a job its places; the next round goes on. What is held for it is nova's to claim from now on."""
        hosts = sorted({place.host for place in plan.places})
        reasons = plan.reasons or (Reason(JobTerm.PLACED, ", ".join(hosts), len(hosts)),)

        def planned(job: StoredJob) -> StoredJob:
            job = self._released(job)
            return self._jobs.move(job, JobState.PLANNED, reasons, self._actor, plan=plan)

        if job.reserved or unanswered(job):
            self._give(job, planned, workers)
        else:
            self._attempt(job, lambda: planned(job))

    def wait(self, job: StoredJob, reasons: Sequence[Reason], *, postponed: bool) -> None:
        """Store why a job waits, where that is new; hosts that nova refused are tried again when no others are left."""
        changes: dict[str, Any] = {}
        if postponed:
            changes |= {"postponed": job.postponed + 1, "postponed_at": self.now}
        if any(each.term == JobTerm.HOSTS_EXCLUDED for each in reasons):
            changes["excluded"] = frozenset[str]()
        if changes or _terms(reasons) != _terms(job.reasons):
            self._attempt(job, lambda: self._jobs.set(job, self._actor, reasons, **changes))

    def reserve(
        self, job: StoredJob, amounts: tuple[ProviderAmount, ...], workers: Workers
    ) -> None:
        """Have Placement hold amounts for a job that waits, and no others."""
        if amounts != job.reserved or unanswered(job):
            self._give(job, lambda job: reserve(self._engaged, job, amounts), workers)

    def _released(self, job: StoredJob) -> StoredJob:
        return reserve(self._engaged, job, ())

    def _give(
        self, job: StoredJob, change: Callable[[StoredJob], StoredJob], workers: Workers
    ) -> None:
        if not self._hands.holds(job):
            attempt = partial(self._attempt, job, lambda: change(self._unchanged(job)))
            workers.give(job.uuid, attempt)

    def _unchanged(self, job: StoredJob) -> StoredJob:
        """Return a job for which a worker has time now, as the round has read it.

        :raises LostRaceError: something has changed since; the next round goes on
        """
        if self._jobs.read(job.uuid) != job:
            raise LostRaceError("it has changed since it was read")
        return job

    def _attempt(self, job: StoredJob, change: Callable[[], StoredJob]) -> None:
        if self.over or not self._hands.take(job):
            return
        try:
            self._hands.well(job.uuid, changed=change().version != job.version)
        except NotLeaderError as error:
            self.over = True
            _LOG.warning("%s", error)
        except LostRaceError as error:
            _LOG.info("job %s: %s", job.uuid, error)
        except Exception as error:  # noqa: BLE001 - the outermost guard of a job: logged, and others go on
            self._hands.trouble(job.uuid, f"job {job.uuid} stays as it is for now", error)
        finally:
            self._hands.put_back(job)


def _carried_on(saga: Saga, job: StoredJob) -> StoredJob:
    """Carry a job on until it has to wait for nova, or has no place any more."""
    before, job = job, saga.carry_on(job)
    while job.state is not before.state and job.state.active:
        before, job = job, saga.carry_on(job)
    return job


def _terms(reasons: Sequence[Reason]) -> list[tuple[str, str]]:
    return [(each.term, each.where) for each in reasons]
