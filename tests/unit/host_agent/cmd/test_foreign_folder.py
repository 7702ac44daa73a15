# SPDX-License-Identifier: Apache-2.0
"""Commands of root in a folder of somebody else, who has put modules of our names there."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from host_agent.cmd import activation
from host_agent.console import doctor
from host_agent.remote_gpu.answer import ServedLease
from host_agent.remote_gpu.processes import LeaseProcesses
from nova_numa_ext.learning.beside import ModelsBeside
from placement_traits import command_line
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError
from tests.support.polling import until

ROOT = Path(__file__).parents[4]
PACKAGES = ("host_agent", "nova_numa_ext", "placement_traits")
POISON = """
import os
with open({ran!r}, "a") as file:
    print(os.getpid(), file=file)
raise SystemExit(78)
"""
LEASE = ServedLease("lease", 1, "gpu", 1000, "silver", "opencl", 0)


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What somebody else's modules have written, who owns the working directory."""
    folder = tmp_path / "somebody"
    found = tmp_path / "ran"
    for name in PACKAGES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(POISON.format(ran=str(found)))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return found


def test_the_supervisor_starts_our_agent_and_our_withdrawal(ran: Path, tmp_path: Path) -> None:
    """L1: ``sudo numa-host-agent-supervisor`` in /tmp ran /tmp/host_agent as root. The file is found all the same."""
    Path("agent.conf").write_text("[agent]\nresync_s = soon\n")
    command = command_line.module("host_agent.cmd.supervisor", "--config-file=agent.conf")
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen([*command, "--max-silence=0.1"], stderr=stderr)
    try:
        # Both have read the file; without a Placement the withdrawal goes on trying.
        until(lambda: ran.exists() or log.read_text().count("resync_s") == 2, 30.0)
    finally:
        process.terminate()
        process.wait(60)
    assert not ran.exists()


def test_the_helper_is_ours(ran: Path, tmp_path: Path) -> None:
    command = command_line.module("host_agent.cmd.helper", "--help")
    socket = activation.Activation(command, tmp_path / "socket")
    socket.start()
    process = socket._process
    assert process is not None
    assert process.wait(60) == 0
    socket.stop(graceful=True)
    assert not ran.exists()


def test_the_process_of_a_lease_runs_in_no_folder_of_others(ran: Path, tmp_path: Path) -> None:
    """Not even a path that is relative leads there."""
    look = tmp_path / "look"
    script = f"import os; open({str(look)!r}, 'w').write(os.getcwd())"
    found = LeaseProcesses(Path("run"), lambda _lease, _control: [sys.executable, "-c", script])
    assert found._folder.is_absolute()
    with pytest.raises(ServiceUnavailableError, match="does not start"):
        found.start(LEASE)
    assert look.read_text() == command_line.SAFE_FOLDER
    assert not ran.exists()


def test_the_process_that_fits_models_is_ours(ran: Path) -> None:
    """Where scikit-learn is missing it says so itself."""
    beside = ModelsBeside(68, 30.0)
    with suppress(CapabilityMissingError):
        beside.predictors()
    beside.close()
    assert not ran.exists()


def test_nothing_else_starts_an_interpreter_that_looks_in_the_working_directory() -> None:
    """One place makes the command line of a module of ours."""
    places = {
        str(file.relative_to(ROOT)): line.strip()
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
        for line in file.read_text().splitlines()
        if "sys.executable" in line and '"-I"' not in line
    }
    assert list(places) == ["placement_traits/command_line.py"], places
    assert command_line.module("a", "b") == (sys.executable, "-P", "-m", "a", "b")


def test_the_doctor_knows_an_agent_that_the_supervisor_has_started() -> None:
    words = command_line.module("host_agent.cmd.agent", "--config-file=/etc/agent.conf")
    assert words.index("host_agent.cmd.agent") < doctor._COMMAND_WORDS
