# SPDX-License-Identifier: Apache-2.0
"""The units that we ship: systemd understands them, and they wait as long as the supervisor does."""

import shutil
import subprocess
from pathlib import Path

import pytest

from host_agent.cmd.supervisor import Patience

UNITS = Path(__file__).parents[4] / "etc/systemd"
AGENT = (UNITS / "numa-host-agent.service").read_text()
TIMER = (UNITS / "numa-host-agent-withdraw.timer").read_text()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_understands_them(tmp_path: Path) -> None:
    for unit in UNITS.iterdir():
        text = unit.read_text()
        for program in (
            "numa-host-agent-ctl",
            "numa-host-agent-helper",
            "numa-host-agent",
            "numa-ext-heal",
        ):  # not installed here
            text = text.replace(f"/usr/bin/{program} ", "/bin/true ")
        (tmp_path / unit.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_they_wait_as_long_as_the_supervisor() -> None:
    usual = Patience()
    assert f"OnActiveSec={usual.silence_s:.0f}\n" in TIMER
    assert f"WatchdogSec={usual.round_s:.0f}\n" in AGENT
    assert f"TimeoutStartSec={usual.first_round_s:.0f}\n" in AGENT
    assert f"RestartSec={usual.restart_s:.0f}\n" in AGENT


def test_a_configuration_that_cannot_be_used_is_not_tried_again_and_other_failures_are() -> None:
    assert {"Type=notify", "Restart=on-failure", "RestartPreventExitStatus=78"} <= {
        line.strip() for line in AGENT.splitlines()
    }


def test_the_time_counts_from_the_end_of_an_agent_until_another_one_has_finished_a_round() -> None:
    """ExecStartPost comes after READY; ExecStartPre would let an agent that fails at each start put it off."""
    lines = dict(line.split("=", 1) for line in AGENT.splitlines() if line.startswith("Exec"))
    assert lines["ExecStopPost"].endswith("start numa-host-agent-withdraw.timer")
    assert (
        " stop numa-host-agent-withdraw.timer numa-host-agent-withdraw.service"
        in (lines["ExecStartPost"])
    )
    assert "ExecStartPre" not in lines
