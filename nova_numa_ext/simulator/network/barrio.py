# SPDX-License-Identifier: Apache-2.0
"""Replays a log of jobs on a fabric under a policy, and counts who shares uplinks (Jokanović, section 2.2.5, Barrio).

The policies are those that nova-scheduler runs, the queue is that of the job service. Each job has its hosts alone, and
runs as long as the log says: what is counted is sharing and waiting, not slowness. When two jobs share, and the six
metrics, are as :mod:`nova_numa_ext.policy.network.pairs` defines them.

The thesis does not say in which order jobs leave the queue. It is that of :mod:`nova_numa_ext.policy.jobs.queue`, with
any of its disciplines; for backfill jobs end when they have said.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nova_numa_ext.policy.jobs.job import ActiveJob, Job
from nova_numa_ext.policy.jobs.plan import Plan
from nova_numa_ext.policy.jobs.queue import Fleet, decide
from nova_numa_ext.policy.jobs.queue_settings import Discipline
from nova_numa_ext.policy.network.groups import LeafPlan, PolicyName
from nova_numa_ext.policy.network.pairs import LogMetrics
from nova_numa_ext.simulator.network.account import LeafAccount
from nova_numa_ext.simulator.network.fabric_queue import (
    FabricClaims,
    FabricPlanner,
    queued,
    settings,
)
from nova_numa_ext.simulator.network.mixes import LoggedJob
from placement_traits.errors import InvalidValueError
from placement_traits.fabric import Fabric


@dataclass(frozen=True, slots=True)
class ReplayedJob:
    """A job that has run.

    :param job: of the log
    :param started_at: s
    :param places: its hosts by leaf
    """

    job: LoggedJob
    started_at: float
    places: Mapping[str, int]

    @property
    def waited_s(self) -> float:
        """How long it was in the queue."""
        return self.started_at - self.job.submitted_at

    @property
    def ended_at(self) -> float:
        """When its hosts were free again, s."""
        return self.started_at + self.job.runs_s


@dataclass(frozen=True, slots=True)
class LogReplay:
    """What a policy has made of a log.

    :param jobs: that have run, in the order of their starts
    :param metrics: the six metrics
    :param waiting_small_s: mean wait of jobs that fit in a leaf; 0 without one
    :param waiting_large_s: mean wait of the others; 0 without one
    :param never: jobs for which the policy has no place on an empty fabric
    """

    jobs: tuple[ReplayedJob, ...]
    metrics: LogMetrics
    waiting_small_s: float
    waiting_large_s: float
    never: tuple[LoggedJob, ...] = ()


@dataclass(slots=True)
class _Sharing:
    """Who shares with whom, counted when a job starts.

    :param leafs: of each leaf the jobs of several leafs that run there
    :param pods: of each pod the jobs of several pods that run there
    :param others: of each job those with which it has shared
    """

    leafs: dict[str, set[int]] = field(default_factory=dict)
    pods: dict[str, set[int]] = field(default_factory=dict)
    others: dict[int, set[int]] = field(default_factory=dict)
    leaf_pairs: int = 0
    pod_pairs: int = 0

    def start(self, number: int, leafs: frozenset[str], pods: frozenset[str]) -> None:
        """Count a job that starts beside those that run."""
        of_leafs = self._beside(self.leafs, number, leafs)
        of_pods = self._beside(self.pods, number, pods)
        self.leaf_pairs += len(of_leafs)
        self.pod_pairs += len(of_pods)
        for other in of_leafs | of_pods:
            self.others.setdefault(other, set()).add(number)
            self.others.setdefault(number, set()).add(other)

    def end(self, number: int, leafs: frozenset[str], pods: frozenset[str]) -> None:
        """A job runs no more."""
        for running, nodes in ((self.leafs, leafs), (self.pods, pods)):
            for node in nodes:
                running.get(node, set()).discard(number)

    @staticmethod
    def _beside(running: dict[str, set[int]], number: int, nodes: frozenset[str]) -> set[int]:
        if len(nodes) < 2:
            return set()
        found = set[int]().union(*(running.get(node, ()) for node in nodes))
        for node in nodes:
            running.setdefault(node, set()).add(number)
        return found


class _Replay:
    def __init__(self, fabric: Fabric, planner: FabricPlanner, discipline: Discipline) -> None:
        self._fabric = fabric
        self._planner = planner
        self._claims = FabricClaims(LeafAccount(fabric))
        self._fleet: Fleet[LeafPlan, None, FabricClaims, None] = Fleet(
            None, self._claims, planner, None
        )
        self._settings = settings(discipline)
        self._is_greedy = discipline is Discipline.GREEDY
        self._waiting: dict[str, tuple[LoggedJob, Job]] = {}
        self._kinds = Counter[Hashable]()
        self._running: list[tuple[float, int, str]] = []
        self._active: dict[str, ActiveJob[Plan[LeafPlan]]] = {}
        self.sharing = _Sharing()
        self.ran: list[ReplayedJob] = []
        self.never: list[LoggedJob] = []

    @property
    def next_end(self) -> float:
        """When the next job ends, s."""
        return self._running[0][0] if self._running else float("inf")

    @property
    def is_waiting(self) -> bool:
        """A job has no place yet."""
        return bool(self._waiting)

    def submit(self, job: LoggedJob) -> None:
        """A job comes into the queue."""
        self._waiting[str(job.number)] = job, queued(job)
        self._kinds[job.hosts] += 1

    def end_until(self, now: float) -> None:
        """Take off all jobs that have ended."""
        while self.next_end <= now:
            _, number, uuid = heapq.heappop(self._running)
            ended = self._active.pop(uuid)
            self._claims.give(ended.job, ended.plan)
            self.sharing.end(number, *self._nodes(ended.plan.places[0]))

    def try_queue(self, now: float) -> None:
        """Have one round of the queue."""
        waiting = [job for each, job in self._waiting.values() if not self._is_known(each)]
        if not waiting:
            return
        kinds = self._kinds
        if len(waiting) < len(self._waiting):
            kinds = Counter[Hashable](job.parts[0].count for job in waiting)
        found = decide(
            waiting, self._active.values(), self._fleet, now, self._settings, kinds=kinds
        )
        for start in found.starts:
            job = self._left(start.job.uuid)
            self._active[start.job.uuid] = ActiveJob(start.job, start.plan, now)
            heapq.heappush(self._running, (now + job.runs_s, job.number, start.job.uuid))
            places = start.plan.places[0]
            self.sharing.start(job.number, *self._nodes(places))
            self.ran.append(ReplayedJob(job, now, {one.leaf: one.hosts for one in places.places}))
        self.never += map(self._left, found.ended)

    def _is_known(self, job: LoggedJob) -> bool:
        """Tell whether it is known that a job has no place and is in no other's way."""
        return self._is_greedy and self._planner.is_refused(job.hosts, self._claims)

    def _left(self, uuid: str) -> LoggedJob:
        """Take a job off the queue."""
        job, _ = self._waiting.pop(uuid)
        self._kinds[job.hosts] -= 1
        if not self._kinds[job.hosts]:
            del self._kinds[job.hosts]
        return job

    def _nodes(self, found: LeafPlan) -> tuple[frozenset[str], frozenset[str]]:
        leafs = frozenset(one.leaf for one in found.places)
        return leafs, frozenset(node for leaf in leafs for node in self._fabric.above(leaf)[:1])


def replay(
    jobs: Sequence[LoggedJob],
    fabric: Fabric,
    policy: PolicyName,
    discipline: Discipline = Discipline.GREEDY,
    progress: Callable[[int], None] = lambda started: None,
    *,
    remembers: bool = True,
) -> LogReplay:
    """Replay a log.

    :param jobs: in the order of their submission, each number once
    :param discipline: of the queue
    :param progress: called with the jobs that have started so far, after each event
    :param remembers: as of :class:`.fabric_queue.FabricPlanner`; only the time differs
    :raises InvalidValueError: no job of the log has a place on the fabric
    """
    running = _Replay(fabric, FabricPlanner(fabric, policy, remembers=remembers), discipline)
    coming: Iterator[LoggedJob] = iter(jobs)
    job = next(coming, None)
    while job is not None or running.next_end < float("inf"):
        now = min(running.next_end, job.submitted_at if job is not None else float("inf"))
        running.end_until(now)
        while job is not None and job.submitted_at <= now:
            running.submit(job)
            job = next(coming, None)
        running.try_queue(now)
        progress(len(running.ran))
    assert not running.is_waiting, "what fits on the empty fabric has a place when nothing runs"
    return _result(running, fabric)


def _result(running: _Replay, fabric: Fabric) -> LogReplay:
    ran, sharing, hosts = running.ran, running.sharing, len(fabric.hosts)
    if not ran:
        raise InvalidValueError("log", "no job that has a place", f"jobs of {hosts} hosts at most")
    first = min(each.job.submitted_at for each in ran)
    completion_s = max(each.ended_at for each in ran) - first
    waits = [(each.job.hosts <= fabric.usual_size, each.waited_s) for each in ran]
    return LogReplay(
        tuple(ran),
        LogMetrics(
            completion_s=completion_s,
            utilisation=sum(each.job.hosts * each.job.runs_s for each in ran)
            / (hosts * completion_s),
            waiting_s=_mean([wait for _, wait in waits]),
            per_group=sum(map(len, sharing.others.values())) / len(ran),
            sharing=len(sharing.others) / len(ran),
            leaf_pairs=sharing.leaf_pairs,
            pod_pairs=sharing.pod_pairs,
        ),
        _mean([wait for small, wait in waits if small]),
        _mean([wait for small, wait in waits if not small]),
        tuple(running.never),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
