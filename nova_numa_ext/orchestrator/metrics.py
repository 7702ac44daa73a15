# SPDX-License-Identifier: Apache-2.0
"""Metrics of an engine of the job service: the table :data:`METRICS` is the only place that names them.

Each engine serves its own. What it counts, it has done itself, so that sums over engines are right; how many jobs wait
or run is read from the database at each scrape, and is the same for all.
"""

import bisect
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from nova_numa_ext.metrics import BUCKETS, Sample
from nova_numa_ext.policy.jobs.job import JobKind
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from nova_numa_ext.policy.remote_gpu.pool_use import PoolUse
from placement_traits.errors import ServiceUnavailableError
from placement_traits.metrics import MetricSpec
from placement_traits.reason import Reason

JOBS: Final = "numa_ext_jobs"
LONGEST_WAIT: Final = "numa_ext_jobs_longest_wait_seconds"
LEADS: Final = "numa_ext_jobs_engine_leads"
RECOVERS: Final = "numa_ext_jobs_recovers"
ROUNDS: Final = "numa_ext_jobs_rounds"
ROUND_SECONDS: Final = "numa_ext_jobs_round_seconds"
MOVES: Final = "numa_ext_jobs_moves"
SCALING: Final = "numa_ext_jobs_scaling_groups"
MEMBERS: Final = "numa_ext_jobs_scaling_members"
LEASES: Final = "numa_ext_jobs_leases"
LEASE_MEMORY: Final = "numa_ext_jobs_lease_memory_mib"
LEASE_MOVES: Final = "numa_ext_jobs_leases_moved_lately"
POOL_MEMORY: Final = "numa_ext_jobs_pool_memory_mib"
POOL_USED: Final = "numa_ext_jobs_pool_used_memory_mib"
POOL_BUSY: Final = "numa_ext_jobs_pool_busy_gpus"
POOL_LINK: Final = "numa_ext_jobs_pool_link_mbps"

_HOUR_S: Final = 3600.0

METRICS: Final[dict[str, MetricSpec]] = {
    metric.name: metric
    for metric in (
        MetricSpec(
            JOBS,
            "gauge",
            "Jobs that have not ended, by kind (servers; attach: those that ask for remote GPUs) and state. The same "
            "for all engines; missing while the database does not answer.",
            ("kind", "state"),
        ),
        MetricSpec(
            LONGEST_WAIT,
            "gauge",
            "Time in the queue of the job of a kind that has waited longest, held ones included, seconds; 0 without "
            "one. A server that no GPU can be given may wait for ever, as a job of kind attach.",
            ("kind",),
        ),
        MetricSpec(LEADS, "gauge", "1 while this engine leads: one of all engines does."),
        MetricSpec(
            RECOVERS,
            "gauge",
            "1 while the database is an old one that was restored, and nothing is done for jobs until numa-ext-manage "
            "recover --commit.",
        ),
        MetricSpec(
            ROUNDS,
            "counter",
            "Rounds, by result: led, followed (another engine leads), or failed.",
            ("result",),
        ),
        MetricSpec(ROUND_SECONDS, "histogram", "Durations of rounds that led, seconds."),
        MetricSpec(
            MOVES,
            "counter",
            "Jobs that this engine has moved to a state, by its first reason's term: claims are moves to claimed, what "
            "nova or Placement refused are moves to queued.",
            ("state", "term"),
        ),
        MetricSpec(
            SCALING,
            "gauge",
            "Elastic groups: observed, troubled (not decided on now; openstack numa group scaling show says "
            "why) and paused. The same for all engines; missing while the database does not answer.",
            ("state",),
        ),
        MetricSpec(
            MEMBERS,
            "gauge",
            "Members that the service has added to elastic groups, by step: joined carry load, others come or go. The "
            "same for all engines; missing while the database does not answer.",
            ("step",),
        ),
        MetricSpec(
            LEASES,
            "gauge",
            "Leases of remote GPUs that have not ended, by state; those that wait are reserved. The same for all "
            "engines; missing while the database does not answer.",
            ("state",),
        ),
        MetricSpec(
            LEASE_MEMORY,
            "gauge",
            "GPU memory that leases hold in Placement, MiB. The same for all engines; missing while the database does "
            "not answer.",
        ),
        MetricSpec(
            POOL_MEMORY,
            "gauge",
            "GPU memory of a host that leases hold, MiB. The same for all engines; missing while the database does not "
            "answer, and of hosts of which no lease holds anything.",
            ("host",),
        ),
        MetricSpec(
            POOL_USED,
            "gauge",
            "GPU memory of a host that leases have in use, of what they hold, MiB, as it reports. Leases of transports "
            "that cannot tell count as 0. Missing as numa_ext_jobs_pool_memory_mib.",
            ("host",),
        ),
        MetricSpec(
            POOL_BUSY,
            "gauge",
            "GPUs of a host that leases keep busy, as it reports: one that is busy half of the time is a half. Leases "
            "of transports that cannot tell count as idle. Missing as numa_ext_jobs_pool_memory_mib.",
            ("host",),
        ),
        MetricSpec(
            POOL_LINK,
            "gauge",
            "What goes over the links of a host's leases, either way, MB/s, as it reports. Missing as "
            "numa_ext_jobs_pool_memory_mib.",
            ("host",),
        ),
        MetricSpec(
            LEASE_MOVES,
            "gauge",
            "Leases that went to another GPU in the last hour, for whatever reason. The same for all engines; missing "
            "while the database does not answer.",
        ),
    )
}

Waiting = tuple[Mapping[JobState, int], float]
"""Jobs by state, and the longest time in the queue, seconds."""


class Counted(Protocol):
    """The jobs that are stored."""

    def counts(self) -> Mapping[JobKind, Waiting]:
        """Return how many jobs of each kind have not ended."""


class CountedGroups(Protocol):
    """The elastic groups that are stored."""

    def members(self) -> Mapping[str, int]:
        """Return how many members are in each step."""

    def counts(self) -> tuple[int, int, int]:
        """Return how many are followed, how many of these cannot be decided on, and how many are paused."""


class CountedLeases(Protocol):
    """The leases that are stored."""

    def counts(self) -> Mapping[LeaseState, int]:
        """Return how many that have not ended are in each state that has some."""

    def held_mb(self) -> int:
        """Return the memory of GPUs that they hold, MiB."""

    def pools(self) -> Mapping[str, PoolUse]:
        """Return what they use of the GPUs of each host."""

    def moved_lately(self, seconds: float) -> int:
        """Return how many went to other GPUs in the last seconds."""


class EngineMetrics:
    """Counts of one engine; any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leads = False
        self._recovers = False
        # The rate of a counter that begins at 1 misses the 1.
        self._rounds = {"led": 0, "followed": 0, "failed": 0}
        self._moves: dict[tuple[str, str], int] = {}
        self._seconds = [0.0] * (len(BUCKETS) + 2)

    def moved(self, to: JobState, reasons: Sequence[Reason]) -> None:
        """Count a job that was moved to a state."""
        key = (to.value, str(reasons[0].term))
        with self._lock:
            self._moves[key] = self._moves.get(key, 0) + 1

    def recovers(self, recovers: bool) -> None:
        """Take note whether the database is an old one."""
        with self._lock:
            self._recovers = recovers

    def round(self, seconds: float, *, led: bool | None) -> None:
        """Count a round.

        :param led: None where it has failed
        """
        result = {True: "led", False: "followed", None: "failed"}[led]
        with self._lock:
            self._leads = bool(led)
            self._rounds[result] += 1
            if led:
                self._seconds[bisect.bisect_left(BUCKETS, seconds)] += 1
                self._seconds[-1] += seconds

    def samples(
        self, jobs: Counted, groups: CountedGroups, leases: CountedLeases
    ) -> Iterator[Sample]:
        """Yield the metrics, for :class:`nova_numa_ext.metrics.Exporter`."""
        yield from _stored(jobs, groups)
        yield from _leased(leases)
        with self._lock:
            counted: list[tuple[str, tuple[str, ...], Any]] = [
                (LEADS, (), float(self._leads)),
                (RECOVERS, (), float(self._recovers)),
                *((ROUNDS, (result,), number) for result, number in self._rounds.items()),
                (ROUND_SECONDS, (), [*self._seconds]),
                *((MOVES, labels, number) for labels, number in self._moves.items()),
            ]
        for name, labels, value in counted:
            yield METRICS[name], labels, value


def _stored(jobs: Counted, groups: CountedGroups) -> Iterator[Sample]:
    try:
        waiting = jobs.counts()
        followed, troubled, paused = groups.counts()
        members = groups.members()
    except ServiceUnavailableError:
        return
    for kind, (numbers, longest_s) in waiting.items():
        for state in JobState:
            if not state.final:
                yield METRICS[JOBS], (kind.value, state.value), numbers.get(state, 0)
        yield METRICS[LONGEST_WAIT], (kind.value,), longest_s
    for name, number in (("observed", followed), ("troubled", troubled), ("paused", paused)):
        yield METRICS[SCALING], (name,), number
    for step, number in members.items():
        yield METRICS[MEMBERS], (str(step),), number


def _leased(leases: CountedLeases) -> Iterator[Sample]:
    try:
        numbers, held_mb = leases.counts(), leases.held_mb()
        moved, pools = leases.moved_lately(_HOUR_S), leases.pools()
    except ServiceUnavailableError:
        return
    for state in LeaseState:
        if not state.final:
            yield METRICS[LEASES], (state.value,), numbers.get(state, 0)
    yield METRICS[LEASE_MEMORY], (), held_mb
    yield METRICS[LEASE_MOVES], (), moved
    for host, use in sorted(pools.items()):
        yield METRICS[POOL_MEMORY], (host,), use.memory_mb
        yield METRICS[POOL_USED], (host,), use.used_mb
        yield METRICS[POOL_BUSY], (host,), use.busy
        yield METRICS[POOL_LINK], (host,), use.link_mbps
