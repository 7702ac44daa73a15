# SPDX-License-Identifier: Apache-2.0
"""How one job is carried on: from places to servers, and back.

Each call changes one job by one thing, so that an engine that dies at any point leaves a job that the next one carries
on::

    PLANNED    claim what the plan names       step "claim"     undone: released
    CLAIMED    make server groups              step "group"     undone: deleted, with what they hold of a fabric
    BUILDING   make servers, wait for them     step "servers"   undone: deleted, waited for until they are gone
    RUNNING    look whether they are there
    ENDING     undo the steps, the last one first, then go where the job is to end

A step is stored before it is begun. What it may have done when its end was not stored is found again: a claim by its
consumer, a group by its name, a server by its tags. What was asked for and not answered may come to be later: such a
step is undone when nothing of it was there for :data:`LATE_S` seconds, and looked for some minutes longer by
:class:`.reconcile.LostServers`. Servers are written as the job's user, and the
leader's term is renewed right before each write. Of two servers for one member the one counts that was stored first;
the other is deleted.

Where a job is to end is decided once: in ENDING only its user changes that, by cancelling it. What goes wrong on the
way is tried again in each round, and reported when it takes long. Without the user's rights nothing is deleted; the
job's claims are held as long as its servers have a host.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from nova_numa_ext.orchestrator import members, part_servers, queued
from nova_numa_ext.orchestrator.cloud.asking import SilentError
from nova_numa_ext.orchestrator.cloud.hosts import ServerHosts
from nova_numa_ext.orchestrator.cloud.servers import (
    AnswerError,
    QuotaError,
    RefusedError,
    UserServers,
    shared_name,
)
from nova_numa_ext.orchestrator.cloud.trusts import TrustError, Trusts
from nova_numa_ext.orchestrator.members import Found
from nova_numa_ext.orchestrator.steps import (
    CLAIM,
    GROUP,
    SERVERS,
    claim_consumer,
    group_name,
    step_of,
    with_step,
)
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.stored_job import Step, StoredJob, StoredPart
from nova_numa_ext.policy.jobs import postponing
from nova_numa_ext.policy.jobs.job import LONGEST_ENDING_S, BuildFailure
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.claim_store import ClaimStore, NoRoomError
from placement_traits.claims import Claim, emptied
from placement_traits.client import PlacementError
from placement_traits.errors import ConflictError, NumaExtError, ServiceUnavailableError
from placement_traits.names import JOB_CONSUMER
from placement_traits.reason import Reason

LATE_S: Final = 60.0
TRUST_PATIENCE_S: Final = 600.0

_LATER: Final = (JobTerm.NO_VALID_HOST, JobTerm.QUOTA)  # what nova may do at another time

_FIRST_BACK_OFF_S: Final = 30.0
_LONGEST_BACK_OFF_S: Final = 900.0
_REPLACEMENTS: Final = 3


class BuildError(NumaExtError):
    """The job cannot get its servers now, or ever.

    :param reason: why
    :param to: where it goes when what it has is undone
    """

    def __init__(self, reason: Reason, to: JobState) -> None:
        super().__init__(reason, to)
        self.reason = reason
        self.to = to

    def __str__(self) -> str:
        return str(self.reason)


@dataclass(frozen=True, slots=True)
class Engaged:
    """With what jobs are carried on.

    :param hosts: where servers really are
    :param actor: the engine, with its term
    :param lead: renews the term; raises :class:`.store.leader.NotLeaderError` when it is over
    :param servers_per_round: so many are asked for in one call of :meth:`Saga.carry_on`, at most
    :param build_timeout_s: after so many a server that is not active has failed
    :param hint: returns what nova-scheduler has to know of a part's server, '' for nothing
    """

    jobs: Jobs
    trusts: Trusts
    claims: ClaimStore
    hosts: ServerHosts
    actor: Actor
    lead: Callable[[], None]
    servers_per_round: int
    build_timeout_s: float
    hint: Callable[[StoredJob, StoredPart], str]


class Saga:
    """Carries jobs on.

    :param engaged: with what
    :param now: the database's clock
    """

    def __init__(self, engaged: Engaged, now: float) -> None:
        self._jobs = engaged.jobs
        self._trusts = engaged.trusts
        self._claims = engaged.claims
        self._hosts = engaged.hosts
        self._actor = engaged.actor
        self._lead = engaged.lead
        self._servers_per_round = engaged.servers_per_round
        self._build_timeout_s = engaged.build_timeout_s
        self._hint = engaged.hint
        self._ahead_s = now - time.monotonic()

    @property
    def _now(self) -> float:
        """The database's clock, without asking it."""
        return time.monotonic() + self._ahead_s

    def carry_on(self, job: StoredJob) -> StoredJob:
        """Do what is next for a job that has places; return it as it is afterwards.

        :raises LostRaceError: its user has changed it meanwhile; the next round goes on
        :raises NotLeaderError: the term is over
        :raises ServiceUnavailableError: nova, Keystone, Placement or the database does not answer
        """
        if job.cancelled and job.target is not JobState.CANCELLED:
            return self.end(job, JobState.CANCELLED, job.reasons)
        try:
            after = _NEXT[job.state](self, job)
        except (BuildError, QuotaError, RefusedError) as error:
            to, reason = _stopped(error)
            return self.end(self._again(job), to, (reason,))
        except TrustError as error:
            return self.without_user(self._again(job), error)
        return self.with_user(after) if after.state.active and not _abandoned(after) else after

    def end(self, job: StoredJob, to: JobState, reasons: Sequence[Reason]) -> StoredJob:
        """Let a job end, or go back to the queue: at once when it has nothing to be undone.

        One that ends already goes where it was to go, unless its user has cancelled it meanwhile.

        :param to: QUEUED, DONE, FAILED or CANCELLED
        """
        if job.state is JobState.QUEUED or (job.state is JobState.PLANNED and not job.steps):
            return self._finish(job, to, reasons)
        if job.state is not JobState.ENDING:
            return self._jobs.move(job, JobState.ENDING, reasons, self._actor, target=to)
        if to is JobState.CANCELLED:
            return self._jobs.set(job, self._actor, reasons, target=to)
        return job

    # States ---------------------------------------------------------------------------------------------------------

    def _claim(self, job: StoredJob) -> StoredJob:
        assert job.plan is not None, f"job {job.uuid} is planned without a plan"
        amounts: dict[str, dict[str, int]] = {}
        for each in job.plan.claims:
            amounts.setdefault(each.provider, {})[each.resource_class] = each.amount
        if not amounts:
            return self._move(job, JobState.CLAIMED, Reason(JobTerm.CLAIMED, 0))
        begun = [each for each in job.steps if each.name == CLAIM]
        step = begun[0] if begun else Step(CLAIM, claim_consumer(job.uuid, job.version))
        claim = Claim(step.about, JOB_CONSUMER, job.project, job.user, amounts)
        job = self._asking(job, step)
        try:
            self._claims.write(claim, may=self._lead)
        except (PlacementError, ConflictError) as error:
            self._noted(job, step)
            lost = isinstance(error, NoRoomError | ConflictError)
            term = JobTerm.CLAIM_CONFLICT if lost else JobTerm.CLAIM_REFUSED
            raise BuildError(Reason(term, str(error)), JobState.QUEUED) from error
        reason = Reason(JobTerm.CLAIMED, sum(map(len, amounts.values())))
        return self._move(job, JobState.CLAIMED, reason, steps=with_step(job.steps, step))

    def _group(self, job: StoredJob) -> StoredJob:
        for part in job.parts:
            policy = part_servers.group_policy(job, part)
            if policy:
                step = step_of(job, GROUP, part.name)
                servers, name = self._trusts.servers(job.trust), group_name(job.uuid, part.name)
                groups = servers.groups(name)
                step = step.found(len(groups))
                if not groups:
                    job, step, _ = self._made(job, step, partial(servers.make_group, name, policy))
                job = self._noted(job, step)
        steps = job.steps
        for part in job.parts:
            steps = with_step(steps, Step(SERVERS, part.name, asked=0))
        return self._move(
            job, JobState.BUILDING, Reason(JobTerm.BUILDING, _count(job)), steps=steps
        )

    def _build(self, job: StoredJob) -> StoredJob:
        servers = self._trusts.servers(job.trust)
        found = members.find(job, servers)
        job = self._came(job, found)
        servers.delete(self._led(found.duplicates(job)))
        late = self._is_late(job)
        for part in job.parts:
            job = self._judge(job, part, servers, found, late=late)
        if self._is_late(job):
            job = self._without_missing(job)
        job, found = self._together(job, servers, found)
        missing = [each for part in job.parts for each in members.missing(part)]
        for part in job.parts:
            now = [each for name, each in missing[: self._servers_per_round] if name == part.name]
            if now:
                job = self._fill(job, part.name, now, servers, found)
        job = self._placed(job, found)
        if len(missing) > self._servers_per_round:
            return job
        kept = members.counted(job)
        active = {uuid for uuid, each in found.by_uuid.items() if each.status == "ACTIVE"}
        if not kept:
            raise BuildError(job.reasons[0], JobState.QUEUED)
        if not active.issuperset(kept):
            return job
        reason = Reason(JobTerm.BUILT, len(kept))
        if len(kept) < _count(job):
            short = next(part for part in job.parts if "" in part.servers.values())
            built = sum(bool(uuid) for uuid in short.servers.values())
            reason = Reason(JobTerm.PARTLY_BUILT, built, short.count, short.name)
        return self._move(job, JobState.RUNNING, reason, refusals=0, excluded=frozenset[str]())

    def _watch(self, job: StoredJob) -> StoredJob:
        over = time_over(job, self._now)
        if over:
            return self.end(job, JobState.DONE, (over,))
        servers = self._trusts.servers(job.trust)
        found = members.find(job, servers)
        if found.counted.isdisjoint(found.by_uuid):
            reason = Reason(JobTerm.SERVERS_GONE, len(found.counted))
            return self.end(job, JobState.DONE, (reason,))
        job = self._placed(self._came(job, found), found)
        servers.delete(self._led(found.duplicates(job)))
        return job

    def _undo(self, job: StoredJob) -> StoredJob:
        if _abandoned(job):
            return self._without_servers(job)
        try:
            after = self._undone(job)
        except ServiceUnavailableError as error:
            now = self._again(job)
            self._report(now, f"{_last(now)}, {_silence(error)}")
            raise
        if after.state is JobState.ENDING:
            return self._report(after, _last(after))
        return after

    # Steps ----------------------------------------------------------------------------------------------------------

    def _asking(self, job: StoredJob, step: Step) -> StoredJob:
        """Store right before something is asked for that it may come to be; renews the term.

        :raises NotLeaderError: the term is over, or this engine is being stopped
        """
        self._lead()
        return self._noted(job, replace(step, asked_at=self._now))

    def _made(
        self, job: StoredJob, step: Step, make: Callable[[], str], count: int = 1
    ) -> tuple[StoredJob, Step, str]:
        """Have nova make something; return the step, too, which is still noted as one that may come to more.

        :param count: so many are asked for
        """
        asked = step.asks(count)
        job = self._asking(job, asked)
        try:
            return job, asked, make()
        except (QuotaError, RefusedError):
            self._noted(job, step)
            raise

    def _came(self, job: StoredJob, found: Found) -> StoredJob:
        """Note of which parts all servers are there that nova was asked for, answered or not: none comes late."""
        for part in job.parts:
            step = step_of(job, SERVERS, part.name)
            if step.asked_at is not None:
                job = self._noted(job, step.found(len(found.of_part(part))))
        return job

    def _noted(self, job: StoredJob, step: Step) -> StoredJob:
        steps = with_step(job.steps, step)
        return job if steps == job.steps else self._jobs.set_steps(job, steps, self._actor)

    def _undone(self, job: StoredJob) -> StoredJob:
        """Undo the last step; with none left, finish. A step that takes time is looked at again in the next round."""
        while job.steps:
            job, is_left = self._undo_step(job, job.steps[-1])
            step = job.steps[-1]
            late = step.asked_at is not None and self._now < step.asked_at + LATE_S
            if is_left or late:
                return job
            changes: dict[str, Any] = {}
            if step.asked_at is not None and step.name != CLAIM:
                changes["unanswered_at"] = step.asked_at
            job = self._jobs.set_steps(job, job.steps[:-1], self._actor, **changes)
        assert job.target is not None, f"job {job.uuid} ends without an end"
        return self._finish(job, job.target, _without(job.reasons, JobTerm.STILL_THERE))

    def _undo_step(self, job: StoredJob, step: Step) -> tuple[StoredJob, bool]:
        """Undo a step; return the job, and whether something of the step may be left."""
        if step.name == CLAIM:
            self._release(step.about)
            return job, False
        servers = self._trusts.servers(job.trust)
        if step.name == GROUP:
            groups = servers.groups(group_name(job.uuid, step.about))
            job = self._noted(job, step.found(len(groups)))
            for group in self._led(groups):
                if queued.is_group(_part(job, step.about)):
                    self._release(group)
                servers.delete_group(group)
            return job, False
        found = members.find(job, servers)
        job = self._placed(self._came(job, found), found)
        left = found.of_part(_part(job, step.about))
        servers.delete(self._led(left))
        return job, bool(left)

    def _release(self, consumer: str) -> None:
        """Release what a consumer holds, if it holds anything."""
        held = self._claims.read(consumer)
        if held:
            self._claims.write(emptied(held), may=self._lead)

    def _finish(self, job: StoredJob, to: JobState, reasons: Sequence[Reason]) -> StoredJob:
        for part in job.parts:
            if part.servers:
                job = self._jobs.set_servers(job, part, {}, self._actor, replaced=0)
        changes: dict[str, Any] = {"plan": None, "target": None, "trust_lost_at": None}
        if to is JobState.QUEUED:
            if job.state is JobState.QUEUED:
                return job
            if not _has(reasons, JobTerm.PREEMPTED):
                wait_s = min(_FIRST_BACK_OFF_S * 2.0 ** min(job.refusals, 10), _LONGEST_BACK_OFF_S)
                changes |= {"not_before": self._now + wait_s, "refusals": job.refusals + 1}
            changes["excluded"] = frozenset[str]()
            if _has(reasons, JobTerm.NO_VALID_HOST) and job.plan:
                hosts = [place.host for place in (*job.plan.places, *job.plan.spare)]
                changes |= postponing.refused(job.excluded, job.postponed, hosts, self._now)
        return self._jobs.move(job, to, reasons, self._actor, **changes)

    def _report(self, job: StoredJob, left: str) -> StoredJob:
        """Say once that a job does not get to its end; its places are not free soon."""
        took_s = self._now - (job.ending_at or self._now)
        if took_s < LONGEST_ENDING_S or _has(job.reasons, JobTerm.STILL_THERE):
            return job
        reason = Reason(JobTerm.STILL_THERE, round(took_s), left)
        return self._jobs.set(job, self._actor, (*job.reasons, reason), target=job.target)

    def _move(self, job: StoredJob, to: JobState, reason: Reason, **changes: Any) -> StoredJob:
        return self._jobs.move(job, to, (reason,), self._actor, **changes)

    def _again(self, job: StoredJob) -> StoredJob:
        """Return a job as it is now: a part of what was to be done may have been stored."""
        now = self._jobs.read(job.uuid)
        assert now is not None, f"job {job.uuid} was deleted before it had ended"
        return now

    # Without the user's rights --------------------------------------------------------------------------------------

    def with_user(self, job: StoredJob) -> StoredJob:
        """Keystone lets the service act for a job's user; if it did not before, that is forgotten."""
        if job.trust_lost_at is None:
            return job
        reasons = _without(job.reasons, JobTerm.TRUST)
        return self._jobs.set(job, self._actor, reasons, trust_lost_at=None)

    def without_user(self, job: StoredJob, error: TrustError) -> StoredJob:
        """Keystone refuses to let the service act: for a moment, or the user is gone.

        A job that waits, or has nothing yet, fails at once after a while; another one when its servers are gone.

        :raises LostRaceError: the job has changed since it was read
        """
        reason = Reason(JobTerm.TRUST, str(error))
        if job.trust_lost_at is None:
            reasons = (*_without(job.reasons, JobTerm.TRUST), reason)
            return self._jobs.set(job, self._actor, reasons, trust_lost_at=self._now)
        if self._now < job.trust_lost_at + TRUST_PATIENCE_S:
            return job
        if job.state is not JobState.ENDING:
            return self.end(job, JobState.FAILED, (reason,))
        if job.target is JobState.QUEUED:
            job = self._jobs.set(job, self._actor, (reason,), target=JobState.FAILED)
        return self._without_servers(job)

    def _without_servers(self, job: StoredJob) -> StoredJob:
        """Wait until no server of the job has a host any more: its user may have gone, its servers stay."""
        if any(self._hosts.host(uuid) for uuid in members.counted(job)):
            return job
        claims = tuple(step for step in job.steps if step.name == CLAIM)
        return self._undone(self._jobs.set_steps(job, claims, self._actor))

    # Servers --------------------------------------------------------------------------------------------------------

    def _led(self, uuids: Iterable[str]) -> Iterator[str]:
        """Yield what is to be deleted, the term renewed right before each."""
        for uuid in uuids:
            self._lead()
            yield uuid

    def _together(
        self, job: StoredJob, servers: UserServers, found: Found
    ) -> tuple[StoredJob, Found]:
        """Have the servers of each group on the fabric made by one request, so that nova places them as a whole.

        Which of them is which member is found as of any server that could not be stored. What fails later is made
        again one by one, in the group's own leafs.
        """
        for part in job.parts:
            if not part_servers.is_made_together(part) or part.servers or found.of_part(part):
                continue
            groups = servers.groups(group_name(job.uuid, part.name))
            request = part_servers.request(
                job, part, 0, min(groups, default=""), self._hint(job, part)
            )
            request = replace(request, name=shared_name(job.name, part.name), count=part.count)
            step = step_of(job, SERVERS, part.name)
            make = partial(servers.create, request)
            job, step, _ = self._made(job, step, make, part.count)
            job = self._noted(job, step)
            found = members.find(job, servers)
        return job, found

    def _fill(
        self, job: StoredJob, name: str, missing: Sequence[int], servers: UserServers, found: Found
    ) -> StoredJob:
        """Give members of a part a server: one that is there already, or a new one."""
        groups = []
        if any((each.name, each.about) == (GROUP, name) for each in job.steps):
            groups = servers.groups(group_name(job.uuid, name))
        step = step_of(job, SERVERS, name)
        for member in missing:
            part = _part(job, name)
            uuid = found.usable(name, member)
            if uuid is None:
                request = part_servers.request(
                    job, part, member, min(groups, default=""), self._hint(job, part)
                )
                job, step, uuid = self._made(job, step, partial(servers.create, request))
            job = self._jobs.set_servers(job, part, {**part.servers, member: uuid}, self._actor)
        return self._noted(job, step)

    def _placed(self, job: StoredJob, found: Found) -> StoredJob:
        """Store where servers really are: nova's scheduler decides, and operators move them.

        Of a job that ends only those are left out that have no host any more.
        """
        for part in job.parts:
            hosts = found.somewhere(part)
            is_ending = job.state is JobState.ENDING
            looked_at: Mapping[int, str] = {} if is_ending else part.servers
            for member, uuid in looked_at.items():
                server = found.by_uuid.get(uuid)
                host = self._hosts.host(uuid, server.host_id) if server and server.host_id else None
                if host:
                    hosts[member] = host
                elif server and server.host_id:
                    hosts.pop(member, None)
            if hosts != part.hosts:
                job = self._jobs.set_servers(job, part, part.servers, self._actor, hosts=hosts)
        return job

    def _is_late(self, job: StoredJob) -> bool:
        """Return whether the servers of a job that is built should be active by now."""
        return self._now >= (job.building_at or self._now) + self._build_timeout_s

    def _without_missing(self, job: StoredJob) -> StoredJob:
        """Do without members that nova has not made in time, where their part allows it.

        :raises BuildError: it does not: the job may have them later
        """
        for name in dict.fromkeys(name for part in job.parts for name, _ in members.missing(part)):
            part = _part(job, name)
            left = {member: "" for _, member in members.missing(part)}
            late_s = round(self._build_timeout_s)
            reason = Reason(JobTerm.NOT_BUILT, len(left), late_s, name)
            if part.on_failure is not BuildFailure.KEEP:
                raise BuildError(reason, JobState.QUEUED)
            job = self._jobs.set(job, self._actor, (reason,))
            job = self._jobs.set_servers(job, part, {**part.servers, **left}, self._actor)
        return job

    def _judge(
        self, job: StoredJob, part: StoredPart, servers: UserServers, found: Found, *, late: bool
    ) -> StoredJob:
        """Do what a part asks for where one of its servers has failed.

        :param late: one that nova still builds has, too; what is made again gets as much time
        """
        for member, server, reason in found.failed(part, self._build_timeout_s if late else None):
            if part.on_failure is not BuildFailure.KEEP and reason.term in _LATER:
                raise BuildError(reason, JobState.QUEUED)
            replaces = part.on_failure is BuildFailure.REPLACE and part.replaced < _REPLACEMENTS
            if part.on_failure is not BuildFailure.KEEP and not replaces:
                raise BuildError(reason, JobState.FAILED)
            since = {"building_at": self._now} if replaces else {}
            job = self._jobs.set(job, self._actor, (reason,), **since)
            part = _part(job, part.name)
            left = {one: uuid for one, uuid in part.servers.items() if one != member}
            if not replaces:
                left[member] = ""
            job = self._jobs.set_servers(
                job, part, left, self._actor, replaced=part.replaced + replaces
            )
            part = _part(job, part.name)
            if server:
                servers.delete(self._led([server.uuid]))
        return job


_NEXT: Final[Mapping[JobState, Callable[[Saga, StoredJob], StoredJob]]] = {
    JobState.PLANNED: Saga._claim,
    JobState.CLAIMED: Saga._group,
    JobState.BUILDING: Saga._build,
    JobState.RUNNING: Saga._watch,
    JobState.ENDING: Saga._undo,
}


def time_over(job: StoredJob, now: float) -> Reason | None:
    """Return why a job that runs is to end by now, None while it has time."""
    if job.walltime_s and job.started_at and now >= job.started_at + job.walltime_s:
        return Reason(JobTerm.WALLTIME, job.walltime_s)
    if job.deadline_at is not None and now >= job.deadline_at:
        return Reason(JobTerm.DEADLINE_REACHED, "")
    return None


def _stopped(error: BuildError | QuotaError | RefusedError) -> tuple[JobState, Reason]:
    """Return where a job goes that cannot be carried on, and why."""
    match error:
        case BuildError():
            return error.to, error.reason
        case QuotaError():
            return JobState.QUEUED, Reason(JobTerm.QUOTA, str(error))
        case RefusedError():
            return JobState.FAILED, Reason(JobTerm.REFUSED, str(error), "nova")


def _abandoned(job: StoredJob) -> bool:
    """The job failed because its user's rights were gone: whatever they are by now, its servers stay."""
    failed = job.state is JobState.ENDING and job.target is JobState.FAILED
    return failed and _has(job.reasons[:1], JobTerm.TRUST)


def _last(job: StoredJob) -> str:
    """Return which step is undone next, for the job's user."""
    return f"{job.steps[-1].name} {job.steps[-1].about}" if job.steps else "its end"


def _silence(error: ServiceUnavailableError) -> str:
    """Return what stands in a job's way, for its user: the error's own words may name hosts and addresses."""
    match error:
        case AnswerError():
            return f"nova answered with {error.status}"
        case SilentError():
            return f"{error.service} does not answer"
    return "a service that jobs need does not answer"


def _has(reasons: Sequence[Reason], term: JobTerm) -> bool:
    return any(each.term == term for each in reasons)


def _without(reasons: Sequence[Reason], term: JobTerm) -> tuple[Reason, ...]:
    return tuple(each for each in reasons if each.term != term)


def _part(job: StoredJob, name: str) -> StoredPart:
    return next(part for part in job.parts if part.name == name)


def _count(job: StoredJob) -> int:
    return sum(part.count for part in job.parts)
