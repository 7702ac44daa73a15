# SPDX-License-Identifier: Apache-2.0
"""All that nova and Keystone have of jobs, whatever the database knows: seen by the trusts that users gave.

Who may act for one user of a project sees the servers and groups of the whole project. No other right is needed, and
what no trust is left for cannot be changed by the service anyway.
"""

from dataclasses import dataclass

from nova_numa_ext.orchestrator.cloud.servers import TAG, OwnedServer
from nova_numa_ext.orchestrator.cloud.trusts import GivenTrust, TrustError, Trusts


@dataclass(frozen=True, slots=True)
class OwnedGroup:
    """A server group of a job's part.

    :param job: what its name says, the uuid of a job where it is one of ours
    :param has_members: servers are in it
    :param trust: by which it was seen
    """

    uuid: str
    job: str
    part: str
    has_members: bool
    trust: str


@dataclass(frozen=True, slots=True)
class Census:
    """What was found.

    :param trusts: that users gave, and that have not ended
    :param servers: of jobs, the oldest of a project first
    :param groups: of jobs
    :param closed: projects in which no user who gave a trust has rights now: nothing of them was looked at
    :param unseen: uuids of servers of cells that do not answer: what is not found may be one of them
    """

    trusts: tuple[GivenTrust, ...]
    servers: tuple[OwnedServer, ...]
    groups: tuple[OwnedGroup, ...]
    closed: frozenset[str]
    unseen: tuple[str, ...]


def taken(trusts: Trusts) -> Census:
    """Look at all projects.

    :raises ServiceUnavailableError: nova or Keystone does not answer
    """
    given = sorted(trusts.given(), key=lambda each: (each.project, each.trust))
    servers: list[OwnedServer] = []
    groups: list[OwnedGroup] = []
    unseen: list[str] = []
    closed: set[str] = set()
    for project in sorted({each.project for each in given}):
        trust = _with_rights(trusts, [each.trust for each in given if each.project == project])
        if trust is None:
            closed.add(project)
            continue
        nova = trusts.servers(trust)
        found = nova.of_jobs()
        servers += [each for each in found if each.job]
        unseen += [each.server.uuid for each in found if not each.job]
        for group in nova.all_groups():
            job, _, part = group.name.removeprefix(TAG).partition(":")
            if group.name.startswith(TAG) and part:
                groups.append(OwnedGroup(group.uuid, job, part, bool(group.members), trust))
    return Census(tuple(given), tuple(servers), tuple(groups), frozenset(closed), tuple(unseen))


def _with_rights(trusts: Trusts, some: list[str]) -> str | None:
    """Return the first trust that gives rights."""
    for trust in some:
        try:
            trusts.servers(trust)
        except TrustError:
            continue
        return trust
    return None
