# SPDX-License-Identifier: Apache-2.0
"""What leases use of a host's GPUs together, for metrics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolUse:
    """What leases use of the GPUs of one host.

    :param memory_mb: that they hold, MiB
    :param busy: GPUs that they keep busy, as the host reports: one that is busy half of the time is a half
    :param link_mbps: that goes over their links, megabytes a second, as the host reports
    :param used_mb: of the memory that they hold, what they have in use, MiB, as the host reports
    """

    memory_mb: int = 0
    busy: float = 0.0
    link_mbps: float = 0.0
    used_mb: float = 0.0

    def plus(self, other: "PoolUse") -> "PoolUse":
        """Return both together."""
        return PoolUse(
            self.memory_mb + other.memory_mb,
            self.busy + other.busy,
            self.link_mbps + other.link_mbps,
            self.used_mb + other.used_mb,
        )
