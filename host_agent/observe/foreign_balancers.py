# SPDX-License-Identifier: Apache-2.0
"""Others that move guest pages: the kernel's automatic NUMA balancing, and numad.

Both bring pages to the vCPUs that touch them. That agrees with memory kept local and undoes memory that is spread over
nodes, page by page, for ever: two writers for one thing. The kernel has no way to leave a process out from outside
(only a memory policy would, which a process sets for itself), so where one of them is at work nothing is spread, and
the reason says so. Guests bound by nova have such a policy and are not concerned.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from host_agent.util.background import BackgroundTasks

LOG = logging.getLogger(__name__)

_SYSCTL: Final = "sys/kernel/numa_balancing"
_NORMAL: Final = 1  # NUMA_BALANCING_NORMAL; 2, memory tiering, only promotes pages of slow memory


def numa_balancing(proc: Path) -> bool:
    """Tell whether the kernel balances NUMA nodes."""
    try:
        return bool(int((proc / _SYSCTL).read_text()) & _NORMAL)
    except (OSError, ValueError):
        return False  # not in this kernel


def numad(proc: Path) -> int | None:
    """Return the process id of numad, None when it does not run."""
    for entry in _entries(proc):
        try:
            if entry.name.isdecimal() and (entry / "comm").read_text() == "numad\n":
                return int(entry.name)
        except OSError:
            continue  # ended between listing and reading
    return None


def _entries(proc: Path) -> list[Path]:
    """List the processes; none where they cannot be listed, which is logged and no reason to stop NUMA balancing."""
    try:
        return list(proc.iterdir())
    except OSError as error:
        LOG.warning("numad is not looked for: %s", error)
        return []


@dataclass(slots=True)
class Guard:
    """Finds why memory must not be spread on this host; any thread may ask.

    :param proc: the proc file system
    :param every_s: seconds between two searches for numad, which look at all processes. The first is made at once, so
        that nothing is spread before; the others run beside the caller, and their answer counts when it is there
    :param tasks: runs the searches; one may wait for another
    """

    proc: Path
    every_s: float
    clock: Callable[[], float] = time.monotonic
    tasks: BackgroundTasks = field(default_factory=lambda: BackgroundTasks("numad", 1))
    _begun_s: float | None = None
    _numad: int | None = None

    def __call__(self) -> str:
        """Return the reason, "" when there is none."""
        if numa_balancing(self.proc):
            return "kernel.numa_balancing is on and would move spread pages back: set it to 0"
        now = self.clock()
        if self._begun_s is None:
            self._look()
            self._begun_s = now
        elif now - self._begun_s >= self.every_s:
            self._begun_s = now
            self.tasks.submit(self._look)
        if self._numad is not None:
            return f"numad (process {self._numad}) would move spread pages back: stop it"
        return ""

    def _look(self) -> None:
        self._numad = numad(self.proc)
