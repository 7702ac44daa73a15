# SPDX-License-Identifier: Apache-2.0
"""Options of how much servers use the network: section ``[network]``."""

from dataclasses import dataclass
from typing import ClassVar

from placement_traits.options import Section, option


@dataclass(frozen=True, slots=True)
class NetworkUseOptions(Section):
    """``[network]``."""

    section: ClassVar = "network"
    title: ClassVar = "How much servers use the network"

    uplink_share_mbps: int | None = option(
        None,
        "What a host has of the uplinks of its leaf in the mean, Mbit/s: all uplinks of the leaf together over its "
        "hosts. The class of each server follows from it: moderate from a tenth of it on, extreme from a half. Without "
        "it servers have no class, only bytes.",
        minimum=1,
        change="you want to see which servers should have another ``numa_ext:net_class`` in their flavor",
        leave="there is no fabric",
    )
    levels: bool = option(
        False,
        "Estimate what of servers' traffic leaves their leaf, and the node above it, from where the other servers of "
        "their networks are, and let classes follow from that instead of from all bytes. Neutron is asked each ten "
        "minutes, once for each network of this host, and must show this host's Keystone user the ports of all "
        "projects with their bindings; Placement is asked five times, and needs [placement]enabled and the fabric.",
        change="servers talk with others of their leaf, and their classes are too high",
        leave="there is no fabric, or Neutron shows ports to administrators only",
    )
    window_s: float = option(
        60.0,
        "Seconds over which bytes are counted for a class. A server's first class is there after one window, another "
        "one when two windows in a row have it.",
        minimum=1.0,
        change="servers send in long bursts (raise)",
        leave="a minute is longer than bursts are",
    )
