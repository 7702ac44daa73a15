# SPDX-License-Identifier: Apache-2.0
"""The agent on the host that :mod:`benchmarks.agent_world` has built, and what it costs.

``python -m benchmarks.agent_process FOLDER SECONDS`` prints one JSON object: rounds of each kind taken one after the
other, then the loop with its own intervals for so many seconds. CPU time is that of two whole processes: the agent's –
loop, libvirt's events, the thread that talks to Placement, and libvirt's test driver, which on a host works in
libvirtd – and the helper's (:mod:`benchmarks.agent_helper`).
"""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benchmarks.agent_helper import BEGIN, COST, END, MODEL, READY, process_time
from benchmarks.opens import opened
from host_agent.conf import configuration
from host_agent.control import balancing_store
from host_agent.control.agent import Agent
from host_agent.control.assembly import agent as assembly
from host_agent.decide.pages.bwap import BwapPhase
from host_agent.machine.libvirt import LibvirtSource
from host_agent.model.round import Round

ROUNDS = {"full": 3, "event": 10, "sampled": 30, "again": 30}
_SETTLE_ROUNDS = 200


class TestDriver(LibvirtSource):
    """libvirt's test driver, which has no jobs and cannot be asked for them."""

    def migrating(self, uuid: str) -> bool:
        """No domain migrates."""
        return False


class HelperProcess:
    """The helper beside this process.

    :param process: it, ready to serve
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    @property
    def cpu_s(self) -> float:
        """Its processor time so far, seconds."""
        return process_time(self._process.pid)

    @property
    def rss_peak_mb(self) -> float:
        """The most memory that it had."""
        return status_mb("VmHWM", self._process.pid)

    @contextmanager
    def opened(self) -> Iterator[list[int]]:
        """Count what it opens within the block: one number, after the block."""
        found: list[int] = []
        self._ask(BEGIN)
        yield found
        self._ask(END)
        found.append(int(_line(self._process.stdout)))

    @property
    def made_up(self) -> int:
        """Readings of counters that were made up so far."""
        self._ask(MODEL)
        return int(_line(self._process.stdout))

    @property
    def cost_s(self) -> float:
        """Processor time of making one up, seconds: the benchmark's, and counted as the helper's."""
        self._ask(COST)
        return float(_line(self._process.stdout))

    def _ask(self, word: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()


def _line(output: IO[str] | None) -> str:
    line = output.readline().strip() if output else ""
    if not line:
        raise RuntimeError("the helper has ended")
    return line


@contextmanager
def helper(folder: Path) -> Iterator[HelperProcess]:
    """Start the helper of the host in a folder; it ends with the block."""
    words = [sys.executable, "-m", "benchmarks.agent_helper", str(folder)]
    with subprocess.Popen(
        words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            if _line(process.stdout) != READY:
                raise RuntimeError("the helper is not ready")
            yield HelperProcess(process)
        finally:
            process.kill()


class Meter:
    """Processor time of both processes.

    :param helper: the other one
    """

    def __init__(self, helper: HelperProcess) -> None:
        self._helper = helper
        self._begun_s = self.used()

    def used(self) -> tuple[float, float]:
        """Seconds of the agent and of the helper so far."""
        return time.process_time(), self._helper.cpu_s

    def since(self) -> tuple[float, float]:
        """Seconds of both since this was made."""
        agent_s, helper_s = self.used()
        return agent_s - self._begun_s[0], helper_s - self._begun_s[1]


def rounds(
    count: int, work: Callable[[], Round | None], helper: HelperProcess
) -> dict[str, list[float]]:
    """Do it so many times; return wall and CPU time of each, milliseconds, both processes together."""
    wall, cpu = [], []
    for _ in range(count):
        begun, used = time.perf_counter(), Meter(helper)
        work()
        wall.append((time.perf_counter() - begun) * 1e3)
        cpu.append(sum(used.since()) * 1e3)
    return {"wall_ms": wall, "cpu_ms": cpu}


def settle(agent: Agent) -> Round:
    """Take rounds until nothing is left to do."""
    for _ in range(_SETTLE_ROUNDS):
        done = agent.round(full=False, relist=True)
        if not done.unfinished and not any(o.pinned or o.moved_kb for o in done.outcomes.values()):
            return done
    raise RuntimeError(f"the agent still has something to do after {_SETTLE_ROUNDS} rounds")


def opens(count: int, work: Callable[[], object], helper: HelperProcess) -> tuple[float, float]:
    """Do it so many times; return the files and folders that agent and helper opened each time."""
    with helper.opened() as there, opened() as here:
        for _ in range(count):
            work()
    return len(here) / count, there[0] / count


def loop_cpu(parts: assembly.Parts, seconds: float, helper: HelperProcess) -> tuple[float, float]:
    """Run the loop as the daemon does; return the CPU time of agent and helper as shares of the time."""
    stop = threading.Event()

    def end() -> None:
        stop.set()
        parts.source.wake()

    timer = threading.Timer(seconds, end)
    begun, used = time.monotonic(), Meter(helper)
    timer.start()
    parts.agent.run(stop)
    agent_s, helper_s = used.since()
    passed_s = time.monotonic() - begun
    return agent_s / passed_s, helper_s / passed_s


def wait_cpu(parts: assembly.Parts, seconds: float, helper: HelperProcess) -> float:
    """Wait for events that do not come; return the CPU time of both as a share of the time."""
    begun, used = time.monotonic(), Meter(helper)
    while (left := begun + seconds - time.monotonic()) > 0:
        parts.source.wait(left)
    return sum(used.since()) / seconds


def status_mb(name: str, pid: int | str = "self") -> float:
    """A figure of ``/proc/PID/status`` in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
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
    with helper(folder) as other:
        return _measure(folder, seconds, other)


def _measure(folder: Path, seconds: float, other: HelperProcess) -> dict[str, object]:
    conf = configuration.load([f"--config-file={folder}/agent.conf"])
    source = TestDriver(conf.libvirt_host.uri, conf.libvirt_host.timeout_s)
    parts = assembly.build(conf, out=sys.stderr.write, source=source)
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
    measured = {name: rounds(ROUNDS[name], work, other) for name, work in kinds.items()}
    opened_here, opened_there = opens(ROUNDS["sampled"], kinds["sampled"], other)
    waiting = wait_cpu(parts, seconds / 10, other)
    made_up = other.made_up
    agent_share, helper_share = loop_cpu(parts, seconds, other)
    made_up = other.made_up - made_up
    return {
        "managed": len(last.decision.assignments),
        "problems": sorted({p for o in last.outcomes.values() for p in o.problems}),
        "searched": searched(conf.paths.balancing),
        "kinds": measured,
        "opens_per_round_agent": opened_here,
        "opens_per_round_helper": opened_there,
        "cpu_percent_agent": 100 * agent_share,
        "cpu_percent_helper": 100 * helper_share,
        "model_cpu_percent": 100 * made_up * other.cost_s / seconds,
        "wait_cpu_percent": 100 * waiting,
        "rss_peak_mb_agent": status_mb("VmHWM"),
        "rss_peak_mb_helper": other.rss_peak_mb,
    }


def main() -> int:
    """Measure and print."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    print(json.dumps(measure(Path(sys.argv[1]), float(sys.argv[2]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
