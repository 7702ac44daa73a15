# SPDX-License-Identifier: Apache-2.0
"""RDT capability of this host in the shape that the topology carries."""

import functools
import logging

from host_agent.machine.rdt.reader import ResctrlReader
from host_agent.model.rdt import BandwidthUnit, Capabilities
from placement_traits.rdt_capability import L3Cat, Mba, RdtCapability, RdtMonitoring

LOG = logging.getLogger(__name__)


def read_rdt(resctrl: ResctrlReader) -> RdtCapability | None:
    """Read the mounted resctrl tree; None where nothing is mounted, which is logged at the first look only."""
    if not resctrl.available():
        _log_once("No resctrl file system is mounted: this host offers no RDT resources.")
        return None
    return rdt_capability(resctrl.capabilities())


@functools.cache
def _log_once(sentence: str) -> None:
    """Discovery runs at each full pass; the log must not repeat it each minute."""
    LOG.info(sentence)


def rdt_capability(capabilities: Capabilities) -> RdtCapability:
    """Convert what the resctrl library read."""
    l3, bandwidth, monitoring = (
        capabilities.l3,
        capabilities.bandwidth,
        capabilities.monitoring,
    )
    return RdtCapability(
        cat=L3Cat(
            l3[0].num_closids,
            l3[0].ways,
            l3[0].shareable_bits,
            max(1, l3[0].min_cbm_bits),  # AMD allows an empty mask; a partition of no ways is none
            cdp=len(l3) > 1,
        )
        if l3
        else None,
        mba=Mba(
            bandwidth.num_closids,
            bandwidth.min_bandwidth,
            bandwidth.bandwidth_gran,
            bandwidth.delay_linear,
            per_thread=bandwidth.thread_throttle_mode == "per-thread",
            mbps=bandwidth.unit is BandwidthUnit.MBPS,
        )
        if bandwidth
        else None,
        monitoring=RdtMonitoring(monitoring.num_rmids, monitoring.features) if monitoring else None,
        l2_cat=bool(capabilities.l2),
        l3_ids=l3[0].domains if l3 else (bandwidth.domains if bandwidth else ()),
    )
