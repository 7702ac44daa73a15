# SPDX-License-Identifier: Apache-2.0
"""Options of what is published in Placement: section ``[placement]``; keystoneauth's stand there, too."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from placement_traits.options import Section, option


@dataclass(frozen=True, slots=True)
class PlacementOptions(Section):
    """``[placement]``."""

    section: ClassVar = "placement"
    title: ClassVar = "What the agent publishes in Placement"
    gone: ClassVar = dict.fromkeys(
        ("rehome", "rehome_after_s"), "numa-ext-heal on a controller moves allocations"
    )

    enabled: bool = option(
        True,
        "Publish this host's topology in Placement.",
        change="the host is not part of a cloud (tests)",
        leave="the host is part of a cloud: the scheduler does not know it otherwise",
    )
    interval_s: float = option(
        60.0,
        "Seconds between two comparisons with Placement when nothing changes here.",
        minimum=1.0,
        change="Placement is short of CPU (raise): a pass without changes is one request, two where servers hold ways "
        "or bandwidth",
        leave="a deleted compute service must get our providers back within a minute",
    )
    backoff_max_s: float = option(
        30.0,
        "Longest pause between two attempts while Placement does not answer.",
        minimum=1.0,
        change="hundreds of agents come back at once after a failure of Placement (raise)",
        leave="the cloud is small",
    )
    cell_packing: Literal["pack", "spread"] = option(
        "spread",
        "How nova fills this host's NUMA cells, so that the scheduler predicts the cells that nova-compute will pick.",
        choices={
            "pack": "[compute]packing_host_numa_cells_allocation_strategy of nova is true",
            "spread": "it is false, its default",
        },
        change="nova-compute of this host packs cells; the doctor reports it",
        leave="nova's option is at its default",
    )
    bandwidth_mbps_per_node: int | None = option(
        None,
        "Memory bandwidth of one NUMA node, MB/s, as long as it has not been measured. Without it no "
        "CUSTOM_MEMORY_BANDWIDTH_MBPS is offered.",
        minimum=1,
        change="you sell memory bandwidth: the figure of the data sheet or, better, of a stream benchmark on one node",
        leave="no flavor asks for CUSTOM_MEMORY_BANDWIDTH_MBPS",
    )
    reserved_bandwidth_interval_s: float = option(
        10.0,
        "Seconds between two looks at the measured memory traffic (MBM), which is held back from sale as far as "
        "running servers have not declared it; 0 never looks. Hosts without MBM hold nothing back.",
        minimum=0.0,
        change="only declared bandwidth shall count (0), or Placement is short of CPU (raise)",
        leave="servers without a declaration use much bandwidth",
        formerly="pressure_s",
    )
    reserved_bandwidth_dead_band_percent: float = option(
        5.0,
        "Share of an L3 domain's bandwidth by which the measured traffic must move before Placement is updated. Each "
        "write makes every scheduler read this host again.",
        minimum=0.0,
        maximum=100.0,
        change="reserved moves all the time (raise)",
        leave="domains are sold to the last MB/s: held back is what is sure to be used",
        formerly="pressure_dead_band_percent",
    )

    @property
    def reserved_bandwidth_dead_band(self) -> float:
        """Share of an L3 domain's bandwidth by which the measured traffic must move."""
        return self.reserved_bandwidth_dead_band_percent / 100
