# SPDX-License-Identifier: Apache-2.0
"""Why an uplink has no lanes, or a port no mark: the terms of the reasons, each with its sentence."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from placement_traits import reason as reasons
from placement_traits.reason import Reason


class LaneTerm(StrEnum):
    """What lanes depend on."""

    # no lanes on the uplink
    SPEED = "lane_speed"
    TOO_FAST = "lane_too_fast"
    BOND = "lane_bond"
    OVS_QOS = "lane_ovs_qos"
    ROOT_QDISC = "lane_root_qdisc"
    OFFLOAD_MAP = "lane_offload_map"
    SCHEDULER = "lane_scheduler"
    OVERWRITTEN = "lane_overwritten"
    # no mark on the port
    QOS_POLICY = "lane_qos_policy"
    VETH = "lane_veth"
    BYPASS = "lane_bypass"


SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        LaneTerm.SPEED: "{where} has no known speed, and shares of it mean nothing",
        LaneTerm.TOO_FAST: "{where} has {value} Mbit/s: above {against} the kernel's queues cost more than lanes gain, "
        "unless the adapter has mqprio offload or lanes are forced",
        LaneTerm.BOND: "{where} is a bond, whose members queue on their own: lanes need mqprio offload there, or force",
        LaneTerm.OVS_QOS: "{where} is a port of Open vSwitch with QoS {value}, which would overwrite lanes; an "
        "operator may run: {against}",
        LaneTerm.ROOT_QDISC: "{where} has the root qdisc {value}, which is not the kernel's default",
        LaneTerm.OFFLOAD_MAP: "{where} has mqprio offload that puts priority {against}, of latency-critical servers, "
        "into a class with 0, of the host, 2, without a tier, or 3, of best-effort servers: its map is {value}",
        LaneTerm.SCHEDULER: "the kernel has none of the queues that lanes are made of: {against}",
        LaneTerm.OVERWRITTEN: "lanes of {where} were overwritten {value} times in {against} s: they are withdrawn",
        LaneTerm.QOS_POLICY: "the port or network of {where} has a QoS policy of Neutron: it is left alone",
        LaneTerm.VETH: "{where} is behind a veth pair, which takes marks off",
        LaneTerm.BYPASS: "traffic of {where} does not pass the host's kernel",
    }
)


def sentence(reason: Reason) -> str:
    """Return what a reason means, for people."""
    return reasons.sentence(reason, SENTENCES)
