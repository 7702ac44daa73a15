# SPDX-License-Identifier: Apache-2.0
"""What the performance counters of a server say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """Performance counters of one server since the last sample; None where not measured.

    :param ipc: instructions per cycle
    :param mpi: L3 misses per instruction
    :param stall_rate: stalled cycles per second and vCPU
    """

    ipc: float | None = None
    mpi: float | None = None
    stall_rate: float | None = None
