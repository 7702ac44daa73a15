# SPDX-License-Identifier: Apache-2.0
"""Who starts now? One round of the queue, as a pure decision.

The order is that of :func:`.queue_order.in_order`: priority, which grows with the time that a job has waited, then time
of submission. In this order each job asks its planner, unless it is held, backs off, or exceeds a limit of its project.
What follows when a job finds no place is the discipline:

``fcfs``
    all jobs behind it wait, too
``greedy``
    jobs behind it may start; a job that needs much may wait for ever
``easy``
    the first one that finds no place gets a *reservation*: places that are free at the latest when some running jobs
    have reached their walltimes. Jobs behind it may start if they end before that time, or if it has places then all
    the same (EASY backfill, Lifka 1995). It needs walltimes: where the jobs in the way have none, no time is known, and
    jobs behind it must leave it its places, however short they are

A job that is *postponed* could start and prefers to wait: it lets others pass under every discipline. So do a job that
is held, one that exceeds a limit or a quota of its project (:mod:`.quotas`), and one that backs off; but under EASY a
job for which nova found no valid host keeps its turn for the reservation while it backs off, or shorter jobs would take
its places each time. That ends after :data:`.postponing.MOST_POSTPONEMENTS` refusals in a row.

A reservation is a promise of this queue only. Servers that users make beside it take places of the same hosts, so the
promise on CPUs and memory holds where the queue's jobs have an aggregate of their own.

With preemption, a latency-critical job that finds no place has best-effort jobs stopped whose users allow it, the
latest first and no more of them than it needs; they are queued again. What they free, and what other jobs free that are
ending, is kept for it under every discipline, and until it starts it is asked before all others: so a job has others
stopped once. Those of them that run all the same, because who was to stop them could not, are asked again in each
round, and their places count as freed. A job may choose others when nova has refused it, as often as above, or when
servers that are not the queue's have taken the places: that is not known before the view of the fleet is newer than the
end of what was stopped.

A job without a place even in an empty fleet, or above a limit of its project by itself, is not given up after one look:
agents that restart withdraw what they publish for a moment. It waits, in no other job's way, until that was so in all
rounds of a time.
"""

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from nova_numa_ext.policy.jobs import limits as of_projects
from nova_numa_ext.policy.jobs import postponing
from nova_numa_ext.policy.jobs.job import ActiveJob, Job
from nova_numa_ext.policy.jobs.plan import Never, Plan, Wait
from nova_numa_ext.policy.jobs.planner import Claims, Planner
from nova_numa_ext.policy.jobs.queue_round import (
    NO_ROUND_BEFORE,
    Preemption,
    QueueRound,
    QueueState,
    Reservation,
    Start,
)
from nova_numa_ext.policy.jobs.queue_settings import Discipline, QueueSettings
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.reason import Reason

# Both bound the time of a round.
_MOST_SPARED: Final = 32  # jobs to be stopped of which it is tried whether one can go on
_MOST_SEARCHES: Final = (
    8  # jobs for which it is searched what to stop; others are next after these have started
)
_SEEN_AFTER_S: Final = 60.0  # until the view of the fleet shows what jobs that have ended freed
_SHOWN: Final = 8  # jobs in a reason


PlaceT = TypeVar("PlaceT")
ViewT = TypeVar("ViewT")
ClaimsT = TypeVar("ClaimsT", bound="Claims")  # type: ignore[type-arg]
SettingsT = TypeVar("SettingsT")


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
    state: QueueState = NO_ROUND_BEFORE,
    kinds: Counter[Hashable] | None = None,
) -> QueueRound[PlaceT]:
    """Decide who starts.

    :param waiting: jobs in the order of :func:`.queue_order.in_order`
    :param active: jobs that have places
    :param fleet: its claims are those of the active jobs; the places of jobs that start are added to them, and those
        that are kept for jobs in whose favour others end
    :param now: the time
    :param state: of the last round
    :param kinds: how many jobs of each kind wait, for a caller that knows it and needs no reasons: the round ends when
        no kind finds a place any more. None: every job is answered
    """
    deciding = _Deciding(active, fleet, now, settings, state)
    if state.preempting:
        waiting = sorted(waiting, key=lambda job: job.uuid not in state.preempting)
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


@dataclass(slots=True)
class _Ending(Generic[PlaceT, ClaimsT]):
    """What is taken when some jobs have ended.

    :param claims: now, without those jobs
    :param then: when the places of the first job are free, those included; None where the first job is in no one's way
    :param at: that time
    :param now: the time
    """

    claims: ClaimsT
    then: ClaimsT | None
    at: float
    now: float

    def end(self, *jobs: ActiveJob[Plan[PlaceT]]) -> None:
        """Let jobs end."""
        for each in jobs:
            self.claims.give(each.job, each.plan)
            if self.then is not None and each.ends_at(self.now) > self.at:
                self.then.give(each.job, each.plan)

    def go_on(self, each: ActiveJob[Plan[PlaceT]]) -> None:
        """Let a job that ended go on."""
        self.claims.take(each.job, each.plan)
        if self.then is not None and each.ends_at(self.now) > self.at:
            self.then.take(each.job, each.plan)

    def copy(self) -> "_Ending[PlaceT, ClaimsT]":
        """Return the same, to be changed on its own."""
        return replace(
            self, claims=self.claims.copy(), then=self.then.copy() if self.then else None
        )

    @property
    def taken(self) -> ClaimsT:
        """What a job must leave alone that runs from now on."""
        return self.claims if self.then is None else self.claims.either(self.then)


class _Deciding(Generic[PlaceT, ViewT, ClaimsT, SettingsT]):
    """A round that goes on."""

    def __init__(
        self,
        active: Collection[ActiveJob[Plan[PlaceT]]],
        fleet: Fleet[PlaceT, ViewT, ClaimsT, SettingsT],
        now: float,
        settings: QueueSettings,
        state: QueueState,
    ) -> None:
        self._given = active
        self._started: list[ActiveJob[Plan[PlaceT]]] = []
        self._fleet = fleet
        self._now = now
        self._settings = settings
        self._before = state
        self._limited = settings.limited
        self._usage = of_projects.by_project(each.job for each in active) if self._limited else {}
        self._failed: dict[tuple[Hashable, bool], Wait | Never] = {}
        self._nowhere = 0  # kinds among them without a place even where nothing is reserved
        self._blocked_by: Job | None = None
        self._reserved: _Reserved[PlaceT, ClaimsT] | None = None
        self._starts: list[Start[PlaceT]] = []
        self._waits: dict[str, Wait] = {}
        self._ended: dict[str, tuple[Reason, ...]] = {}
        self._unsatisfiable: dict[str, float] = {}
        self._quotas = dict(state.quotas)
        self._postponed: list[str] = []
        self._kept: list[Reservation[PlaceT]] = []
        self._preempting: dict[str, float] = {}
        self._preempted: list[Preemption[PlaceT]] = []
        self._chosen: dict[str, frozenset[str]] = {}
        self._vacated: ClaimsT | None = None
        self._in_vain: set[Hashable] = set()
        self._searches = 0

    def result(self) -> QueueRound[PlaceT]:
        """Return what was decided."""
        first = self._reserved
        of_first = [Reservation(first.job.uuid, first.at, first.plan)] if first else []
        return QueueRound(
            tuple(self._starts),
            self._waits,
            self._ended,
            tuple(self._postponed),
            tuple(self._preempted),
            (*self._kept, *of_first),
            QueueState(self._preempting, self._unsatisfiable, self._quotas, self._chosen),
        )

    def exhausted(self, kinds: int) -> bool:
        """No job behind those considered can start any more.

        :param kinds: how many kinds wait
        """
        return self._blocked_by is not None or self._nowhere == kinds

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
            self._wait_a_while(job, outcome)
        else:
            self._waits[job.uuid] = outcome
        return False

    def _wait_a_while(self, job: Job, never: Never) -> None:
        """Have a job wait that can never start, as long as that may be a moment's look of the fleet or of limits."""
        since = self._before.unsatisfiable.get(job.uuid, self._now)
        if self._now - since >= self._settings.unsatisfiable_s:
            self._ended[job.uuid] = never.reasons
        else:
            self._unsatisfiable[job.uuid] = since
            self._waits[job.uuid] = Wait(never.reasons)

    def _given_up(self, job: Job) -> tuple[Reason, ...]:
        waited_s = job.waiting_s(self._now)
        if job.max_wait_s is not None and waited_s > job.max_wait_s:
            return (Reason(JobTerm.MAX_WAIT, round(waited_s), round(job.max_wait_s)),)
        if job.deadline_at is not None:
            late_s = self._now + (job.walltime_s or 0.0) - job.deadline_at
            if late_s > 0:
                return (Reason(JobTerm.DEADLINE, math.ceil(late_s)),)
        return ()

    def _not_now(self, job: Job) -> Wait | Never | None:
        """Why a job is not asked."""
        if job.held:
            return Wait((Reason(JobTerm.HELD, "its user"),))
        over = self._over_limits(job)
        if job.not_before > self._now:
            self._keep_turn(job, over)
            left_s = math.ceil(job.not_before - self._now)
            return Wait((Reason(JobTerm.BACK_OFF, left_s),), until=job.not_before)
        return over or self._over_quota(job)

    def _over_quota(self, job: Job) -> Wait | None:
        wait = self._quotas.get(job.project)
        if wait is None or wait.until <= self._now:
            return None
        left_s = math.ceil(wait.until - self._now)
        return Wait((Reason(JobTerm.PROJECT_QUOTA, left_s),), until=wait.until)

    def _over_limits(self, job: Job) -> Wait | Never | None:
        if not self._limited:
            return None
        limits = self._settings.limits_of(job.project)
        never = of_projects.unsatisfiable(job, limits)
        if never:
            return Never(never)
        over = of_projects.exceeded(job, self._usage, limits)
        return Wait(over) if over else None

    def _keep_turn(self, job: Job, over: Wait | Never | None) -> None:
        """Reserve places for a job that backs off, where it has its turn to and nova lacked hosts for it."""
        has_turn = self._settings.discipline is Discipline.EASY and self._reserved is None
        if has_turn and over is None and job.excluded and _is_tried_again(job):
            self._reserve(job)

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
            self._nowhere += not beside
        if isinstance(outcome, Never):
            return outcome
        if outcome.postponed:
            if postponing.counts(job, self._now, self._settings.postponement_s):
                self._postponed.append(job.uuid)
            return outcome
        freed_by = self._freed_by(job, kind, first if beside else None)
        if freed_by is not None:
            outcome = replace(outcome, reasons=(freed_by, *outcome.reasons))
        waits_first = first is None and is_new and freed_by is None
        if self._settings.discipline is Discipline.FCFS:
            self._blocked_by = job
        elif self._settings.discipline is Discipline.EASY and waits_first:
            self._reserve(job)
        return outcome

    def _plan(self, job: Job, claims: ClaimsT | None = None) -> Plan[PlaceT] | Wait | Never:
        fleet = self._fleet
        taken = fleet.claims if claims is None else claims
        return fleet.planner.plan(job, fleet.view, taken, self._now, fleet.settings)

    def _start(self, job: Job, plan: Plan[PlaceT]) -> None:
        self._starts.append(Start(job, plan))
        if job.project in self._quotas:
            self._quotas[job.project] = self._quotas[job.project].started(self._now)
        self._take(job, plan)

    def _keep(self, job: Job, plan: Plan[PlaceT]) -> None:
        """Keep places that others free for a job as if it had them."""
        self._kept.append(Reservation(job.uuid, self._now, plan))
        self._preempting[job.uuid] = self._now
        self._take(job, plan)

    def _take(self, job: Job, plan: Plan[PlaceT]) -> None:
        self._fleet.claims.take(job, plan)
        if self._reserved and not self._reserved.ends_before(job, self._now):
            self._reserved.claims.take(job, plan)
        if self._vacated is not None:
            self._vacated.take(job, plan)
        self._usage[job.project] = self._usage.get(job.project, of_projects.NOTHING).plus(job)
        self._started.append(ActiveJob(job, plan, self._now))
        self._failed.clear()  # a place that was taken can make another one better
        self._nowhere = 0

    # Reservation ----------------------------------------------------------------------------------------------------

    def _reserve(self, job: Job) -> None:
        """Find the earliest time at which the first job that found no place has one; none if it never has."""
        ends = sorted(self._active(), key=lambda each: each.ends_at(self._now))
        found = self._fewest(job, self._ending(None), ends)
        if found is None:
            return
        at = ends[found[0] - 1].ends_at(self._now) if found[0] else self._now
        at = max(at, job.not_before)
        claims = self._fleet.claims.copy()
        for each in ends:
            if each.ends_at(self._now) <= at:
                claims.give(each.job, each.plan)
        plan = self._plan(job, claims)
        if isinstance(plan, Plan):
            self._reserved = _Reserved(job, at, plan, claims)

    def _fewest(
        self,
        job: Job,
        taken: _Ending[PlaceT, ClaimsT],
        ends: Sequence[ActiveJob[Plan[PlaceT]]],
    ) -> tuple[int, _Ending[PlaceT, ClaimsT]] | None:
        """Return how many jobs must end, in their order, until another one finds a place, and what is taken then.

        :param taken: before they end
        :returns: None: there is no place when all have ended
        """
        low, high, ended = 0, len(ends) + 1, 0
        while low < high:
            middle = (low + high) // 2
            tried = taken.copy()
            tried.end(*ends[ended:middle])
            if isinstance(self._plan(job, tried.taken), Plan):
                high = middle
            else:
                low = middle + 1
                taken, ended = tried, middle
        if low > len(ends):
            return None
        taken = taken.copy()
        taken.end(*ends[ended:low])
        return low, taken

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
            replace(each, ending_at=self._now) if each.job.uuid in stopped else each
            for each in (*self._given, *self._started)
        ]

    @property
    def _stopped(self) -> set[str]:
        return {each.active.job.uuid for each in self._preempted}

    def _ending(self, first: _Reserved[PlaceT, ClaimsT] | None) -> _Ending[PlaceT, ClaimsT]:
        """Return what is taken before any job ends.

        :param first: whose places are not to be taken
        """
        claims = self._fleet.claims.copy()
        if first is None:
            return _Ending(claims, None, self._now, self._now)
        then = first.claims.copy()
        then.take(first.job, first.plan)
        return _Ending(claims, then, first.at, self._now)

    # Preemption -----------------------------------------------------------------------------------------------------

    def _freed_by(
        self, job: Job, kind: Hashable, first: _Reserved[PlaceT, ClaimsT] | None
    ) -> Reason | None:
        """Keep places for a latency-critical job that others free, and have others stopped where that is needed.

        :param kind: jobs of one kind fail together
        :param first: whose places are not to be taken
        :returns: which jobs free them, None: there are none that help
        """
        asks = self._settings.preempt and job.latency_critical and _is_tried_again(job)
        if not asks:
            return None
        kept_at = self._before.preempting.get(job.uuid, -math.inf)
        is_not_seen_yet = self._now - kept_at < _SEEN_AFTER_S
        if is_not_seen_yet:
            self._preempting[job.uuid] = kept_at
        chosen = self._before.chosen.get(job.uuid)
        running = [each for each in self._candidates() if each.job.uuid in chosen] if chosen else []
        if kind in self._in_vain and not running:
            return None
        freeing = [each for each in self._active() if each.is_freed_soon(self._now)]
        taken = self._ending(first)
        taken.end(*freeing)
        plan = self._plan(job, taken.taken) if freeing else None
        if running and not isinstance(plan, Plan):
            self._chosen[job.uuid] = frozenset(each.job.uuid for each in running)
            taken.end(*running)
            plan = self._plan(job, taken.taken)
            if isinstance(plan, Plan):
                freeing += self._stop(running, job)
            else:
                for each in running:
                    taken.go_on(each)
        if not isinstance(plan, Plan) and not is_not_seen_yet:
            victims, plan = self._victims(job, kind, taken)
            freeing += self._stop(victims, job)
        if not isinstance(plan, Plan):
            return None
        self._keep(job, plan)
        return _preempts(freeing)

    def _stop(
        self, victims: Sequence[ActiveJob[Plan[PlaceT]]], job: Job
    ) -> Sequence[ActiveJob[Plan[PlaceT]]]:
        """Have running jobs stopped in favour of another one; return them."""
        reason = Reason(JobTerm.PREEMPTED, job.uuid)
        if victims:
            chosen = {each.job.uuid for each in victims}
            self._chosen[job.uuid] = self._chosen.get(job.uuid, frozenset()) | chosen
        for each in victims:
            self._preempted.append(Preemption(each, reason))
            if self._reserved and each.ends_at(self._now) > self._reserved.at:
                self._reserved.claims.give(each.job, each.plan)
        return victims

    def _victims(
        self, job: Job, kind: Hashable, taken: _Ending[PlaceT, ClaimsT]
    ) -> tuple[list[ActiveJob[Plan[PlaceT]]], Plan[PlaceT] | None]:
        """Return running jobs to stop, the latest first, and the places that a job has then; none where none helps.

        :param taken: when all have ended that are ending
        """
        nothing: tuple[list[ActiveJob[Plan[PlaceT]]], None] = ([], None)
        if self._searches == _MOST_SEARCHES or not isinstance(
            self._plan(job, self._vacated_claims()), Plan
        ):
            self._in_vain.add(kind)
            return nothing
        self._searches += 1
        candidates = self._candidates()
        found = self._fewest(job, taken, candidates)
        if found is None:
            self._in_vain.add(kind)
            return nothing
        number, taken = found
        victims = candidates[:number]
        for each in candidates[: min(number - 1, _MOST_SPARED)]:  # the last one made the difference
            taken.go_on(each)
            if isinstance(self._plan(job, taken.taken), Plan):
                victims.remove(each)
            else:
                taken.end(each)
        plan = self._plan(job, taken.taken)
        return (victims, plan) if isinstance(plan, Plan) else nothing

    def _candidates(self) -> list[ActiveJob[Plan[PlaceT]]]:
        """Return running jobs that may be stopped, the latest first."""
        stopped = self._stopped
        return sorted(
            (
                each
                for each in self._given
                if each.job.preemptible
                and each.job.best_effort
                and each.ending_at is None
                and each.job.uuid not in stopped
            ),
            key=lambda each: -each.started_at,
        )

    def _vacated_claims(self) -> ClaimsT:
        """Return what is taken when all have ended that may be stopped or are ending."""
        if self._vacated is None:
            self._vacated = self._fleet.claims.copy()
            freeing = [each for each in self._active() if each.is_freed_soon(self._now)]
            for each in (*freeing, *self._candidates()):
                self._vacated.give(each.job, each.plan)
        return self._vacated


def _is_tried_again(job: Job) -> bool:
    """Nova has not refused a job so often that others must not suffer for it."""
    return job.refusals < postponing.MOST_POSTPONEMENTS


def _preempts(jobs: Sequence[ActiveJob[Plan[PlaceT]]]) -> Reason:
    more = f" and {len(jobs) - _SHOWN} more" if len(jobs) > _SHOWN else ""
    shown = ", ".join(each.job.uuid for each in jobs[:_SHOWN])
    return Reason(JobTerm.PREEMPTS, shown + more, len(jobs))
