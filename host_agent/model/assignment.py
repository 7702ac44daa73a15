# SPDX-License-Identifier: Apache-2.0
"""Desired and actual placement of one server, their difference, and the checks before anything is written. Pure.

``Assignment`` is what controllers decide, ``Guest`` is what sensors saw; :func:`difference` lists what the executor has
to do, and nothing when the two agree.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from host_agent.model import cpus
from host_agent.model.pages import Shares, huge_page_share, share_error
from host_agent.model.partition import PartitionPlace, PartitionRequest
from host_agent.model.process import (
    Pin,
    Process,
    RamRange,
    Role,
    Target,
)
from host_agent.model.workload import Activity, Workload
from placement_traits.errors import InvalidValueError
from placement_traits.reason import Reason
from placement_traits.topology import HostTopology


@dataclass(frozen=True)  # no slots: what controllers ask many times between two rounds is kept
class Guest:
    """One server as it is on the host now.

    :param workload: what libvirt and nova say
    :param process: its process and threads, None when it has none now
    :param ram: guest memory as the last full pass saw it
    :param ram_age_s: seconds since that pass
    :param sampled: node -> share of the sampled pages, newer than ``ram``; empty when not sampled since
    :param problem: why something could not be read, "" when all could
    :param gpus: PCI address -> NUMA node of each device it holds, None where the firmware does not say
    """

    workload: Workload
    process: Process | None = None
    ram: tuple[RamRange, ...] = ()
    ram_age_s: float = 0.0
    sampled: Shares = field(default_factory=dict)
    problem: str = ""
    gpus: Mapping[str, int | None] = field(default_factory=dict)

    @cached_property
    def uuid(self) -> str:
        """UUID of the server."""
        return self.workload.uuid

    @property
    def gpu_rows(self) -> list[dict[str, str | int | None]]:
        """Its devices in plain words, for the journal and the console."""
        return [{"address": address, "node": node} for address, node in self.gpus.items()]

    @cached_property
    def resident_mb(self) -> Mapping[int, float]:
        """Node -> MiB of guest memory there, by the last full pass."""
        total: dict[int, float] = {}
        for found in self.ram:
            for node, kib in found.resident_kb:
                total[node] = total.get(node, 0.0) + kib / 1024
        return total

    @property
    def memory_shares(self) -> dict[int, float]:
        """Node -> share of the resident guest memory, by the newest look; empty when unknown."""
        if self.sampled:
            return dict(self.sampled)
        resident = self.resident_mb
        total = sum(resident.values())
        return {node: mb / total for node, mb in sorted(resident.items())} if total else {}

    @cached_property
    def vcpu_cpus(self) -> Mapping[int, frozenset[int]]:
        """vCPU -> CPUs its thread may run on now."""
        threads = self.process.threads if self.process else ()
        return {t.vcpu: cpus.seen(t.cpus) for t in threads if t.role == Role.VCPU}

    @cached_property
    def vcpu_threads(self) -> tuple[int, ...]:
        """Ids of its vCPUs' threads."""
        threads = self.process.threads if self.process else ()
        return tuple(thread.tid for thread in threads if thread.role == Role.VCPU)

    @property
    def blocked_by(self) -> str:
        """Why nothing of it may be touched now, "" when it may."""
        if self.workload.activity is not Activity.RUNNING:
            return (
                "it is paused, being started or migrating in: it is left alone until it is resumed"
            )
        if self.process is None:
            return self.problem or "it has no process"
        return ""

    @property
    def pages_stay(self) -> str:
        """Why its pages must not be moved now, "" when they may."""
        return self.workload.domain.immovable or ""


@dataclass(frozen=True, slots=True)
class Observation:
    """The host at one moment.

    :param topology: what is where
    :param guests: all domains, by UUID
    :param free_mb: NUMA node -> free memory, MiB
    """

    topology: HostTopology
    guests: tuple[Guest, ...] = ()
    free_mb: Mapping[int, int] = field(default_factory=dict)
    _by_uuid: Mapping[str, Guest] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_uuid", {guest.uuid: guest for guest in self.guests})

    def get(self, uuid: str) -> Guest | None:
        """Return a guest, None when there is none."""
        return self._by_uuid.get(uuid)


@dataclass(frozen=True, slots=True)
class AssignmentReasons:
    """Why a server shall be where it is, in the parts that controllers replace as a whole.

    :param place: of its nodes and CPUs
    :param partition: of its place in resource control
    :param memory: of the shares of its memory
    :param objective: of what its objectives or those of its neighbours changed
    """

    place: tuple[Reason, ...] = ()
    partition: tuple[Reason, ...] = ()
    memory: tuple[Reason, ...] = ()
    objective: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where one server shall be.

    :param uuid: of the server
    :param nodes: its home nodes, ascending
    :param vcpu_cpus: vCPU -> CPUs its thread shall run on; a vCPU that is missing is left as it is
    :param emulator_cpus: CPUs of its other threads; None leaves them as they are
    :param memory_shares: node -> share of its memory; None leaves its pages where they are
    :param bound: its memory is bound cell by cell by nova: each range belongs to the node of its policy, and
        ``memory_shares`` is the sum over the cells
    :param partition: what it wants of resource control; None: the default group
    :param why: the reasons, part by part
    """

    uuid: str
    nodes: tuple[int, ...] = ()
    vcpu_cpus: Mapping[int, frozenset[int]] = field(default_factory=dict)
    emulator_cpus: frozenset[int] | None = None
    memory_shares: Shares | None = None
    bound: bool = False
    partition: PartitionRequest | None = None
    why: AssignmentReasons = field(default_factory=AssignmentReasons)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """All reasons, in the order in which people read them."""
        why = self.why
        return (*why.place, *why.partition, *why.memory, *why.objective)


@dataclass(frozen=True)  # no slots: the index is made when it is first needed, and kept
class Decision:
    """Desired assignments of all managed servers.

    :param assignments: by UUID
    :param unplaced: servers that cannot be placed, with the reasons
    """

    assignments: tuple[Assignment, ...] = ()
    unplaced: Mapping[str, tuple[Reason, ...]] = field(default_factory=dict)

    def get(self, uuid: str) -> Assignment | None:
        """Return the assignment of a server, None when it has none."""
        return self._by_uuid.get(uuid)

    @cached_property
    def _by_uuid(self) -> Mapping[str, Assignment]:
        return {found.uuid: found for found in reversed(self.assignments)}

    def without(self, servers: Container[str]) -> "Decision":
        """Return it without some servers: they stay as they are."""
        kept = tuple(found for found in self.assignments if found.uuid not in servers)
        return self if len(kept) == len(self.assignments) else replace(self, assignments=kept)


@dataclass(frozen=True, slots=True)
class Difference:
    """What the executor has to do for one server.

    :param pins: threads whose affinity differs, with what it shall be
    :param targets: ranges whose pages shall move, with the shares
    :param misplaced: largest difference between desired and actual share over the nodes
    """

    pins: tuple[Pin, ...] = ()
    targets: tuple[Target, ...] = ()
    misplaced: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one round did for one server.

    :param pinned: threads pinned
    :param moved_kb: memory moved, KiB
    :param remaining_kb: memory still to move, KiB
    :param stuck_kb: memory that the kernel did not move and that is left alone for now, KiB
    :param place: where it is in resource control, None when not looked at
    :param problems: what failed
    """

    pinned: int = 0
    moved_kb: int = 0
    remaining_kb: int = 0
    stuck_kb: int = 0
    place: PartitionPlace | None = None
    problems: tuple[str, ...] = ()

    @property
    def touched(self) -> bool:
        """The server is no longer as it was seen, or what it is like is not known."""
        return bool(self.pinned or self.moved_kb or self.remaining_kb or self.problems)


def check(desired: Assignment, guest: Guest, topology: HostTopology) -> None:
    """Refuse an assignment that would leave what nova accounted for the server.

    :raises InvalidValueError: it names the server, the value and what is allowed
    """
    domain = guest.workload.domain
    online = frozenset(topology.cpus)
    for vcpu, chosen in desired.vcpu_cpus.items():
        allowed = domain.vcpu_pins.get(vcpu, domain.vcpu_cpuset)
        allowed = online if allowed is None else allowed & online
        if not chosen or not chosen <= allowed:
            where = f"pin of vCPU {vcpu} of server {desired.uuid}"
            raise InvalidValueError(where, cpus.text(chosen), f"CPUs of {cpus.text(allowed)}")
    for node, share in (desired.memory_shares or {}).items():
        if node not in topology.node_ids or share < 0:
            where = f"memory share of server {desired.uuid}"
            raise InvalidValueError(where, {node: share}, f"nodes {list(topology.node_ids)}")


def difference(desired: Assignment, guest: Guest, dead_band: float) -> Difference:
    """List what differs between desired and actual.

    :param dead_band: share of the memory that may be elsewhere before anything is moved
    """
    if guest.process is None:
        return Difference()
    pins = tuple(_pins(desired, guest.process))
    targets, misplaced = _targets(desired, guest)
    tolerated = max(dead_band, _rounding(targets, guest))
    return Difference(pins, targets if misplaced > tolerated else (), misplaced)


def _rounding(targets: Iterable[Target], guest: Guest) -> float:
    """Return the share of the memory that cannot be divided any further: a huge page per spread range."""
    spread = sum(sum(share > 0 for _, share in target.shares) > 1 for target in targets)
    return spread * huge_page_share(guest.resident_mb)


def _pins(desired: Assignment, process: Process) -> Iterable[Pin]:
    for thread in process.threads:
        vcpu = thread.role == Role.VCPU
        chosen = desired.vcpu_cpus.get(thread.vcpu) if vcpu else desired.emulator_cpus
        if chosen is not None and cpus.seen(thread.cpus) != chosen:
            yield Pin(thread.tid, cpus.text(chosen))


def _targets(desired: Assignment, guest: Guest) -> tuple[tuple[Target, ...], float]:
    if desired.memory_shares is None or not guest.ram or guest.process is None:
        return (), 0.0
    allowed = cpus.seen(guest.process.mems)
    if desired.bound:
        # Only a range that nova bound to one node has one right place; several nodes were nova's own choice.
        found = [(ram, {ram.bound[0]: 1.0}) for ram in guest.ram if len(ram.bound) == 1]
        errors = (share_error(there, to) for ram, to in found if (there := _range_shares(ram)))
        error = max(errors, default=0.0)
    else:
        found = [(ram, dict(desired.memory_shares)) for ram in guest.ram]
        error = (
            share_error(guest.memory_shares, desired.memory_shares) if guest.memory_shares else 0.0
        )
    targets = tuple(
        Target(ram.start, ram.end, tuple(sorted(shares.items())))
        for ram, shares in found
        if set(shares) <= allowed
    )
    return (targets, error) if targets else ((), error)


def _range_shares(found: RamRange) -> dict[int, float]:
    total = sum(kib for _, kib in found.resident_kb)
    return {node: kib / total for node, kib in found.resident_kb} if total else {}
