# SPDX-License-Identifier: Apache-2.0
"""Which threads get an affinity: those of the process, and none that has taken the id of one meanwhile."""

import os
from pathlib import Path

import pytest

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged.processes import ThreadPinner
from host_agent.model.process import Process, Role, Thread

QEMU, VCPU, VHOST, FOREIGN = 100, 101, 900, 901
SOME = frozenset({0})


class Host:
    """Threads under a /proc, and affinities that were set."""

    def __init__(self, root: Path) -> None:
        self.paths = HostPaths(proc=root)
        self.folders = {
            VCPU: root / str(QEMU) / "task" / str(VCPU),
            VHOST: root / str(VHOST),
            FOREIGN: root / str(FOREIGN),
        }
        for tid in self.folders:
            self.begins(tid, 7)
        self.set: list[int] = []

    def begins(self, tid: int, ticks: int) -> None:
        self.folders[tid].mkdir(parents=True, exist_ok=True)
        fields = ["0"] * 19 + [str(ticks)]
        (self.folders[tid] / "stat").write_text(f"{tid} (x) {' '.join(fields)}")

    def pinning(self) -> ThreadPinner:
        threads = (
            Thread(VCPU, Role.VCPU, 0, "CPU 0/KVM", "0"),
            Thread(VHOST, Role.VHOST, -1, f"vhost-{QEMU}", "0"),
        )
        return ThreadPinner(self.paths, Process(QEMU, 7, "0", threads), (VHOST, FOREIGN))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(os, "sched_setaffinity", lambda tid, _cpus: made.set.append(tid))
    return made


def test_threads_of_the_process_in_it_and_outside_are_set_and_no_others(host: Host) -> None:
    pinning = host.pinning()
    assert [pinning.set(tid, SOME) for tid in (VCPU, VHOST)] == ["", ""]
    assert "does not belong to process 100" in pinning.set(FOREIGN, SOME)
    assert host.set == [VCPU, VHOST]


@pytest.mark.parametrize("tid", [VCPU, VHOST])
def test_a_thread_that_has_taken_the_id_of_one_is_not_set(host: Host, tid: int) -> None:
    pinning = host.pinning()
    host.begins(tid, 8)
    assert pinning.set(tid, SOME) == "No such process"
    assert host.set == []


def test_an_id_that_changes_hands_while_it_is_set_is_told(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinning = host.pinning()
    monkeypatch.setattr(os, "sched_setaffinity", lambda tid, _cpus: host.begins(tid, 8))
    assert pinning.set(VCPU, SOME) == "No such process"
