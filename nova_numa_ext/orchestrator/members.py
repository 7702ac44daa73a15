# SPDX-License-Identifier: Apache-2.0
"""Which server is which member of a job's parts.

What is stored counts. Tags only find servers whose uuids could not be stored: their user may change them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from nova_numa_ext.orchestrator.cloud.servers import JobServer, UserServers
from nova_numa_ext.orchestrator.store.stored_job import StoredJob, StoredPart
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.reason import Reason


@dataclass(frozen=True, slots=True)
class Found:
    """Servers of one job that are there, the oldest first.

    :param by_uuid: those that its parts count, and others with its tags
    :param counted: uuids that its parts count, of servers that are gone, too
    """

    by_uuid: Mapping[str, JobServer]
    counted: frozenset[str]

    def of_part(self, part: StoredPart) -> list[str]:
        """Return what is there of a part: what it counts, and what carries its tags and counts for no other one."""
        own = {*part.servers.values()}
        tagged = {each.uuid for each in self._uncounted() if each.part == part.name}
        return [uuid for uuid in self.by_uuid if uuid in own | tagged]

    def duplicates(self, job: StoredJob) -> list[str]:
        """Return servers of members for which another one counts."""
        counting = {(part.name, member) for part in job.parts for member in part.servers}
        return [each.uuid for each in self._uncounted() if (each.part, each.member) in counting]

    def usable(self, part: str, member: int) -> str | None:
        """Return the server that was made for a member and not stored, the oldest of several."""
        for each in self._uncounted():
            of_member = (each.part, each.member) == (part, member)
            if of_member and each.status not in ("ERROR", "DELETED"):
                return each.uuid
        return None

    def somewhere(self, part: StoredPart) -> dict[int, str]:
        """Return the stored hosts of a part's members without those that have none any more: gone, or shelved."""
        return {
            member: host
            for member, host in part.hosts.items()
            if (server := self.by_uuid.get(part.servers.get(member, "")))
            and not server.takes_no_place
        }

    def failed(
        self, part: StoredPart, late_s: float | None
    ) -> Iterator[tuple[int, JobServer | None, Reason]]:
        """Yield members whose server has failed or is gone, with the reason.

        :param late_s: seconds after which one that nova still builds has failed; None: they are not over yet
        """
        for member, uuid in part.servers.items():
            server = self.by_uuid.get(uuid)
            if not uuid:
                continue
            if server is None:
                yield member, None, Reason(JobTerm.SERVER_FAILED, uuid, "it was deleted", part.name)
            elif server.failure is JobTerm.SERVER_FAILED:
                yield member, server, Reason(server.failure, uuid, server.fault, part.name)
            elif server.failure is not None:
                yield member, server, Reason(server.failure, server.fault, where=part.name)
            elif late_s is not None and server.status == "BUILD":
                late = f"it was not active after {late_s:.0f} s"
                yield member, server, Reason(JobTerm.SERVER_FAILED, uuid, late, part.name)

    def _uncounted(self) -> Iterator[JobServer]:
        return (each for uuid, each in self.by_uuid.items() if uuid not in self.counted)


def counted(job: StoredJob) -> list[str]:
    """Return the uuids of the servers that count."""
    return [uuid for part in job.parts for uuid in part.servers.values() if uuid]


def find(job: StoredJob, servers: UserServers) -> Found:
    """Look for all servers of a job.

    :raises ServiceUnavailableError: nova does not answer
    """
    return among(job, servers.of_job(job.uuid), lambda: servers)


def among(job: StoredJob, tagged: Iterable[JobServer], servers: Callable[[], UserServers]) -> Found:
    """Return the servers of a job: those with its tags, and those that it counts all the same.

    :param servers: is asked for the rights by which one is looked for that lacks its tags
    :raises ServiceUnavailableError: nova does not answer
    """
    found = {each.uuid: each for each in tagged}
    stored = counted(job)
    for uuid in stored:
        if uuid not in found:
            server = servers().get(uuid)
            if server:
                found[uuid] = server
    return Found(found, frozenset(stored))


def missing(part: StoredPart) -> Iterator[tuple[str, int]]:
    """Yield the part's name and number of each member that has no server yet."""
    for member in range(part.count):
        if member not in part.servers:
            yield part.name, member
