# SPDX-License-Identifier: Apache-2.0
"""Reads the pools of GPUs that hosts lend from Placement, as :mod:`placement_traits.pools` has them.

Two requests whatever the number of pools, as :mod:`placement_traits.view` for hosts: a list of all providers of pools,
which has their names, and one query of allocation candidates for the probe, of which each pool has one unit that is
never allocated: its provider summaries hold traits, capacity and use of whole trees. A pool that an answer leaves out,
because Placement limits it, is asked for by itself.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from placement_traits import names
from placement_traits.client import PlacementClient, PlacementError
from placement_traits.fleet import Amount
from placement_traits.host_view import bounded
from placement_traits.pools import ClientNic, Pool, PoolGpu, PoolNic

_NOTHING: Final = Amount(0, 0)


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


def client_nic(client: PlacementClient, root: str) -> ClientNic | None:
    """Return the NIC by which servers of a compute node reach pools; None: its agent publishes none.

    :param root: name of the compute node's root provider
    :raises ServiceUnavailableError: Placement does not answer
    """
    listed = client.get(f"/resource_providers?name={quote(names.client_provider(root))}")
    for each in listed["resource_providers"]:
        path, name = f"/resource_providers/{each['uuid']}", names.REMOTE_GPU_NETWORK_MBPS
        there = client.get(f"{path}/inventories")["inventories"].get(name)
        if there is not None:
            used = client.get(f"{path}/usages")["usages"].get(name, 0)
            capacity = int((there["total"] - there["reserved"]) * there["allocation_ratio"])
            return ClientNic(each["uuid"], bounded(capacity, used))
    return None


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
