# SPDX-License-Identifier: Apache-2.0
"""Which GPUs are kept free for leases that wait: as many as they need, the ones that lack least for them.

Nothing new is placed on a GPU that is kept, so what is free there only grows: in the end the lease has it, or another
one that lacked more has been freed sooner. All others go on taking small leases meanwhile. Where it is not the GPU that
lacks room but its host (cores for the leases' servers, bandwidth), all GPUs of that host are kept, as leases on the
others would take what comes free.

EASY (D. Lifka, *The ANL/IBM SP Scheduling System*, JSSPP 1995) keeps for the first job that waits what it will need,
and lets others have the rest. Leases have no end that is known, so here the nearest GPUs stand for the earliest ones,
and each lease that waits has its own.
"""

from collections.abc import Collection, Iterable

from nova_numa_ext.policy.remote_gpu.lease_claims import CORES
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from placement_traits.pools import Pool, PoolGpu


class NearestGpus:
    """GPUs that may be kept for leases of one kind, the nearest first; of each, the first who asks has it.

    :param pools: all of them, with what is free
    :param gpus: providers of those that may be kept
    :param part: of each GPU
    :param network_mbps: promised for each, megabytes a second
    :param client: host of their server, to which nothing goes over a wire; '' where none is known
    """

    def __init__(
        self,
        pools: Iterable[Pool],
        gpus: Collection[str],
        part: GpuSlice,
        *,
        network_mbps: int = 0,
        client: str = "",
    ) -> None:
        self._part, self._network_mbps, self._client = part, network_mbps, client
        may = ((pool, gpu) for pool in pools for gpu in pool.gpus if gpu.uuid in gpus)
        self._left = sorted(may, key=self._distance, reverse=True)

    def take(self, count: int, kept: Collection[str]) -> frozenset[str]:
        """Return what is kept for leases which wait; fewer GPUs where there are not as many.

        :param count: how many the leases need
        :param kept: GPUs that are kept for others
        """
        found: set[str] = set()
        of_hosts: dict[str, tuple[Pool, int]] = {}
        while self._left and len(found) < count:
            pool, gpu = self._left.pop()
            if gpu.uuid not in kept:
                found.add(gpu.uuid)
                of_hosts[pool.root] = pool, of_hosts.get(pool.root, (pool, 0))[1] + 1
        for pool, leases in of_hosts.values():
            if self._lacks(pool, leases):
                found.update(gpu.uuid for gpu in pool.gpus)
        return frozenset(found)

    def _lacks(self, pool: Pool, leases: int) -> bool:
        """Whether the host lacks something for so many leases."""
        mbps = 0 if pool.host == self._client else self._network_mbps * leases
        most = max((nic.mbps.free for nic in pool.nics), default=0)
        return pool.cores.free < CORES * leases or (mbps > 0 and most < mbps)

    def _distance(self, found: tuple[Pool, PoolGpu]) -> tuple[bool, int, int, int, int, str]:
        pool, gpu = found
        return (
            self._lacks(pool, 1),
            max(self._part.shares - gpu.share.free, 0),
            max(self._part.memory_mb - gpu.memory_mb.free, 0),
            -gpu.share.free,
            -gpu.memory_mb.free,
            gpu.uuid,
        )
