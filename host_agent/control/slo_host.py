# SPDX-License-Identifier: Apache-2.0
"""What the SLO controller needs of a host: each sensor and actuator as small as it uses it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from host_agent.model.latency import LcServer
from host_agent.model.partition import PartitionPlace
from host_agent.model.process import GroupLevel, QuotaReport
from host_agent.observe.bandwidth import Bandwidth
from placement_traits.topology import HostTopology


class ThrottleWriter(Protocol):
    """Writes levels at once: :class:`~host_agent.machine.privileged.api.Privileged`."""

    def throttle(self, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
        """Write levels of groups; return one sentence each about what went wrong, "" for nothing."""

    def limit_cpu_time(self, levels: Sequence[tuple[str, int]], write: bool) -> QuotaReport:
        """Take CPU time instead, where levels are that: by server, per cent."""


class TrafficReader(Protocol):
    """Memory traffic: :class:`~host_agent.observe.bandwidth.BandwidthReader`."""

    def servers(self, places: Iterable[PartitionPlace]) -> Mapping[str, Bandwidth]:
        """Return that of servers."""


class LegalLevels(Protocol):
    """What levels a host has."""

    def of(self, topology: HostTopology) -> tuple[int, ...]:
        """Return them, per cent, ascending."""


class RoundStarter(Protocol):
    """Starts rounds of the agent: :class:`~host_agent.machine.libvirt.DomainSource`."""

    def wake(self) -> None:
        """Start one now."""


class PortServer(Protocol):
    """Latency ports of guests: :class:`~host_agent.observe.latency.ports.SloPorts`."""

    def serve(self, lcs: Iterable[LcServer]) -> None:
        """See to it that these servers have one where they want one; does not wait."""


class Permission(Protocol):
    """Whether anything may be changed now."""

    def paused(self) -> bool:
        """Return whether an operator has paused the agent."""

    def lapsed(self) -> bool:
        """Return whether the dead-man switch takes all throttles off, because rounds hang or fail."""

    def acts(self) -> bool:
        """Return whether objectives are acted for, see :class:`~host_agent.control.rollout.Rollout`."""

    def balancers(self) -> str:
        """Return which other software moves pages on this host, "" for none; then BALM moves none."""


@dataclass(frozen=True, slots=True)
class SloHost:
    """What the controller needs of the host.

    :param writer: of levels
    :param traffic: of servers
    :param legal: levels
    :param rounds: of the agent
    :param permission: to change anything
    :param ports: None where the operator lets guests have none
    :param margin_mb: MiB that stay free on every node
    """

    writer: ThrottleWriter
    traffic: TrafficReader
    legal: LegalLevels
    rounds: RoundStarter
    permission: Permission
    ports: PortServer | None = None
    margin_mb: float = 0.0
