# SPDX-License-Identifier: Apache-2.0
"""What was made for jobs and is of none: claims in Placement, servers and groups in nova, trusts in Keystone.

What was asked for may come to be after its engine has waited for the answer long enough, and its job has undone what it
found: nothing. Its step is gone then, and only the other service knows of it. What is found in two looks is given back:
a claim under the generation that was read, so that a consumer that is written meanwhile keeps what it has; servers and
groups as their job's user, whose trust is kept as long as something may come.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import inf
from typing import Final

from nova_numa_ext.orchestrator import reservations
from nova_numa_ext.orchestrator.cloud.servers import UserServers
from nova_numa_ext.orchestrator.cloud.trusts import GivenTrust, TrustError, Trusts
from nova_numa_ext.orchestrator.steps import CLAIM, group_name
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.stored_job import StoredJob
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts
from nova_numa_ext.policy.jobs.job import JobKind
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits.claim_store import ClaimStore
from placement_traits.claims import Claim, emptied
from placement_traits.errors import ConflictError
from placement_traits.names import JOB_CONSUMER, RESERVATION_CONSUMER

_LOG: Final = logging.getLogger(__name__)

_TYPES: Final = (JOB_CONSUMER, RESERVATION_CONSUMER)
_ALL_S: Final = 3600.0
_UNFINISHED: Final = tuple(state for state in JobState if not state.final)


class LostClaims:
    """Looks for claims of jobs that no job knows of; for one thread at a time.

    What a job holds that cannot be read is not known: nothing is released of its project.

    Placement counts consumers by project, so most looks are one request for each project that has jobs. A number that
    fits may hide a claim behind a step that holds nothing: all that we claim from is read once an hour.

    :param clock: monotonic seconds; injected by tests
    """

    def __init__(
        self, claims: ClaimStore, jobs: Jobs, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._claims = claims
        self._jobs = jobs
        self._clock = clock
        self._read_s = -inf
        self._suspects: dict[str, Claim] = {}

    def found(self) -> list[Claim]:
        """Look; return what was found in the look before, too, and has not changed since.

        :raises ServiceUnavailableError: Placement or the database does not answer
        """
        counted = {each: self._claims.consumers(each) for each in self._jobs.projects(_ALL_S)}
        jobs = self._jobs.find(states=_UNFINISHED, kind=JobKind.SERVERS, incomplete=True)
        known = Counter(job.project for job in jobs for _ in consumers([job]))
        more = any(
            sum(of_types[each] for each in _TYPES if each in of_types) > known[project]
            for project, of_types in counted.items()
        )
        due = self._clock() >= self._read_s + _ALL_S
        suspects: dict[str, Claim] = {}
        if more or due or self._suspects:
            there = {each.consumer: each for each in self._claims.all() if each.type in _TYPES}
            jobs = self._jobs.find(states=_UNFINISHED, kind=JobKind.SERVERS, incomplete=True)
            now, unknown = set(consumers(jobs)), {job.project for job in jobs if not job.whole}
            suspects = {
                key: claim
                for key, claim in there.items()
                if key not in now and claim.project not in unknown
            }
            self._read_s = self._clock()
        before, self._suspects = self._suspects, suspects
        return [each for key, each in suspects.items() if before.get(key) == each]

    def release(self, may: Callable[[], None]) -> int:
        """Look, and release what was found twice; return how many claims. One that others write meanwhile stays.

        :param may: called right before each write; raises where this process may not write any more
        :raises ServiceUnavailableError: Placement or the database does not answer
        """
        released = 0
        for claim in self.found():
            _LOG.warning(
                "no job knows of claim %s on %s: released", claim.consumer, list(claim.amounts)
            )
            try:
                self._claims.write(emptied(claim), may=may)
            except ConflictError as error:
                _LOG.warning("claim %s stays for now: %s", claim.consumer, error)
            else:
                released += 1
        return released


class LostServers:
    """Looks for servers and groups of jobs that have no places any more; for one thread at a time.

    Only jobs of which nova has not answered something lately are looked at.
    """

    def __init__(self, jobs: Jobs, trusts: Trusts) -> None:
        self._jobs = jobs
        self._trusts = trusts
        self._suspects: dict[str, _Left] = {}

    def release(
        self,
        may: Callable[[], None],
        alone: Callable[[StoredJob], AbstractContextManager[bool]],
    ) -> int:
        """Look, and delete what was found twice, of jobs that have not changed since; return how many.

        :param may: called right before each write; raises where this process may not write any more
        :param alone: keeps others from changing a job; tells whether that is so
        :raises ServiceUnavailableError: nova, Keystone or the database does not answer
        """
        before, self._suspects = self._suspects, {}
        deleted = 0
        for job in self._jobs.unanswered():
            try:
                servers = self._trusts.servers(job.trust)
            except TrustError as error:
                _LOG.warning("job %s: what came late is not looked for: %s", job.uuid, error)
                continue
            left = _Left(job.version, _servers(job, servers), _groups(job, servers))
            if not left.what:
                continue
            self._suspects[job.uuid] = left
            if before.get(job.uuid) == left:
                with alone(job) as is_alone:
                    if is_alone and self._jobs.read(job.uuid) == job:
                        self._delete(job, left, servers, may)
                        deleted += len(left.what)
        return deleted

    @staticmethod
    def _delete(
        job: StoredJob, left: "_Left", servers: UserServers, may: Callable[[], None]
    ) -> None:
        _LOG.warning("job %s is %s: %s is deleted", job.uuid, job.state, ", ".join(left.what))
        servers.delete(_checked(left.servers, may))
        for group in _checked(left.groups, may):
            servers.delete_group(group)


class LostTrusts:
    """Looks for trusts that were given to the service and are of no job, nor needed; for one thread at a time.

    Keystone lists all of them at once, so that a look is rare; what is found in two looks is to be deleted.

    :param also: returns trusts that something else than a job needs
    :param clock: monotonic seconds; injected by tests
    """

    def __init__(
        self,
        jobs: Jobs,
        ended: EndedTrusts,
        trusts: Trusts,
        clock: Callable[[], float] = time.monotonic,
        also: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._jobs = jobs
        self._ended = ended
        self._trusts = trusts
        self._also = also
        self._clock = clock
        self._looked_s = -inf
        self._suspects: frozenset[str] = frozenset()

    def release(self, may: Callable[[], None]) -> int:
        """Look when it is time to, and have deleted what was found twice; return how many.

        :param may: called right before each is given to be deleted; raises where this process may not write any more
        :raises ServiceUnavailableError: Keystone or the database does not answer
        """
        if self._clock() < self._looked_s + _ALL_S:
            return 0
        given = {each.trust: each for each in self._trusts.given()}
        needed = self._jobs.trusts() | {*self._also()} | self._ended.all()
        suspects = frozenset(given.keys() - needed)
        lost = [given[trust] for trust in sorted(suspects & self._suspects)]
        deleted = [each.trust for each in lost if not self._is_needed(each)]
        for trust in deleted:
            may()
            _LOG.warning("no job knows of trust %s: deleted", trust)
            self._ended.add(trust)
        self._suspects, self._looked_s = suspects, self._clock()
        return len(deleted)

    def _is_needed(self, given: GivenTrust) -> bool:
        """Return whether its user has servers of jobs that are not known: by it alone they can be adopted.

        A user can write such tags, so this is no proof of an old database, and engines go on. Without the user's rights
        it cannot be known, and the trust is of no use to others either.
        """
        try:
            servers = self._trusts.servers(given.trust).of_jobs()
        except TrustError:
            return True
        unknown = {each.job for each in servers if each.job and each.user == given.user}
        unknown = {each for each in unknown if self._jobs.read(each) is None}
        if unknown:
            _LOG.warning(
                "trust %s is kept for servers of jobs that are not known: %s; if an old database was restored: "
                "numa-ext-manage recover --begin",
                given.trust,
                ", ".join(sorted(unknown)),
            )
        return bool(unknown)


@dataclass(frozen=True, slots=True)
class _Left:
    """What was found of a job.

    :param version: of the job when it was found
    """

    version: int
    servers: tuple[str, ...]
    groups: tuple[str, ...]

    @property
    def what(self) -> tuple[str, ...]:
        return (*self.servers, *self.groups)


def _servers(job: StoredJob, servers: UserServers) -> tuple[str, ...]:
    return tuple(sorted(each.uuid for each in servers.of_job(job.uuid) if each.status != "DELETED"))


def _groups(job: StoredJob, servers: UserServers) -> tuple[str, ...]:
    names = [group_name(job.uuid, part.name) for part in job.parts]
    return tuple(sorted(group for name in names for group in servers.groups(name)))


def _checked(uuids: Iterable[str], may: Callable[[], None]) -> Iterator[str]:
    """Yield what is to be deleted, the term renewed right before each."""
    for uuid in uuids:
        may()
        yield uuid


def consumers(jobs: Iterable[StoredJob]) -> list[str]:
    """Return the consumers that jobs know of."""
    found = []
    for job in jobs:
        found += [step.about for step in job.steps if step.name == CLAIM]
        found += [reservations.consumer(job)] if job.reserved else []
    return found
