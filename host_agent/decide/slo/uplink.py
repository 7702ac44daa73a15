# SPDX-License-Identifier: Apache-2.0
"""BALM for an uplink: what best-effort servers of a host have of it while an objective is violated. Pure.

The uplink is to :mod:`.balm` what a memory node is: best-effort servers share it as one class, and there are no pages.
So the search, the trial and the release, the :mod:`account <.account>` and the :mod:`floor <.floor>` are the same code.
What a level is says the *knob*: here the share of the uplink that best-effort servers may use together, in
:mod:`.weights` the part of their lane's share that they keep. With the first, what latency-critical servers there
declare is the share of the uplink that is theirs (``[lanes]strict_cap``): to hold the others down to the rest of it is
free.

*One at a time.* Memory and network would spoil each other's judgements, so only one of both controllers tries something
at a time. The network goes first, and only where it may be the cause: best-effort servers send much, and most of what
this host sends. Whether they wait in a switch behind the uplink no host can see. A violation that it could not heal is
left to the other one for a while (``parked``, ``ignored``).

Source: Gureya 2021, chapter 5, for the controller; that it also fits a NIC is ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Protocol

from host_agent.conf.slo import BalmOptions
from host_agent.decide.slo import balm
from host_agent.decide.slo.shapes import BalmDecision, BalmPhase, BalmState, BeServer, SloView
from host_agent.model.lanes import LaneOrder
from host_agent.model.latency import LcServer
from host_agent.model.levels import FULL, uplink_levels
from host_agent.model.terms import Term
from host_agent.model.traffic import Traffic

UPLINK: Final = 0
"""The one node of the view."""

_MUCH: Final = 0.1
"""Of an uplink: best-effort servers that send less together are in no one's way."""
_SETTLE_S: Final = 0.5  # the order, the unit's tc, what waits in the queue
_JUDGE_S: Final = 1.0  # TCP finds its new rate
_HEAL_S: Final = 2.0
_HOLD_S: Final = 60.0  # a trial that fails fills a queue for a second or two: of five seconds that would be too much


@dataclass(frozen=True, slots=True)
class UplinkUse:
    """How an uplink is used.

    :param device: its name
    :param speed_mbps: of it, Mbit/s
    :param sent_mbps: by all over it
    :param best_effort_mbps: that each best-effort server sends by taps that can be limited
    :param latency_critical: servers that send by the same uplink
    :param limit_mbps: what best-effort servers may send together, the effective limit; None: as much as goes
    :param latency_critical_mbps: that servers of that tier send, what stays in this host included
    :param share_percent: part of the share of their lane that best-effort servers keep, the effective one
    """

    device: str
    speed_mbps: float
    sent_mbps: float
    best_effort_mbps: Mapping[str, float]
    latency_critical: frozenset[str]
    limit_mbps: int | None = None
    latency_critical_mbps: float = 0.0
    share_percent: int = FULL

    @property
    def best_effort_send_much(self) -> bool:
        """They send much over it, whether others send more or not."""
        return sum(self.best_effort_mbps.values()) >= _MUCH * self.speed_mbps

    @property
    def may_be_cause(self) -> bool:
        """Best-effort servers send much over it, and most of what is sent."""
        theirs = sum(self.best_effort_mbps.values())
        return self.best_effort_send_much and theirs >= self.sent_mbps / 2


@dataclass(frozen=True, slots=True)
class UplinkStep:
    """What becomes of an uplink by a decision.

    :param order: for the unit of lanes
    :param what: the same, for the journal
    """

    order: LaneOrder
    what: Mapping[str, Any]


class UplinkKnob(Protocol):
    """What the levels of an uplink are."""

    @property
    def tries(self) -> str:
        """What is tried, for people: a clause that goes on with the uplink's name."""

    def may_help(self, use: UplinkUse) -> bool:
        """Tell whether a search is worth a try."""

    def view(self, seen: SloView, use: UplinkUse) -> SloView:
        """Return the view of an uplink as one of a host with one memory node.

        :param seen: the host's, with latencies
        """

    def step(self, state: BalmState, use: UplinkUse) -> UplinkStep:
        """Return what levels become."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A level is the share of the uplink that best-effort servers may use together.

    :param protected: share of the uplink that is the latency-critical servers', together
    """

    protected: float

    tries: ClassVar[str] = "throttling what best-effort servers send over"

    def may_help(self, use: UplinkUse) -> bool:
        """Best-effort servers may be the cause."""
        return use.may_be_cause

    def view(self, seen: SloView, use: UplinkUse) -> SloView:
        """See :class:`UplinkKnob`."""
        level = level_of(use.limit_mbps, use.speed_mbps)
        return seen_as_node(
            seen,
            use,
            use.best_effort_mbps,
            level,
            capacity_mbps=use.speed_mbps,
            declared_mbps=use.speed_mbps * self.protected,
        )

    def step(self, state: BalmState, use: UplinkUse) -> UplinkStep:
        """See :class:`UplinkKnob`."""
        limit = limit_mbps(state, use.speed_mbps)
        order = LaneOrder() if limit is None else LaneOrder({use.device: limit})
        return UplinkStep(order, {"best_effort_mbps": limit})


def seen_as_node(
    seen: SloView,
    use: UplinkUse,
    sent_mbps: Mapping[str, float],
    level: int,
    *,
    capacity_mbps: float,
    declared_mbps: float = 0.0,
) -> SloView:
    """Return the view of an uplink as one of a host with one memory node.

    :param seen: the host's, with latencies
    :param sent_mbps: by best-effort servers of what is shared
    :param level: that is effective
    :param capacity_mbps: of what is shared
    :param declared_mbps: what of it is latency-critical servers', together
    """
    here = [lc for lc in seen.lcs if lc.uuid in use.latency_critical]
    return SloView(
        tuple(_lc(lc, declared_mbps / len(here)) for lc in here),
        tuple(
            _be(be, use, sent, level)
            for be in seen.bes
            if (sent := sent_mbps.get(be.uuid)) is not None
        ),
        (UPLINK,),
        uplink_levels(),
        {UPLINK: capacity_mbps},
    )


def decide(
    seen: SloView,
    use: UplinkUse,
    state: BalmState,
    options: BalmOptions,
    now_s: float,
    *,
    knob: UplinkKnob,
    may_begin: bool,
) -> BalmDecision | None:
    """Decide about the level of an uplink now; None: it is not its turn.

    :param seen: the host, its readings as of :func:`host_agent.decide.slo.balm.decide`
    :param use: of the uplink
    :param state: of the last decision
    :param knob: what is tried
    :param may_begin: nothing else is being tried
    """
    if state.phase is BalmPhase.WATCH:
        is_held = any(target.level < FULL for target in state.targets.values())
        if not may_begin or not (is_held or knob.may_help(use)):
            return None
    timed = replace(
        options,
        settle_s=max(_SETTLE_S, options.settle_s),
        judge_s=max(_JUDGE_S, options.judge_s),
        heal_s=max(_HEAL_S, options.heal_s),
        ample_hold_s=max(_HOLD_S, options.ample_hold_s),
    )
    decision = balm.decide(knob.view(seen, use), state, timed, now_s)
    # Traffic of memory has its sentence; that of the uplink is shown by itself.
    reasons = tuple(each for each in decision.reasons if each.term != Term.TRAFFIC_MBPS)
    return replace(decision, reasons=reasons)


def limit_mbps(state: BalmState, speed_mbps: float) -> int | None:
    """Return what best-effort servers may send together, Mbit/s; None: as much as goes."""
    level = lowest(state)
    return None if level >= FULL else max(1, round(speed_mbps * level / FULL))


def lowest(state: BalmState) -> int:
    """Return the level that best-effort servers have together, per cent."""
    return min((target.level for target in state.targets.values()), default=FULL)


def level_of(limit: int | None, speed_mbps: float) -> int:
    """Return the level that a limit is, per cent."""
    return FULL if limit is None else min(FULL, round(limit / speed_mbps * FULL))


def _lc(lc: LcServer, declared_mbps: float) -> LcServer:
    return replace(lc, nodes=frozenset({UPLINK}), declared_mbps=declared_mbps)


def _be(be: BeServer, use: UplinkUse, sent_mbps: float, level: int) -> BeServer:
    return BeServer(
        be.uuid,
        frozenset({UPLINK}),
        {UPLINK: 1.0},
        {UPLINK: 1.0},
        traffic=Traffic(sent_mbps, sent_mbps),
        movable=False,
        title=be.title,
        group=use.device,
        in_effect=level,
    )
