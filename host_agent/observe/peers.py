# SPDX-License-Identifier: Apache-2.0
"""Where the peers of servers are: whose ports are on the same networks, on which hosts, as Neutron says it.

Who is on a network may be asked by administrators of Neutron only, as for lanes. What is not a server's port, such as a
router's, is no peer: nothing is known of what is behind it.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from host_agent.observe.ports import TAP_LENGTH, Get, pages
from placement_traits.errors import InvalidValueError

_OF_SERVERS: Final = "compute:"
_MOST_NETWORKS: Final = 64


def peers_of(get: Get, host: str) -> dict[str, Mapping[str, int]]:
    """Return how many servers' ports each host has on the network of a tap, by the names of this host's taps.

    Of a host with ports on more networks than :data:`_MOST_NETWORKS` the others have no peers that are known.

    :param host: as Neutron's bindings name it
    :raises ServiceUnavailableError: Neutron does not answer
    :raises InvalidValueError: it answers something else than ports
    """
    try:
        networks = {
            f"tap{port['id']}"[:TAP_LENGTH]: str(port["network_id"])
            for port in pages(get, "ports", {"binding:host_id": host})
        }
        there = {
            network: _hosts_on(get, network)
            for network in sorted({*networks.values()})[:_MOST_NETWORKS]
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidValueError("Neutron's answer", repr(error), "ports") from error
    return {tap: there[network] for tap, network in networks.items() if network in there}


def _hosts_on(get: Get, network: str) -> Mapping[str, int]:
    return Counter(
        str(port["binding:host_id"])
        for port in pages(get, "ports", {"network_id": network})
        if port.get("binding:host_id") and str(port["device_owner"]).startswith(_OF_SERVERS)
    )
