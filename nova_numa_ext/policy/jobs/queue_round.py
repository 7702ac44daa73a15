# SPDX-License-Identifier: Apache-2.0
"""What a round of the queue decides, and what the next one knows of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from nova_numa_ext.policy.jobs.job import ActiveJob, Job
from nova_numa_ext.policy.jobs.plan import Plan, Wait
from nova_numa_ext.policy.jobs.quotas import QuotaWait
from placement_traits.reason import Reason

PlaceT = TypeVar("PlaceT")


@dataclass(frozen=True, slots=True)
class Start(Generic[PlaceT]):
    """A job that starts.

    :param job: the job
    :param plan: its places
    """

    job: Job
    plan: Plan[PlaceT]


@dataclass(frozen=True, slots=True)
class Preemption(Generic[PlaceT]):
    """A running job that is to be stopped and queued again.

    :param active: the job
    :param reason: in whose favour
    """

    active: ActiveJob[Plan[PlaceT]]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Reservation(Generic[PlaceT]):
    """Places that are kept for a job that waits.

    :param job: its uuid
    :param at: when they are free at the latest; infinite when that is not known
    :param plan: the places
    """

    job: str
    at: float
    plan: Plan[PlaceT]


@dataclass(frozen=True, slots=True)
class QueueState:
    """What a round knows of the rounds before it. An engine that begins to lead begins without: it costs patience only.

    :param preempting: when places that others free were last kept for a waiting job, by uuid
    :param unsatisfiable: since when it was found of a job in all rounds that it can never start, by uuid
    :param quotas: projects that wait for a quota
    :param chosen: jobs that were to be stopped for a waiting job, by its uuid
    """

    preempting: Mapping[str, float] = field(default_factory=dict)
    unsatisfiable: Mapping[str, float] = field(default_factory=dict)
    quotas: Mapping[str, QuotaWait] = field(default_factory=dict)
    chosen: Mapping[str, frozenset[str]] = field(default_factory=dict)


NO_ROUND_BEFORE: Final = QueueState()


@dataclass(frozen=True, slots=True)
class QueueRound(Generic[PlaceT]):
    """What a round decides.

    :param starts: jobs that start, in order
    :param waits: why each of the others waits, by uuid; those of which nothing new is known may be absent where the
        round was to end early
    :param ended: jobs that are given up, by uuid, with the reasons: waited too long, too late for a deadline, or
        unsatisfiable for too long
    :param postponed: uuids of jobs whose number of postponements grows
    :param preempted: running jobs that are to be stopped and queued again
    :param reservations: of jobs in whose favour others end, and of the first other one that found no place
    :param state: for the next round
    """

    starts: tuple[Start[PlaceT], ...]
    waits: Mapping[str, Wait]
    ended: Mapping[str, tuple[Reason, ...]]
    postponed: tuple[str, ...] = ()
    preempted: tuple[Preemption[PlaceT], ...] = ()
    reservations: tuple[Reservation[PlaceT], ...] = ()
    state: QueueState = NO_ROUND_BEFORE
