# SPDX-License-Identifier: Apache-2.0
"""Switches at the other end of a host's cables, as ``lldpcli -f json show neighbors`` prints what lldpd has heard.

::

    {"lldp": {"interface": [{"ens1f0": {"chassis": {"leaf-r02": {…}}, "port": {"id": {"value": "Ethernet7", …}}}}]}}

lldpcli prints a list of one as the one itself. A neighbour without a system name is no switch that a plan could name,
and is left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placement_traits.errors import InvalidValueError, cut

_FORM = "what lldpcli -f json show neighbors prints"


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


def neighbours(said: Any, where: str) -> Iterator[SwitchPort]:
    """Yield the switches that one host has heard.

    :param said: what lldpcli has printed, read as JSON
    :param where: for errors
    :raises InvalidValueError: it has another form
    """
    lldp = _object(said, where).get("lldp", {})
    for entry in _listed(_object(lldp, where).get("interface", [])):
        for interface, shown in _object(entry, where).items():
            found = _object(shown, where)
            number = _port(_object(found.get("port", {}), where))
            for chassis in _listed(found.get("chassis", [])):
                for system, about in _object(chassis, where).items():
                    # Without a system name lldpcli puts what it knows, the id first, where the name would be.
                    if system != "id" and isinstance(about, dict):
                        yield SwitchPort(cut(interface), cut(system), cut(number))


def _port(said: Mapping[str, Any]) -> str:
    """Return what people call a port: a switch that has a MAC address for its id describes it by its name."""
    identity = said.get("id", {})
    if not isinstance(identity, dict):
        return ""
    name = said.get("descr") if identity.get("type") == "mac" else None
    return str(name or identity.get("value", ""))


def _listed(found: Any) -> Sequence[Any]:
    return found if isinstance(found, list) else [found]


def _object(found: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise InvalidValueError(where, type(found).__name__, _FORM)
    return found
