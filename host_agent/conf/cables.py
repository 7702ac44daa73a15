# SPDX-License-Identifier: Apache-2.0
"""Options of the check of a host's cables: section ``[cables]``."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from placement_traits.options import Section, option


@dataclass(frozen=True, slots=True)
class CableOptions(Section):
    """``[cables]``."""

    section: ClassVar = "cables"
    title: ClassVar = "Check of the cables to the leafs of a fabric"

    lldp: bool = option(
        False,
        "Compare what lldpd of this host hears with the leaf that Placement has for it, as often as Placement is "
        "compared (``[placement]interval_s``). A host that hears another leaf of the fabric takes no server of a group "
        "until it hears its own one (trait CUSTOM_NUMA_EXT_MISCABLED). The agent's user must be in lldpd's group, such "
        "as _lldpd.",
        change="groups of servers are placed by a fabric, and lldpd runs here",
        leave="there is no fabric, or cables are compared by ``openstack numa fabric verify``",
    )
    lldpcli: Path = option(
        Path("/usr/sbin/lldpcli"),
        "The program that shows what lldpd has heard.",
        change="it is elsewhere",
        leave="lldpd is the distribution's",
    )
    interfaces: tuple[str, ...] = option(
        (),
        "Interfaces whose neighbours count; empty: all that have a device, so none of a server. What a server sends "
        "on its port is not to be believed.",
        change="adapters of other networks hear switches with names of leafs, or a server has a whole adapter",
        leave="names of switches are unique",
    )
    timeout_s: float = option(
        5.0,
        "Seconds that lldpcli may take.",
        minimum=0.1,
        change="lldpd is slow",
        leave="it answers within a second",
    )
