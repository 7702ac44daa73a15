# SPDX-License-Identifier: Apache-2.0
"""What the agent exposes to Prometheus: the table :data:`METRICS` is the only place that names it, for the docs, too.

The exporter renders the last round when it is asked, so that an unread endpoint costs nothing.
"""

import math
import platform
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final, Protocol, runtime_checkable

from host_agent.model.assignment import Guest
from host_agent.model.journal import Result
from host_agent.model.modes import Feature
from host_agent.model.round import Round
from placement_traits.command_line import version
from placement_traits.metrics import MetricSpec

_SERVER: Final = ("server", "name")
# Full rounds take ten times as long as others.
_ROUND_BOUNDS_S: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_ROUND_BUCKETS: Final = (*map(str, _ROUND_BOUNDS_S), "+Inf")


METRICS: Final[dict[str, MetricSpec]] = {
    metric.name: metric
    for metric in (
        MetricSpec(
            "numa_ext_servers", "gauge", "Servers on this host, by what the agent does.", ("state",)
        ),
        MetricSpec(
            "numa_ext_servers_waiting",
            "gauge",
            "Servers that wait to be taken over, see [agent]takeover_interval_s.",
        ),
        MetricSpec(
            "numa_ext_mode",
            "gauge",
            "1 for the mode of a feature (pinning, memory, rdt, slo). What observe would do is counted by "
            "numa_ext_actions, result would.",
            ("feature", "mode"),
        ),
        MetricSpec("numa_ext_loop_seconds", "gauge", "Duration of the last round, seconds."),
        MetricSpec("numa_ext_round_seconds", "histogram", "Durations of rounds, seconds."),
        MetricSpec("numa_ext_rounds", "counter", "Rounds, by how they ended.", ("result",)),
        MetricSpec(
            "numa_ext_libvirt_lost",
            "gauge",
            "1 while libvirt does not answer: rounds go on with the servers known before. Missing until it was asked.",
        ),
        MetricSpec(
            "numa_ext_build_info",
            "gauge",
            "1: versions of the agent and of its Python.",
            ("version", "python"),
        ),
        MetricSpec(
            "numa_ext_refiner_failures",
            "counter",
            "Failures of a run-time controller; the coarse decision held meanwhile.",
            ("refiner",),
        ),
        MetricSpec(
            "numa_ext_listener_failures",
            "counter",
            "Failures of a part that takes note of rounds (Publisher, InControl …); the round itself was done.",
            ("listener",),
        ),
        MetricSpec(
            "numa_ext_actions", "counter", "Actions, by kind and result.", ("action", "result")
        ),
        MetricSpec(
            "numa_ext_unwritten",
            "counter",
            "Writes to the state folder that failed (disk full, read-only, too slow), by file.",
            ("file",),
        ),
        MetricSpec("numa_ext_paused", "gauge", "1 while an operator has paused the agent."),
        MetricSpec(
            "numa_ext_placement_synced",
            "gauge",
            "1 when Placement holds what the agent published last, 0 while it is behind.",
        ),
        MetricSpec(
            "numa_ext_server_ipc",
            "gauge",
            "Instructions per cycle since the last reading; modelled where [counters]source is model.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_server_mpi",
            "gauge",
            "Last-level-cache misses per instruction since the last reading.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_server_stall_rate",
            "gauge",
            "Stalled cycles per second and vCPU since the last reading.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_server_deviation",
            "gauge",
            "Relative deviation of a server from its expected performance; positive is worse.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_server_dwp",
            "gauge",
            "Data-to-worker proximity factor that the memory search wants: 0 canonical weights, 1 all near.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_mapping_benefit",
            "gauge",
            "Expected benefit, 1 to 10, of giving a server of a class a domain of its own, as learnt so far.",
            ("domain", "class"),
        ),
        MetricSpec("numa_ext_node_free_mb", "gauge", "Free memory of a NUMA node, MiB.", ("node",)),
        MetricSpec(
            "numa_ext_server_memory_mb",
            "gauge",
            "Resident guest memory on a NUMA node as the last walk or move of its pages has seen it, MiB.",
            (*_SERVER, "node"),
        ),
        MetricSpec(
            "numa_ext_server_misplaced_mb",
            "gauge",
            "Guest memory that is still to be moved, MiB, what the kernel did not move included.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_server_ways",
            "gauge",
            "Own L3 ways of a latency-critical server in an L3 domain.",
            (*_SERVER, "l3"),
        ),
        MetricSpec(
            "numa_ext_server_mba_percent",
            "gauge",
            "Desired memory bandwidth level of a best-effort server in an L3 domain, per cent.",
            (*_SERVER, "l3"),
        ),
        MetricSpec(
            "numa_ext_server_mb_level",
            "gauge",
            "Memory bandwidth level of a server's RDT group as the kernel has it: per cent, MB/s where resctrl is "
            "mounted with mba_MBps, eighths of GB/s on AMD.",
            (*_SERVER, "l3"),
        ),
        MetricSpec(
            "numa_ext_server_throttled_seconds",
            "counter",
            "Seconds in which a best-effort server had a bandwidth level below 100 per cent.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_server_withheld_seconds",
            "counter",
            "Seconds of its whole memory bandwidth that were withheld from a best-effort server: ten seconds at 40 per "
            "cent are six. It has lost at most so much.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_server_withholds_seconds",
            "counter",
            "The part of these that was for the sake of a latency-critical server: where a best-effort server was "
            "throttled for several, each answers for an equal part.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_server_llc_occupancy_bytes",
            "gauge",
            "Part of an L3 cache that a latency-critical server fills, bytes, read for each scrape.",
            (*_SERVER, "l3"),
        ),
        MetricSpec(
            "numa_ext_server_memory_mbps",
            "gauge",
            "Memory traffic of a latency-critical server in an L3 domain since the last scrape, MB/s (MBM).",
            (*_SERVER, "l3", "kind"),
        ),
        MetricSpec("numa_ext_closids_left", "gauge", "RDT control groups that can still be made."),
        MetricSpec("numa_ext_rmids_left", "gauge", "RDT monitoring groups that can still be made."),
        MetricSpec(
            "numa_ext_in_control",
            "gauge",
            "1 while the dead-man switch learns of finished rounds; 0: they hang or fail, and throttles are off.",
        ),
        MetricSpec(
            "numa_ext_dead_man_switch_fired",
            "counter",
            "Times that the dead-man switch has released throttles, as the helper counts: behind agents before, too.",
        ),
        MetricSpec(
            "numa_ext_server_slo_violation_seconds",
            "counter",
            "Seconds in which the objective of a latency-critical server was violated.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_server_account_spent_seconds",
            "gauge",
            "Seconds of best-effort traffic charged to a latency-critical server in the last hour, of "
            "[slo]budget_s_per_hour: taken beyond what its flavor declares.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_server_hour_level_percent",
            "gauge",
            "Mean bandwidth level of a best-effort server over the last hour; never below [slo]be_floor_percent.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_balm_phase",
            "gauge",
            "1 for the phase of the SLO controller.",
            ("phase",),
        ),
        MetricSpec(
            "numa_ext_server_slo_p99_us",
            "gauge",
            "99th percentile of a latency-critical server's latency in the sliding window, microseconds.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_server_slo_ratio",
            "gauge",
            "99th percentile over objective, by where it was read; from source ipc it is a guess.",
            (*_SERVER, "source"),
        ),
        MetricSpec(
            "numa_ext_server_slo_state",
            "gauge",
            "State of its objective: 0 ample, 1 met, 2 unknown, 3 at risk, 4 violated.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_server_slo_unwatched",
            "gauge",
            "1 while nothing tells a server's latency: its objective is not watched, the fixed level protects it.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_server_slo_unsatisfiable",
            "gauge",
            "1 while a server's objective is violated and nothing on this host keeps it.",
            _SERVER,
        ),
        MetricSpec(
            "numa_ext_slo_feed",
            "gauge",
            "What came through the port of a guest so far: lines, malformed, implausible, dropped_bytes.",
            (*_SERVER, "kind"),
        ),
        MetricSpec(
            "numa_ext_server_request_seconds",
            "histogram",
            "Times of all requests that a latency-critical server has reported through its port, seconds; missing "
            "while it says nothing, or more than is taken. Its objective is an end of a bucket.",
            (*_SERVER, "project"),
        ),
        MetricSpec(
            "numa_ext_server_traffic_mbps",
            "gauge",
            "Memory traffic of a best-effort server while objectives are watched, MB/s.",
            (*_SERVER, "kind"),
        ),
        MetricSpec(
            "numa_ext_server_network_bytes",
            "counter",
            "Bytes that a server has sent or received by interfaces of the host's kernel, at the end of the last "
            "[network]window_s.",
            (*_SERVER, "direction"),
        ),
        MetricSpec(
            "numa_ext_server_network_class",
            "gauge",
            "1 for how much a server uses the network; estimated: without [network]levels all its bytes count as if "
            "they left the leaf.",
            (*_SERVER, "class"),
        ),
        MetricSpec(
            "numa_ext_server_network_level_mbps",
            "gauge",
            "What of a server's traffic crosses a level in the last [network]window_s, Mbit/s, the larger one of both "
            "directions: server, all of it, which is counted; leaf and pod, what leaves these, which is estimated.",
            (*_SERVER, "level", "estimated"),
        ),
        MetricSpec(
            "numa_ext_uplink_throttle_phase",
            "gauge",
            "1 for the phase of the SLO controller for an uplink "
            "([lanes]throttle or tune); missing without numa-host-agent-lanes.",
            ("uplink", "phase"),
        ),
        MetricSpec(
            "numa_ext_uplink_sent_mbps",
            "gauge",
            "What was sent over an uplink in the last second, Mbit/s: all, and by best-effort servers out of their "
            "taps; with [lanes]leaf by latency-critical ones, too.",
            ("uplink", "by"),
        ),
        MetricSpec(
            "numa_ext_uplink_limit_mbps",
            "gauge",
            "What best-effort servers may send together, Mbit/s; missing while they may as much as goes.",
            ("uplink",),
        ),
        MetricSpec(
            "numa_ext_uplink_best_effort_share_percent",
            "gauge",
            "Part of the share of their lane that best-effort servers keep, per cent ([lanes]tune); missing while "
            "they keep all of it.",
            ("uplink",),
        ),
        MetricSpec(
            "numa_ext_uplink_leaf_limit_mbps",
            "gauge",
            "What of it is for the sake of other hosts of the leaf, Mbit/s ([lanes]leaf); missing while nothing is.",
            ("uplink",),
        ),
        MetricSpec(
            "numa_ext_uplink_asks",
            "gauge",
            "1 while this host asks for room on the uplinks of its leaf ([lanes]leaf).",
            ("uplink",),
        ),
        MetricSpec(
            "numa_ext_server_exclusive",
            "gauge",
            "1 when no other group may use the server's L3 ways.",
            _SERVER,
        ),
    )
}

FILES: Final = ("balancing state", "costs", "journal", "rollout state", "state", "topology")
"""What the agent writes into its state folder, as it is called in log and metrics."""

FAILING: Final = (
    "balm",
    "decide",
    "join",
    "move",
    "observe",
    "partition",
    "pin",
    "refuse",
    "throttle",
)
"""Actions that can fail. Counters begin at 0 where labels are known: the rate of one that begins at 1 misses the 1."""


Sample = tuple[str, tuple[str, ...], float]
"""Name of a metric of :data:`METRICS`, label values, value."""


HistogramSample = tuple[str, tuple[str, ...], Sequence[tuple[float, int]], float]
"""Name of a metric of :data:`METRICS`, label values, upper ends of buckets with how many are up to them, sum of all."""


@runtime_checkable
class Measured(Protocol):
    """A controller that has metrics of its own."""

    def samples(self) -> Iterable[Sample]:
        """Yield them; called for each scrape, from the exporter's thread."""


@runtime_checkable
class MeasuredTimes(Protocol):
    """A controller that has histograms of its own."""

    def histograms(self) -> Iterable[HistogramSample]:
        """Yield them; called for each scrape, from the exporter's thread."""


class Metrics:
    """Collects from the loop, renders for Prometheus; a :class:`~host_agent.control.agent.Listener`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actions = Counter({(action, Result.FAILED.value): 0 for action in FAILING})
        self._rounds = Counter({"done": 0, "failed": 0})
        self._unwritten = Counter(dict.fromkeys(FILES, 0))
        self._refiner_failures: Counter[str] = Counter()
        self._listener_failures: Counter[str] = Counter()
        self._durations = [0] * (len(_ROUND_BOUNDS_S) + 1)
        self._duration_s = 0.0
        self._last: Round | None = None
        self._libvirt_lost: bool | None = None
        self._included: list[Measured] = []
        self.placement_synced = False

    def include(self, controller: Measured) -> None:
        """Show what a controller measures, too."""
        self._included.append(controller)

    def begin(self, *, refiners: Iterable[str], listeners: Iterable[str]) -> None:
        """Begin the counters of these parts' failures at 0."""
        with self._lock:
            self._refiner_failures.update(dict.fromkeys(refiners, 0))
            self._listener_failures.update(dict.fromkeys(listeners, 0))

    def count(self, action: str, result: Result) -> None:
        """Count an action."""
        with self._lock:
            self._actions[action, result.value] += 1

    def lost(self, file: str) -> None:
        """Count a write to the state folder that failed."""
        with self._lock:
            self._unwritten[file] += 1

    def failed_round(self) -> None:
        """Count a round that failed as a whole."""
        with self._lock:
            self._rounds["failed"] += 1

    def without_libvirt(self) -> None:
        """Take note that libvirt does not answer, and has not yet."""
        self._libvirt_lost = True

    def failed_refiner(self, name: str) -> None:
        """Count a failure of a run-time controller."""
        with self._lock:
            self._refiner_failures[name] += 1

    def failed_listener(self, name: str) -> None:
        """Count a failure of a part that takes note of rounds."""
        with self._lock:
            self._listener_failures[name] += 1

    def on_round(self, done: Round) -> None:
        """Take note of a round."""
        with self._lock:
            self._rounds["done"] += 1
            self._durations[bisect_left(_ROUND_BOUNDS_S, done.seconds)] += 1
            self._duration_s += done.seconds
            self._last = done
            self._libvirt_lost = not done.listed

    def samples(self) -> Iterator[tuple[MetricSpec, tuple[str, ...], float]]:
        """Yield metric, label values and value; histograms are :meth:`durations`."""
        with self._lock:
            last, actions, rounds = self._last, dict(self._actions), dict(self._rounds)
            unwritten = dict(self._unwritten)
            refiner_failures = dict(self._refiner_failures)
            listener_failures = dict(self._listener_failures)
        for (action, result), number in sorted(actions.items()):
            yield METRICS["numa_ext_actions"], (action, result), number
        for result, number in sorted(rounds.items()):
            yield METRICS["numa_ext_rounds"], (result,), number
        for name, number in sorted(refiner_failures.items()):
            yield METRICS["numa_ext_refiner_failures"], (name,), number
        for name, number in sorted(listener_failures.items()):
            yield METRICS["numa_ext_listener_failures"], (name,), number
        for file, number in sorted(unwritten.items()):
            yield METRICS["numa_ext_unwritten"], (file,), number
        yield METRICS["numa_ext_placement_synced"], (), float(self.placement_synced)
        if self._libvirt_lost is not None:
            yield METRICS["numa_ext_libvirt_lost"], (), float(self._libvirt_lost)
        yield METRICS["numa_ext_build_info"], _versions(), 1.0
        if last is not None:
            yield from _of_round(last)
        for controller in self._included:
            for name, labels, value in controller.samples():
                yield METRICS[name], labels, value

    def durations(self) -> tuple[list[tuple[str, float]], float]:
        """Return the histogram of rounds: (upper bound in seconds, rounds up to it), and the sum of all durations."""
        with self._lock:
            totals = accumulate(self._durations)
            return list(zip(_ROUND_BUCKETS, totals, strict=True)), self._duration_s

    def collect(self) -> Iterator[Any]:
        """Render for prometheus_client (a custom collector)."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        families: dict[str, Any] = {}
        kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
        for metric, labels, value in self.samples():
            family = families.get(metric.name)
            if family is None:
                family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
                families[metric.name] = family
            family.add_metric(labels, value)
        rounds = METRICS["numa_ext_round_seconds"]
        buckets, total_s = self.durations()
        yield HistogramMetricFamily(rounds.name, rounds.help, buckets, total_s)
        for controller in self._included:
            if isinstance(controller, MeasuredTimes):
                for name, labels, ends, total in controller.histograms():
                    spec = METRICS[name]
                    family = families.setdefault(
                        name, HistogramMetricFamily(name, spec.help, labels=spec.labels)
                    )
                    family.add_metric(labels, [(_end(end), count) for end, count in ends], total)
        yield from families.values()


def _end(seconds: float) -> str:
    """Return the upper end of a bucket as Prometheus writes it."""
    return "+Inf" if math.isinf(seconds) else repr(seconds)


@cache
def _versions() -> tuple[str, str]:
    return version(), platform.python_version()


def _of_round(done: Round) -> Iterator[tuple[MetricSpec, tuple[str, ...], float]]:
    yield METRICS["numa_ext_loop_seconds"], (), done.seconds
    yield METRICS["numa_ext_paused"], (), float(done.paused)
    for feature, mode in done.modes.of.items():
        yield METRICS["numa_ext_mode"], (feature.value, mode.value), 1.0
    states = Counter(_state(guest) for guest in done.observation.guests)
    for state, number in sorted(states.items()):
        yield METRICS["numa_ext_servers"], (state,), number
    for node, free in sorted(done.observation.free_mb.items()):
        yield METRICS["numa_ext_node_free_mb"], (str(node),), free
    for guest in done.observation.guests:
        who = (guest.uuid, guest.workload.title)
        for node, mb in sorted(guest.resident_mb.items()):
            yield METRICS["numa_ext_server_memory_mb"], (*who, str(node)), mb
        outcome = done.outcomes.get(guest.uuid)
        assignment = done.decision.get(guest.uuid)
        if outcome is not None:
            misplaced_kb = outcome.remaining_kb + outcome.stuck_kb
            yield METRICS["numa_ext_server_misplaced_mb"], who, misplaced_kb / 1024
        if outcome is not None and outcome.place is not None and outcome.place.group:
            yield METRICS["numa_ext_server_exclusive"], who, float(outcome.place.exclusive)
        if assignment is not None and assignment.partition and done.modes.act(Feature.RDT):
            for l3, ways in assignment.partition.ways.items():
                yield METRICS["numa_ext_server_ways"], (*who, str(l3)), ways
            for l3, percent in assignment.partition.mba_percent.items():
                yield METRICS["numa_ext_server_mba_percent"], (*who, str(l3)), percent


def _state(guest: Guest) -> str:
    if guest.workload.request is None:
        return "unmanaged"
    return "blocked" if guest.blocked_by else "managed"


def serve(metrics: Metrics, address: str, port: int) -> Any:
    """Start the endpoint in a thread of its own; return the server object (``shutdown()`` ends it)."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(metrics)
    server, _thread = start_http_server(port, addr=address, registry=registry)
    return server
