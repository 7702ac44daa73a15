# SPDX-License-Identifier: Apache-2.0
"""The results of a finished simulation: the metrics of Amaral 2019, section 4.4, as numbers, JSON and CSV."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from typing import Final, TextIO

from nova_numa_ext.simulator.gpu.simulation import Record, SimulationRun

JOB_COLUMNS: Final = (
    "strategy",
    "number",
    "type",
    "gpus",
    "arrival_s",
    "start_s",
    "end_s",
    "waiting_s",
    "slowdown",
    "slowdown_with_waiting",
    "utility",
    "min_utility",
    "violates_slo",
    "places",
)


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean, 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Value at a share of the sorted values, by nearest rank; 0 of nothing."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def summary(run: SimulationRun) -> dict[str, float]:
    """Return the figures of a run; the unit is the end of the name, the rest are ratios, shares or counts.

    ``fragmentation`` is the share of free GPU time on sockets that were partly in use; ``makespan_s`` is the time
    of the last end.
    """
    records = run.records
    slowdowns = [record.slowdown for record in records]
    waiting = [record.waiting_s for record in records]
    total = run.busy_gpu_s + run.free_gpu_s
    return {
        "jobs": len(records),
        "makespan_s": max((record.end_s for record in records), default=0.0),
        "slowdown_mean": mean(slowdowns),
        "slowdown_p95": percentile(slowdowns, 0.95),
        "slowdown_max": max(slowdowns, default=0.0),
        "slowdown_with_waiting_mean": mean([record.slowdown_with_waiting for record in records]),
        "waiting_mean_s": mean(waiting),
        "waiting_max_s": max(waiting, default=0.0),
        "slo_violations": sum(record.violates_slo for record in records),
        "below_min_utility": sum(record.below_minimum for record in records),
        "utility_mean": mean([record.utility for record in records]),
        "utilisation": run.busy_gpu_s / total if total else 0.0,
        "fragmentation": run.broken_gpu_s / run.free_gpu_s if run.free_gpu_s else 0.0,
        "decisions": len(run.decision_s),
        "decision_mean_ms": mean(run.decision_s) * 1e3,
        "decision_p99_ms": percentile(run.decision_s, 0.99) * 1e3,
        "round_mean_ms": mean(run.round_s) * 1e3,
    }


def row(strategy: str, record: Record) -> dict[str, object]:
    """Return one job as a row with the keys of :data:`JOB_COLUMNS`."""
    submission = record.submission
    places = (f"{place.machine}:{'+'.join(map(str, place.gpus))}" for place in record.places)
    values = (
        strategy,
        submission.number,
        submission.job.profile,
        submission.job.gpus,
        round(submission.arrival_s, 3),
        round(record.start_s, 3),
        round(record.end_s, 3),
        round(record.waiting_s, 3),
        round(record.slowdown, 4),
        round(record.slowdown_with_waiting, 4),
        round(record.utility, 4),
        submission.job.min_utility,
        record.violates_slo,
        " ".join(places),
    )
    return dict(zip(JOB_COLUMNS, values, strict=True))


def write_csv(runs: Sequence[SimulationRun], file: TextIO) -> None:
    """Write one line per job and strategy."""
    writer = csv.DictWriter(file, JOB_COLUMNS)
    writer.writeheader()
    for run in runs:
        writer.writerows(row(run.strategy, record) for record in run.records)


def write_json(runs: Sequence[SimulationRun], source: Mapping[str, object], file: TextIO) -> None:
    """Write the summaries.

    :param source: what the runs were made from: fleet, seed, hash of the model
    """
    document = {
        "label": "modelled",
        "source": dict(source),
        "strategies": {run.strategy: summary(run) for run in runs},
    }
    json.dump(document, file, indent=2)
    file.write("\n")
