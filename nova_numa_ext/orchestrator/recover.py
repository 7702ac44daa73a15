# SPDX-License-Identifier: Apache-2.0
"""What an old database does not know, and what becomes of it (``numa-ext-manage recover``).

====================================================  ==============================================================
what is there                                         what becomes of it
====================================================  ==============================================================
servers of a job that waits, or is not known          adopted: the job has places, and goes on with these servers
servers of members for which gone ones count          adopted: they count
servers of a job that has ended                       left: its user may have been promised that they stay, or have
                                                      made them since with the same tags
server groups of jobs that are not known, without     deleted as their user
servers or members
claims of no job                                      adopted with the servers of their job, else released
trusts of no job                                      adopted with the servers of their user, else deleted
jobs that wait, whose trust is gone                   ended: a trust is deleted when its job has ended
jobs with servers, all gone, whose trust is there     back to the queue, held: they were stopped, or they ended and the
                                                      trust is not deleted yet; who releases them decides
all other jobs                                        kept: engines carry them on as after a crash
====================================================  ==============================================================

A job that is not known is made of what nova shows of its servers: what it has runs on, and servers that it lacks are
not made. Nothing is done by looking; who commits looks again, and what is deleted or released was found by both looks.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from nova_numa_ext.orchestrator import members
from nova_numa_ext.orchestrator.cloud import census as of_cloud
from nova_numa_ext.orchestrator.cloud.census import Census
from nova_numa_ext.orchestrator.cloud.hosts import ServerHosts
from nova_numa_ext.orchestrator.cloud.servers import JobServer, OwnedServer
from nova_numa_ext.orchestrator.cloud.trusts import TrustError, Trusts
from nova_numa_ext.orchestrator.job_survey import Adoption, Survey, surveyed
from nova_numa_ext.orchestrator.reservations import RESERVATION, consumer, unanswered
from nova_numa_ext.orchestrator.steps import CLAIM, GROUP, SERVERS
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.stored_job import NewJob, Sizes, Step, StoredJob, StoredPart
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts
from nova_numa_ext.policy.jobs.job import BuildFailure, JobKind
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.claim_store import ClaimStore
from placement_traits.claims import Claim, emptied
from placement_traits.names import JOB_CONSUMER, RESERVATION_CONSUMER
from placement_traits.reason import Reason

ACTOR: Final = Actor("numa-ext-manage recover")


class Recoverer:
    """Looks for what a database does not know, and makes it known.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when the database, Keystone, nova or
    Placement does not answer.
    """

    def __init__(
        self,
        jobs: Jobs,
        ended: EndedTrusts,
        trusts: Trusts,
        claims: ClaimStore,
        hosts: ServerHosts,
        *,
        also: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._jobs = jobs
        self._ended = ended
        self._trusts = trusts
        self._also = also
        self._claims = claims
        self._hosts = hosts

    def survey(self) -> Survey:
        """Look; change nothing."""
        census = of_cloud.taken(self._trusts)
        stored = {each.uuid: each for each in self._jobs.find(kind=JobKind.SERVERS)}
        claims = [
            each for each in self._claims.all() if each.type in (JOB_CONSUMER, RESERVATION_CONSUMER)
        ]
        replaced, stopped = self._changed(census, stored)
        known = self._ended.all() | {*self._also()}
        return surveyed(census, stored, claims, known, replaced=replaced, stopped=stopped)

    def commit(self, before: Survey, now: Survey) -> None:
        """Adopt what the last look has found, then delete and release what both have.

        Done a second time, after it broke off, it does what is left.
        """
        for adoption in now.adopted:
            self._adopt(adoption)
        for of_members in {uuid for uuid, _, _ in now.members}:
            self._count(of_members, now.members)
        for uuid, claim in now.regained.items():
            self._regain(uuid, claim)
        self._give_back(before, now)
        for job in self._jobs.find(states=(JobState.QUEUED,), kind=JobKind.SERVERS):
            if job.reserved and not unanswered(job):
                steps = (*job.steps, Step(RESERVATION, consumer(job)))
                self._jobs.set_steps(job, steps, ACTOR)  # so that engines write it again

    def _give_back(self, before: Survey, now: Survey) -> None:
        for stored in now.ended:
            if stored in before.ended:
                self._jobs.move(stored, JobState.FAILED, (Reason(JobTerm.ENDED_SINCE, ""),), ACTOR)
        for stored in now.stopped:
            if stored in before.stopped:
                why = (Reason(JobTerm.ADOPTED, 0), Reason(JobTerm.HELD, ACTOR.name))
                back = {"target": JobState.QUEUED, "held": True}
                self._jobs.move(stored, JobState.ENDING, why, ACTOR, **back)
        for claim in now.released:
            if claim in before.released:
                self._claims.write(emptied(claim))
        known = {group.uuid for group in before.groups}
        for group in now.groups:
            if group.uuid in known:
                self._trusts.servers(group.trust).delete_group(group.uuid)
        for trust in now.trusts:
            if trust in before.trusts:
                self._ended.add(trust)

    def _changed(
        self, census: Census, stored: Mapping[str, StoredJob]
    ) -> tuple[dict[tuple[str, str, int], str], list[StoredJob]]:
        """Return servers of members for which one counts that is gone, and jobs of which all are."""
        given = {each.trust for each in census.trusts}
        tagged: dict[str, list[JobServer]] = {}
        for each in census.servers:
            tagged.setdefault(each.job, []).append(each.server)
        replaced, stopped = {}, []
        for job in stored.values():
            has_places = job.state.active and job.state is not JobState.ENDING
            if not has_places or job.trust not in given:
                continue
            try:
                there = members.among(
                    job, tagged.get(job.uuid, ()), partial(self._trusts.servers, job.trust)
                )
            except TrustError:
                continue
            if there.counted and not there.by_uuid:
                stopped.append(job)
            for part in job.parts:
                for member, uuid in part.servers.items():
                    usable = there.usable(part.name, member)
                    if uuid and uuid not in there.by_uuid and usable:
                        replaced[job.uuid, part.name, member] = usable
        return replaced, stopped

    def _count(self, uuid: str, found: Mapping[tuple[str, str, int], str]) -> None:
        job = self._jobs.read(uuid)
        assert job is not None, f"job {uuid} went while it was recovered"
        for part in job.parts:
            servers = {
                member: found.get((uuid, part.name, member), counted)
                for member, counted in part.servers.items()
            }
            if servers != part.servers:
                job = self._jobs.set_servers(job, part, servers, ACTOR)

    def _regain(self, uuid: str, claim: Claim) -> None:
        job = self._jobs.read(uuid)
        assert job is not None, f"job {uuid} went while it was recovered"
        others = (step for step in job.steps if step.name != CLAIM)
        self._jobs.set_steps(job, (Step(CLAIM, claim.consumer), *others), ACTOR)

    def _adopt(self, adoption: Adoption) -> None:
        job = adoption.job
        if job is None:
            job = self._jobs.create(_new(adoption), adoption.uuid)
        reasons = (Reason(JobTerm.ADOPTED, len(adoption.servers)),)
        if job.state is JobState.ENDING:
            job = self._jobs.move(job, JobState.QUEUED, reasons, ACTOR, target=None)
        hosts = {each.server.uuid: self._hosts.host(each.server.uuid) for each in adoption.servers}
        counted = {part.name: _counted(part, adoption.servers) for part in job.parts}
        plan = _plan(counted, hosts, adoption.claim)
        steps = _steps(adoption, job)
        for part in job.parts:
            servers = counted[part.name]
            on = {member: host for member, uuid in servers.items() if (host := hosts.get(uuid))}
            job = self._jobs.set_servers(job, part, servers, ACTOR, hosts=on)
        self._jobs.move(job, JobState.PLANNED, reasons, ACTOR, plan=plan, steps=steps, reserved=())


def _counted(part: StoredPart, servers: Iterable[OwnedServer]) -> dict[int, str]:
    """Return which servers count as members of a part: the one that does, else the oldest."""
    there = [each.server for each in servers if each.server.part == part.name]
    counted = {member: "" for member, uuid in part.servers.items() if not uuid}
    for member in range(part.count):
        own = [each.uuid for each in there if each.member == member]
        if own:
            known = part.servers.get(member)
            counted[member] = known if known in own else own[0]
    return counted


def _plan(
    counted: Mapping[str, Mapping[int, str]], hosts: Mapping[str, str | None], claim: Claim | None
) -> Plan[HostPlace]:
    places = [
        HostPlace(part, host, count)
        for part, servers in counted.items()
        for host, count in Counter(hosts.get(uuid) for uuid in servers.values()).items()
        if host
    ]
    amounts = [
        ProviderAmount(provider, resource_class, amount)
        for provider, by_class in (claim.amounts if claim else {}).items()
        for resource_class, amount in by_class.items()
    ]
    return Plan(tuple(places), claims=tuple(amounts))


def _steps(adoption: Adoption, job: StoredJob) -> tuple[Step, ...]:
    """Return what is to be undone when the job ends."""
    names = [part.name for part in job.parts]
    claims = [Step(CLAIM, adoption.claim.consumer)] if adoption.claim else []
    groups = [Step(GROUP, name) for name in names if name in adoption.groups]
    return (*claims, *groups, *(Step(SERVERS, name) for name in names))


def _new(adoption: Adoption) -> NewJob:
    """Return a job as its servers show it."""
    first = adoption.servers[0]
    parts: dict[str, list[OwnedServer]] = {}
    for each in adoption.servers:
        parts.setdefault(each.server.part, []).append(each)
    ending = f"-{first.server.part}-{first.server.member}"
    return NewJob(
        project=first.project,
        user=first.user,
        trust=adoption.trust,
        name=first.name.removesuffix(ending),
        parts=tuple(_new_part(name, servers) for name, servers in parts.items()),
    )


def _new_part(name: str, servers: Sequence[OwnedServer]) -> StoredPart:
    first = servers[0]
    members_there = {each.server.member for each in servers}
    count = max(members_there) + 1
    return StoredPart(
        name=name,
        count=count,
        flavor=first.flavor,
        sizes=Sizes(first.vcpus, first.memory_mb, first.disk_gb),
        extra_specs=first.extra_specs,
        image=first.image,
        on_failure=BuildFailure.KEEP,
        servers={member: "" for member in range(count) if member not in members_there},
    )
