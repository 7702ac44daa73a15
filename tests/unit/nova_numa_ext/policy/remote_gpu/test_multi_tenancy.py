# SPDX-License-Identifier: Apache-2.0
"""Virtual GPUs of one job: times, energies and optima of Prades 2021, chapter 4 (F-002-01 to 07, 09 and 10)."""

import pytest

from nova_numa_ext.policy.remote_gpu.multi_tenancy import (
    K20,
    Aim,
    CopyThenCompute,
    best,
    vgpus_that_fit,
)
from nova_numa_ext.simulator.remote_gpu.prades import RISK_JOBS
from placement_traits.errors import InvalidValueError

FDR, QDR = RISK_JOBS["fdr"], RISK_JOBS["qdr"]


def most(gpus: int) -> int:
    """Virtual GPUs on each, as in the experiments: 12, but 4 where one GPU holds all."""
    return 4 if gpus == 1 else 12


def test_copies_to_one_and_to_sixteen_gpus() -> None:
    assert QDR.transfer_s(1) == pytest.approx(1.2158, abs=1e-4)
    assert FDR.transfer_s(1) == pytest.approx(0.6968, abs=1e-4)
    assert FDR.transfer_s(16) == pytest.approx(1.0986, abs=1e-4)


def test_sixteen_gpus_are_within_three_percent_of_the_measurement() -> None:
    assert FDR.time_s(16) == pytest.approx(1.6955, abs=1e-4)
    assert FDR.time_s(16) == pytest.approx(1.66, rel=0.03)


@pytest.mark.parametrize(
    ("per_gpu", "time_s", "measured_steps"), [(1, 3.165, 88), (2, 2.830, 80), (4, 2.662, 76)]
)
def test_four_gpus_in_steps_of_35_ms(per_gpu: int, time_s: float, measured_steps: int) -> None:
    assert FDR.time_s(4, per_gpu) == pytest.approx(time_s, abs=1e-3)
    assert FDR.time_s(4, per_gpu) / 0.035 == pytest.approx(measured_steps, rel=0.03)


@pytest.mark.parametrize(("job", "shape", "time_s"), [(QDR, (7, 2), 2.4803), (FDR, (9, 2), 1.6828)])
def test_the_fastest_configuration_with_least_energy_among_ties(
    job: CopyThenCompute, shape: tuple[int, int], time_s: float
) -> None:
    found = best(job, Aim.TIME, 16, most)
    assert (found.gpus, found.per_gpu) == shape
    assert found.time_s == pytest.approx(time_s, abs=1e-4)


@pytest.mark.parametrize(("job", "energy_j"), [(QDR, 990.0), (FDR, 983.2)])
def test_least_energy_is_one_gpu_with_four_virtual_ones(
    job: CopyThenCompute, energy_j: float
) -> None:
    found = best(job, Aim.ENERGY, 16, most)
    assert (found.gpus, found.per_gpu) == (1, 4)
    assert found.energy_j == pytest.approx(energy_j, abs=0.1)


def test_energy_of_four_gpus_falls_as_measured() -> None:
    found = [FDR.energy_j(4, per_gpu) for per_gpu in (1, 2, 4)]
    assert found == pytest.approx([1120, 1057, 1026], abs=1)
    assert found == pytest.approx([1145, 1094, 1041], rel=0.04)
    assert sorted(found, reverse=True) == found


@pytest.mark.parametrize(("job", "shape", "product"), [(QDR, (5, 3), 2823), (FDR, (7, 4), 1946)])
def test_least_energy_times_time(
    job: CopyThenCompute, shape: tuple[int, int], product: float
) -> None:
    found = best(job, Aim.ENERGY_TIME, 16, most)
    assert (found.gpus, found.per_gpu) == shape
    assert found.cost(Aim.ENERGY_TIME) == pytest.approx(product, abs=1)


def test_memory_of_a_k20_holds_four_virtual_gpus_and_refuses_a_fifth() -> None:
    def fitting(gpus: int) -> int:
        return vgpus_that_fit(4799, input_mb=4000 / gpus, whole_mb=124, context_mb=72)

    assert fitting(1) == 4
    assert fitting(2) > 4
    assert best(QDR, Aim.ENERGY, 1, fitting).per_gpu == 4


def test_a_job_that_fits_no_gpu_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="memory for at least one"):
        best(QDR, Aim.TIME, 16, lambda gpus: 0)
    with pytest.raises(InvalidValueError, match="a computation > 0"):
        CopyThenCompute(0.0, 0.1, 0.1)


def hidden(job: CopyThenCompute, gpus: int) -> float:
    """Largest share of the exposed copies that up to 24 virtual GPUs hide: the client's hardware threads."""
    least = min(job.exposed_s(gpus, v) for v in range(1, min(most(gpus), 24 // gpus) + 1))
    return 1 - least / job.exposed_s(gpus)


def test_hidden_copies_are_most_with_two_gpus_and_few_with_six() -> None:
    found = [hidden(QDR, gpus) for gpus in (1, 2, 4, 6)]
    assert found == pytest.approx([0.72, 0.85, 0.72, 0.37], abs=0.01)
    assert found == pytest.approx([0.70, 0.84, 0.66, 0.42], abs=0.07)
    assert max(found) == found[1]
    assert min(found) == found[3]
    assert hidden(QDR, 12) == pytest.approx(0, abs=1e-9)


def test_power_of_a_gpu_follows_its_utilisation() -> None:
    assert K20.mean_w(0.0) == 47
    assert K20.mean_w(1.0) == 102
    assert 60 <= K20.mean_w(0.4) <= 80  # figure 7.10
