# SPDX-License-Identifier: Apache-2.0
"""Whether an uplink may have lanes, and which: off wherever queues of others are, or may come.

Three lanes: latency-critical servers go first, up to a cap, so that one that runs away or lies starves no other; the
host's own traffic and that of servers without a tier is in the middle; best-effort servers get at least their share.

Where an operator has the adapter itself do mqprio, its classes of traffic are the lanes, whatever the speed and also
below a bond: no queue is written, and marks alone say which class a packet is in. Which class goes first, and what each
has, is the operator's.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from host_agent.conf.lanes import LaneOptions
from host_agent.decide.lanes.terms import LaneTerm
from host_agent.model.lanes import NOT_HELD, BestEffortHold, LanePort, LaneQueue, UplinkFacts
from host_agent.model.levels import FULL
from placement_traits.errors import InvalidValueError
from placement_traits.names import TIER_DSCP, Tier
from placement_traits.reason import Reason

HANDLE: Final = "4e"
"""Major number of our root qdisc."""

MOST_MBPS: Final = 10_000
"""Above it queues in the kernel take locks that adapters with many queues do without."""

_DEFAULT_QDISCS: Final = frozenset({"noqueue", "mq", "fq_codel", "pfifo_fast", "fq"})
_NOOP: Final = "linux-noop"
_LANE_OF: Final[dict[Tier | None, int]] = {Tier.LC: 1, None: 2, Tier.BE: 3}
"""Number of the lane of each tier: the last bits of a mark, by which mqprio has its class, too."""
_UNMARKED: Final = 0  # priority of the host's own packets
_NAME_LENGTH: Final = 15  # IFNAMSIZ - 1
_SIGNS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True, slots=True)
class TrafficLane:
    """One lane.

    :param number: minor number of its class, >= 1, in the order in which lanes are served
    :param dscp: that its packets carry, 0 to 63; None: what they have
    :param share: of the link that it has at least, in (0, 1]
    :param cap: of the link that it has at most while others want more, in (0, 1]
    :param is_strict: it goes before all others, up to its cap
    """

    number: int
    dscp: int | None
    share: float
    cap: float = 1.0
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """What operators decide.

    :param strict_cap: share of the link up to which latency-critical servers go first, in (0, 1)
    :param best_effort_share: that best-effort servers have at least of what is left, in (0, 1)
    :param is_forced: lanes in spite of speed or bond
    :raises InvalidValueError: a share has no meaning
    """

    strict_cap: float = 0.3
    best_effort_share: float = 0.5
    is_forced: bool = False

    def __post_init__(self) -> None:
        for name, value in (
            ("strict_cap", self.strict_cap),
            ("best_effort_share", self.best_effort_share),
        ):
            if not 0.0 < value < 1.0:
                raise InvalidValueError(name, value, "a share above 0 and below 1")

    @classmethod
    def of(cls, options: LaneOptions) -> "LaneSettings":
        """Return those of a configuration, whose options have the bounds of it."""
        return cls(options.strict_cap, options.best_effort_share, options.force)

    @property
    def best_effort(self) -> float:
        """Share of the link that the lane of best-effort servers has at least."""
        return (1.0 - self.strict_cap) * self.best_effort_share


@dataclass(frozen=True, slots=True)
class LanePlan:
    """Lanes of an uplink.

    :param device: the uplink
    :param speed_mbps: of it
    :param queue: what they are made of; None: they are the adapter's own
    :param lanes: in the order in which they are served
    :param lane_of: number of the lane of each tier; None: of what has none
    :param hold: of the lane of best-effort servers, of ``htb`` only
    """

    device: str
    speed_mbps: int
    queue: LaneQueue | None
    lanes: tuple[TrafficLane, ...]
    lane_of: dict[Tier | None, int]
    hold: BestEffortHold = NOT_HELD

    def lane(self, tier: Tier | None) -> TrafficLane:
        """Return the lane of a tier."""
        return self.lanes[self.lane_of[tier] - 1]

    def share(self, lane: TrafficLane) -> float:
        """Return the share of the link that a lane has at least now: what one gives up another one has more."""
        theirs = self.lane(Tier.BE)
        given_up = theirs.share * (FULL - self.hold.share_percent) / FULL
        if lane is theirs:
            return lane.share - given_up
        return lane.share + given_up if lane is self.lane(Tier.LC) else lane.share


def planned(
    facts: UplinkFacts, kernel: Iterable[LaneQueue], settings: LaneSettings
) -> LanePlan | tuple[Reason, ...]:
    """Return the lanes of an uplink, or all reasons why it has none.

    :param kernel: the queues that it has
    :raises InvalidValueError: the device has no name that tc and nft take as one word
    """
    checked(facts.device)
    available = set(kernel)
    refused = tuple(_refused(facts, available, settings))
    if refused or facts.speed_mbps is None:
        return refused
    queue = None if facts.offload else next(each for each in LaneQueue if each in available)
    best_effort = settings.best_effort
    lanes = (
        TrafficLane(
            1, TIER_DSCP[Tier.LC], settings.strict_cap, settings.strict_cap, is_strict=True
        ),
        TrafficLane(2, None, 1.0 - settings.strict_cap - best_effort),
        TrafficLane(3, TIER_DSCP[Tier.BE], best_effort),
    )
    return LanePlan(facts.device, facts.speed_mbps, queue, lanes, dict(_LANE_OF))


def is_ours(handle: str, kind: str) -> bool:
    """Tell whether a root qdisc is ours; another one may have the same handle."""
    return handle == HANDLE and kind in set(LaneQueue)


def unmarked(port: LanePort) -> Reason | None:
    """Return why a port gets no mark; None: it may have one."""
    for is_so, term in (
        (port.has_policy, LaneTerm.QOS_POLICY),
        (port.bypasses, LaneTerm.BYPASS),
        (port.is_behind_veth, LaneTerm.VETH),
    ):
        if is_so:
            return Reason(term, port.device, where=port.device)
    return None


def checked(device: str) -> str:
    """Return the name of a device.

    :raises InvalidValueError: tc and nft would not take it as one word
    """
    if not (0 < len(device) <= _NAME_LENGTH and set(device) <= _SIGNS and device[0] not in "-."):
        raise InvalidValueError("device", device, f"{_NAME_LENGTH} letters, digits, '.', '_', '-'")
    return device


def noop_command(device: str) -> str:
    """Return what an operator may run so that Open vSwitch leaves a port's queues alone; we never run it."""
    return f"ovs-vsctl set port {checked(device)} qos=@q -- --id=@q create qos type={_NOOP}"


def _refused(
    facts: UplinkFacts, available: set[LaneQueue], settings: LaneSettings
) -> Iterable[Reason]:
    device = facts.device
    if facts.speed_mbps is None or facts.speed_mbps < 1:
        yield Reason(LaneTerm.SPEED, "unknown", where=device)
    if facts.offload:
        first = _LANE_OF[Tier.LC]
        others = (_UNMARKED, *(number for number in _LANE_OF.values() if number != first))
        if facts.offload[first] in [facts.offload[number] for number in others]:
            yield Reason(LaneTerm.OFFLOAD_MAP, " ".join(map(str, facts.offload)), first, device)
        return
    if facts.speed_mbps and facts.speed_mbps > MOST_MBPS and not settings.is_forced:
        yield Reason(LaneTerm.TOO_FAST, facts.speed_mbps, MOST_MBPS, device)
    if facts.is_bond and not settings.is_forced:
        yield Reason(LaneTerm.BOND, device, where=device)
    if facts.ovs_qos is not None and facts.ovs_qos != _NOOP:
        yield Reason(LaneTerm.OVS_QOS, facts.ovs_qos or "none", noop_command(device), device)
    ours = is_ours(facts.root_handle, facts.root_qdisc)
    if not ours and facts.root_qdisc not in _DEFAULT_QDISCS:
        yield Reason(LaneTerm.ROOT_QDISC, facts.root_qdisc, where=device)
    if not available:
        yield Reason(LaneTerm.SCHEDULER, 0, " or ".join(LaneQueue))
