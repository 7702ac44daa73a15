# SPDX-License-Identifier: Apache-2.0
"""The vocabulary: every trait, resource class, extra-spec key and class name, spelt once.

What nova and Placement define comes from their libraries, os-traits and os-resource-classes.

Traits in Placement are global and are never collected, so a trait name carries *nominal* facts only (an identifier, a
link class), never a measured figure. All our traits start with ``CUSTOM_NUMA_EXT_`` or ``CUSTOM_GPU_LINK_``; every
resource provider that we create in nova's trees, and that views compare, carries :data:`OWNER`; those of pools of GPUs
that are lent to other hosts carry :data:`POOL`.
"""

import re
from collections.abc import Iterable, Mapping
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
RESERVATION_CONSUMER: Final = "NUMA_EXT_RESERVATION"  # of a job that waits
LEASE_CONSUMER: Final = "NUMA_EXT_RGPU_LEASE"  # of a remote GPU
MOVE_CONSUMER: Final = "NUMA_EXT_RGPU_MOVE"  # keeps what a lease leaves until its move is over
GROUP_CONSUMER: Final = "NUMA_EXT_GROUP"  # a server group; its uuid is the consumer's

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

# What leases of remote GPUs claim; no server does. See placement_traits.pool_tree.
REMOTE_GPU_MEMORY_MB: Final = "CUSTOM_RGPU_MEM_MB"
REMOTE_GPU_SHARE: Final = "CUSTOM_RGPU_SHARE"
REMOTE_GPU_CORE: Final = "CUSTOM_RGPU_CORE"
REMOTE_GPU_NETWORK_MBPS: Final = "CUSTOM_RGPU_NET_MBPS"  # megabytes
REMOTE_GPU_CLASSES: Final = (
    REMOTE_GPU_MEMORY_MB,
    REMOTE_GPU_SHARE,
    REMOTE_GPU_CORE,
    REMOTE_GPU_NETWORK_MBPS,
)
POOL_PROBE: Final = "CUSTOM_NUMA_EXT_RGPU_PROBE"  # one unit of each pool, as PROBE of each host
NOT_FOR_FLAVORS: Final = (PROBE, POOL_PROBE, *REMOTE_GPU_CLASSES)

PUBLISHED_CLASSES: Final = (*RESOURCE_CLASSES, *NOT_FOR_FLAVORS)

# When an agent was last there, see placement_traits.beats: no server asks for it.
BEAT_MINUTE: Final = "CUSTOM_NUMA_EXT_BEAT_MINUTE"
# In the same provider: what was withheld.
BE_BANDWIDTH_PERMILLE: Final = "CUSTOM_NUMA_EXT_BE_BANDWIDTH_PERMILLE"

# What servers of a host send, see placement_traits.network_demand.
NET_MINUTE: Final = "CUSTOM_NUMA_EXT_NET_MINUTE"
NET_LC_MBPS: Final = "CUSTOM_NUMA_EXT_NET_LC_MBPS"
NET_BE_MBPS: Final = "CUSTOM_NUMA_EXT_NET_BE_MBPS"
NET_DEMAND_CLASSES: Final = (NET_MINUTE, NET_LC_MBPS, NET_BE_MBPS)

# Of a fabric's provider tree, see placement_traits.fabric_tree: hosts of a leaf, by what groups may do with them.
LEAF_BLOCK: Final = "CUSTOM_NUMA_EXT_LEAF_BLOCK"  # only as a whole
LEAF_REST: Final = "CUSTOM_NUMA_EXT_LEAF_REST"  # those beside the block
LEAF_REMAINDER: Final = (
    "CUSTOM_NUMA_EXT_LEAF_REMAINDER"  # for the last servers of several large groups
)
LEAF_HOST: Final = "CUSTOM_NUMA_EXT_LEAF_HOST"  # for groups that fit in one leaf
POD_UPLINK: Final = (
    "CUSTOM_NUMA_EXT_POD_UPLINK"  # a group that leaves its leafs takes one, an exclusive group all
)
LEAF_UPLINK: Final = "CUSTOM_NUMA_EXT_LEAF_UPLINK"  # a leaf's: a group that shares takes a few, one that is quiet all
# What goes over a leaf's uplinks, see placement_traits.network_demand; no group claims any of it.
LEAF_UPLINK_MBPS: Final = "CUSTOM_NUMA_EXT_LEAF_UPLINK_MBPS"  # reserved: for latency-critical ones
LEAF_BE_MBPS: Final = (
    "CUSTOM_NUMA_EXT_LEAF_BE_MBPS"  # what best-effort servers of one host may send together
)
LEAF_MINUTE: Final = "CUSTOM_NUMA_EXT_LEAF_MINUTE"  # when the engine wrote both
FABRIC_PLAN: Final = (
    "CUSTOM_NUMA_EXT_FABRIC_PLAN"  # one, never taken: finds the tree, and carries its generation
)
# Of the hosts of a leaf.
LEAF_CLASSES: Final = (LEAF_BLOCK, LEAF_REST, LEAF_REMAINDER, LEAF_HOST)
FABRIC_CLASSES: Final = (
    *LEAF_CLASSES,
    POD_UPLINK,
    LEAF_UPLINK,
    LEAF_UPLINK_MBPS,
    LEAF_BE_MBPS,
    LEAF_MINUTE,
    FABRIC_PLAN,
)
# Of a leaf, written by the engine.
LEAF_LIMIT_CLASSES: Final = (LEAF_BE_MBPS, LEAF_MINUTE)
# Units of POD_UPLINK in a pod: no fabric has as many groups there.
WHOLE_UPLINK: Final = 10_000
# Units of LEAF_UPLINK in a leaf, see nova_numa_ext.policy.network.uplinks; Placement counts to 2^31.
LEAF_UPLINK_UNITS: Final = 1_000_000_000

# Traits without a parameter.
OWNER: Final = "CUSTOM_NUMA_EXT_OWNER"  # on every provider that we create in nova's trees and that views compare
HOST: Final = "CUSTOM_NUMA_EXT_HOST"  # on nova's root of every host with our agent
GPU: Final = "CUSTOM_NUMA_EXT_GPU"  # on our providers that describe a GPU
BEAT: Final = "CUSTOM_NUMA_EXT_BEAT"  # on the providers with the beats of agents
POOL: Final = "CUSTOM_NUMA_EXT_RGPU_POOL"  # on every provider of a pool of GPUs for other hosts
REMOTE_GPU: Final = "CUSTOM_NUMA_EXT_RGPU"  # on a pool's GPUs
REMOTE_GPU_CLIENT: Final = (
    "CUSTOM_NUMA_EXT_RGPU_CLIENT"  # on nova's root of hosts whose servers reach pools
)
REMOTE_GPU_CLIENT_NIC: Final = (
    "CUSTOM_NUMA_EXT_RGPU_CLIENT_NIC"  # on its child that counts what they use of its NIC
)
SLICES_ENFORCED: Final = (
    "CUSTOM_NUMA_EXT_RGPU_SLICES_ENFORCED"  # no lease gets more memory of the GPU than its slice
)
MIGRATABLE: Final = (
    "CUSTOM_NUMA_EXT_RGPU_MIGRATABLE"  # leases of the GPU can move while they are used
)
# See placement_traits.host_modes: operators set it, no agent does.
MODE_OBSERVE: Final = "CUSTOM_NUMA_EXT_MODE_OBSERVE"
# Operators set it, too: as long as a host has it, no tier is offered there, whatever its agent accepts.
DRAINED: Final = "CUSTOM_NUMA_EXT_DRAINED"
OF_OPERATORS: Final = frozenset({MODE_OBSERVE, DRAINED})
NET_FABRIC: Final = "CUSTOM_NUMA_EXT_NET_FABRIC"  # on the root provider of a fabric
# On a host's root: it hangs on another leaf than planned, and no group is placed there.
MISCABLED: Final = "CUSTOM_NUMA_EXT_MISCABLED"
# On a host's root, by the unit that keeps them: an uplink has lanes.
LANES: Final = "CUSTOM_NUMA_EXT_LANES"
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


TIER_DSCP: Final[Mapping[Tier, int]] = MappingProxyType({Tier.LC: 46, Tier.BE: 8})
"""DSCP that packets of each tier carry outside of their host: EF and CS1."""

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
    AUTONUMA = "autonuma"
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


class RemoteGpuApi(StrEnum):
    """``numa_ext:remote_gpu_api``: by which interface the guest uses a remote GPU."""

    OPENCL = "opencl"
    CUDA = "cuda"

    @property
    def trait(self) -> str:
        """On a pool's GPUs that are reached by it."""
        return f"{REMOTE_GPU}_API_{self.name}"


class ServiceLevel(StrEnum):
    """``numa_ext:remote_gpu_service_level``: with how many others a remote GPU is shared, best first."""

    GOLD = "gold"
    SILVER = "silver"
    BRONZE = "bronze"
    SCAVENGER = "scavenger"


# A pool's GPU has six shares: one gold tenant takes it whole, two silver or three bronze ones share it.
GPU_SHARES: Final = 6
SERVICE_LEVEL_SHARES: Final[Mapping[ServiceLevel, int]] = MappingProxyType(
    {
        ServiceLevel.GOLD: 6,
        ServiceLevel.SILVER: 3,
        ServiceLevel.BRONZE: 2,
        ServiceLevel.SCAVENGER: 1,
    }
)


class SloSource(StrEnum):
    """``numa_ext:slo_source``: where the agent reads an LC server's latency."""

    AUTO = "auto"
    CHANNEL = "channel"
    PROMETHEUS = "prometheus"
    NONE = "none"


class UplinkShare(StrEnum):
    """``numa_ext:net_share``: with whom a group's leafs share their uplinks; each value asks for more than the last."""

    SHARED = "shared"
    QUIET = "quiet"
    EXCLUSIVE = "exclusive"


class NetClass(StrEnum):
    """``numa_ext:net_class``: how much a server uses the network."""

    LOW = "low"
    MODERATE = "moderate"
    EXTREME = "extreme"


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
    REMOTE_GPU_COUNT = "numa_ext:remote_gpu_count"
    REMOTE_GPU_MEMORY_MB = "numa_ext:remote_gpu_memory_mb"
    REMOTE_GPU_SERVICE_LEVEL = "numa_ext:remote_gpu_service_level"
    REMOTE_GPU_API = "numa_ext:remote_gpu_api"
    REMOTE_GPU_NETWORK_MBPS = "numa_ext:remote_gpu_network_mbps"
    REMOTE_GPU_NETWORK_SHARE = "numa_ext:remote_gpu_network_share"
    REMOTE_GPU_VGPUS_PER_GPU = "numa_ext:remote_gpu_vgpus_per_gpu"
    REMOTE_GPU_PRIORITY = "numa_ext:remote_gpu_priority"
    REMOTE_GPU_MIGRATABLE = "numa_ext:remote_gpu_migratable"
    MANAGED = "numa_ext:managed"
    NET_WITHIN = "numa_ext:net_within"
    NET_SHARE = "numa_ext:net_share"
    NET_SLICE = "numa_ext:net_slice"
    NET_BALANCE = "numa_ext:net_balance"
    NET_CLASS = "numa_ext:net_class"


_NUMBERED = re.compile(
    r"^CUSTOM_NUMA_EXT_"
    r"(NODES|SOCKETS|L3_DOMAINS|L3|NODE|SOCKET|CHASSIS|SWITCH|SHARD|SUBSHARD|FORMAT"
    r"|NET_INDEX|NET_BLOCK|NET_OVERSUBSCRIPTION)_(\d{1,18})$"
)


def numbered(kind: str, number: int) -> str:
    """Build a trait that names one thing or counts things, such as ``CUSTOM_NUMA_EXT_NODE_3``.

    :param kind: ``NODES``, ``SOCKETS``, ``L3_DOMAINS`` (counts, on the root) or ``L3``, ``NODE``, ``SOCKET``,
        ``CHASSIS``, ``SWITCH`` (identifiers, on our children), ``SHARD`` or ``SUBSHARD`` (beside the probe), ``FORMAT``
        (see :mod:`placement_traits.formats`), and of leafs of a fabric ``NET_INDEX`` (in the fabric's order),
        ``NET_BLOCK`` (hosts of its block) and ``NET_OVERSUBSCRIPTION`` (percent; 400 is 4:1)
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


_LEAF_PREFIX: Final = f"{TRAIT_PREFIX}LEAF_"
_LONGEST_TRAIT: Final = 255


def leaf_trait(fabric: str, leaf: str) -> str | None:
    """Build the trait of a leaf and its hosts, such as ``CUSTOM_NUMA_EXT_LEAF_TRAIN_L001``; None: it would be too long.

    Other signs than letters and digits are written as ``_``, so two names may have one trait: a fabric refuses that.
    """
    trait = _LEAF_PREFIX + re.sub(r"[^A-Z0-9]", "_", f"{fabric}_{leaf}".upper())
    return trait if len(trait) <= _LONGEST_TRAIT else None


_LEVEL_PREFIX: Final = f"{TRAIT_PREFIX}NET_LEVEL_"


def level_trait(level: str) -> str:
    """Build the trait of a fabric's providers of one level, such as ``CUSTOM_NUMA_EXT_NET_LEVEL_POD``.

    :param level: small letters, digits and ``_``
    """
    return _LEVEL_PREFIX + level.upper()


def parse_level(trait: str) -> str | None:
    """Return the level of a trait made by :func:`level_trait`, None for any other trait."""
    level = trait.removeprefix(_LEVEL_PREFIX)
    return level.lower() if level != trait else None


def is_leaf_trait(trait: str) -> bool:
    """Return whether a trait names a leaf."""
    return trait.startswith(_LEAF_PREFIX)


def is_of_agents(trait: str) -> bool:
    """Return whether agents publish a trait of ours on roots; others are the operators' or of other units."""
    return (
        is_ours(trait)
        and trait not in OF_OPERATORS
        and trait not in (MISCABLED, LANES)
        and not is_leaf_trait(trait)
    )


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


def pool_provider(host: str) -> str:
    """Name of the root provider of the pool on a host, and the beginning of its children's names."""
    return f"rgpu:{host}"


def client_provider(root: str) -> str:
    """Name of the provider that counts the NIC through which servers of compute node ``root`` reach pools."""
    return f"{root}:rgpu"


_FABRIC_PREFIX: Final = f"{TRAIT_PREFIX}RGPU_FABRIC_"
_FABRIC = re.compile(r"[a-z0-9][a-z0-9_]{0,63}")


def is_fabric(name: str) -> bool:
    """Return whether a network fabric may have this name: 1 to 64 lower-case letters, digits and underscores."""
    return _FABRIC.fullmatch(name) is not None


def fabric(name: str) -> str:
    """Build the trait of a network fabric: a pool and a host with the same one reach each other.

    :param name: as :func:`is_fabric` allows it, such as ``rack_7``
    """
    if not is_fabric(name):
        raise ValueError(f"no fabric is named {name!r}")
    return f"{_FABRIC_PREFIX}{name.upper()}"


def fabrics(traits: Iterable[str]) -> frozenset[str]:
    """Return the names of the fabrics among traits."""
    return frozenset(
        trait.removeprefix(_FABRIC_PREFIX).lower()
        for trait in traits
        if trait.startswith(_FABRIC_PREFIX)
    )


def transport(name: str) -> str:
    """Build the trait of GPUs that a transport (a plug-in, such as ``pocl``) carries to other hosts."""
    return f"{REMOTE_GPU}_TRANSPORT_{name.upper()}"


_MODEL_PREFIX: Final = f"{REMOTE_GPU}_MODEL_"


def gpu_model(name: str) -> str:
    """Build the trait of a lent GPU's model.

    :param name: as :func:`is_fabric` allows names, such as ``a100_80gb``
    """
    if not is_fabric(name):
        raise ValueError(f"no model is named {name!r}")
    return f"{_MODEL_PREFIX}{name.upper()}"


def gpu_models(traits: Iterable[str]) -> frozenset[str]:
    """Return the names of models among traits."""
    return frozenset(
        trait.removeprefix(_MODEL_PREFIX).lower()
        for trait in traits
        if trait.startswith(_MODEL_PREFIX)
    )


def fabric_provider(name: str, node: str = "") -> str:
    """Name of the provider of a planned fabric, or of one of its nodes."""
    return f"net:{name}:{node}" if node else f"net:{name}"
