# SPDX-License-Identifier: Apache-2.0
"""Where the peers of servers are, from documents as Neutron's API makes them."""

from collections.abc import Mapping
from typing import Any

import pytest

from host_agent.observe.peers import peers_of
from placement_traits.errors import InvalidValueError

OWN = "11111111-1111-4111-8111-111111111111"
TAP = f"tap{OWN}"[:14]


class Neutron:
    """Lists ports by what a query asks for, page by page."""

    def __init__(self, *ports: Mapping[str, Any]) -> None:
        self.ports = ports
        self.asked: list[Mapping[str, str]] = []

    def get(self, path: str, query: Mapping[str, str]) -> Any:
        assert path == "/v2.0/ports"
        self.asked.append(query)
        given = {key: value for key, value in query.items() if key not in ("limit", "marker")}
        found = [each for each in self.ports if given.items() <= each.items()]
        ids = [each["id"] for each in found]
        begin = ids.index(query["marker"]) + 1 if "marker" in query else 0
        return {"ports": found[begin : begin + int(query["limit"])]}


def port(
    number: object, host: str, network: str = "n", owner: str = "compute:nova"
) -> dict[str, str]:
    return {
        "id": f"{number}",
        "binding:host_id": host,
        "network_id": network,
        "device_owner": owner,
    }


def test_peers_are_servers_on_the_same_network_by_host() -> None:
    neutron = Neutron(
        port(OWN, "h1"),
        port(2, "h2"),
        port(3, "h2"),
        port(4, "h3", network="another"),
        port(5, "net1", owner="network:router_interface"),
        port(6, ""),
    )
    assert peers_of(neutron.get, "h1") == {TAP: {"h1": 1, "h2": 2}}


def test_a_large_network_is_read_to_its_end() -> None:
    neutron = Neutron(port(OWN, "h1"), *(port(number, "h2") for number in range(1200)))
    assert peers_of(neutron.get, "h1") == {TAP: {"h1": 1, "h2": 1200}}
    assert len(neutron.asked) == 1 + 3


def test_a_network_of_many_taps_is_asked_for_once_and_not_too_many_networks_are() -> None:
    many = [port(f"{n:08}", "h1", network=f"{n // 2}") for n in range(400)]
    neutron = Neutron(*many)
    found = peers_of(neutron.get, "h1")
    assert len(neutron.asked) == 1 + 64
    assert len(found) == 128 and set(found["tap00000000"].values()) == {2}


@pytest.mark.parametrize("ports", [[{"id": "1"}], [5], None])
def test_another_answer_is_a_sentence(ports: object) -> None:
    with pytest.raises(InvalidValueError, match="Neutron's answer"):
        peers_of(lambda _path, _query: {"ports": ports}, "h1")
