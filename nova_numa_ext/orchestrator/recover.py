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

import uuid as uuids
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final

from nova_numa_ext.orchestrator import members, reconcile
from nova_numa_ext.orchestrator.cloud import census as of_cloud
from nova_numa_ext.orchestrator.cloud.census import Census, OwnedGroup
from nova_numa_ext.orchestrator.cloud.hosts import ServerHosts
from nova_numa_ext.orchestrator.cloud.servers import JobServer, OwnedServer
from nova_numa_ext.orchestrator.cloud.trusts import TrustError, Trusts
from nova_numa_ext.orchestrator.reservations import RESERVATION, consumer, unanswered
from nova_numa_ext.orchestrator.saga import CLAIM, GROUP, SERVERS, claim_consumer
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.stored_job import NewJob, Sizes, Step, StoredJob, StoredPart
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts
from nova_numa_ext.policy.jobs.job import BuildFailure
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.claim_store import ClaimStore
from placement_traits.claims import Claim, emptied
from placement_traits.names import JOB_CONSUMER, RESERVATION_CONSUMER
from placement_traits.reason import Reason

ACTOR: Final = Actor("numa-ext-manage recover")

_UNUSABLE: Final = ("ERROR", "DELETED")
# Changes of a job since the backup, of which its claims' consumers are made.
_CHANGES: Final = 10_000
_MOST_MEMBERS: Final = 1024  # of a part, as the API takes them


class Action(StrEnum):
    """What becomes of something."""

    ADOPT = "adopt"
    REQUEUE = "requeue"
    END = "end"
    RELEASE = "release"
    DELETE = "delete"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class TableLine:
    """A line of the table.

    :param what: job, server, group, claim, trust or project
    :param why: in words
    """

    action: Action
    what: str
    uuid: str
    why: str


@dataclass(frozen=True, slots=True)
class Adoption:
    """A job that goes on with the servers that are there.

    :param job: as it is stored; None: it is not known
    :param trust: by which the service acts for its user
    :param groups: parts that have a server group
    """

    uuid: str
    job: StoredJob | None
    trust: str
    servers: tuple[OwnedServer, ...]
    claim: Claim | None
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found in one look.

    :param members: (job, part, member) -> the server that is to count instead of one that is gone
    :param regained: claims of jobs that have places and do not know them, by the jobs' uuids
    :param ended: jobs that wait, whose trust is gone
    :param stopped: jobs whose servers are gone and whose trust is not
    :param released: claims of no job
    :param trusts: of no job
    :param left: (server, why) of what cannot be changed
    :param closed: projects of which nothing was looked at
    :param unseen: servers of cells that do not answer: nothing should be committed
    """

    adopted: tuple[Adoption, ...]
    members: Mapping[tuple[str, str, int], str]
    regained: Mapping[str, Claim]
    ended: tuple[StoredJob, ...]
    stopped: tuple[StoredJob, ...]
    groups: tuple[OwnedGroup, ...]
    released: tuple[Claim, ...]
    trusts: tuple[str, ...]
    left: tuple[tuple[OwnedServer, str], ...]
    closed: tuple[str, ...]
    unseen: tuple[str, ...]

    def lines(self) -> Iterator[TableLine]:
        """Yield the lines of the table."""
        for adoption in self.adopted:
            known = f"is {adoption.job.state}" if adoption.job else "is not known"
            why = f"{known}; servers that are there: {len(adoption.servers)}"
            yield TableLine(Action.ADOPT, "job", adoption.uuid, why)
            if adoption.claim:
                why = f"of job {adoption.uuid}"
                yield TableLine(Action.ADOPT, "claim", adoption.claim.consumer, why)
        for (job, part, member), uuid in self.members.items():
            why = f"member {member} of part {part} of job {job}, whose server is gone"
            yield TableLine(Action.ADOPT, "server", uuid, why)
        for job, claim in self.regained.items():
            yield TableLine(Action.ADOPT, "claim", claim.consumer, f"of job {job}")
        for stored in self.ended:
            yield TableLine(Action.END, "job", stored.uuid, f"trust {stored.trust} is gone")
        for stored in self.stopped:
            why = f"is {stored.state}, and its servers are gone; held, for it may have ended"
            yield TableLine(Action.REQUEUE, "job", stored.uuid, why)
        for claim in self.released:
            yield TableLine(Action.RELEASE, "claim", claim.consumer, "of no job")
        for group in self.groups:
            why = f"of job {group.job}, which is not known and has no servers"
            yield TableLine(Action.DELETE, "group", group.uuid, why)
        for trust in self.trusts:
            yield TableLine(Action.DELETE, "trust", trust, "of no job")
        for server, why in self.left:
            yield TableLine(Action.LEAVE, "server", server.server.uuid, why)
        for project in self.closed:
            why = "none of its users who gave a trust has rights now: not looked at"
            yield TableLine(Action.LEAVE, "project", project, why)


class Recoverer:
    """Looks for what a database does not know, and makes it known.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when the database, Keystone, nova or
    Placement does not answer.
    """

    def __init__(
        self, jobs: Jobs, ended: EndedTrusts, trusts: Trusts, claims: ClaimStore, hosts: ServerHosts
    ) -> None:
        self._jobs = jobs
        self._ended = ended
        self._trusts = trusts
        self._claims = claims
        self._hosts = hosts

    def survey(self) -> Survey:
        """Look; change nothing."""
        census = of_cloud.taken(self._trusts)
        stored = {each.uuid: each for each in self._jobs.find()}
        claims = [
            each for each in self._claims.all() if each.type in (JOB_CONSUMER, RESERVATION_CONSUMER)
        ]
        replaced, stopped = self._changed(census, stored)
        return surveyed(
            census, stored, claims, self._ended.all(), replaced=replaced, stopped=stopped
        )

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
        for job in self._jobs.find(states=(JobState.QUEUED,)):
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


def surveyed(
    census: Census,
    stored: Mapping[str, StoredJob],
    claims: Sequence[Claim],
    ended_trusts: set[str],
    *,
    replaced: Mapping[tuple[str, str, int], str],
    stopped: Sequence[StoredJob],
) -> Survey:
    """Return what becomes of what is there.

    :param stored: all jobs of the database, by uuid
    :param claims: of our consumers of jobs
    :param ended_trusts: those that are to be deleted in any case
    :param replaced: members, as of :class:`Survey`
    :param stopped: as of :class:`Survey`
    """
    of_rows = {job.trust for job in stored.values() if not job.state.final}
    given = {each.trust: (each.user, each.project) for each in census.trusts}
    free = {key: value for key, value in given.items() if key not in of_rows | ended_trusts}
    by_job: dict[str, list[OwnedServer]] = {}
    left: list[tuple[OwnedServer, str]] = []
    for server in census.servers:
        why = _no_member(server, stored.get(server.job), by_job.get(server.job))
        if why:
            left.append((server, why))
        else:
            by_job.setdefault(server.job, []).append(server)
    adopted: list[Adoption] = []
    for uuid, servers in by_job.items():
        job = stored.get(uuid)
        owner = (servers[0].user, servers[0].project)
        usable = tuple(each for each in servers if each.server.status not in _UNUSABLE)
        if job and job.state.final:
            why = f"job {uuid} has ended: delete it by hand if nothing uses it"
            left += [(each, why) for each in servers]
        elif usable and (job is None or _waits(job)):
            trust = job.trust if job else _first(free, owner)
            if trust not in given:
                why = f"job {uuid} is not to be carried on without a trust of its user"
                left += [(each, why) for each in servers]
                continue
            free.pop(trust, None)
            parts = {each.part for each in census.groups if each.job == uuid}
            adopted.append(Adoption(uuid, job, trust, usable, None, tuple(sorted(parts))))
    adopted, regained, released = _claimed(adopted, stored, claims)
    return Survey(
        tuple(adopted),
        replaced,
        regained,
        tuple(
            job
            for job in stored.values()
            if job.state is JobState.QUEUED and job.trust not in given and job.uuid not in by_job
        ),
        tuple(stopped),
        tuple(
            each
            for each in census.groups
            if _is_uuid(each.job)
            and not each.has_members
            and each.job not in stored.keys() | by_job.keys()
        ),
        released,
        tuple(sorted(key for key, (_, project) in free.items() if project not in census.closed)),
        tuple(left),
        tuple(sorted(census.closed)),
        census.unseen,
    )


def _no_member(
    server: OwnedServer, job: StoredJob | None, others: Sequence[OwnedServer] | None
) -> str:
    """Return why a server is none of the job that its tags name, '' where it is: users write tags as they like."""
    if job is None and not _is_uuid(server.job):
        return "its tags name no job"
    if not server.server.part or server.server.member >= _MOST_MEMBERS:
        return "its tags do not tell which member of which part it is"
    of_others = (others[0].user, others[0].project) if others else (server.user, server.project)
    owner = (job.user, job.project) if job else of_others
    return "" if owner == (server.user, server.project) else "its tags name a job of another user"


def _is_uuid(text: str) -> bool:
    try:
        return str(uuids.UUID(text)) == text
    except ValueError:
        return False


def _waits(job: StoredJob) -> bool:
    """The job waits, or would wait when its end is undone: it has had servers again since."""
    ends = job.state is JobState.ENDING and job.target is JobState.QUEUED and not job.cancelled
    return ends or job.state is JobState.QUEUED


def _first(trusts: Mapping[str, tuple[str, str]], owner: tuple[str, str]) -> str:
    """Return a trust of a user in a project, '' without one."""
    return next((trust for trust, of_trust in trusts.items() if of_trust == owner), "")


def _claimed(
    adopted: Sequence[Adoption], stored: Mapping[str, StoredJob], claims: Sequence[Claim]
) -> tuple[list[Adoption], dict[str, Claim], tuple[Claim, ...]]:
    """Return adoptions with their claims, claims of other jobs that have places, and claims of no job."""
    open_jobs = [job for job in stored.values() if not job.state.final]
    known = set(reconcile.consumers(open_jobs))
    unknown = {each.consumer: each for each in claims if each.consumer not in known}
    by_consumer = {each.consumer: each for each in claims}
    found = []
    for adoption in adopted:
        steps = adoption.job.steps if adoption.job else ()
        own = [step.about for step in steps if step.name == CLAIM and step.about in by_consumer]
        claim = by_consumer[own[0]] if own else _own(adoption.uuid, unknown)
        found.append(replace(adoption, claim=claim))
        if claim:
            unknown.pop(claim.consumer, None)
    adopted_jobs = {each.uuid for each in adopted}
    regained = {}
    for job in open_jobs:
        claim = _own(job.uuid, unknown)
        if claim and job.state.active and job.uuid not in adopted_jobs:
            regained[job.uuid] = unknown.pop(claim.consumer)
    return found, regained, tuple(unknown.values())


def _own(job: str, unknown: Mapping[str, Claim]) -> Claim | None:
    """Return a claim of a job, by the consumers that it makes."""
    made = (claim_consumer(job, version) for version in range(_CHANGES if unknown else 0))
    return next((unknown[each] for each in made if each in unknown), None)


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
