# SPDX-License-Identifier: Apache-2.0
"""On which hosts servers really are, as Placement knows it: nova does not say it to users."""

import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Final
from urllib.parse import quote

from placement_traits import names, pool_reader
from placement_traits.client import PlacementClient
from placement_traits.names import MEMORY_MB, PCPU, VCPU
from placement_traits.pools import ClientNic

_OF_HOSTS: Final = frozenset({VCPU, PCPU, MEMORY_MB})
_MOST: Final = 100_000
FRESH_S: Final = 60.0
"""Seconds for which the fabrics of a host are not read again."""


class ServerHosts:
    """Hosts of servers; any thread may use it.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` when Placement does not answer.

    :param client: of a user who may read allocations and providers
    :param clock: monotonic seconds
    """

    def __init__(
        self, client: PlacementClient, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._clock = clock
        self._fabrics: dict[str, tuple[float, frozenset[str]]] = {}
        self._roots: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._hosts: dict[str, tuple[str, str]] = {}

    def host(self, server: str, host_id: str = "") -> str | None:
        """Return the root provider of the host that a server has amounts of; None: it has none of any.

        :param host_id: nova's for the server, see :class:`.servers.JobServer`; Placement is not asked again for one
            that is the same as the last time
        """
        known, host = self._hosts.get(server, ("", ""))
        if known and known == host_id:
            return host
        for root in self._all(server):
            if len(self._hosts) >= _MOST:
                self._hosts.clear()
            self._hosts[server] = (host_id, root)
            return root
        return None

    def names(self, server: str) -> frozenset[str]:
        """Return the names of the hosts that a server has amounts of.

        One that was evacuated has some of two: nova keeps those of the host that was down until that is back.
        """
        return frozenset(self._name(root) for root in self._all(server))

    def fabrics(self, host: str) -> frozenset[str]:
        """Return the fabrics of remote GPUs that a host is in, as Placement had them :data:`FRESH_S` ago at most.

        :param host: its name
        """
        read_s, found = self._fabrics.get(host, (-inf, frozenset[str]()))
        if self._clock() - read_s < FRESH_S:
            return found
        listed = self._client.get(f"/resource_providers?name={quote(host)}")["resource_providers"]
        traits: list[str] = []
        for each in listed:
            traits += self._client.get(f"/resource_providers/{each['uuid']}/traits")["traits"]
        found = names.fabrics(traits)
        self._fabrics[host] = self._clock(), found
        return found

    def nic(self, host: str) -> ClientNic | None:
        """Return the NIC by which servers of a host reach pools, with what is left of it now; None: it has none.

        :param host: its name
        """
        return pool_reader.client_nic(self._client, host)

    def owner(self, server: str) -> tuple[str, str] | None:
        """Return project and user of a server that has amounts of anything; None: it has none."""
        held = self._client.get(f"/allocations/{server}")
        if not held["allocations"]:
            return None
        return str(held["project_id"]), str(held["user_id"])

    def _all(self, server: str) -> Iterator[str]:
        """Yield the root provider of each host that a server has amounts of, as Placement lists them."""
        held = self._client.get(f"/allocations/{server}")["allocations"]
        for provider, entry in held.items():
            if _OF_HOSTS & entry["resources"].keys():
                yield self._root(provider)

    def _name(self, root: str) -> str:
        if root not in self._names:
            self._names[root] = str(self._client.get(f"/resource_providers/{root}")["name"])
        return self._names[root]

    def _root(self, provider: str) -> str:
        if provider not in self._roots:
            found = self._client.get(f"/resource_providers/{provider}")
            self._roots[provider] = str(found["root_provider_uuid"])
        return self._roots[provider]
