# SPDX-License-Identifier: Apache-2.0
"""What goes into a decision of NUMA balancing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from host_agent.model.assignment import Observation
from host_agent.model.counters import ServerCounters
from host_agent.model.pages import Shares
from placement_traits.names import Tier


@dataclass(frozen=True)  # no slots: what each search asks again is kept
class BalancingInputs:
    """What is known now.

    :param now_s: monotonic time, seconds
    :param observation: the host
    :param counters: UUID -> counters of this sample, for the searches; None: no sample was taken, searches hold
    :param performance: UUID -> counters of the mapping's longer sample; None: not due
    :param canonical: worker set -> canonical weights, from the calibration; empty when never calibrated
    :param spreading_refused: why no memory may be spread on this host now, "" when it may
    :param kernel_balances: the kernel's automatic NUMA balancing is on
    """

    now_s: float
    observation: Observation
    counters: Mapping[str, ServerCounters] | None = None
    performance: Mapping[str, ServerCounters] | None = None
    canonical: Mapping[frozenset[int], Shares] = field(default_factory=dict)
    spreading_refused: str = ""
    kernel_balances: bool = False

    @cached_property
    def critical(self) -> frozenset[str]:
        """UUIDs of latency-critical servers."""
        guests = self.observation.guests
        return frozenset(guest.uuid for guest in guests if guest.workload.tier is Tier.LC)

    @cached_property
    def critical_stall_rate(self) -> float | None:
        """Worst stall rate of latency-critical servers; None when not measured or none there."""
        counters = self.counters or {}
        rates = (counters[uuid].stall_rate for uuid in self.critical & counters.keys())
        return max((rate for rate in rates if rate is not None), default=None)
