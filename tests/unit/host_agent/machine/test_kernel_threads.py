# SPDX-License-Identifier: Apache-2.0
"""Which kernel threads outside a QEMU process are believed to work for it, and when they are looked for."""

from pathlib import Path

import pytest

from benchmarks.opens import opened
from host_agent.machine.privileged import kernel_threads, proc_files
from host_agent.machine.privileged.kernel_threads import KernelThreads

QEMU = 4711
KERNEL, USER = 0x00208040, 0x00400040  # flags of kthreadd, and of a shell


class Proc:
    """/proc of a host: kthreadd has children, and there are other processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.children: list[int] = []
        self.now_s = 0.0
        (root / "2/task/2").mkdir(parents=True)
        self.thread(1, "systemd", flags=USER, child=False)

    def thread(
        self, tid: int, name: str, *, flags: int = KERNEL, started: int = 7, child: bool = True
    ) -> None:
        """A thread begins, or another one with the same id."""
        folder = self.root / str(tid)
        folder.mkdir(exist_ok=True)
        (folder / "comm").write_text(f"{name}\n")
        fields = f"S 2 0 0 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {started} 0"
        (folder / "stat").write_text(f"{tid} ({name}) {fields}\n")
        self.children += [tid] if child else []
        self._write()

    def end(self, tid: int) -> None:
        """A thread ends."""
        for file in (self.root / str(tid)).iterdir():
            file.unlink()
        self.children.remove(tid)
        self._write()

    def _write(self) -> None:
        text = "".join(f"{child} " for child in self.children)
        (self.root / "2/task/2/children").write_text(text)

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.fixture
def found(proc: Proc) -> KernelThreads:
    return KernelThreads(proc.root, clock=proc.clock)


@pytest.mark.parametrize("name", ["vhost-4711", "kvm-pit/4711", "kvm-nx-lpage-recovery-4711"])
def test_each_kind_is_found(proc: Proc, found: KernelThreads, name: str) -> None:
    proc.thread(100, name)
    proc.thread(101, "vhost-4712")
    proc.thread(102, "kworker/3:1-events")
    assert found.of(QEMU) == (100,)
    assert found.of(4712) == (101,)


def test_only_a_kernel_thread_is_one(proc: Proc, found: KernelThreads) -> None:
    """Anybody may call a process ``vhost-PID``; it must not get into the class of a latency-critical VM."""
    proc.thread(100, f"vhost-{QEMU}", flags=USER)
    assert found.of(QEMU) == ()


def test_a_process_that_got_the_id_of_one_that_has_ended_is_none(
    proc: Proc, found: KernelThreads
) -> None:
    proc.thread(100, f"vhost-{QEMU}")
    assert found.of(QEMU) == (100,)
    proc.end(100)
    assert found.of(QEMU) == ()
    proc.thread(100, f"vhost-{QEMU}", started=8, child=False)
    assert found.of(QEMU) == ()


def test_they_are_looked_for_once_a_minute_and_when_a_server_may_have_got_one(
    proc: Proc, found: KernelThreads
) -> None:
    assert found.of(QEMU) == ()
    proc.thread(100, f"vhost-{QEMU}")
    proc.now_s = 59.0
    assert found.of(QEMU) == ()
    proc.now_s = 60.0
    assert found.of(QEMU) == (100,)
    proc.thread(101, f"vhost-{QEMU}")
    proc.now_s = 62.0
    assert found.of(QEMU) == (100,)
    found.look_again()
    assert found.of(QEMU) == (100, 101)


def test_who_asks_during_a_look_gets_what_was_found_before(
    proc: Proc, found: KernelThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several threads of the helper ask; a server's threads must not be left out for as long as a look takes."""
    proc.thread(100, f"vhost-{QEMU}")
    assert found.of(QEMU) == (100,)
    read, seen = proc_files.read_small, []

    def reading(name: str) -> bytes:
        if name.endswith("/comm"):
            seen.append(found.of(QEMU))
        return read(name)

    monkeypatch.setattr(kernel_threads, "read_small", reading)
    proc.now_s = 60.0
    assert found.of(QEMU) == (100,)
    assert seen == [(100,)]


def test_a_hundred_servers_share_a_look(proc: Proc, found: KernelThreads) -> None:
    """H3: all processes of the host were read for each server in each round."""
    qemus = range(QEMU, QEMU + 100)
    for tid, qemu in enumerate(qemus, start=1000):
        proc.thread(tid, f"vhost-{qemu}")
    for pid in range(5000, 5500):
        proc.thread(pid, f"worker-{pid}", flags=USER, child=False)
    children, comm_and_stat, still_there = 1, 2, 1
    look = children + 100 * comm_and_stat

    with opened() as first:
        for qemu in qemus:
            found.look_again()
            assert len(found.of(qemu)) == 1
    with opened() as second:
        proc.now_s = 2.0
        for qemu in qemus:
            found.of(qemu)
    with opened() as third:
        proc.now_s = 4.0
        for qemu in qemus:
            found.of(qemu)
    counts = [len(each) for each in (first, second, third)]
    assert counts == [look + 100 * still_there, look + 100 * still_there, 100 * still_there]


def test_a_kernel_that_does_not_list_them_is_reported_once(
    proc: Proc, found: KernelThreads, caplog: pytest.LogCaptureFixture
) -> None:
    """Without CONFIG_PROC_CHILDREN."""
    (proc.root / "2/task/2/children").unlink()
    for _look in range(3):
        found.look_again()
        proc.now_s += 5
        assert found.of(QEMU) == ()
    assert len(caplog.records) == 1
    assert "No such file or directory" in caplog.records[0].message
