# SPDX-License-Identifier: Apache-2.0
"""A fabric as the queue of the job service sees it: a planner of leafs, and an account of what jobs have of them.

So jobs of a replayed log wait in the queue that the service runs. What has been refused is not asked again while
nothing starts or ends; where larger jobs of the same kind need more of the same, they are refused with it:

=====================================  =====================================================
policy                                 a refusal holds for
=====================================  =====================================================
those that go by room, whole pods      jobs of as many hosts or more, in one leaf or in several
virtual network blocks, one leaf       as above
virtual network blocks, blocks         multiples of a block, as many or more
virtual network blocks, whole leafs    jobs of as many whole leafs or more
any other refusal                      jobs of the same number of hosts
=====================================  =====================================================
"""

import math
from collections.abc import Hashable, Iterable
from typing import Final, Self

from nova_numa_ext.policy.jobs.job import Job, Part
from nova_numa_ext.policy.jobs.plan import Never, Outcome, Plan, Wait
from nova_numa_ext.policy.jobs.queue_settings import Discipline, QueueSettings
from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlan, PlanOptions, PolicyName
from nova_numa_ext.policy.network.planner import places
from nova_numa_ext.policy.network.terms import GroupTerm
from nova_numa_ext.simulator.network.account import LeafAccount
from nova_numa_ext.simulator.network.mixes import LoggedJob
from placement_traits import request
from placement_traits.fabric import Fabric
from placement_traits.names import NetClass, UplinkShare
from placement_traits.reason import Reason

SHARES: Final = {
    PolicyName.VNB: UplinkShare.QUIET,
    PolicyName.EXCLUSIVE: UplinkShare.EXCLUSIVE,
}
"""What jobs ask for under the policies that are no way to share."""

BY_ROOM: Final = frozenset(
    {
        PolicyName.FIRST_AVAILABLE,
        PolicyName.FIRST_CONTIGUOUS,
        PolicyName.BEST_FIT,
        PolicyName.EXCLUSIVE,
    }
)
"""Policies with which a job that has no place leaves none for larger ones of its kind: in one leaf, or in several."""

_SERVER: Final = request.parse({}, vcpus=1, memory_mb=1)  # only its host matters here


def queued(job: LoggedJob) -> Job:
    """Return a job of a log as the queue sees it; its walltime is as long as it runs."""
    part = Part("hosts", job.hosts, "", _SERVER)
    return Job(str(job.number), "", (part,), job.submitted_at, walltime_s=job.runs_s)


def settings(discipline: Discipline) -> QueueSettings:
    """Return the settings of the queue: all jobs age alike, and what has no place on an empty fabric is given up."""
    return QueueSettings(discipline, ageing_per_hour=0.0, unsatisfiable_s=0.0)


class FabricClaims:
    """The leafs, with what jobs have taken, and what has been refused since anything has changed.

    :param account: of the leafs
    """

    def __init__(self, account: LeafAccount) -> None:
        self.account = account
        self.changes = 0
        """How often jobs have started or ended so far."""
        self._refused: dict[Hashable, float] = {}

    def take(self, job: Job, plan: Plan[LeafPlan]) -> None:
        """Put a job on its leafs."""
        self.account.start(plan.places[0])
        self._changed()

    def give(self, job: Job, plan: Plan[LeafPlan]) -> None:
        """Take a job off its leafs."""
        self.account.end(plan.places[0])
        self._changed()

    def copy(self) -> Self:
        """Return claims of their own with the same jobs."""
        return type(self)(self.account.copy())

    def either(self, other: Self) -> Self:
        """Return the claims in which free is what is free in both."""
        return type(self)(self.account.either(other.account))

    def _changed(self) -> None:
        self.changes += 1
        self._refused.clear()

    def refuse(self, what: Hashable, least: float) -> None:
        """Remember a refusal.

        :param what: for which kind of need
        :param least: and from which amount on
        """
        self._refused[what] = min(least, self._refused.get(what, math.inf))

    def refuses(self, needs: Iterable[tuple[Hashable, float]]) -> bool:
        """Return whether one of some needs is known to be refused.

        :param needs: kinds and amounts
        """
        if not self._refused:
            return False
        return any(amount >= self._refused.get(what, math.inf) for what, amount in needs)


class FabricPlanner:
    """Asks a policy; jobs of as many hosts are of one kind.

    :param fabric: the plan
    :param policy: one of nova-scheduler's
    :param remembers: larger jobs are not asked for where a smaller one has shown that they have no place
    """

    def __init__(self, fabric: Fabric, policy: PolicyName, *, remembers: bool = True) -> None:
        self._usual = fabric.usual_size
        self._block = fabric.block
        self._policy = policy
        self._share = SHARES.get(policy, UplinkShare.SHARED)
        self._options = PlanOptions() if policy in SHARES else PlanOptions(policy)
        self._empty = LeafAccount(fabric)
        self._never: dict[int, Reason] = {}  # on the empty fabric
        self._fitting: set[int] = set()
        self.remembers = remembers
        self._needs_of: dict[int, list[tuple[Hashable, float]]] = {}

    def kind(self, job: Job, now: float) -> Hashable:
        """Return how many hosts a job has."""
        return job.parts[0].count

    def plan(
        self, job: Job, view: None, claims: FabricClaims, now: float, settings: None
    ) -> Outcome[LeafPlan]:
        """Return the policy's leafs for a job."""
        hosts = job.parts[0].count
        if self.is_refused(hosts, claims):
            return _wait(Reason(GroupTerm.FREE_HOSTS, 0, hosts))
        found = self._asked(hosts, claims.account)
        if isinstance(found, LeafPlan):
            return Plan((found,))
        if hosts not in self._fitting and hosts not in self._never:
            alone = self._asked(hosts, self._empty)
            if isinstance(alone, Reason):
                self._never[hosts] = alone
            else:
                self._fitting.add(hosts)
        if hosts in self._never:
            return Never((self._never[hosts],))
        claims.refuse(*self._least(hosts, found))
        return _wait(found)

    def is_refused(self, hosts: int, claims: FabricClaims) -> bool:
        """Return whether it is known that so many hosts have no place now.

        Where fewer are free no policy has one; but of jobs that may never have one, the policy is asked first.
        """
        if self.remembers and hosts > claims.account.free and hosts in self._fitting:
            return True
        return claims.refuses(self._needs(hosts))

    def _asked(self, hosts: int, account: LeafAccount) -> LeafPlan | Reason:
        # Of class low: groups go together everywhere, so that no policy knows of traffic.
        asked = GroupRequest(hosts, self._share, net_class=NetClass.LOW)
        return places(account.leafs, asked, self._options)

    def _needs(self, hosts: int) -> list[tuple[Hashable, float]]:
        """Return by which needs a job may be known to have no place."""
        if hosts not in self._needs_of:
            self._needs_of[hosts] = self._all_needs(hosts)
        return self._needs_of[hosts]

    def _all_needs(self, hosts: int) -> list[tuple[Hashable, float]]:
        exact: tuple[Hashable, float] = (hosts, 0.0)
        if not self.remembers:
            return [exact]
        if hosts <= self._usual:
            return [exact, (GroupTerm.ONE_LEAF, hosts)]
        if self._policy in BY_ROOM:
            return [exact, (GroupTerm.FREE_HOSTS, hosts)]
        if hosts % self._block == 0:
            return [exact, (GroupTerm.BLOCKS, hosts)]
        return [exact, (GroupTerm.WHOLE_LEAFS, hosts // self._usual)]

    def _least(self, hosts: int, reason: Reason) -> tuple[Hashable, float]:
        """Return from which amount of which need on a refusal holds."""
        exact, *larger = self._needs(hosts)
        known = self._policy in BY_ROOM or reason.term in {each for each, _ in larger}
        known = known and self._policy in {*BY_ROOM, PolicyName.VNB}
        return larger[0] if larger and known else exact


def _wait(reason: Reason) -> Wait:
    return Wait((reason,))
