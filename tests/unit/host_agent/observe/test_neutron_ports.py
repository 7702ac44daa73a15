# SPDX-License-Identifier: Apache-2.0
"""What Neutron says of a host's ports, and that nothing is made of what it does not say."""

from collections.abc import Mapping
from typing import Any

import pytest

from host_agent.model.lanes import LaneNetwork
from host_agent.observe.ports import NetworkPort, ports_of
from placement_traits.errors import InvalidValueError

PORT = {
    "id": "0123456789abcdef",
    "network_id": "n1",
    "qos_policy_id": None,
    "binding:vif_type": "ovs",
    "binding:vif_details": {"ovs_hybrid_plug": False},
    "binding:vnic_type": "normal",
}
TAP = "tap0123456789a"
NETWORKS = [
    {"id": "n1", "provider:network_type": "geneve"},
    {"id": "n2", "provider:network_type": "vlan", "qos_policy_id": "q"},
    {"id": "n3", "provider:network_type": "local"},
    {"id": "n4"},
]


def answered(*ports: Mapping[str, Any]) -> Mapping[str, NetworkPort]:
    asked = []

    def get(path: str, query: Mapping[str, str]) -> Any:
        asked.append((path, query.get("binding:host_id")))
        return {"ports": list(ports)} if path.endswith("ports") else {"networks": NETWORKS}

    found = ports_of(get, "h1")
    assert asked[0] == ("/v2.0/ports", "h1")
    return found


def test_a_port_is_named_by_its_tap() -> None:
    assert answered(PORT) == {
        TAP: NetworkPort(LaneNetwork.TUNNEL, has_policy=False, is_behind_veth=False, bypasses=False)
    }


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"qos_policy_id": "q"}, "has_policy"),
        ({"qos_network_policy_id": "q"}, "has_policy"),
        ({"network_id": "n2"}, "has_policy"),
        ({"binding:vif_details": {"ovs_hybrid_plug": True}}, "is_behind_veth"),
        ({"binding:vif_type": "vhostuser"}, "bypasses"),
        ({"binding:vif_type": "hw_veb"}, "bypasses"),
        ({"binding:vnic_type": "direct"}, "bypasses"),
    ],
)
def test_what_keeps_marks_away_is_seen(other: Mapping[str, Any], field: str) -> None:
    found = answered({**PORT, **other})[TAP]
    assert {name for name in NetworkPort.__slots__ if getattr(found, name) is True} == {field}


@pytest.mark.parametrize("network", ["n3", "n4", "n9"])
def test_a_port_of_an_unknown_kind_of_network_is_left_out(network: str) -> None:
    assert answered({**PORT, "network_id": network}) == {}


def test_a_host_without_ports_has_networks_unasked() -> None:
    assert answered() == {}


def test_pages_are_read_to_the_last() -> None:
    many = [{**PORT, "id": f"{number:016}"} for number in range(1200)]

    def get(path: str, query: Mapping[str, str]) -> Any:
        if path.endswith("networks"):
            return {"networks": NETWORKS}
        first = next(
            (at + 1 for at, each in enumerate(many) if each["id"] == query.get("marker")), 0
        )
        return {"ports": many[first : first + int(query["limit"])]}

    ports = ports_of(get, "h1")
    assert len(ports) == len({f"tap{each['id']}"[:14] for each in many})


@pytest.mark.parametrize("answer", [None, [], {"ports": 1}, {"ports": [{}]}, {"ports": ["x"]}])
def test_an_answer_of_something_else_is_refused(answer: Any) -> None:
    with pytest.raises(InvalidValueError, match="Neutron"):
        ports_of(lambda _path, _query: answer, "h1")
