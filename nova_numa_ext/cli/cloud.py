# SPDX-License-Identifier: Apache-2.0
"""What the commands read from Placement and Nova."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from urllib.parse import urlencode
from uuid import UUID

from keystoneauth1.adapter import Adapter
from openstack.exceptions import ForbiddenException

from nova_numa_ext.cli import modes
from nova_numa_ext.cli.agents import last_beats, moment, states
from nova_numa_ext.cli.doctor import CloudDoctor
from nova_numa_ext.cli.each import each
from nova_numa_ext.cli.fabric_sources.aggregates import NovaAggregate
from nova_numa_ext.cli.fleet import capacity_of_fleet, one_reading, what_if
from nova_numa_ext.cli.jobs_client import SERVICE_TYPE, JobsClient
from nova_numa_ext.cli.port_policies import PortPolicies
from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.endpoints import COMPUTE_VERSION
from nova_numa_ext.fabrics import PlacementFabrics
from nova_numa_ext.heal.forgotten_groups import usage
from nova_numa_ext.heal.group_claims import GroupMember, Swept, sweep
from nova_numa_ext.heal.nova_servers import NovaServer, NovaServers
from nova_numa_ext.policy.numa.capacity import HostCapacity
from nova_numa_ext.policy.numa.whatif import Answer
from placement_traits import beats, names, pool_reader, removal, server_costs
from placement_traits.client import PlacementClient
from placement_traits.errors import InvalidValueError
from placement_traits.fabric_tree import FabricWriter
from placement_traits.host_modes import HostModes
from placement_traits.pools import Pool
from placement_traits.reader import hosts, read_tree
from placement_traits.removal import Removal
from placement_traits.reporter import Reporter
from placement_traits.snapshot import FleetSnapshot
from placement_traits.topology import HostTopology
from placement_traits.tree import from_tree
from placement_traits.workload_request import WorkloadRequest

_MOST_NAMES: Final = 20  # hosts in a message
_MOST_BEATS: Final = 100  # hosts whose last beat is looked up


@dataclass(frozen=True, slots=True)
class Stock:
    """One inventory of a provider with what is used of it.

    :param total: as the provider declares it
    :param reserved: kept back
    :param ratio: allocation ratio
    :param used: allocated
    """

    total: int
    reserved: int
    ratio: float
    used: int

    @property
    def capacity(self) -> int:
        """What may be allocated in all."""
        return int((self.total - self.reserved) * self.ratio)

    @property
    def free(self) -> int:
        """What is left."""
        return self.capacity - self.used


@dataclass(frozen=True, slots=True)
class ListedProvider:
    """One resource provider.

    :param uuid: its uuid
    :param name: its name
    :param parent: uuid of its parent, None for a root
    :param root: uuid of its tree's root
    :param stocks: by resource class
    :param traits: its traits
    """

    uuid: str
    name: str
    parent: str | None
    root: str
    stocks: Mapping[str, Stock]
    traits: frozenset[str]


class Cloud:
    """Placement and Nova, as the user of the command line may see them.

    :param connection: an :class:`openstack.connection.Connection`
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._placement = PlacementClient(connection.placement)

    def jobs(self) -> JobsClient:
        """Return the job service."""
        config = self._connection.config
        # A proxy of openstacksdk's own for a service that it does not know asks for nothing without its connection.
        return JobsClient(
            Adapter(
                self._connection.session,
                service_type=SERVICE_TYPE,
                interface=config.get_interface(SERVICE_TYPE),
                region_name=config.get_region_name(SERVICE_TYPE),
                endpoint_override=config.get_endpoint(SERVICE_TYPE),
            )
        )

    def fleet(self) -> FleetSnapshot:
        """Return one reading of the whole fleet."""
        return one_reading(self._connection.placement)

    def agents(self, fleet: FleetSnapshot) -> dict[str, str]:
        """Return what Placement shows of each agent, by its host's name, as text."""
        found = states(self._placement, fleet)
        beaten = last_beats(self._placement, found, _MOST_BEATS)
        return {
            host: f"{state}, last beat {beaten[host]}" if host in beaten else str(state)
            for host, state in found.items()
        }

    def pools(self) -> tuple[Pool, ...]:
        """Return the pools of GPUs that hosts lend, by host."""
        return pool_reader.read(self._placement)

    def aggregates(self) -> dict[str, Mapping[str, str]] | None:
        """Return the metadata of host aggregates by uuid, None when this user may not see them."""
        try:
            found = list(self._connection.compute.aggregates())
        except ForbiddenException:
            return None
        return {aggregate.uuid: aggregate.metadata or {} for aggregate in found}

    def what_if(
        self,
        request: WorkloadRequest,
        flavor: str,
        aggregates: Mapping[str, Mapping[str, str]],
        aliases: Mapping[str, frozenset[str]],
    ) -> tuple[Answer, ...]:
        """Return how every host answers a flavor (its name) now, by default options.

        :param aggregates: metadata of host aggregates
        :param aliases: resource classes of PCI aliases
        """
        return what_if(
            self._connection.placement,
            request,
            flavor,
            options=SchedulerOptions(),
            aggregates=aggregates,
            aliases=aliases,
        )

    def capacity(
        self, request: WorkloadRequest, aliases: Mapping[str, frozenset[str]]
    ) -> tuple[HostCapacity, ...]:
        """Return how many more servers fit on each host, the most first.

        :param aliases: resource classes of PCI aliases
        """
        return capacity_of_fleet(self._connection.placement, request, aliases)

    def tree(self, host: str) -> tuple[ListedProvider, ...]:
        """Return a host's providers, root first, by the host's name or uuid.

        :raises InvalidValueError: when Placement knows no such host
        """
        found = self._get("/resource_providers", name=host)["resource_providers"]
        if not found and _is_uuid(host):
            found = self._get("/resource_providers", uuid=host)["resource_providers"]
        if not found:
            self._unknown(host)
        root = found[0]["root_provider_uuid"]
        members = self._get("/resource_providers", in_tree=root)["resource_providers"]
        members.sort(key=lambda member: (member["uuid"] != root, member["name"]))
        return tuple(self._provider(member) for member in members)

    def set_modes(
        self, named: Sequence[str], *, all_hosts: bool, observe: bool
    ) -> list[tuple[str, str]]:
        """Let agents observe only, or enforce; return each host with what came of it.

        :param named: hosts by name; one without an agent yet gets the mode for its first start
        :param all_hosts: every host with an agent whose mode is the other one, instead
        :raises InvalidValueError: Placement knows no such host
        """
        host_modes = HostModes(self._placement)
        host_modes.prepare()
        if all_hosts:
            roots = host_modes.to_change(observe=observe)
        else:
            roots = [host_modes.root(name) or self._unknown(name) for name in named]
        return list(modes.set_all(self._client, roots, observe=observe))

    def fabric_writer(self) -> FabricWriter:
        """Return what writes fabrics."""
        return FabricWriter(self._placement)

    def fabric(self, name: str) -> tuple[ListedProvider, ...]:
        """Return a fabric's providers, the root first; () where Placement has no such fabric."""
        provider = names.fabric_provider(name)
        return self.tree(provider) if self._placement.provider_named(provider) else ()

    def fabrics(self) -> PlacementFabrics:
        """Return fabrics with what server groups hold there."""
        return PlacementFabrics(self._placement)

    def servers(self) -> Iterator[NovaServer]:
        """Yield all servers of all projects that are on a host."""
        return NovaServers(self._connection.compute).all()

    def port_policies(self) -> PortPolicies:
        """Return Neutron's policies of ours."""
        return PortPolicies(self._connection.network)

    def group_members(self, group: str) -> list[GroupMember]:
        """Return the servers of a server group; none where nova does not know it."""
        return NovaServers(self._connection.compute).members(group) or []

    def group_project(self, group: str) -> str:
        """Return whose a server group is, '' where nova does not know it."""
        return NovaServers(self._connection.compute).group_project(group)

    def host_traits(self, host: str) -> frozenset[str]:
        """Return the traits of a host's root provider, none where Placement does not know it."""
        root = self._placement.provider_named(host)
        if root is None:
            return frozenset()
        return frozenset(self._get(f"/resource_providers/{root['uuid']}/traits")["traits"])

    def sweep_fabrics(self, *, dry_run: bool, only: str | None = None) -> Iterator[Swept]:
        """Release what dead server groups hold of fabrics; yield each group's claim with what became of it.

        A group that nova does not know keeps its claim while servers may be using it:
        :func:`nova_numa_ext.heal.forgotten_groups.usage`.

        :param only: a group's uuid: no other is looked at
        """
        nova, fabrics = NovaServers(self._connection.compute), PlacementFabrics(self._placement)
        return sweep(fabrics, nova, dry_run=dry_run, may_be_used=usage(fabrics, nova), only=only)

    def nova_aggregates(self) -> list[NovaAggregate]:
        """Return nova's aggregates; raises openstacksdk's error where this user may not see them."""
        return [
            NovaAggregate(found.name, found.hosts or (), found.metadata or {})
            for found in self._connection.compute.aggregates()
        ]

    def drain(self, named: Sequence[str], *, on: bool) -> list[tuple[str, str]]:
        """Keep new servers with a tier away from hosts, or no longer; return each host with what came of it.

        :param named: hosts by name
        :raises InvalidValueError: Placement knows no such host
        """
        for name in named:
            if self._placement.provider_named(name) is None:
                self._unknown(name)

        def one(client: PlacementClient, host: str) -> str:
            report = Reporter(client).drain(host, on=on)
            if report.problems:
                return " ".join(report.problems)
            return ("drained" if on else "undrained") if report.changes else "unchanged"

        return list(each(self._client, named, one))

    def remove(
        self, named: Sequence[str], *, all_hosts: bool, dry_run: bool
    ) -> Iterator[tuple[str, Removal | str]]:
        """Take hosts out of Placement; yield each with what became of it, or a sentence.

        :param named: hosts by name
        :param all_hosts: all of which anything is there, instead
        """
        hosts_ = removal.hosts(self._placement) if all_hosts else named
        return each(
            self._client,
            hosts_,
            lambda client, host: removal.remove(client, host, dry_run=dry_run),
        )

    def forget(self, *, dry_run: bool) -> Removal:
        """Take traits and resource classes out of Placement that no provider has and that are not asked for.

        A server asks by the flavor that it was created or last resized with, which nova keeps with it.
        """
        words = removal.vocabulary(self._placement)
        count = len(words.traits) + len(words.classes)
        if not count:
            return Removal()
        compute = self._connection.compute
        flavors = compute.flavors(details=True, get_extra_specs=True, is_public=None)
        servers = compute.servers(details=True, all_projects=True)
        images = self._connection.image.images()
        asking = {
            "flavors": sorted(f.name for f in flavors if words.asked_for(f.extra_specs or ())),
            "servers": sorted(
                s.name for s in servers if words.asked_for(s.flavor.extra_specs or ())
            ),
            "images": sorted(i.name for i in images if words.asked_for(i.properties or ())),
        }
        if any(asking.values()):
            return Removal(held=(_asking(asking),))
        kept = () if dry_run else removal.forget(self._placement, words)
        gone = f"{count - len(kept)} traits and resource classes"
        text = f"{', '.join(kept)} stay: providers of others have them." if kept else ""
        return Removal((gone,) * (len(kept) < count), (text,) * bool(kept))

    def _client(self) -> PlacementClient:
        return PlacementClient(self._connection.placement)

    def _unknown(self, host: str) -> NoReturn:
        raise InvalidValueError("host", host, _unknown_host(host, list(hosts(self._placement))))

    def costs(self, host: str) -> list[tuple[str, str, str]]:
        """Return what objectives cost on a host: who or what holds, where, and how much is withheld from others.

        Ways are those that servers claim; bandwidth is what the agent withheld between its last two beats, for the sake
        of each server and in all.

        :raises InvalidValueError: when Placement knows no such host
        """
        tree = self.tree(host)
        rows = []
        for provider in tree:
            ways = provider.stocks.get(names.LLC_WAY)
            if ways is not None and ways.used:
                held = self._get(f"/resource_providers/{provider.uuid}/allocations")["allocations"]
                rows += [
                    (server, provider.name, f"{amount} of {ways.total} ways")
                    for server, claim in sorted(held.items())
                    if (amount := claim["resources"].get(names.LLC_WAY))
                ]
        beat = beats.last(self._placement, tree[0].name)
        if beat is not None and beat.withheld_permille is not None:
            where = f"{tree[0].name}, at the beat of {moment(beat.minute)}"
            parts = server_costs.of_host(self._placement, tree[0].name)
            of_whom = "best-effort servers' memory bandwidth at most"
            rows += [
                (uuid, where, f"{part / 10:.1f} % of {of_whom}") for uuid, part in parts.items()
            ]
            rows.append(("all servers", where, f"{beat.withheld_permille / 10:.1f} % of {of_whom}"))
        return rows

    def topology(self, host: str) -> HostTopology:
        """Return a host's topology as far as Placement knows it, by the host's name.

        :raises InvalidValueError: there is no such host, or no agent reports there
        """
        return from_tree(read_tree(self._placement, host)).topology

    def doctor(self) -> CloudDoctor:
        """Return what examines the cloud."""
        return CloudDoctor(self._connection.compute, self._placement)

    def allocations(self, server_uuid: str) -> dict[str, dict[str, int]]:
        """Return what a server has allocated: amounts by resource class by provider."""
        body = self._get(f"/allocations/{server_uuid}")
        return {uuid: entry["resources"] for uuid, entry in body["allocations"].items()}

    def provider(self, uuid: str) -> ListedProvider:
        """Return one provider."""
        return self._provider(self._get(f"/resource_providers/{uuid}"))

    def flavor(self, name: str) -> Any:
        """Return a flavor with its extra specs, by name or id; raises openstacksdk's error when there is none."""
        return self._connection.compute.find_flavor(
            name, ignore_missing=False, get_extra_specs=True
        )

    def image(self, name: str | None) -> dict[str, Any]:
        """Return an image's properties as Glance shows them, by name or id; empty for None.

        :raises: openstacksdk's error when there is none
        """
        if name is None:
            return {}
        found = self._connection.image.find_image(name, ignore_missing=False)
        properties: dict[str, Any] = self._connection.image.get(f"/images/{found.id}").json()
        return properties

    def server(self, name: str, all_projects: bool) -> Any:
        """Return a server, by name or id; raises openstacksdk's error when there is none."""
        compute = self._connection.compute
        compute.default_microversion = COMPUTE_VERSION
        found = compute.find_server(name, ignore_missing=False, all_projects=all_projects)
        return compute.get_server(found.id)

    def _provider(self, member: Mapping[str, Any]) -> ListedProvider:
        uuid = member["uuid"]
        inventories = self._get(f"/resource_providers/{uuid}/inventories")["inventories"]
        usages = self._get(f"/resource_providers/{uuid}/usages")["usages"]
        traits = self._get(f"/resource_providers/{uuid}/traits")["traits"]
        stocks = {
            name: Stock(
                inventory["total"],
                inventory["reserved"],
                inventory["allocation_ratio"],
                usages.get(name, 0),
            )
            for name, inventory in sorted(inventories.items())
        }
        return ListedProvider(
            uuid=uuid,
            name=member["name"],
            parent=member["parent_provider_uuid"],
            root=member["root_provider_uuid"],
            stocks=stocks,
            traits=frozenset(traits),
        )

    def _get(self, path: str, **query: str) -> Any:
        return self._placement.get(f"{path}?{urlencode(query)}" if query else path)


def _asking(asking: Mapping[str, Sequence[str]]) -> str:
    who = "; ".join(
        f"{kind} {', '.join(found[:_MOST_NAMES])}{' …' * (len(found) > _MOST_NAMES)}"
        for kind, found in asking.items()
        if found
    )
    return (
        f"Traits and resource classes stay, for these ask for them: {who}. nova-scheduler fails on a class that "
        "Placement does not know, and moves no server whose trait no host has. Delete flavors and images, resize or "
        "delete servers, and do this again."
    )


def _unknown_host(host: str, known: list[str]) -> str:
    """Return the known hosts for a message; of many, those whose names are nearest to ``host``."""
    near = difflib.get_close_matches(host, known, n=_MOST_NAMES, cutoff=0.0)
    more = f" and {len(known) - len(near)} more" if len(known) > len(near) else ""
    return ", ".join(sorted(near)) + more or "none: no agent reports"


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
