# SPDX-License-Identifier: Apache-2.0
"""Which process a domain has is looked at before and after the work: another one is never taken for it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulation import libvirt_state
from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged.libvirt_state import LibvirtState
from host_agent.machine.privileged.processes import ProcessGoneError, opened
from tests.support.descriptors import many_held

A = "aaaaaaaa-0000-4000-8000-000000000000"


class Qemu:
    """A process that really runs, under a /proc that says of it what the test wants."""

    def __init__(self, root: Path) -> None:
        self.paths = HostPaths(proc=root / "proc", pid_dir=root / "pids")
        self.running = subprocess.Popen(["sleep", "600"])
        libvirt_state.write(self.paths.pid_dir, "instance-1", A, self.running.pid)
        self._files = self.paths.proc / str(self.running.pid)
        self._files.mkdir(parents=True)
        self.runs(A, started=7)

    def runs(self, uuid: str, started: int) -> None:
        fields = ["0"] * 19 + [str(started)]
        (self._files / "stat").write_text(f"{self.running.pid} (qemu) {' '.join(fields)}")
        (self._files / "cmdline").write_bytes(f"qemu\0-uuid\0{uuid}\0".encode())

    def end(self) -> None:
        self.running.kill()
        self.running.wait()


@pytest.fixture
def qemu(tmp_path: Path) -> Iterator[Qemu]:
    made = Qemu(tmp_path)
    yield made
    made.end()


def test_the_process_of_a_domain_is_held_over_the_work(qemu: Qemu) -> None:
    with opened(qemu.paths, A) as domain:
        assert domain.pid == qemu.running.pid


def test_a_process_is_held_beside_more_than_a_thousand_counters(qemu: Qemu) -> None:
    """select(2) refuses descriptors from 1,024 on."""
    with many_held(), opened(qemu.paths, A) as domain:
        assert domain.pid == qemu.running.pid


def test_a_process_that_has_taken_the_id_of_the_domains_is_refused(qemu: Qemu) -> None:
    qemu.runs(A.replace("a", "b"), started=8)
    with pytest.raises(ProcessGoneError), opened(qemu.paths, A):
        pytest.fail("work was begun")


def test_a_process_that_is_replaced_during_the_work_is_told(qemu: Qemu) -> None:
    """Its start time is another one, whatever it says that it runs."""
    with pytest.raises(ProcessGoneError), opened(qemu.paths, A):
        qemu.runs(A, started=8)


def test_a_process_that_ends_during_the_work_is_told(qemu: Qemu) -> None:
    """By the pidfd: /proc may show the next one already."""
    with pytest.raises(ProcessGoneError), opened(qemu.paths, A):
        qemu.end()


def test_a_process_that_ended_before_it_was_held_is_refused(qemu: Qemu) -> None:
    qemu.end()
    with pytest.raises(ProcessGoneError), opened(qemu.paths, A):
        pytest.fail("work was begun")


def test_what_was_found_of_a_process_does_not_hold_for_the_next_with_its_id(qemu: Qemu) -> None:
    """Its command line is looked at once; a start time is another process'."""
    libvirt = LibvirtState(qemu.paths.pid_dir)
    with opened(qemu.paths, A, libvirt):
        pass
    (qemu._files / "cmdline").unlink()
    with opened(qemu.paths, A, libvirt) as domain:
        assert domain.pid == qemu.running.pid
    qemu.runs(A.replace("a", "b"), started=8)
    with pytest.raises(ProcessGoneError), opened(qemu.paths, A, libvirt):
        pytest.fail("work was begun")
