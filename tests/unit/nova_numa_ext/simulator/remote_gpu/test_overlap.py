# SPDX-License-Identifier: Apache-2.0
"""The schedule of copies and kernels is as long as Eq. 4.9 says (F-002-08, 50 to 52)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.remote_gpu.multi_tenancy import CopyThenCompute
from nova_numa_ext.simulator.remote_gpu.overlap import concurrent_makespan_s, kernels, makespan_s
from nova_numa_ext.simulator.remote_gpu.prades import RISK_JOBS

TIMES = st.floats(1e-3, 100)
FDR = RISK_JOBS["fdr"]


@given(st.builds(CopyThenCompute, TIMES, TIMES, TIMES), st.integers(1, 16), st.integers(1, 12))
def test_event_by_event_is_the_equation(job: CopyThenCompute, gpus: int, per_gpu: int) -> None:
    found = makespan_s(kernels(job, gpus, per_gpu))
    assert found == pytest.approx(job.time_s(gpus, per_gpu), rel=1e-9)


def test_kernels_of_one_gpu_never_overlap_and_wait_for_their_data() -> None:
    found = kernels(FDR, 2, 4)
    for gpu in range(2):
        mine = [kernel for kernel in found if kernel.gpu == gpu]
        assert len(mine) == 4
        assert all(a.end_s <= b.start_s for a, b in pairwise(mine))
    assert all(kernel.arrived_s <= kernel.start_s for kernel in found)


def test_one_copy_after_another_ends_when_all_at_once_do_and_begins_earlier() -> None:
    found = kernels(FDR, 4, 1)
    assert makespan_s(found) == pytest.approx(concurrent_makespan_s(FDR, 4))
    assert found[0].start_s == pytest.approx(FDR.transfer_s(4) / 4)


def test_virtual_gpus_shorten_the_run_as_measured() -> None:
    alone = makespan_s(kernels(FDR, 4, 1))
    for per_gpu, measured in ((2, 80 / 88), (4, 76 / 88)):
        assert makespan_s(kernels(FDR, 4, per_gpu)) / alone == pytest.approx(measured, abs=0.03)
