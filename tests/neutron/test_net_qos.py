# SPDX-License-Identifier: Apache-2.0
"""``openstack numa net qos`` on a real Neutron: what it attaches, what it leaves alone, and that it goes again."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from nova_numa_ext.cli.port_policies import POLICIES, PortPolicies, PortResult
from nova_numa_ext.heal.nova_servers import NovaServer
from placement_traits.errors import InvalidValueError
from placement_traits.names import Tier
from tests.support.nova_servers import server_of


class Tenants:
    """A network with servers of tenants."""

    def __init__(self, neutron: Any) -> None:
        self.neutron = neutron
        self.network = neutron.create_network(name="of tenants")
        self.servers: list[NovaServer] = []
        self.policies = PortPolicies(neutron)

    def port(self, tier: Tier | None, network: Any = None, **attributes: Any) -> str:
        """A server with one port; returns the port's uuid."""
        server = server_of(str(uuid4()), tier)
        self.servers.append(server)
        port = self.neutron.create_port(
            network_id=(network or self.network).id,
            device_id=server.uuid,
            device_owner="compute:nova",
            **attributes,
        )
        return str(port.id)

    def policy(self, name: str = "of an operator") -> Any:
        return self.neutron.create_qos_policy(name=name)

    def policy_of(self, port: str) -> str | None:
        """The name of a port's policy, as Neutron has it."""
        policy = self.neutron.get_port(port).qos_policy_id
        return self.neutron.get_qos_policy(policy).name if policy else None

    def apply(self, *, dry_run: bool = False) -> dict[str, PortResult]:
        return {
            each.port: each.result for each in self.policies.apply(self.servers, dry_run=dry_run)
        }

    def remove(self, *, dry_run: bool = False) -> dict[str, PortResult]:
        return {
            each.port: each.result for each in self.policies.remove(self.servers, dry_run=dry_run)
        }


@pytest.fixture
def tenants(neutron: Any) -> Iterator[Tenants]:
    yield Tenants(neutron)
    for port in neutron.ports():
        neutron.delete_port(port)
    for network in neutron.networks():
        neutron.delete_network(network)
    for policy in neutron.qos_policies():
        neutron.delete_qos_policy(policy)


def test_ports_get_the_policy_of_their_servers_tier(tenants: Tenants) -> None:
    of_lc, of_be, of_none = tenants.port(Tier.LC), tenants.port(Tier.BE), tenants.port(None)
    assert set(tenants.apply(dry_run=True).values()) == {PortResult.WOULD_ATTACH}
    assert not [*tenants.neutron.qos_policies()]
    assert tenants.apply() == dict.fromkeys((of_lc, of_be), PortResult.ATTACHED)
    assert [tenants.policy_of(port) for port in (of_lc, of_be, of_none)] == [
        POLICIES[Tier.LC],
        POLICIES[Tier.BE],
        None,
    ]
    marks = {
        policy.name: [(rule["type"], rule["dscp_mark"]) for rule in policy.rules]
        for policy in tenants.neutron.qos_policies()
    }
    assert marks == {
        "numa-ext-lc": [("dscp_marking", 46)],
        "numa-ext-be": [("dscp_marking", 8)],
    }
    assert tenants.apply() == dict.fromkeys((of_lc, of_be), PortResult.HAS_IT)


def test_a_port_or_network_with_a_policy_is_left_alone(tenants: Tenants) -> None:
    theirs = tenants.policy()
    network = tenants.neutron.create_network(name="with a policy", qos_policy_id=theirs.id)
    of_port = tenants.port(Tier.LC, qos_policy_id=theirs.id)
    of_network = tenants.port(Tier.BE, network)
    assert tenants.apply() == {
        of_port: PortResult.HAS_POLICY,
        of_network: PortResult.NETWORK_HAS_POLICY,
    }
    assert tenants.policy_of(of_port) == "of an operator"
    assert tenants.policy_of(of_network) is None
    assert [each.name for each in tenants.neutron.qos_policies()] == ["of an operator"]


def test_a_policy_that_somebody_gives_in_between_stays(
    tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = tenants.port(Tier.LC)
    theirs, update = tenants.policy(), tenants.neutron.update_port

    def somebody_was_first(of_port: Any, **attributes: Any) -> Any:
        monkeypatch.undo()
        tenants.neutron.update_port(port, qos_policy_id=theirs.id)
        return update(of_port, **attributes)

    monkeypatch.setattr(tenants.neutron, "update_port", somebody_was_first)
    assert tenants.apply() == {port: PortResult.CHANGED}
    assert tenants.policy_of(port) == "of an operator"


def test_ours_go_and_those_of_others_stay(tenants: Tenants) -> None:
    ours, theirs = tenants.port(Tier.BE), tenants.port(Tier.BE, qos_policy_id=tenants.policy().id)
    tenants.apply()
    assert tenants.remove(dry_run=True) == {ours: PortResult.WOULD_REMOVE}
    assert tenants.policy_of(ours) == "numa-ext-be"
    assert tenants.remove() == {ours: PortResult.REMOVED}
    assert [tenants.policy_of(port) for port in (ours, theirs)] == [None, "of an operator"]
    assert [each.name for each in tenants.neutron.qos_policies()] == ["of an operator"]
    assert tenants.remove() == {}


def test_a_policy_of_ours_that_a_network_uses_is_kept(tenants: Tenants) -> None:
    tenants.port(Tier.LC)
    tenants.apply()
    (ours,) = tenants.neutron.qos_policies()
    tenants.neutron.create_network(name="of an operator", qos_policy_id=ours.id)
    assert [*tenants.remove().values()] == [PortResult.REMOVED]
    assert [each.name for each in tenants.neutron.qos_policies()] == ["numa-ext-lc"]


def test_a_policy_of_our_name_with_other_rules_is_nobodys(tenants: Tenants) -> None:
    port = tenants.port(Tier.LC)
    theirs = tenants.policy("numa-ext-lc")
    tenants.neutron.create_qos_dscp_marking_rule(theirs, dscp_mark=10)
    with pytest.raises(InvalidValueError, match="one that marks with DSCP 46"):
        tenants.apply()
    assert tenants.policy_of(port) is None


def test_a_server_of_another_tier_than_its_policy_is_named(tenants: Tenants) -> None:
    port = tenants.port(Tier.LC)
    tenants.apply()
    tenants.servers = [server_of(tenants.servers[0].uuid, Tier.BE)]
    assert tenants.apply() == {port: PortResult.OTHER_TIER}
    tenants.remove()
    assert tenants.apply() == {port: PortResult.ATTACHED}
    assert tenants.policy_of(port) == "numa-ext-be"
