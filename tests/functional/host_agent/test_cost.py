# SPDX-License-Identifier: Apache-2.0
"""What a round of the agent costs on a real libvirt with real QEMU processes, as counts and not as percent."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from benchmarks.opens import ceiling, opened
from emulation.servers import Server
from host_agent.conf import configuration
from host_agent.conf.options import Options
from host_agent.control.assembly import agent as assembly
from host_agent.observe.foreign_balancers import Guard
from tests.functional.host_agent.conftest import ComputeHost

pytestmark = pytest.mark.root

OTHERS = 300
READS_PER_OPEN = 3
RESYNC_S = Options().agent.resync_s


class Clock:
    """Seconds, and how often they were asked for: all that is due at times is due in each round."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of what looks for others that move pages."""
    found = Clock()
    monkeypatch.setattr(assembly, "Guard", partial(Guard, clock=found))
    return found


@pytest.fixture
def parts(host: ComputeHost, pair: tuple[Server, Server], clock: Clock) -> Iterator[assembly.Parts]:
    """The agent in this process, with nothing left to do."""
    path = host.config(rdt__verify_s=3600)
    built = assembly.build(configuration.load([f"--config-file={path}"]), out=sys.stderr.write)
    for _round in range(3):
        built.agent.round(full=True, relist=True)
    time.sleep(1)  # then the look for kernel threads that these have asked for is due
    built.agent.round(full=False, relist=False)
    yield built
    built.privileged.graceful_shutdown()


@contextmanager
def other_processes() -> Iterator[None]:
    """Processes that are no servers."""
    script = f"for i in $(seq {OTHERS}); do sleep 600 & done; echo ready; wait"
    shell = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"ready\n"
        yield
    finally:
        os.killpg(shell.pid, 9)
        shell.wait()


def cost(parts: assembly.Parts, clock: Clock) -> tuple[int, int, list[str]]:
    """Opens and reads of a round between two resyncs, and what was opened; numad is looked for in it."""
    clock.now_s += RESYNC_S
    asked = clock.asked
    reads = _reads()
    with opened() as found:
        parts.agent.round(full=False, relist=False)
    assert clock.asked > asked
    return len(found), _reads() - reads, found


def _reads() -> int:
    """System calls of this process that read."""
    io = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(io["syscr"])


def test_a_round_costs_by_servers_and_threads_and_not_by_processes(
    host: ComputeHost, pair: tuple[Server, Server], parts: assembly.Parts, clock: Clock
) -> None:
    """H3: before, each process of the host was opened for each server in each round, on kernels before 6.4."""
    opens, reads, found = cost(parts, clock)
    threads = sum(len(os.listdir(f"/proc/{host.pid(server)}/task")) for server in pair)
    assert opens <= ceiling(len(pair), threads), found
    assert reads <= READS_PER_OPEN * opens
    assert "/proc" not in found
    with other_processes():
        again, reads_again, found_again = cost(parts, clock)
    assert sorted(found_again) == sorted(found)
    assert again == opens
    assert (
        reads_again <= READS_PER_OPEN * again
    )  # not equal: libvirt's event loop reads in this process, too
