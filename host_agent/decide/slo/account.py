# SPDX-License-Identifier: Apache-2.0
"""What latency-critical servers may take beyond what they paid for: an account that refills over the hour. Pure.

What throttles take of best-effort traffic beyond the :mod:`entitlement <host_agent.decide.slo.entitlement>` is charged
as time: half of the traffic lost for ten seconds are five. For each throttle those pay whose objectives suffered when
it was made as strong as it is, in equal parts: not who is violated for a reason of its own, and not who needed it once
and could do with less now. So a server that has others throttled for ever pays for ever, whatever it reports, and time
in which an action cannot be judged yet costs what is taken in it, no more.

A server whose account is used up is *overdrawn* until half of it has grown back: it still gets what it declared, at
once and whatever it reports, and nothing else is done for its sake: a throttle that no server is left to pay for is
taken off. A server that is gone for some minutes still answers for its part of a throttle that others need, too: that
part is not charged meanwhile, and to its account again when it is back. The :mod:`floor <host_agent.decide.slo.floor>`
of a best-effort server beats every account.

Accounts and hours are the servers', not their processes': they go on by the clock while a server is paused, reboots
or says nothing, and while the agent does.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from host_agent.decide.slo import entitlement, floor, release
from host_agent.decide.slo.shapes import (
    MOST_SPENT,
    AccountSpent,
    FloorReached,
    Taken,
)
from host_agent.decide.slo.turn import Turn
from host_agent.model.latency import LcServer
from host_agent.model.levels import FULL
from host_agent.model.terms import Term

_T = TypeVar("_T")
_GONE_MOST: Final = 256
_AWAY_S: Final = 300.0


def charge(turn: Turn) -> None:
    """Charge the time since the last decision; hold levels within what floors and accounts allow from now on."""
    state = turn.state
    passed = 0.0 if state.seen_s is None else max(0.0, turn.now_s - state.seen_s)
    taken = _charged(turn, _counted(turn, state.taken, passed), passed)
    turn.keep(taken=taken, seen_s=turn.now_s)
    _remember_unthrottled(turn)
    turn.listen()
    _hold(turn)


def _counted(turn: Turn, taken: Taken, passed: float) -> Taken:
    """Count the levels that were in effect towards each server's hour; spare those at their floor."""
    hours = {}
    for uuid in taken.hours.keys() | turn.bes.keys():
        level = turn.in_effect(uuid) if uuid in turn.bes else FULL
        hour = taken.hours.get(uuid, floor.LevelHour()).after(turn.now_s, passed, level)
        if hour.minutes:
            hours[uuid] = hour
    hours = _bounded(hours, turn.bes, key=lambda uuid: hours[uuid].total)
    least = turn.options.be_floor_percent
    spared = floor.spared(hours.items(), taken.spared, least)
    for uuid in sorted(spared - taken.spared):
        mean = hours[uuid].mean_level
        turn.events.append(FloorReached(uuid, mean, tuple(sorted(taken.causes.get(uuid, ())))))
        turn.reason(Term.FLOOR, mean, least, uuid)
    return replace(taken, hours=hours, spared=spared)


def _charged(turn: Turn, taken: Taken, passed: float) -> Taken:
    """Charge accounts; see who is overdrawn."""
    allowed = turn.options.budget_s_per_hour
    full = {uuid: at for uuid, at in taken.full_s.items() if at > turn.now_s}
    lost = {}
    for lc in _paying(turn, taken):
        there = turn.throttled_at(lc.nodes)
        lost[lc.uuid] = found = entitlement.loss(turn.view, turn.held, lc, there, taken.causes)
        charged = passed * found.share / allowed * floor.HOUR_S
        if charged > 0.0:
            at = max(full.get(lc.uuid, 0.0), turn.now_s) + charged
            full[lc.uuid] = min(at, turn.now_s + MOST_SPENT * floor.HOUR_S)
    full = _bounded(full, {lc.uuid for lc in turn.view.lcs}, key=lambda uuid: full[uuid])
    taken, before = replace(taken, full_s=full), taken.overdrawn
    overdrawn = frozenset(
        uuid for uuid in full if taken.spent(uuid, turn.now_s) > (0.5 if uuid in before else 1.0)
    )
    for lc in _paying(turn, taken):
        if lc.uuid in overdrawn - before:
            found, seconds = lost[lc.uuid], allowed * taken.spent(lc.uuid, turn.now_s)
            turn.events.append(
                AccountSpent(lc.uuid, seconds, lc.declared_mbps, found.needed_mbps, found.measured)
            )
            turn.reason(Term.ACCOUNT_SPENT_S, seconds, allowed, lc.uuid)
    return replace(taken, overdrawn=overdrawn)


def _paying(turn: Turn, taken: Taken) -> tuple[LcServer, ...]:
    """Return the servers for whose sake throttles are held; one that says nothing any more still pays for its own."""
    causes = frozenset[str]().union(*taken.causes.values()) - turn.unheard
    return tuple(lc for lc in turn.view.lcs if lc.uuid in causes)


def _away(turn: Turn, taken: Taken) -> dict[str, float]:
    """Return since when servers are gone for whose sake throttles are held, of those that may come back soon."""
    causes = frozenset[str]().union(*taken.causes.values()) - turn.unheard
    gone = causes - {lc.uuid for lc in turn.view.lcs}
    since = {uuid: turn.state.away_s.get(uuid, turn.now_s) for uuid in gone}
    return {uuid: at for uuid, at in since.items() if turn.now_s - at < _AWAY_S}


def _bounded(
    values: Mapping[str, _T], here: Container[str], key: Callable[[str], float]
) -> dict[str, _T]:
    """Forget servers that do not run beyond a number, those with the least taken first."""
    gone = sorted((uuid for uuid in values if uuid not in here), key=key)
    forgotten = frozenset(gone[: max(0, len(gone) - _GONE_MOST)])
    return {uuid: value for uuid, value in values.items() if uuid not in forgotten}


def _remember_unthrottled(turn: Turn) -> None:
    """Remember what servers use while they are not throttled, once what is read cannot be from before."""
    state = turn.state
    free = {
        uuid: be.traffic
        for uuid, be in turn.bes.items()
        if min(turn.target(uuid).level, turn.in_effect(uuid)) >= FULL
    }
    since = {u: state.throttled_s.get(u, turn.now_s) for u in turn.bes if u not in free}
    known = {uuid: found for uuid, found in state.unthrottled.items() if uuid in turn.bes}
    if turn.now_s - state.judge_from_s >= turn.options.traffic_s:
        known |= {uuid: traffic for uuid, traffic in free.items() if traffic is not None}
    turn.keep(unthrottled=known, throttled_s=since)


def _hold(turn: Turn) -> None:
    """Bring levels to where floors and accounts allow them: at once, also in the middle of a search."""
    taken = turn.state.taken
    paying = {lc.uuid for lc in _paying(turn, taken)}
    away = _away(turn, taken)
    held = {
        uuid: causes & (paying | away.keys())
        for uuid, causes in taken.causes.items()
        if uuid in turn.bes and turn.target(uuid).level < FULL
    }
    causes = {uuid: lcs for uuid, lcs in held.items() if not lcs.isdisjoint(paying)}
    turn.keep(taken=replace(taken, causes=causes), away_s=away)
    if len(causes) < len(held):
        # For whose sake the pages of the others have moved is not known: they go back with the last throttle.
        unpaid = held.keys() - causes.keys()
        needed = causes or release.goes_on(turn, unpaid)
        release.free(turn, turn.unheard, unpaid if needed else turn.bes)
    for uuid, target in turn.state.targets.items():
        if not turn.least(uuid) <= target.level <= turn.most(uuid):
            turn.set_target(uuid, target, Term.HOLD)


def joined(taken: Taken, other: Taken) -> Taken:
    """Return what was taken with the accounts of both, for a server has one, whatever it takes.

    :param other: of another controller; each charges the newest of both, one after the other
    """
    uuids = taken.full_s.keys() | other.full_s.keys()
    never = float("-inf")
    full = {u: max(taken.full_s.get(u, never), other.full_s.get(u, never)) for u in uuids}
    return replace(taken, full_s=full)
