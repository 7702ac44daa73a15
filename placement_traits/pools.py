# SPDX-License-Identifier: Apache-2.0
"""The pools of GPUs that hosts lend: what there is of each, what is taken, and by which fabrics they are reached.

Values only; :mod:`placement_traits.pool_reader` reads them from Placement.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from placement_traits import names
from placement_traits.claims import Amounts
from placement_traits.fleet import Amount


@dataclass(frozen=True, slots=True)
class PoolGpu:
    """A GPU of a pool.

    :param uuid: its provider
    :param name: its PCI address or uuid
    :param traits: all of its provider's
    :param memory_mb: of which leases hold slices, MiB
    :param share: of its time
    """

    uuid: str
    name: str
    traits: frozenset[str]
    memory_mb: Amount
    share: Amount


@dataclass(frozen=True, slots=True)
class PoolNic:
    """A NIC of a pool.

    :param uuid: its provider
    :param device: its name
    :param mbps: megabytes a second
    """

    uuid: str
    device: str
    mbps: Amount


@dataclass(frozen=True, slots=True)
class ClientNic:
    """The NIC by which servers of a compute node reach pools.

    :param uuid: its provider, a child of nova's
    :param mbps: megabytes a second
    """

    uuid: str
    mbps: Amount


@dataclass(frozen=True, slots=True)
class Pool:
    """What one host lends.

    :param root: its root provider
    :param host: its name
    :param fabrics: from which it is reached
    :param drained: operators let it take no new leases
    :param cpu: the provider of its cores
    :param cores: for servers of leases
    :param nics: by name
    :param gpus: by name
    """

    root: str
    host: str
    fabrics: frozenset[str]
    drained: bool
    cpu: str
    cores: Amount
    nics: tuple[PoolNic, ...]
    gpus: tuple[PoolGpu, ...]

    @property
    def providers(self) -> frozenset[str]:
        """All from which leases hold something."""
        nics, gpus = (each.uuid for each in self.nics), (each.uuid for each in self.gpus)
        return frozenset({self.cpu, *nics, *gpus})


def counted(found: Iterable[Pool], amounts: Amounts, *, released: bool = False) -> tuple[Pool, ...]:
    """Return pools as they are after a claim was made.

    :param amounts: of the claim
    :param released: it was released instead
    """
    sign = -1 if released else 1

    def used(uuid: str, name: str, there: Amount) -> Amount:
        return replace(there, used=there.used + sign * amounts.get(uuid, {}).get(name, 0))

    def changed(pool: Pool) -> Pool:
        if pool.providers.isdisjoint(amounts):
            return pool
        return replace(
            pool,
            cores=used(pool.cpu, names.REMOTE_GPU_CORE, pool.cores),
            nics=tuple(
                replace(each, mbps=used(each.uuid, names.REMOTE_GPU_NETWORK_MBPS, each.mbps))
                for each in pool.nics
            ),
            gpus=tuple(
                replace(
                    each,
                    memory_mb=used(each.uuid, names.REMOTE_GPU_MEMORY_MB, each.memory_mb),
                    share=used(each.uuid, names.REMOTE_GPU_SHARE, each.share),
                )
                for each in pool.gpus
            ),
        )

    return tuple(map(changed, found))


def taken(found: Iterable[Pool]) -> Iterator[str]:
    """Yield the providers of pools of which something is taken."""
    for pool in found:
        if pool.cores.used:
            yield pool.cpu
        yield from (each.uuid for each in pool.nics if each.mbps.used)
        yield from (each.uuid for each in pool.gpus if each.memory_mb.used or each.share.used)


def lent_twice(pools: Iterable[Pool], novas: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return the GPUs that are both a pool's and nova's, by host: each must be the one or the other.

    :param novas: names of the devices that nova has, by host
    """
    found = {
        pool.host: sorted({gpu.name.lower() for gpu in pool.gpus} & set(novas.get(pool.host, ())))
        for pool in pools
    }
    return {host: both for host, both in found.items() if both}
