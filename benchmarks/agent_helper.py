# SPDX-License-Identifier: Apache-2.0
"""The helper on the host that :mod:`benchmarks.agent_world` has built, in a process of its own as on a compute node.

``python -m benchmarks.agent_helper FOLDER`` serves the configured socket and prints ``ready``. After that each line of
its standard input is a question about itself: ``begin`` counts what is opened from then on, ``end`` prints how many
files and folders that were. ``model`` prints how many readings of counters were made up so far, ``cost`` what one costs
in processor seconds. It ends with its standard input.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.agent_counters import ShownCounters
from benchmarks.opens import opened
from host_agent.conf import configuration
from host_agent.conf.options import Options
from host_agent.conf.paths import HostPaths
from host_agent.control.assembly.observer import topology_reader
from host_agent.machine.privileged import edition, server
from host_agent.machine.privileged.kernel_threads import KernelThreads
from host_agent.machine.privileged.operations import HostOperations
from host_agent.model.process import (
    CountReport,
    Look,
    MoveLimits,
    MoveReport,
    Pin,
    PinFailure,
    Process,
    RamRange,
    Target,
)

KERNEL_THREADS: Final = "kernel_threads"
"""Folder with what an old kernel's /proc shows of kthreadd's children."""

BEGIN, END, MODEL, COST, READY = "begin", "end", "model", "cost", "ready"
_COST_OF: Final = 20_000  # readings
_OF_PROCESS: Final = (
    2  # CPUCLOCK_SCHED in the low bits of a clock's number, and the inverted pid in the others
)
_PID_SHIFT: Final = 3


@dataclass
class _Remembered:
    """What this machine cannot hold: CPUs by thread, share of the memory by node; and its ranges as seen last."""

    shares: dict[int, float]
    bound: bool
    cpus: dict[int, str] = field(default_factory=dict)
    ram: tuple[RamRange, ...] = ()


class RememberingOperations(HostOperations):
    """The real reads of processes, threads and page tables; affinities and pages per node are remembered.

    :param nodes: nodes of the modelled machine
    :param where: UUID -> (node that its memory is on at first, whether nova bound it there)
    :param kernel_threads: in place of proc's, where there is such a folder
    :param release_after_s: see :class:`HostOperations`
    """

    def __init__(
        self,
        paths: HostPaths,
        nodes: Sequence[int],
        where: dict[str, tuple[int, bool]],
        kernel_threads: Path,
        release_after_s: float | None = None,
    ) -> None:
        super().__init__(paths, release_after_s=release_after_s)
        if kernel_threads.exists():
            self._kernel_threads = KernelThreads(kernel_threads)
        self._mems = ",".join(map(str, nodes))
        self._known = {
            uuid: _Remembered({node: 1.0}, bound) for uuid, (node, bound) in where.items()
        }
        self._servers: dict[int, str] = {}
        self._counters.kernel = self.model = ShownCounters(self._together)

    def _together(self, tid: int) -> float:
        return max(self._known[self._servers[tid]].shares.values())

    def count(self, threads: Sequence[tuple[str, Sequence[int]]], others_stay: bool) -> CountReport:
        """Read counters as on a compute host; see :mod:`benchmarks.agent_counters`."""
        self._servers |= {tid: uuid for uuid, tids in threads for tid in tids}
        return super().count(threads, others_stay)

    def process(self, uuid: str) -> Process:
        """Read the process; its threads are on the remembered CPUs."""
        return self._remembered(uuid, super().process(uuid))

    def _remembered(self, uuid: str, read: Process) -> Process:
        known = self._known[uuid]
        threads = (t._replace(cpus=known.cpus.get(t.tid, t.cpus)) for t in read.threads)
        return read._replace(mems=self._mems, threads=tuple(threads))

    def guest_ram(self, uuid: str) -> tuple[RamRange, ...]:
        """Walk the page tables; the pages are dealt to the remembered nodes."""
        known = self._known[uuid]
        known.ram = tuple(self._dealt(uuid, found) for found in super().guest_ram(uuid))
        return known.ram

    def _dealt(self, uuid: str, found: RamRange) -> RamRange:
        known = self._known[uuid]
        total = sum(kib for _, kib in found.resident_kb)
        dealt = tuple(sorted((node, round(total * part)) for node, part in known.shares.items()))
        return found._replace(bound=tuple(known.shares) if known.bound else (), resident_kb=dealt)

    def look(
        self, servers: Sequence[tuple[str, Sequence[tuple[int, int]]]], pages: int
    ) -> tuple[Look, ...]:
        """Look up processes and pages; these are dealt to the remembered nodes."""
        looks = super().look(servers, pages)
        return tuple(
            self._seen(uuid, look) for (uuid, _), look in zip(servers, looks, strict=False)
        )

    def _seen(self, uuid: str, look: Look) -> Look:
        if look.process is None:
            return look
        total = sum(count for _, count in look.pages)
        shares = self._known[uuid].shares
        dealt = tuple(sorted((node, round(total * part)) for node, part in shares.items()))
        return Look(self._remembered(uuid, look.process), dealt)

    def pin(self, uuid: str, pins: Sequence[Pin]) -> tuple[PinFailure, ...]:
        """Remember the CPUs."""
        self._known[uuid].cpus.update({pin.tid: pin.cpus for pin in pins})
        return ()

    def move_memory(self, uuid: str, targets: Sequence[Target], limits: MoveLimits) -> MoveReport:
        """Remember the shares; all pages arrive at once, and where they are is reported as the mover does."""
        known = self._known[uuid]
        known.shares = {node: part for node, part in targets[0].shares if part > 0}
        known.ram = tuple(self._dealt(uuid, found) for found in known.ram)
        return MoveReport(1, 0, 0, 1, 0.0, "", 0.0, known.ram)


def operations(conf: Options, folder: Path) -> RememberingOperations:
    """Return the operations of the host in a folder, with the dead-man switch."""
    where = {
        found["uuid"]: (found["node"], found["bound"])
        for found in json.loads((folder / "servers.json").read_text())
    }
    nodes = topology_reader(conf)().node_ids
    return RememberingOperations(
        conf.paths, nodes, where, folder / KERNEL_THREADS, conf.release_after_s
    )


def process_time(pid: int) -> float:
    """Return the processor time of another process, seconds; source: clock_getcpuclockid(3) of Linux."""
    return time.clock_gettime(~pid << _PID_SHIFT | _OF_PROCESS)


def main() -> int:
    """Serve until standard input ends."""
    folder = Path(sys.argv[1])
    conf = configuration.load([f"--config-file={folder}/agent.conf"])
    listening = server.listen(conf.helper.socket)
    conf.paths.helper_state.mkdir(exist_ok=True)
    host = operations(conf, folder)
    served = server.Server(
        listening,
        host,
        {os.geteuid()},
        edition.Succession(edition.of(conf)),
    )
    woken, _wake = os.pipe()
    threading.Thread(target=served.run, args=(woken, threading.Event()), daemon=True).start()
    print(READY, flush=True)
    counting, found = ExitStack(), list[str]()
    for line in sys.stdin:
        if line.strip() == BEGIN:
            found = counting.enter_context(opened())
        elif line.strip() == END:
            counting.close()
            print(len(found), flush=True)
        elif line.strip() == MODEL:
            print(host.model.shown, flush=True)
        elif line.strip() == COST:
            print(host.model.cost_s(_COST_OF), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
