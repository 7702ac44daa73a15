# SPDX-License-Identifier: Apache-2.0
"""What the BALM controller sees, keeps, aims at and reports."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from host_agent.decide.slo.floor import HOUR_S, LevelHour
from host_agent.model.latency import LatencyReading, LcServer
from host_agent.model.levels import FULL
from host_agent.model.pages import Shares
from host_agent.model.traffic import Traffic, traffic_at
from placement_traits.reason import Reason

Levels = Mapping[int, int]
"""L3 domain -> memory bandwidth level, per cent."""

# -- seen --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeServer:
    """One best-effort server that runs.

    :param uuid: of the server
    :param nodes: NUMA nodes of its CPUs
    :param shares: node -> share of its pages now; sums to 1
    :param preferred: node -> share that its own memory policy wants
    :param level: effective throttle level, per cent
    :param traffic: its memory traffic in the near past; None when unknown
    :param movable: its pages may be moved (a floating guest without pinned pages)
    :param room: node -> largest share of its memory that the node can hold; nodes that are missing take all
    :param title: its name
    :param fixed: level by the simple rule in each L3 domain of its CPUs
    :param group: servers of the same group can only be throttled together; "" for one that can be throttled alone
    :param in_effect: level that was in effect until now, per cent: another than the controller's where one could not be
        written, or the simple rule's holds beside it; None: the controller's
    """

    uuid: str
    nodes: frozenset[int]
    shares: Shares
    preferred: Shares
    level: int = FULL
    traffic: Traffic | None = None
    movable: bool = True
    room: Shares = field(default_factory=dict)
    title: str = ""
    fixed: Levels = field(default_factory=dict)
    group: str = ""
    in_effect: int | None = None

    def traffic_at(self, nodes: frozenset[int]) -> float | None:
        """Return its traffic to some memory nodes, MB/s; None when unknown."""
        if self.traffic is None:
            return None
        return traffic_at(nodes, self.nodes, self.shares, self.traffic)


@dataclass(frozen=True, slots=True)
class SloView:
    """The host as the controller sees it: made by a round, completed by each poll (:meth:`measured`).

    :param lcs: latency-critical servers, with an objective or without; their readings leave out what was received
        before :attr:`BalmState.judge_from_s`
    :param bes: best-effort servers
    :param nodes: memory nodes of the host
    :param levels: legal throttle levels, per cent, ascending; empty when nothing can be throttled
    :param capacity_mbps: memory node -> its bandwidth, MB/s, where that is known
    """

    lcs: tuple[LcServer, ...] = ()
    bes: tuple[BeServer, ...] = ()
    nodes: tuple[int, ...] = ()
    levels: tuple[int, ...] = ()
    capacity_mbps: Mapping[int, float] = field(default_factory=dict)

    def measured(
        self,
        readings: Mapping[str, LatencyReading],
        traffic: Mapping[str, Traffic],
        groups: Mapping[str, str],
        in_effect: Mapping[str, int],
    ) -> "SloView":
        """Return the view of this poll.

        :param readings: of the servers that are listened to
        :param traffic: of best-effort servers, where it is known
        :param groups: best-effort server -> group with which it is throttled
        :param in_effect: best-effort server -> level that was in effect until now, where that is known
        """
        return replace(
            self,
            lcs=tuple(replace(lc, reading=readings.get(lc.uuid)) for lc in self.lcs),
            bes=tuple(
                replace(
                    be,
                    traffic=traffic.get(be.uuid),
                    group=groups.get(be.uuid, ""),
                    in_effect=in_effect.get(be.uuid),
                )
                for be in self.bes
            ),
        )

    @property
    def objectives(self) -> tuple[LcServer, ...]:
        """Servers with an objective that are listened to."""
        return tuple(lc for lc in self.lcs if lc.slo_p99_us is not None and lc.reading is not None)

    @property
    def titles(self) -> dict[str, str]:
        """UUID -> name of every server."""
        lcs = {lc.uuid: lc.title for lc in self.lcs}
        return lcs | {be.uuid: be.title for be in self.bes}


# -- aimed at ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeTarget:
    """Target of one best-effort server.

    :param level: throttle level, per cent, for the L3 domains of its CPUs
    :param shares: node -> share of its pages; None leaves them to its own memory policy
    """

    level: int = FULL
    shares: Shares | None = None


# -- reported ----------------------------------------------------------------------------------------------------------


class Release(StrEnum):
    """What was taken back though an objective is violated."""

    THROTTLE = "throttle"
    PAGES = "pages"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class CannotFixSloViolation:
    """Nothing on this host helps: some server has to leave. For a higher layer to handle.

    :param lcs: servers whose objectives are violated
    :param nodes: where
    :param leave: servers whose live migration would help, best first
    :param reasons: their traffic at the violated nodes
    """

    lcs: tuple[str, ...]
    nodes: tuple[int, ...]
    leave: tuple[str, ...]
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class ShouldLeave:
    """Throttling was shown to help, though not enough, of servers that are violated beyond chance: a move would help.

    :param lcs: these servers
    :param leave: servers that have shown an effect and whose live migration would help, best first
    """

    lcs: tuple[str, ...]
    leave: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Released:
    """An action that was without effect, or used up its budget, was taken back.

    :param be: server that is free again
    :param what: of what
    :param lcs: servers whose violation it did not help
    """

    be: str
    what: Release
    lcs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AccountSpent:
    """A latency-critical server has taken all that it may beyond what its flavor declares; it gets that, no more.

    :param lc: the server
    :param seconds: charged in the last hour: time in which best-effort servers lost all their traffic
    :param declared_mbps: memory bandwidth that it declares, MB/s
    :param needed_mbps: what it took with the last throttles, MB/s; None where traffic is not monitored
    :param measured: charged by the traffic lost, else by levels
    """

    lc: str
    seconds: float
    declared_mbps: float
    needed_mbps: float | None
    measured: bool


@dataclass(frozen=True, slots=True)
class FloorReached:
    """A best-effort server is not throttled for a while: its mean level over the last hour is as low as it may be.

    :param be: the server
    :param mean_level: over the last hour, per cent
    :param lcs: latency-critical servers for whose sake it was throttled
    """

    be: str
    mean_level: float
    lcs: tuple[str, ...]


Event = CannotFixSloViolation | ShouldLeave | Released | AccountSpent | FloorReached

# -- kept --------------------------------------------------------------------------------------------------------------

MOST_SPENT: Final = 2.0
"""No account is charged beyond so much of it, however long nothing could be decided."""


class BalmPhase(StrEnum):
    """Where the controller stands; drawn in :mod:`~host_agent.decide.slo.balm`."""

    WATCH = "watch"
    HEAL = "heal"
    CLIMB = "climb"
    TRIAL = "trial"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Search:
    """One pass of healing and climbing.

    :param order: best-effort servers, heaviest user of the violated nodes first
    :param position: whose turn it is in the climb
    :param location: violated nodes
    :param valid: targets when all objectives were last met in this pass; empty when never
    :param undo: the climbing server's target before its last action; None before the first
    :param capped: servers whose limit was found
    :param ratios: latencies over objectives before the climbing server's last step up; None before the first since its
        pages moved
    :param rises: by how much the last step up has raised each; empty before the second one
    """

    order: tuple[str, ...]
    location: frozenset[int]
    position: int = 0
    valid: Mapping[str, BeTarget] = field(default_factory=dict)
    undo: BeTarget | None = None
    capped: frozenset[str] = frozenset()
    ratios: Mapping[str, float] | None = None
    rises: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moving:
    """Pages under way.

    :param be: whose
    :param then: level when they have arrived
    :param careful: the level now is one at which all objectives were met
    :param left: largest distance of a node from its share, at the last progress
    :param progress_s: time of the last progress
    """

    be: str
    then: int
    careful: bool
    left: float = math.inf
    progress_s: float = -math.inf


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Something given back, to be taken again if an objective suffers."""

    be: str
    before: BeTarget


@dataclass(frozen=True, slots=True)
class Releasing:
    """Taking actions back one by one to see which of them help at all.

    :param queue: (server, what) still to try
    :param violated: servers that are violated whatever is done
    :param baseline: worst ratio of their latencies to objectives with everything effective
    :param trying: (server, what) taken back now, with the target before; None before the first
    :param helpful: servers for which some action was shown to have an effect on them
    :param leave: best-effort servers, heaviest user of the violated nodes first
    """

    queue: tuple[tuple[str, Release], ...]
    violated: frozenset[str]
    baseline: float
    trying: tuple[str, Release, BeTarget] | None = None
    helpful: frozenset[str] = frozenset()
    leave: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """What latency-critical servers have taken of best-effort ones: survives a restart of the agent.

    By UUID, whether a server runs now or not: who is paused or reboots has spent what it has spent.

    :param full_s: latency-critical server -> when its account will have grown back, host's monotonic clock, seconds;
        an account that is used up needs an hour. Full ones are missing
    :param overdrawn: latency-critical servers whose account is used up, until half of it has grown back
    :param causes: throttled best-effort server -> latency-critical ones for whose sake it was throttled last
    :param hours: best-effort server -> how far it was throttled in the last hour; those never throttled are missing
    :param spared: best-effort servers that may not be throttled now
    """

    full_s: Mapping[str, float] = field(default_factory=dict)
    overdrawn: frozenset[str] = frozenset()
    causes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    hours: Mapping[str, LevelHour] = field(default_factory=dict)
    spared: frozenset[str] = frozenset()

    def spent(self, uuid: str, now_s: float) -> float:
        """Return how much of a latency-critical server's account is used: 0 is nothing, 1 all.

        :param now_s: host's monotonic clock, seconds
        """
        return max(0.0, self.full_s.get(uuid, now_s) - now_s) / HOUR_S

    def since_boot(self, now_s: float) -> "Taken":
        """Return what a file has kept without what is of the boot before: minutes that are yet to come, and accounts
        that would need longer to grow back than any account does.

        :param now_s: host's monotonic clock, seconds
        """
        full = {uuid: at for uuid, at in self.full_s.items() if at - now_s <= MOST_SPENT * HOUR_S}
        hours = {uuid: hour.until(now_s) for uuid, hour in self.hours.items()}
        return replace(self, full_s=full, hours=hours)


@dataclass(frozen=True, slots=True)
class BalmState:
    """All the controller remembers.

    :param judge_from_s: requests received before do not count for what is in effect now
    :param healing_until_s: queues may still drain from before the last action
    :param targets: by best-effort server; survives a restart of the agent when it is kept
    :param retries: passes in a row that ended violated
    :param before: targets before the first of them
    :param ample_since_s: since when all objectives are met by far
    :param ample_hold_s: hold before the next attempt to give back; None is the option's
    :param attempts: attempts to give back so far: whose turn it is
    :param at_risk_from_s: objectives at risk alone start no search before
    :param barred: best-effort servers whose pages stay for now, because moving them did harm -> time until
    :param parked: servers beyond help -> time when they are tried again
    :param ignored: servers that are not listened to -> time until
    :param taken: what latency-critical servers have taken
    :param unthrottled: best-effort server -> its traffic when it was last not throttled
    :param throttled_s: best-effort server -> since when it is throttled
    :param away_s: latency-critical servers that are gone and had others throttled -> since when
    :param seen_s: time of the last decision
    """

    phase: BalmPhase = BalmPhase.WATCH
    judge_from_s: float = -math.inf
    healing_until_s: float = -math.inf
    targets: Mapping[str, BeTarget] = field(default_factory=dict)
    search: Search | None = None
    moving: Moving | None = None
    trial: GiveBack | None = None
    releasing: Releasing | None = None
    retries: int = 0
    before: Mapping[str, BeTarget] = field(default_factory=dict)
    ample_since_s: float | None = None
    ample_hold_s: float | None = None
    attempts: int = 0
    at_risk_from_s: float = -math.inf
    barred: Mapping[str, float] = field(default_factory=dict)
    parked: Mapping[str, float] = field(default_factory=dict)
    ignored: Mapping[str, float] = field(default_factory=dict)
    taken: Taken = field(default_factory=Taken)
    unthrottled: Mapping[str, Traffic] = field(default_factory=dict)
    throttled_s: Mapping[str, float] = field(default_factory=dict)
    away_s: Mapping[str, float] = field(default_factory=dict)
    seen_s: float | None = None

    def resting(self, targets: Mapping[str, BeTarget]) -> "BalmState":
        """Return a state that tries nothing and remembers who has taken what.

        :param targets: by best-effort server
        """
        return BalmState(
            targets=targets,
            parked=self.parked,
            ignored=self.ignored,
            taken=self.taken,
            unthrottled=self.unthrottled,
            throttled_s=self.throttled_s,
            away_s=self.away_s,
        )


@dataclass(frozen=True, slots=True)
class BalmDecision:
    """What one poll decided.

    :param state: to be given to the next one
    :param changes: server -> its target, only where that has changed
    :param reasons: why
    :param events: what an operator or a higher layer must know
    """

    state: BalmState
    changes: Mapping[str, BeTarget] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()
    events: tuple[Event, ...] = ()
