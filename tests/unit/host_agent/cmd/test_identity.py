# SPDX-License-Identifier: Apache-2.0
"""Root at the console of an agent that has a user of its own."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def agents() -> Iterator[Path]:
    """A folder of the agent's user, where that gets to it (pytest's own are closed to others)."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        state = Path(folder) / "state"
        state.mkdir()
        (Path(folder) / "agent.conf").write_text(f"[agent]\nstate_dir = {state}\n")
        os.chown(state, NOBODY, NOBODY)
        yield state


def run(state: Path, module: str, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", f"host_agent.cmd.{module}"]
    command += [f"--config-file={state.parent}/agent.conf", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_what_root_writes_for_the_agent_is_the_agents(agents: Path) -> None:
    """A file of root's the agent could not remove."""
    assert run(agents, "ctl", "pause").returncode == 0
    assert (agents / "paused").stat().st_uid == NOBODY
    assert run(agents, "ctl", "resume").returncode == 0


def test_root_follows_no_link_of_the_agents(agents: Path) -> None:
    """An agent in a stranger's hands plants one; root alone could write where it leads."""
    precious = agents.parent / "precious"
    precious.mkdir(mode=0o755)
    (agents / "paused").symlink_to(precious / "written")
    assert run(agents, "ctl", "pause").returncode != 0
    assert list(precious.iterdir()) == []


def test_a_folder_of_nobodys_is_told_in_a_sentence(agents: Path) -> None:
    os.chown(agents, 3_999_999, -1)
    done = run(agents, "ctl", "pause")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "there is no user 3999999" in done.stderr


def test_root_undoes_where_the_supervisor_has_taken_the_helper_along(agents: Path) -> None:
    """Nothing could be undone there once the agent was stopped: root's rights were given up, and nobody had any."""
    folder = agents.parent
    (folder / "pids").mkdir()
    with (folder / "agent.conf").open("a") as options:
        options.write(
            f"[helper]\nsocket = {folder}/helper.sock\nstate_dir = {folder}/helper\nagent_user = nobody\n"
            f"[host]\nresctrl = {folder}/none\n[libvirt_host]\npid_dir = {folder}/pids\n"
        )
    done = run(agents, "ctl", "release-bandwidth")
    assert (done.returncode, done.stderr) == (0, "")
    journal = agents / "journal.jsonl"
    assert "release" in journal.read_text()
    assert journal.stat().st_uid == NOBODY
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
        late.connect(str(folder / "helper.sock"))  # the helper has ended with the command
