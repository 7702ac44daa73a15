# SPDX-License-Identifier: Apache-2.0
"""A lease of a remote GPU on this machine, for the show: a program of OpenCL computes by it and checks each number.

::

    numa-rgpu-bench ── TCP ── guest ══ Unix ══ doorman ══ TLS 1.3 ══ gateway ── TCP ── pocld ── the processor
                                                                     └─ namespaces of the lease ─┘

All of it is the product's but three stand-ins: a Unix socket for vsock, this process for the server's QEMU, and the
processor for a GPU. Certificates are of an authority that is forgotten with the run.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from benchmarks.link_certificates import write_certificates
from host_agent.remote_gpu import isolation
from host_agent.remote_gpu.answer import AttachedLease, ServedLease
from host_agent.remote_gpu.doors import Doors, GuestDomain
from host_agent.remote_gpu.groups import LeaseGroups, own_group
from host_agent.remote_gpu.link_files import LinkFiles, LinkPaths
from host_agent.remote_gpu.processes import LeaseCommand, LeaseProcesses
from host_agent.transports.pocl import PoclTransport
from placement_traits.errors import NumaExtError

LEASE: Final = "5e0f6d1c-0000-4000-8000-000000000001"
SERVER: Final = "5e0f6d1c-0000-4000-8000-000000000002"
CID: Final = 3
SLICE_MIB: Final = 256
STARTS_S: Final = 60.0
COMPUTES_S: Final = 1
ENDS_S: Final = 120.0
_STARTED_FIELD: Final = 19  # of proc_pid_stat(5), after the name


class _OwnProcess:
    """In place of the helper: the server's QEMU is this process."""

    def process(self, _server: str) -> Any:
        words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return SimpleNamespace(pid=os.getpid(), started=int(words[_STARTED_FIELD]))


def computed(given: argparse.Namespace, folder: Path, open_: ExitStack) -> dict[str, Any]:
    """Return what the program says in the end, and whether the lease was apart.

    :raises NumaExtError: the lease cannot be served here
    """
    doorman, _ = write_certificates(folder, "compute", "gpu")
    transport = PoclTransport(given.server, given.layer)
    (folder / "pocl.toml").write_text(
        f"program = {json.dumps(str(given.server))}\nlayer = {json.dumps(str(given.layer))}\n"
        'paths = ["/sys/devices/system"]\n'  # of the device on the processor: how much memory there is
    )
    paths = (folder / name for name in ("gpu.pem", "gpu.key", "ca.pem", "none.pem"))
    command = LeaseCommand("pocl", folder, "127.0.0.1", {"gpu": "cpu"}, link=given.link)
    isolation.check()
    run = folder / "run"
    groups = LeaseGroups(run, own_group())
    processes = LeaseProcesses(run, command, groups, LinkFiles(LinkPaths(*paths)))
    open_.callback(processes.end, LEASE)
    begun_s = time.monotonic()
    processes.start(ServedLease(LEASE, 1, "gpu", SLICE_MIB, "silver", "opencl", 0, "compute"))
    _, address = processes.serve(LEASE, 1, "compute")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = folder / "attachments.json"
    domains = [GuestDomain(SERVER, CID)]
    doors = Doors(_OwnProcess(), lambda: domains, transport, file, first_port=port)
    doors.turn([AttachedLease(LEASE, 1, SERVER, "opencl", address, "gpu")])
    door, environment = folder / "door", folder / "env"
    _started(
        open_, given.link, "doorman", "-listen", f"unix:{door}", "-attachments", file, *doorman
    )
    _wait(door.exists)
    _started(
        open_, given.link, "guest", "-doorman", f"unix:{door}#{CID}", "-environment", environment
    )
    _wait(environment.exists)
    said = dict(line.split("=", 1) for line in environment.read_text().splitlines())
    _wait(lambda: _reached(port))
    attached_s = time.monotonic() - begun_s
    ran = subprocess.run(
        [given.bench, "-t", str(COMPUTES_S)],
        env=said | {"OCL_ICD_VENDORS": str(given.vendors), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=ENDS_S,
        check=False,
    )
    if ran.returncode != 0:
        raise SystemExit(f"numa-rgpu-bench ended with {ran.returncode}: {ran.stderr.strip()}")
    rounds = json.loads(ran.stdout.splitlines()[-1])["rounds"]
    return {"rounds": rounds, "attached_s": round(attached_s, 1)}


def _started(open_: ExitStack, *words: object) -> None:
    process = subprocess.Popen([*map(str, words)], stdin=subprocess.DEVNULL)
    open_.callback(lambda: (process.kill(), process.wait()))


def _reached(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def _wait(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + STARTS_S
    while not is_so():
        if time.monotonic() > until_s:
            raise SystemExit(f"the way to the lease is not open after {STARTS_S:.0f} s")
        time.sleep(0.05)


def main() -> int:
    """Print what was computed, as JSON."""
    parser = argparse.ArgumentParser()
    for name in ("link", "server", "layer", "vendors", "bench"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rgpu-") as name, ExitStack() as open_:
        try:
            found = computed(given, Path(name), open_)
        except NumaExtError as error:
            raise SystemExit(str(error)) from error
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
