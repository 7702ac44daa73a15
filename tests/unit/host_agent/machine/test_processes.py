# SPDX-License-Identifier: Apache-2.0
"""Which threads outside a QEMU process are believed to work for it."""

from pathlib import Path

import pytest

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import processes

QEMU = 4711
KERNEL_FLAGS, USER_FLAGS = 0x00208040, 0x00400040  # of kthreadd, and of a shell


def thread(proc: Path, tid: int, name: str, flags: int) -> None:
    """A thread as proc(5) shows it."""
    (proc / str(tid)).mkdir(parents=True)
    (proc / str(tid) / "comm").write_text(f"{name}\n")
    (proc / str(tid) / "stat").write_text(f"{tid} ({name}) S 2 0 0 0 -1 {flags} 0 0 0 0\n")


def test_only_a_kernel_thread_is_a_vhost_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may call a process ``vhost-PID``; it must not get into the class of a latency-critical VM."""
    monkeypatch.setattr(processes, "_kernel_release", lambda: (6, 1))
    thread(tmp_path, 100, f"vhost-{QEMU}", KERNEL_FLAGS)
    thread(tmp_path, 101, "vhost-4712", KERNEL_FLAGS)
    thread(tmp_path, 102, f"vhost-{QEMU}", USER_FLAGS)

    assert processes.kernel_vhost(HostPaths(proc=tmp_path), QEMU) == (100,)
