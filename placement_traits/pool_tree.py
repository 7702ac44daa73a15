# SPDX-License-Identifier: Apache-2.0
"""What a host lends to other hosts' servers <-> its provider tree. Pure.

A pool of GPUs is a tree of its own: a host that lends GPUs need not be one of nova's, and nova, which deletes the tree
of a compute service with the service, cannot take away what leases hold::

    rgpu:gpuhost1               traits: POOL, RGPU_FABRIC_*
    ├─ rgpu:gpuhost1:cpu        CUSTOM_RGPU_CORE: one of each lease runs its server; CUSTOM_NUMA_EXT_RGPU_PROBE = 1
    ├─ rgpu:gpuhost1:nic-eth1   CUSTOM_RGPU_NET_MBPS, megabytes a second
    └─ rgpu:gpuhost1:gpu-…      CUSTOM_RGPU_MEM_MB, CUSTOM_RGPU_SHARE = 6; traits: RGPU, API_*, TRANSPORT_*, …
    compute1                    nova's; traits: RGPU_CLIENT, RGPU_FABRIC_*
    └─ compute1:rgpu            CUSTOM_RGPU_NET_MBPS of the NIC by which its servers reach pools

Its providers do not carry ``CUSTOM_NUMA_EXT_OWNER``, by which views list the hosts that they compare.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from placement_traits import names
from placement_traits.errors import InvalidValueError
from placement_traits.names import RemoteGpuApi
from placement_traits.tree import Inventory, Provider, ProviderTree

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,63}")


@dataclass(frozen=True, slots=True)
class LentGpu:
    """A GPU of a pool.

    :param name: its PCI address or uuid
    :param memory_mb: that leases may have together, MiB
    :param apis: by which guests use it
    :param transports: that carry it to other hosts
    :param enforced: no lease gets more memory than its slice
    :param migratable: leases can move while they are used
    :param traits: others, such as its model's
    """

    name: str
    memory_mb: int
    apis: frozenset[RemoteGpuApi]
    transports: frozenset[str]
    enforced: bool = False
    migratable: bool = False
    traits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LentNic:
    """A NIC over which a pool is reached.

    :param device: its name
    :param mbps: megabytes a second that leases may be promised together
    """

    device: str
    mbps: int


@dataclass(frozen=True, slots=True)
class LentPool:
    """What a host lends.

    :param host: its name; that of nova's root provider where it is a compute node, too
    :param cores: for the servers of leases, one each
    :param nics: over which it is reached
    :param gpus: that are not nova's
    :param fabrics: networks from which it is reached
    """

    host: str
    cores: int
    nics: tuple[LentNic, ...]
    gpus: tuple[LentGpu, ...]
    fabrics: frozenset[str]


def pool_tree(pool: LentPool) -> ProviderTree:
    """Spell a pool as providers, inventories and traits.

    :raises InvalidValueError: an amount below 1, a name that Placement does not take, two things of one name, or no
        fabric
    """
    _check(pool)
    root = names.pool_provider(pool.host)
    cpu = Provider(
        f"{root}:cpu",
        frozenset({names.POOL}),
        {
            names.REMOTE_GPU_CORE: _whole(pool.cores),
            names.POOL_PROBE: Inventory(1, max_unit=1),
        },
    )
    nics = (
        Provider(
            f"{root}:nic-{nic.device}",
            frozenset({names.POOL}),
            {names.REMOTE_GPU_NETWORK_MBPS: _whole(nic.mbps)},
        )
        for nic in pool.nics
    )
    children = [cpu, *nics, *(_gpu(root, gpu) for gpu in pool.gpus)]
    fabrics = map(names.fabric, pool.fabrics)
    return ProviderTree(
        root,
        frozenset({names.POOL, *fabrics}),
        tuple(sorted(children, key=lambda child: child.name)),
    )


def gpu_provider(root: str, gpu: str) -> str:
    """Return the name of a GPU's provider, below the root provider of its pool."""
    return f"{root}:gpu-{gpu}"


def _gpu(root: str, gpu: LentGpu) -> Provider:
    traits = {
        names.POOL,
        names.REMOTE_GPU,
        *(api.trait for api in gpu.apis),
        *map(names.transport, gpu.transports),
        *([names.SLICES_ENFORCED] * gpu.enforced),
        *([names.MIGRATABLE] * gpu.migratable),
        *gpu.traits,
    }
    return Provider(
        gpu_provider(root, gpu.name),
        frozenset(traits),
        {
            names.REMOTE_GPU_MEMORY_MB: _whole(gpu.memory_mb),
            names.REMOTE_GPU_SHARE: _whole(names.GPU_SHARES),
        },
    )


def _whole(total: int) -> Inventory:
    return Inventory(total, max_unit=total)


def _check(pool: LentPool) -> None:
    where = f"pool of {pool.host}"
    amounts: Mapping[str, int] = {
        "cores": pool.cores,
        **{f"MB/s of NIC {nic.device}": nic.mbps for nic in pool.nics},
        **{f"memory of GPU {gpu.name}": gpu.memory_mb for gpu in pool.gpus},
    }
    for what, amount in amounts.items():
        if amount < 1:
            raise InvalidValueError(f"{where}, {what}", amount, "1 or more")
    named = [nic.device for nic in pool.nics], [gpu.name for gpu in pool.gpus]
    for kind, given in zip(("NICs", "GPUs"), named, strict=True):
        if len(set(given)) < len(given) or not all(map(_NAME.fullmatch, given)):
            allowed = "each its own, of letters, digits and :._- (64 at most)"
            raise InvalidValueError(f"{where}, names of {kind}", given, allowed)
    wrong = [name for name in sorted(pool.fabrics) if not names.is_fabric(name)]
    if wrong or not pool.fabrics:
        allowed = "one or more, each of lower-case letters, digits and underscores (64 at most)"
        raise InvalidValueError(f"{where}, fabrics", wrong, allowed)
