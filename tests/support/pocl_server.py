# SPDX-License-Identifier: Apache-2.0
"""A ``pocld`` on 127.0.0.1 with a device on the processor, and programs that use it, without leases between them."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from numa_lab.pocl_build import Pocl

from host_agent.remote_gpu.lease_process import Ports
from host_agent.transports import pocl_probe
from host_agent.transports.pocl import PoclTransport
from host_agent.transports.transport import GpuServer
from tests.support.polling import until

HANGS_S: Final = 30.0
STARTS_S: Final = 10.0
FAILED: Final = 1
"""How ``numa-rgpu-bench`` ends where OpenCL says that something has failed."""


def transport(pocl: Pocl) -> PoclTransport:
    """Return the transport with what was built."""
    return PoclTransport(pocl.server, pocl.layer)


def write_pocl(folder: Path, server: Path, layer: Path) -> None:
    """Write into a folder of transports where ``pocld`` and the layer of slices are."""
    files = {"program": server, "layer": layer}
    lines = (f"{name} = {json.dumps(str(path))}\n" for name, path in files.items())
    # Debian's device on the processor asks there how much memory there is.
    system = 'paths = ["/sys/devices/system"]\n'
    (folder / "pocl.toml").write_text("".join(lines) + system)


def client_environment(pocl: Pocl, *ports: int) -> dict[str, str]:
    """Return the environment of a program that finds its devices at ports of 127.0.0.1."""
    return {
        "PATH": "/usr/bin:/bin",
        "OCL_ICD_VENDORS": str(pocl.vendors),
        "POCL_DEVICES": " ".join(["remote"] * len(ports)),
        **{f"POCL_REMOTE{j}_PARAMETERS": f"127.0.0.1:{port}/0" for j, port in enumerate(ports)},
    }


@dataclass
class PoclServer:
    """A ``pocld`` that runs.

    :param pocl: what was built
    :param folder: its own
    :param port: of its commands
    :param process: it
    """

    pocl: Pocl
    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    clients: list[subprocess.Popen[str]] = field(default_factory=list)

    def client(self, *words: object) -> subprocess.Popen[str]:
        """Start ``numa-rgpu-bench``."""
        started = subprocess.Popen(
            [self.pocl.bench, *map(str, words)],
            env=client_environment(self.pocl, self.port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.clients.append(started)
        return started

    def working(self, *words: object) -> subprocess.Popen[str]:
        """Start it, and wait until its first round is done, or its buffers are taken."""
        started = self.client(*words)
        assert started.stdout is not None
        assert started.stdout.readline(), started.communicate()
        return started

    def says(self, *words: object) -> dict[str, Any]:
        """Run it to its end; return what it says last."""
        said, why = self.client(*words).communicate(timeout=HANGS_S)
        assert said, why
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found

    def counted(self) -> dict[str, int]:
        """Return what the layer counts."""
        found = pocl_probe.counters(str(self.folder))
        assert found is not None
        names = ("limit", "held", "peak", "objects", "refused", "busy_ns", "since_ns")
        return dict(zip(names, found, strict=True))


@contextmanager
def pocl_server(
    pocl: Pocl,
    folder: Path,
    memory_mb: int = 200,
    more: Mapping[str, str] | None = None,
    starts_s: float = STARTS_S,
) -> Iterator[PoclServer]:
    """Run one until the end of the block.

    :param memory_mb: its slice, MiB
    :param more: of its environment
    :param starts_s: until it has to serve, seconds
    """
    made = transport(pocl)
    with Ports(made.capabilities().ports) as ports, (folder / "log").open("w") as log:
        command = made.server_command(GpuServer("lease", "cpu", memory_mb, ports[0], folder))
        process = subprocess.Popen(
            command.argv,
            env=command.environment | (more or {}),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stderr=log,
        )
    found = PoclServer(pocl, folder, ports[0], process)
    try:
        until(lambda: serves(command.probe, folder), starts_s)
        yield found
    finally:
        for client in found.clients:
            client.kill()
            client.wait()
        process.kill()
        process.wait()


def serves(probe: tuple[str, ...], folder: Path) -> bool:
    """Run the probe of a server; return whether it serves."""
    environment = {"PATH": os.environ["PATH"]}
    ran = subprocess.run(probe, cwd=folder, env=environment, capture_output=True, check=False)
    return ran.returncode == 0
