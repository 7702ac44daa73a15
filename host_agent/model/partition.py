# SPDX-License-Identifier: Apache-2.0
"""What a server requests of resource control (RDT), and where it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from placement_traits.names import Tier


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """What one server requests of resource control.

    :param uuid: of the server
    :param tier: latency-critical or best-effort
    :param domains: L3 domains of its CPUs, ascending
    :param ways: LC only: L3 domain -> exclusive ways
    :param mba_percent: BE only: L3 domain -> memory bandwidth level; 100 where missing
    :param running: false: the group is kept for it, but no thread is moved
    """

    uuid: str
    tier: Tier
    domains: tuple[int, ...]
    ways: Mapping[int, int] = field(default_factory=dict)
    mba_percent: Mapping[int, int] = field(default_factory=dict)
    running: bool = True


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """Where a server is in resource control.

    :param uuid: of the server
    :param group: control group, "" is root's
    :param monitor: monitoring group in it, "" when the control group counts for it
    :param exclusive: its ways are nobody else's
    :param reasons: why, one sentence or term each
    :param moved: threads moved into the group by this call
    :param problem: why it is not (completely) in its group, "" when it is
    """

    uuid: str
    group: str
    monitor: str = ""
    exclusive: bool = False
    reasons: tuple[str, ...] = ()
    moved: int = 0
    problem: str = ""
