# SPDX-License-Identifier: Apache-2.0
"""The interface of a transport of remote GPUs, and the shapes that pass it. No process is started here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from placement_traits.errors import InvalidValueError
from placement_traits.names import RemoteGpuApi

_MIB: Final = 1 << 20
_HIGHEST_PORT: Final = 65535
MOST_DEVICES: Final = 192
"""Of a guest: 16 leases of a server with 12 virtual GPUs each."""


@dataclass(frozen=True, slots=True)
class TransportCapabilities:
    """What a transport can do, wherever it is installed.

    :param apis: by which guests use a GPU over it
    :param enforced: no lease gets more memory than its slice; else nothing keeps it from that
    :param movable: a lease that goes to another GPU of this transport loses nothing by it but its connections
    :param ports: consecutive TCP ports of 127.0.0.1 that one lease's server listens on
    """

    apis: frozenset[RemoteGpuApi]
    enforced: bool
    ports: int = 1
    movable: bool = False


@dataclass(frozen=True, slots=True)
class GpuServer:
    """What the server process of one lease is started for.

    :param lease: the lease's uuid
    :param gpu: as the GPU's own driver selects it (its uuid or index); text without white space
    :param memory_mb: the slice of its memory, MiB
    :param port: the first of its ports on 127.0.0.1
    :param folder: that only this process writes; gone with the lease
    :raises InvalidValueError: no memory, an impossible port or GPU
    """

    lease: str
    gpu: str
    memory_mb: int
    port: int
    folder: Path

    def __post_init__(self) -> None:
        if self.memory_mb < 1:
            raise InvalidValueError("GPU memory of a lease", self.memory_mb, "at least 1 MiB")
        if not 0 < self.port <= _HIGHEST_PORT:
            raise InvalidValueError("port of a lease's server", self.port, f"1 to {_HIGHEST_PORT}")
        if self.gpu.split() != [self.gpu]:
            raise InvalidValueError("GPU of a lease", self.gpu, "one word")

    @property
    def memory_bytes(self) -> int:
        """The slice in bytes."""
        return self.memory_mb * _MIB


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How the server process of one lease is started. It stays in the foreground.

    :param argv: program, as an absolute path, and arguments
    :param environment: the process's whole environment
    :param folder: in which it is started
    :param probe: a command that ends with status 0 when it serves; empty: it serves when its ports take connections
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    probe: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttachedGpu:
    """A lease's GPU as a guest reaches it.

    :param port: the first of the ports on the guest's 127.0.0.1 that lead to the lease's server
    """

    port: int


class RemoteGpuTransport(Protocol):
    """Carries the use of a GPU to other hosts. Instances hold configuration only and may be used by any thread."""

    @property
    def name(self) -> str:
        """As ``CUSTOM_NUMA_EXT_RGPU_TRANSPORT_*`` has it, in small letters."""
        ...

    def capabilities(self) -> TransportCapabilities:
        """What it can do."""
        ...

    def findings(self) -> Sequence[str]:
        """Return why it cannot serve leases on this host, a sentence each with the remedy; none where it can."""
        ...

    def paths(self) -> Sequence[Path]:
        """Return what its server reads of this host beside ``/usr``: absolute paths; the server sees nothing else."""
        ...

    def server_command(self, server: GpuServer) -> ServerCommand:
        """Return how the server of a lease is started."""
        ...

    def guest_environment(
        self, gpus: Sequence[AttachedGpu], virtual_per_gpu: int = 1
    ) -> Mapping[str, str]:
        """Return the environment by which a guest's programs find their GPUs.

        :param gpus: of the leases of one guest that this transport carries, in a lasting order; at least one
        :param virtual_per_gpu: as how many devices each of them appears (``numa_ext:remote_gpu_vgpus_per_gpu``)
        :raises InvalidValueError: no GPU, or more devices than a guest may have
        """
        ...


@runtime_checkable
class UseSensor(Protocol):
    """A transport that can tell how long a lease has kept its GPU busy; not every one can, and none has to."""

    def busy_s(self, server: int) -> float | None:
        """Return the seconds in which the GPU worked for a lease, since the start of its server; None: not known now.

        It is asked where the server is, in its namespaces, every few seconds, and has to answer at once.

        :param server: number of the server's process
        """
        ...


@runtime_checkable
class MemorySensor(Protocol):
    """A transport that can tell how much memory of its GPU a lease has in use; not every one can, and none has to."""

    def held_bytes(self, server: int) -> int | None:
        """Return the bytes of the GPU's memory that programs of a lease have now; None: not known now.

        It is asked as :meth:`UseSensor.busy_s` is.

        :param server: number of the server's process
        """
        ...


def virtual_devices(gpus: Sequence[AttachedGpu], virtual_per_gpu: int) -> tuple[int, ...]:
    """Return for each device of a guest which of its GPUs it is: device j is GPU j modulo their number.

    Consecutive devices are different GPUs, so that what starts on device 0, 1, … is spread (J. Prades, UPV Valencia
    2021, section 4.4: multi-tenancy by ``RCUDA_DEVICE_j``).

    :param gpus: of the guest
    :param virtual_per_gpu: as how many devices each appears
    :raises InvalidValueError: no GPU, or more devices than a guest may have
    """
    devices = len(gpus) * virtual_per_gpu
    if not 1 <= devices <= MOST_DEVICES:
        raise InvalidValueError("remote GPUs of a guest", devices, f"1 to {MOST_DEVICES} devices")
    return tuple(device % len(gpus) for device in range(devices))
