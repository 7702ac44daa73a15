# SPDX-License-Identifier: Apache-2.0
"""What lives in the local compute's mount namespace is ended with it, and nothing else ever is."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from numa_lab.localcompute import LocalCompute
from numa_lab.process import Process, identify
from numa_lab.settings import Settings

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
