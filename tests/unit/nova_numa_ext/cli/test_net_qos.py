# SPDX-License-Identifier: Apache-2.0
"""Which ports get a QoS policy of ours, and which stay as they are; a real Neutron is asked by ``tests/neutron``."""

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from openstack import exceptions as errors

from nova_numa_ext.cli.net_qos import ApplyNetQos, RemoveNetQos
from nova_numa_ext.cli.port_policies import PortPolicies, PortResult
from nova_numa_ext.heal.nova_servers import NovaServer
from placement_traits.errors import InvalidValueError
from placement_traits.names import Tier
from tests.support.nova_servers import server_of


class Neutron:
    """Ports and policies as openstacksdk shows them; what is given out does not change by itself."""

    def __init__(self, *ports: dict[str, Any]) -> None:
        self.of_port = {
            port["id"]: SimpleNamespace(
                **{
                    "qos_policy_id": None,
                    "network_id": "n",
                    "device_owner": "compute:nova",
                    "revision_number": 1,
                    **port,
                }
            )
            for port in ports
        }
        self.of_policy: dict[str, Any] = {}
        self.network_policies: dict[str, str | None] = {"n": None}
        self.in_use: set[str] = set()
        self.asked: list[list[str]] = []
        self.refuses: Exception | None = None

    def ports(self, device_id: list[str]) -> Iterator[Any]:
        self.asked.append(device_id)
        found = [port for port in self.of_port.values() if port.device_id in device_id]
        return iter(copy.deepcopy(found))

    def get_network(self, network: str) -> Any:
        return SimpleNamespace(qos_policy_id=self.network_policies[network])

    def qos_policies(self, name: str) -> list[Any]:
        return [policy for policy in self.of_policy.values() if policy.name == name]

    def create_qos_policy(self, name: str, description: str = "") -> Any:
        policy = SimpleNamespace(id=f"id of {name}", name=name, rules=[])
        self.of_policy[policy.id] = policy
        return policy

    def create_qos_dscp_marking_rule(self, policy: Any, dscp_mark: int) -> None:
        policy.rules.append({"type": "dscp_marking", "dscp_mark": dscp_mark})

    def update_port(self, port: Any, if_revision: int, qos_policy_id: str | None) -> None:
        if self.refuses:
            raise self.refuses
        mine = self.of_port[port.id]
        if mine.revision_number != if_revision:
            raise errors.PreconditionFailedException
        mine.qos_policy_id = qos_policy_id
        mine.revision_number += 1

    def delete_qos_policy(self, policy: str) -> None:
        if policy in self.in_use:
            raise errors.ConflictException
        del self.of_policy[policy]


def results(neutron: Neutron, *servers: NovaServer, dry_run: bool = False) -> dict[str, PortResult]:
    found = PortPolicies(neutron).apply(servers, dry_run=dry_run)
    return {each.port: each.result for each in found}


LC, BE = server_of("lc", Tier.LC), server_of("be", Tier.BE)


def of(server: str, **more: Any) -> dict[str, Any]:
    return {"id": f"port of {server}", "device_id": server, **more}


def test_policies_are_made_when_a_port_needs_them_and_attached_by_tier() -> None:
    neutron = Neutron(of("lc"), of("none"))
    assert results(neutron, LC, server_of("none", None), dry_run=True) == {
        "port of lc": PortResult.WOULD_ATTACH
    }
    assert not neutron.of_policy
    assert results(neutron, LC, server_of("none", None)) == {"port of lc": PortResult.ATTACHED}
    assert [*neutron.of_policy] == ["id of numa-ext-lc"]
    assert neutron.of_policy["id of numa-ext-lc"].rules == [
        {"type": "dscp_marking", "dscp_mark": 46}
    ]
    assert neutron.of_port["port of lc"].qos_policy_id == "id of numa-ext-lc"
    assert neutron.of_port["port of none"].qos_policy_id is None
    assert results(neutron, LC) == {"port of lc": PortResult.HAS_IT}


def test_what_others_have_given_a_policy_stays() -> None:
    neutron = Neutron(
        of("lc", qos_policy_id="theirs"),
        of("be", network_id="theirs"),
        of("be", id="router", device_owner="network:router_interface"),
    )
    neutron.network_policies["theirs"] = "theirs"
    assert results(neutron, LC, BE) == {
        "port of lc": PortResult.HAS_POLICY,
        "port of be": PortResult.NETWORK_HAS_POLICY,
    }
    assert not neutron.of_policy
    assert neutron.of_port["port of lc"].qos_policy_id == "theirs"


def test_servers_that_are_not_managed_or_ask_for_nonsense_are_left_out() -> None:
    neutron = Neutron(of("off"), of("wrong"))
    off = server_of("off", Tier.BE, managed="false")
    wrong = server_of("wrong", Tier.LC, slo_p99_us="soon")
    assert results(neutron, off, wrong) == {}


def test_a_port_that_changed_since_it_was_read_stays() -> None:
    neutron = Neutron(of("lc"))
    (shown,) = neutron.ports(["lc"])
    neutron.ports = lambda device_id: iter([shown])  # type: ignore[method-assign]
    neutron.of_port["port of lc"].revision_number = 2
    assert results(neutron, LC) == {"port of lc": PortResult.CHANGED}
    assert neutron.of_port["port of lc"].qos_policy_id is None


def test_what_neutron_refuses_is_said() -> None:
    neutron = Neutron(of("lc"))
    neutron.refuses = errors.ConflictException("no driver marks there")
    (found,) = PortPolicies(neutron).apply([LC], dry_run=False)
    assert (found.result, found.why) == (PortResult.REFUSED, "no driver marks there")
    neutron.refuses = errors.NotFoundException()
    assert results(neutron, LC) == {"port of lc": PortResult.GONE}


def test_a_policy_of_our_name_that_is_another_ends_it_before_anything_is_written() -> None:
    neutron = Neutron(of("lc"))
    neutron.create_qos_dscp_marking_rule(neutron.create_qos_policy("numa-ext-be"), 10)
    with pytest.raises(InvalidValueError, match="one that marks with DSCP 8"):
        results(neutron, LC)
    assert [*neutron.of_policy] == ["id of numa-ext-be"]


def test_ours_are_taken_off_whatever_the_tier_is_now() -> None:
    neutron = Neutron(of("lc"), of("be"), of("other", qos_policy_id="theirs"))
    results(neutron, LC, BE)
    resized = server_of("lc", None)
    policies = PortPolicies(neutron)
    for dry_run, result in ((True, PortResult.WOULD_REMOVE), (False, PortResult.REMOVED)):
        found = policies.remove([resized, BE, server_of("other", Tier.LC)], dry_run=dry_run)
        assert {each.port: each.result for each in found} == {
            "port of lc": result,
            "port of be": result,
        }
    assert not neutron.of_policy
    assert [port.qos_policy_id for port in neutron.of_port.values()] == [None, None, "theirs"]


def test_a_policy_of_ours_that_is_in_use_elsewhere_stays() -> None:
    neutron = Neutron(of("lc"))
    results(neutron, LC)
    neutron.in_use.add("id of numa-ext-lc")
    assert [each.result for each in PortPolicies(neutron).remove([LC], dry_run=False)] == [
        PortResult.REMOVED
    ]
    assert [*neutron.of_policy] == ["id of numa-ext-lc"]


def test_ports_of_many_servers_are_asked_for_in_parts() -> None:
    neutron = Neutron(of("s99"))
    found = results(neutron, *(server_of(f"s{n}", Tier.BE) for n in range(100)))
    assert found == {"port of s99": PortResult.ATTACHED}
    assert [len(each) for each in neutron.asked] == [40, 40, 20]


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        (ApplyNetQos, [("web", "port of lc", "numa-ext-lc", "would be attached")]),
        (RemoveNetQos, []),
    ],
)
def test_commands_show_a_row_for_each_port(command: Any, rows: list[Any]) -> None:
    neutron = Neutron(of("lc"))
    numa = SimpleNamespace(servers=lambda: iter([LC]), port_policies=lambda: PortPolicies(neutron))
    asked = command(SimpleNamespace(client_manager=SimpleNamespace(numa=numa)), None)
    found = asked.take_action(asked.get_parser("numa").parse_args(["--dry-run"]))
    assert found == (("Server", "Port", "Policy", "Result"), rows)
