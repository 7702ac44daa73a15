# SPDX-License-Identifier: Apache-2.0
"""Transport ``pocl``: OpenCL by PoCL-Remote, one ``pocld`` a lease, with fixes of this project.

It needs no file. One of the name ``pocl.toml`` among those of transports says what is elsewhere than here::

    program = "/usr/bin/pocld"
    layer = "/usr/lib/numa-ext-rgpu/libnuma-ext-slice.so"
    vendors = "/etc/OpenCL/vendors"     # names the OpenCL of the device, and no other
    paths = []                          # what that reads of the host, beside /usr

**A ``pocld`` without our fixes is refused**, and ours refuses clients without them. PoCL 6.0 takes what a server that
is gone has not done for done: an application would go on with wrong numbers, or for ever. Fixed ones say so with
``--version``, and behave so, which the probe of each server sees.

**Slices** are kept by a layer of OpenCL that the server loads (``host_agent/remote_gpu/opencl/slice.c``). The probe
sees that it is at work. Where its file is not there, slices are advisory.
"""

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from host_agent.transports import pocl_probe
from host_agent.transports.transport import (
    AttachedGpu,
    GpuServer,
    ServerCommand,
    TransportCapabilities,
    virtual_devices,
)
from placement_traits.errors import InvalidValueError
from placement_traits.names import RemoteGpuApi

FIXED: Final = "loss-is-an-error"
"""In the version of a ``pocld`` with our fixes."""

GUEST_VENDORS: Final = "/etc/OpenCL/numa-ext-rgpu"
"""Folder of a guest that names the client's library."""

_PROBE: Final = str(Path(__file__).with_name("pocl_probe.py"))
_FILES: Final = ("program", "layer", "vendors")
_ANSWERS_S: Final = 5.0
_LOG_LEVEL: Final = "err"


@dataclass(frozen=True, slots=True)
class PoclTransport:
    """PoCL-Remote.

    :param program: ``pocld``
    :param layer: that keeps slices; where the file is not there, nothing does
    :param vendors: folder whose ``*.icd`` files name the OpenCL of the device
    :param reads: what that reads of the host, beside ``/usr``
    """

    name: ClassVar = "pocl"
    program: Path = Path("/usr/bin/pocld")
    layer: Path = Path("/usr/lib/numa-ext-rgpu/libnuma-ext-slice.so")
    vendors: Path = Path("/etc/OpenCL/vendors")
    reads: tuple[Path, ...] = ()

    def capabilities(self) -> TransportCapabilities:
        """OpenCL, on two ports: commands and data. A lease that moves loses what its device held."""
        apis = frozenset({RemoteGpuApi.OPENCL})
        return TransportCapabilities(apis, enforced=self.layer.is_file(), ports=2)

    def findings(self) -> Sequence[str]:
        """Whether ``pocld`` is there, has our fixes, and finds an OpenCL."""
        if not self.program.is_file():
            return (f"{self.program} is not there: install pocld with the fixes of this project",)
        found = []
        version = self._version()
        if FIXED not in version:
            found.append(
                f"{self.program} ({version}) is without the fixes of this project: applications would take what a "
                f"server that is gone has not done for done; build it with the patches in devstack/lab/pocl"
            )
        if not list(self.vendors.glob("*.icd")):
            found.append(f"{self.vendors} names no OpenCL: install that of the GPU")
        return found

    def paths(self) -> Sequence[Path]:
        """``pocld``, the layer, the device's OpenCL, and the probe."""
        return (self.program, self.layer, self.vendors, Path(_PROBE), *self.reads)

    def server_command(self, server: GpuServer) -> ServerCommand:
        """``pocld`` on 127.0.0.1; drivers of NVIDIA and AMD select the GPU by what they know it by."""
        environment = {
            "HOME": str(server.folder),
            "PATH": "/usr/bin:/bin",  # compilers of OpenCL run others
            "OCL_ICD_VENDORS": str(self.vendors),
            "POCL_CACHE_DIR": f"{server.folder}/kernels",
            "POCLD_LOGLEVEL": _LOG_LEVEL,
            "CUDA_VISIBLE_DEVICES": server.gpu,
            "ROCR_VISIBLE_DEVICES": server.gpu,
        }
        probe = [sys.executable, "-I", "-S", _PROBE, str(server.port)]
        if self.layer.is_file():
            environment |= {
                "OPENCL_LAYERS": str(self.layer),
                "NUMA_EXT_SLICE_BYTES": str(server.memory_bytes),
                "NUMA_EXT_SLICE_FILE": f"{server.folder}/{pocl_probe.COUNTERS_FILE}",
            }
            probe.append(str(server.memory_bytes))
        argv = (str(self.program), "-a", "127.0.0.1", "-p", str(server.port))
        return ServerCommand(argv, environment, server.folder, tuple(probe))

    def busy_s(self, server: int) -> float | None:
        """The time in which a kernel of the lease ran or waited to, by the layer of slices; None without it."""
        found = _counters(server)
        if found is None:
            return None
        *_, busy_ns, since_ns = found
        return (busy_ns + (time.monotonic_ns() - since_ns if since_ns else 0)) / 1e9

    def held_bytes(self, server: int) -> int | None:
        """What buffers, images and pipes of the lease take, by the layer of slices; None without it."""
        found = _counters(server)
        return None if found is None else found[1]

    def guest_environment(
        self, gpus: Sequence[AttachedGpu], virtual_per_gpu: int = 1
    ) -> Mapping[str, str]:
        """PoCL's remote devices, by the library of the package for guests and no other OpenCL."""
        devices = virtual_devices(gpus, virtual_per_gpu)
        found = {
            "OCL_ICD_VENDORS": GUEST_VENDORS,
            "POCL_DEVICES": " ".join(["remote"] * len(devices)),
        }
        for j, index in enumerate(devices):
            found[f"POCL_REMOTE{j}_PARAMETERS"] = f"127.0.0.1:{gpus[index].port}/0"
        return found

    def _version(self) -> str:
        try:
            ran = subprocess.run(
                [self.program, "--version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_ANSWERS_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return ran.stdout.strip() or f"status {ran.returncode}"


def _counters(server: int) -> tuple[int, ...] | None:
    return pocl_probe.counters(f"/proc/{server}/cwd")


def read(path: Path) -> PoclTransport:
    """Read what is elsewhere than here.

    :param path: of the file; it need not be there
    :raises InvalidValueError: it cannot be read, is malformed, or has an unknown key or value
    """
    try:
        raw = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return PoclTransport()
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidValueError(str(path), str(error), "a readable TOML file") from error
    for name in raw:
        if name not in (*_FILES, "paths"):
            raise InvalidValueError(
                f"{path}: {name}", name, f"the keys {', '.join((*_FILES, 'paths'))}"
            )
    paths = raw.get("paths", [])
    if not isinstance(paths, list):
        raise InvalidValueError(f"{path}: paths", paths, "a list of absolute paths")
    usual = PoclTransport()
    program, layer, vendors = (
        _absolute(f"{path}: {name}", raw.get(name, str(getattr(usual, name)))) for name in _FILES
    )
    reads = tuple(_absolute(f"{path}: paths", each) for each in paths)
    return PoclTransport(program, layer, vendors, reads)


def _absolute(key: str, value: object) -> Path:
    if not isinstance(value, str) or not os.path.isabs(value) or ".." in Path(value).parts:
        raise InvalidValueError(key, value, "an absolute path without ..")
    return Path(value)
