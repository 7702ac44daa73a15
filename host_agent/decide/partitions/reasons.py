# SPDX-License-Identifier: Apache-2.0
"""Why servers get what :mod:`.plan` decides, or do not. Pure."""

from collections.abc import Mapping

from host_agent.decide.partitions.classes import BeClass
from host_agent.decide.partitions.layout import Line
from host_agent.model.partition import PartitionRequest
from host_agent.model.rdt import BandwidthUnit, Capabilities
from host_agent.model.terms import Term
from placement_traits.reason import Reason


def of_refused_ways(
    line: Line, domain: int, lc: PartitionRequest, amounts: Mapping[str, int]
) -> tuple[Reason, ...]:
    """Return why the ways of a latency-critical server do not fit into a domain.

    :param amounts: uuid -> ways there of all that would have some, this one included
    """
    own = (line.full & ~line.shareable).bit_count()
    held = sum(amounts.values()) - amounts[lc.uuid]
    free = own - held - line.shared_min
    where = f"L3 {domain}"
    return (
        Reason(Term.WAYS_DO_NOT_FIT, lc.ways[domain], free, where),
        Reason(Term.WAYS_HELD, held, own, where),
        Reason(Term.WAYS_STAY_SHARED, line.shared_min, "", where),
    )


def of_best_effort(
    capabilities: Capabilities, be: PartitionRequest, be_class: BeClass, monitor: str
) -> tuple[Reason, ...]:
    """Return why a best-effort server has its levels, and what it goes without.

    :param monitor: its monitoring group, "" where it has none
    """
    levels = be_class.levels()
    reasons = [
        Reason(Term.PARTITION_LEVEL, levels[d], requested, f"L3 {d}")
        for d, requested in sorted(be.levels.items())
    ]
    if capabilities.bandwidth is None:
        reasons = [Reason(Term.NO_MBA, "absent", "requested")]
    elif capabilities.bandwidth.unit is BandwidthUnit.MBPS:
        reasons = [Reason(Term.MBA_OF_KERNEL, "mba_MBps", "percent")]
    elif not capabilities.bandwidth.levels_known:
        reasons = [Reason(Term.MBA_NOT_CALIBRATED, capabilities.bandwidth.unit, "percent")]
    if len(be_class.members) > 1:
        reasons.append(Reason(Term.CLASS_SHARED, len(be_class.members), 1))
    if not monitor and capabilities.monitoring:
        reasons.append(Reason(Term.NO_RMID, 0, 1))
    return tuple(reasons)
