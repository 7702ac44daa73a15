# SPDX-License-Identifier: Apache-2.0
"""The smallest fleet that a queue can run on: units that are all alike, one server each; and an event loop for it."""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from nova_numa_ext.policy.jobs.job import ActiveJob, Job, Part
from nova_numa_ext.policy.jobs.plan import Never, Outcome, Plan, Wait
from nova_numa_ext.policy.jobs.queue import Fleet, decide
from nova_numa_ext.policy.jobs.queue_order import in_order
from nova_numa_ext.policy.jobs.queue_round import NO_ROUND_BEFORE, QueueRound, QueueState
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.reason import Reason
from placement_traits.workload_request import WorkloadRequest
from tests.support.fleet import be


@dataclass
class UnitClaims:
    """How many jobs have each unit."""

    taken: Counter[int] = field(default_factory=Counter)

    def take(self, job: Job, plan: Plan[int]) -> None:
        self.taken.update(plan.places)

    def give(self, job: Job, plan: Plan[int]) -> None:
        self.taken.subtract(plan.places)

    def copy(self) -> Self:
        return type(self)(self.taken.copy())

    def either(self, other: Self) -> Self:
        return type(self)(self.taken | other.taken)


class UnitPlanner:
    """The free units with the lowest numbers."""

    def claims(self) -> UnitClaims:
        return UnitClaims()

    def kind(self, job: Job, now: float) -> Hashable:
        return job.servers

    def plan(
        self, job: Job, view: int, claims: UnitClaims, now: float, settings: None
    ) -> Outcome[int]:
        if job.servers > view:
            return Never((Reason(JobTerm.TOO_LARGE, view, job.servers, "p"),))
        free = [unit for unit in range(view) if claims.taken[unit] <= 0]
        if job.servers > len(free):
            return Wait((Reason(JobTerm.NO_ROOM, len(free), job.servers, "p"),))
        return Plan(tuple(free[: job.servers]))


class AmountClaims(UnitClaims):
    """How many units are taken, whichever these are."""

    def take(self, job: Job, plan: Plan[int]) -> None:
        self.taken[0] += job.servers

    def give(self, job: Job, plan: Plan[int]) -> None:
        self.taken[0] -= job.servers

    def either(self, other: Self) -> Self:
        return type(self)(Counter({0: max(self.taken[0], other.taken[0])}))


class AmountPlanner(UnitPlanner):
    """Any units, as hosts have CPUs: what is kept for a job is not kept of some that are free already."""

    def claims(self) -> UnitClaims:
        return AmountClaims()

    def plan(
        self, job: Job, view: int, claims: UnitClaims, now: float, settings: None
    ) -> Outcome[int]:
        free = view - claims.taken[0]
        if job.servers > free:
            return Wait((Reason(JobTerm.NO_ROOM, free, job.servers, "p"),))
        return Plan(())


BEST_EFFORT = be()


def a_job(
    uuid: str,
    servers: int = 1,
    submitted_at: float = 0.0,
    *,
    project: str = "project",
    request: WorkloadRequest = BEST_EFFORT,
    **fields: object,
) -> Job:
    parts = (Part("p", servers, "flavor", request),)
    return Job(uuid, project, parts, submitted_at, **fields)  # type: ignore[arg-type]


def one_round(
    waiting: Sequence[Job],
    active: Sequence[ActiveJob[Plan[int]]],
    units: int,
    now: float,
    settings: QueueSettings,
    *,
    state: QueueState = NO_ROUND_BEFORE,
    planner: UnitPlanner | None = None,
    kinds: Counter[Hashable] | None = None,
) -> QueueRound[int]:
    """One round, with the claims that the active jobs have."""
    planner = planner or UnitPlanner()
    claims = planner.claims()
    for each in active:
        claims.take(each.job, each.plan)
    fleet = Fleet(units, claims, planner, None)
    ordered = in_order(waiting, now, settings)
    return decide(ordered, active, fleet, now, settings, state=state, kinds=kinds)


@dataclass
class PoolRun:
    """What happened.

    :param starts: job -> when it started, the last time
    :param rounds: each round with its time
    :param stops: (time, job that was stopped, job in whose favour)
    """

    starts: dict[str, float]
    rounds: list[tuple[float, QueueRound[int]]]
    stops: list[tuple[float, str, str]]


def simulate(
    jobs: Iterable[tuple[Job, float]],
    units: int,
    settings: QueueSettings,
    check: Callable[[Sequence[ActiveJob[Plan[int]]]], None] = lambda active: None,
    *,
    ending_s: float = 30.0,
    planner: UnitPlanner | None = None,
) -> PoolRun:
    """Run jobs until none is left that can start; one that is stopped runs as long again.

    :param jobs: with their run times, in order of submission
    :param check: called with the jobs that run after each round
    :param ending_s: seconds until the places of a job that is stopped are free
    """
    arrivals = [(job.submitted_at, number, job, run_s) for number, (job, run_s) in enumerate(jobs)]
    runs = {job.uuid: run_s for _, _, job, run_s in arrivals}
    heapq.heapify(arrivals)
    waiting: dict[str, Job] = {}
    active: dict[str, ActiveJob[Plan[int]]] = {}
    ends: list[tuple[float, str]] = []
    run = PoolRun({}, [], [])
    state = NO_ROUND_BEFORE
    while arrivals or ends:
        now = min(at[0][0] for at in (arrivals, ends) if at)
        while ends and ends[0][0] <= now:
            ended = active.pop(heapq.heappop(ends)[1])
            if ended.ending_at is not None:
                waited_s = ended.job.waiting_s(ended.started_at)
                stopped = replace(ended.job, queued_at=now, waited_s=waited_s)
                waiting[stopped.uuid] = stopped
        while arrivals and arrivals[0][0] <= now:
            job = heapq.heappop(arrivals)[2]
            waiting[job.uuid] = job
        found = one_round(
            list(waiting.values()),
            list(active.values()),
            units,
            now,
            settings,
            state=state,
            planner=planner,
        )
        state = found.state
        run.rounds.append((now, found))
        for uuid in found.ended:
            del waiting[uuid]
        for start in found.starts:
            del waiting[start.job.uuid]
            run.starts[start.job.uuid] = now
            active[start.job.uuid] = ActiveJob(start.job, start.plan, now)
            heapq.heappush(ends, (now + runs[start.job.uuid], start.job.uuid))
        for each in found.preempted:
            uuid = each.active.job.uuid
            active[uuid] = replace(each.active, ending_at=now)
            ends = [end for end in ends if end[1] != uuid]
            ends.append((now + ending_s, uuid))
            heapq.heapify(ends)
            run.stops.append((now, uuid, str(each.reason.value)))
        taken = Counter(unit for each in active.values() for unit in each.plan.places)
        assert max(taken.values(), default=0) <= 1, "two jobs on one unit"
        assert sum(each.job.servers for each in active.values()) <= units, "more than there is"
        check(list(active.values()))
    return run
