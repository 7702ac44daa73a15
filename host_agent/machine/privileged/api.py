# SPDX-License-Identifier: Apache-2.0
"""What the agent may ask of the privileged side, for mypy and for stand-ins; the table is :mod:`.operations`."""

from collections.abc import Sequence
from typing import Protocol

from host_agent.model.partition import Joined, RdtChange, RdtState
from host_agent.model.process import (
    CountReport,
    GroupLevel,
    Look,
    MoveLimits,
    MoveReport,
    Pin,
    PinFailure,
    Process,
    QuotaReport,
    RamRange,
    Target,
)


class Privileged(Protocol):
    """What the agent may ask of the privileged side; see :class:`~.operations.HostOperations`."""

    def process(self, uuid: str) -> Process:
        """Process and threads of a domain."""

    def guest_ram(self, uuid: str) -> tuple[RamRange, ...]:
        """Full pass over guest memory."""

    def look(
        self, servers: Sequence[tuple[str, Sequence[tuple[int, int]]]], pages: int
    ) -> tuple[Look, ...]:
        """Process and threads of some domains, and sampled residency; of the first, and of as many as are quick."""

    def pin(self, uuid: str, pins: Sequence[Pin]) -> tuple[PinFailure, ...]:
        """Set affinities."""

    def move_memory(self, uuid: str, targets: Sequence[Target], limits: MoveLimits) -> MoveReport:
        """Move pages."""

    def count(self, threads: Sequence[tuple[str, Sequence[int]]], others_stay: bool) -> CountReport:
        """Hardware counters of vCPU threads."""

    def plug_latency_port(self, uuid: str) -> None:
        """Plug the latency port into a domain."""

    def plug_vsock(self, uuid: str) -> None:
        """Plug a vsock device into a domain."""

    def unplug_vsock(self, uuid: str) -> None:
        """Unplug that device."""

    def rdt_state(self) -> RdtState:
        """What planning of RDT groups needs to know."""

    def apply_partitions(self, change: RdtChange, write: bool) -> tuple[Joined, ...]:
        """Write to RDT groups, and move servers' threads to theirs."""

    def throttle(self, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
        """Bandwidth levels of RDT groups, in a hurry."""

    def limit_cpu_time(self, levels: Sequence[tuple[str, int]], write: bool) -> QuotaReport:
        """CPU time of best-effort servers."""

    def release_throttles(self, write: bool) -> tuple[str, ...]:
        """Take all throttles off."""

    def in_control(self) -> int:
        """Hold the dead-man switch; how often it has released throttles."""

    def graceful_shutdown(self) -> None:
        """Let go of it with everything as it is."""

    def reset_partitions(self, write: bool) -> tuple[str, ...]:
        """Undo all RDT groups."""
