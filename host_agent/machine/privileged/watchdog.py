# SPDX-License-Identifier: Apache-2.0
"""The process behind the dead man's switch: waits for heartbeats, and takes throttles off when none come."""

import argparse
import logging
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged.dead_man_switch import PLACES, SHUTDOWN, in_charge
from host_agent.machine.privileged.operations import HostOperations
from host_agent.util import logs
from host_agent.util.single_instance import single_instance
from placement_traits.errors import ConflictError, NumaExtError

LOG = logging.getLogger("numa-host-agent-watchdog")

_CHUNK: Final = 4096
_ATTEMPTS: Final = 2
_RETRY_S: Final = 1.0


def watch(pipe: int, after_s: float, silent: Callable[[], None], ended: Callable[[], None]) -> None:
    """Wait for heartbeats until the agent shuts down gracefully or has ended.

    :param silent: called when there was none for so long, once per silence
    :param ended: called when the agent has ended without a graceful shutdown, so long after its last heartbeat
    """
    deadline = time.monotonic() + after_s
    beating = True
    while True:
        patience = max(0.0, deadline - time.monotonic()) if beating else None
        if not select.select([pipe], [], [], patience)[0]:
            silent()
            beating = False
            continue
        received = os.read(pipe, _CHUNK)
        if SHUTDOWN in received:
            return
        if not received:
            time.sleep(max(0.0, deadline - time.monotonic()))
            ended()
            return
        beating = True
        deadline = time.monotonic() + after_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Watch the agent that started this process; standard input is its pipe."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--after", type=float, required=True, help="seconds without a heartbeat")
    parser.add_argument("--backend", required=True, help="see [rdt]backend")
    parser.add_argument("--charge", required=True, help="who is in charge, see the lock file")
    for name in PLACES:
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args(arguments)
    logs.to_stderr(LOG.name)
    places = {name: getattr(given, name) for name in PLACES}
    paths = HostPaths(**places, rdt_backend=given.backend)

    def silent() -> None:
        LOG.warning("no heartbeat of the agent for %g s", given.after)
        _release(paths)

    def ended() -> None:
        if in_charge(paths) != given.charge:
            LOG.info("another process has been in charge since the agent has ended")
            return
        try:
            with single_instance(paths.lock, "it is in charge"):
                LOG.warning("the agent has ended without a graceful shutdown")
                _release(paths)
        except ConflictError as error:
            LOG.info("%s", error)

    watch(sys.stdin.fileno(), given.after, silent, ended)
    return 0


def _release(paths: HostPaths) -> None:
    """Take the throttles off; a failure is logged and tried once more, as no other process would."""
    for _attempt in range(_ATTEMPTS):
        try:
            for write in HostOperations(paths).release_throttles(True):
                LOG.warning("released: %s", write)
            return
        except (NumaExtError, OSError) as error:
            LOG.error("throttles were not released: %s", error)
            time.sleep(_RETRY_S)


if __name__ == "__main__":
    sys.exit(main())
