# SPDX-License-Identifier: Apache-2.0
"""BALM for an uplink: what best-effort servers of a host may send together while an objective is violated. Pure.

The uplink is to :mod:`.balm` what a memory node is: best-effort servers share it as one class, a level is the share of
the uplink that they may use together, and there are no pages. So the search, the trial and the release, the
:mod:`account <.account>` and the :mod:`floor <.floor>` are the same code. What latency-critical servers there declare
is the share of the uplink that is theirs (``[lanes]strict_cap``): to hold the others down to the rest of it is free.

*One at a time.* Memory and network would spoil each other's judgements, so only one of both controllers tries something
at a time. The network goes first, and only where it may be the cause: best-effort servers send much, and most of what
this host sends. Whether they wait in a switch behind the uplink no host can see. A violation that it could not heal is
left to the other one for a while (``parked``, ``ignored``).

Source: Gureya 2021, chapter 5, for the controller; that it also fits a NIC is ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from host_agent.conf.slo import BalmOptions
from host_agent.decide.slo import balm
from host_agent.decide.slo.shapes import BalmDecision, BalmPhase, BalmState, BeServer, SloView
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
    """

    device: str
    speed_mbps: float
    sent_mbps: float
    best_effort_mbps: Mapping[str, float]
    latency_critical: frozenset[str]
    limit_mbps: int | None = None
    latency_critical_mbps: float = 0.0

    @property
    def best_effort_send_much(self) -> bool:
        """They send much over it, whether others send more or not."""
        return sum(self.best_effort_mbps.values()) >= _MUCH * self.speed_mbps

    @property
    def may_be_cause(self) -> bool:
        """Best-effort servers send much over it, and most of what is sent."""
        theirs = sum(self.best_effort_mbps.values())
        return self.best_effort_send_much and theirs >= self.sent_mbps / 2


def view(seen: SloView, use: UplinkUse, protected: float) -> SloView:
    """Return the view of an uplink as one of a host with one memory node.

    :param seen: the host's, with latencies
    :param protected: share of the uplink that is the latency-critical servers', together
    """
    here = [lc for lc in seen.lcs if lc.uuid in use.latency_critical]
    level = level_of(use.limit_mbps, use.speed_mbps)
    return SloView(
        tuple(_lc(lc, use.speed_mbps * protected / len(here)) for lc in here),
        tuple(
            _be(be, use, sent, level)
            for be in seen.bes
            if (sent := use.best_effort_mbps.get(be.uuid)) is not None
        ),
        (UPLINK,),
        uplink_levels(),
        {UPLINK: use.speed_mbps},
    )


def decide(
    seen: SloView,
    use: UplinkUse,
    state: BalmState,
    options: BalmOptions,
    now_s: float,
    *,
    protected: float,
    may_begin: bool,
) -> BalmDecision | None:
    """Decide about the level of an uplink now; None: it is not its turn.

    :param seen: the host, its readings as of :func:`host_agent.decide.slo.balm.decide`
    :param use: of the uplink
    :param state: of the last decision
    :param protected: share of the uplink that is the latency-critical servers'
    :param may_begin: nothing else is being tried
    """
    if state.phase is BalmPhase.WATCH:
        is_held = any(target.level < FULL for target in state.targets.values())
        if not may_begin or not (is_held or use.may_be_cause):
            return None
    timed = replace(
        options,
        settle_s=max(_SETTLE_S, options.settle_s),
        judge_s=max(_JUDGE_S, options.judge_s),
        heal_s=max(_HEAL_S, options.heal_s),
        ample_hold_s=max(_HOLD_S, options.ample_hold_s),
    )
    decision = balm.decide(view(seen, use, protected), state, timed, now_s)
    # Traffic of memory has its sentence; that of the uplink is shown by itself.
    reasons = tuple(each for each in decision.reasons if each.term != Term.TRAFFIC_MBPS)
    return replace(decision, reasons=reasons)


def limit_mbps(state: BalmState, speed_mbps: float) -> int | None:
    """Return what best-effort servers may send together, Mbit/s; None: as much as goes."""
    level = min((target.level for target in state.targets.values()), default=FULL)
    return None if level >= FULL else max(1, round(speed_mbps * level / FULL))


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
