# SPDX-License-Identifier: Apache-2.0
"""Others that move guest pages: the kernel's automatic NUMA balancing, and numad.

Both bring pages to the vCPUs that touch them. That agrees with memory kept local and undoes memory that is spread over
nodes, page by page, for ever: two writers for one thing. The kernel has no way to leave a process out from outside
(only a memory policy would, which a process sets for itself), so where one of them is at work nothing is spread, and
the reason says so. Guests bound by nova have such a policy and are not concerned.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from placement_traits.regular_file import open_regular

LOG = logging.getLogger(__name__)

NUMAD_PID_FILE: Final = Path("/run/numad.pid")
_PID_DIGITS: Final = 16
_SYSCTL: Final = "sys/kernel/numa_balancing"
_NORMAL: Final = 1  # NUMA_BALANCING_NORMAL; 2, memory tiering, only promotes pages of slow memory


def numa_balancing(proc: Path) -> bool:
    """Tell whether the kernel balances NUMA nodes."""
    try:
        return bool(int((proc / _SYSCTL).read_text()) & _NORMAL)
    except (OSError, ValueError):
        return False  # not in this kernel


def numad(proc: Path) -> int | None:
    """Return the process id of numad, None when it does not run; looks at all processes."""
    return next((pid for pid in _processes(proc) if _is_numad(proc, pid)), None)


def _processes(proc: Path) -> list[int]:
    """List the processes; none where they cannot be listed, which is logged and no reason to stop NUMA balancing."""
    try:
        return [int(name) for name in os.listdir(proc) if name.isdecimal()]
    except OSError as error:
        LOG.warning("numad is not looked for: %s", error)
        return []


def _is_numad(proc: Path, pid: int) -> bool:
    try:
        return (proc / str(pid) / "comm").read_bytes() == b"numad\n"
    except OSError:
        return False  # ended, or hidden from us


@dataclass(slots=True)
class Guard:
    """Finds why memory must not be spread on this host; any thread may ask.

    All processes are looked at once, by the first who asks, so that nothing is spread before. From then on two are: the
    numad that was found, and the one that names itself in its file. Every version of numad does so, and starts only
    where no other one has; one in a container that keeps the file to itself is found by the first look only.

    :param proc: the proc file system
    :param every_s: seconds between two looks
    :param pid_file: in which numad names itself
    """

    proc: Path
    every_s: float
    clock: Callable[[], float] = time.monotonic
    pid_file: Path = NUMAD_PID_FILE
    _looked_s: float | None = None
    _numad: int | None = None
    _unread: str = ""

    def __call__(self) -> str:
        """Return the reason, "" when there is none."""
        if numa_balancing(self.proc):
            return "kernel.numa_balancing is on and would move spread pages back: set it to 0"
        now = self.clock()
        if self._looked_s is None:
            self._numad = numad(self.proc)
            self._looked_s = now
        elif now - self._looked_s >= self.every_s:
            self._looked_s = now
            known = [pid for pid in (self._numad, self._named()) if pid is not None]
            self._numad = next((pid for pid in known if _is_numad(self.proc, pid)), None)
        if self._numad is not None:
            return f"numad (process {self._numad}) would move spread pages back: stop it"
        return ""

    def _named(self) -> int | None:
        """Return the process in numad's file; a file that cannot be used is logged once."""
        try:
            with open_regular(self.pid_file) as file:
                found = int(file.read(_PID_DIGITS))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            if str(error) != self._unread:
                LOG.warning("numad is not looked for in %s: %s", self.pid_file, error)
            self._unread = str(error)
            return None
        return found
