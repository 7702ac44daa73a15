# SPDX-License-Identifier: Apache-2.0
"""The units that we ship, and what comes with them: systemd and AppArmor understand them, they give what is needed and
no more, and they wait as long as the supervisor does.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from host_agent.cmd.activation import RESTART_S
from host_agent.cmd.supervisor import Patience
from host_agent.conf.options import Options

ETC = Path(__file__).parents[4] / "etc"
UNITS = ETC / "systemd"
AGENT = (UNITS / "numa-host-agent.service").read_text()
HELPER = (UNITS / "numa-host-agent-helper.service").read_text()
LANES = (UNITS / "numa-host-agent-lanes.service").read_text()
LEASES = (UNITS / "numa-host-agent-leases.service").read_text()
DOORMAN = (UNITS / "numa-host-agent-doorman.service").read_text()
SOCKET = (UNITS / "numa-host-agent-helper.socket").read_text()
WITHDRAW = (UNITS / "numa-host-agent-withdraw.service").read_text()
ENGINE = (UNITS / "numa-ext-engine.service").read_text()
API = (UNITS / "numa-ext-jobs-api.service").read_text()
TIMER = (UNITS / "numa-host-agent-withdraw.timer").read_text()
PROFILE = (ETC / "apparmor.d/numa-host-agent-helper").read_text()
USERS = (ETC / "sysusers.d/numa-host-agent.conf").read_text()
FILES = (ETC / "tmpfiles.d/numa-host-agent.conf").read_text()

RIGHTS = {"CAP_SYS_NICE", "CAP_SYS_PTRACE", "CAP_PERFMON"}


def values(unit: str, key: str) -> list[str]:
    """All values of a key, in order; one that is empty takes back those before."""
    return re.findall(rf"(?m)^{key}=(.*)$", unit)


@pytest.mark.parametrize(
    ("unit", "tenths"),
    [
        (AGENT, 20),
        (WITHDRAW, 20),
        (HELPER, 25),
        (LEASES, 29),
        (LANES, 20),
        (ENGINE, 20),
        (API, 20),
        (DOORMAN, 20),
    ],
)
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_they_are_exposed_no_more_than_so_much(tmp_path: Path, unit: str, tenths: int) -> None:
    """What systemd itself counts, of 10: from 2.0 it is not "safe" without looking.

    For the leases' unit it counts what keeps each lease apart: namespaces (0.9), mounts, a /proc that nothing covers.
    """
    (tmp_path / "one.service").write_text(unit)
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager"]
    command += [f"--threshold={tenths}", str(tmp_path / "one.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1:]


@pytest.mark.parametrize("unit", [AGENT, WITHDRAW, LEASES, DOORMAN])
def test_what_talks_to_services_and_guests_has_no_rights(unit: str) -> None:
    (user,) = values(unit, "User")
    assert user == Options().helper.agent_user
    assert values(unit, "CapabilityBoundingSet") == [""]
    assert values(unit, "NoNewPrivileges") == ["yes"]
    # Its members may have any file of the host made a disk of a domain.
    assert "libvirt" not in values(unit, "SupplementaryGroups")


def test_the_unit_of_lanes_has_one_right_and_leaves_nothing() -> None:
    """Else it is the agent's: a line is added to both, or its absence is explained in the unit."""
    assert values(LANES, "CapabilityBoundingSet") == ["CAP_NET_ADMIN"]
    assert values(LANES, "AmbientCapabilities") == ["CAP_NET_ADMIN"]
    (start,), (stop,) = values(LANES, "ExecStart"), values(LANES, "ExecStopPost")
    assert stop == f"{start} --reset"
    keys = re.findall(
        r"(?m)^((?:Protect|Private|Restrict|Lock|Memory|Remove|Device|System)\w+)=", AGENT
    )
    other = {key for key in keys if values(LANES, key) != values(AGENT, key)}
    assert other == {"PrivateUsers", "RestrictAddressFamilies"}


def test_the_sandbox_of_leases_is_the_agents_but_for_their_servers() -> None:
    """A line is added to both, or its absence is explained in the unit."""
    missing = {
        key
        for key in re.findall(
            r"(?m)^((?:Protect|Private|Restrict|Lock|Memory|Remove|Device|System)\w+)=", AGENT
        )
        if values(LEASES, key) != values(AGENT, key)
    }
    assert missing == {
        *("MemoryDenyWriteExecute", "RemoveIPC", "ProtectClock", "DevicePolicy"),
        *("ProtectKernelTunables", "ProtectKernelLogs", "ProtectControlGroups", "ProtectHostname"),
        *("RestrictNamespaces", "SystemCallFilter"),
    }
    for key in missing:
        assert key in LEASES, "why not"


def test_leases_are_kept_apart_without_a_capability() -> None:
    """All that they take is to make namespaces, to furnish them, and a part of the control group."""
    assert values(LEASES, "Delegate") == ["yes"]
    assert values(LEASES, "KillMode") == ["process"]
    (spaces,) = values(LEASES, "RestrictNamespaces")
    assert set(spaces.split()) == {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"}
    *agents, more = values(LEASES, "SystemCallFilter")
    assert agents == values(AGENT, "SystemCallFilter")
    assert set(more.split()) == {
        *("mount", "mount_setattr", "umount2", "pivot_root", "sethostname", "capset"),
    }


def test_no_other_unit_ends_the_doorman() -> None:
    for key in ("PartOf", "BindsTo", "Requires", "Requisite"):
        assert values(DOORMAN, key) == []
    (command,) = values(DOORMAN, "ExecStart")
    assert f" {Options().agent.state_dir}/leases/" in command
    assert "AF_VSOCK" in values(DOORMAN, "RestrictAddressFamilies")[0].split()
    assert values(DOORMAN, "ProtectProc") == ["default"]


def test_the_helper_has_three_capabilities_and_no_network() -> None:
    (rights,) = values(HELPER, "CapabilityBoundingSet")
    assert set(rights.split()) == RIGHTS
    assert values(HELPER, "PrivateNetwork") == ["yes"]
    assert values(HELPER, "RestrictAddressFamilies") == ["AF_UNIX"]
    allowed, denied = values(HELPER, "SystemCallFilter")
    assert "perf_event_open" in allowed.split()
    assert {"ptrace", "process_vm_writev"} <= set(denied.split()), "memory of guests"


def test_the_helper_writes_what_its_backends_write_and_its_own_folder() -> None:
    """libpqos does not start without its lock: /var/lock/libpqos, which is a link to /run/lock."""
    (writable,) = values(HELPER, "ReadWritePaths")
    assert writable.split() == ["-/sys/fs/resctrl", "-/sys/fs/cgroup", "-/run/lock"]
    assert "\n  /run/lock/libpqos rwk,\n" in PROFILE


def test_a_helper_that_fails_comes_back_however_often_and_hears_of_the_agents_end() -> None:
    """As the supervisor has it: throttles wait for it behind an agent that has died."""
    assert values(HELPER, "Restart") == ["on-failure"]
    assert values(HELPER, "RestartSec") == [f"{RESTART_S:g}"]
    assert values(HELPER, "RestartPreventExitStatus") == [str(os.EX_CONFIG)]
    assert values(HELPER, "StartLimitIntervalSec") == ["0"]
    assert values(SOCKET, "TriggerLimitIntervalSec") == ["0"]
    assert values(HELPER, "User") == ["root"]
    assert values(HELPER, "AmbientCapabilities") == []
    assert values(HELPER, "RuntimeDirectoryPreserve") == ["yes"], "what it waited for"
    (after,) = values(AGENT, "After")
    assert {"numa-host-agent-helper.socket", "numa-host-agent-helper.service"} <= set(after.split())


def test_units_and_options_name_the_same_files_and_user() -> None:
    helper = Options().helper
    assert values(SOCKET, "ListenStream") == [str(helper.socket)]
    assert values(SOCKET, "SocketGroup") == [helper.agent_user]
    assert values(HELPER, "RuntimeDirectory") == [helper.state_dir.name]
    assert values(HELPER, "SupplementaryGroups") == [helper.agent_user]
    state = Options().agent.state_dir
    assert values(AGENT, "StateDirectory") == [state.name]
    kind, user, *_, home = USERS.splitlines()[-1].split()
    assert (kind, user, home) == ("u", helper.agent_user, str(state))


def test_the_password_is_the_agents_and_roots() -> None:
    (command,) = values(AGENT, "ExecStart")
    lines = [line.split() for line in FILES.splitlines() if not line.startswith("#")]
    (entry,) = [line for line in lines if line[1] == command.split()[-1]]
    assert entry[2:5] == ["0640", "root", Options().helper.agent_user]


def test_the_profile_reads_processes_and_writes_no_memory() -> None:
    assert values(HELPER, "AppArmorProfile") == ["-numa-host-agent-helper"], "where there is none"
    assert "\nprofile numa-host-agent-helper {" in PROFILE
    capabilities = re.findall(r"(?m)^  capability (\w+),$", PROFILE)
    assert {f"CAP_{name.upper()}" for name in capabilities} == RIGHTS
    assert re.findall(r"(?m)^  ptrace .*$", PROFILE) == ["  ptrace (read),"]
    assert "\n  deny @{PROC}/@{pid}/mem rwklx,\n" in PROFILE
    assert not re.search(r"(?m)^\s*@{PROC}\S* \S*w", PROFILE), "files of processes are written"


def _parser() -> str | None:
    return shutil.which("apparmor_parser", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")


@pytest.mark.skipif(not _parser(), reason="needs apparmor_parser")
def test_apparmor_understands_the_profile() -> None:
    command = [str(_parser()), "--skip-kernel-load", "--skip-cache"]
    command.append(str(ETC / "apparmor.d/numa-host-agent-helper"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not shutil.which("systemd-sysusers"), reason="needs systemd-sysusers")
def test_the_user_can_be_made(tmp_path: Path) -> None:
    """In a folder that stands for the root of a host."""
    (tmp_path / "etc").mkdir()
    file = ETC / "sysusers.d/numa-host-agent.conf"
    command = ["systemd-sysusers", f"--root={tmp_path}", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    (line,) = (tmp_path / "etc/passwd").read_text().splitlines()
    assert line.startswith("numa-host-agent:x:")
    assert line.endswith("/nologin")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_understands_them(tmp_path: Path) -> None:
    for unit in UNITS.iterdir():
        text = unit.read_text()
        for program in (
            "numa-host-agent-ctl",
            "numa-host-agent-helper",
            "numa-host-agent-lanes",
            "numa-host-agent-leases",
            "numa-host-agent",
            "numa-ext-heal",
            "numa-ext-engine",
            "numa-ext-rgpu",
            "gunicorn",
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
