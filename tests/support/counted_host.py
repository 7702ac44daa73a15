# SPDX-License-Identifier: Apache-2.0
"""A compute host that counts what is written to it and to the agent's files, and kills the agent at one of the writes,
or has no room for files from one of them on.

Pins and pages are the fake host's; groups are in the kernel's model, vCPUs' quotas in files, and both are written by
the privileged operations themselves. ``kill -9`` is an exception that no guard of the agent catches; whatever it does
on its way out is not done either.
"""

import errno
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, cast

import pytest

from emulation import libvirt_state
from emulation.hosts import four_nodes
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import Shape
from emulation.kernel.threads import ThreadTable
from emulation.servers import Server
from host_agent.apply.executor import Executor, RoundHooks
from host_agent.apply.partitions import Partitions
from host_agent.apply.report import ActionReport
from host_agent.apply.resource_control import LevelWriter, ResourceControl
from host_agent.conf.options import Options
from host_agent.conf.paths import HostPaths
from host_agent.control.agent import Agent, AgentFiles, Listener, Listeners, Stages
from host_agent.control.journal import FileJournal
from host_agent.control.pipeline import Refiner, Refiners
from host_agent.control.rollout import Rollout
from host_agent.control.takeover import Takeover
from host_agent.machine.privileged import partitions
from host_agent.machine.privileged.dead_man_switch import DeadManSwitch
from host_agent.machine.privileged.operations import HostOperations
from host_agent.machine.rdt.backend import our_threads
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.machine.rdt.writer import GroupWriter
from host_agent.model import cpus
from host_agent.model.journal import ActionJournal
from host_agent.model.levels import FULL
from host_agent.model.partition import Joined, RdtChange, RdtState
from host_agent.model.process import (
    GroupLevel,
    MoveLimits,
    MoveReport,
    Pin,
    PinFailure,
    QuotaReport,
    Target,
)
from host_agent.model.rdt import Schemata
from host_agent.observe.machine_files import MachineFiles
from host_agent.observe.snapshot import Observer
from host_agent.observe.topology.rdt import read_rdt
from placement_traits.errors import ServiceUnavailableError
from tests.support.booted import boot
from tests.support.fake_host import FakeHost

NODES = 4
RELEASE_AFTER_S = 60.0
QUOTA = "cpu.max"


class Killed(BaseException):
    """The agent and its helper ended here."""


class Victim(Enum):
    """Which processes end."""

    BOTH = "both"
    AGENT = "the agent alone"
    HELPER = "the helper alone"


class Writes:
    """Counts writes to the host and to files.

    :ivar done: writes so far
    :ivar last: so many are let through; who is dead then writes nothing more
    :ivar victim: who is killed. An agent dies alone when it next writes or the helper answers, a helper alone when it
        next writes
    :ivar in_helper: the helper writes
    :ivar room: so many to files are let through
    """

    def __init__(self) -> None:
        self.done = 0
        self.last = self.room = math.inf
        self.victim = Victim.BOTH
        self.in_helper = False

    def step(self) -> None:
        """Write to the host."""
        mine = self.victim is Victim.BOTH or (self.victim is Victim.HELPER) == self.in_helper
        if mine and self.done >= self.last:
            raise Killed
        self.done += 1

    def answered(self) -> None:
        """Let the helper answer."""
        if self.victim is Victim.AGENT and self.done >= self.last:
            raise Killed

    def file_step(self) -> None:
        """Write to a file."""
        self.step()
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def kill_after(self, last: float, victim: Victim = Victim.BOTH) -> Iterator[None]:
        """Let so many writes through, from here on; nobody is dead afterwards."""
        self.done, self.last, self.victim = 0, last, victim
        try:
            yield
        except Killed:
            pass
        finally:
            self.last = math.inf

    @contextmanager
    def full_after(self, room: float) -> Iterator[None]:
        """Let so many writes to files through, from here on; there is room again afterwards."""
        self.room = room
        try:
            yield
        finally:
            self.room = math.inf


def counted_files(writes: Writes, patch: pytest.MonkeyPatch) -> None:
    """Count what changes files: to create, to write, to make durable, to rename, to remove.

    Opening a file of the kernel does not change it, and its disk is never full: there open and write are one.
    """

    def counted(owner: Any, name: str, step: Callable[..., None]) -> None:
        call = getattr(owner, name)

        def after_step(*arguments: Any, **named: Any) -> Any:
            step(*arguments)
            return call(*arguments, **named)

        patch.setattr(owner, name, after_step)

    def opened(path: object, flags: int, *_mode: int) -> None:
        if os.path.basename(str(path)) == QUOTA:
            writes.step()
        elif flags & (os.O_CREAT | os.O_TRUNC):
            writes.file_step()

    def written(descriptor: int, _data: bytes) -> None:
        if os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")) != QUOTA:
            writes.file_step()

    patch.setattr(os, "fsync", lambda _descriptor: None)  # the machine under the tests goes on
    counted(os, "open", opened)
    counted(os, "write", written)
    counted(os, "fsync", lambda _descriptor: writes.file_step())
    for name in ("replace", "unlink"):
        counted(Path, name, lambda *_arguments: writes.step())


class CountedTree(ResctrlModel):
    """The kernel's tree; each command is a write."""

    def __init__(self, shape: Shape, threads: ThreadTable, writes: Writes) -> None:
        super().__init__(shape, threads=threads)
        self._writes = writes

    def write(self, path: str, data: str, writer: int = 0) -> None:
        self._writes.step()
        super().write(path, data, writer)

    def mkdir(self, path: str) -> None:
        self._writes.step()
        super().mkdir(path)

    def rmdir(self, path: str) -> None:
        self._writes.step()
        super().rmdir(path)


class CountedHost(FakeHost):
    """The host of four nodes, and the agent on it.

    :param shape: of resource control
    :ivar agent: the one that runs now
    """

    def __init__(
        self, folder: Path, shape: Shape, options: Options, patch: pytest.MonkeyPatch
    ) -> None:
        self.writing = Writes()
        self.folder = folder
        self._options = options
        self._threads = ThreadTable()
        self.tree = CountedTree(shape, self._threads, self.writing)
        self._resctrl = Resctrl(self.tree)
        super().__init__(four_nodes(rdt=read_rdt(self._resctrl)))
        self.paths = HostPaths(
            proc=folder / "proc",
            sys=folder / "sys",
            pid_dir=folder / "pids",
            state=folder / "state",
            helper_state=folder / "helper",
        )
        boot(self.paths.proc)
        (self.paths.proc / "2/task/2").mkdir(parents=True)
        (self.paths.proc / "2/task/2/children").write_text("")
        self.paths.pid_dir.mkdir(mode=0o755)
        self.paths.state.mkdir()
        self.paths.helper_state.mkdir()
        for node in range(NODES):
            path = folder / f"node/node{node}/meminfo"
            path.parent.mkdir(parents=True)
            path.write_text(f"Node {node} MemTotal: 9999999 kB\nNode {node} MemFree: 2048000 kB\n")
        patch.setattr(partitions, "tree", lambda _paths: self._resctrl)
        patch.setattr(
            partitions,
            "_writer",
            lambda paths, tree: GroupWriter(tree, proc=str(paths.proc), limbo_wait_s=0),
        )
        patch.setattr(os, "pidfd_open", lambda _pid: os.eventfd(0))
        counted_files(self.writing, patch)
        self._seconds = 0.0
        self.start()

    def start(self, victim: Victim = Victim.BOTH) -> None:
        """Start again what was killed, when this host is made the agent and its helper."""
        if victim is not Victim.AGENT:
            self._start_helper()
        if victim is not Victim.HELPER:
            self._start_agent()

    def _start_helper(self) -> None:
        self._operations = HostOperations(self.paths, release_after_s=RELEASE_AFTER_S)
        self.switch._clock = self.clock
        if self.switch.held:
            self.switch.in_control()  # by this clock

    @property
    def switch(self) -> DeadManSwitch:
        """The helper's end that releases throttles behind an agent that is gone."""
        assert self._operations.dead_man_switch is not None
        return self._operations.dead_man_switch

    def wait_for_the_dead(self) -> None:
        """Let the helper wait until it takes the agent for dead."""
        self._seconds += 2 * RELEASE_AFTER_S
        self.switch.turn()

    def throttled(self) -> set[str]:
        """Titles of servers that have not all bandwidth, or not all time of their CPUs."""
        found = set()
        for title, had in self.picture().items():
            schemata, quotas = cast("tuple[dict[str, list[int]], list[str]]", had[2:])
            levels = schemata.get("MB", [])
            if any(level < FULL for level in levels) or not all(
                q.startswith("max") for q in quotas
            ):
                found.add(title)
        return found

    def _start_agent(self) -> None:
        journal = FileJournal(self.paths.journal)
        observer = Observer(
            self,
            self,
            MachineFiles(
                lambda: self.topology,
                self.folder / "node",
                device_root=self.folder / "pci",
                online_cpus=self.folder / "online",
            ),
        )
        options = self._options
        takeover = Takeover(options, journal, lambda: our_threads(self._resctrl))
        rollout = Rollout(options, file=self.paths.rollout, takeover=takeover)
        report = ActionReport(journal, lambda _action, _result: None)
        refiners, levels = self.controllers(journal)
        control = ResourceControl(Partitions(self, options.rdt), self, report, options.rdt, levels)
        hooks = RoundHooks(self.migrating, observer.moved)
        executor = Executor(self, control, report, options, hooks)
        self.agent = Agent(
            Stages(self, observer, executor, Refiners(refiners)),
            options,
            AgentFiles(self.paths.home_nodes, self.paths.paused),
            Listeners((rollout, *(one for one in refiners if isinstance(one, Listener)))),
            rollout=rollout,
            write=False,
            clock=self.clock,
        )

    def controllers(
        self, _journal: ActionJournal
    ) -> tuple[tuple[Refiner, ...], LevelWriter | None]:
        """The run-time controllers of a new agent, and the one that writes levels itself."""
        return (), None

    def clock(self) -> float:
        """Seconds, which only tests let pass."""
        return self._seconds

    def rounds(self, count: int) -> None:
        """Let the agent take so many turns."""
        for _round in range(count):
            self.agent.round(full=True, relist=True)

    def boot(self, server: Server, *arguments: Any, **named: Any) -> Server:
        """Start a server: its process, what libvirt writes of it, and the control groups of its vCPUs."""
        super().boot(server, *arguments, **named)
        threads = self.running[server.uuid].process.threads
        pid = threads[0].tid
        libvirt_state.write(self.paths.pid_dir, f"instance-{pid}", server.uuid, pid)
        base = self.paths.proc / str(pid)
        for thread in threads:
            self._threads.spawn(thread.tid, 0 if thread.tid == pid else pid)
            task = base / f"task/{thread.tid}"
            task.mkdir(parents=True)
            (task / "stat").write_text(f"{thread.tid} ({thread.name}) S {' '.join(['7'] * 40)}")
            (task / "status").write_text(f"Name:\t{thread.name}\nCpus_allowed_list:\t0\n")
            group = f"/machine.slice/qemu-{pid}/libvirt/vcpu{thread.vcpu}"
            (task / "cgroup").write_text(f"0::{group}\n")
            self._quota(pid, thread.vcpu).parent.mkdir(parents=True)
            self._quota(pid, thread.vcpu).write_text("max 100000\n")
        for name in ("stat", "status"):
            (base / name).write_text((base / f"task/{pid}" / name).read_text())
        (base / "cmdline").write_bytes(f"qemu\0-uuid\0{server.uuid}\0".encode())
        return server

    def _quota(self, pid: int, vcpu: int) -> Path:
        folder = self.paths.sys / f"fs/cgroup/machine.slice/qemu-{pid}/libvirt/vcpu{vcpu}"
        return folder / QUOTA

    def delete(self, server: Server) -> None:
        """Stop a server."""
        threads = self.running[server.uuid].process.threads
        pid = threads[0].tid
        super().delete(server)
        for thread in threads:
            self._threads.end(thread.tid)
        for file in self.paths.pid_dir.glob(f"instance-{pid}.*"):
            os.remove(file)

    def group_of(self, server: Server) -> str:
        """The control group that holds all threads of a server; "" is root's."""
        tids = {thread.tid for thread in self.running[server.uuid].process.threads}
        (found,) = (n for n in self._resctrl.control_groups() if tids <= self._resctrl.tasks(n))
        return found

    def guarantee(self, server: Server) -> tuple[object, ...]:
        """What a server has: CPUs and memory, its ways and level in the L3 domain of its node, CPU time."""
        found = self.running[server.uuid]
        where = [next(iter(cpus.parse(text))) // 2 for text in self.vcpu_cpus(server)]
        schemata = self._resctrl.schemata(self.group_of(server))
        pid = found.process.threads[0].tid
        return (
            tuple(thread.cpus for thread in found.process.threads),
            self.memory_mb(server),
            {name: [values[l3] for l3 in where] for name, values in schemata.items()},
            [self._quota(pid, thread.vcpu).read_text() for thread in found.process.threads],
        )

    def intruders(self, server: Server) -> list[str]:
        """Other groups with threads and with a way of a server in the L3 domain of its node."""
        l3 = next(iter(cpus.parse(self.vcpu_cpus(server)[0]))) // 2
        own = self.group_of(server)
        masks: dict[str, Schemata] = {
            name: self._resctrl.schemata(name) for name in self._resctrl.control_groups()
        }
        return [
            name
            for name, found in masks.items()
            if name != own and found["L3"][l3] & masks[own]["L3"][l3] and self._resctrl.tasks(name)
        ]

    def picture(self) -> dict[str, tuple[object, ...]]:
        """Everything that a fresh agent must bring about again."""
        return {found.server.title: self.guarantee(found.server) for found in self.running.values()}

    # -- privileged operations -----------------------------------------------------------------------------------------

    @contextmanager
    def _helper(self) -> Iterator[HostOperations]:
        """What the helper carries out; one that is killed alone is started again by its socket."""
        self.writing.in_helper = True
        try:
            yield self._operations
        except Killed:
            if self.writing.victim is not Victim.HELPER:
                raise
            self.writing.last = math.inf
            self._start_helper()
            raise ServiceUnavailableError("The helper does not answer: it has ended.") from None
        finally:
            self.writing.in_helper = False
        self.writing.answered()

    def pin(self, uuid: str, pins: Sequence[Pin]) -> tuple[PinFailure, ...]:
        with self._helper():
            for pin in pins:
                self.writing.step()
                super().pin(uuid, [pin])
        return ()

    def move_memory(self, uuid: str, targets: Sequence[Target], limits: MoveLimits) -> MoveReport:
        with self._helper():
            self.writing.step()
            return super().move_memory(uuid, targets, limits)

    def rdt_state(self) -> RdtState:
        with self._helper() as helper:
            return helper.rdt_state()

    def apply_partitions(self, change: RdtChange, write: bool) -> tuple[Joined, ...]:
        with self._helper() as helper:
            return helper.apply_partitions(change, write)

    def limit_cpu_time(self, levels: Sequence[tuple[str, int]], write: bool) -> QuotaReport:
        with self._helper() as helper:
            return helper.limit_cpu_time(levels, write)

    def throttle(self, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
        with self._helper() as helper:
            return helper.throttle(levels)
