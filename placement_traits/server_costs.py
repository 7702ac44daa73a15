# SPDX-License-Identifier: Apache-2.0
"""What each latency-critical server costs its neighbours: the part of the host's cost that was for its sake.

Children of the host's beat (:mod:`placement_traits.beats`), one for each server that cost anything::

    beat:compute1
    └─ cost:compute1:<uuid of the server>    CUSTOM_NUMA_EXT_BE_BANDWIDTH_PERMILLE: total = 1000, reserved = part of the
                                             memory bandwidth of the host's best-effort servers that was withheld for
                                             it since the beat before

A host on which no server is throttled has none of them, and a figure that stays costs no request. Where best-effort
servers were throttled for several servers, each of these answers for an equal part.
"""

import uuid
from collections.abc import Mapping
from typing import Final

from placement_traits import beats, names
from placement_traits.client import PlacementClient

_PREFIX: Final = "cost:"
_NAMESPACE: Final = uuid.UUID("f2c5e0a8-5f37-4c0e-9c1b-6c1b0c7f2d55")


def provider(host: str, server: str) -> str:
    """Name of the provider with what a server costs on a host.

    :param host: name of nova's root provider
    """
    return f"{_PREFIX}{host}:{server}"


def _provider_uuid(name: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, name))


class CostWriter:
    """Writes what the servers of one host cost; the host has a beat.

    :param client: Placement
    :param host: name of nova's root provider
    """

    def __init__(self, client: PlacementClient, host: str) -> None:
        self._client = client
        self._host = host
        self._written: dict[str, int | None] | None = None

    def write(self, permille: Mapping[str, int]) -> None:
        """Make what Placement holds equal to this; nothing is written of what it holds already.

        :param permille: latency-critical server -> part of the best-effort servers' bandwidth that was withheld for it
        :raises PlacementError: Placement refuses; the next call reads again what it holds
        """
        costs = {server: part for server, part in permille.items() if part > 0}
        written = self._there() if self._written is None else self._written
        self._written = None
        for server in sorted(written.keys() - costs.keys()):
            self._delete(server)
            del written[server]
        for server, part in sorted(costs.items()):
            if part != written.get(server):
                self._put(server, min(part, beats.PERMILLE), new=server not in written)
                written[server] = part
        self._written = written

    def _there(self) -> dict[str, int | None]:
        """Return the servers that have a provider; what it holds is not known."""
        return dict.fromkeys(_children(self._client, self._host))

    def _delete(self, server: str) -> None:
        own = _provider_uuid(provider(self._host, server))
        self._client.discard(f"/resource_providers/{own}")

    def _put(self, server: str, part: int, *, new: bool) -> None:
        name = provider(self._host, server)
        own = _provider_uuid(name)
        if new:
            self._client.put(f"/resource_classes/{names.BE_BANDWIDTH_PERMILLE}")
            parent = beats.provider_uuid(self._host)
            body = {"name": name, "uuid": own, "parent_provider_uuid": parent}
            self._client.post("/resource_providers", body)
        path = f"/resource_providers/{own}/inventories"
        there = self._client.get(path)["resource_provider_generation"]
        inventory = {names.BE_BANDWIDTH_PERMILLE: {"total": beats.PERMILLE, "reserved": part}}
        self._client.put(path, {"resource_provider_generation": there, "inventories": inventory})


def of_host(client: PlacementClient, host: str) -> dict[str, int]:
    """Return what the servers of a host cost: server -> part of a thousand."""
    found = {}
    for server, own in sorted(_children(client, host).items()):
        there = client.get(f"/resource_providers/{own}/inventories")["inventories"]
        if names.BE_BANDWIDTH_PERMILLE in there:
            found[server] = int(there[names.BE_BANDWIDTH_PERMILLE]["reserved"])
    return found


def remove(client: PlacementClient, host: str) -> None:
    """Remove what the servers of a host cost: a beat goes after its children only."""
    for own in _children(client, host).values():
        client.discard(f"/resource_providers/{own}")


def _children(client: PlacementClient, host: str) -> dict[str, str]:
    """Return the servers with a provider below the host's beat, with the provider's uuid."""
    listed = client.get(f"/resource_providers?in_tree={beats.provider_uuid(host)}")
    start = provider(host, "")
    return {
        each["name"].removeprefix(start): each["uuid"]
        for each in listed["resource_providers"]
        if each["name"].startswith(start)
    }
