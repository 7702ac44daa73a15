# SPDX-License-Identifier: Apache-2.0
"""``lab clean`` leaves nothing behind, even when ``lab up`` was interrupted in the middle."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.cloud import CHECKOUT, eventually

LAB = [str(CHECKOUT / "devstack" / "lab" / "lab")]
PORT_BASE = 23000


@dataclass(frozen=True)
class Machine:
    """What a lab could leave behind on this machine."""

    mounts: frozenset[str]
    ports: frozenset[int]
    processes: frozenset[tuple[int, str]]

    @classmethod
    def now(cls) -> "Machine":
        """Look at all of this machine."""
        processes = set()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (
                    (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue  # it ended while we looked
            processes.add((int(process.name), words))
        return cls(
            mounts=frozenset(Path("/proc/mounts").read_text().splitlines()),
            ports=frozenset(listening()),
            processes=frozenset(processes),
        )


def listening() -> set[int]:
    """TCP ports on which somebody listens."""
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


@pytest.mark.long
def test_clean_after_an_interrupted_up_leaves_nothing() -> None:
    folder = Path("/tmp") / f"numa-lab-clean-{os.getpid()}"
    environment = {
        **os.environ,
        "NUMA_EXT_LAB": str(folder),
        "NUMA_EXT_VENV": sys.prefix,
        "NUMA_EXT_PORT_BASE": str(PORT_BASE),
    }
    before = Machine.now()
    up = subprocess.Popen([*LAB, "up", "--hosts", "1"], env=environment, stdout=subprocess.DEVNULL)
    try:
        eventually("the emulated host boots", (folder / "run" / "h1.pid").exists, 300)
        eventually("the API listens", lambda: PORT_BASE in listening(), 300)
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(300)
    running = Machine.now()
    assert any(str(folder) in words for _, words in running.processes), "nothing was started"
    subprocess.run([*LAB, "clean"], env=environment, check=True, timeout=300)
    after = Machine.now()
    assert not folder.exists()
    assert after.mounts == before.mounts
    assert after.ports == before.ports
    assert [words for _, words in after.processes if str(folder) in words] == []
    # Other labs and the kernel start processes of their own meanwhile; none of ours is among the new ones.
    left = [
        words
        for pid, words in after.processes - before.processes
        if words and environment_of(pid, folder)
    ]
    assert left == []


def environment_of(pid: int, folder: Path) -> bool:
    """Whether a process carries the lab's folder in its environment."""
    try:
        return str(folder).encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
