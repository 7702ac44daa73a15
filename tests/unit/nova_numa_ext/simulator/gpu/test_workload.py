# SPDX-License-Identifier: Apache-2.0
"""Drawn workloads and trace files."""

import io
import re
from collections import Counter
from dataclasses import replace

import pytest

from nova_numa_ext.policy.gpu.job import GpuJob, JobGraph, Profile, ProfileStore
from nova_numa_ext.simulator.gpu.workload import (
    BATCHES,
    NETWORKS,
    load_model,
    poisson,
    read_trace,
    write_trace,
)
from placement_traits.errors import InvalidValueError

MODEL = load_model()


def test_equal_seeds_draw_equal_workloads() -> None:
    assert poisson(MODEL, 50, 10, seed=3) == poisson(MODEL, 50, 10, seed=3)
    assert poisson(MODEL, 50, 10, seed=3) != poisson(MODEL, 50, 10, seed=4)


def test_arrivals_are_poisson_and_classes_binomial() -> None:
    jobs = poisson(MODEL, 4_000, 10, seed=0)
    assert jobs[-1].arrival_s / len(jobs) == pytest.approx(6.0, rel=0.05)
    batches = Counter(job.job.profile.partition("-")[2] for job in jobs)
    for name, share in (("tiny", 1 / 8), ("small", 3 / 8), ("medium", 3 / 8), ("large", 1 / 8)):
        assert batches[name] / len(jobs) == pytest.approx(share, abs=0.03)
    assert {job.job.gpus: job.job.min_utility for job in jobs} == {1: 0.3, 2: 0.5}


def test_equal_wishes_are_one_object() -> None:
    wishes = {id(job.job) for job in poisson(MODEL, 500, 10, seed=0)}
    assert len(wishes) <= len(NETWORKS) * len(BATCHES) * 2


def test_the_model_holds_the_known_points_of_the_source() -> None:
    store = MODEL.store()
    assert store.get("alexnet-tiny").spread == pytest.approx(1.27)
    assert store.slowdown("alexnet-tiny", "alexnet-tiny") == pytest.approx(1.30)
    assert store.slowdown("alexnet-tiny", "alexnet-large") == pytest.approx(1.24)
    assert store.slowdown("alexnet-large", "alexnet-large") == 1.0
    assert store.get("googlenet-tiny").spread < store.get("alexnet-tiny").spread
    assert len(MODEL.digest) == 12


def test_a_written_trace_reads_back() -> None:
    jobs = [job for job in poisson(MODEL, 40, 10, seed=1) if job.job.gpus > 1]
    pair = JobGraph.complete(2, 3)
    special = (
        GpuJob((pair, pair), "alexnet-tiny", 0.7),
        GpuJob((pair,), "alexnet-tiny", single_node=False, bandwidth_mbps=5_000),
    )
    jobs += [replace(jobs[-1], job=job) for job in special]
    text = io.StringIO()
    write_trace(jobs, text)
    back = read_trace(text.getvalue().splitlines(), MODEL, MODEL.store())
    assert [one.job for one in back] == [one.job for one in jobs]
    assert [one.solo_s for one in back] == pytest.approx([one.solo_s for one in jobs], abs=1e-3)
    walltimes = [one.walltime_s for one in jobs]
    assert None not in walltimes
    assert [one.walltime_s for one in back] == pytest.approx(walltimes, abs=1e-3)


def test_a_trace_is_put_in_order_and_takes_missing_times_from_profiles() -> None:
    store = ProfileStore({"mine": Profile("mine", solo_s=77.0)})
    lines = ["arrival_s,type,gpus,comm,solo_s", "9,mine,2,4,", "3,mine,1,0,5"]
    first, second = read_trace(lines, MODEL, store)
    assert (first.arrival_s, first.solo_s, first.job.gpus) == (3.0, 5.0, 1)
    assert (second.solo_s, second.job.graph.edges) == (77.0, ((0, 1, 4.0),))
    assert second.job.single_node and second.job.min_utility == 0.5
    assert first.walltime_s is None


def test_f_000_08_a_trace_tells_graphs_and_who_may_span_machines() -> None:
    """F-000-08: disconnected graphs and the single-node constraint."""
    lines = [
        "arrival_s,type,gpus,comm,solo_s,single_node,min_utility,bandwidth_mbps",
        "0,alexnet-tiny,2+1,4,,,,",
        "1,alexnet-tiny,6,4,,no,0.1,3000",
    ]
    apart, wide = (one.job for one in read_trace(lines, MODEL, MODEL.store()))
    assert [part.tasks for part in apart.parts] == [2, 1]
    assert apart.single_node
    assert (wide.single_node, wide.min_utility, wide.bandwidth_mbps) == (False, 0.1, 3000)


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        (["arrival_s,type"], "column gpus: 'arrival_s,type' is not allowed"),
        (["arrival_s,type,gpus,comm,solo_s"], "at least one job"),
        (["arrival_s,type,gpus,comm,solo_s", "1,alexnet-tiny"], "line 2, comm"),
        (["arrival_s,type,gpus,comm,solo_s", "1,alexnet-tiny,1,5,"], "line 2, comm"),
        (["arrival_s,type,gpus,comm,solo_s", "1,alexnet-tiny,1.5,4,"], "line 2, gpus"),
        (["arrival_s,type,gpus,comm,solo_s", "1,alexnet-tiny,2+,4,"], "line 2, gpus"),
        (["arrival_s,type,gpus,comm,solo_s", "1,alexnet-tiny,1,4,inf"], "line 2, solo_s"),
        (
            ["arrival_s,type,gpus,comm,solo_s,single_node", "1,alexnet-tiny,1,4,,maybe"],
            "line 2, single_node: 'maybe' is not allowed; allowed: yes, no",
        ),
        (
            ["arrival_s,type,gpus,comm,solo_s,min_utility", "1,alexnet-tiny,1,4,,1.1"],
            "line 2, min_utility: '1.1' is not allowed; allowed: a number >= 0 and <= 1",
        ),
        (["arrival_s,type,gpus,comm,solo_s", "x,alexnet-tiny,1,4,"], "line 2, arrival_s"),
        (["arrival_s,type,gpus,comm,solo_s", "1,alexnet-tiny,0,4,"], "line 2, gpus"),
        (["arrival_s,type,gpus,comm,solo_s", "1,resnet,1,4,"], "line 2, type"),
    ],
)
def test_a_wrong_trace_is_refused_with_line_and_column(lines: list[str], where: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(where)):
        read_trace(lines, MODEL, MODEL.store())
