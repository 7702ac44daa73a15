# SPDX-License-Identifier: Apache-2.0
"""What a job wants from GPUs, and profiles of how it runs."""

import pytest

from nova_numa_ext.policy.gpu.job import (
    COMM_PROFILES,
    GpuJob,
    JobGraph,
    ProfileStore,
    comm_profile,
    flavor_job,
    p95,
    parse_profiles,
)
from placement_traits.errors import InvalidValueError


def test_data_parallel_jobs_are_complete_graphs_of_one_weight() -> None:
    graph = JobGraph.complete(4, 3)
    assert len(graph.edges) == 6
    assert graph.uniform
    assert graph.total == 18


def test_weight_0_is_no_communication_but_still_one_part() -> None:
    job = flavor_job(2, comm=0)
    assert job.graph.edges == ()
    assert job.graph.uniform
    assert job.gpus == 2


def test_a_chain_is_not_uniform() -> None:
    assert not JobGraph(3, ((0, 1, 1.0), (1, 2, 1.0))).uniform
    assert not JobGraph(3, ((0, 1, 1.0), (1, 2, 1.0), (0, 2, 2.0))).uniform


@pytest.mark.parametrize(
    "edges", [((0, 2, 1.0),), ((0, 0, 1.0),), ((0, 1, 0.0),), ((0, 1, 1.0), (1, 0, 1.0))]
)
def test_edges_that_mean_nothing_are_refused(edges) -> None:
    with pytest.raises(InvalidValueError):
        JobGraph(2, edges)


def test_f_000_06_wishes_outside_their_limits_are_refused() -> None:
    for wrong in ({"gpus": 0}, {"gpus": 1, "min_utility": 1.1}):
        with pytest.raises(InvalidValueError):
            flavor_job(**wrong)
    with pytest.raises(InvalidValueError):
        GpuJob(())


def test_f_000_07_the_statistic_is_the_95th_percentile_of_at_least_five_runs() -> None:
    assert p95([101, 100, 104, 102, 103]) == 104
    assert p95(list(range(1, 101))) == 95
    for runs in ([1, 2, 3, 4], [1, 2, 3, 4, 0], []):
        with pytest.raises(InvalidValueError, match="at least 5"):
            p95(runs)


def test_f_000_07_a_profile_file_becomes_solo_time_spread_and_slowdowns() -> None:
    store = parse_profiles(
        {
            "alexnet-tiny": {
                "pack_s": [118, 120, 119, 117, 116],
                "spread_s": [156, 150, 151, 152, 153],
                "beside_s": {
                    "alexnet-tiny": [150, 144, 145, 146, 147],
                    "*": [119, 118, 117, 116, 115],
                },
            }
        }
    )
    profile = store.get("alexnet-tiny")
    assert profile.solo_s == 120
    assert profile.spread == pytest.approx(1.3)
    assert store.slowdown("alexnet-tiny", "alexnet-tiny") == pytest.approx(1.25)
    # Measured 119 / 120: not slowed down.
    assert store.slowdown("alexnet-tiny", "something else") == 1.0


def test_f_000_07_the_unknown_is_neutral() -> None:
    store = ProfileStore()
    assert store.get("nobody").spread == 1.0
    assert store.slowdown("nobody", "anybody") == 1.0


def test_f_000_07_too_few_runs_and_unknown_keys_are_refused_by_name() -> None:
    with pytest.raises(InvalidValueError, match=r"file\.a\.spread_s"):
        parse_profiles({"a": {"pack_s": [1] * 5, "spread_s": [1, 2]}}, "file")
    with pytest.raises(InvalidValueError, match=r"file\.a: 'pack'"):
        parse_profiles({"a": {"pack": [1] * 5}}, "file")


@pytest.mark.parametrize(
    ("document", "where"),
    [
        (None, "file: None"),
        ([1], r"file: \[1\]"),
        ({"a": [1]}, r"file\.a: \[1\]"),
        ({"a": {}}, r"file\.a\.pack_s: None"),
        ({"a": {"pack_s": "12345"}}, r"file\.a\.pack_s: '12345'"),
        ({"a": {"pack_s": [1, 2, 3, 4, "5"]}}, r"file\.a\.pack_s"),
        ({"a": {"pack_s": [1, 2, 3, 4, float("inf")]}}, r"file\.a\.pack_s"),
        ({"a": {"pack_s": [1] * 5, "beside_s": [1]}}, r"file\.a\.beside_s: \[1\]"),
        ({"a": {"pack_s": [1, 2, 3, 4, True]}}, r"file\.a\.pack_s"),
        ({"a": {"pack_s": [1, 2, 3, 4, 10**400]}}, r"file\.a\.pack_s"),
        ({"a": {"pack_s": [1, 2, 3, 4, float("nan")]}}, r"file\.a\.pack_s"),
    ],
)
def test_f_000_07_a_file_of_another_shape_is_refused_by_key(document, where) -> None:
    """F-000-07: nova-scheduler reads it at its start, which no mistake in it may stop."""
    with pytest.raises(InvalidValueError, match=where):
        parse_profiles(document, "file")


def test_built_in_profiles_hold_the_known_points_of_figure_13() -> None:
    def slowdown(victim: int, aggressor: int) -> float:
        return COMM_PROFILES.slowdown(comm_profile(victim), comm_profile(aggressor))

    assert slowdown(4, 4) == pytest.approx(1.30)
    assert slowdown(4, 1) == pytest.approx(1.24)
    assert slowdown(3, 1) == pytest.approx(1.21, abs=0.005)
    assert slowdown(1, 1) == 1.0
