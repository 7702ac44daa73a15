# SPDX-License-Identifier: Apache-2.0
"""Consumers of our providers that should not be there: they are reported, and nothing is deleted."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nova_numa_ext.heal.nova_servers import NovaServer, NovaServers
from nova_numa_ext.heal.plan import (
    SERVERS,
    HealResult,
    Host,
    Row,
    amounts_of,
    consumer_type,
    may_hold,
)
from placement_traits.client import NotFoundError, PlacementClient

_NOVAS: Final = SERVERS | {"MIGRATION"}


class UnknownConsumers:
    """Finds consumers of our providers that should not be there."""

    def __init__(
        self, client: PlacementClient, nova: NovaServers, known: Mapping[str, NovaServer]
    ) -> None:
        self._client = client
        self._nova = nova
        self._known = known
        self._migrations: frozenset[str] | None = None

    def of(self, host: Host, servers: Iterable[NovaServer]) -> Iterator[Row]:
        """Yield the consumers of a host that nova does not know, or knows on another host with nothing under way.

        Consumers are read only where more is used than the servers of the host account for. Before that, those servers
        are read that were left alone: something is under way with them, or their flavor is wrong.

        :param servers: of the host
        """
        for unread in servers if host.unaccounted() else ():
            if unread.uuid not in host.held and may_hold(unread):
                host.held[unread.uuid] = amounts_of(self._client.get(f"/allocations/{unread.uuid}"))
        found: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
        for provider in sorted(host.unaccounted()):
            try:
                body = self._client.get(f"/resource_providers/{provider}/allocations")
            except NotFoundError:  # it went since the fleet was read, and all consumers with it
                continue
            for consumer, entry in body["allocations"].items():
                found[consumer][provider] = entry["resources"]
        for consumer, held in sorted(found.items()):
            problem = self._problem(consumer, host)
            if problem:
                server = self._known.get(consumer)
                name, amounts = server.name if server else "", host.named(held)
                yield Row(HealResult.LEFT, host.view.name, name, consumer, amounts, {}, problem)

    def _problem(self, consumer: str, host: Host) -> str:
        server = self._known.get(consumer) or self._nova.one(consumer)
        if server is None:
            if self._migrations is None:
                self._migrations = self._nova.migrations_under_way()
            if consumer in self._migrations or self._is_others(consumer):
                return ""
            return (
                "nova knows no server of this id, and no migration that is under way. What holds CPUs or memory, too, "
                f"nova-manage placement audit --delete --resource_provider {host.view.root_uuid} removes; anything "
                f"else: openstack resource provider allocation delete {consumer}"
            )
        if server.host in (host.view.name, ""):
            return ""
        if self._nova.why_busy(consumer, server.host):
            return ""
        return (
            f"the server is on {server.host}. After an evacuation nova removes this when nova-compute of "
            f"{host.view.name} starts; when it never will: nova-manage placement audit --delete --resource_provider "
            f"{host.view.root_uuid}"
        )

    def _is_others(self, consumer: str) -> bool:
        """Return whether a consumer is of a type that nova does not have."""
        return consumer_type(self._client.get(f"/allocations/{consumer}")) not in _NOVAS
