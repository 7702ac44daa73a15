# SPDX-License-Identifier: Apache-2.0
"""Replays a log of jobs on a fabric under a policy, and counts who shares uplinks (Jokanović, section 2.2.5, Barrio).

The policies are those that nova-scheduler runs, the queue is that of the job service. Each job has its hosts alone, and
runs as long as the log says, so that sharing and waiting are counted and no slowness; or, with a :class:`Slowing`, as
long as the links let it. When two jobs share, and the six metrics, are as :mod:`nova_numa_ext.policy.network.pairs`
defines them.

The thesis does not say in which order jobs leave the queue. It is that of :mod:`nova_numa_ext.policy.jobs.queue`, with
any of its disciplines; for backfill jobs end when they have said.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

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
from nova_numa_ext.simulator.network.traffic import JobTraffic, SharedLinks
from placement_traits.errors import InvalidValueError
from placement_traits.fabric import Fabric


@dataclass(frozen=True, slots=True)
class ReplayedJob:
    """A job that has run.

    :param job: of the log
    :param started_at: s
    :param places: its hosts by leaf
    :param ended_at: when its hosts were free again, s
    :param alone: how fast it would have run there alone, in (0, 1]
    """

    job: LoggedJob
    started_at: float
    places: Mapping[str, int]
    ended_at: float
    alone: float = 1.0

    @property
    def waited_s(self) -> float:
        """How long it was in the queue."""
        return self.started_at - self.job.submitted_at

    @property
    def slowdown(self) -> float:
        """How many times as long it has run as the log says: what its leafs and other jobs did."""
        return (self.ended_at - self.started_at) / self.job.runs_s

    @property
    def lost_to_itself_s(self) -> float:
        """How much longer it would have run there alone than the log says."""
        return self.job.runs_s * (1 / self.alone - 1)

    @property
    def slowdown_by_others(self) -> float:
        """How many times as long it has run as it would have there alone."""
        return self.slowdown * self.alone


@dataclass(frozen=True, slots=True)
class LogReplay:
    """What a policy has made of a log.

    :param jobs: that have run, in the order of their ends
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


@dataclass(frozen=True, slots=True)
class Slowing:
    """What slows jobs.

    :param oversubscription: of leafs, 1 or more
    :param traffic: what a job sends, by its number
    """

    oversubscription: float
    traffic: Callable[[int], JobTraffic]


@dataclass(slots=True)
class _Pace:
    """A job that runs.

    :param left_s: how long it would run on if nothing slowed it
    :param since: when that was counted
    :param speed: since then
    """

    left_s: float
    since: float
    speed: float

    def until(self, now: float, speed: float) -> float:
        """Count what has run, go on at another speed; return when it ends then."""
        self.left_s = max(0.0, self.left_s - (now - self.since) * self.speed)
        self.since, self.speed = now, speed
        return now + self.left_s / speed


class WaitingJobs:
    """Jobs that wait, in the order in which they came."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[LoggedJob, Job]] = {}
        self._of_size: dict[int, list[tuple[int, Job]]] = {}  # with their turns
        self._turns: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def in_order(self) -> list[Job]:
        """All of them."""
        return [job for _, job in self._jobs.values()]

    def add(self, job: LoggedJob) -> None:
        """A job comes."""
        asked = queued(job)
        turn = self._turns[asked.uuid] = len(self._turns)
        self._jobs[asked.uuid] = job, asked
        self._of_size.setdefault(job.hosts, []).append((turn, asked))

    def take(self, uuid: str) -> LoggedJob:
        """Return a job, which waits no more."""
        job, _ = self._jobs.pop(uuid)
        same = self._of_size[job.hosts]
        del same[bisect_left(same, self._turns[uuid], key=_turn)]
        if not same:
            del self._of_size[job.hosts]
        return job

    def not_refused(self, planner: FabricPlanner, claims: FabricClaims) -> Iterator[Job]:
        """Yield jobs in order without those of sizes that are known to be refused.

        A size that is refused at first stays so. One that is refused meanwhile comes back when a job has started, from
        there on in the order: a place that is taken can make another one better.

        :param claims: while jobs start, these change
        """
        sizes = {hosts for hosts in self._of_size if not planner.is_refused(hosts, claims)}
        heads = list(self._behind(-1, sizes))
        heapq.heapify(heads)
        while heads:
            turn, hosts, job = heapq.heappop(heads)
            if planner.is_refused(hosts, claims):
                continue
            changes = claims.changes
            yield job
            gone = {hosts}
            if claims.changes > changes:
                gone = sizes - {hosts for _, hosts, _ in heads}
            for head in self._behind(turn, gone):
                heapq.heappush(heads, head)

    def _behind(self, turn: int, sizes: Iterable[int]) -> Iterator[tuple[int, int, Job]]:
        """Yield the first job of each size behind a turn, with its own turn and its size."""
        for hosts in sizes:
            same = self._of_size[hosts]
            at = bisect_right(same, turn, key=_turn)
            if at < len(same):
                yield same[at][0], hosts, same[at][1]


_turn = itemgetter(0)


class _Replay:
    def __init__(
        self,
        fabric: Fabric,
        planner: FabricPlanner,
        discipline: Discipline,
        slowing: Slowing | None,
    ) -> None:
        self._fabric = fabric
        self._planner = planner
        self._claims = FabricClaims(LeafAccount(fabric))
        self._fleet: Fleet[LeafPlan, None, FabricClaims, None] = Fleet(
            None, self._claims, planner, None
        )
        self._settings = settings(discipline)
        self._skips = planner.remembers and discipline is Discipline.GREEDY
        self._waiting = WaitingJobs()
        self._slowing = slowing
        self._links = SharedLinks(fabric, slowing.oversubscription) if slowing else None
        self._ends: list[tuple[float, int]] = []
        self._paces: dict[int, _Pace] = {}
        self._end_of: dict[int, float] = {}
        self._began: dict[int, ReplayedJob] = {}
        self._active: dict[str, ActiveJob[Plan[LeafPlan]]] = {}
        self.sharing = _Sharing()
        self.ran: list[ReplayedJob] = []
        self.never: list[LoggedJob] = []

    @property
    def next_end(self) -> float:
        """When the next job ends, s."""
        while self._ends and self._end_of.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)  # of a job that has become slower or faster
        return self._ends[0][0] if self._ends else float("inf")

    @property
    def started(self) -> int:
        """How many jobs have started so far."""
        return len(self.ran) + len(self._began)

    @property
    def is_waiting(self) -> bool:
        """A job has no place yet."""
        return bool(self._waiting)

    def submit(self, job: LoggedJob) -> None:
        """A job comes into the queue."""
        self._waiting.add(job)

    def end_until(self, now: float) -> None:
        """Take off all jobs that have ended."""
        while self.next_end <= now:
            _, number = heapq.heappop(self._ends)
            ended = self._active.pop(str(number))
            self._claims.give(ended.job, ended.plan)
            self.sharing.end(number, *self._nodes(ended.plan.places[0]))
            if self._links:
                self._links.end(number)
            self.ran.append(replace(self._began.pop(number), ended_at=self._end_of.pop(number)))
            del self._paces[number]

    def pace(self, now: float) -> None:
        """Have jobs run as fast as the links let them now."""
        for number, speed in (self._links.speeds() if self._links else {}).items():
            if speed != self._paces[number].speed:
                self._runs_until(number, self._paces[number].until(now, speed))

    def _runs_until(self, number: int, end: float) -> None:
        self._end_of[number] = end
        heapq.heappush(self._ends, (end, number))

    def _start(self, job: LoggedJob, found: LeafPlan, now: float) -> None:
        places = {one.leaf: one.hosts for one in found.places}
        alone = 1.0
        if self._links and self._slowing:
            alone = self._links.start(job.number, places, self._slowing.traffic(job.number))
        pace = self._paces[job.number] = _Pace(job.runs_s, now, alone)
        self._began[job.number] = ReplayedJob(job, now, places, now, alone)
        self._runs_until(job.number, pace.until(now, alone))
        self.sharing.start(job.number, *self._nodes(found))

    def try_queue(self, now: float) -> None:
        """Have one round of the queue."""
        if not self._waiting:
            return
        waiting: Iterable[Job] = self._waiting.in_order
        if self._skips:  # what has been refused is in no other's way
            waiting = self._waiting.not_refused(self._planner, self._claims)
        found = decide(waiting, self._active.values(), self._fleet, now, self._settings)
        for start in found.starts:
            job = self._waiting.take(start.job.uuid)
            self._active[start.job.uuid] = ActiveJob(start.job, start.plan, now)
            self._start(job, start.plan.places[0], now)
        self.never += map(self._waiting.take, found.ended)

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
    slowing: Slowing | None = None,
    remembers: bool = True,
) -> LogReplay:
    """Replay a log.

    :param jobs: in the order of their submission, each number once
    :param discipline: of the queue
    :param progress: called with the jobs that have started so far, after each event
    :param slowing: what slows jobs; None: nothing
    :param remembers: as of :class:`.fabric_queue.FabricPlanner`; only the time differs
    :raises InvalidValueError: no job of the log has a place on the fabric
    """
    planner = FabricPlanner(fabric, policy, remembers=remembers)
    running = _Replay(fabric, planner, discipline, slowing)
    coming: Iterator[LoggedJob] = iter(jobs)
    job = next(coming, None)
    while job is not None or running.next_end < float("inf"):
        now = min(running.next_end, job.submitted_at if job is not None else float("inf"))
        running.end_until(now)
        while job is not None and job.submitted_at <= now:
            running.submit(job)
            job = next(coming, None)
        running.try_queue(now)
        running.pace(now)
        progress(running.started)
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
            utilisation=sum(each.job.hosts * (each.ended_at - each.started_at) for each in ran)
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
