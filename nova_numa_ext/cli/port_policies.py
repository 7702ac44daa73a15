# SPDX-License-Identifier: Apache-2.0
"""QoS policies of Neutron that mark what servers send by their tier, on ports without one.

Neutron then writes the DSCP at each host, whichever of its agents is there, and switches can order by it. There are two
policies, ``numa-ext-lc`` and ``numa-ext-be``, each with one rule. A port is touched only where neither it nor its
network has a policy: what Neutron knows of its revision then must still be so when ours is attached, so a policy that
is given to it in between stays.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from openstack import exceptions as errors

from nova_numa_ext.heal.nova_servers import NovaServer
from placement_traits import request
from placement_traits.errors import InvalidValueError
from placement_traits.names import TIER_DSCP, Tier

POLICIES: Final[Mapping[Tier, str]] = {Tier.LC: "numa-ext-lc", Tier.BE: "numa-ext-be"}
_WHAT: Final[Mapping[Tier, str]] = {
    Tier.LC: "Packets of latency-critical servers, by openstack numa net qos apply",
    Tier.BE: "Packets of best-effort servers, by openstack numa net qos apply",
}
_BATCH: Final = 40  # servers of a request, whose uuids are in its URL
_OF_SERVERS: Final = "compute:"


class PortResult(StrEnum):
    """What became of a port."""

    ATTACHED = "attached"
    WOULD_ATTACH = "would be attached"
    HAS_IT = "has it already"
    OTHER_TIER = "has that of the other tier: openstack numa net qos remove, then apply again"
    HAS_POLICY = "left alone: the port has a policy"
    NETWORK_HAS_POLICY = "left alone: its network has a policy"
    CHANGED = "left alone: changed meanwhile"
    GONE = "gone meanwhile"
    REFUSED = "refused by Neutron"
    REMOVED = "removed"
    WOULD_REMOVE = "would be removed"


@dataclass(frozen=True, slots=True)
class PortOutcome:
    """A port and what became of it.

    :param server: name of its server
    :param port: its uuid
    :param policy: name of the policy of ours that it is about
    :param result: what became of it
    :param why: what Neutron says where it refused
    """

    server: str
    port: str
    policy: str
    result: PortResult
    why: str = ""


class PortPolicies:
    """Our policies in a Neutron.

    :param network: openstacksdk's proxy of an administrator, who sees the ports of all projects
    """

    def __init__(self, network: Any) -> None:
        self._network = network
        self._networks: dict[str, str | None] = {}

    def apply(self, servers: Iterable[NovaServer], *, dry_run: bool) -> Iterator[PortOutcome]:
        """Attach policies by tier; yield each port of a server with a tier.

        :param servers: those without a tier, that are not managed, or whose flavor has problems are left out
        :param dry_run: nothing is written
        :raises InvalidValueError: a policy of our name is not as we make it
        """
        ids = {tier: self._policy(tier) for tier in Tier}
        for server, port in self._ports(filter(_tier, servers)):
            tier = _tier(server)
            assert tier is not None, "servers without one are filtered"
            result, why = self._why_not(port, tier, ids), ""
            if result is None and dry_run:
                result = PortResult.WOULD_ATTACH
            elif result is None:
                ids[tier] = ids[tier] or self._made(tier)
                result, why = self._set(port, ids[tier], PortResult.ATTACHED)
            yield PortOutcome(server.name, port.id, POLICIES[tier], result, why)

    def remove(self, servers: Iterable[NovaServer], *, dry_run: bool) -> Iterator[PortOutcome]:
        """Take our policies off ports, and delete those that no port has then; yield each port that had one.

        :param servers: all of the cloud, whatever their tier is now
        :param dry_run: nothing is written
        """
        ids = {policy.id: tier for tier in Tier for policy in self._named(tier)}
        if not ids:
            return
        for server, port in self._ports(servers):
            tier = ids.get(port.qos_policy_id)
            if tier is not None:
                result, why = PortResult.WOULD_REMOVE, ""
                if not dry_run:
                    result, why = self._set(port, None, PortResult.REMOVED)
                yield PortOutcome(server.name, port.id, POLICIES[tier], result, why)
        for policy in () if dry_run else ids:
            try:
                self._network.delete_qos_policy(policy)
            except errors.ConflictException:
                continue  # a network, or a port of no server, has it

    def _why_not(self, port: Any, tier: Tier, ids: Mapping[Tier, str | None]) -> PortResult | None:
        if port.qos_policy_id:
            of_tier = {policy: each for each, policy in ids.items() if policy}.get(
                port.qos_policy_id
            )
            if of_tier is None:
                return PortResult.HAS_POLICY
            return PortResult.HAS_IT if of_tier is tier else PortResult.OTHER_TIER
        if port.network_id not in self._networks:
            self._networks[port.network_id] = self._network.get_network(
                port.network_id
            ).qos_policy_id
        return PortResult.NETWORK_HAS_POLICY if self._networks[port.network_id] else None

    def _set(self, port: Any, policy: str | None, done: PortResult) -> tuple[PortResult, str]:
        try:
            self._network.update_port(port, if_revision=port.revision_number, qos_policy_id=policy)
        except errors.PreconditionFailedException:
            return PortResult.CHANGED, ""
        except errors.NotFoundException:
            return PortResult.GONE, ""
        except errors.ConflictException as error:
            return PortResult.REFUSED, str(error.details or error)
        return done, ""

    def _ports(self, servers: Iterable[NovaServer]) -> Iterator[tuple[NovaServer, Any]]:
        left = iter(servers)
        while batch := {each.uuid: each for each in islice(left, _BATCH)}:
            for port in self._network.ports(device_id=[*batch]):
                if str(port.device_owner).startswith(_OF_SERVERS):
                    yield batch[port.device_id], port

    def _named(self, tier: Tier) -> list[Any]:
        return [*self._network.qos_policies(name=POLICIES[tier])]

    def _policy(self, tier: Tier) -> str | None:
        """Return the id of a policy; None: it is not there yet."""
        found = self._named(tier)
        for policy in found:
            rules = [(rule["type"], rule.get("dscp_mark")) for rule in policy.rules]
            if rules != [("dscp_marking", TIER_DSCP[tier])] or len(found) > 1:
                raise InvalidValueError(
                    f"QoS policies {POLICIES[tier]}",
                    [(each.id, each.rules) for each in found],
                    f"none, or one that marks with DSCP {TIER_DSCP[tier]} and has no other rule",
                )
        return found[0].id if found else None

    def _made(self, tier: Tier) -> str:
        """Make a policy; return its id."""
        made = self._network.create_qos_policy(name=POLICIES[tier], description=_WHAT[tier])
        self._network.create_qos_dscp_marking_rule(made, dscp_mark=TIER_DSCP[tier])
        policy: str = made.id
        return policy


def _tier(server: NovaServer) -> Tier | None:
    try:
        asked = request.parse(
            server.specs, vcpus=server.sizes.vcpus, memory_mb=server.sizes.memory_mb
        )
    except request.InvalidRequestError:
        return None
    return asked.tier if asked.managed else None
