# SPDX-License-Identifier: Apache-2.0
"""What lives in the local compute's mount namespace is ended with it, and nothing else ever is."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from numa_lab import agent_user
from numa_lab.localcompute import LocalCompute
from numa_lab.process import Process, identify
from numa_lab.settings import Settings
from numa_lab.terminal import Progress

UNSHARE = ["unshare", "--mount"]
can_unshare = os.geteuid() == 0 and subprocess.run([*UNSHARE, "true"], check=False).returncode == 0


def holder(settings: Settings) -> Process:
    return Process("holder", settings.run / "local-namespaces.pid", settings.log / "holder.log", 2)


def test_a_holder_that_has_not_left_our_namespace_yet_does_not_make_everybody_a_member(
    settings: Settings,
) -> None:
    holder(settings).start(["sleep", "1000"])
    local = LocalCompute(settings)
    try:
        assert local.running()
        assert local.members() == []
    finally:
        local.stop()
    assert not local.running()


@pytest.mark.root
@pytest.mark.skipif(not can_unshare, reason="needs root and mount namespaces")
def test_whoever_is_left_in_the_namespace_ends_with_it(settings: Settings) -> None:
    pid = holder(settings).start([*UNSHARE, "sleep", "1000"]).pid
    local = LocalCompute(settings)
    mine = Path("/proc/self/ns/mnt").readlink()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/ns/mnt").readlink() == mine:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    guest = subprocess.Popen([*local.inside(["sleep", "1000"])], start_new_session=True)
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        while guest.pid not in local.members():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert stranger.pid not in local.members()

        local.stop()

        assert guest.wait(10) != 0
        assert stranger.poll() is None
        assert identify(pid) is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.root
@pytest.mark.skipif(not can_unshare, reason="needs root and mount namespaces")
@pytest.mark.skipif(not Path("/etc/libvirt").exists(), reason="needs libvirt's folders")
def test_the_agents_user_reads_its_configuration_and_writes_its_state_and_no_more(
    settings: Settings,
) -> None:
    """The lab's folders are root's alone; that of a test is so already."""
    local, users = LocalCompute(settings), Path("/etc/passwd").read_text()
    kept = settings.etc / "others.conf"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("password = another's")
    kept.chmod(0o644)
    try:
        local._hold_namespaces(Progress())
        agent_user.write_configuration(local.agent_conf, "password = its own")
        agent_user.give_folder(local.config.state / "numa-host-agent")
        steps = (
            "id -un",
            "cat /run/numa-lab/etc/numa-host-agent.conf",
            "echo kept > /run/numa-lab/state/slo.json",
            "echo no > /run/numa-lab/etc/more || echo refused",
            f"cat {kept} || echo refused",
        )
        as_user = [f"--reuid={agent_user.NAME}", f"--regid={agent_user.NAME}", "--clear-groups"]
        command = local.inside(["setpriv", *as_user, "sh", "-c", "; ".join(steps)])
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        said = done.stdout.replace("password = its own", "password = its own\n").split("\n")
        expected = [agent_user.NAME, "password = its own", "refused", "refused"]
        assert [line for line in said if line] == expected
        assert (local.config.state / "numa-host-agent/slo.json").read_text() == "kept\n"
    finally:
        local.stop()
    assert Path("/etc/passwd").read_text() == users


def test_the_first_cpu_floats_and_the_others_are_for_pinned_guests(settings: Settings) -> None:
    config = LocalCompute(settings).config
    cpus = sorted(os.sched_getaffinity(0))

    if len(cpus) == 1:
        assert (config.cpu_shared_set, config.cpu_dedicated_set) == ("", "")
    else:
        assert config.cpu_shared_set == str(cpus[0])
        assert config.cpu_dedicated_set == ",".join(map(str, cpus[1:]))


def test_a_shell_within_finds_the_agents_configuration(
    settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    local = LocalCompute(settings)
    local.inside = list  # type: ignore[method-assign, assignment]
    assert local.shell(["sh", "-c", "echo $NUMA_HOST_AGENT_CONFIG"]) == 0
    assert capfd.readouterr().out.strip() == str(local.agent_conf)
