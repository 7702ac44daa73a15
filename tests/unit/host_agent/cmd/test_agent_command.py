# SPDX-License-Identifier: Apache-2.0
"""The daemon's start: what may be missing, and what must be reported."""

import socket
from pathlib import Path

import pytest

from host_agent.cmd import agent
from host_agent.report.metrics import Metrics
from host_agent.util.single_instance import single_instance


def test_a_metrics_port_that_is_taken_does_not_stop_the_agent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent._expose(Metrics(), "127.0.0.1", port)
    (record,) = caplog.records
    assert f"no metrics on 127.0.0.1:{port}" in record.message


def test_a_state_folder_that_cannot_be_written_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    config = tmp_path / "agent.conf"
    config.write_text(f"[agent]\nstate_dir = {tmp_path}/file/state\n")
    assert agent.main([f"--config-file={config}"]) == 1
    assert "give [agent]state_dir a folder" in capsys.readouterr().err


def test_a_second_agent_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One writer per outside thing."""
    config = tmp_path / "agent.conf"
    config.write_text(f"[agent]\nstate_dir = {tmp_path}\n")
    with single_instance(tmp_path / "agent.lock", "test"):
        assert agent.main([f"--config-file={config}"]) == 1
    assert "controls this host already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["[agent]\ninterval_s = soon\n", "[rdt]\nbe_mba_percent = 300\n", "no section\n"]
)
def test_a_configuration_that_cannot_be_used_ends_with_78(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service manager must not start it again and again; the unit has RestartPreventExitStatus=78."""
    config = tmp_path / "agent.conf"
    config.write_text(text)
    assert agent.main([f"--config-file={config}"]) == 78
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("numa-host-agent: ")
