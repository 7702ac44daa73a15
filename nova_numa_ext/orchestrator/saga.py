# SPDX-License-Identifier: Apache-2.0
"""How one job is carried on: from places to servers, and back.

Each call changes one job by one thing, so that an engine that dies at any point leaves a job that the next one carries
on::

    PLANNED    claim what the plan names       step "claim"     undone: released
    CLAIMED    make server groups              step "group"     undone: deleted
    BUILDING   make servers, wait for them     step "servers"   undone: deleted, waited for until they are gone
    RUNNING    look whether they are there
    ENDING     undo the steps, the last one first, then go where the job is to end

A step is stored before it is begun. What it may have done when its end was not stored is found again: a claim by its
consumer, a group by its name, a server by its tags. Servers are written as the job's user, and the leader's term is
renewed right before each write. Of two servers for one member the one counts that was stored first; the other is
deleted.
"""

import uuid as uuids
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nova_numa_ext.orchestrator.cloud.servers import (
    TAG,
    JobServer,
    QuotaError,
    RefusedError,
    ServerRequest,
    UserServers,
)
from nova_numa_ext.orchestrator.cloud.trusts import TrustError, Trusts
from nova_numa_ext.orchestrator.store.jobs import Actor, Jobs, Step, StoredJob, StoredPart
from nova_numa_ext.policy.jobs.job import BuildFailure, Scope
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.claims import Claim, ClaimStore, NoRoomError, emptied
from placement_traits.errors import ConflictError, NumaExtError
from placement_traits.names import JOB_CONSUMER
from placement_traits.reason import Reason

CLAIM: Final = "claim"
GROUP: Final = "group"
SERVERS: Final = "servers"

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

    :param actor: the engine, with its term
    :param lead: renews the term; raises :class:`.store.leader.NotLeaderError` when it is over
    """

    jobs: Jobs
    trusts: Trusts
    claims: ClaimStore
    actor: Actor
    lead: Callable[[], None]


class Saga:
    """Carries jobs on.

    :param engaged: with what
    :param now: the database's clock at the beginning of the round
    """

    def __init__(self, engaged: Engaged, now: float) -> None:
        self._jobs = engaged.jobs
        self._trusts = engaged.trusts
        self._claims = engaged.claims
        self._actor = engaged.actor
        self._lead = engaged.lead
        self._now = now

    def carry_on(self, job: StoredJob) -> StoredJob:
        """Do what is next for a job that has places; return it as it is afterwards.

        :raises LostRaceError: its user has changed it meanwhile; the next round goes on
        :raises NotLeaderError: the term is over
        :raises ServiceUnavailableError: nova, Keystone, Placement or the database does not answer
        """
        if job.cancelled and job.target is not JobState.CANCELLED:
            return self.end(job, JobState.CANCELLED, job.reasons)
        try:
            return _NEXT[job.state](self, job)
        except BuildError as error:
            return self.end(job, error.to, (error.reason,))
        except QuotaError as error:
            return self.end(job, JobState.QUEUED, (Reason(JobTerm.QUOTA, str(error)),))
        except RefusedError as error:
            return self.end(job, JobState.FAILED, (Reason(JobTerm.REFUSED, str(error), "nova"),))
        except TrustError as error:
            return self._without_user(job, error)

    def end(self, job: StoredJob, to: JobState, reasons: Sequence[Reason]) -> StoredJob:
        """Let a job end, or go back to the queue: at once when it has nothing to be undone.

        :param to: QUEUED, DONE, FAILED or CANCELLED
        """
        if job.state is JobState.QUEUED:
            return self._finish(job, to, reasons)
        if job.state is JobState.PLANNED:
            return self._undone(job, to, reasons)
        if job.state is JobState.ENDING:
            return self._jobs.set(job, self._actor, reasons, target=to)
        return self._jobs.move(job, JobState.ENDING, reasons, self._actor, target=to)

    # States ---------------------------------------------------------------------------------------------------------

    def _claim(self, job: StoredJob) -> StoredJob:
        assert job.plan is not None, f"job {job.uuid} is planned without a plan"
        if not job.plan.claims:
            return self._move(job, JobState.CLAIMED, Reason(JobTerm.CLAIMED, 0))
        step = next((each for each in job.steps if each.name == CLAIM), None)
        if step is None:
            step = Step(CLAIM, str(uuids.uuid4()))
            job = self._begun(job, step)
        assert job.plan is not None
        amounts: dict[str, dict[str, int]] = {}
        for each in job.plan.claims:
            amounts.setdefault(each.provider, {})[each.resource_class] = each.amount
        self._lead()
        try:
            self._claims.write(Claim(step.about, JOB_CONSUMER, job.project, job.user, amounts))
        except (NoRoomError, ConflictError) as error:
            raise BuildError(Reason(JobTerm.CLAIM_CONFLICT, str(error)), JobState.QUEUED) from error
        return self._move(job, JobState.CLAIMED, Reason(JobTerm.CLAIMED, len(job.plan.claims)))

    def _group(self, job: StoredJob) -> StoredJob:
        for part in job.parts:
            policy = _group_policy(job, part)
            if policy:
                job = self._begun(job, Step(GROUP, part.name))
                servers, name = self._trusts.servers(job.trust), _group_name(job, part.name)
                if servers.group(name) is None:
                    self._lead()
                    servers.make_group(name, policy)
        for part in job.parts:
            job = self._begun(job, Step(SERVERS, part.name))
        return self._move(job, JobState.BUILDING, Reason(JobTerm.BUILDING, _count(job)))

    def _build(self, job: StoredJob) -> StoredJob:
        servers = self._trusts.servers(job.trust)
        there = servers.of_job(job.uuid)
        self._drop_duplicates(job, servers, there)
        for part in job.parts:
            job = self._judge(job, part, servers, there)
        for part in job.parts:
            job = self._fill(job, part.name, servers, there)
        kept = [uuid for part in job.parts for uuid in part.servers.values() if uuid]
        active = {each.uuid for each in there if each.status == "ACTIVE"}
        if not kept:
            raise BuildError(job.reasons[0], JobState.QUEUED)
        if not active.issuperset(kept):
            return job
        reason = Reason(JobTerm.BUILT, len(kept))
        if len(kept) < _count(job):
            short = next(part for part in job.parts if "" in part.servers.values())
            built = sum(bool(uuid) for uuid in short.servers.values())
            reason = Reason(JobTerm.PARTLY_BUILT, built, short.count, short.name)
        return self._move(job, JobState.RUNNING, reason, refusals=0)

    def _watch(self, job: StoredJob) -> StoredJob:
        if job.walltime_s and job.started_at and self._now >= job.started_at + job.walltime_s:
            reason = Reason(JobTerm.WALLTIME, job.walltime_s)
            return self.end(job, JobState.DONE, (reason,))
        servers = self._trusts.servers(job.trust)
        there = servers.of_job(job.uuid)
        self._drop_duplicates(job, servers, there)
        counted = {uuid for part in job.parts for uuid in part.servers.values() if uuid}
        if not any(each.uuid in counted for each in there):
            return self.end(job, JobState.DONE, (Reason(JobTerm.SERVERS_GONE, len(counted)),))
        return job

    def _undo(self, job: StoredJob) -> StoredJob:
        assert job.target is not None, f"job {job.uuid} ends without an end"
        return self._undone(job, job.target, job.reasons)

    # Steps ----------------------------------------------------------------------------------------------------------

    def _begun(self, job: StoredJob, step: Step) -> StoredJob:
        """Store a step before it is begun, unless that was done before."""
        if any((each.name, each.about) == (step.name, step.about) for each in job.steps):
            return job
        return self._jobs.set(job, self._actor, steps=(*job.steps, step))

    def _undone(self, job: StoredJob, to: JobState, reasons: Sequence[Reason]) -> StoredJob:
        """Undo the last step; with none left, finish. A step that takes time is looked at again in the next round."""
        while job.steps:
            if not self._undo_step(job, job.steps[-1]):
                return job
            job = self._jobs.set(job, self._actor, steps=job.steps[:-1])
        return self._finish(job, to, reasons)

    def _undo_step(self, job: StoredJob, step: Step) -> bool:
        """Undo a step; return whether nothing is left of it."""
        if step.name == CLAIM:
            held = self._claims.read(step.about)
            if held:
                self._lead()
                self._claims.write(emptied(held))
            return True
        servers = self._trusts.servers(job.trust)
        if step.name == GROUP:
            group = servers.group(_group_name(job, step.about))
            if group:
                self._lead()
                servers.delete_group(group)
            return True
        left = [each for each in servers.of_job(job.uuid) if each.part == step.about]
        for each in left:
            self._lead()
            servers.delete(each.uuid)
        return not left

    def _finish(self, job: StoredJob, to: JobState, reasons: Sequence[Reason]) -> StoredJob:
        for part in job.parts:
            if part.servers:
                job = self._jobs.set_servers(job, part, {}, self._actor, replaced=0)
        changes: dict[str, Any] = {"plan": None, "target": None}
        if to is JobState.QUEUED:
            wait_s = min(_FIRST_BACK_OFF_S * 2.0**job.refusals, _LONGEST_BACK_OFF_S)
            if job.state is JobState.QUEUED:
                return job
            changes |= {"not_before": self._now + wait_s, "refusals": job.refusals + 1}
            if any(reason.term == JobTerm.NO_VALID_HOST for reason in reasons) and job.plan:
                changes["excluded"] = frozenset(place.host for place in job.plan.places)
                changes |= {"postponed": job.postponed + 1, "postponed_at": self._now}
        else:
            self._lead()
            self._trusts.delete(job.trust)
        return self._jobs.move(job, to, reasons, self._actor, **changes)

    def _without_user(self, job: StoredJob, error: TrustError) -> StoredJob:
        """The user's servers are out of reach: they stay, what the job itself holds is given back."""
        reason = Reason(JobTerm.TRUST, str(error))
        if job.state is not JobState.ENDING:
            return self.end(job, JobState.FAILED, (reason,))
        kept = tuple(step for step in job.steps if step.name == CLAIM)
        job = self._jobs.set(job, self._actor, (reason,), steps=kept, target=JobState.FAILED)
        return self._undone(job, JobState.FAILED, (reason,))

    def _move(self, job: StoredJob, to: JobState, reason: Reason, **changes: Any) -> StoredJob:
        return self._jobs.move(job, to, (reason,), self._actor, **changes)

    # Servers --------------------------------------------------------------------------------------------------------

    def _fill(
        self, job: StoredJob, name: str, servers: UserServers, there: Sequence[JobServer]
    ) -> StoredJob:
        """Give each member of a part a server: one that is there already, or a new one."""
        part = _part(job, name)
        missing = [member for member in range(part.count) if member not in part.servers]
        group = ""
        if missing and any((each.name, each.about) == (GROUP, name) for each in job.steps):
            group = servers.group(_group_name(job, name)) or ""
        for member in missing:
            part = _part(job, name)
            uuid = _usable(there, name, member)
            if uuid is None:
                self._lead()
                uuid = servers.create(_request(job, part, member, group))
            job = self._jobs.set_servers(job, part, {**part.servers, member: uuid}, self._actor)
        return job

    def _drop_duplicates(
        self, job: StoredJob, servers: UserServers, there: Sequence[JobServer]
    ) -> None:
        """Delete servers of members for which another one counts."""
        counted = {part.name: part.servers for part in job.parts}
        for each in there:
            counts = counted.get(each.part, {}).get(each.member, each.uuid)
            if counts != each.uuid:
                self._lead()
                servers.delete(each.uuid)

    def _judge(
        self, job: StoredJob, part: StoredPart, servers: UserServers, there: Sequence[JobServer]
    ) -> StoredJob:
        """Do what a part asks for where one of its servers has failed."""
        for member, server, reason in _failed(part, there):
            if part.on_failure is not BuildFailure.KEEP and server and server.no_valid_host:
                raise BuildError(reason, JobState.QUEUED)
            replaces = part.on_failure is BuildFailure.REPLACE and part.replaced < _REPLACEMENTS
            if part.on_failure is not BuildFailure.KEEP and not replaces:
                raise BuildError(reason, JobState.FAILED)
            job = self._jobs.set(job, self._actor, (reason,), refusals=job.refusals)
            part = _part(job, part.name)
            left = {one: uuid for one, uuid in part.servers.items() if one != member}
            if not replaces:
                left[member] = ""
            job = self._jobs.set_servers(
                job, part, left, self._actor, replaced=part.replaced + replaces
            )
            part = _part(job, part.name)
            if server:
                self._lead()
                servers.delete(server.uuid)
        return job


_NEXT: Final[Mapping[JobState, Callable[[Saga, StoredJob], StoredJob]]] = {
    JobState.PLANNED: Saga._claim,
    JobState.CLAIMED: Saga._group,
    JobState.BUILDING: Saga._build,
    JobState.RUNNING: Saga._watch,
    JobState.ENDING: Saga._undo,
}


def _failed(
    part: StoredPart, there: Sequence[JobServer]
) -> Iterator[tuple[int, JobServer | None, Reason]]:
    """Yield members whose server has failed or is gone, with the reason."""
    by_uuid = {each.uuid: each for each in there}
    for member, uuid in part.servers.items():
        server = by_uuid.get(uuid)
        if not uuid:
            continue
        if server is None:
            yield member, None, Reason(JobTerm.SERVER_FAILED, uuid, "it was deleted", part.name)
        elif server.no_valid_host:
            yield member, server, Reason(JobTerm.NO_VALID_HOST, server.fault, where=part.name)
        elif server.status == "ERROR":
            yield member, server, Reason(JobTerm.SERVER_FAILED, uuid, server.fault, part.name)


def _usable(there: Sequence[JobServer], part: str, member: int) -> str | None:
    """Return the server that was made for a member and not stored, the oldest of several."""
    for each in there:
        if (each.part, each.member) == (part, member) and each.status != "ERROR":
            return each.uuid
    return None


def _part(job: StoredJob, name: str) -> StoredPart:
    return next(part for part in job.parts if part.name == name)


def _count(job: StoredJob) -> int:
    return sum(part.count for part in job.parts)


def _group_name(job: StoredJob, part: str) -> str:
    return f"{TAG}{job.uuid}:{part}"


def _group_policy(job: StoredJob, part: StoredPart) -> str:
    """Return which rule nova keeps for the servers of a part, '' for none."""
    if part.apart:
        return "anti-affinity"
    places = [place for place in job.plan.places if place.part == part.name] if job.plan else []
    if part.wait_for[0].scope is Scope.HOST and part.count > 1 and len(places) == 1:
        return "affinity"
    return ""


def _request(job: StoredJob, part: StoredPart, member: int, group: str) -> ServerRequest:
    return ServerRequest(
        job=job.uuid,
        part=part.name,
        member=member,
        name=f"{job.name}-{part.name}-{member}",
        flavor=part.flavor,
        image=part.image,
        networks=part.networks,
        group=group,
    )
