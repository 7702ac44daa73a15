# SPDX-License-Identifier: Apache-2.0
"""The agent on the host that :mod:`benchmarks.agent_world` has built, and what it costs.

``python -m benchmarks.agent_process FOLDER SECONDS`` prints one JSON object: rounds of each kind taken one after the
other, then the loop with its own intervals for so many seconds. CPU time is that of the whole process: loop, libvirt's
events, the thread that talks to Placement, and libvirt's test driver, which on a host works in libvirtd.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.opens import opened
from host_agent.conf import configuration
from host_agent.conf.paths import HostPaths
from host_agent.control import balancing_store
from host_agent.control.agent import Agent
from host_agent.control.assembly import agent as assembly
from host_agent.control.assembly.observer import topology_reader
from host_agent.decide.pages.bwap import BwapPhase
from host_agent.machine.libvirt import LibvirtSource
from host_agent.machine.privileged.kernel_threads import KernelThreads
from host_agent.machine.privileged.operations import HostOperations
from host_agent.model.process import (
    MoveLimits,
    MoveReport,
    Pin,
    PinFailure,
    Process,
    RamRange,
    Target,
)
from host_agent.model.round import Round

KERNEL_THREADS = "kernel_threads"
"""Folder with what an old kernel's /proc shows of kthreadd's children."""

ROUNDS = {"full": 3, "event": 10, "sampled": 30, "again": 30}
_SETTLE_ROUNDS = 200


@dataclass
class _Remembered:
    """What this machine cannot hold: CPUs by thread, share of the memory by node."""

    shares: dict[int, float]
    bound: bool
    cpus: dict[int, str] = field(default_factory=dict)


class RememberingOperations(HostOperations):
    """The real reads of processes, threads and page tables; affinities and pages per node are remembered.

    :param nodes: nodes of the modelled machine
    :param where: UUID -> (node that its memory is on at first, whether nova bound it there)
    :param kernel_threads: in place of proc's, where there is such a folder
    """

    def __init__(
        self,
        paths: HostPaths,
        nodes: Sequence[int],
        where: dict[str, tuple[int, bool]],
        kernel_threads: Path,
    ) -> None:
        super().__init__(paths)
        if kernel_threads.exists():
            self._kernel_threads = KernelThreads(kernel_threads)
        self._mems = ",".join(map(str, nodes))
        self._known = {
            uuid: _Remembered({node: 1.0}, bound) for uuid, (node, bound) in where.items()
        }

    def process(self, uuid: str) -> Process:
        """Read the process; its threads are on the remembered CPUs."""
        known = self._known[uuid]
        read = super().process(uuid)
        threads = (t._replace(cpus=known.cpus.get(t.tid, t.cpus)) for t in read.threads)
        return read._replace(mems=self._mems, threads=tuple(threads))

    def guest_ram(self, uuid: str) -> tuple[RamRange, ...]:
        """Walk the page tables; the pages are dealt to the remembered nodes."""
        return tuple(self._dealt(uuid, found) for found in super().guest_ram(uuid))

    def _dealt(self, uuid: str, found: RamRange) -> RamRange:
        known = self._known[uuid]
        total = sum(kib for _, kib in found.resident_kb)
        dealt = tuple(sorted((node, round(total * part)) for node, part in known.shares.items()))
        return found._replace(bound=tuple(known.shares) if known.bound else (), resident_kb=dealt)

    def sample(
        self, uuid: str, ranges: Sequence[tuple[int, int]], pages: int
    ) -> tuple[tuple[int, int], ...]:
        """Look up pages; they are dealt to the remembered nodes."""
        total = sum(count for _, count in super().sample(uuid, ranges, pages))
        shares = self._known[uuid].shares
        return tuple(sorted((node, round(total * part)) for node, part in shares.items()))

    def pin(self, uuid: str, pins: Sequence[Pin]) -> tuple[PinFailure, ...]:
        """Remember the CPUs."""
        self._known[uuid].cpus.update({pin.tid: pin.cpus for pin in pins})
        return ()

    def move_memory(self, uuid: str, targets: Sequence[Target], limits: MoveLimits) -> MoveReport:
        """Remember the shares; all pages arrive at once."""
        self._known[uuid].shares = {node: part for node, part in targets[0].shares if part > 0}
        return MoveReport(1, 0, 0, 1, 0.0, "")


class TestDriver(LibvirtSource):
    """libvirt's test driver, which has no jobs and cannot be asked for them."""

    def migrating(self, uuid: str) -> bool:
        """No domain migrates."""
        return False


def rounds(count: int, work: Callable[[], Round | None]) -> dict[str, list[float]]:
    """Do it so many times; return wall and CPU time of each, milliseconds."""
    wall, cpu = [], []
    for _ in range(count):
        begun, used = time.perf_counter(), time.process_time()
        work()
        wall.append((time.perf_counter() - begun) * 1e3)
        cpu.append((time.process_time() - used) * 1e3)
    return {"wall_ms": wall, "cpu_ms": cpu}


def settle(agent: Agent) -> Round:
    """Take rounds until nothing is left to do."""
    for _ in range(_SETTLE_ROUNDS):
        done = agent.round(full=False, relist=True)
        if not done.unfinished and not any(o.pinned or o.moved_kb for o in done.outcomes.values()):
            return done
    raise RuntimeError(f"the agent still has something to do after {_SETTLE_ROUNDS} rounds")


def opens(count: int, work: Callable[[], object]) -> float:
    """Do it so many times; return the files and folders opened each time."""
    with opened() as found:
        for _ in range(count):
            work()
    return len(found) / count


def loop_cpu(parts: assembly.Parts, seconds: float) -> float:
    """Run the loop as the daemon does; return its CPU time as a share of the time."""
    stop = threading.Event()

    def end() -> None:
        stop.set()
        parts.source.wake()

    timer = threading.Timer(seconds, end)
    begun, used = time.monotonic(), time.process_time()
    timer.start()
    parts.agent.run(stop)
    return (time.process_time() - used) / (time.monotonic() - begun)


def wait_cpu(parts: assembly.Parts, seconds: float) -> float:
    """Wait for events that do not come; return the CPU time as a share of the time."""
    begun, used = time.monotonic(), time.process_time()
    while (left := begun + seconds - time.monotonic()) > 0:
        parts.source.wait(left)
    return (time.process_time() - used) / seconds


def status_mb(name: str) -> float:
    """A figure of ``/proc/self/status`` in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields[name].split()[0]) / 1024


def searched(state: Path) -> int:
    """Return for how many servers a search runs or has measured: one that saw at once that its server uses little
    memory has ended before it began.

    :param state: state file of NUMA balancing, which keeps searches that have begun
    """
    known = balancing_store.store(state).load()
    searches = (memory.search for memory in known.memory.values()) if known else ()
    return sum(
        s is not None and (s.phase is not BwapPhase.FOUND or s.best is not None) for s in searches
    )


def measure(folder: Path, seconds: float) -> dict[str, object]:
    """Assemble the agent over the host in ``folder`` and measure it."""
    conf = configuration.load([f"--config-file={folder}/agent.conf"])
    where = {
        server["uuid"]: (server["node"], server["bound"])
        for server in json.loads((folder / "servers.json").read_text())
    }
    paths = conf.paths
    nodes = topology_reader(conf)().node_ids
    parts = assembly.build(
        conf,
        out=sys.stderr.write,
        source=TestDriver(conf.libvirt_host.uri, conf.libvirt_host.timeout_s),
        privileged=RememberingOperations(paths, nodes, where, folder / KERNEL_THREADS),
    )
    agent = parts.agent
    if parts.publisher is not None:
        parts.publisher.look()  # an agent that has never read the mode in Placement only observes
        parts.publisher.start()
    last = settle(agent)
    kinds: dict[str, Callable[[], Round | None]] = {
        "full": lambda: agent.round(full=True, relist=True),
        "event": lambda: agent.round(full=False, relist=True),
        "sampled": lambda: agent.round(full=False, relist=False),
        "again": agent.reapply,
    }
    measured = {name: rounds(ROUNDS[name], work) for name, work in kinds.items()}
    opens_per_round = opens(ROUNDS["sampled"], kinds["sampled"])
    waiting = wait_cpu(parts, seconds / 10)
    share = loop_cpu(parts, seconds)
    return {
        "managed": len(last.decision.assignments),
        "problems": sorted({p for o in last.outcomes.values() for p in o.problems}),
        "searched": searched(paths.balancing),
        "kinds": measured,
        "opens_per_round": opens_per_round,
        "cpu_percent": 100 * share,
        "wait_cpu_percent": 100 * waiting,
        "rss_mb": status_mb("VmRSS"),
        "rss_peak_mb": status_mb("VmHWM"),
    }


def main() -> int:
    """Measure and print."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    print(json.dumps(measure(Path(sys.argv[1]), float(sys.argv[2]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
