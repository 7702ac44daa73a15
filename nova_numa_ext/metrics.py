# SPDX-License-Identifier: Apache-2.0
"""Metrics of nova-scheduler: the table :data:`METRICS` is the only place that names them, for the docs, too.

nova-scheduler has several workers and no endpoint. Each worker keeps a small file beside the view of Placement, and the
one process that reads Placement for all of them (:mod:`nova_numa_ext.view_reader`) serves these files on one port::

    worker 1 ── view-….worker-4711-3f2a ─┐
    worker 2 ── view-….worker-4712-90c1 ─┼─ reader ── http://127.0.0.1:PORT/metrics
    worker 3 ── view-….worker-4713-b7e4 ─┘

Worker and reader thus need no environment variable, no port each and, in the workers, no library. A worker's file is
locked (flock(2)) as long as the worker lives: what is not locked is removed at the next scrape. Series carry the worker
as a label and end with it; sums over workers are sums of rates, as for all counters of several processes.
"""

import bisect
import errno
import fcntl
import json
import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np

from placement_traits import names
from placement_traits.best_effort import BestEffortWriter
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.metrics import MetricSpec
from placement_traits.snapshot import FleetSnapshot, ViewState
from placement_traits.view import ViewStats

LOG = logging.getLogger(__name__)
SECONDS_BETWEEN_TRIES: Final = 30.0

_WORKER: Final = "worker"
_MODE: Final = 0o640
_JUST_MADE_S: Final = 60.0  # a draft is locked a moment after it was made

BUCKETS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Upper bounds of the histograms, seconds; one more is open."""

DECISIONS: Final = "numa_ext_scheduler_decisions"
REFUSED: Final = "numa_ext_scheduler_refused_hosts"
WOULD_REFUSE: Final = "numa_ext_scheduler_would_refuse_hosts"
WOULD_REORDER: Final = "numa_ext_scheduler_would_reorder"
SHORTLISTS: Final = "numa_ext_scheduler_shortlists"
GROUP_PLANS: Final = "numa_ext_scheduler_group_plans"
GROUP_CONFLICTS: Final = "numa_ext_scheduler_group_conflicts"
FAULTS: Final = "numa_ext_scheduler_faults"
JOURNAL: Final = "numa_ext_scheduler_journal_failures"
SECONDS: Final = "numa_ext_scheduler_decision_seconds"
VIEW_AGE: Final = "numa_ext_scheduler_view_age_seconds"
VIEW_STATE: Final = "numa_ext_scheduler_view_state"
VIEW_HOSTS: Final = "numa_ext_scheduler_view_hosts"
MISCABLED_HOSTS: Final = "numa_ext_scheduler_miscabled_hosts"
VIEW_READINGS: Final = "numa_ext_scheduler_view_readings"

METRICS: Final[dict[str, MetricSpec]] = {
    metric.name: metric
    for metric in (
        MetricSpec(
            DECISIONS,
            "counter",
            "Decisions of the filter about a server, by result: passed, or none when no host is left. Looks for "
            "alternates are not among them.",
            (_WORKER, "result"),
        ),
        MetricSpec(
            REFUSED,
            "counter",
            "Hosts refused, by the first reason's term, as numa-ext-explain shows it.",
            (_WORKER, "term"),
        ),
        MetricSpec(
            WOULD_REFUSE,
            "counter",
            "Hosts that mode enforce would have refused, but are only observed or ranked, by the first reason's term.",
            (_WORKER, "term"),
        ),
        MetricSpec(
            WOULD_REORDER,
            "counter",
            "What mode observe left as it was: candidates counts hosts of which another candidate would come first, "
            "host decisions in which another host would have the highest total.",
            (_WORKER, "what"),
        ),
        MetricSpec(
            SHORTLISTS,
            "counter",
            "First passes with a short list, by its end: enough hosts passed, or exhausted when all hosts were judged "
            "and all that pass were returned.",
            (_WORKER, "end"),
        ),
        MetricSpec(
            GROUP_PLANS,
            "counter",
            "Server groups planned on a fabric, one for each request, by result: claimed when the group has leafs or "
            "uplinks in Placement by it, placed when nothing was to be claimed, none when there was no place.",
            (_WORKER, "result"),
        ),
        MetricSpec(
            GROUP_CONFLICTS,
            "counter",
            "Claims of planned leafs that were lost to another group; each is followed by another plan, three at most.",
            (_WORKER,),
        ),
        MetricSpec(
            FAULTS,
            "counter",
            "Faults of ours, by where: filter, weigher, record (the decision stands, but is not in the journal).",
            (_WORKER, "where"),
        ),
        MetricSpec(
            JOURNAL,
            "counter",
            "Entries that could not be written into the decision journal, and journals that could not be begun.",
            (_WORKER,),
        ),
        MetricSpec(
            SECONDS,
            "histogram",
            "Time of a decision, seconds, by step: filter (nova's own later filters included where it asks them), "
            "weigher; and group, the plan of a server group and its claim, which is part of its first filter.",
            (_WORKER, "step"),
        ),
        MetricSpec(VIEW_AGE, "gauge", "Age of the view of Placement, seconds."),
        MetricSpec(
            VIEW_STATE, "gauge", "1 for the state of the view: empty, fresh or stale.", ("state",)
        ),
        MetricSpec(VIEW_HOSTS, "gauge", "Hosts in the view."),
        MetricSpec(
            MISCABLED_HOSTS,
            "gauge",
            "Hosts in the view that hang on another leaf than the one that is planned, so that no server group gets "
            "them.",
        ),
        MetricSpec(
            VIEW_READINGS,
            "counter",
            "Readings of Placement since the reader's start, by result: done or failed.",
            ("result",),
        ),
    )
}


BEGIN_AT_0: Final = (
    (DECISIONS, ("passed", "none")),
    (WOULD_REORDER, ("candidates", "host")),
    (SHORTLISTS, ("enough", "exhausted")),
    (GROUP_PLANS, ("claimed", "placed", "none")),
    (GROUP_CONFLICTS, ("",)),
    (FAULTS, ("filter", "weigher", "record")),
    (JOURNAL, ("",)),
)
"""Counters whose labels are known: the rate of one that begins at 1 misses the 1."""


class WorkerMetrics:
    """Counts of one worker of nova-scheduler, kept in a file; any thread may count.

    :param stem: path of the files without ``.worker-…``; the folder is there
    """

    def __init__(self, stem: Path) -> None:
        self._path = stem.with_name(f"{stem.name}.worker-{os.getpid()}-{uuid.uuid4().hex[:4]}")
        self._writer = BestEffortWriter("file of metrics")
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], float] = {
            (name, label): 0 for name, labels in BEGIN_AT_0 for label in labels
        }
        self._times: dict[tuple[str, str], list[float]] = {}
        self._file = -1

    def count(self, name: str, label: str = "", by: float = 1) -> None:
        """Add to a counter.

        :param label: value of its label beside the worker, '' for a metric without
        """
        with self._lock:
            self._counts[name, label] = self._counts.get((name, label), 0) + by

    def time(self, name: str, label: str, seconds: float) -> None:
        """Add to a histogram; the last number kept is the sum."""
        with self._lock:
            numbers = self._times.setdefault((name, label), [0.0] * (len(BUCKETS) + 2))
            numbers[bisect.bisect_left(BUCKETS, seconds)] += 1
            numbers[-1] += seconds

    def save(self) -> None:
        """Write the file again, where the disk lets us."""
        with self._lock:
            self._writer.attempt(self._write)

    def _write(self) -> None:
        rows = [[*key, value] for key, value in (self._counts | self._times).items()]
        text = json.dumps(rows).encode()
        new = self._path.with_name(f".{self._path.name}")
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.write(file, text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            new.replace(self._path)
        except BaseException:
            os.close(file)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = file


Sample = tuple[MetricSpec, tuple[str, ...], Any]
"""Metric, label values, value: a number, or those of a histogram's buckets and the sum."""


def of_workers(stem: Path) -> Iterator[Sample]:
    """Yield what the workers that live have counted; files of others are removed.

    What this release does not know, or cannot read, is left out: workers of another release may run beside it.
    """
    head = f"{stem.name}.worker-"
    for path in sorted(stem.parent.glob(f"{head}*")):
        worker = path.name.removeprefix(head)
        for name, label, value in _rows(path):
            metric = METRICS.get(name)
            labels = (worker, label) if label else (worker,)
            if metric and len(labels) == len(metric.labels) and _fits(metric, value):
                yield metric, labels, value


def remove_ended(folder: Path) -> None:
    """Remove the files and drafts of workers that have ended, of other clouds, settings and releases too."""
    for path in (*folder.glob("view-*.worker-*"), *folder.glob(".view-*.worker-*")):
        with suppress(OSError), path.open("rb") as file:  # gone meanwhile, or not ours to remove
            made_s = os.fstat(file.fileno()).st_mtime
            if not _is_locked(file.fileno()) and time.time() - made_s > _JUST_MADE_S:
                path.unlink()


def _fits(metric: MetricSpec, value: Any) -> bool:
    """Return whether a value is what this release keeps of such a metric."""
    if metric.kind != "histogram":
        return isinstance(value, int | float)
    return (
        isinstance(value, list)
        and len(value) == len(BUCKETS) + 2
        and all(isinstance(number, int | float) for number in value)
    )


def _rows(path: Path) -> list[tuple[str, str, Any]]:
    try:
        with path.open("rb") as file:
            if _is_locked(file.fileno()):
                return [(str(name), str(label), value) for name, label, value in json.load(file)]
            if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                path.unlink()
                return []
    except (OSError, ValueError, TypeError):
        return []
    return _rows(path)  # it was replaced meanwhile


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


class View(Protocol):
    """The view that the reader keeps."""

    @property
    def stats(self) -> ViewStats:
        """What keeping it has cost."""

    def snapshot(self) -> FleetSnapshot:
        """Return the fleet as last read."""


def of_view(view: View) -> Iterator[Sample]:
    """Yield the metrics of the view."""
    shown, stats = view.snapshot(), view.stats
    if math.isfinite(shown.age_s):
        yield METRICS[VIEW_AGE], (), shown.age_s
    for state in ViewState:
        yield METRICS[VIEW_STATE], (state.value,), float(state is shown.state)
    yield METRICS[VIEW_HOSTS], (), len(shown.hosts)
    yield METRICS[MISCABLED_HOSTS], (), _miscabled(shown.arrays)
    yield METRICS[VIEW_READINGS], ("done",), stats.refreshes
    yield METRICS[VIEW_READINGS], ("failed",), stats.failures


def _miscabled(arrays: FleetArrays) -> int:
    kinds = np.array([names.MISCABLED in traits for traits in arrays.trait_sets], bool)
    return int(kinds[arrays.hosts["kind"]].sum())


class Exporter:
    """What is served: a custom collector of prometheus_client.

    :param sources: each yields samples; called for each scrape
    :param metrics: all that samples are of, by name
    """

    def __init__(
        self,
        *sources: Callable[[], Iterator[Sample]],
        metrics: Mapping[str, MetricSpec] = MappingProxyType(METRICS),
    ) -> None:
        self._sources = sources
        self._metrics = metrics

    def collect(self) -> Iterator[Any]:
        """Render for prometheus_client."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        kinds = {
            "gauge": GaugeMetricFamily,
            "counter": CounterMetricFamily,
            "histogram": HistogramMetricFamily,
        }
        families = {
            name: kinds[metric.kind](name, metric.help, labels=metric.labels)
            for name, metric in self._metrics.items()
        }
        for source in self._sources:
            for metric, labels, value in source():
                family: Any = families[metric.name]
                if metric.kind == "histogram":
                    family.add_metric(labels, _cumulated(value), sum_value=value[-1])
                else:
                    family.add_metric(labels, value)
        yield from families.values()


def _cumulated(numbers: list[float]) -> list[tuple[str, float]]:
    bounds = [*map(str, BUCKETS), "+Inf"]
    return [(bound, sum(numbers[: at + 1])) for at, bound in enumerate(bounds)]


def serve(exporter: Exporter, address: str, port: int) -> Any:
    """Start the endpoint in a thread of its own; return the server object (``shutdown()`` ends it).

    :raises ImportError: prometheus_client is not installed
    :raises OSError: the port cannot be had
    """
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    server, _thread = start_http_server(port, addr=address, registry=registry)
    return server


def keep_serving(exporter: Exporter, address: str, port: int) -> None:
    """Start the endpoint, again and again while the port cannot be had; for a thread of its own."""
    failed = False
    while True:
        try:
            serve(exporter, address, port)
        except ImportError as error:
            LOG.error("There are no metrics, install the extra 'metrics': %s", error)
            return
        except OSError as error:
            if not failed:
                LOG.error("There are no metrics on %s port %d yet: %s", address, port, error)
            failed = True
            time.sleep(SECONDS_BETWEEN_TRIES)
        else:
            LOG.info("Metrics are on http://%s:%d/metrics.", address, port)
            return
