# SPDX-License-Identifier: Apache-2.0
"""The threads that the resctrl model moves about: a table for tests, or the real ones of this host."""

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


class Threads(Protocol):
    """The threads of the host."""

    def all(self) -> Iterable[int]:
        """Return all thread ids."""

    def exists(self, tid: int) -> bool:
        """Return whether a thread lives (or is a zombie)."""

    def origin(self, tid: int) -> tuple[int, float] | None:
        """Return (thread or process that it was cloned from, time of birth), None when it is gone."""

    def now(self) -> float:
        """Return the time in the scale of births."""


class ThreadTable:
    """Threads that exist only in a table; time counts births."""

    def __init__(self, tids: Iterable[int] = ()) -> None:
        self._origin: dict[int, tuple[int, float]] = {}
        self._time = 0.0
        for tid in tids:
            self.spawn(tid)

    def spawn(self, tid: int, parent: int = 0) -> int:
        """Let a thread be born of another one (0: of none known); return its id."""
        self._time += 1
        self._origin[tid] = (parent, self._time)
        return tid

    def end(self, tid: int) -> None:
        """Let a thread end."""
        del self._origin[tid]

    def all(self) -> Iterable[int]:
        return tuple(self._origin)

    def exists(self, tid: int) -> bool:
        return tid in self._origin

    def origin(self, tid: int) -> tuple[int, float] | None:
        return self._origin.get(tid)

    def now(self) -> float:
        return self._time


class ProcThreads:
    """The threads of this host, from proc(5). A thread that lived between two looks only is never seen."""

    def all(self) -> Iterable[int]:
        found: list[int] = []
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                try:
                    found += map(int, os.listdir(process / "task"))
                except OSError:
                    continue  # it ended meanwhile
        return found

    def exists(self, tid: int) -> bool:
        return Path(f"/proc/{tid}/stat").exists()

    def origin(self, tid: int) -> tuple[int, float] | None:
        try:
            fields = _stat(tid)
            status = Path(f"/proc/{tid}/status").read_text()
        except OSError:
            return None
        match = re.search(r"^Tgid:\s*(\d+)", status, re.MULTILINE)
        process = int(match[1]) if match else tid
        parent = int(fields[1]) if process == tid else process
        return parent, int(fields[19]) * _TICK_S

    def now(self) -> float:
        # Start times are in whole ticks, rounded down.
        return time.clock_gettime(time.CLOCK_BOOTTIME) // _TICK_S * _TICK_S


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a thread would have moved to memory since it was born, without any throttling."""

    total_bytes: float = 0.0
    local_bytes: float = 0.0

    def since(self, before: "Traffic") -> "Traffic":
        """Return the growth; none when the thread has ended, or its id belongs to a new one."""
        if self.total_bytes < before.total_bytes:
            return Traffic()
        return Traffic(self.total_bytes - before.total_bytes, self.local_bytes - before.local_bytes)


Demand = Callable[[int, int], Traffic]
"""(thread id, L3 domain) -> traffic so far; only its growth matters."""


def no_demand(_tid: int, _domain: int) -> Traffic:
    """Demand of threads that never touch memory."""
    return Traffic()


def cpu_time_demand(bytes_per_s: float, local_share: float, domains: int) -> Demand:
    """Return the demand of real threads: so many bytes per second of CPU time, dealt evenly to the domains."""

    def demand(tid: int, _domain: int) -> Traffic:
        try:
            fields = _stat(tid)
        except OSError:
            return Traffic()
        total = (int(fields[11]) + int(fields[12])) * _TICK_S * bytes_per_s / domains
        return Traffic(total, total * local_share)

    return demand


def _stat(tid: int) -> list[str]:
    """Return the fields of ``/proc/TID/stat`` after the command, which may hold blanks: state is number 0."""
    return Path(f"/proc/{tid}/stat").read_text().rsplit(")", 1)[1].split()
