# SPDX-License-Identifier: Apache-2.0
"""The agent as a user without any right, under its supervisor, over the helper: a real libvirt, RDT by FUSE."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulation.servers import Server
from tests.functional.host_agent.conftest import ComputeHost, wait_for

pytestmark = pytest.mark.root

USER = "nobody"
AFTER_S = 2
BE_GROUP = "numa_ext-be-0"


def status(pid: int, field: str) -> str:
    """A field of ``/proc/PID/status``."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)[field].strip()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def be_level(host: ComputeHost) -> str:
    return host.schemata(BE_GROUP)["MB"][0] if BE_GROUP in host.groups() else ""


class Supervised:
    """Supervisor, helper and agent, in the mount namespace of the host."""

    def __init__(self, host: ComputeHost) -> None:
        self.host = host
        state = host.folder / "agents-own"
        state.mkdir(exist_ok=True)
        os.chown(state, 65534, 65534)
        # pytest closes its own folder to other users: the host's is mounted where they get to it.
        host.folder.chmod(0o755)
        if not (host.root / "run/host").exists():
            (host.root / "run/host").mkdir()
            mount = host._inside("mount", "--bind", str(host.folder), "/run/host")
            subprocess.run(mount, check=True)
        host.config(
            agent__state_dir="/run/host/agents-own",
            agent__deny_servers="/run/host/deny-servers",
            libvirt_host__uri="qemu:///system?socket=/run/host/sock/libvirt-sock",
            libvirt_host__pid_dir="/run/libvirt/qemu",
            host__resctrl="/run/resctrl",
            helper__agent_user=USER,
            helper__socket="/run/host/helper.sock",
            helper__state_dir="/run/host/helper",
            rdt__release_after_s=AFTER_S,
        )
        module = (sys.executable, "-m", "host_agent.cmd.supervisor")
        options = (f"--user={USER}", "--config-file=/run/host/agent.conf", "--restart-after=3600")
        self.process = host._start(host._inside(*module, *options), "supervisor.log")

    def pid(self, module: str) -> int:
        """Pid of a child of the supervisor's, 0 without one."""
        for child in children(self.process.pid):
            if f"host_agent.cmd.{module}" in Path(f"/proc/{child}/cmdline").read_text():
                return child
        return 0

    def log(self) -> str:
        return (self.host.folder / "supervisor.log").read_text()


@pytest.fixture
def supervised(
    host: ComputeHost, pair: tuple[Server, Server]
) -> Iterator[Callable[[], Supervised]]:
    made: list[Supervised] = []

    def make() -> Supervised:
        made.append(Supervised(host))
        return made[-1]

    yield make
    for one in made:
        one.process.terminate()
        one.process.wait(60)


def test_an_agent_without_rights_throttles_and_its_helper_releases_when_it_is_killed(
    host: ComputeHost, supervised: Callable[[], Supervised]
) -> None:
    """The supervisor starts the helper when the agent asks for it, and again when it was killed."""
    found = supervised()
    wait_for(lambda: be_level(host) not in ("", "100"), "the throttle", 60)
    agent, helper = found.pid("agent"), found.pid("helper")
    assert set(status(agent, "Uid").split()) == {"65534"}
    assert int(status(agent, "CapEff"), 16) == 0
    assert set(status(helper, "Uid").split()) == {"0"}

    os.kill(helper, signal.SIGKILL)
    wait_for(lambda: found.pid("helper") not in (0, helper), "the next helper", 60)
    assert found.pid("agent") == agent

    os.kill(agent, signal.SIGKILL)
    wait_for(lambda: be_level(host) == "100", "the release", 60)
    assert "the agent has not been in control for 2 s" in found.log()


def test_agent_and_helper_that_die_together_leave_no_server_throttled(
    host: ComputeHost, supervised: Callable[[], Supervised]
) -> None:
    """No agent asks for the next helper."""
    found = supervised()
    wait_for(lambda: be_level(host) not in ("", "100"), "the throttle", 60)
    agent, helper = found.pid("agent"), found.pid("helper")
    os.kill(agent, signal.SIGKILL)
    os.kill(helper, signal.SIGKILL)
    wait_for(lambda: be_level(host) == "100", "the release", 60)


def test_agent_and_supervisor_that_are_killed_leave_no_server_throttled(
    host: ComputeHost, supervised: Callable[[], Supervised]
) -> None:
    """The helper outlives the supervisor."""
    found = supervised()
    wait_for(lambda: be_level(host) not in ("", "100"), "the throttle", 60)
    helper = found.pid("helper")
    found.process.kill()
    found.process.wait(10)
    wait_for(lambda: be_level(host) == "100", "the release", 60)
    os.kill(helper, signal.SIGTERM)
