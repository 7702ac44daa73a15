# SPDX-License-Identifier: Apache-2.0
"""A cluster with a queue for DRMaestro, event by event, over the rounds that the service runs.

Servers come to a queue, a round is held at every whole interval in which something may change, and what it places runs
until its work is done. Nothing is moved or stopped. GPUs are stranded because CPU-only work holds the cores of their
hosts for some time, never because the simulator says so.

A job with a GPU of another host runs slower: by its ``remote_slowdown``, and by ``1 + load * network_factor`` with the
load of the busier of the two network interfaces, which is what others send plus a share of each remote GPU. A job that
uses the network always is slowed by that of its own host with local GPUs, too, but not by ``remote_slowdown``. Speeds
are computed again whenever a job starts or ends (Amaral 2019, section 5.4.4).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from nova_numa_ext.policy.remote_gpu.completion import expected_s
from nova_numa_ext.policy.remote_gpu.fleet import FleetHost, GpuWork, PlacedServer
from nova_numa_ext.policy.remote_gpu.network import Solver
from nova_numa_ext.policy.remote_gpu.rounds import (
    RoundSettings,
    WaitsFor,
    asking_no_more_than,
    plan_round,
)
from nova_numa_ext.policy.remote_gpu.slices import GpuRoom
from nova_numa_ext.simulator.metrics import mean
from placement_traits.errors import NumaExtError

# No place costs more than a job's queue after so many rounds (Eq. 12 and 13 with the goals of the experiments).
_SETTLED_ROUNDS = 5


class StarvedError(NumaExtError):
    """Jobs are left that no round places on an empty cluster."""


@dataclass(frozen=True, slots=True)
class RemoteSubmission:
    """A job of a simulated workload.

    :param arrival_s: when it comes
    :param work: what it asks for
    :param run_s: how long it runs with GPUs of its own host, seconds
    :param network_share: of a network interface that one of its remote GPUs uses, in [0, 1]
    """

    arrival_s: float
    work: GpuWork
    run_s: float
    network_share: float = 0.0


@dataclass(frozen=True, slots=True)
class CpuWork:
    """Work without GPUs that is there from the beginning.

    :param host: where
    :param cores: that it holds
    :param until_s: when it ends
    """

    host: str
    cores: int
    until_s: float


@dataclass(frozen=True, slots=True)
class RemoteRecord:
    """What became of a job.

    :param submission: the job
    :param start_s: when it started
    :param end_s: when it ended
    :param remote: GPUs that were on another host
    """

    submission: RemoteSubmission
    start_s: float
    end_s: float
    remote: int

    @property
    def slowdown(self) -> float:
        """Run time over that with GPUs of its own host and an idle network."""
        return (self.end_s - self.start_s) / self.submission.run_s


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """A finished simulation.

    :param records: jobs in the order in which they ended
    :param decision_s: CPU seconds of each round that was held
    """

    records: tuple[RemoteRecord, ...]
    decision_s: tuple[float, ...]

    @property
    def makespan_s(self) -> float:
        """When the last job ended."""
        return max((record.end_s for record in self.records), default=0.0)

    @property
    def mean_slowdown(self) -> float:
        """Mean of the jobs' slowdowns, waiting not counted."""
        return mean([record.slowdown for record in self.records])


@dataclass(slots=True)
class _Waiting:
    submission: RemoteSubmission
    first_round: int
    postponed: int = 0

    def waited(self, work: GpuWork, number: int) -> GpuWork:
        """Return its job as a round of a number sees it."""
        rounds = work.rounds + number - self.first_round
        return replace(work, rounds=rounds, postponed=work.postponed + self.postponed)


@dataclass(slots=True)
class _Active:
    """A job that runs.

    :ivar nics: hosts at both ends of each remote GPU, and its own where it uses the network always; read at each start
        and end of any job
    """

    submission: RemoteSubmission
    servers: tuple[PlacedServer, ...]
    start_s: float
    left_s: float
    rate: float = 1.0
    nics: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.nics = tuple(
            end
            for server in self.servers
            for leased in server.gpus
            if leased.host != server.host
            for end in (server.host, leased.host)
        )
        if self.submission.work.network_always:
            self.nics += tuple(server.host for server in self.servers if not server.remote)

    @property
    def remote(self) -> int:
        return sum(server.remote for server in self.servers)


@dataclass(slots=True)
class RemoteCluster:
    """One run of one workload; :meth:`run` may be called once.

    :param hosts: the fleet when it is empty; ``load`` is what others send all the time
    :param submissions: the workload in order of arrival, uuids unlike
    :param cpu_work: what holds cores at the beginning
    :param solve: of flow networks
    :param settings: of the rounds
    :param interval_s: seconds between two rounds
    :param clock: of the rounds' times, seconds
    :param on_end: called with the number of jobs that have ended, after each
    """

    hosts: Sequence[FleetHost]
    submissions: Sequence[RemoteSubmission]
    cpu_work: Sequence[CpuWork]
    solve: Solver
    settings: RoundSettings
    interval_s: float = 1.0
    clock: Callable[[], float] = lambda: 0.0
    on_end: Callable[[int], None] = lambda _ended: None
    free: dict[str, FleetHost] = field(init=False)
    active: list[_Active] = field(init=False, default_factory=list)
    records: list[RemoteRecord] = field(init=False, default_factory=list)
    decision_s: list[float] = field(init=False, default_factory=list)
    others: dict[str, float] = field(init=False)
    now: float = field(init=False, default=0.0)
    rounds: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.free = {host.name: host for host in self.hosts}
        self.others = {host.name: host.load for host in self.hosts}
        for work in self.cpu_work:
            self._change(work.host, -work.cores)

    def run(self) -> RemoteRun:
        """Run all jobs.

        :raises StarvedError: some cannot be placed, even alone
        """
        coming = list(reversed(self.submissions))
        holding = sorted(self.cpu_work, key=lambda work: -work.until_s)
        queue: dict[str, _Waiting] = {}
        now, rounds_since_change = 0.0, 0
        while coming or queue or self.active:
            now = self._next(now, coming, queue, holding, rounds_since_change)
            ended = self._end_until(now)
            while holding and holding[-1].until_s <= now:
                done = holding.pop()
                self._change(done.host, done.cores)
                ended = True
            came = False
            while coming and coming[-1].arrival_s <= now:
                submission = coming.pop()
                queue[submission.work.uuid] = _Waiting(submission, self.rounds + 1)
                came = True
            rounds_since_change = 0 if ended or came else rounds_since_change + 1
            if queue and self._round(now, queue):
                rounds_since_change = 0
            elif (
                rounds_since_change > self._settled_rounds
                and queue
                and not (coming or holding or self.active)
            ):
                raise StarvedError(f"Jobs that no round places: {', '.join(queue)}.")
        return RemoteRun(tuple(self.records), tuple(self.decision_s))

    @property
    def _settled_rounds(self) -> int:
        """Rounds after a change of fleet or queue until no more place is good enough for any job."""
        aware = self.settings.network_aware
        return _SETTLED_ROUNDS + (self.settings.most_postponements if aware else 0)

    def _next(
        self,
        now: float,
        coming: Sequence[RemoteSubmission],
        queue: dict[str, _Waiting],
        holding: Sequence[CpuWork],
        rounds_since_change: int,
    ) -> float:
        """Return the time of the next round: the next interval, or the one after the next event."""
        if queue and rounds_since_change <= self._settled_rounds:
            return now + self.interval_s
        events = [now + job.left_s / job.rate for job in self.active]
        events += [coming[-1].arrival_s] if coming else []
        events += [holding[-1].until_s] if holding else []
        soonest = min(events, default=now)
        return max(now + self.interval_s, math.ceil(soonest / self.interval_s) * self.interval_s)

    def _round(self, now: float, queue: dict[str, _Waiting]) -> bool:
        """Hold a round; return whether it placed a job."""
        self.rounds += 1
        free = sum(room.shares for host in self.free.values() for room in host.gpus)
        oldest = asking_no_more_than(free, (each.submission.work for each in queue.values()))
        if not oldest:
            return False
        waited = [queue[work.uuid].waited(work, self.rounds) for work in oldest]
        sent = self._sent()
        hosts = [replace(host, load=min(1.0, sent[name])) for name, host in self.free.items()]
        before = self.clock()
        found = plan_round(waited, hosts, self.solve, self.settings)
        self.decision_s.append(self.clock() - before)
        for uuid, servers in found.placed.items():
            submission = queue.pop(uuid).submission
            self._take(submission.work, servers, 1)
            self.active.append(_Active(submission, servers, now, submission.run_s))
        for uuid, why in found.waiting.items():
            queue[uuid].postponed += why is WaitsFor.NETWORK
        if found.placed:
            self._set_rates()
        return bool(found.placed)

    def _end_until(self, until: float) -> bool:
        """Let the jobs run until a time; return whether one ended."""
        now, ended = self.now, False
        while self.active:
            first = min(self.active, key=lambda job: job.left_s / job.rate)
            step = first.left_s / first.rate
            if now + step > until:
                break
            self._advance(step)
            now += step
            self.active.remove(first)
            self._take(first.submission.work, first.servers, -1)
            self.records.append(RemoteRecord(first.submission, first.start_s, now, first.remote))
            self._set_rates()
            self.on_end(len(self.records))
            ended = True
        self._advance(until - now)
        self.now = until
        return ended

    def _advance(self, seconds: float) -> None:
        for job in self.active:
            job.left_s = max(0.0, job.left_s - seconds * job.rate)

    def _sent(self) -> dict[str, float]:
        """Return the load of each network interface: what others send, and the shares of remote GPUs."""
        sent = dict(self.others)
        for job in self.active:
            for nic in job.nics:
                sent[nic] += job.submission.network_share
        return sent

    def _set_rates(self) -> None:
        sent = self._sent()
        for job in self.active:
            if job.nics:
                mine, work = job.submission.network_share, job.submission.work
                load = min(1.0, max(map(sent.__getitem__, job.nics)) - mine)
                alone = work.remote_slowdown if job.remote else 1.0
                job.rate = 1 / expected_s(alone, load, 1.0, work.network_factor)

    def _take(self, work: GpuWork, servers: Sequence[PlacedServer], sign: int) -> None:
        for server in servers:
            self._change(server.host, -sign * work.cores, -sign * work.memory_mb)
            for leased in server.gpus:
                wire = work.network_mbps if leased.host != server.host else 0
                self._change(server.host, network_mbps=-sign * wire)
                self._change(leased.host, network_mbps=-sign * wire, lease_cores=-sign)
                self._change_gpu(leased.host, leased.gpu, -sign, work)

    def _change(
        self,
        host: str,
        cores: int = 0,
        memory_mb: int = 0,
        network_mbps: int = 0,
        lease_cores: int = 0,
    ) -> None:
        free = self.free[host]
        self.free[host] = replace(
            free,
            cores=free.cores + cores,
            memory_mb=free.memory_mb + memory_mb,
            network_mbps=free.network_mbps + network_mbps,
            lease_cores=free.lease_cores + lease_cores,
        )

    def _change_gpu(self, host: str, gpu: str, sign: int, work: GpuWork) -> None:
        def changed(room: GpuRoom) -> GpuRoom:
            if room.gpu != gpu:
                return room
            part = work.part
            return replace(
                room,
                memory_mb=room.memory_mb + sign * part.memory_mb,
                shares=room.shares + sign * part.shares,
            )

        free = self.free[host]
        self.free[host] = replace(free, gpus=tuple(changed(room) for room in free.gpus))
