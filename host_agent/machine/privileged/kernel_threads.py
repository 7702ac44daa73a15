# SPDX-License-Identifier: Apache-2.0
"""Kernel threads that work for a domain and stand outside its process: named after it, children of kthreadd.

=============================  ============================================================
``vhost-PID``                  network and disk queues, before Linux 6.4; then in the process
``kvm-pit/PID``                the guest's interval timer
``kvm-nx-lpage-recovery-PID``  puts large pages together again, before Linux 6.14
=============================  ============================================================

They are looked for among kthreadd's children (``/proc/2/task/2/children``, a thousand at most), never among all
processes of the host: when servers start, when a device is plugged in, and once a minute. All other rounds ask
only whether a thread that is known still lives.
"""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from host_agent.machine.privileged.proc_files import read_small

LOG = logging.getLogger(__name__)

_CHILDREN: Final = "2/task/2/children"
_EVERY_S: Final = 60.0
_AT_MOST_EVERY_S: Final = 1.0  # servers that are read one after the other share a look
_NAME: Final = re.compile(rb"(?:vhost-|kvm-pit/|kvm-nx-lpage-recovery-)(\d+)\n")
_FLAGS, _STARTED = 6, 19  # fields of proc_pid_stat(5), counted from the one after the name
_PF_KTHREAD: Final = 0x00200000  # include/linux/sched.h: of the kernel, which no user can make


@dataclass(frozen=True, slots=True)
class _KernelThread:
    tid: int
    started: int


class KernelThreads:
    """Finds them.

    :param proc: the proc file system
    :param clock: seconds, monotonic
    """

    def __init__(self, proc: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = str(proc)
        self._clock = clock
        self._found: dict[int, list[_KernelThread]] = {}
        self._looked_s = -inf
        self._due = False
        self._problem = ""

    def look_again(self) -> None:
        """Look for them at the next occasion: a server may have got one."""
        self._due = True

    def of(self, pid: int) -> tuple[int, ...]:
        """Return the kernel threads that work for a process, as far as they live."""
        now = self._clock()
        if now - self._looked_s >= (_AT_MOST_EVERY_S if self._due else _EVERY_S):
            self._looked_s, self._due = now, False
            self._look()
        return tuple(
            thread.tid
            for thread in self._found.get(pid, ())
            if self._identity(thread.tid) == thread
        )

    def _look(self) -> None:
        try:
            children = Path(self._proc, _CHILDREN).read_bytes().split()
        except OSError as error:
            self._report(f"{self._proc}/{_CHILDREN} cannot be read: {error.strerror}")
            return
        self._report("")
        found: dict[int, list[_KernelThread]] = {}
        for tid in map(int, children):
            pid = self._served(tid)
            thread = self._identity(tid) if pid else None
            if thread is not None:
                found.setdefault(pid, []).append(thread)
        self._found = found  # at once: other threads of the helper read it meanwhile

    def _served(self, tid: int) -> int:
        """Return the process that a thread is named after, 0 for none."""
        try:
            named = _NAME.fullmatch(read_small(f"{self._proc}/{tid}/comm"))
        except OSError:
            return 0  # ended between listing and reading
        return int(named[1]) if named else 0

    def _identity(self, tid: int) -> _KernelThread | None:
        """Return the kernel thread that has an id now; a process that has only its name is none."""
        try:
            fields = read_small(f"{self._proc}/{tid}/stat").rpartition(b")")[2].split()
        except OSError:
            return None
        kernel = int(fields[_FLAGS]) & _PF_KTHREAD
        return _KernelThread(tid, int(fields[_STARTED])) if kernel else None

    def _report(self, problem: str) -> None:
        if problem and problem != self._problem:
            LOG.warning("kernel threads of servers stay in the default group: %s", problem)
        self._problem = problem
