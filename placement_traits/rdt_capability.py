# SPDX-License-Identifier: Apache-2.0
"""What Resource Director Technology, or AMD's QoS, can do on one host: as resctrl's ``info`` says it.

Part of the JSON form of :mod:`placement_traits.topology`, ``schemas/host_topology.json``.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class L3Cat:
    """Cache allocation of the L3 (resctrl ``info/L3``).

    :param num_closids: classes of service, the root's included
    :param cbm_len: ways, bits of a full mask
    :param shareable_bits: mask of ways that other agents (IO) may use too
    :param min_cbm_bits: fewest bits in a mask
    :param cdp: code and data masks are separate and mounted so
    """

    num_closids: int
    cbm_len: int
    shareable_bits: int = 0
    min_cbm_bits: int = 1
    cdp: bool = False

    @property
    def shareable_ways(self) -> int:
        """Number of ways in ``shareable_bits``."""
        return self.shareable_bits.bit_count()


@dataclass(frozen=True, slots=True)
class Mba:
    """Memory bandwidth allocation (resctrl ``info/MB``).

    :param num_closids: classes of service, the root's included
    :param min_bandwidth: smallest level, per cent
    :param bandwidth_gran: step between levels, per cent
    :param delay_linear: the throttle is linear
    :param per_thread: a class throttles its own threads only, not its core's siblings
    :param mbps: the tree is mounted with ``mba_MBps``: levels are MB/s and the kernel runs its own loop
    """

    num_closids: int
    min_bandwidth: int
    bandwidth_gran: int
    delay_linear: bool = True
    per_thread: bool = False
    mbps: bool = False


@dataclass(frozen=True, slots=True)
class RdtMonitoring:
    """Monitoring (resctrl ``info/L3_MON``).

    :param num_rmids: monitoring ids
    :param features: names of ``mon_features``: ``llc_occupancy``, ``mbm_total_bytes``, ``mbm_local_bytes``
    """

    num_rmids: int
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RdtCapability:
    """What resource control of the processors can do, as the mounted resctrl tree shows it.

    :param cat: L3 allocation, None when absent
    :param mba: bandwidth throttling, None when absent
    :param monitoring: monitoring, None when absent
    :param l2_cat: L2 allocation is there
    :param l3_ids: L3 domains that appear in schemata, ascending
    """

    cat: L3Cat | None = None
    mba: Mba | None = None
    monitoring: RdtMonitoring | None = None
    l2_cat: bool = False
    l3_ids: tuple[int, ...] = ()

    @property
    def num_closids(self) -> int:
        """Classes of service that every present resource has, as the kernel counts them: the smallest number."""
        return min(
            (part.num_closids for part in (self.cat, self.mba) if part is not None), default=0
        )

    def monitors(self, feature: str) -> bool:
        """Return whether ``mon_features`` holds ``feature``."""
        return self.monitoring is not None and feature in self.monitoring.features
