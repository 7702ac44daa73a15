# SPDX-License-Identifier: Apache-2.0
"""Copies and kernels of one job, event by event: the schedule that Eq. 4.9 of Prades 2021 is the length of.

The parts are copied one after another over the client's link, first one to each GPU, then the second of each, and so
on. A GPU computes its parts in the order they arrive, one at a time, while the next ones are copied.
"""

from dataclasses import dataclass

from nova_numa_ext.policy.remote_gpu.multi_tenancy import CopyThenCompute


@dataclass(frozen=True, slots=True)
class Kernel:
    """The computation of one part.

    :param gpu: number of its GPU
    :param arrived_s: when its data were there
    :param start_s: when it began
    :param end_s: when it ended
    """

    gpu: int
    arrived_s: float
    start_s: float
    end_s: float


def kernels(job: CopyThenCompute, gpus: int, per_gpu: int) -> list[Kernel]:
    """Return the kernels of a job in the order of their copies."""
    parts = gpus * per_gpu
    copy_s, compute_s = job.transfer_s(parts) / parts, job.computation_s(parts)
    free_s = [0.0] * gpus
    found = []
    for number in range(parts):
        gpu, arrived_s = number % gpus, (number + 1) * copy_s
        start_s = max(arrived_s, free_s[gpu])
        free_s[gpu] = start_s + compute_s
        found.append(Kernel(gpu, arrived_s, start_s, free_s[gpu]))
    return found


def makespan_s(found: list[Kernel]) -> float:
    """Return when the last kernel ends, seconds."""
    return max(kernel.end_s for kernel in found)


def concurrent_makespan_s(job: CopyThenCompute, gpus: int) -> float:
    """Return the run time where all copies share the link and end together, one virtual GPU on each GPU, seconds."""
    return job.transfer_s(gpus) + job.computation_s(gpus)
