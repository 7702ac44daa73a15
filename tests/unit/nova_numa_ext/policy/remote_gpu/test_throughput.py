# SPDX-License-Identifier: Apache-2.0
"""Many jobs on shared GPUs and cores: Prades 2021, chapters 3 and 5 (F-002-11, 12, 17, 30 and 31)."""

import pytest

from nova_numa_ext.policy.remote_gpu.closed_loop import ClosedLoop
from nova_numa_ext.policy.remote_gpu.slices import SHARING_SLOWDOWN
from nova_numa_ext.policy.remote_gpu.throughput import (
    FILLER_THREADS,
    Couple,
    fill_client_first,
    most_jobs,
    most_jobs_alone,
)
from nova_numa_ext.simulator.remote_gpu.prades import GROMACS


@pytest.mark.parametrize(("threads", "first_beyond"), [(20, 2), (10, 4), (5, 7), (3, 10)])
def test_the_budget_of_cores_ends_where_energy_was_seen_to_rise(
    threads: int, first_beyond: int
) -> None:
    assert most_jobs(threads, 20) + 1 == first_beyond
    assert not fill_client_first(first_beyond, threads, 20).within_budget


def test_eight_jobs_fill_the_client_first_and_leave_cores_for_two_fillers() -> None:
    found = fill_client_first(8, 3, 20)
    assert (found.on_client, found.on_server) == (6, 2)
    assert (found.free_on_client, found.free_on_server) == (2, 6)
    assert found.fillers == 2
    assert most_jobs_alone(3, 20) == 5
    # One of ten threads beside a GPU of its own host: no server of a lease takes a core.
    assert Couple(20, on_client=1, on_server=0, threads=10).free_on_client // FILLER_THREADS == 3


def test_throughput_of_a_hybrid_and_of_a_homogeneous_cluster() -> None:
    hybrid, shared = GROMACS.hybrid(2, fillers=3), GROMACS.hybrid_shared(2, fillers=2)
    assert (hybrid, shared) == pytest.approx((494.56, 587.71))
    assert shared / hybrid == pytest.approx(1.19, abs=0.005)
    alone, together = GROMACS.homogeneous(1, fillers=3), GROMACS.homogeneous_shared(1)
    assert (alone, together) == pytest.approx((373.23, 452.64))
    assert together / alone == pytest.approx(1.21, abs=0.005)


def test_the_closed_loop_of_users_who_wait_between_jobs() -> None:
    loop = ClosedLoop(job_s=90, utilisation=0.5)
    gaps = (90, 45, 22, 0)
    used = [loop.gpu_utilisation(gap) for gap in gaps]
    assert used == pytest.approx([0.25, 0.33, 0.40, 0.50], abs=0.005)
    two = [loop.throughput(2, SHARING_SLOWDOWN[2], gap) for gap in gaps]
    three = [loop.throughput(3, SHARING_SLOWDOWN[3], gap) for gap in gaps]
    assert two == pytest.approx([1.72, 1.64, 1.58, 1.50], abs=0.01)
    assert three == pytest.approx([2.26, 2.09, 1.97, 1.82], abs=0.01)
