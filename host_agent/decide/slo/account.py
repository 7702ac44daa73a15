# SPDX-License-Identifier: Apache-2.0
"""What latency-critical servers may take beyond what they paid for: an account that refills over the hour. Pure.

What throttles take of best-effort traffic beyond the :mod:`entitlement <host_agent.decide.slo.entitlement>` is charged
as time: half of the traffic lost for ten seconds are five. Those pay whose objectives are violated at that time, in
equal parts; while none is, those for whose sake the throttles are held. So a server that has others throttled for ever
pays for ever, whatever it reports, and time in which an action cannot be judged yet costs what is taken in it, no more.

A server whose account is used up is *overdrawn* until half of it has grown back: it still gets what it declared, at
once and whatever it reports, and nothing else is done for its sake. The :mod:`floor <host_agent.decide.slo.floor>`
of a best-effort server beats every account.
"""

from dataclasses import replace

from host_agent.decide.slo import entitlement, floor, release
from host_agent.decide.slo.shapes import AccountSpent, FloorReached, Taken
from host_agent.decide.slo.turn import Turn
from host_agent.model.latency import LcServer
from host_agent.model.levels import FULL
from host_agent.model.terms import Term


def charge(turn: Turn) -> None:
    """Charge the time since the last decision; hold levels within what floors and accounts allow from now on."""
    state = turn.state
    passed = 0.0 if state.seen_s is None else max(0.0, turn.now_s - state.seen_s)
    taken = _charged(turn, _counted(turn, state.taken, passed), passed)
    turn.keep(taken=taken, seen_s=turn.now_s)
    _remember_unthrottled(turn)
    turn.listen()
    _hold(turn, state.taken.overdrawn)


def _counted(turn: Turn, taken: Taken, passed: float) -> Taken:
    """Count the levels that were in effect towards each server's hour; spare those at their floor."""
    hours = {}
    for uuid, target in turn.state.targets.items():
        hour = taken.hours.get(uuid, floor.LevelHour())
        hour = hour.after(turn.now_s, passed, target.level)
        if hour.minutes:
            hours[uuid] = hour
    least = turn.options.be_floor_percent
    spared = floor.spared(hours.items(), taken.spared, least)
    for uuid in sorted(spared - taken.spared):
        mean = hours[uuid].mean_level
        turn.events.append(FloorReached(uuid, mean, tuple(sorted(taken.payers))))
        turn.reason(Term.FLOOR, mean, least, uuid)
    return replace(taken, hours=hours, spared=spared)


def _charged(turn: Turn, taken: Taken, passed: float) -> Taken:
    """Charge accounts; see who is overdrawn."""
    allowed = turn.options.budget_s_per_hour
    # A server that falls silent still pays for throttles that are held for its sake.
    able = {lc.uuid: lc for lc in turn.view.lcs if lc.uuid not in turn.unheard}
    payers = frozenset[str]()
    if any(target.level < FULL for target in turn.state.targets.values()):
        payers = (taken.payers & able.keys()) | turn.verdict.endangered
    paying = turn.verdict.violated or payers
    location = frozenset[int]().union(*(able[uuid].nodes for uuid in paying))
    lost = entitlement.loss(turn.view, turn.held, location) if paying else entitlement.Loss(0.0)
    spent: dict[str, float] = {}
    for lc in turn.view.lcs:
        used = taken.spent_s.get(lc.uuid, 0.0) - passed * allowed / floor.HOUR_S
        if lc.uuid in paying:
            used += passed * lost.share / len(paying)
        if used > 0.0:
            spent[lc.uuid] = used
    overdrawn = frozenset(
        uuid
        for uuid, used in spent.items()
        if used > (allowed / 2.0 if uuid in taken.overdrawn else allowed)
    )
    for uuid in sorted((overdrawn - taken.overdrawn) & able.keys()):
        turn.events.append(_spent(able[uuid], spent[uuid], lost))
        turn.reason(Term.ACCOUNT_SPENT_S, spent[uuid], allowed, uuid)
    return replace(taken, spent_s=spent, overdrawn=overdrawn, payers=payers - overdrawn)


def _spent(lc: LcServer, seconds: float, lost: entitlement.Loss) -> AccountSpent:
    needed = None
    if lost.traffic_mbps is not None and lost.own_mbps is not None:
        needed = lc.declared_mbps + max(0.0, lost.own_mbps - lost.traffic_mbps)
    return AccountSpent(lc.uuid, seconds, lc.declared_mbps, needed, lost.measured)


def _remember_unthrottled(turn: Turn) -> None:
    """Remember the traffic of servers that are not throttled, once what is read cannot be from before."""
    state = turn.state
    if turn.now_s - state.judge_from_s < turn.options.traffic_s:
        return
    seen = {
        uuid: be.traffic
        for uuid, be in turn.bes.items()
        if be.traffic is not None and turn.target(uuid).level >= FULL
    }
    kept = {uuid: found for uuid, found in state.unthrottled.items() if uuid in turn.bes}
    turn.keep(unthrottled=kept | seen)


def _hold(turn: Turn, before: frozenset[str]) -> None:
    """Bring levels to where floors and accounts allow them: at once, also in the middle of a search.

    :param before: servers that were overdrawn until now
    """
    overdrawn = turn.state.taken.overdrawn
    if overdrawn - before and not turn.state.taken.payers:
        release.free(turn, overdrawn)
    for uuid, target in turn.state.targets.items():
        if not turn.least(uuid) <= target.level <= turn.most(uuid):
            turn.set_target(uuid, target, Term.HOLD)
