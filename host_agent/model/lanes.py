# SPDX-License-Identifier: Apache-2.0
"""Uplinks, ports of servers, and what a kernel shows of lanes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from host_agent.model.levels import FULL
from placement_traits.names import Tier


class LaneQueue(StrEnum):
    """What lanes are made of, the better one first."""

    ETS = "ets"
    HTB = "htb"


OFFLOAD: Final = "mqprio"
"""What lanes are where the adapter itself has classes of traffic, made by an operator: nothing of it is written."""


class LaneNetwork(StrEnum):
    """How a port's packets leave the host, by the type of its network."""

    TUNNEL = "tunnel"
    VLAN = "vlan"
    FLAT = "flat"


@dataclass(frozen=True, slots=True)
class UplinkFacts:
    """What is known of a network device of the host.

    :param device: its name
    :param speed_mbps: None: not known
    :param root_qdisc: its kind
    :param root_handle: its major number, as tc shows it without the colon
    :param is_bond: it is one
    :param offload: traffic class of each of the 16 priorities where the adapter does mqprio itself, or all members of a
        bond do, alike; () where none does
    :param ovs_qos: type of the QoS of its port in Open vSwitch, '' for none; None: it is no such port
    """

    device: str
    speed_mbps: int | None
    root_qdisc: str
    root_handle: str = ""
    is_bond: bool = False
    offload: tuple[int, ...] = ()
    ovs_qos: str | None = None


@dataclass(frozen=True, slots=True)
class LanePort:
    """A port of a server.

    :param device: its tap
    :param tier: of the server; None: it has none
    :param network: how its packets leave the host
    :param has_policy: its port or network has a QoS policy of Neutron
    :param is_behind_veth: it is plugged through a veth pair
    :param bypasses: its packets do not pass the kernel
    """

    device: str
    tier: Tier | None
    network: LaneNetwork
    has_policy: bool = False
    is_behind_veth: bool = False
    bypasses: bool = False


@dataclass(frozen=True, slots=True)
class ShownClass:
    """A class of htb.

    :param rate_mbps: what it has at least
    :param ceil_mbps: what it has at most
    :param priority: lower ones first; None: it has classes below it
    """

    rate_mbps: float
    ceil_mbps: float
    priority: int | None


@dataclass(frozen=True, slots=True)
class ShownQueue:
    """The root qdisc of a device.

    :param kind: its name
    :param handle: its major number, without the colon; '' for none
    :param options: of it, numbers and lists of numbers as tc shows them
    :param classes: of htb, by the minor number in hexadecimal digits
    """

    kind: str
    handle: str
    options: Mapping[str, object] = field(default_factory=dict)
    classes: Mapping[str, ShownClass] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShownMarks:
    """Our tables in nft, each rule a line without what surrounds it.

    :param chains: lines of each chain of taps, by device
    :param tunnels: lines of the chain of tunnels
    """

    chains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tunnels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DcbState:
    """What an adapter does with classes of traffic by itself.

    :param paused: priorities that the other end may stop alone (PFC)
    :param selections: how each class is served: ``strict``, ``ets``, ``cbs``, ``vendor``; () where it does no ETS
    :param shares: of the link that each class has under ``ets``, per cent
    :param class_of: class of each priority
    :param is_willing: it does what the switch says by LLDP
    """

    paused: tuple[int, ...]
    selections: tuple[str, ...] = ()
    shares: tuple[int, ...] = ()
    class_of: tuple[int, ...] = ()
    is_willing: bool = False

    @property
    def sentence(self) -> str:
        """All of it, for people."""
        words = [
            f"PFC of priorities {' '.join(map(str, self.paused))}" if self.paused else "no PFC"
        ]
        used = sorted(set(self.class_of))
        of_class = [
            f"class {number} {self.selections[number]}"
            + (f" {self.shares[number]} %" if self.selections[number] == "ets" else "")
            for number in used
            if number < min(len(self.selections), len(self.shares))
        ]
        words += [*of_class, f"priorities in classes {' '.join(map(str, self.class_of))}"] * bool(
            used
        )
        return ", ".join([*words, *["as the switch says by LLDP"] * self.is_willing])


@dataclass(frozen=True, slots=True)
class BestEffortHold:
    """How the lane of best-effort servers of an uplink is held, for a while and by the agent's order.

    :param most_mbps: what they may send together, Mbit/s; None: as much as goes
    :param share_percent: part of their share of the link that they keep, per cent; the rest is added to that of
        latency-critical servers
    """

    most_mbps: int | None = None
    share_percent: int = FULL


NOT_HELD: Final = BestEffortHold()


@dataclass(frozen=True, slots=True)
class LaneOrder:
    """What the agent orders, or what of it is effective; an uplink that is missing is not held in this way.

    :param limits: what best-effort servers may send together over an uplink, Mbit/s
    :param shares: part of their share of an uplink that they keep, per cent
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, int] = field(default_factory=dict)

    def of(self, uplink: str) -> BestEffortHold:
        """Return how an uplink is held."""
        return BestEffortHold(self.limits.get(uplink), self.shares.get(uplink, FULL))


@dataclass(frozen=True, slots=True)
class UplinkReport:
    """What the unit of lanes has in its hands, as it says to the agent.

    :param uplinks: those whose lane of best-effort servers can be held, with their speed, Mbit/s
    :param taps: those with a mark, with the tier of their server
    :param held: what of its orders is effective
    """

    uplinks: Mapping[str, int] = field(default_factory=dict)
    taps: Mapping[str, Tier | None] = field(default_factory=dict)
    held: LaneOrder = field(default_factory=LaneOrder)
