# SPDX-License-Identifier: Apache-2.0
"""Weights of an uplink's lanes by trial: BALM for the share that best-effort servers' lane has of it. Pure.

Latency-critical servers go first up to the share of their lane (``[lanes]strict_cap``). What they send above it waits
behind the host's own traffic and best-effort servers, who have their shares. A level is the part of its share that the
lane of best-effort servers keeps; the rest is added to the lane of latency-critical ones. What a lane leaves the others
may still use: nothing is closed, unlike with a limit (:class:`.uplink.Ceiling`).

Each weight is a trial, by the search of memory and of throttles (:mod:`.balm`): the strongest first, so that who
suffers is healed at once, then a tenth back each time. One that violates is taken back, one that has no effect too, and
what was needed once is tried with less while objectives are met by far, with twice the wait after each failure. Between
met by far and at risk nothing changes. For a server that is silent nothing is tuned, and one that is violated whatever
is done is left alone for a while.

All that is taken is charged: best-effort servers have their share by configuration, and no flavor has paid for it. What
they send beyond it is lent by others, and to lose it is no loss.

Source: Jokanović, section 5.2, has weights by trial that keep what helps all together; that latencies say what
helps is ours, for a host sees no progress of applications.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from host_agent.decide.slo.shapes import BalmState, SloView
from host_agent.decide.slo.uplink import UplinkStep, UplinkUse, lowest, seen_as_node
from host_agent.model.lanes import LaneOrder
from host_agent.model.levels import FULL

_FILLS: Final = 0.5
"""Of what their lane has: latency-critical servers that send less do not wait for more of it."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A level is the part of its share that the lane of best-effort servers keeps.

    :param strict: share of the uplink that the lane of latency-critical servers has by configuration
    :param best_effort: share that the lane of best-effort servers has
    """

    strict: float
    best_effort: float

    tries: ClassVar[str] = "giving latency-critical servers more and best-effort servers less of"

    def may_help(self, use: UplinkUse) -> bool:
        """Best-effort servers send much, and latency-critical ones about what their lane has."""
        fills = use.latency_critical_mbps >= _FILLS * self.strict * use.speed_mbps
        return fills and use.best_effort_send_much

    def view(self, seen: SloView, use: UplinkUse) -> SloView:
        """See :class:`.uplink.UplinkKnob`."""
        own_mbps = self.best_effort * use.speed_mbps
        part = min(1.0, own_mbps / max(1.0, sum(use.best_effort_mbps.values())))
        sent = {uuid: part * mbps for uuid, mbps in use.best_effort_mbps.items()}
        return seen_as_node(seen, use, sent, use.share_percent, capacity_mbps=own_mbps)

    def step(self, state: BalmState, use: UplinkUse) -> UplinkStep:
        """See :class:`.uplink.UplinkKnob`."""
        level = lowest(state)
        order = LaneOrder(shares={use.device: level}) if level < FULL else LaneOrder()
        return UplinkStep(order, {"best_effort_share_percent": level})
