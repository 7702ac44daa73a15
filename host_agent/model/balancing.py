# SPDX-License-Identifier: Apache-2.0
"""What goes into a decision of NUMA balancing."""

from collections.abc import Collection, Mapping
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
    :param read: UUIDs of servers that this sample is of, the other searches hold; None: of all
    """

    now_s: float
    observation: Observation
    counters: Mapping[str, ServerCounters] | None = None
    performance: Mapping[str, ServerCounters] | None = None
    canonical: Mapping[frozenset[int], Shares] = field(default_factory=dict)
    spreading_refused: str = ""
    kernel_balances: bool = False
    read: Collection[str] | None = None

    def counters_of(self, uuid: str) -> ServerCounters | None:
        """Return a server's counters in this sample, empty ones where it was not measured; None: it is not of it."""
        if self.counters is None or not (self.read is None or uuid in self.read):
            return None
        return self.counters.get(uuid, ServerCounters())

    def same_host(self, other: "BalancingInputs") -> bool:
        """Tell whether these differ from others in time and counters at most."""
        return (
            self.observation is other.observation
            and self.canonical is other.canonical
            and self.spreading_refused == other.spreading_refused
            and self.kernel_balances == other.kernel_balances
        )

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
