# SPDX-License-Identifier: Apache-2.0
"""BALM: keep the latencies of latency-critical (LC) servers, give best-effort (BE) servers all bandwidth that is left.

Two knobs per BE server: a throttle (MBA) that acts within a fraction of a second and slows all its traffic, and the
share of its pages on each node, which takes seconds and touches only what must be. ::

            violated, at risk           all BE at minimum,
    WATCH ───────────────► HEAL ──────── or healed ─────────► CLIMB ◄─┐ level up while good,
    │ ▲ ▲                  throttle one BE                    │ │ └───┘ pages away when bad
    │ │ │                  after the other                    │ │
    │ │ └────────────── every BE had its turn, good ──────────┘ │ violated: once more, at most MAXRETRIES + 2 passes
    │ └──── RELEASE ◄─── CannotFixSloViolation ◄────────────────┘
    │       take actions back one by one; without effect: leave it so
    └─ample for a while─► TRIAL ── good: keep │ bad: take it again, wait twice as long ──► WATCH

:func:`decide` is called at every poll (20 ms) and never waits: an action is judged by later calls, by requests
received after it has settled; pages move in the background while objectives are watched on. An action stays in
effect until a later decision changes it, so the caller applies :attr:`.shapes.BalmDecision.changes` and nothing else.

*More than two sockets.* Gureya has two. Here a violation is located at *nodes*; a step takes pages from the
violated nodes and distributes them over all others in the proportion of the server's own weights (see
:mod:`~host_agent.decide.pages.steps`). With two nodes that is Gureya's rule in both directions. Traffic at a
node is exact with two nodes and estimated by pages with more (:mod:`~host_agent.model.traffic`).

*Rules.* Pages of LC servers, of servers bound by nova and of servers that may not move are never touched. Levels are
legal levels of the host. A server whose shares are ``None`` follows its own memory policy; while BALM has an opinion
its online search has to rest. When no LC server is left everything is given back at once.

Source: Gureya 2021, chapter 5, algorithm 4; what differs is in :mod:`~host_agent.decide.slo.search`,
:mod:`~host_agent.decide.slo.reclaim` and :mod:`~host_agent.decide.slo.release`.
"""

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TypeVar

from host_agent.conf.slo import BalmOptions
from host_agent.decide.slo import account, reclaim, release
from host_agent.decide.slo import search as balm_search
from host_agent.decide.slo.shapes import BalmDecision, BalmPhase, BalmState, BeTarget, SloView
from host_agent.decide.slo.turn import Turn
from host_agent.decide.slo.violation import SloState
from host_agent.model import levels

_T = TypeVar("_T")


def decide(view: SloView, state: BalmState, options: BalmOptions, now_s: float) -> BalmDecision:
    """Decide about the target of every best-effort server now.

    :param view: the host; readings leave out what was received before ``state.judge_from_s``
    :param state: of the last decision, ``BalmState()`` at the start
    :param options: the operator's
    :param now_s: host's monotonic clock, seconds
    """
    turn = Turn(view, state, options, now_s)
    _come_and_go(turn)
    turn.listen()
    account.charge(turn)
    if not turn.listened:
        release.free(turn, turn.unheard, turn.bes)
        return turn.decision()
    {
        BalmPhase.WATCH: _watch,
        BalmPhase.HEAL: balm_search.heal,
        BalmPhase.CLIMB: balm_search.climb,
        BalmPhase.TRIAL: reclaim.trial,
        BalmPhase.RELEASE: release.release,
    }[turn.state.phase](turn)
    return turn.decision()


def _watch(turn: Turn) -> None:
    """Nothing is being tried: react to a violation, give back when there is much room."""
    verdict = turn.verdict
    still = turn.arrivals() != "moving"
    if not verdict.violated & set(turn.state.parked):
        turn.keep(parked={})
    if not turn.ripe:
        return
    room = reclaim.possible(turn)
    if not room:
        turn.keep(ample_since_s=None)
    violated = verdict.state is SloState.VIOLATED and not verdict.endangered <= set(
        turn.state.parked
    )
    at_risk = verdict.state is SloState.AT_RISK and turn.now_s >= turn.state.at_risk_from_s
    if violated or at_risk:
        balm_search.start(turn)
    elif room and still:
        reclaim.watch_ample(turn)


def _come_and_go(turn: Turn) -> None:
    """Take new servers in as they are, forget those that left, listen again to those whose time is over."""
    state, view = turn.state, turn.view
    found = {
        uuid: state.targets.get(uuid) or BeTarget(levels.legal(view.levels, be.level))
        for uuid, be in turn.bes.items()
    }
    targets = {
        uuid: replace(target, level=min(found[mate].level for mate in turn.mates(uuid)))
        for uuid, target in found.items()
    }
    lcs = {lc.uuid for lc in view.objectives}
    turn.keep(
        targets=targets,
        before=_of(state.before, targets),
        barred={be: s for be, s in _of(state.barred, targets).items() if s > turn.now_s},
        parked={lc: s for lc, s in _of(state.parked, lcs).items() if s > turn.now_s},
        ignored={lc: s for lc, s in _of(state.ignored, lcs).items() if s > turn.now_s},
    )
    search = state.search
    if search is not None:
        arrived = tuple(sorted(set(targets) - set(state.targets)))
        if arrived:
            # What goes on began before a newcomer came: its turn is the last.
            turn.keep(search=replace(search, order=search.order + arrived))
    if state.moving is not None and state.moving.be not in targets:
        turn.keep(moving=None, judge_from_s=turn.now_s + turn.options.settle_s)
    if state.trial is not None and state.trial.be not in targets:
        turn.watch()


def _of(values: Mapping[str, _T], keys: Container[str]) -> dict[str, _T]:
    return {key: value for key, value in values.items() if key in keys}
