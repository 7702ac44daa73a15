# SPDX-License-Identifier: Apache-2.0
"""How many GPUs, and how many virtual GPUs on each, a job that copies first and computes then should get.

The model of Prades 2021, section 4.5 (a financial risk application on K20 GPUs). A job with p GPUs and v virtual GPUs
on each splits its input over n = p v of them and copies the parts one after another over the client's only link.
Kernels of a GPU run one after another while the next copies arrive, so v > 1 hides copies behind kernels; but each
virtual GPU also gets its own copy of what cannot be split.

=====  ==================================================  =====================================================
4.5    ``Tc(n) = C / n``                                   computation of one part
4.6    ``Tt(n) = n (a + b + c4 + c120) + D``               all copies: what each GPU gets whole, and the input
4.7    ``Tt(n) / v + v Tc(n)``                             all copies but the first round are hidden
4.8    ``Tt(n) + Tc(n)``                                   the last copy is the bottleneck
4.9    ``T(p, v) = max(4.7, 4.8)``                         run time; with v = 1 it is Eq. 4.4
4.10   ``E(p, v) = p (Tc(p) busy + (T - Tc(p)) idle)``     energy of the GPUs
=====  ==================================================  =====================================================

Limits: computation is divisible without loss, the link is serial, and at most 24 virtual GPUs were measured.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from placement_traits.errors import InvalidValueError

# Configurations this near to the best one count as equal: the printed times have three digits.
TIE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class GpuPower:
    """Power of a GPU, W, of section 4.5.6 for a K20.

    :param unused: no process has a context on it
    :param idle: it has one, and computes nothing; receiving data is idle, too
    :param busy: it computes
    """

    unused: float = 25.0
    idle: float = 47.0
    busy: float = 102.0

    def mean_w(self, utilisation: float) -> float:
        """Return the mean power of a GPU that computes for a share of the time, in [0, 1]."""
        return self.idle + utilisation * (self.busy - self.idle)


K20: Final = GpuPower()


@dataclass(frozen=True, slots=True)
class CopyThenCompute:
    """A job of this model on one fabric.

    :param compute_s: C, seconds on one GPU
    :param per_gpu_s: seconds of what every virtual GPU needs: allocation, small and unsplit structures
    :param input_s: D, seconds that the input which is split takes on the link
    :param power: of its GPUs
    :raises InvalidValueError: a time is negative, or there is nothing to compute
    """

    compute_s: float
    per_gpu_s: float
    input_s: float
    power: GpuPower = K20

    def __post_init__(self) -> None:
        if not (self.compute_s > 0 and self.per_gpu_s >= 0 and self.input_s >= 0):
            times = (self.compute_s, self.per_gpu_s, self.input_s)
            raise InvalidValueError("seconds of the job", times, "a computation > 0, copies >= 0")

    def transfer_s(self, vgpus: int) -> float:
        """Return the seconds of all copies to so many virtual GPUs (Eq. 4.6)."""
        return vgpus * self.per_gpu_s + self.input_s

    def computation_s(self, parts: int) -> float:
        """Return the seconds of one of so many equal parts (Eq. 4.5)."""
        return self.compute_s / parts

    def time_s(self, gpus: int, per_gpu: int = 1) -> float:
        """Return the run time (Eq. 4.9), seconds.

        :param gpus: p
        :param per_gpu: v, virtual GPUs on each
        """
        vgpus = gpus * per_gpu
        copies, part = self.transfer_s(vgpus), self.computation_s(vgpus)
        return max(copies / per_gpu + per_gpu * part, copies + part)

    def energy_j(self, gpus: int, per_gpu: int = 1) -> float:
        """Return the energy of the GPUs (Eq. 4.10), joules."""
        busy_s = self.computation_s(gpus)
        idle_s = self.time_s(gpus, per_gpu) - busy_s
        return gpus * (busy_s * self.power.busy + idle_s * self.power.idle)

    def exposed_s(self, gpus: int, per_gpu: int = 1) -> float:
        """Return the seconds in which copies hold up the computation."""
        return self.time_s(gpus, per_gpu) - self.computation_s(gpus)


class Aim(StrEnum):
    """What a configuration is chosen for."""

    TIME = "time"
    ENERGY = "energy"
    ENERGY_TIME = "energy_time"  # their product


@dataclass(frozen=True, slots=True)
class VgpuShape:
    """Virtual GPUs of a job and what the model says of them.

    :param gpus: p
    :param per_gpu: v
    :param time_s: run time, seconds
    :param energy_j: energy of its GPUs, joules
    """

    gpus: int
    per_gpu: int
    time_s: float
    energy_j: float

    def cost(self, aim: Aim) -> float:
        """Return what is to be small."""
        match aim:
            case Aim.TIME:
                return self.time_s
            case Aim.ENERGY:
                return self.energy_j
            case Aim.ENERGY_TIME:
                return self.time_s * self.energy_j


def vgpus_that_fit(memory_mb: int, input_mb: float, whole_mb: float, context_mb: float) -> int:
    """Return how many virtual GPUs of a job find room in the memory of one GPU.

    :param memory_mb: memory of the GPU, MiB
    :param input_mb: the GPU's share of the input, which they split
    :param whole_mb: what each of them holds whole
    :param context_mb: what the driver takes for each
    """
    return max(0, math.floor((memory_mb - input_mb) / (whole_mb + context_mb)))


def configurations(
    job: CopyThenCompute, most_gpus: int, most_per_gpu: Callable[[int], int]
) -> Iterator[VgpuShape]:
    """Yield all configurations.

    :param most_per_gpu: virtual GPUs that fit on each of so many GPUs
    """
    for gpus in range(1, most_gpus + 1):
        for per_gpu in range(1, most_per_gpu(gpus) + 1):
            time_s, energy_j = job.time_s(gpus, per_gpu), job.energy_j(gpus, per_gpu)
            yield VgpuShape(gpus, per_gpu, time_s, energy_j)


def best(
    job: CopyThenCompute, aim: Aim, most_gpus: int, most_per_gpu: Callable[[int], int]
) -> VgpuShape:
    """Return the configuration for an aim; of those within :data:`TIE` of the best, that with the least energy.

    :raises InvalidValueError: the job fits no number of GPUs
    """
    found = list(configurations(job, most_gpus, most_per_gpu))
    if not found:
        raise InvalidValueError("virtual GPUs of a GPU", 0, "memory for at least one")
    least = min(each.cost(aim) for each in found)
    near = [each for each in found if each.cost(aim) <= least * (1 + TIE)]
    return min(near, key=lambda each: (each.energy_j, each.gpus, each.per_gpu))
