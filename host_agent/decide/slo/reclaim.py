# SPDX-License-Identifier: Apache-2.0
"""BALM's other branch: give bandwidth back while every objective is met by far.

After a while one thing is given back as a trial: a level to a server that is still throttled, else a few pages
to the nodes that a displaced server's own memory policy prefers. If objectives stay ample, or met for as long, it is
kept and the next while begins; otherwise it is taken back at once and the hold before the next trial
doubles, so that the system does not bounce between two configurations.

A throttle is given back, too, while those for whose sake it is held are met by far and all others are just met: who is
content as things are would else keep throttles effective that another pays for.

Source: Gureya 2021, section 5.3 ("re-configuring upon workload changes"; trigger and step are not given there).
"""

from dataclasses import replace

from host_agent.decide.pages.steps import towards
from host_agent.decide.slo.shapes import BalmPhase, GiveBack
from host_agent.decide.slo.turn import Turn
from host_agent.decide.slo.violation import SloState, state_of
from host_agent.model.terms import Term


def watch_ample(turn: Turn) -> None:
    """Begin a trial when there has been room for long enough."""
    since = turn.state.ample_since_s
    if since is None:
        turn.keep(ample_since_s=turn.now_s)
    elif turn.now_s - since >= _hold_s(turn):
        _begin(turn)


def trial(turn: Turn) -> None:
    """Keep what was given back, or take it again."""
    tried = turn.state.trial
    assert tried is not None, "the phase has it"
    verdict = turn.verdict
    arriving = turn.arrivals()
    if turn.ripe and verdict.state.bad and (verdict.sure or arriving != "moving"):
        hold = min(2.0 * _hold_s(turn), turn.options.ample_hold_max_s)
        # Pages take their time to go back; a throttle heals meanwhile.
        meanwhile = turn.lowest if verdict.state is SloState.VIOLATED else tried.before.level
        turn.put_back(tried.be, tried.before, Term.TAKE_AGAIN, meanwhile=meanwhile)
        turn.watch(ample_hold_s=hold)
    elif arriving != "moving" and turn.ripe and verdict.state.good and _proven(turn):
        turn.reason(Term.GIVEN_BACK, verdict.state.name.lower(), where=tried.be)
        turn.watch(ample_hold_s=None)


def possible(turn: Turn) -> bool:
    """Tell whether there is room to give something back."""
    return bool(_throttled(turn) or _displaced(turn))


def _throttled(turn: Turn) -> list[str]:
    """Servers that may get a level back."""
    if not (turn.verdict.state.good and turn.view.levels):
        return []
    all_ample = turn.verdict.state is SloState.AMPLE
    ratios, causes = turn.verdict.ratios, turn.state.taken.causes
    ample = {uuid for uuid in ratios if state_of(ratios[uuid], turn.options) is SloState.AMPLE}
    return [
        uuid
        for uuid, target in sorted(turn.state.targets.items())
        if target.level < turn.most(uuid)
        and (all_ample or (uuid in causes and causes[uuid] <= ample))
    ]


def _displaced(turn: Turn) -> list[str]:
    """Servers whose pages may return."""
    if turn.verdict.state is not SloState.AMPLE:
        return []
    return [u for u, target in sorted(turn.state.targets.items()) if target.shares is not None]


def _proven(turn: Turn) -> bool:
    """Where little room is left, what was given back has to show for as long as one waits that it can stay."""
    proof_s = 0.0 if turn.verdict.state is SloState.AMPLE else turn.options.ample_hold_s
    return turn.now_s - turn.state.judge_from_s >= proof_s


def _hold_s(turn: Turn) -> float:
    hold = turn.state.ample_hold_s
    return turn.options.ample_hold_s if hold is None else hold


def _begin(turn: Turn) -> None:
    able = _throttled(turn)
    candidates = able or _displaced(turn)
    uuid = candidates[turn.state.attempts % len(candidates)]
    before, be = turn.target(uuid), turn.bes[uuid]
    turn.keep(phase=BalmPhase.TRIAL, trial=GiveBack(uuid, before), attempts=turn.state.attempts + 1)
    if able:
        turn.set_target(uuid, replace(before, level=turn.level_up(before.level)), Term.GIVE_BACK)
        return
    shares = towards(turn.shares(be), be.preferred, turn.options.reclaim_step)
    turn.move(uuid, replace(before, shares=shares), before.level, Term.GIVE_BACK, careful=False)
