# SPDX-License-Identifier: Apache-2.0
"""The vocabulary: every trait, resource class, extra-spec key and class name, spelt once.

What nova and Placement define comes from their libraries, os-traits and os-resource-classes.

Traits in Placement are global and are never collected, so a trait name carries *nominal* facts only (an identifier, a
link class), never a measured figure. All our traits start with ``CUSTOM_NUMA_EXT_`` or ``CUSTOM_GPU_LINK_``; every
resource provider that we create in nova's trees carries :data:`OWNER`.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import os_resource_classes
import os_traits

CUSTOM_PREFIX: Final[str] = os_traits.CUSTOM_NAMESPACE
TRAIT_PREFIX: Final = f"{CUSTOM_PREFIX}NUMA_EXT_"
GPU_LINK_PREFIX: Final = f"{CUSTOM_PREFIX}GPU_LINK_"
EXTRA_SPEC_NAMESPACE: Final = "numa_ext"
CONSUMER_TYPE_PREFIX: Final = "NUMA_EXT_"
JOB_CONSUMER: Final = "NUMA_EXT_JOB"

# Resource classes that nova asks for.
VCPU: Final[str] = os_resource_classes.VCPU
PCPU: Final[str] = os_resource_classes.PCPU
MEMORY_MB: Final[str] = os_resource_classes.MEMORY_MB
DISK_GB: Final[str] = os_resource_classes.DISK_GB
PGPU: Final[str] = os_resource_classes.PGPU
VGPU: Final[str] = os_resource_classes.VGPU
MEM_ENCRYPTION_CONTEXT: Final[str] = os_resource_classes.MEM_ENCRYPTION_CONTEXT

# Nova's trait of a root whose nova-compute is disabled.
COMPUTE_DISABLED: Final[str] = os_traits.COMPUTE_STATUS_DISABLED

# Traits of providers that nova-compute makes for devices.
MANAGED_PCI_DEVICE: Final[str] = os_traits.COMPUTE_MANAGED_PCI_DEVICE
OWNER_NOVA: Final[str] = os_traits.OWNER_NOVA

# Resource classes that Placement counts for us.
RDT_CLOS: Final = "CUSTOM_RDT_CLOS"
LLC_WAY: Final = "CUSTOM_LLC_WAY"
MEMORY_BANDWIDTH_MBPS: Final = "CUSTOM_MEMORY_BANDWIDTH_MBPS"
LLC_NEIGHBOURHOOD: Final = "CUSTOM_LLC_NEIGHBOURHOOD"
RESOURCE_CLASSES: Final = (RDT_CLOS, LLC_WAY, MEMORY_BANDWIDTH_MBPS, LLC_NEIGHBOURHOOD)

# Units of LLC_NEIGHBOURHOOD in an L3 domain: a constant of the fleet, as flavors spell it.
WHOLE_NEIGHBOURHOOD: Final = 1_000

# One unit on one provider of each host, which no server takes: asked for it, Placement shows the whole tree of the
# host, however full it is. See placement_traits.shards.
PROBE: Final = "CUSTOM_NUMA_EXT_PROBE"
PUBLISHED_CLASSES: Final = (*RESOURCE_CLASSES, PROBE)

# When an agent was last there, see placement_traits.beats: no server asks for it.
BEAT_MINUTE: Final = "CUSTOM_NUMA_EXT_BEAT_MINUTE"
# In the same provider: what was withheld.
BE_BANDWIDTH_PERMILLE: Final = "CUSTOM_NUMA_EXT_BE_BANDWIDTH_PERMILLE"

# Traits without a parameter.
OWNER: Final = "CUSTOM_NUMA_EXT_OWNER"  # on every provider that we create in nova's trees
HOST: Final = "CUSTOM_NUMA_EXT_HOST"  # on nova's root of every host with our agent
GPU: Final = "CUSTOM_NUMA_EXT_GPU"  # on our providers that describe a GPU
BEAT: Final = "CUSTOM_NUMA_EXT_BEAT"  # on the providers with the beats of agents
# See placement_traits.host_modes: operators set it, no agent does.
MODE_OBSERVE: Final = "CUSTOM_NUMA_EXT_MODE_OBSERVE"
# Operators set it, too: as long as a host has it, no tier is offered there, whatever its agent accepts.
DRAINED: Final = "CUSTOM_NUMA_EXT_DRAINED"
OF_OPERATORS: Final = frozenset({MODE_OBSERVE, DRAINED})
SILENT: Final = "CUSTOM_NUMA_EXT_SILENT"  # not in Placement: views add it where an agent is silent


class RdtTrait(StrEnum):
    """What Intel RDT (or AMD QoS) of a host can do; held by nova's root provider."""

    L3_CAT = "CUSTOM_NUMA_EXT_RDT_L3_CAT"
    L2_CAT = "CUSTOM_NUMA_EXT_RDT_L2_CAT"
    CDP = "CUSTOM_NUMA_EXT_RDT_CDP"
    MBA = "CUSTOM_NUMA_EXT_RDT_MBA"
    CMT = "CUSTOM_NUMA_EXT_RDT_CMT"
    MBM = "CUSTOM_NUMA_EXT_RDT_MBM"


class PackingTrait(StrEnum):
    """Nova's host-cell order on this host (``[compute]packing_host_numa_cells_allocation_strategy``)."""

    PACK = "CUSTOM_NUMA_EXT_CELLS_PACK"
    SPREAD = "CUSTOM_NUMA_EXT_CELLS_SPREAD"


class TierTrait(StrEnum):
    """Tiers that the host's agent accepts and enforces; held by nova's root provider."""

    LC = "CUSTOM_NUMA_EXT_TIER_LC"
    BE = "CUSTOM_NUMA_EXT_TIER_BE"


class ObserveTrait(StrEnum):
    """Features of the host's agent that only observe, for whatever reason; held by nova's root provider."""

    PINNING = "CUSTOM_NUMA_EXT_OBSERVES_PINNING"
    MEMORY = "CUSTOM_NUMA_EXT_OBSERVES_MEMORY"
    RDT = "CUSTOM_NUMA_EXT_OBSERVES_RDT"
    SLO = "CUSTOM_NUMA_EXT_OBSERVES_SLO"


class NeighbourTrait(StrEnum):
    """What runs in an L3 domain now; held by the domain's provider, kept by the agent."""

    RABBIT = "CUSTOM_NUMA_EXT_HAS_RABBIT"
    DEVIL = "CUSTOM_NUMA_EXT_HAS_DEVIL"
    LC = "CUSTOM_NUMA_EXT_HAS_LC"
    BE = "CUSTOM_NUMA_EXT_HAS_BE"
    # A latency-critical server whose objective the agent cannot keep there: a server should be live-migrated.
    UNMET_SLO = "CUSTOM_NUMA_EXT_HAS_UNMET_SLO"
    # A server whose GPUs are near the domain and communicate with this weight (``numa_ext:gpu_comm``).
    GPU_COMM_1 = "CUSTOM_NUMA_EXT_HAS_GPU_COMM_1"
    GPU_COMM_2 = "CUSTOM_NUMA_EXT_HAS_GPU_COMM_2"
    GPU_COMM_3 = "CUSTOM_NUMA_EXT_HAS_GPU_COMM_3"
    GPU_COMM_4 = "CUSTOM_NUMA_EXT_HAS_GPU_COMM_4"


# By weight; a weight of 0 disturbs no server and is not published.
GPU_COMM_TRAITS: Final[Mapping[int, NeighbourTrait]] = MappingProxyType(
    {weight: NeighbourTrait[f"GPU_COMM_{weight}"] for weight in range(1, 5)}
)


class Tier(StrEnum):
    """``numa_ext:tier``: latency-critical or best-effort."""

    LC = "LC"
    BE = "BE"


class InterferenceClass(StrEnum):
    """``numa_ext:interference_class``: cache behaviour (Xie & Loh's animal classes; Lakew et al., table 3)."""

    SHEEP = "sheep"
    RABBIT = "rabbit"
    DEVIL = "devil"


TIER_TRAITS: Final[Mapping[Tier, NeighbourTrait]] = MappingProxyType(
    {Tier.LC: NeighbourTrait.LC, Tier.BE: NeighbourTrait.BE}
)
# Sheep disturb no server and are not published.
CLASS_TRAITS: Final[Mapping[InterferenceClass, NeighbourTrait]] = MappingProxyType(
    {
        InterferenceClass.RABBIT: NeighbourTrait.RABBIT,
        InterferenceClass.DEVIL: NeighbourTrait.DEVIL,
    }
)


class RemoteMemory(StrEnum):
    """``numa_ext:remote_memory``: how much remote memory hurts."""

    SENSITIVE = "sensitive"
    INSENSITIVE = "insensitive"


class MemoryPolicy(StrEnum):
    """``numa_ext:memory_policy``: page placement."""

    LOCAL = "local"
    FIRST_TOUCH = "first_touch"
    UNIFORM_WORKERS = "uniform_workers"
    UNIFORM_ALL = "uniform_all"
    BWAP_UNIFORM = "bwap_uniform"
    BWAP = "bwap"


class GpuPolicy(StrEnum):
    """``numa_ext:gpu_policy``: how local GPUs are chosen."""

    PACK = "pack"
    SPREAD = "spread"
    TOPO = "topo"
    TOPO_P = "topo_p"


class RemoteGpu(StrEnum):
    """``numa_ext:remote_gpu``: may the GPUs be on another host."""

    NEVER = "never"
    ALLOWED = "allowed"
    REQUIRED = "required"


class SloSource(StrEnum):
    """``numa_ext:slo_source``: where the agent reads an LC server's latency."""

    AUTO = "auto"
    CHANNEL = "channel"
    PROMETHEUS = "prometheus"
    NONE = "none"


class GpuLink(StrEnum):
    """Nominal class of a GPU-to-GPU link, the words of ``nvidia-smi topo -m``, best first."""

    NV18 = "NV18"
    NV12 = "NV12"
    NV8 = "NV8"
    NV6 = "NV6"
    NV4 = "NV4"
    NV3 = "NV3"
    NV2 = "NV2"
    NV1 = "NV1"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


class Key(StrEnum):
    """Extra-spec keys of our namespace."""

    TIER = "numa_ext:tier"
    SLO_P99_US = "numa_ext:slo_p99_us"
    SLO_SOURCE = "numa_ext:slo_source"
    INTERFERENCE_CLASS = "numa_ext:interference_class"
    REMOTE_MEMORY = "numa_ext:remote_memory"
    MEMORY_POLICY = "numa_ext:memory_policy"
    GPU_POLICY = "numa_ext:gpu_policy"
    GPU_COMM = "numa_ext:gpu_comm"
    MIN_UTILITY = "numa_ext:min_utility"
    REMOTE_GPU = "numa_ext:remote_gpu"
    REMOTE_GPU_NETWORK_SHARE = "numa_ext:remote_gpu_network_share"
    MANAGED = "numa_ext:managed"


_NUMBERED = re.compile(
    r"^CUSTOM_NUMA_EXT_(NODES|SOCKETS|L3_DOMAINS|L3|NODE|SOCKET|CHASSIS|SWITCH|SHARD|SUBSHARD|FORMAT)_(\d{1,18})$"
)


def numbered(kind: str, number: int) -> str:
    """Build a trait that names one thing or counts things, such as ``CUSTOM_NUMA_EXT_NODE_3``.

    :param kind: ``NODES``, ``SOCKETS``, ``L3_DOMAINS`` (counts, on the root) or ``L3``, ``NODE``, ``SOCKET``,
        ``CHASSIS``, ``SWITCH`` (identifiers, on our children), ``SHARD`` or ``SUBSHARD`` (beside the probe), ``FORMAT``
        (see :mod:`placement_traits.formats`)
    :param number: the count or identifier, >= 0, of at most 18 digits
    """
    trait = f"{TRAIT_PREFIX}{kind}_{number}"
    if _NUMBERED.match(trait) is None:
        raise ValueError(f"no numbered trait is spelt {trait}")
    return trait


def parse_numbered(trait: str) -> tuple[str, int] | None:
    """Return (kind, number) of a trait made by :func:`numbered`, None for any other trait."""
    match = _NUMBERED.match(trait)
    return (match[1], int(match[2])) if match else None


_CPU_RANGE = re.compile(rf"^{TRAIT_PREFIX}CPUS_(\d{{1,9}})_(\d{{1,9}})$")


def cpu_range(first: int, last: int) -> str:
    """Build the trait of an L3 domain's CPUs ``first`` to ``last``, such as ``CUSTOM_NUMA_EXT_CPUS_8_15``."""
    trait = f"{TRAIT_PREFIX}CPUS_{first}_{last}"
    if parse_cpu_range(trait) is None:
        raise ValueError(f"no trait of CPUs is spelt {trait}")
    return trait


def parse_cpu_range(trait: str) -> tuple[int, int] | None:
    """Return (first, last) of a trait made by :func:`cpu_range`, None for any other trait."""
    match = _CPU_RANGE.match(trait)
    if match is None or int(match[1]) > int(match[2]):
        return None
    return int(match[1]), int(match[2])


_GPU_LINK = re.compile(rf"^{GPU_LINK_PREFIX}({'|'.join(GpuLink)})_(\d+)_(\d+)$")


def gpu_link(link: GpuLink, a: int, b: int) -> str:
    """Build the trait of the link between GPUs number ``a`` and ``b`` of one host; exactly these two providers hold it.

    :param link: nominal class
    :param a: position of one GPU in order of PCI address, from 0
    :param b: position of the other
    """
    return f"{GPU_LINK_PREFIX}{link}_{min(a, b)}_{max(a, b)}"


def parse_gpu_link(trait: str) -> tuple[GpuLink, int, int] | None:
    """Return (class, position, position) of a trait made by :func:`gpu_link`, None for any other trait."""
    match = _GPU_LINK.match(trait)
    return (GpuLink(match[1]), int(match[2]), int(match[3])) if match else None


def is_ours(trait: str) -> bool:
    """Return whether a trait belongs to this project."""
    return trait.startswith((TRAIT_PREFIX, GPU_LINK_PREFIX))


def rdt_provider(root: str) -> str:
    """Name of the provider of host-wide RDT resources under compute node ``root``."""
    return f"{root}:rdt"


def l3_provider(root: str, l3_id: int) -> str:
    """Name of the provider of one L3 domain under compute node ``root``."""
    return f"{root}:l3_{l3_id}"


def parse_l3_provider(root: str, name: str) -> int | None:
    """Return the L3 domain of a provider that :func:`l3_provider` has named, None for any other provider."""
    number = name.removeprefix(f"{root}:l3_")
    return int(number) if number != name and number.isdecimal() else None


def gpu_provider(root: str, address: str) -> str:
    """Name of the provider that describes the GPU at PCI ``address`` under compute node ``root``."""
    return f"{root}:gpu-{address}"
