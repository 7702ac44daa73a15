# SPDX-License-Identifier: Apache-2.0
"""The figures of a run, worked out by hand."""

import pytest

from nova_numa_ext.policy.gpu.job import GpuJob, JobGraph, Profile, ProfileStore
from nova_numa_ext.simulator.gpu.machines import graph
from nova_numa_ext.simulator.gpu.simulation import Simulation
from nova_numa_ext.simulator.gpu.workload import Submission
from nova_numa_ext.simulator.metrics import mean, percentile, summary

FAR = ProfileStore({"job": Profile("job", spread=1.5)})
ONE, FOUR = (GpuJob((JobGraph.complete(gpus, 4),), "job", 0.5) for gpus in (1, 4))


def test_the_figures_of_two_jobs_one_after_the_other() -> None:
    """One GPU for 100 s, then all four from 100 s to 240 s: stretched by 4/3, accepted is 1.3, asked for at 40 s."""
    jobs = [Submission(0, 0.0, ONE, 100.0, 1.3), Submission(1, 40.0, FOUR, 105.0, 1.3)]
    ticks = iter(range(100))
    run = Simulation([graph("minsky")], jobs, "fcfs", FAR, clock=lambda: next(ticks)).run()
    found = summary(run)
    expected = {
        "jobs": 2,
        "makespan_s": 240.0,
        "slowdown_mean": (1 + 4 / 3) / 2,
        "slowdown_p95": 4 / 3,
        "slowdown_max": 4 / 3,
        "slowdown_with_waiting_mean": (1 + 200 / 105) / 2,
        "waiting_mean_s": 30.0,
        "waiting_max_s": 60.0,
        "slo_violations": 1,
        "below_min_utility": 1,
        "utilisation": (100 + 4 * 140) / (4 * 240),
        "fragmentation": 1 / 3,  # GPU 1 beside the first job, of the three that are free
        "decisions": 3,
        "decision_mean_ms": 1000.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_percentiles_are_by_nearest_rank_and_nothing_has_none() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(range(1, 101)), 0.95) == 95
    assert (percentile([], 0.5), mean([])) == (0.0, 0.0)
