# SPDX-License-Identifier: Apache-2.0
"""What a flavor requests of GPUs of other hosts, and which of its keys exclude each other.

They are keys of ours, and no ``resources:``, on purpose: what nova is asked for, it looks for in the host's own tree.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from placement_traits.names import Key, RemoteGpu, RemoteGpuApi, ServiceLevel, Tier

LEASE_HINT: Final = "numa_ext_lease"
"""The scheduler hint that names leases which were made before their server."""

KEYS: Final = (
    Key.REMOTE_GPU_COUNT,
    Key.REMOTE_GPU_MEMORY_MB,
    Key.REMOTE_GPU_SERVICE_LEVEL,
    Key.REMOTE_GPU_API,
    Key.REMOTE_GPU_NETWORK_MBPS,
    Key.REMOTE_GPU_NETWORK_SHARE,
    Key.REMOTE_GPU_VGPUS_PER_GPU,
    Key.REMOTE_GPU_PRIORITY,
    Key.REMOTE_GPU_MIGRATABLE,
)
"""All that say something about remote GPUs."""


@dataclass(frozen=True, slots=True)
class RemoteGpuRequest:
    """The remote GPUs that a server requests, all alike and each one a GPU of its own.

    :param count: how many
    :param memory_mb: of each, MiB
    :param level: part of the time of each
    :param api: by which the guest uses them
    :param network_mbps: promised for each, megabytes a second; 0: what others leave
    :param network_share: part of the run time that goes to the network, in [0, 1]; 0: not known
    :param vgpus_per_gpu: as which each is shown to the guest
    :param priority: among those that wait, 9 first
    :param migratable: they must be able to move while they are used
    """

    count: int
    memory_mb: int
    level: ServiceLevel
    api: RemoteGpuApi
    network_mbps: int
    network_share: float
    vgpus_per_gpu: int
    priority: int
    migratable: bool


def default_level(tier: Tier | None) -> ServiceLevel:
    """Return the service level of a flavor that names none."""
    return ServiceLevel.GOLD if tier is Tier.LC else ServiceLevel.SILVER


def problems(
    mode: RemoteGpu, level: ServiceLevel, given: Collection[str], tier: Tier | None
) -> Iterator[str]:
    """Yield what is wrong with a flavor's keys for remote GPUs together.

    :param mode: ``numa_ext:remote_gpu``
    :param level: given, or the default
    :param given: keys that the flavor has
    :param tier: of the flavor
    """
    asked = [key for key in KEYS if key in given]
    if mode is RemoteGpu.NEVER:
        yield from (f"{key} has no meaning with {Key.REMOTE_GPU}=never." for key in asked)
        return
    amounts = [key for key in asked if key is not Key.REMOTE_GPU_NETWORK_SHARE]
    if mode is RemoteGpu.REQUIRED or amounts:
        if Key.REMOTE_GPU_MEMORY_MB not in given:
            what = amounts[0] if amounts else f"{Key.REMOTE_GPU}=required"
            yield f"{what} needs {Key.REMOTE_GPU_MEMORY_MB}: leases are counted by memory."
        if tier is Tier.LC and level is not ServiceLevel.GOLD:
            yield (
                f"{Key.TIER}=LC needs {Key.REMOTE_GPU_SERVICE_LEVEL}=gold: with {level} others share the GPU."
            )
        if tier is Tier.BE and level is ServiceLevel.GOLD:
            yield f"{Key.REMOTE_GPU_SERVICE_LEVEL}=gold is not for {Key.TIER}=BE, which guarantees nothing."
