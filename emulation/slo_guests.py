# SPDX-License-Identifier: Apache-2.0
"""Latency-critical guests that are not there: reports over the real line protocol, from the real state of the host.

``python -m emulation.slo_guests FILE`` listens at the sockets of latency ports in QEMU's place and reports,
a few times a second, what guests would report if a simple law held::

    p99      = objective * load * (1 + gain * pressure)
    pressure = sum over best-effort servers of (share of pages on the node) * level

Share and level are read back from the kernel: pages from numa_maps, levels from the control group that holds the
server's threads. So the loop is closed over real actuators; only the law is modelled. FILE is JSON and read again each
time, so that loads can be stepped from outside::

    {"gain": 4.0, "interval_s": 0.25, "bes": ["UUID"],
     "lcs": [{"port": "PATH", "node": 0, "slo_p99_us": 1000, "load": 0.5, "flood": false}]}
"""

import argparse
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged.operations import HostOperations
from host_agent.machine.rdt.backend import tree
from placement_traits.errors import NumaExtError

LOG = logging.getLogger(__name__)

REQUESTS: Final = 400
_SLOW: Final = 20  # of REQUESTS; more than one in a hundred, so that they make the 99th percentile
_FLOOD: Final = b"x" * 4000 + b"\n"


@dataclass(frozen=True, slots=True)
class BeState:
    """What is effective for a best-effort server: node -> share of its pages; bandwidth level, per cent."""

    shares: Mapping[int, float]
    level: int


def p99_us(
    slo_p99_us: float, load: float, gain: float, node: int, bes: Collection[BeState]
) -> float:
    """Return the 99th percentile by the law above, microseconds."""
    pressure = sum(be.shares.get(node, 0.0) * be.level / 100.0 for be in bes)
    return slo_p99_us * load * (1.0 + gain * pressure)


def report(p99: float) -> bytes:
    """Return one report of :data:`REQUESTS` requests."""
    return f"h {p99 / 2:.0f}:{REQUESTS - _SLOW} {p99:.0f}:{_SLOW}\n".encode()


class Reader(Protocol):
    """Reads what is effective."""

    def read(self, uuid: str) -> BeState | None:
        """Return the state of a server; None when it has no process now."""


class Kernel:
    """Reads what is effective.

    :param paths: where the host's files are
    """

    def __init__(self, paths: HostPaths) -> None:
        self._operations = HostOperations(paths)
        self._resctrl = tree(paths)

    def read(self, uuid: str) -> BeState | None:
        """Return the state of a server; None when it has no process now."""
        try:
            tids = {thread.tid for thread in self._operations.process(uuid).threads}
            resident: dict[int, int] = {}
            for ram in self._operations.guest_ram(uuid):
                for node, kib in ram.resident_kb:
                    resident[node] = resident.get(node, 0) + kib
            level = self._level(tids)
        except (NumaExtError, OSError) as error:
            LOG.debug("server %s: %s", uuid, error)
            return None
        total = sum(resident.values()) or 1
        return BeState({node: kib / total for node, kib in resident.items()}, level)

    def _level(self, tids: Collection[int]) -> int:
        """Return the lowest level of the group that holds the threads."""
        for group in self._resctrl.actual().ours:
            if self._resctrl.tasks(group.name) & set(tids):
                return min(group.schemata.get("MB", {}).values(), default=100)
        return 100


class Port:
    """The host's end of a port, with a guest that reports behind it.

    :param path: of the socket; an earlier listener loses it
    """

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        os.chmod(path, 0o666)
        self._listener.listen(1)
        self._listener.setblocking(False)
        self._connection: socket.socket | None = None

    def send(self, data: bytes) -> None:
        """Send where a reader listens, without waiting."""
        with suppress(BlockingIOError):
            if self._connection is None:
                self._connection, _ = self._listener.accept()
                self._connection.setblocking(False)
            try:
                self._connection.send(data)
            except (BrokenPipeError, ConnectionResetError):
                self._connection = None

    def close(self) -> None:
        """Let go."""
        if self._connection is not None:
            self._connection.close()
        self._listener.close()


def measure(scenario: Mapping[str, Any], kernel: Reader, ports: dict[str, Port]) -> list[float]:
    """Report once for all guests; return the 99th percentiles."""
    bes = [state for uuid in scenario["bes"] if (state := kernel.read(uuid)) is not None]
    found = []
    for lc in scenario["lcs"]:
        port = ports.get(lc["port"]) or Port(Path(lc["port"]))
        ports[lc["port"]] = port
        found.append(p99_us(lc["slo_p99_us"], lc["load"], scenario["gain"], lc["node"], bes))
        port.send(_FLOOD * 16 if lc.get("flood") else report(found[-1]))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Report until killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--pid-dir", type=Path, default=HostPaths().pid_dir)
    options = parser.parse_args(arguments)
    kernel = Kernel(HostPaths(pid_dir=options.pid_dir))
    ports: dict[str, Port] = {}
    while True:
        scenario = json.loads(options.file.read_text())
        measure(scenario, kernel, ports)
        time.sleep(scenario["interval_s"])


if __name__ == "__main__":
    sys.exit(main())
