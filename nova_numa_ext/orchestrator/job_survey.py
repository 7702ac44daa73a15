# SPDX-License-Identifier: Apache-2.0
"""What becomes of jobs, claims and trusts of which one look has found that an old database does not know. Pure.

The rules are those of the table in :mod:`.recover`, which looks, and carries out what is decided here.
"""

import uuid as uuids
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from nova_numa_ext.orchestrator import reconcile
from nova_numa_ext.orchestrator.cloud.census import Census, OwnedGroup
from nova_numa_ext.orchestrator.cloud.servers import OwnedServer
from nova_numa_ext.orchestrator.steps import CLAIM, claim_consumer
from nova_numa_ext.orchestrator.store.stored_job import StoredJob
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits.claims import Claim

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


def surveyed(
    census: Census,
    stored: Mapping[str, StoredJob],
    claims: Sequence[Claim],
    other_trusts: set[str],
    *,
    replaced: Mapping[tuple[str, str, int], str],
    stopped: Sequence[StoredJob],
) -> Survey:
    """Return what becomes of what is there.

    :param stored: all jobs of the database, by uuid
    :param claims: of our consumers of jobs
    :param other_trusts: those that are to be deleted in any case, and those of elastic groups
    :param replaced: members, as of :class:`Survey`
    :param stopped: as of :class:`Survey`
    """
    of_rows = {job.trust for job in stored.values() if not job.state.final}
    given = {each.trust: (each.user, each.project) for each in census.trusts}
    free = {key: value for key, value in given.items() if key not in of_rows | other_trusts}
    by_job, foreign = _by_job(census, stored)
    adoptable, kept = _adoptable(by_job, census, stored, free)
    adopted, regained, released = _claimed(adoptable, stored, claims)
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
        (*foreign, *kept),
        tuple(sorted(census.closed)),
        census.unseen,
    )


_Left = tuple[OwnedServer, str]
"""A server that cannot be changed, and why."""


def _by_job(
    census: Census, stored: Mapping[str, StoredJob]
) -> tuple[dict[str, list[OwnedServer]], list[_Left]]:
    """Return servers by the job that their tags name, and those that are members of none."""
    by_job: dict[str, list[OwnedServer]] = {}
    left: list[_Left] = []
    for server in census.servers:
        why = _no_member(server, stored.get(server.job), by_job.get(server.job))
        if why:
            left.append((server, why))
        else:
            by_job.setdefault(server.job, []).append(server)
    return by_job, left


def _adoptable(
    by_job: Mapping[str, Sequence[OwnedServer]],
    census: Census,
    stored: Mapping[str, StoredJob],
    free: dict[str, tuple[str, str]],
) -> tuple[list[Adoption], list[_Left]]:
    """Return jobs that can go on with servers that are there, without claims, and servers that are left.

    :param free: trusts of no job, with user and project; those of adopted jobs are taken out
    """
    given = {each.trust for each in census.trusts}
    adopted: list[Adoption] = []
    left: list[_Left] = []
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
    return adopted, left


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
