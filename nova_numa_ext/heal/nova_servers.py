# SPDX-License-Identifier: Apache-2.0
"""What only nova knows of servers: where they are, on which cells and CPUs, whether something is under way, flavors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from keystoneauth1 import exceptions as keystone_errors

from nova_numa_ext.heal.forgotten_groups import ANYWHERE
from nova_numa_ext.heal.group_claims import GroupMember
from nova_numa_ext.policy.numa.claims import ServerCell
from nova_numa_ext.policy.numa.nova_part import FlavorSizes
from placement_traits.client import HttpAdapter
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError

# Image properties in a server (2.98), their topology (2.78), uuids of migrations (2.59).
MICROVERSION: Final = "2.98"

_PAGE: Final = "500"

# nova.objects.MigrationList: statuses of migrations that need nothing more. "finished" is not one of them: such a
# resize waits for its confirmation.
_OVER: Final = frozenset(
    {"confirmed", "reverted", "error", "failed", "completed", "cancelled", "done"}
)
# Servers in these may get another host, or nova does not say which one they have.
_MOVING: Final = frozenset(
    {"BUILD", "RESIZE", "VERIFY_RESIZE", "REVERT_RESIZE", "MIGRATING", "REBUILD", "UNKNOWN"}
)
_NOWHERE: Final = frozenset({"ERROR", "DELETED", "SOFT_DELETED", "SHELVED_OFFLOADED"})
# The host keeps a server's cells in these, and nothing is under way.
_SETTLED: Final = frozenset({"ACTIVE", "PAUSED", "SUSPENDED", "SHUTOFF"})


@dataclass(frozen=True, slots=True)
class NovaServer:
    """One server as nova shows it.

    :param host: its compute node (hypervisor), "" without one, and where its cell does not answer
    :param why_busy: status or task that keeps others' hands off it, "" when there is none
    :param image_properties: those that nova keeps with the server
    :param from_volume: its root disk is a volume
    """

    uuid: str
    name: str
    host: str
    why_busy: str
    project: str
    user: str
    sizes: FlavorSizes
    specs: Mapping[str, str]
    image_properties: Mapping[str, str]
    from_volume: bool


@dataclass(frozen=True, slots=True)
class NovaFlavor:
    """One flavor as nova shows it; ``ram`` in MiB."""

    name: str
    vcpus: int
    ram: int
    extra_specs: Mapping[str, str]


class NovaServers:
    """Nova, asked as an administrator.

    All methods raise :class:`ServiceUnavailableError` when nova does not answer, and :class:`CapabilityMissingError`
    when it does not answer these credentials.

    :param compute: a keystoneauth1 adapter for service type ``compute``
    """

    def __init__(self, compute: HttpAdapter) -> None:
        self._compute = compute

    def all(self) -> Iterator[NovaServer]:
        """Yield all servers of all projects that are on a host, but those of a cell that is down."""
        for shown in self._pages("/servers/detail", "servers", "id", all_tenants="1"):
            server = _server(shown)
            if server.host:
                yield server

    def hosts_of_projects(self) -> Mapping[str, frozenset[str]]:
        """Return the compute nodes with servers of each project; ANYWHERE for one that has none yet or is not shown."""
        found: dict[str, set[str]] = {}
        for shown in self._pages("/servers/detail", "servers", "id", all_tenants="1"):
            server = _server(shown)
            if server.host:
                found.setdefault(server.project, set()).add(server.host)
            elif shown["status"] not in _NOWHERE:
                found.setdefault(shown["tenant_id"], set()).add(ANYWHERE)
        return {project: frozenset(hosts) for project, hosts in found.items()}

    def compute_nodes(self) -> frozenset[str]:
        """Return the hypervisors' hostnames of all compute nodes."""
        listed = self._pages("/os-hypervisors", "hypervisors", "id")
        return frozenset(each["hypervisor_hostname"] for each in listed)

    def flavors(self) -> Iterator[NovaFlavor]:
        """Yield all flavors, private ones, too."""
        for each in self._pages("/flavors/detail", "flavors", "id", is_public="None"):
            yield NovaFlavor(each["name"], each["vcpus"], each["ram"], each["extra_specs"])

    def one(self, uuid: str) -> NovaServer | None:
        """Return a server, None when nova does not know it."""
        body = self._get(f"/servers/{uuid}")
        return None if body is None else _server(body["server"])

    def cells(self, uuid: str) -> tuple[ServerCell, ...] | None:
        """Return a server's NUMA cells in order of number, none without a topology; None: nova does not know it."""
        body = self._get(f"/servers/{uuid}/topology")
        if body is None:
            return None
        nodes = body["nodes"]
        if any("host_node" not in node for node in nodes):
            raise _refused("does not show on which NUMA nodes servers are")
        return tuple(
            ServerCell(node["host_node"], tuple(node["cpu_pinning"].values())) for node in nodes
        )

    def members(self, group: str) -> list[GroupMember] | None:
        """Return the members of a server group that are not deleted; None where nova does not know the group."""
        body = self._get(f"/os-server-groups/{group}")
        if body is None:
            return None
        found = []
        for uuid in body["server_group"]["members"]:
            shown = self._get(f"/servers/{uuid}")
            if shown is not None:
                server = shown["server"]
                host = server.get("OS-EXT-SRV-ATTR:hypervisor_hostname")
                busy = server.get("OS-EXT-STS:task_state") or server["status"] in _MOVING
                name = server.get("name") or ""
                found.append(
                    GroupMember(server["status"], host or "", name, moves=bool(busy), uuid=uuid)
                )
        return found

    def group_project(self, group: str) -> str:
        """Return whose a server group is, '' where nova does not know it."""
        body = self._get(f"/os-server-groups/{group}")
        return "" if body is None else str(body["server_group"]["project_id"])

    def why_busy(self, uuid: str, host: str) -> str:
        """Return why nothing of a server's allocations may be touched now, "" when it may.

        :param host: compute node that should have it
        """
        server = self.one(uuid)
        if server is None:
            return "nova does not know the server any more"
        if server.host != host:
            return f"nova has it on {server.host or 'no host'}"
        return server.why_busy or self._migrating(uuid)

    def migrations_under_way(self) -> frozenset[str]:
        """Return the uuids of all migrations that are not over: each holds what its server holds of the source."""
        listed = self._pages("/os-migrations", "migrations", "uuid")
        return frozenset(each["uuid"] for each in listed if each["status"] not in _OVER)

    def _migrating(self, uuid: str) -> str:
        found = self._get("/os-migrations", {"instance_uuid": uuid})["migrations"]
        under_way = sorted({each["status"] for each in found} - _OVER)
        return f"migration {under_way[0]}" if under_way else ""

    def _pages(self, path: str, what: str, key: str, **query: str) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of a list that nova gives out by pages.

        :param what: under which name the list is in the answer
        :param key: of a row, what the next page is asked by
        """
        query |= {"limit": _PAGE}
        while rows := self._get(path, query)[what]:
            yield from rows
            query["marker"] = rows[-1][key]

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """Return the decoded body, None for 404."""
        url = f"{path}?{urlencode(query)}" if query else path
        try:
            answer = self._compute.request(url, "GET", raise_exc=False, microversion=MICROVERSION)
        except keystone_errors.ClientException as error:
            raise ServiceUnavailableError(f"Nova does not answer GET {path}: {error}") from error
        if answer.status_code == 404:
            return None
        if answer.status_code in (401, 403):
            raise _refused(f"answers GET {path} with {answer.status_code}")
        if answer.status_code != 200:
            raise ServiceUnavailableError(
                f"Nova answered GET {path} with {answer.status_code}: {answer.text[:200]}"
            )
        try:
            return answer.json()
        except ValueError as error:
            raise ServiceUnavailableError(f"Nova's answer to GET {path} is no JSON") from error


def _server(shown: Mapping[str, Any]) -> NovaServer:
    flavor, image = shown.get("flavor"), shown.get("image")
    if not flavor:
        nothing: Mapping[str, str] = {}
        why = "its cell does not answer"
        return NovaServer(
            shown["id"], "", "", why, "", "", FlavorSizes(0, 0), nothing, nothing, False
        )
    place, task = "OS-EXT-SRV-ATTR:hypervisor_hostname", "OS-EXT-STS:task_state"
    if place not in shown:
        raise _refused("does not show the hosts of servers")
    busy = ""
    if shown[task]:
        busy = f"task {shown[task]}"
    elif shown["status"] not in _SETTLED:
        busy = f"status {shown['status']}"
    return NovaServer(
        shown["id"],
        shown["name"],
        shown[place] or "",
        busy,
        shown["tenant_id"],
        shown["user_id"],
        FlavorSizes(*(flavor[key] for key in ("vcpus", "ram", "disk", "ephemeral", "swap"))),
        flavor.get("extra_specs") or {},
        (image or {}).get("properties", {}),
        from_volume=not image,
    )


def _refused(what: str) -> CapabilityMissingError:
    return CapabilityMissingError(
        f"Nova {what}: the user of [placement] in this configuration file needs the role admin"
    )
