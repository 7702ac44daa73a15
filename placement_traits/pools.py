# SPDX-License-Identifier: Apache-2.0
"""The pools of GPUs that hosts lend, as Placement shows them: what there is of each, what is taken, who reaches it.

Two requests whatever the number of pools, as :mod:`placement_traits.view` for hosts: a list of all providers of pools,
which has their names, and one query of allocation candidates for the probe, of which each pool has one unit that is
never allocated: its provider summaries hold traits, capacity and use of whole trees. A pool that an answer leaves out,
because Placement limits it, is asked for by itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from placement_traits import names
from placement_traits.claims import Amounts
from placement_traits.client import PlacementClient, PlacementError
from placement_traits.fleet import Amount
from placement_traits.host_view import bounded

_NOTHING: Final = Amount(0, 0)


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


def read(client: PlacementClient) -> tuple[Pool, ...]:
    """Return all pools, by host.

    :raises ServiceUnavailableError: Placement does not answer
    :raises PlacementError: it refuses what is asked, such as to a user without the role
    """
    listed = _list(client, f"required={names.POOL}", names.POOL)
    if not listed:
        return ()
    summaries = _summaries(client, "")
    names_of: dict[str, dict[str, str]] = {}
    for each in listed:
        tree = names_of.setdefault(each["root_provider_uuid"], {})
        tree[each["uuid"]] = each["name"]
    found = []
    for root, tree in names_of.items():
        if not tree.keys() & summaries.keys():
            summaries |= _summaries(client, f"&in_tree={root}")
        pool = _pool(root, tree, summaries)
        if pool is not None:
            found.append(pool)
    return tuple(sorted(found, key=lambda pool: pool.host))


def clients_with(client: PlacementClient, mbps: int) -> frozenset[str]:
    """Return the root providers of compute nodes whose NIC for remote GPUs has so much left.

    :param mbps: megabytes a second, 1 or more
    :raises ServiceUnavailableError: Placement does not answer
    """
    room = f"resources={names.REMOTE_GPU_NETWORK_MBPS}:{mbps}"
    query = f"{room}&required={names.REMOTE_GPU_CLIENT_NIC}"
    listed = _list(client, query, names.REMOTE_GPU_CLIENT_NIC)
    return frozenset(each["root_provider_uuid"] for each in listed)


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


def _list(client: PlacementClient, query: str, trait: str) -> list[Mapping[str, Any]]:
    """Return the providers that a query finds; a trait that does not exist, which Placement refuses, none has."""
    try:
        listed = client.get(f"/resource_providers?{query}")["resource_providers"]
    except PlacementError as error:
        known = error.status != HTTPStatus.BAD_REQUEST
        if known or client.get(f"/traits?name=in:{trait}")["traits"]:
            raise
        return []
    found: list[Mapping[str, Any]] = listed
    return found


def _summaries(client: PlacementClient, query: str) -> dict[str, Any]:
    path = f"/allocation_candidates?resources={names.POOL_PROBE}:1{query}"
    found: dict[str, Any] = client.get(path)["provider_summaries"]
    return found


def _pool(root: str, tree: Mapping[str, str], summaries: Mapping[str, Any]) -> Pool | None:
    """Put one pool together; None while it has no cores yet, or goes away."""
    name = tree.get(root, "")
    amounts = {uuid: _amounts(summaries[uuid]) for uuid in tree if uuid in summaries}
    cpu = next((uuid for uuid, each in amounts.items() if names.REMOTE_GPU_CORE in each), None)
    if cpu is None or root not in summaries:
        return None
    traits = frozenset(summaries[root]["traits"])
    nics = (
        PoolNic(uuid, tree[uuid].removeprefix(f"{name}:nic-"), each[names.REMOTE_GPU_NETWORK_MBPS])
        for uuid, each in amounts.items()
        if names.REMOTE_GPU_NETWORK_MBPS in each
    )
    gpus = (
        PoolGpu(
            uuid,
            tree[uuid].removeprefix(f"{name}:gpu-"),
            frozenset(summaries[uuid]["traits"]),
            each[names.REMOTE_GPU_MEMORY_MB],
            each.get(names.REMOTE_GPU_SHARE, _NOTHING),
        )
        for uuid, each in amounts.items()
        if names.REMOTE_GPU_MEMORY_MB in each
    )
    return Pool(
        root,
        name.removeprefix(names.pool_provider("")),
        names.fabrics(traits),
        names.DRAINED in traits,
        cpu,
        amounts[cpu][names.REMOTE_GPU_CORE],
        tuple(sorted(nics, key=lambda nic: nic.device)),
        tuple(sorted(gpus, key=lambda gpu: gpu.name)),
    )


def _amounts(summary: Mapping[str, Any]) -> dict[str, Amount]:
    resources: Mapping[str, Mapping[str, int]] = summary["resources"]
    return {name: bounded(each["capacity"], each["used"]) for name, each in resources.items()}


def lent_twice(pools: Iterable[Pool], novas: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return the GPUs that are both a pool's and nova's, by host: each must be the one or the other.

    :param novas: names of the devices that nova has, by host
    """
    found = {
        pool.host: sorted({gpu.name.lower() for gpu in pool.gpus} & set(novas.get(pool.host, ())))
        for pool in pools
    }
    return {host: both for host, both in found.items() if both}
