# SPDX-License-Identifier: Apache-2.0
"""What users submit: a job of one or more parts, whose servers are placed together or not at all.

Times are seconds since the epoch, as numbers; the decisions here read no clock.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from placement_traits.errors import InvalidValueError
from placement_traits.names import Tier
from placement_traits.network_request import NetworkRequest
from placement_traits.workload_request import WorkloadRequest

LOWEST_PRIORITY: Final = -1000
HIGHEST_PRIORITY: Final = 1000
# Nova deletes a server in seconds, but not one that is locked.
LONGEST_ENDING_S: Final = 600.0


class JobKind(StrEnum):
    """What a job is for."""

    SERVERS = "servers"  # the service makes its servers
    ATTACH = "attach"  # remote GPUs for a server that is there already, or comes


class Scope(StrEnum):
    """How near each other the servers of a part must be, the narrowest first."""

    HOST = "host"  # all on one host
    LEAF = "leaf"  # all on hosts of one leaf of the fabric
    POD = "pod"  # all on hosts below one of the nodes right above leafs
    FLEET = "fleet"  # anywhere


class BuildFailure(StrEnum):
    """What becomes of a job when a server of a part fails to build."""

    KEEP = "keep"  # the others are kept, the job runs with them
    REPLACE = "replace"  # the server is made again
    FAIL = "fail"  # all or nothing: the job goes back to the queue, or fails


@dataclass(frozen=True, slots=True)
class ScopeWait:
    """How long a part waits for places of a scope before it takes those of the next wider one.

    :param scope: where its servers should be
    :param wait_s: seconds in the queue until the next scope is good enough; infinite when none is
    """

    scope: Scope
    wait_s: float = math.inf


ANYWHERE: Final = (ScopeWait(Scope.FLEET),)


@dataclass(frozen=True, slots=True)
class Part:
    """Servers of a job that are alike.

    :param name: its name in the job, which its servers carry as tag ``numa-ext:<name>``
    :param count: servers, at least one
    :param flavor: uuid of the flavor
    :param request: what one server requests: the flavor, parsed with the extra specs that the part adds
    :param image: uuid of the image, empty for servers that boot from a volume
    :param networks: uuids of networks, in order
    :param disk_gb: disk of one server that Placement counts, GiB
    :param wait_for: scopes, narrowest first; how long each is waited for does not fall
    :param apart: no two of its servers on one host
    :param on_failure: what follows when one of its servers fails to build
    :param network: what its servers request of the fabric as one group; None: nothing
    :raises InvalidValueError: a number or an order that has no meaning
    """

    name: str
    count: int
    flavor: str
    request: WorkloadRequest
    image: str = ""
    networks: tuple[str, ...] = ()
    disk_gb: int = 0
    wait_for: tuple[ScopeWait, ...] = ANYWHERE
    apart: bool = False
    on_failure: BuildFailure = BuildFailure.FAIL
    network: NetworkRequest | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InvalidValueError(f"part {self.name}: count", self.count, "at least one server")
        scopes = [list(Scope).index(each.scope) for each in self.wait_for]
        waits = [each.wait_s for each in self.wait_for]
        if not scopes or scopes != sorted({*scopes}) or waits != sorted(waits):
            allowed = "scopes from narrow to wide, each with a time that is not before the last one"
            raise InvalidValueError(f"part {self.name}: wait_for", self.wait_for, allowed)
        if self.apart and any(each.scope is Scope.HOST for each in self.wait_for):
            allowed = "scopes wider than one host for servers that must be on different hosts"
            raise InvalidValueError(f"part {self.name}: wait_for", self.wait_for, allowed)

    def scope(self, waited_s: float) -> ScopeWait:
        """Return the scope that is good enough after a time in the queue: the widest one that has come."""
        for each in self.wait_for:
            if waited_s < each.wait_s:
                return each
        return self.wait_for[-1]


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the queue sees it.

    :param uuid: its uuid
    :param project: uuid of the project that owns it
    :param parts: its parts, in the order given, names unlike
    :param submitted_at: when it was submitted: the order among equals
    :param queued_at: when it last came into the queue; None: when it was submitted
    :param waited_s: seconds that it waited in the queue before, all stays together
    :param priority: between :data:`LOWEST_PRIORITY` and :data:`HIGHEST_PRIORITY`, more is earlier
    :param walltime_s: seconds after which it is ended; None: it runs until it is cancelled
    :param deadline_at: when it must have ended; None: never
    :param max_wait_s: seconds in the queue after which it is given up; None: it waits for ever
    :param held: it is not planned until it is released
    :param not_before: it is not planned before this time: back-off after an error
    :param postponed: how often it has been postponed
    :param postponed_at: when it was last postponed; None: never
    :param excluded: root providers of hosts that nova refused, one time after the other
    :param refusals: how often in a row nova has refused it
    :param at_quota: nova last refused it because of a quota of its project
    :param preemptible: the user allows that it is stopped and queued again in favour of latency-critical jobs; counts
        only where all parts are best-effort
    :param apart: no two parts on one host
    :param leases: remote GPUs that it asks for, of the project's limit
    :param gpu_memory_mb: memory of those, MiB, of the project's limit
    :param user: uuid of the user
    :param name: what the user calls it
    :raises InvalidValueError: a number that has no meaning, no part, or two parts of one name
    """

    uuid: str
    project: str
    parts: tuple[Part, ...]
    submitted_at: float
    queued_at: float | None = None
    waited_s: float = 0.0
    priority: int = 0
    walltime_s: float | None = None
    deadline_at: float | None = None
    max_wait_s: float | None = None
    held: bool = False
    not_before: float = 0.0
    postponed: int = 0
    postponed_at: float | None = None
    excluded: frozenset[str] = frozenset()
    refusals: int = 0
    at_quota: bool = False
    preemptible: bool = False
    apart: bool = False
    leases: int = 0
    gpu_memory_mb: int = 0
    user: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if not names or len({*names}) != len(names):
            raise InvalidValueError("parts", names, "at least one part, each with its own name")
        if not LOWEST_PRIORITY <= self.priority <= HIGHEST_PRIORITY:
            allowed = f"an integer from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}"
            raise InvalidValueError("priority", self.priority, allowed)
        for what, value in self._durations():
            if not 0 < value < math.inf:
                raise InvalidValueError(what, value, "a number of seconds > 0")

    def _durations(self) -> Iterator[tuple[str, float]]:
        if self.walltime_s is not None:
            yield "walltime", self.walltime_s
        if self.max_wait_s is not None:
            yield "max_wait", self.max_wait_s

    @property
    def servers(self) -> int:
        """Servers of all parts."""
        return sum(part.count for part in self.parts)

    @property
    def latency_critical(self) -> bool:
        """One of its parts is of tier LC."""
        return any(part.request.tier is Tier.LC for part in self.parts)

    @property
    def best_effort(self) -> bool:
        """All of its parts are of tier BE."""
        return all(part.request.tier is Tier.BE for part in self.parts)

    def waiting_s(self, now: float) -> float:
        """Return how long a job that waits has waited in all: while it had places, it did not wait."""
        since = self.submitted_at if self.queued_at is None else self.queued_at
        return self.waited_s + now - since

    def part(self, name: str) -> Part:
        """Return the part of a name; raises KeyError when there is none."""
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(name)


PlanT = TypeVar("PlanT")


@dataclass(frozen=True, slots=True)
class ActiveJob(Generic[PlanT]):
    """A job that has places.

    :param job: the job
    :param plan: its places
    :param started_at: when it began to run, or was planned while it does not run yet
    :param ending_at: since when its servers are being deleted; None: they are not
    """

    job: Job
    plan: PlanT
    started_at: float
    ending_at: float | None = None

    def is_freed_soon(self, now: float) -> bool:
        """Return whether its places are about to be free; those of a job that does not end in time are not."""
        return self.ending_at is not None and now - self.ending_at < LONGEST_ENDING_S

    def ends_at(self, now: float) -> float:
        """Return when its places are free at the latest; infinite where that is not known."""
        if self.is_freed_soon(now):
            return now
        if self.ending_at is not None:
            return math.inf
        if self.job.walltime_s is None:
            return math.inf
        return max(now, self.started_at + self.job.walltime_s)
