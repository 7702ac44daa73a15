# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with one server's process, or what that makes of itself, is trouble for no other server."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulation import libvirt_state
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import Shape
from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import command_line, partitions, processes
from host_agent.machine.privileged.operations import HostOperations
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.partition import Membership, RdtChange

A = "aaaaaaaa-0000-4000-8000-000000000000"
B = "bbbbbbbb-0000-4000-8000-000000000000"


@pytest.fixture
def thread() -> Iterator[int]:
    """The id of a thread that is no process's."""
    over, started = threading.Event(), threading.Event()
    found: list[int] = []

    def run() -> None:
        found.append(threading.get_native_id())
        started.set()
        over.wait()

    running = threading.Thread(target=run)
    running.start()
    started.wait()
    yield found[0]
    over.set()
    running.join()


def test_a_process_whose_id_a_thread_has_got_has_ended(tmp_path: Path, thread: int) -> None:
    paths = HostPaths(pid_dir=tmp_path)
    libvirt_state.write(tmp_path, "instance-1", A, thread)
    with pytest.raises(processes.ProcessGoneError), processes.opened(paths, A):
        pytest.fail("work was begun")


def test_a_host_without_descriptors_is_told_server_by_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    resctrl = Resctrl(ResctrlModel(Shape()))
    monkeypatch.setattr(os, "pidfd_open", refused)
    monkeypatch.setattr(partitions, "tree", lambda _paths: resctrl)
    paths = HostPaths(pid_dir=tmp_path / "pids", helper_state=tmp_path)
    for uuid, pid in ((A, 7), (B, 8)):
        libvirt_state.write(paths.pid_dir, f"instance-{pid}", uuid, pid)
    operations = HostOperations(paths)

    members = (Membership(A, "", ""), Membership(B, "", ""))
    joined = operations.apply_partitions(RdtChange(resctrl.actual(), (), members, {}), False)
    assert [(one.uuid, "Too many open files" in one.problem) for one in joined] == [
        (A, True),
        (B, True),
    ]
    assert operations.count([(A, (7,)), (B, (8,))], False).counts == ()


def test_a_command_line_that_is_longer_than_any_of_qemus_is_none_and_is_not_read_to_its_end(
    tmp_path: Path,
) -> None:
    """A guest that has broken out makes it as long as its memory."""
    running = os.getpid()
    paths = HostPaths(proc=tmp_path / "proc", pid_dir=tmp_path / "pids")
    libvirt_state.write(paths.pid_dir, "instance-1", A, running)
    files = paths.proc / str(running)
    files.mkdir(parents=True)
    (files / "stat").write_text(f"{running} (qemu) {' '.join(['7'] * 40)}")
    (files / "cmdline").write_bytes(f"qemu\0-uuid\0{A}\0".encode())
    with processes.opened(paths, A):
        os.truncate(files / "cmdline", 1 << 40)
        assert command_line.read(files) == ()
    with pytest.raises(processes.ProcessGoneError), processes.opened(paths, A):
        pytest.fail("work was begun")
