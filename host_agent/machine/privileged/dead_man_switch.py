# SPDX-License-Identifier: Apache-2.0
"""A dead man's switch: when the agent dies or hangs, best-effort servers must not stay throttled for ever.

The privileged side starts a small process (:mod:`.watchdog`) and gives it a byte through a pipe at each heartbeat. When
none comes for some time – the agent was killed, crashed, or hangs – the process takes all throttles of ours off:
bandwidth levels of our RDT groups and quotas of vCPUs. Masks, pins and pages stay, which hurt no server. An agent that
shuts down gracefully reports it, and what it left then stays. A new agent that has taken over meanwhile is left alone.

The kernel closes the pipe however the agent ends, so this needs no systemd; under systemd the unit has
``KillMode=process``, or the process would be killed with the agent.
"""

import os
import subprocess
import sys
from contextlib import suppress
from typing import Final

from host_agent.conf.paths import HostPaths

HEARTBEAT: Final = b"."
SHUTDOWN: Final = b"q"
PLACES: Final = ("proc", "sys", "resctrl", "libvirt_pids", "state")
_WATCHDOG: Final = "host_agent.machine.privileged.watchdog"


class DeadManSwitch:
    """The agent's end.

    :param paths: of this host
    :param after_s: seconds without a heartbeat after which throttles are taken off
    """

    def __init__(self, paths: HostPaths, after_s: float) -> None:
        self._paths = paths
        self._after_s = after_s
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def beat(self) -> None:
        """Give a heartbeat; start the process where it does not run (any more)."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        # A full pipe holds more heartbeats than it takes; a broken one is found by the next call.
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._pipe, HEARTBEAT)

    def shut_down(self) -> None:
        """Shut down gracefully: everything stays as it is."""
        if self._process is None:
            return
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._pipe, SHUTDOWN)
        os.close(self._pipe)
        self._process.wait()
        self._process = None

    def _start(self) -> None:
        if self._process is not None:
            os.close(self._pipe)
        reading, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        command = [sys.executable, "-m", _WATCHDOG, f"--after={self._after_s}"]
        command += [f"--charge={in_charge(self._paths)}", f"--backend={self._paths.rdt_backend}"]
        command += [f"--{name}={getattr(self._paths, name)}" for name in PLACES]
        # A session of its own: what the agent's terminal or supervisor sends to its group does not reach it.
        self._process = subprocess.Popen(command, stdin=reading, start_new_session=True)
        os.close(reading)


def in_charge(paths: HostPaths) -> str:
    """Return who took the lock last: the agent's process, or one that came after it."""
    try:
        return paths.lock.read_text().strip()
    except OSError:
        return ""
