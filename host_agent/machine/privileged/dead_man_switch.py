# SPDX-License-Identifier: Apache-2.0
"""A dead man's switch: when the agent dies or hangs, best-effort servers must not stay throttled for ever.

The privileged side starts a small process and gives it a byte through a pipe at each sign of life. When none comes for
some time – the agent was killed, crashed, or hangs – the process takes all throttles of ours off: bandwidth levels of
our RDT groups and quotas of vCPUs. Masks, pins and pages stay, which hurt nobody. An agent that ends as it should says
so, and what it left then stays. A new agent that has taken over meanwhile is left alone.

The kernel closes the pipe however the agent ends, so this needs no systemd; under systemd the unit says
``KillMode=process``, or the process would be killed with the agent.
"""

import argparse
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from host_agent.conf.paths import HostPaths
from host_agent.util.single_instance import only_one
from placement_traits.errors import ConflictError, NumaExtError

LOG = logging.getLogger("numa-host-agent-guard")

_ALIVE: Final = b"."
_FAREWELL: Final = b"q"
_CHUNK: Final = 4096
_RETRY_S: Final = 1.0


class Guard:
    """The agent's end.

    :param paths: of this host
    :param after_s: seconds without a sign of life after which throttles are taken off
    """

    def __init__(self, paths: HostPaths, after_s: float) -> None:
        self._paths = paths
        self._after_s = after_s
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def alive(self) -> None:
        """Give a sign of life; start the process where it does not run (any more)."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        # A full pipe holds more signs than it takes; a broken one is found by the next call.
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._pipe, _ALIVE)

    def leave(self) -> None:
        """End as one should: everything stays as it is."""
        if self._process is None:
            return
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._pipe, _FAREWELL)
        os.close(self._pipe)
        self._process.wait()
        self._process = None

    def _start(self) -> None:
        if self._process is not None:
            os.close(self._pipe)
        reading, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        command = [sys.executable, "-m", __name__, f"--after={self._after_s}"]
        command += [f"--charge={_in_charge(self._paths)}", f"--backend={self._paths.rdt_backend}"]
        command += [f"--{name}={getattr(self._paths, name)}" for name in _PLACES]
        # A session of its own: what the agent's terminal or supervisor sends to its group does not reach it.
        self._process = subprocess.Popen(command, stdin=reading, start_new_session=True)
        os.close(reading)


_PLACES: Final = ("proc", "sys", "resctrl", "libvirt_pids", "state")


def watch(pipe: int, after_s: float, silent: Callable[[], None], ended: Callable[[], None]) -> None:
    """Wait for signs of life until the agent takes its leave or has ended.

    :param silent: called when there was none for so long, once per silence
    :param ended: called when the agent has ended without leave, so long after its last sign
    """
    deadline = time.monotonic() + after_s
    heard = True
    while True:
        patience = max(0.0, deadline - time.monotonic()) if heard else None
        if not select.select([pipe], [], [], patience)[0]:
            silent()
            heard = False
            continue
        signs = os.read(pipe, _CHUNK)
        if _FAREWELL in signs:
            return
        if not signs:
            time.sleep(max(0.0, deadline - time.monotonic()))
            ended()
            return
        heard = True
        deadline = time.monotonic() + after_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Guard the agent that started this process; standard input is its pipe."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--after", type=float, required=True, help="seconds without a sign of life")
    parser.add_argument("--backend", required=True, help="see [rdt]backend")
    parser.add_argument("--charge", required=True, help="who is in charge, see the lock file")
    for name in _PLACES:
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    places = {name: getattr(given, name) for name in _PLACES}
    paths = HostPaths(**places, rdt_backend=given.backend)

    def silent() -> None:
        LOG.warning("no sign of life of the agent for %g s", given.after)
        _release(paths)

    def ended() -> None:
        if _in_charge(paths) != given.charge:
            LOG.info("others have been in charge since the agent has ended")
            return
        try:
            with only_one(paths.lock, "it is in charge"):
                LOG.warning("the agent has ended without leave")
                _release(paths)
        except ConflictError as error:
            LOG.info("%s", error)

    watch(sys.stdin.fileno(), given.after, silent, ended)
    return 0


def _in_charge(paths: HostPaths) -> str:
    """Return who took the lock last: the agent's process, or whoever came after it."""
    try:
        return paths.lock.read_text().strip()
    except OSError:
        return ""


def _release(paths: HostPaths) -> None:
    """Take the throttles off; what fails is told and tried once more, for nobody else would."""
    from host_agent.machine.privileged.operations import HostOperations

    for _attempt in range(2):
        try:
            for write in HostOperations(paths).release_throttles(True):
                LOG.warning("released: %s", write)
            return
        except (NumaExtError, OSError) as error:
            LOG.error("throttles were not released: %s", error)
            time.sleep(_RETRY_S)


if __name__ == "__main__":
    sys.exit(main())
