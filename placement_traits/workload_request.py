# SPDX-License-Identifier: Apache-2.0
"""What a server requests, as a shape: :mod:`.request` makes it of a flavor's extra specs."""

from dataclasses import dataclass
from typing import Final

from placement_traits import names
from placement_traits.devices import DeviceRequest
from placement_traits.names import (
    GpuPolicy,
    InterferenceClass,
    MemoryPolicy,
    RemoteGpu,
    RemoteMemory,
    SloSource,
    Tier,
)
from placement_traits.remote_gpu_request import RemoteGpuRequest

SPREADING_POLICIES: Final = frozenset(
    {
        MemoryPolicy.UNIFORM_WORKERS,
        MemoryPolicy.UNIFORM_ALL,
        MemoryPolicy.BWAP_UNIFORM,
        MemoryPolicy.BWAP,
    }
)


@dataclass(frozen=True, slots=True)
class L3Amount:
    """What a server requests of one L3 domain: a granular request group of the flavor.

    :param group: suffix of the request group, such as ``_NODE``
    :param ways: L3 cache ways (``CUSTOM_LLC_WAY``), 0 when none
    :param bandwidth_mbps: memory bandwidth (``CUSTOM_MEMORY_BANDWIDTH_MBPS``), MB/s, 0 when none
    :param neighbourhood: units of the cache neighbourhood (``CUSTOM_LLC_NEIGHBOURHOOD``), 0 when none
    """

    group: str
    ways: int
    bandwidth_mbps: int
    neighbourhood: int = 0

    @property
    def resources(self) -> dict[str, int]:
        """The amounts by resource class."""
        every = {
            names.LLC_WAY: self.ways,
            names.MEMORY_BANDWIDTH_MBPS: self.bandwidth_mbps,
            names.LLC_NEIGHBOURHOOD: self.neighbourhood,
        }
        return {name: number for name, number in every.items() if number}


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """What a server requests, parsed and checked.

    :param vcpus: number of virtual CPUs
    :param memory_mb: guest memory, MiB
    :param numa_nodes: NUMA nodes that flavor or image ask for, 0 when neither does
    :param numa_topology: nova builds a guest NUMA topology; a guest without one is *floating*
    :param dedicated: every vCPU has a dedicated CPU (``mixed`` is not: some of its vCPUs float)
    :param pinned: number of vCPUs with a dedicated CPU
    :param isolated_emulator: the emulator's threads beside dedicated vCPUs have a dedicated CPU more
    :param clos: classes of service asked for (``CUSTOM_RDT_CLOS``), over all groups as Placement counts them
    :param l3: amounts per L3 domain, in order of group name
    :param devices: devices asked for; which of them are GPUs the hosts that have them show
    :param remote_gpus: GPUs of other hosts asked for, None where there are none
    """

    vcpus: int
    memory_mb: int
    tier: Tier | None
    slo_p99_us: int | None
    slo_source: SloSource
    interference_class: InterferenceClass
    remote_memory: RemoteMemory
    memory_policy: MemoryPolicy
    gpu_policy: GpuPolicy
    gpu_comm: int
    min_utility: float
    remote_gpu: RemoteGpu
    managed: bool
    numa_nodes: int
    numa_topology: bool
    dedicated: bool
    pinned: int
    isolated_emulator: bool
    clos: int
    l3: tuple[L3Amount, ...]
    devices: tuple[DeviceRequest, ...]
    remote_gpus: RemoteGpuRequest | None = None

    @property
    def floating(self) -> bool:
        """True for a guest without a NUMA topology: only its memory may be spread or reshuffled over nodes."""
        return not self.numa_topology

    @property
    def memory_policy_applies(self) -> bool:
        """False when the policy spreads pages but nova bound the guest to its NUMA cells."""
        return self.floating or self.memory_policy not in SPREADING_POLICIES

    @property
    def spreads(self) -> bool:
        """True for a guest whose policy spreads its pages: nodes of other sockets can be among theirs."""
        return self.floating and self.memory_policy in SPREADING_POLICIES

    @property
    def strict(self) -> bool:
        """True where Placement counts the cache neighbourhood; an interference class without it only ranks."""
        return any(amount.neighbourhood for amount in self.l3)

    @property
    def ways(self) -> int:
        """L3 ways asked for over all domains."""
        return sum(amount.ways for amount in self.l3)

    @property
    def bandwidth_mbps(self) -> int:
        """Memory bandwidth asked for over all domains, MB/s."""
        return sum(amount.bandwidth_mbps for amount in self.l3)
