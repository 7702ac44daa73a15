# SPDX-License-Identifier: Apache-2.0
"""What it costs to move a GPU job to another GPU (Prades 2021, section 7.5).

``downtime = hops * bytes / bandwidth + other``, and ``total = rest of the kernels that run + downtime``: kernels are
not interrupted. *Other* (table 7.1) is the setting up of the copy and, for each region of GPU memory, an allocation and
a release. Only what the job has allocated is moved, its context is made again on the other GPU.

Times of the table are interpolated between its columns and continued along its last two.
"""

from bisect import bisect_left
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from nova_numa_ext.policy.remote_gpu.fabrics import GpuFabric
from placement_traits.errors import InvalidValueError

# Table 7.1, seconds for 4 GiB in so many regions. RDMA fabrics also have TCP connections to set up.
REGIONS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
OTHER_S: Final = MappingProxyType(
    {
        "1gbe": (0.04, 0.04, 0.04, 0.05, 0.06, 0.11, 0.18, 0.36),
        "fdr": (0.10, 0.11, 0.11, 0.11, 0.12, 0.16, 0.19, 0.24),
        "edr": (0.11, 0.11, 0.12, 0.12, 0.13, 0.17, 0.20, 0.28),
    }
)


def other_s(fabric: GpuFabric, regions: int) -> float:
    """Return the seconds of a move that are no copy.

    :param fabric: one without a row of its own has that of FDR when it has RDMA, else that of Ethernet
    :param regions: regions of GPU memory, at least one
    :raises InvalidValueError: no region
    """
    if regions < 1:
        raise InvalidValueError("regions of a move", regions, "at least one")
    row = OTHER_S.get(fabric.name) or OTHER_S["fdr" if fabric.rdma else "1gbe"]
    right = min(max(1, bisect_left(REGIONS, regions)), len(REGIONS) - 1)
    left = right - 1
    slope = (row[right] - row[left]) / (REGIONS[right] - REGIONS[left])
    return row[left] + slope * (regions - REGIONS[left])


def copy_s(fabric: GpuFabric, sizes: Sequence[int]) -> float:
    """Return the seconds of copying regions of these sizes (bytes)."""
    return fabric.hops * sum(sizes) * 8 / (fabric.gbps * 1e9)


def downtime_s(fabric: GpuFabric, sizes: Sequence[int]) -> float:
    """Return how long a job has no GPU, seconds.

    :param sizes: bytes of each region of its GPU memory
    """
    return copy_s(fabric, sizes) + other_s(fabric, len(sizes))


def kernel_wait_s(utilisation: float, kernel_s: float) -> float:
    """Return the mean seconds until the kernel that runs at a random moment has ended.

    A lower bound where kernels are not equally long.

    :param utilisation: share of the time in which a kernel runs, in [0, 1]
    :param kernel_s: mean length of a kernel, seconds
    """
    return utilisation * kernel_s / 2


def moved_run_s(first_s: float, then_s: float, share: float, downtime: float = 0.0) -> float:
    """Return the run time of a job that is moved once, seconds (table 7.3).

    :param first_s: its run time on the GPU it starts on
    :param then_s: its run time on the other one
    :param share: part of its work that is done before the move, in [0, 1]
    :param downtime: of the move, seconds
    """
    return share * first_s + (1 - share) * then_s + downtime
