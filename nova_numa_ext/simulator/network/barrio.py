# SPDX-License-Identifier: Apache-2.0
"""Replays a log of jobs on a fabric under a policy, and counts who shares uplinks (Jokanović, section 2.2.5, Barrio).

The policies are those that nova-scheduler runs. Each job has its hosts alone, and runs as long as the log says: what is
counted is sharing and waiting, not slowness. When two jobs share, and the six metrics, are as
:mod:`nova_numa_ext.policy.network.pairs` defines them.

The thesis does not say in which order jobs leave the queue. Here the first one for which there is a place starts
(``greedy``), or none before the first of the queue (``fcfs``).
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from nova_numa_ext.policy.network.groups import (
    GroupRequest,
    LeafPlan,
    PlanOptions,
    PolicyName,
)
from nova_numa_ext.policy.network.pairs import LogMetrics
from nova_numa_ext.policy.network.planner import plan
from nova_numa_ext.simulator.network.account import LeafAccount
from nova_numa_ext.simulator.network.mixes import LoggedJob
from placement_traits.errors import InvalidValueError
from placement_traits.fabric import Fabric
from placement_traits.names import NetClass, UplinkShare

_SHARES: Final[Mapping[PolicyName, UplinkShare]] = MappingProxyType(
    {PolicyName.VNB: UplinkShare.QUIET, PolicyName.EXCLUSIVE: UplinkShare.EXCLUSIVE}
)


_BY_ROOM: Final = frozenset(
    {
        PolicyName.FIRST_AVAILABLE,
        PolicyName.FIRST_CONTIGUOUS,
        PolicyName.BEST_FIT,
        PolicyName.EXCLUSIVE,
    }
)
"""Policies with which a job that has no place leaves none for larger ones of its kind: in one leaf, or in several."""


class ReplayOrder(StrEnum):
    """Which job of the queue may start."""

    GREEDY = "greedy"
    FCFS = "fcfs"


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
    def __init__(self, fabric: Fabric, policy: PolicyName, order: ReplayOrder) -> None:
        self._fabric = fabric
        self._order = order
        self._share = _SHARES.get(policy, UplinkShare.SHARED)
        self._options = PlanOptions() if policy in _SHARES else PlanOptions(policy)
        self._account = LeafAccount(fabric)
        self._running: list[tuple[float, int, LeafPlan]] = []
        self._by_room = policy in _BY_ROOM
        self._refused: set[int] = set()  # sizes, since anything has changed
        self.sharing = _Sharing()
        self.queue: list[LoggedJob] = []
        self.ran: list[ReplayedJob] = []
        self.never: list[LoggedJob] = []

    @property
    def next_end(self) -> float:
        """When the next job ends, s."""
        return self._running[0][0] if self._running else float("inf")

    def end_until(self, now: float) -> None:
        """Take off all jobs that have ended."""
        while self.next_end <= now:
            _, number, found = heapq.heappop(self._running)
            self._account.end(found)
            self.sharing.end(number, *self._nodes(found))
            self._refused.clear()

    def try_queue(self, now: float) -> None:
        """Start what may start, in the order of the queue."""
        left: list[LoggedJob] = []
        for at, job in enumerate(self.queue):
            if not self._started(job, now):
                left.append(job)
                if self._order is ReplayOrder.FCFS:
                    left += self.queue[at + 1 :]
                    break
        self.queue = left

    def give_up(self) -> None:
        """Take off jobs that have no place although nothing runs."""
        self.never += self.queue[: 1 if self._order is ReplayOrder.FCFS else None]
        self.queue = self.queue[1:] if self._order is ReplayOrder.FCFS else []

    def _started(self, job: LoggedJob, now: float) -> bool:
        if self._is_refused(job.hosts):
            return False
        # Of class low: groups go together everywhere, so that no policy knows of traffic.
        asked = GroupRequest(job.hosts, self._share, net_class=NetClass.LOW)
        found = plan(self._account.leafs, asked, self._options)
        if not isinstance(found, LeafPlan):
            self._refused.add(job.hosts)
            return False
        self._account.start(found)
        self._refused.clear()
        heapq.heappush(self._running, (now + job.runs_s, job.number, found))
        self.sharing.start(job.number, *self._nodes(found))
        self.ran.append(ReplayedJob(job, now, {one.leaf: one.hosts for one in found.places}))
        return True

    def _is_refused(self, hosts: int) -> bool:
        """Tell whether it is known that so many hosts have no place now."""
        if not self._by_room:
            return hosts in self._refused
        usual = self._fabric.usual_size
        return any(each <= hosts and (each <= usual) is (hosts <= usual) for each in self._refused)

    def _nodes(self, found: LeafPlan) -> tuple[frozenset[str], frozenset[str]]:
        leafs = frozenset(one.leaf for one in found.places)
        return leafs, frozenset(node for leaf in leafs for node in self._fabric.above(leaf)[:1])


def replay(
    jobs: Sequence[LoggedJob],
    fabric: Fabric,
    policy: PolicyName,
    order: ReplayOrder = ReplayOrder.GREEDY,
    progress: Callable[[int], None] = lambda started: None,
) -> LogReplay:
    """Replay a log.

    :param jobs: in the order of their submission, each number once
    :param progress: called with the jobs that have started so far, after each event
    :raises InvalidValueError: no job of the log has a place on the fabric
    """
    running = _Replay(fabric, policy, order)
    coming: Iterator[LoggedJob] = iter(jobs)
    job = next(coming, None)
    while job is not None or running.next_end < float("inf") or running.queue:
        now = min(running.next_end, job.submitted_at if job is not None else float("inf"))
        if now == float("inf"):
            running.give_up()
            now = max((each.ended_at for each in running.ran), default=0.0)
        running.end_until(now)
        while job is not None and job.submitted_at <= now:
            running.queue.append(job)
            job = next(coming, None)
        running.try_queue(now)
        progress(len(running.ran))
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
