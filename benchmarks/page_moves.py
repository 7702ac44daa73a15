# SPDX-License-Identifier: Apache-2.0
"""Move the memory of a process with our mover and as ``migratepages(8)`` does; runs on the host that has the nodes.

``python -m benchmarks.page_moves KIND MIB TOUCHED_MIB FOLDER`` prints one JSON object. What was reached is read from
the kernel, not from the mover: ``numa_maps`` shows where pages are, ``pgmigrate_success`` of ``/proc/vmstat`` how many
the kernel has moved.
"""

import ctypes
import json
import mmap
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import guest_memory
from emulation import libvirt_state
from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged.operations import HostOperations
from host_agent.model.process import MoveLimits, Target

WEIGHTS: Mapping[int, float] = {0: 0.50, 1: 0.25, 2: 0.15, 3: 0.10}
_SLICE = MoveLimits(1 << 40, 0, 1.0)  # as the agent calls it, without a rate limit
_TRIES = 3
_PHASE_S = 5.0


@dataclass
class Guest:
    """The process, and how to talk to it.

    :param process: it
    :param uuid: by which the mover finds it
    :param start: address of its memory
    :param size: bytes of it
    :param stats: see :mod:`benchmarks.guest_memory`
    :param operations: the mover
    """

    process: subprocess.Popen[str]
    uuid: str
    start: int
    size: int
    stats: memoryview
    operations: HostOperations

    def shares(self) -> dict[int, float]:
        """Node -> share of its pages, by ``numa_maps``."""
        text = Path(f"/proc/{self.process.pid}/numa_maps").read_text()
        return shares_at(text, self.start)


def shares_at(numa_maps: str, start: int) -> dict[int, float]:
    """Return node -> share of the pages of the mapping at an address.

    :raises KeyError: there is no mapping
    """
    for line in numa_maps.splitlines():
        words = line.split()
        if int(words[0], 16) == start:
            counts = (word[1:].split("=") for word in words if word[:1] == "N" and "=" in word)
            pages = {int(node): int(count) for node, count in counts}
            return {node: count / sum(pages.values()) for node, count in pages.items()}
    raise KeyError(hex(start))


def error_pp(found: Mapping[int, float], target: Mapping[int, float]) -> float:
    """Return the largest difference of two placements, percentage points."""
    nodes = {*found, *target}
    return 100 * max(abs(found.get(node, 0.0) - target.get(node, 0.0)) for node in nodes)


def least_share(found: Mapping[int, float], target: Mapping[int, float]) -> float:
    """Return the part of all pages that must move at least."""
    return sum(max(0.0, share - found.get(node, 0.0)) for node, share in target.items())


def migrated_pages() -> int:
    """Pages that the kernel has migrated since boot."""
    lines = Path("/proc/vmstat").read_text().splitlines()
    return int(dict(line.split() for line in lines)["pgmigrate_success"])


@contextmanager
def guest(kind: str, mib: int, folder: Path) -> Iterator[Guest]:
    """Start a process whose memory is on node 0."""
    its_uuid = str(uuid.uuid4())
    pids = folder / "pids"
    file = folder / f"{its_uuid}.stats"
    file.write_bytes(bytes(8 * guest_memory.STATS))
    script = [sys.executable, "-SI", guest_memory.__file__]
    argv = [*script, "-uuid", its_uuid, "-m", str(mib), kind, str(file)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise RuntimeError(f"the process with {kind} memory ended before it was ready")
        libvirt_state.write(pids, its_uuid, its_uuid, process.pid)
        with file.open("r+b") as opened:
            stats = memoryview(mmap.mmap(opened.fileno(), 8 * guest_memory.STATS)).cast("Q")
        operations = HostOperations(HostPaths(pid_dir=pids))
        made = Guest(process, its_uuid, int(line), mib << 20, stats, operations)
        ours(made, {0: 1.0})
        yield made
    finally:
        process.kill()
        process.wait()


@dataclass
class Moved:
    """What our mover did.

    :param seconds: time
    :param calls: calls that moved
    :param failed: pages left after all tries
    """

    seconds: float
    calls: int
    failed: int


def ours(guest: Guest, shares: Mapping[int, float]) -> Moved:
    """Move as the agent does: slice by slice, and again while pages are left."""
    target = Target(guest.start, guest.start + guest.size, tuple(sorted(shares.items())))
    begun = time.monotonic()
    calls = failed = 0
    for _ in range(_TRIES):
        while True:
            report = guest.operations.move_memory(guest.uuid, [target], _SLICE)
            calls += report.calls
            if report.problem:
                raise RuntimeError(report.problem)
            if report.over:
                break
        failed = report.failed
        if not failed:
            break
    return Moved(time.monotonic() - begun, calls, failed)


def theirs(guest: Guest, source: int, target: int) -> float:
    """Do what ``migratepages(8)`` does, libnuma's ``numa_migrate_pages(3)``; return its time, seconds.

    Starting a program takes longer than moving the pages on an emulated host, so it is not started.

    :raises RuntimeError: the pages did not arrive
    """
    libnuma = ctypes.CDLL("libnuma.so.1", use_errno=True)
    libnuma.numa_parse_nodestring.restype = ctypes.c_void_p
    masks = [
        ctypes.c_void_p(libnuma.numa_parse_nodestring(str(node).encode()))
        for node in (source, target)
    ]
    begun = time.monotonic()
    left = libnuma.numa_migrate_pages(guest.process.pid, *masks)
    seconds = time.monotonic() - begun
    if left or guest.shares() != {target: 1.0}:
        raise RuntimeError(f"numa_migrate_pages returned {left}: pages are at {guest.shares()}")
    return seconds


def all_to_one(guest: Guest) -> dict[str, float]:
    """Move everything to one node and back, by both, each in both directions."""
    ours_s = ours(guest, {1: 1.0}).seconds
    theirs_s = theirs(guest, 1, 0) + theirs(guest, 0, 1)
    ours_s += ours(guest, {0: 1.0}).seconds
    pages = 2 * guest.size / mmap.PAGESIZE
    return {"ours_pages_per_s": pages / ours_s, "theirs_pages_per_s": pages / theirs_s}


def weighted(guest: Guest) -> dict[str, float]:
    """Bring the memory from where it is to the weights."""
    least = least_share(guest.shares(), WEIGHTS) * guest.size
    before = migrated_pages()
    moved = ours(guest, WEIGHTS)
    moved_bytes = (migrated_pages() - before) * mmap.PAGESIZE
    return {
        "bytes_over_minimum": moved_bytes / least,
        "error_pp": error_pp(guest.shares(), WEIGHTS),
        "calls": moved.calls,
        "moved_bytes": moved_bytes,
        "failed_pages": moved.failed,
        "seconds": moved.seconds,
    }


def progress(guest: Guest, work: Callable[[], Any]) -> dict[str, float]:
    """Return what the guest gets done in a second, and its longest operation, while something happens."""
    guest.stats[1] += 1
    guest.stats[0] = 1
    while guest.stats[2] != guest.stats[1]:
        time.sleep(0.01)
    begun, first = time.monotonic(), guest.stats[3]
    work()
    seconds = time.monotonic() - begun
    return {
        "ops_per_s": (guest.stats[3] - first) / seconds,
        "longest_ms": guest.stats[4] / 1e6,
        "seconds": seconds,
    }


def touched(guest: Guest) -> dict[str, Any]:
    """Move the memory to the weights while the guest works on it."""
    moves: list[dict[str, float]] = []

    def rest() -> None:
        time.sleep(_PHASE_S)

    found: dict[str, Any] = {
        "before": progress(guest, rest),
        "during": progress(guest, lambda: moves.append(weighted(guest))),
        "after": progress(guest, rest),
    }
    return {**found, "move": moves[0]}


def main() -> int:
    """Measure one kind and print."""
    kind, mib, touched_mib, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    place = Path(folder)
    place.mkdir()
    try:
        with guest(kind, mib, place) as idle:
            found: dict[str, Any] = {"all_to_one": all_to_one(idle), "weighted": weighted(idle)}
        with guest(kind, touched_mib, place) as busy:
            found["touched"] = touched(busy)
    finally:
        shutil.rmtree(place)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
