# SPDX-License-Identifier: Apache-2.0
"""Transport ``fake``: no GPU, an echo in its place, to try the control plane."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from host_agent.transports.transport import (
    AttachedGpu,
    GpuServer,
    ServerCommand,
    TransportCapabilities,
    virtual_devices,
)
from placement_traits.names import RemoteGpuApi

_ECHO: Final = str(Path(__file__).with_name("echo.py"))


class FakeTransport:
    """An echo; of every interface, so that each kind of lease can be tried."""

    name: ClassVar = "fake"

    def capabilities(self) -> TransportCapabilities:
        """All interfaces; nothing is kept to a slice, and nothing lost by a move, as there is no memory."""
        return TransportCapabilities(frozenset(RemoteGpuApi), enforced=False, movable=True)

    def findings(self) -> Sequence[str]:
        """Nothing can be missing."""
        return ()

    def paths(self) -> Sequence[Path]:
        """``echo.py``; the interpreter is that of the process that starts it."""
        return (Path(_ECHO),)

    def server_command(self, server: GpuServer) -> ServerCommand:
        """``echo.py``; its GPU is in its environment only, so that the two can be seen to belong together."""
        environment = {"HOME": str(server.folder), "FAKE_GPU": server.gpu}
        argv = (sys.executable, "-I", "-S", _ECHO, str(server.port))
        return ServerCommand(argv, environment, server.folder)

    def busy_s(self, server: int) -> float | None:
        """The processor time of the echo, which is busy with nothing else: utime and stime of proc_pid_stat(5)."""
        try:
            text = Path(f"/proc/{server}/stat").read_text()
        except FileNotFoundError:
            return None
        user, system = text.rpartition(") ")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def guest_environment(
        self, gpus: Sequence[AttachedGpu], virtual_per_gpu: int = 1
    ) -> Mapping[str, str]:
        """``FAKE_GPUS``: their addresses."""
        devices = virtual_devices(gpus, virtual_per_gpu)
        return {"FAKE_GPUS": ",".join(f"127.0.0.1:{gpus[index].port}" for index in devices)}
