# SPDX-License-Identifier: Apache-2.0
"""Who starts now? One round of the queue, as a pure decision.

The order is that of :func:`in_order`: priority, which grows with age, then time of submission. In this order each job
asks its planner, unless it is held, backs off, or exceeds a limit of its project: such a job stands in no other job's
way. What follows when a job finds no place is the discipline:

``fcfs``
    all jobs behind it wait, too
``greedy``
    jobs behind it may start; a job that needs much may wait for ever
``easy``
    the first one that finds no place gets a *reservation*: places that are free at the latest when some running jobs
    have reached their walltimes. Jobs behind it may start if they end before that time, or if it has places then all
    the same (EASY backfill, Lifka 1995). It needs walltimes: where the jobs in the way have none, no time is known, and
    jobs behind it must leave it its places, however short they are

A job that is *postponed* could start and prefers to wait: it lets others pass under every discipline.

A reservation is a promise of this queue only. Servers that users make beside it take places of the same hosts, so the
promise on CPUs and memory holds where the queue's jobs have an aggregate of their own.

With preemption, a latency-critical job that finds no place has best-effort jobs stopped whose users allow it, the
latest first and no more of them than it needs; they are queued again. The freed places are not held for it; it asks
before all jobs behind it.
"""

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Generic, TypeVar

from nova_numa_ext.policy.jobs import limits as of_projects
from nova_numa_ext.policy.jobs import postponing
from nova_numa_ext.policy.jobs.job import ActiveJob, Job
from nova_numa_ext.policy.jobs.limits import UNLIMITED, Limits
from nova_numa_ext.policy.jobs.plan import Never, Plan, Wait
from nova_numa_ext.policy.jobs.planner import Claims, Planner
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.reason import Reason

_HOUR_S: Final = 3600.0
_MOST_SPARED: Final = (
    32  # jobs of which it is tried whether one can go on; it bounds the time of a round
)


class Discipline(StrEnum):
    """What follows when a job finds no place."""

    FCFS = "fcfs"
    GREEDY = "greedy"
    EASY = "easy"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What the operator decides about the queue.

    :param discipline: what follows when a job finds no place
    :param ageing_per_hour: how much the priority of a waiting job grows in an hour; with 0 a stream of jobs of high
        priority keeps others waiting for ever
    :param limits: of each project
    :param default_limits: of projects that are not among them
    :param retry_s: seconds between two postponements that count
    :param preempt: best-effort jobs may be stopped in favour of latency-critical ones
    """

    discipline: Discipline = Discipline.EASY
    ageing_per_hour: float = 1.0
    limits: Mapping[str, Limits] = field(default_factory=dict)
    default_limits: Limits = UNLIMITED
    retry_s: float = postponing.RETRY_S
    preempt: bool = False

    @property
    def limited(self) -> bool:
        """Some project has limits."""
        return bool(self.limits) or self.default_limits != UNLIMITED

    def limits_of(self, project: str) -> Limits:
        """Return the limits of a project."""
        return self.limits.get(project, self.default_limits)


PlaceT = TypeVar("PlaceT")
ViewT = TypeVar("ViewT")
ClaimsT = TypeVar("ClaimsT", bound="Claims")  # type: ignore[type-arg]
SettingsT = TypeVar("SettingsT")


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
    """Places of the first job that found none.

    :param job: its uuid
    :param at: when they are free at the latest; infinite when that is not known
    :param plan: the places
    """

    job: str
    at: float
    plan: Plan[PlaceT]


@dataclass(frozen=True, slots=True)
class QueueRound(Generic[PlaceT]):
    """What a round decides.

    :param starts: jobs that start, in order
    :param waits: why each of the others waits, by uuid; those of which nothing new is known may be absent where the
        round was to end early
    :param ended: jobs that are given up, by uuid, with the reasons: waited too long, too late for a deadline, or
        without a place even in an empty fleet
    :param postponed: uuids of jobs whose number of postponements grows
    :param preempted: running jobs that are to be stopped and queued again
    :param reservation: of the first job that found no place
    """

    starts: tuple[Start[PlaceT], ...]
    waits: Mapping[str, Wait]
    ended: Mapping[str, tuple[Reason, ...]]
    postponed: tuple[str, ...] = ()
    preempted: tuple[Preemption[PlaceT], ...] = ()
    reservation: Reservation[PlaceT] | None = None


def rank(job: Job, now: float, settings: QueueSettings) -> tuple[float, float]:
    """Return the sort key of a job in the queue, smallest first."""
    age_h = (now - job.submitted_at) / _HOUR_S
    return -(job.priority + settings.ageing_per_hour * age_h), job.submitted_at


def in_order(waiting: Iterable[Job], now: float, settings: QueueSettings) -> list[Job]:
    """Return jobs in the order in which they are asked; equal ones stay as they are."""
    return sorted(waiting, key=lambda job: rank(job, now, settings))


@dataclass(frozen=True, slots=True)
class Fleet(Generic[PlaceT, ViewT, ClaimsT, SettingsT]):
    """Where jobs run, and who finds places in it.

    :param view: what is known of the hosts
    :param claims: what jobs that have places take beyond what the view shows; a round changes it
    :param planner: finds places
    :param settings: of the planner
    """

    view: ViewT
    claims: ClaimsT
    planner: Planner[PlaceT, ViewT, ClaimsT, SettingsT]
    settings: SettingsT


def decide(
    waiting: Iterable[Job],
    active: Collection[ActiveJob[Plan[PlaceT]]],
    fleet: Fleet[PlaceT, ViewT, ClaimsT, SettingsT],
    now: float,
    settings: QueueSettings,
    *,
    kinds: Counter[Hashable] | None = None,
) -> QueueRound[PlaceT]:
    """Decide who starts.

    :param waiting: jobs in the order of :func:`in_order`
    :param active: jobs that have places
    :param fleet: its claims are those of the active jobs; the places of the jobs that start are added to them
    :param now: the time
    :param kinds: how many jobs of each kind wait, for a caller that knows it and needs no reasons: the round ends when
        no kind finds a place any more. None: every job is answered
    """
    deciding = _Deciding(active, fleet, now, settings)
    left = None if kinds is None else kinds.copy()
    for job in waiting:
        started = deciding.consider(job)
        if left is None:
            continue
        if started:
            left[fleet.planner.kind(job, now)] -= 1
            left += Counter()  # drops those of which none is left
        if deciding.exhausted(len(left)):
            break
    return deciding.result()


@dataclass(slots=True)
class _Reserved(Generic[PlaceT, ClaimsT]):
    """The first job that found no place.

    :param job: the job
    :param at: when it has places at the latest; infinite when that is not known
    :param plan: the places
    :param claims: of other jobs at that time
    """

    job: Job
    at: float
    plan: Plan[PlaceT]
    claims: ClaimsT

    def ends_before(self, job: Job, now: float) -> bool:
        """Another job that starts now has ended by then."""
        return bool(job.walltime_s) and now + (job.walltime_s or 0.0) <= self.at < math.inf

    def reason(self, now: float) -> Reason:
        """Why others find no place."""
        when = "when jobs without a walltime end"
        if self.at < math.inf:
            when = f"in {math.ceil(self.at - now)} s at the latest"
        return Reason(JobTerm.RESERVED, self.job.uuid, when)


class _Deciding(Generic[PlaceT, ViewT, ClaimsT, SettingsT]):
    """A round that goes on."""

    def __init__(
        self,
        active: Collection[ActiveJob[Plan[PlaceT]]],
        fleet: Fleet[PlaceT, ViewT, ClaimsT, SettingsT],
        now: float,
        settings: QueueSettings,
    ) -> None:
        self._given = active
        self._started: list[ActiveJob[Plan[PlaceT]]] = []
        self._fleet = fleet
        self._now = now
        self._settings = settings
        self._limited = settings.limited
        self._usage = of_projects.by_project(each.job for each in active) if self._limited else {}
        self._failed: dict[tuple[Hashable, bool], Wait | Never] = {}
        self._blocked_by: Job | None = None
        self._reserved: _Reserved[PlaceT, ClaimsT] | None = None
        self._starts: list[Start[PlaceT]] = []
        self._waits: dict[str, Wait] = {}
        self._ended: dict[str, tuple[Reason, ...]] = {}
        self._postponed: list[str] = []
        self._preempted: list[Preemption[PlaceT]] = []

    def result(self) -> QueueRound[PlaceT]:
        """Return what was decided."""
        first = self._reserved
        return QueueRound(
            tuple(self._starts),
            self._waits,
            self._ended,
            tuple(self._postponed),
            tuple(self._preempted),
            Reservation(first.job.uuid, first.at, first.plan) if first else None,
        )

    def exhausted(self, kinds: int) -> bool:
        """No job behind those considered can start any more.

        :param kinds: how many kinds wait
        """
        return self._blocked_by is not None or len(self._failed) == kinds

    def consider(self, job: Job) -> bool:
        """Decide about the next job; returns whether it starts."""
        given_up = self._given_up(job)
        if given_up:
            self._ended[job.uuid] = given_up
            return False
        outcome = self._not_now(job) or self._asked(job)
        if isinstance(outcome, Plan):
            self._start(job, outcome)
            return True
        if isinstance(outcome, Never):
            self._ended[job.uuid] = outcome.reasons
        else:
            self._waits[job.uuid] = outcome
        return False

    def _given_up(self, job: Job) -> tuple[Reason, ...]:
        waited_s = self._now - job.submitted_at
        if job.max_wait_s is not None and waited_s > job.max_wait_s:
            return (Reason(JobTerm.MAX_WAIT, round(waited_s), round(job.max_wait_s)),)
        if job.deadline_at is not None:
            late_s = self._now + (job.walltime_s or 0.0) - job.deadline_at
            if late_s > 0:
                return (Reason(JobTerm.DEADLINE, math.ceil(late_s)),)
        return ()

    def _not_now(self, job: Job) -> Wait | Never | None:
        """Why a job is not asked: it stands in no other job's way."""
        if job.held:
            return Wait((Reason(JobTerm.HELD, "its user"),))
        if job.not_before > self._now:
            left_s = math.ceil(job.not_before - self._now)
            return Wait((Reason(JobTerm.BACK_OFF, left_s),), until=job.not_before)
        if not self._limited:
            return None
        limits = self._settings.limits_of(job.project)
        never = of_projects.unsatisfiable(job, limits)
        if never:
            return Never(never)
        over = of_projects.exceeded(job, self._usage, limits)
        return Wait(over) if over else None

    def _asked(self, job: Job) -> Plan[PlaceT] | Wait | Never:
        if self._blocked_by is not None:
            return Wait((Reason(JobTerm.BEHIND, self._blocked_by.uuid),))
        first = self._reserved
        beside = first is not None and not first.ends_before(job, self._now)
        kind = (self._fleet.planner.kind(job, self._now), beside)
        outcome = self._failed.get(kind)
        is_new = outcome is None
        if outcome is None:
            found = self._beside(job, first) if first and beside else self._plan(job)
            if isinstance(found, Plan):
                return found
            outcome = self._failed[kind] = found
        if isinstance(outcome, Never):
            return outcome
        if outcome.postponed:
            if postponing.counts(job, self._now, self._settings.retry_s):
                self._postponed.append(job.uuid)
            return outcome
        preempts = self._preempting(job)
        if preempts:
            outcome = replace(outcome, reasons=(*preempts, *outcome.reasons))
        if self._settings.discipline is Discipline.FCFS:
            self._blocked_by = job
        elif self._settings.discipline is Discipline.EASY and first is None and is_new:
            self._reserve(job)
        return outcome

    def _plan(self, job: Job, claims: ClaimsT | None = None) -> Plan[PlaceT] | Wait | Never:
        fleet = self._fleet
        taken = fleet.claims if claims is None else claims
        return fleet.planner.plan(job, fleet.view, taken, self._now, fleet.settings)

    def _start(self, job: Job, plan: Plan[PlaceT]) -> None:
        self._fleet.claims.take(job, plan)
        if self._reserved and not self._reserved.ends_before(job, self._now):
            self._reserved.claims.take(job, plan)
        self._usage[job.project] = self._usage.get(job.project, of_projects.NOTHING).plus(job)
        self._starts.append(Start(job, plan))
        self._started.append(ActiveJob(job, plan, self._now))
        self._failed.clear()  # a place that was taken can make another one better

    # Reservation ----------------------------------------------------------------------------------------------------

    def _reserve(self, job: Job) -> None:
        """Find the earliest time at which the first job that found no place has one; none if it never has."""
        ends = sorted(self._active(), key=lambda each: each.ends_at(self._now))
        low, high = 0, len(ends) + 1
        while low < high:
            middle = (low + high) // 2
            if isinstance(self._plan(job, self._claims_after(ends[:middle])), Plan):
                high = middle
            else:
                low = middle + 1
        at = ends[min(high, len(ends)) - 1].ends_at(self._now) if high and ends else self._now
        claims = self._claims_after(each for each in ends if each.ends_at(self._now) <= at)
        plan = self._plan(job, claims)
        if isinstance(plan, Plan):
            self._reserved = _Reserved(job, at, plan, claims)

    def _beside(self, job: Job, first: _Reserved[PlaceT, ClaimsT]) -> Plan[PlaceT] | Wait | Never:
        """Find places that leave the first job its own, or others that are as early."""
        anywhere = self._plan(job)
        if not isinstance(anywhere, Plan):
            return anywhere
        then = first.claims.copy()
        then.take(job, anywhere)
        moved = self._plan(first.job, then)
        if isinstance(moved, Plan):
            first.plan = moved
            return anywhere
        reserved = first.claims.copy()
        reserved.take(first.job, first.plan)
        found = self._plan(job, self._fleet.claims.either(reserved))
        if isinstance(found, Wait):
            return replace(found, reasons=(*found.reasons, first.reason(self._now)))
        return found

    def _active(self) -> list[ActiveJob[Plan[PlaceT]]]:
        """Return jobs that have places, those that this round starts and stops included."""
        stopped = self._stopped
        return [
            replace(each, ending=True) if each.job.uuid in stopped else each
            for each in (*self._given, *self._started)
        ]

    @property
    def _stopped(self) -> set[str]:
        return {each.active.job.uuid for each in self._preempted}

    def _claims_after(self, ended: Iterable[ActiveJob[Plan[PlaceT]]]) -> ClaimsT:
        claims = self._fleet.claims.copy()
        for each in ended:
            claims.give(each.job, each.plan)
        return claims

    # Preemption -----------------------------------------------------------------------------------------------------

    def _preempting(self, job: Job) -> tuple[Reason, ...]:
        """Stop best-effort jobs in favour of a latency-critical one, no more than it needs; says which."""
        if not self._settings.preempt or not job.latency_critical:
            return ()
        ending = [each for each in self._active() if each.ending]
        if ending and self._fits_after(job, ending):
            return (_preempts(ending),)
        victims = self._victims(job, ending)
        if not victims:
            return ()
        reason = Reason(JobTerm.PREEMPTED, job.uuid)
        self._preempted += [Preemption(victim, reason) for victim in victims]
        return (_preempts(victims),)

    def _victims(
        self, job: Job, ending: Sequence[ActiveJob[Plan[PlaceT]]]
    ) -> list[ActiveJob[Plan[PlaceT]]]:
        """Return running jobs to stop, the latest first; none when that would not help."""
        candidates = sorted(
            (
                each
                for each in self._given
                if each.job.preemptible
                and each.job.best_effort
                and not each.ending
                and each.job.uuid not in self._stopped
            ),
            key=lambda each: -each.started_at,
        )
        low, high = 1, len(candidates) + 1
        while low < high:
            middle = (low + high) // 2
            if self._fits_after(job, [*ending, *candidates[:middle]]):
                high = middle
            else:
                low = middle + 1
        if high > len(candidates):
            return []
        victims = candidates[:high]
        for each in candidates[: min(high - 1, _MOST_SPARED)]:  # the last one made the difference
            others = [other for other in victims if other is not each]
            if self._fits_after(job, [*ending, *others]):
                victims = others
        return victims

    def _fits_after(self, job: Job, ended: Sequence[ActiveJob[Plan[PlaceT]]]) -> bool:
        """A job finds a place when others have ended, one that leaves the first job its own."""
        claims = self._claims_after(ended)
        first = self._reserved
        if first is not None and not first.ends_before(job, self._now):
            reserved = first.claims.copy()
            for each in ended:
                if each.ends_at(self._now) > first.at:
                    reserved.give(each.job, each.plan)
            reserved.take(first.job, first.plan)
            claims = claims.either(reserved)
        return isinstance(self._plan(job, claims), Plan)


def _preempts(jobs: Iterable[ActiveJob[Plan[PlaceT]]]) -> Reason:
    return Reason(JobTerm.PREEMPTS, ", ".join(each.job.uuid for each in jobs))
