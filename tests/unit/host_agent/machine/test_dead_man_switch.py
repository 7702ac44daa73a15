# SPDX-License-Identifier: Apache-2.0
"""The dead man's switch: when it lets go, and when it must not."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import AMD, Shape
from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import dead_man_switch, watchdog
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.machine.rdt.writer import GroupWriter
from host_agent.util.single_instance import single_instance

AFTER_S = 0.3
PATIENCE_S = 20.0


class Watched:
    """A guard's loop in a thread, and what it did."""

    def __init__(self) -> None:
        reading, self.pipe = os.pipe()
        self.did: list[str] = []
        arguments = (
            reading,
            AFTER_S,
            lambda: self.did.append("silent"),
            lambda: self.did.append("ended"),
        )
        self._thread = threading.Thread(target=watchdog.watch, args=arguments, daemon=True)
        self._thread.start()

    def join(self) -> list[str]:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.did


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_agent_that_takes_its_leave_leaves_everything() -> None:
    watched = Watched()
    os.write(watched.pipe, b"...q")
    assert watched.join() == []


def test_an_agent_that_ends_without_leave_is_given_some_time_first() -> None:
    watched = Watched()
    os.write(watched.pipe, b".")
    begun = time.monotonic()
    os.close(watched.pipe)
    assert watched.join() == ["ended"]
    assert time.monotonic() - begun >= AFTER_S * 0.9


def test_each_silence_counts_once() -> None:
    watched = Watched()
    wait_for(lambda: watched.did == ["silent"])
    time.sleep(2 * AFTER_S)
    assert watched.did == ["silent"]
    os.write(watched.pipe, b".")
    wait_for(lambda: watched.did == ["silent", "silent"])
    os.write(watched.pipe, b"q")
    assert watched.join() == ["silent", "silent"]


_AGENT = """
import sys, time
from pathlib import Path
from host_agent.util.single_instance import single_instance
from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged.dead_man_switch import DeadManSwitch
root = Path(sys.argv[1])
paths = HostPaths(resctrl=root / "resctrl", libvirt_pids=root, state=root)
with single_instance(paths.lock, ""):
    guard = DeadManSwitch(paths, 0.5)
    guard.beat()
    print(guard._process.pid, flush=True)
    time.sleep(600)
"""


def killed_agent(root: Path) -> int:
    """Let an agent be killed; return the process id of its guard."""
    log = (root / "log").open("w")
    command = [sys.executable, "-c", _AGENT, str(root)]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert agent.stdout is not None
    process = int(agent.stdout.readline())
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    return process


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_killed_agents_guard_outlives_it_and_acts(tmp_path: Path) -> None:
    process = killed_agent(tmp_path)
    wait_for(lambda: gone(process))
    (line,) = (tmp_path / "log").read_text().splitlines()[:1]
    fields = (
        f"{process} WARNING numa-host-agent-watchdog [-] the agent has ended without a graceful"
    )
    assert fields in line, "not as oslo.log writes it"


def test_a_new_agent_in_charge_is_left_alone(tmp_path: Path) -> None:
    process = killed_agent(tmp_path)
    with single_instance(tmp_path / "agent.lock", ""):
        wait_for(lambda: gone(process))
    assert "has ended without a graceful shutdown" not in (tmp_path / "log").read_text()


def test_what_a_new_agent_has_left_in_order_stays(tmp_path: Path) -> None:
    process = killed_agent(tmp_path)
    with single_instance(tmp_path / "agent.lock", ""):
        pass
    wait_for(lambda: gone(process))
    assert "another process has been in charge" in (tmp_path / "log").read_text()


def test_a_guard_that_was_killed_is_started_again(tmp_path: Path) -> None:
    own = dead_man_switch.DeadManSwitch(HostPaths(state=tmp_path, resctrl=tmp_path / "no"), 60.0)
    own.beat()
    first = own._process
    assert first is not None
    first.kill()
    first.wait()
    own.beat()
    assert own._process is not None
    assert own._process.pid != first.pid
    own.shut_down()
    own.shut_down()


@pytest.mark.parametrize(
    ("shape", "low", "full"),
    [(Shape(domains=(0, 1)), 10, 100), (AMD, 16, 2048), (Shape(mba=False), 0, 0)],
)
def test_our_groups_get_all_bandwidth_and_nothing_else_changes(
    shape: Shape, low: int, full: int
) -> None:
    model = ResctrlModel(shape)
    resctrl = Resctrl(model)
    for name in ("numa_ext-be-0", "foreign"):
        model.mkdir(name)
        if low:
            model.write(f"{name}/schemata", f"MB:0={low}\n")
        model.write(f"{name}/schemata", "L3:0=f\n")
    foretold = GroupWriter(resctrl).release_bandwidth(write=False)

    assert GroupWriter(resctrl).release_bandwidth() == foretold
    assert len(foretold) == (1 if low else 0)
    foreign, ours = resctrl.actual().groups[1:]
    assert ours.schemata["L3"][0] == foreign.schemata["L3"][0] == 0xF
    if low:
        assert (ours.schemata["MB"][0], foreign.schemata["MB"][0]) == (full, low)
    assert GroupWriter(resctrl).release_bandwidth() == ()
