# SPDX-License-Identifier: Apache-2.0
"""A compute host as small as the agent's two seams: libvirt's domains, and the privileged operations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from emulation.servers import Server
from host_agent.machine.libvirt import ListedDomain
from host_agent.machine.privileged.processes import ProcessGoneError
from host_agent.machine.rdt.errors import ResctrlUnavailableError
from host_agent.model import cpus
from host_agent.model.pages import apportion
from host_agent.model.partition import (
    PartitionPlace,
    PartitionReport,
    PartitionRequest,
    RdtState,
    Write,
    WriteKind,
)
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
    Role,
    Target,
    Thread,
    ThreadCount,
)
from host_agent.model.workload import Activity
from placement_traits.errors import NumaExtError, ServiceUnavailableError
from placement_traits.reason import Reason
from placement_traits.topology import HostTopology

_START = 0x7F0000000000


@dataclass
class _Running:
    server: Server
    process: Process
    memory_kb: dict[int, int]
    activity: Activity
    bound: tuple[int, ...]


@dataclass
class FakeHost:
    """Domains with threads and memory per node; every write is recorded in ``writes``.

    :ivar broken: server UUID -> error that every access to it raises
    :ivar libvirt_down: libvirt does not answer
    :ivar stubborn: threads that do not go where they are put
    :ivar sampled: what every sample finds (node -> pages); None: the truth
    :ivar against: what keeps latency-critical servers from being exclusive, "" for nothing
    :ivar waited: told the seconds of each wait for an event; a clock that goes on, for example
    :ivar move_kb: memory that one call of ``move_memory`` can move, KiB
    :ivar mover_tells: it reports where it has left the pages
    """

    topology: HostTopology
    running: dict[str, _Running] = field(default_factory=dict)
    writes: list[tuple[str, object]] = field(default_factory=list)
    requests: tuple[PartitionRequest, ...] = ()
    partition_calls: int = 0
    cpu_levels: dict[str, int] = field(default_factory=dict)
    cpu_time_problem: str = ""
    control_reports: int = 0
    fired: int = 0
    broken: dict[str, NumaExtError] = field(default_factory=dict)
    libvirt_down: bool = False
    stubborn: set[int] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    move_kb: int = 1 << 40
    mover_tells: bool = True
    sampled: dict[int, int] | None = None
    against: str = ""
    listings: int = 0
    waits: list[float] = field(default_factory=list)
    waited: Callable[[float], None] = lambda _seconds: None
    counts: tuple[ThreadCount, ...] = ()
    counts_stay: bool = False
    counted: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    count_problem: str = ""
    libvirt_counts: dict[str, dict[str, int]] = field(default_factory=dict)
    _tid: int = 1000

    def boot(
        self,
        server: Server,
        memory: dict[int, int] | None = None,
        activity: Activity = Activity.RUNNING,
    ) -> Server:
        """Start a server whose memory is where ``memory`` says (node -> MiB), else on its own or node 0."""
        self._tid += 100
        vcpu_cpus = [str(cpu) for cpu in server.cpus] or [
            server.shared or cpus.text(self.topology.cpus)
        ] * server.vcpus
        emulator = ",".join(map(str, server.cpus)) or cpus.text(self.topology.cpus)
        threads = [Thread(self._tid, Role.EMULATOR, -1, "qemu", emulator)]
        threads += [
            Thread(self._tid + 1 + n, Role.VCPU, n, f"CPU {n}/TCG", allowed)
            for n, allowed in enumerate(vcpu_cpus)
        ]
        mems = str(server.node) if server.cpus else cpus.text(self.topology.node_ids)
        where = memory or {server.node: server.memory_mb}
        self.running[server.uuid] = _Running(
            server,
            Process(self._tid, 1, mems, tuple(threads)),
            {node: mb * 1024 for node, mb in where.items()},
            activity,
            (server.node,) if server.cpus else (),
        )
        return server

    def delete(self, server: Server) -> None:
        """Stop a server."""
        del self.running[server.uuid]

    def memory_mb(self, server: Server) -> dict[int, int]:
        """Node -> MiB."""
        return {n: kb // 1024 for n, kb in self.running[server.uuid].memory_kb.items() if kb}

    def vcpu_cpus(self, server: Server) -> list[str]:
        """CPUs of each vCPU thread."""
        threads = self.running[server.uuid].process.threads
        return [thread.cpus for thread in threads if thread.role == Role.VCPU]

    # -- libvirt -------------------------------------------------------------------------------------------------------

    def hostname(self) -> str:
        return "compute1"

    def domains(self) -> tuple[ListedDomain, ...]:
        self.listings += 1
        if self.libvirt_down:
            raise ServiceUnavailableError("libvirt does not answer: test")
        return tuple(
            ListedDomain(uuid, found.server.xml, found.activity)
            for uuid, found in self.running.items()
        )

    def migrating(self, uuid: str) -> bool:
        return uuid in self.jobs

    def perf_totals(self) -> dict[str, dict[str, int]]:
        return self.libvirt_counts

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.waited(seconds)
        return False

    def has_events(self) -> bool:
        return False

    def wake(self) -> None:
        pass

    def end(self) -> None:
        pass

    # -- privileged operations -----------------------------------------------------------------------------------------

    def _find(self, uuid: str) -> _Running:
        if uuid in self.broken:
            raise self.broken[uuid]
        if uuid not in self.running:
            raise ProcessGoneError(f"no process runs domain {uuid}")
        return self.running[uuid]

    def process(self, uuid: str) -> Process:
        return self._find(uuid).process

    def guest_ram(self, uuid: str) -> tuple[RamRange, ...]:
        return _ram(self._find(uuid))

    def look(
        self, servers: Sequence[tuple[str, Sequence[tuple[int, int]]]], pages: int
    ) -> tuple[Look, ...]:
        return tuple(self._looked_at(uuid, bool(ranges)) for uuid, ranges in servers)

    def _looked_at(self, uuid: str, sampled: bool) -> Look:
        try:
            process = self.process(uuid)
        except (NumaExtError, OSError) as error:
            return Look(problem=str(error))
        found = self._find(uuid).memory_kb if self.sampled is None else self.sampled
        return Look(process, tuple(sorted(found.items())) if sampled else ())

    def pin(self, uuid: str, pins: Sequence[Pin]) -> tuple[PinFailure, ...]:
        found = self._find(uuid)
        self.writes.append(("pin", tuple(pins)))
        desired = {pin.tid: pin.cpus for pin in pins if pin.tid not in self.stubborn}
        threads = tuple(t._replace(cpus=desired.get(t.tid, t.cpus)) for t in found.process.threads)
        found.process = found.process._replace(threads=threads)
        return ()

    def move_memory(self, uuid: str, targets: Sequence[Target], limits: MoveLimits) -> MoveReport:
        found = self._find(uuid)
        self.writes.append(("move", uuid))
        total = sum(found.memory_kb.values())
        desired = apportion(total, dict(targets[0].shares))
        left = self.move_kb
        moved = 0
        for node in sorted({*desired, *found.memory_kb}):
            surplus = found.memory_kb.get(node, 0) - desired.get(node, 0)
            for target in sorted(desired):
                lack = desired[target] - found.memory_kb.get(target, 0)
                amount = min(surplus, lack, left)
                if amount > 0:
                    found.memory_kb[node] -= amount
                    found.memory_kb[target] = found.memory_kb.get(target, 0) + amount
                    surplus, left, moved = surplus - amount, left - amount, moved + amount
        remaining = sum(max(0, desired[n] - found.memory_kb.get(n, 0)) for n in desired)
        reported = _ram(found) if self.mover_tells and not remaining else ()
        return MoveReport(moved, remaining, 0, 1, 0.0, "", 0.0, reported)

    def count(self, threads: Sequence[tuple[str, Sequence[int]]], others_stay: bool) -> CountReport:
        self.counts_stay = others_stay
        self.counted = [(uuid, tuple(tids)) for uuid, tids in threads]
        known = tuple(c for c in self.counts if (c.uuid, c.tid) in _pairs(threads))
        return CountReport(known, self.count_problem)

    def partition(self, requests: Sequence[PartitionRequest], *, write: bool) -> PartitionReport:
        self.partition_calls += 1
        places = tuple(
            PartitionPlace(
                w.uuid,
                f"numa_ext-{w.tier}",
                "",
                w.tier == "LC" and not self.against,
                (Reason("foreign_group", self.against),) if w.tier == "LC" and self.against else (),
                0,
                "",
            )
            for w in requests
        )
        writes: tuple[Write, ...] = ()
        if tuple(requests) != self.requests:
            writes = (Write(WriteKind.SCHEMATA, "numa_ext-changed"),)
        if write:
            if writes:
                self.writes.append(("partition", tuple(requests)))
            self.requests = tuple(requests)
        return PartitionReport(writes, places, "")

    def plug_latency_port(self, uuid: str) -> None:
        self.writes.append(("plug", uuid))

    def plug_vsock(self, uuid: str) -> None:
        self.writes.append(("plug vsock", uuid))

    def unplug_vsock(self, uuid: str) -> None:
        self.writes.append(("unplug vsock", uuid))

    def rdt_state(self) -> RdtState:
        raise ResctrlUnavailableError("this host has no resctrl tree: test")

    def throttle(self, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
        self.writes.append(("throttle", tuple(levels)))
        return ("",) * len(levels)

    def limit_cpu_time(self, levels: Sequence[tuple[str, int]], write: bool) -> QuotaReport:
        if self.cpu_time_problem:
            kept = tuple((uuid, self.cpu_time_problem) for uuid in self.cpu_levels)
            return QuotaReport((), kept)
        now = {uuid: level for uuid, level in levels if level < 100}
        writes = tuple(sorted(now.items() ^ self.cpu_levels.items()))
        if write:
            self.cpu_levels = now
        return QuotaReport(tuple(map(str, writes)), ())

    def release_throttles(self, write: bool) -> tuple[str, ...]:
        return ()

    def in_control(self) -> int:
        self.control_reports += 1
        return self.fired

    def graceful_shutdown(self) -> None:
        self.control_reports = 0

    def reset_partitions(self, write: bool) -> tuple[str, ...]:
        return ()


def _ram(found: _Running) -> tuple[RamRange, ...]:
    end = _START + found.server.memory_mb * 1024 * 1024
    return (RamRange(_START, end, found.bound, 4, -1, tuple(sorted(found.memory_kb.items()))),)


def _pairs(threads: Sequence[tuple[str, Sequence[int]]]) -> set[tuple[str, int]]:
    return {(uuid, tid) for uuid, tids in threads for tid in tids}
