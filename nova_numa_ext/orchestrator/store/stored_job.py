# SPDX-License-Identifier: Apache-2.0
"""What is stored of a job, its parts and what happened to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nova_numa_ext.policy.jobs.job import BuildFailure, JobKind, Scope, ScopeWait
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits.reason import Reason


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a flavor was when the job was submitted; ``memory_mb`` in MiB, ``disk_gb`` in GiB."""

    vcpus: int
    memory_mb: int
    disk_gb: int


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of a job; what is not explained here is as in :class:`nova_numa_ext.policy.jobs.job.Part`.

    :param sizes: of its flavor
    :param extra_specs: of its flavor, with those that the part adds
    :param servers: member's number, from 0 -> uuid of the server that counts as this member; '' where the job goes on
        without one
    :param hosts: member's number -> root provider of the host that its server is on, of those of which that is known
    :param replaced: how often a server of it was made again
    :param version: number of changes of ``servers`` and ``hosts``
    """

    name: str
    count: int
    flavor: str
    sizes: Sizes
    extra_specs: Mapping[str, str]
    image: str = ""
    networks: tuple[str, ...] = ()
    wait_for: tuple[ScopeWait, ...] = (ScopeWait(Scope.FLEET),)
    apart: bool = False
    on_failure: BuildFailure = BuildFailure.FAIL
    servers: Mapping[int, str] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    replaced: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is done outside of the database: stored before it begins, undone in reverse order.

    :param name: what is done
    :param about: on what: a uuid, or a part's name
    :param asked_at: when another service was last asked to make something, of which no answer is stored: it may come
        to be later; None: all was answered
    :param asked: how many it was asked for, answered or not; None: not counted
    """

    name: str
    about: str
    asked_at: float | None = None
    asked: int | None = None

    def asks(self, count: int) -> "Step":
        """Return the step with so many more that were asked for."""
        return self if self.asked is None else replace(self, asked=self.asked + count)

    def found(self, count: int) -> "Step":
        """Return the step when so many are there: where these are all that were asked for, nothing comes later."""
        have_come = self.asked is not None and count >= self.asked
        return replace(self, asked_at=None) if have_come else self


@dataclass(frozen=True, slots=True)
class NewJob:
    """What is submitted; parameters as of :class:`nova_numa_ext.policy.jobs.job.Job`.

    :param trust: id of the Keystone trust by which the service acts for the user
    :param fingerprint: of the request that submits it: a second one with the same uuid is known by it
    """

    project: str
    user: str
    trust: str
    name: str
    parts: tuple[StoredPart, ...]
    priority: int = 0
    walltime_s: float | None = None
    deadline_at: float | None = None
    max_wait_s: float | None = None
    held: bool = False
    preemptible: bool = False
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as it was read; what is not explained here is as in :class:`nova_numa_ext.policy.jobs.job.Job`.

    :param number: order of submission
    :param version: number of changes: a change of what was read is one of this version or none
    :param cancelled: its user wants it to end, whatever it does now
    :param target: the state that it goes to when ENDING is over
    :param plan: its places: the host that a server is on where that is known, else the planned one
    :param reserved: what a consumer of ours may hold for it while it waits
    :param refusals: how often in a row nova has refused it
    :param reasons: of its state
    :param building_at: since when its servers have time to become active
    :param ending_at: when it last came into ENDING
    :param trust_lost_at: since when Keystone has refused each time to let the service act for its user; None: it lets
    :param unanswered_at: when nova was last asked to make something of it, did not answer, and had not made it when
        the job's end was undone: it may come to be all the same
    :param steps: what was begun outside of the database and is not undone, in order
    :param whole: all of it could be read; else what other releases may write in another form is missing: parts, plan,
        steps, what is reserved and excluded, and the reasons, of which it is the only one that it is so
    :param kind: what it is for; one that asks for remote GPUs has no parts and no trust
    """

    number: int
    uuid: str
    project: str
    user: str
    trust: str
    name: str
    state: JobState
    version: int
    parts: tuple[StoredPart, ...]
    held: bool
    cancelled: bool
    priority: int
    walltime_s: float | None
    deadline_at: float | None
    max_wait_s: float | None
    preemptible: bool
    fingerprint: str
    target: JobState | None
    plan: Plan[HostPlace] | None
    refusals: int
    not_before: float
    postponed: int
    postponed_at: float | None
    excluded: frozenset[str]
    reserved: tuple[ProviderAmount, ...]
    submitted_at: float
    queued_at: float
    waited_s: float
    building_at: float | None
    started_at: float | None
    ending_at: float | None
    ended_at: float | None
    trust_lost_at: float | None
    unanswered_at: float | None
    reasons: tuple[Reason, ...]
    steps: tuple[Step, ...]
    whole: bool = True
    kind: JobKind = JobKind.SERVERS


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a job.

    :param number: larger than that of every event before
    :param at: when, by the database's clock
    :param actor: user's id, or the engine's name
    :param term: the engine's, None where it was no engine
    :param state: the job's afterwards
    :param what: ``state`` for a transition, else the column that changed
    """

    number: int
    at: float
    actor: str
    term: int | None
    state: JobState
    what: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """What a job's place in the queue depends on; fields as of :class:`StoredJob`."""

    uuid: str
    priority: int
    submitted_at: float
    queued_at: float
    waited_s: float

    def waiting_s(self, now: float) -> float:
        """Return for how long it has waited, seconds, all stays in the queue together."""
        return self.waited_s + now - self.queued_at


@dataclass(frozen=True, slots=True)
class AttachJob(QueuedJob):
    """What the engine has to know of a job that asks for remote GPUs; fields as of :class:`StoredJob`.

    :param queued: it is in the queue now; else all that it has waited is in ``waited_s``
    :param reasons: the text that is stored
    """

    held: bool
    cancelled: bool
    max_wait_s: float | None
    queued: bool
    reasons: str

    def waiting_s(self, now: float) -> float:
        """Return for how long it has waited, seconds, all stays in the queue together."""
        return self.waited_s + (now - self.queued_at if self.queued else 0.0)
