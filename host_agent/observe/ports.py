# SPDX-License-Identifier: Apache-2.0
"""What Neutron says of the ports of this host: how their packets leave it, and whether a QoS policy has a say already.

A port that Neutron does not name, or on a network of a type that is not known, gets no mark: nothing is guessed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from host_agent.model.lanes import LaneNetwork
from placement_traits.errors import InvalidValueError

Get = Callable[[str, Mapping[str, str]], Any]
"""Called with path and query, returns the document.

:raises ServiceUnavailableError: Neutron does not answer
"""

_KIND: Final[Mapping[str, LaneNetwork]] = {
    "vxlan": LaneNetwork.TUNNEL,
    "geneve": LaneNetwork.TUNNEL,
    "gre": LaneNetwork.TUNNEL,
    "vlan": LaneNetwork.VLAN,
    "flat": LaneNetwork.FLAT,
}
_PAGE: Final = 500
TAP_LENGTH: Final = 14  # what nova makes of a port's UUID
_THROUGH_KERNEL: Final = frozenset({"ovs", "bridge", "tap"})


@dataclass(frozen=True, slots=True)
class NetworkPort:
    """A port of this host.

    :param network: how its packets leave the host
    :param has_policy: it, or its network, has a QoS policy
    :param is_behind_veth: it is plugged through a bridge of its own and a veth pair
    :param bypasses: its packets do not pass the kernel
    """

    network: LaneNetwork
    has_policy: bool
    is_behind_veth: bool
    bypasses: bool


def ports_of(get: Get, host: str) -> dict[str, NetworkPort]:
    """Return the ports of a host by the name of their tap.

    :param host: as Neutron's bindings name it
    :raises ServiceUnavailableError: Neutron does not answer
    :raises InvalidValueError: it answers something else than ports and networks
    """
    try:
        listed = list(pages(get, "ports", {"binding:host_id": host}))
        used = {str(port["network_id"]) for port in listed}
        networks = {str(each["id"]): each for each in pages(get, "networks", {})} if used else {}
        found = {}
        for port in listed:
            network = networks.get(str(port["network_id"]), {})
            kind = _KIND.get(str(network.get("provider:network_type")))
            if kind is not None:
                found[f"tap{port['id']}"[:TAP_LENGTH]] = _port(port, network, kind)
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidValueError("Neutron's answer", repr(error), "ports and networks") from error
    return found


def _port(port: Mapping[str, Any], network: Mapping[str, Any], kind: LaneNetwork) -> NetworkPort:
    policies = (
        port.get("qos_policy_id"),
        port.get("qos_network_policy_id"),
        network.get("qos_policy_id"),
    )
    details = port.get("binding:vif_details") or {}
    return NetworkPort(
        kind,
        has_policy=any(policies),
        is_behind_veth=bool(details.get("ovs_hybrid_plug")),
        bypasses=port.get("binding:vif_type") not in _THROUGH_KERNEL
        or port.get("binding:vnic_type", "normal") != "normal",
    )


def pages(get: Get, noun: str, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """Yield what Neutron lists, page by page.

    :param noun: what, in the plural
    """
    marker: dict[str, str] = {}
    while True:
        page = get(f"/v2.0/{noun}", {**query, "limit": str(_PAGE), **marker})[noun]
        yield from page
        if len(page) < _PAGE:
            return
        marker = {"marker": str(page[-1]["id"])}
