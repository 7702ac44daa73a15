# SPDX-License-Identifier: Apache-2.0
"""Resource control (RDT) of servers: what they request, what there is, the writes between, and where they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from host_agent.model.levels import FULL
from host_agent.model.rdt import (
    Actual,
    Capabilities,
    Schemata,
    format_schemata,
    is_bandwidth,
    schemata_difference,
)
from placement_traits.names import Tier
from placement_traits.reason import Reason


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

    @property
    def levels(self) -> dict[int, int]:
        """L3 domain where it runs -> bandwidth level, per cent."""
        return {domain: self.mba_percent.get(domain, FULL) for domain in self.domains}


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """Where a server is in resource control.

    :param uuid: of the server
    :param group: control group, "" is root's
    :param monitor: monitoring group in it, "" when the control group counts for it
    :param exclusive: its ways are no other group's
    :param reasons: why, also what keeps it from being exclusive
    :param moved: threads moved into the group by this call
    :param problem: why it is not (completely) in its group, "" when it is
    """

    uuid: str
    group: str
    monitor: str = ""
    exclusive: bool = False
    reasons: tuple[Reason, ...] = ()
    moved: int = 0
    problem: str = ""


class WriteKind(StrEnum):
    """Commands of resctrl."""

    MOVE_THREADS = "move threads"
    REMOVE_GROUP = "remove group"
    REMOVE_MONITOR = "remove monitor"
    CREATE_GROUP = "create group"
    CREATE_MONITOR = "create monitor"
    SCHEMATA = "schemata"


@dataclass(frozen=True, slots=True)
class Write:
    """One command on the resctrl tree.

    :param kind: what is done
    :param group: control group, "" is root's
    :param monitor: monitoring group in it, "" for the control group itself
    :param schemata: values that are written
    :param before: values there were, as far as known: a group that is still to be made has none
    :param target: control group that all threads of ``group``/``monitor`` are moved to
    """

    kind: WriteKind
    group: str
    monitor: str = ""
    schemata: Schemata = field(default_factory=dict)
    before: Schemata = field(default_factory=dict)
    target: str = ""

    @property
    def levels_only(self) -> bool:
        """It changes nothing but memory bandwidth levels."""
        return self.kind is WriteKind.SCHEMATA and all(map(is_bandwidth, self.schemata))

    def __str__(self) -> str:
        place = f"{self.group or '(root)'}/{self.monitor}".rstrip("/")
        values = format_schemata(self.schemata).strip().replace("\n", " ")
        if self.kind is WriteKind.MOVE_THREADS:
            values = f"to {self.target or '(root)'}"
        return f"{self.kind} {place} {values}".rstrip()


def schemata_write(group: str, now: Schemata, target: Schemata) -> Write | None:
    """Return the write that makes a group's schemata what they should be, None where they are."""
    values = schemata_difference(now, target)
    before = {
        name: {d: now[name][d] for d in written if d in now[name]}
        for name, written in values.items()
        if name in now
    }
    return Write(WriteKind.SCHEMATA, group, schemata=values, before=before) if values else None


@dataclass(frozen=True, slots=True)
class RdtState:
    """What planning needs to know of a host's resource control.

    :param capabilities: what can be allocated and monitored
    :param actual: all groups there are, those of other software included
    :param root_found: root's masks before it was shrunk, {} when it is not, None when that is not known
    """

    capabilities: Capabilities
    actual: Actual
    root_found: Schemata | None


@dataclass(frozen=True, slots=True)
class Membership:
    """All threads of a server belong into a group.

    :param uuid: of the server
    :param group: control group
    :param monitor: monitoring group in it, or ""
    """

    uuid: str
    group: str
    monitor: str = ""


@dataclass(frozen=True, slots=True)
class RdtChange:
    """Writes that lead from one state of the groups to another, and which server belongs where afterwards.

    :param seen: the groups that the writes were planned for
    :param writes: in this order
    :param members: whose threads are moved after that
    :param root_found: root's masks to remember where it is shrunk now
    """

    seen: Actual
    writes: tuple[Write, ...] = ()
    members: tuple[Membership, ...] = ()
    root_found: Schemata = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Joined:
    """What came of a :class:`Membership`.

    :param uuid: of the server
    :param moved: threads that were moved
    :param problem: why not all of them are in the group, "" when they are
    """

    uuid: str
    moved: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What was done, or would be, so that servers have what they request.

    :param writes: commands on the resctrl tree, in order
    :param places: one entry per request
    :param problem: what stopped it, "" when nothing did
    :param again: the groups kept changing meanwhile, so that it should be tried again soon
    """

    writes: tuple[Write, ...] = ()
    places: tuple[PartitionPlace, ...] = ()
    problem: str = ""
    again: bool = False
