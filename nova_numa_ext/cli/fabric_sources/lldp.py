# SPDX-License-Identifier: Apache-2.0
"""What hosts have heard by LLDP: which switch is at the other end of their cables.

lldpd hears it, with the privileges that this needs, and nothing of ours opens a raw socket. Its answers are collected
under the names of the hosts as nova knows them::

    {"cmp001": <what lldpcli -f json show neighbors prints there>, "cmp002": …}

    {"lldp": {"interface": [{"ens1f0": {"chassis": {"leaf-r02": {…}}, "port": {"id": {"value": "Ethernet7", …}}}}]}}

lldpcli prints a list of one as the one itself. A neighbour without a system name is no switch that a plan could name,
and is left out. This verifies a plan and makes none: it shows leafs, and no pods.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placement_traits.errors import InvalidValueError, cut

_FORM = "an object of what lldpcli -f json show neighbors prints, by hosts"


@dataclass(frozen=True, slots=True)
class SwitchPort:
    """One end of a cable as a host has heard it.

    :param interface: of the host
    :param system: name of the switch
    :param port: of the switch, '' where it does not tell
    """

    interface: str
    system: str
    port: str

    def is_node(self, name: str) -> bool:
        """Return whether this is a node of a plan; switches may tell their domain, too."""
        return name in (self.system, self.system.partition(".")[0])

    def __str__(self) -> str:
        """The switch and its port."""
        return f"{self.system} port {self.port}" if self.port else self.system


def read(text: str, where: str) -> dict[str, tuple[SwitchPort, ...]]:
    """Return the neighbours of each host.

    :raises InvalidValueError: this is no such file
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(where, cut(str(error)), _FORM) from None
    if not isinstance(found, dict):
        raise InvalidValueError(where, type(found).__name__, _FORM)
    return {
        cut(host): tuple(_neighbours(said, f"{where}, {cut(host)}")) for host, said in found.items()
    }


def seen_on(heard: Sequence[SwitchPort], planned: str, leafs: Sequence[str]) -> SwitchPort | None:
    """Return the neighbour that tells on which leaf a host hangs; None: it has heard none.

    A host hears switches of other networks, too: its planned leaf among them is enough. Else another leaf of the plan
    counts before a switch that no plan names.
    """
    known = [each for each in heard if any(each.is_node(leaf) for leaf in leafs)]
    own = [each for each in known if each.is_node(planned)]
    return next(iter((*own, *known, *heard)), None)


def _neighbours(said: Any, where: str) -> Iterator[SwitchPort]:
    lldp = _object(said, where).get("lldp", {})
    for entry in _listed(_object(lldp, where).get("interface", [])):
        for interface, shown in _object(entry, where).items():
            found = _object(shown, where)
            port = _object(found.get("port", {}), where).get("id", {})
            number = port.get("value", "") if isinstance(port, dict) else ""
            for chassis in _listed(found.get("chassis", [])):
                for system, about in _object(chassis, where).items():
                    # Without a system name lldpcli puts what it knows, the id first, where the name would be.
                    if system != "id" and isinstance(about, dict):
                        yield SwitchPort(cut(interface), cut(system), cut(str(number)))


def _listed(found: Any) -> Sequence[Any]:
    return found if isinstance(found, list) else [found]


def _object(found: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise InvalidValueError(where, type(found).__name__, _FORM)
    return found
