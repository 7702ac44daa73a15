# SPDX-License-Identifier: Apache-2.0
"""One round of the job service: who leads carries on what has places, then lets the queue decide who starts."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from nova_numa_ext.orchestrator.cloud.trusts import Trusts
from nova_numa_ext.orchestrator.saga import Engaged, Saga
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.jobs import Actor, Jobs, StoredJob
from nova_numa_ext.orchestrator.store.leader import Election, NotLeaderError
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.claims import ClaimStore
from placement_traits.errors import NumaExtError
from placement_traits.reason import Reason

_LOG: Final = logging.getLogger(__name__)
_ACTIVE: Final = tuple(state for state in JobState if state.active)


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """What the queue decides in a round; jobs by uuid.

    :param starts: places of jobs that start
    :param waits: why others wait
    :param ended: jobs that are given up, with the reasons
    :param postponed: waiting jobs whose number of postponements grows
    :param preempted: jobs that have places and go back to the queue, with the reason
    """

    starts: Mapping[str, Plan[HostPlace]]
    waits: Mapping[str, tuple[Reason, ...]]
    ended: Mapping[str, tuple[Reason, ...]] = field(default_factory=dict)
    postponed: frozenset[str] = frozenset()
    preempted: Mapping[str, Reason] = field(default_factory=dict)


Decide = Callable[[Sequence[StoredJob], Sequence[StoredJob], float], QueueDecision]
"""Waiting jobs, jobs that have places, the time -> who starts."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a round did.

    :param changed: jobs that were changed
    :param failed: jobs that could not be carried on, this round
    """

    changed: int
    failed: int


class JobEngine:
    """One of any number of engines.

    :param name: of this process, unlike that of any other, a restarted one included
    :param decide: the queue with its planners
    """

    def __init__(
        self, name: str, database: Database, trusts: Trusts, claims: ClaimStore, decide: Decide
    ) -> None:
        self._name = name
        self._database = database
        self._jobs = Jobs(database)
        self._election = Election(database, name)
        self._trusts = trusts
        self._claims = claims
        self._decide = decide

    def round(self) -> Done | None:
        """Do one round; None: another engine leads.

        :raises ServiceUnavailableError: the database does not answer
        """
        term = self._election.campaign()
        if term is None:
            return None
        actor = Actor(self._name, term)
        engaged = Engaged(self._jobs, self._trusts, self._claims, actor, self._election.check)
        turn = _Turn(engaged, self._database.now())
        try:
            return self._round(turn)
        except NotLeaderError as error:
            _LOG.warning("%s", error)
            return None

    def resign(self) -> None:
        """Let another engine lead at once."""
        self._election.resign()

    def _round(self, turn: "_Turn") -> Done:
        for job in self._jobs.find(states=_ACTIVE):
            turn.carry_on(job)
        waiting = {}
        for job in self._jobs.find(states=[JobState.QUEUED]):
            if job.cancelled:
                turn.end(job, JobState.CANCELLED, job.reasons)
            else:
                waiting[job.uuid] = job
        active = {job.uuid: job for job in self._jobs.find(states=_ACTIVE)}
        decided = self._decide(list(waiting.values()), list(active.values()), turn.now)
        for uuid, plan in decided.starts.items():
            turn.start(waiting[uuid], plan)
        for uuid, reasons in decided.ended.items():
            turn.end(waiting[uuid], JobState.FAILED, reasons)
        for uuid, reason in decided.preempted.items():
            turn.end(active[uuid], JobState.QUEUED, (reason,))
        for uuid, reasons in decided.waits.items():
            turn.wait(waiting[uuid], reasons, postponed=uuid in decided.postponed)
        return Done(turn.changed, turn.failed)


class _Turn:
    """What one engine changes in one round; a job that cannot be changed holds up no other one.

    :ivar now: the database's clock at its beginning
    """

    def __init__(self, engaged: Engaged, now: float) -> None:
        self.now = now
        self.changed = 0
        self.failed = 0
        self._jobs = engaged.jobs
        self._actor = engaged.actor
        self._saga = Saga(engaged, now)

    def carry_on(self, job: StoredJob) -> None:
        """Do what is next, until the job has to wait for nova, or has no place any more."""
        self._attempt(job, partial(_carried_on, self._saga, job))

    def end(self, job: StoredJob, to: JobState, reasons: Sequence[Reason]) -> None:
        """Let a job end, or go back to the queue."""
        self._attempt(job, partial(self._saga.end, job, to, reasons))

    def start(self, job: StoredJob, plan: Plan[HostPlace]) -> None:
        """Give a job its places; the next round goes on."""
        hosts = ", ".join(sorted({place.host for place in plan.places}))
        reasons = plan.reasons or (Reason(JobTerm.PLACED, hosts),)
        move = partial(self._jobs.move, plan=plan, excluded=frozenset[str]())
        self._attempt(job, partial(move, job, JobState.PLANNED, reasons, self._actor))

    def wait(self, job: StoredJob, reasons: Sequence[Reason], *, postponed: bool) -> None:
        """Store why a job waits, where that is new; hosts that nova refused are left out of one round only."""
        changes: dict[str, Any] = {}
        if postponed:
            changes |= {"postponed": job.postponed + 1, "postponed_at": self.now}
        if job.excluded and job.not_before <= self.now:
            changes["excluded"] = frozenset[str]()
        if changes or _terms(reasons) != _terms(job.reasons):
            change = partial(self._jobs.set, **(changes or {"postponed": job.postponed}))
            self._attempt(job, partial(change, job, self._actor, reasons))

    def _attempt(self, job: StoredJob, change: Callable[[], StoredJob]) -> None:
        try:
            self.changed += change().version != job.version
        except NotLeaderError:
            raise
        except LostRaceError as error:
            _LOG.info("job %s: %s", job.uuid, error)
            self.failed += 1
        except NumaExtError as error:
            _LOG.warning("job %s is %s and stays so for now: %s", job.uuid, job.state, error)
            self.failed += 1


def _carried_on(saga: Saga, job: StoredJob) -> StoredJob:
    """Carry a job on until it has to wait for nova, or has no place any more."""
    before, job = job, saga.carry_on(job)
    while job.state is not before.state and job.state.active:
        before, job = job, saga.carry_on(job)
    return job


def _terms(reasons: Sequence[Reason]) -> list[tuple[str, str]]:
    return [(each.term, each.where) for each in reasons]
