# SPDX-License-Identifier: Apache-2.0
"""A strategy as the queue of the job service sees it: a planner, and the cluster as its account of claims.

So the simulator's jobs wait in the queue that the service runs, under the same rules for who may pass and who is
postponed.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, Self

from nova_numa_ext.policy.gpu.job import GpuJob
from nova_numa_ext.policy.jobs import postponing
from nova_numa_ext.policy.jobs.job import Job, Part
from nova_numa_ext.policy.jobs.plan import Outcome, Plan, Wait
from nova_numa_ext.policy.jobs.terms import JobTerm
from nova_numa_ext.simulator.gpu.cluster import Cluster, Place, Strategy
from nova_numa_ext.simulator.gpu.workload import Submission
from placement_traits import request
from placement_traits.reason import Reason

_SERVER: Final = request.parse({}, vcpus=1, memory_mb=1)  # only its GPUs matter here
_NO_ROOM: Final = Wait((Reason(JobTerm.NO_ROOM, 0),))


def queued(submission: Submission) -> Job:
    """Return a job of a workload as the queue sees it."""
    job = submission.job
    parts = tuple(Part(str(number), 1, job.profile, _SERVER) for number in range(len(job.parts)))
    return Job(
        str(submission.number),
        "",
        parts,
        submission.arrival_s,
        walltime_s=submission.walltime_s,
        apart=len(parts) > 1,
    )


class ClusterClaims:
    """The cluster, whose machines show what jobs have taken.

    :param strategy: places jobs on it
    :param jobs: what the queue's jobs request, by uuid
    """

    def __init__(self, strategy: Strategy, jobs: Mapping[str, GpuJob]) -> None:
        self.strategy = strategy
        self._jobs = jobs

    def take(self, job: Job, plan: Plan[Place]) -> None:
        """Put a job on its GPUs."""
        self.strategy.cluster.take(self._jobs[job.uuid], plan.places)

    def give(self, job: Job, plan: Plan[Place]) -> None:
        """Take a job off its GPUs."""
        self.strategy.cluster.give(self._jobs[job.uuid], plan.places)

    def copy(self) -> Self:
        """Return the claims on a cluster of its own."""
        return self._on(self.strategy.cluster.copy())

    def either(self, other: Self) -> Self:
        """Return the claims on a cluster where free is what is free in both."""
        return self._on(self.strategy.cluster.either(other.strategy.cluster))

    def _on(self, cluster: Cluster) -> Self:
        strategy = type(self.strategy)(cluster, self.strategy.store, self.strategy.options)
        return type(self)(strategy, self._jobs)


class StrategyPlanner:
    """Asks the strategy; jobs that are one object are of one kind.

    :param submissions: the workload
    :param clock: wall clock for decision times, seconds
    """

    def __init__(self, submissions: Iterable[Submission], clock: Callable[[], float]) -> None:
        self.jobs = {str(one.number): one.job for one in submissions}
        self.decision_s: list[float] = []
        self._clock = clock

    def kind(self, job: Job, now: float) -> Hashable:
        """Return the identity of what a job requests."""
        return id(self.jobs[job.uuid])

    def plan(
        self, job: Job, view: None, claims: ClusterClaims, now: float, settings: int | None
    ) -> Outcome[Place]:
        """Return the strategy's places for a job.

        :param settings: postponements after which a job takes any place; None: it waits for ever
        """
        requested = self.jobs[job.uuid]
        before = self._clock()
        offer = claims.strategy.offer(requested)
        self.decision_s.append(self._clock() - before)
        if offer is None:
            return _NO_ROOM
        if claims.strategy.postpones and postponing.postpones(
            job, offer.utility, requested.min_utility, settings
        ):
            return Wait((Reason(JobTerm.POSTPONED, job.postponed),), postponed=True)
        return offer
