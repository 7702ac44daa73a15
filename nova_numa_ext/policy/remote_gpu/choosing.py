# SPDX-License-Identifier: Apache-2.0
"""Which GPU of all pools a lease gets that is asked for by itself, before a server has it.

The least shared GPU of those that have the interface and room: :func:`.slices.choose_gpu`. Placement grants it or
refuses.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from nova_numa_ext.policy.remote_gpu.lease_claims import CORES, LeaseRoute
from nova_numa_ext.policy.remote_gpu.slices import GpuChoice, GpuRoom, GpuSlice, choose_gpu
from placement_traits.names import MIGRATABLE, RemoteGpuApi
from placement_traits.pools import Pool


class Unmet(StrEnum):
    """What becomes of a lease for which no GPU has room."""

    WAIT = "wait"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class ChosenGpu:
    """A GPU for a lease.

    :param host: that lends it
    :param route: to it; without a client's NIC, as no client is known
    """

    host: str
    route: LeaseRoute


def choose(
    pools: Iterable[Pool],
    part: GpuSlice,
    api: RemoteGpuApi,
    network_mbps: int = 0,
    host: str = "",
    *,
    kept: Collection[str] = (),
    migratable: bool = False,
) -> ChosenGpu | None:
    """Return the GPU that a lease gets, None where none has room.

    :param part: of the GPU
    :param network_mbps: promised on one NIC of its host, megabytes a second
    :param host: whose GPU it must be; '': any
    :param kept: providers of GPUs that are for others
    :param migratable: of GPUs whose leases can move
    """
    needed = _needed(api, migratable=migratable)
    ways: dict[str, ChosenGpu] = {}
    rooms = []
    for pool in pools:
        # Where nothing is promised, nothing must be left: a host may lend less of a NIC than leases hold.
        nics = (each for each in pool.nics if not network_mbps or each.mbps.free >= network_mbps)
        nic = next((each.uuid for each in nics), None)
        if pool.drained or nic is None or pool.cores.free < CORES or host not in ("", pool.host):
            continue
        for gpu in pool.gpus:
            if needed <= gpu.traits and gpu.uuid not in kept:
                rooms.append(GpuRoom(gpu.uuid, gpu.memory_mb.free, gpu.share.free))
                ways[gpu.uuid] = ChosenGpu(pool.host, LeaseRoute(gpu.uuid, pool.cpu, nic))
    room = choose_gpu(rooms, part, GpuChoice.PERFORMANCE)
    return None if room is None else ways[room.gpu]


def able(
    pools: Iterable[Pool],
    part: GpuSlice,
    api: RemoteGpuApi,
    network_mbps: int = 0,
    host: str = "",
    *,
    migratable: bool = False,
) -> frozenset[str]:
    """Return the GPUs that a lease could get if they were free; parameters as of :func:`choose`."""
    needed = _needed(api, migratable=migratable)
    return frozenset(
        gpu.uuid
        for pool in pools
        if not pool.drained and host in ("", pool.host) and pool.cores.capacity >= CORES
        if any(nic.mbps.capacity >= network_mbps for nic in pool.nics)
        for gpu in pool.gpus
        if needed <= gpu.traits
        and gpu.memory_mb.capacity >= part.memory_mb
        and gpu.share.capacity >= part.shares
    )


def _needed(api: RemoteGpuApi, *, migratable: bool) -> frozenset[str]:
    """Return the traits that a GPU must have."""
    return frozenset({api.trait, *([MIGRATABLE] * migratable)})
