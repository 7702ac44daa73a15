# SPDX-License-Identifier: Apache-2.0
"""The supervisor with processes that behave like agents: shell-sized scripts that speak sd_notify's protocol."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PATIENCE_S = 30.0

_SUPERVISE = """
import sys
from host_agent.cmd.supervisor import Patience, Supervisor
folder, (silence, watch, stop) = sys.argv[1], map(float, sys.argv[2:])
sys.exit(Supervisor(
    (sys.executable, f"{folder}/agent.py", folder),
    (sys.executable, f"{folder}/withdraw.py", folder),
    Patience(silence, watch, watch, 0.1, stop),
).run())
"""

_AGENT = """
import os, signal, socket, sys, time
folder = sys.argv[1]
print("agent", os.getpid(), file=open(f"{folder}/log", "a"), flush=True)
address = "\\0" + os.environ["NOTIFY_SOCKET"][1:]
def notify(text):
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(text.encode(), address)
def end(*_):
    notify("STOPPING=1")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
"""

_WITHDRAW = """
import os, sys, time
folder = sys.argv[1]
print("withdraw", os.getpid(), file=open(f"{folder}/log", "a"), flush=True)
while os.path.exists(f"{folder}/placement-is-down"):
    time.sleep(0.05)
print("withdrawn", os.getpid(), file=open(f"{folder}/log", "a"), flush=True)
"""

ROUNDS = """
notify("READY=1\\nWATCHDOG=1")
while True:
    time.sleep(0.05)
    if not os.path.exists(f"{folder}/hang"):
        notify("WATCHDOG=1")
"""


class Supervised:
    """A supervisor in a process of its own, and what its agents and withdrawals noted."""

    def __init__(
        self,
        folder: Path,
        agent: str,
        *,
        silence_s: float,
        watch_s: float = 60,
        stop_s: float = PATIENCE_S,
    ) -> None:
        self.folder = folder
        self.behave(agent)
        (folder / "withdraw.py").write_text(_WITHDRAW)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _SUPERVISE,
                str(folder),
                *map(str, (silence_s, watch_s, stop_s)),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.DEVNULL,
        )

    def behave(self, agent: str) -> None:
        """Say what agents do from the next start on."""
        (self.folder / "agent.py").write_text(_AGENT + agent)

    def log(self) -> list[tuple[str, int]]:
        file = self.folder / "log"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(word, int(pid)) for word, pid in (line.split() for line in lines)]

    def words(self) -> list[str]:
        return [word for word, _ in self.log()]

    def pids(self, word: str) -> list[int]:
        return [pid for found, pid in self.log() if found == word]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(10)


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


Make = Callable[..., Supervised]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Make]:
    made: list[Supervised] = []

    def make(agent: str, **patience: float) -> Supervised:
        made.append(Supervised(tmp_path, agent, **patience))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_a_killed_agent_is_started_again_and_no_tier_is_withdrawn(supervise: Make) -> None:
    found = supervise(ROUNDS, silence_s=5)
    wait_for(lambda: found.pids("agent"))
    os.kill(found.pids("agent")[0], signal.SIGKILL)
    wait_for(lambda: len(found.pids("agent")) == 2)
    time.sleep(0.5)
    assert found.words() == ["agent", "agent"]


def test_an_agent_that_hangs_is_ended_and_started_again(supervise: Make) -> None:
    found = supervise(ROUNDS, silence_s=60, watch_s=1)
    wait_for(lambda: found.pids("agent"))
    time.sleep(1.5)
    assert len(found.pids("agent")) == 1, "it finishes rounds"
    (found.folder / "hang").touch()
    wait_for(lambda: len(found.pids("agent")) == 2)
    assert not runs(found.pids("agent")[0])


def test_an_agent_that_fails_at_each_start_does_not_put_the_withdrawal_off(
    supervise: Make,
) -> None:
    """The time counts from the last agent with rounds, and one withdrawal is enough."""
    found = supervise("sys.exit(1)\n", silence_s=1)
    wait_for(lambda: "withdrawn" in found.words())
    assert len(found.pids("agent")) > 1
    more = len(found.log())
    wait_for(lambda: len(found.log()) >= more + 5)
    assert found.words().count("withdraw") == 1


def test_an_agent_that_is_back_ends_the_withdrawal_and_the_time_counts_again(
    supervise: Make,
) -> None:
    """Placement was down all the while; an old withdrawal must not take what the agent has put back."""
    found = supervise("sys.exit(1)\n", silence_s=0.5)
    (found.folder / "placement-is-down").touch()
    wait_for(lambda: found.pids("withdraw"))
    found.behave(ROUNDS)
    wait_for(lambda: not runs(found.pids("withdraw")[0]))
    (found.folder / "placement-is-down").unlink()
    assert "withdrawn" not in found.words()
    found.behave("sys.exit(1)\n")
    os.kill(found.pids("agent")[-1], signal.SIGKILL)
    wait_for(lambda: "withdrawn" in found.words())


@pytest.mark.parametrize("status", [0, 78])
def test_an_agent_that_has_ended_for_good_is_missed_and_then_the_supervisor_ends(
    supervise: Make, status: int
) -> None:
    found = supervise(f"sys.exit({status})\n", silence_s=0.5)
    assert found.process.wait(PATIENCE_S) == status
    assert found.words() == ["agent", "withdraw", "withdrawn"]


def test_a_stopped_supervisor_stops_the_agent_and_withdraws_nothing(supervise: Make) -> None:
    found = supervise(ROUNDS, silence_s=1)
    wait_for(lambda: found.pids("agent"))
    time.sleep(0.5)
    found.process.terminate()
    assert found.process.wait(PATIENCE_S) == 0
    assert not runs(found.pids("agent")[0])
    time.sleep(1)
    assert found.words() == ["agent"]


@pytest.mark.parametrize("says", ["", 'notify("STOPPING=1")', 'notify("WATCHDOG=1")'])
def test_an_agent_that_hangs_while_it_shuts_down_is_ended(supervise: Make, says: str) -> None:
    """Whatever it says meanwhile: systemd waits TimeoutStopSec for it, and no longer."""
    hang = f"""
def hang(*_):
    while True:
        {says or "pass"}
        time.sleep(0.05)
signal.signal(signal.SIGTERM, hang)
"""
    found = supervise(hang + ROUNDS, silence_s=60, stop_s=1)
    wait_for(lambda: found.pids("agent"))
    time.sleep(0.5)
    found.process.terminate()
    assert found.process.wait(PATIENCE_S) != 0
    assert not runs(found.pids("agent")[0])
    assert found.words() == ["agent"]


def test_a_killed_supervisor_leaves_no_agent(supervise: Make) -> None:
    found = supervise(ROUNDS, silence_s=60)
    wait_for(lambda: found.pids("agent"))
    found.process.kill()
    wait_for(lambda: not runs(found.pids("agent")[0]))


def test_others_cannot_report_for_the_agent(supervise: Make) -> None:
    """Any process of the host may write to a socket in the abstract namespace: guests run beside the agent."""
    speak = """
agent = os.getpid()
if os.fork() == 0:
    while os.getppid() == agent:
        notify("READY=1\\nWATCHDOG=1")
        time.sleep(0.05)
time.sleep(60)
"""
    found = supervise(speak, silence_s=1, watch_s=60)
    wait_for(lambda: "withdrawn" in found.words())
