# SPDX-License-Identifier: Apache-2.0
"""When nothing helps: report it, take back what has no effect, and leave best-effort servers alone for a while.

A server may be violated because its host is too small for it, because something else is wrong with it, or because it
lies. So after too many failed passes the higher layer gets a proposal which server should leave the host. Then every
action in effect is taken back once, one after the other: where the worst latency does not get worse it was without
effect and stays taken back, otherwise it is taken again. A server whose violation nothing helped is not listened to for
a while; one that something helped, though not enough, starts no new search for a while. Only of that one is it known
that a neighbour's move would help, and only where its violation is beyond chance is the move asked for: for a guest
that merely reports that it is violated, whatever is done, no server is moved away.
"""

from collections.abc import Container, Iterable
from dataclasses import replace

from host_agent.decide.slo.shapes import (
    BalmPhase,
    BeTarget,
    CannotFixSloViolation,
    Release,
    Released,
    Releasing,
    ShouldLeave,
)
from host_agent.decide.slo.turn import Turn
from host_agent.decide.slo.violation import SloState
from host_agent.model.levels import FULL
from host_agent.model.terms import Term
from placement_traits.reason import Reason


def give_up(turn: Turn) -> None:
    """Report that this host cannot meet its objectives and begin to take actions back."""
    verdict = turn.verdict
    violated = tuple(sorted(verdict.endangered))
    order = turn.heaviest(verdict.location)
    noticeable = turn.noticeable(order, verdict.location)
    reasons = tuple(
        Reason(Term.TRAFFIC_MBPS, traffic, where=uuid)
        for uuid in noticeable
        if (traffic := turn.bes[uuid].traffic_at(verdict.location)) is not None
    )
    turn.events.append(
        CannotFixSloViolation(
            violated, tuple(sorted(verdict.location)), (*noticeable, *violated), reasons
        )
    )
    turn.reason(Term.CANNOT_FIX, ",".join(violated), f"{turn.state.retries} retries")
    queue: list[tuple[str, Release]] = []
    for uuid, target in sorted(turn.state.targets.items()):
        if target.level < FULL and uuid == min(turn.mates(uuid)):
            queue.append((uuid, Release.THROTTLE))
        if target.shares is not None:
            queue.append((uuid, Release.PAGES))
    turn.keep(
        phase=BalmPhase.RELEASE,
        search=None,
        moving=None,
        releasing=Releasing(
            tuple(queue), verdict.endangered, verdict.worst(verdict.endangered), leave=order
        ),
    )
    _next(turn)


def release(turn: Turn) -> None:
    """Judge what was taken back last and go on with the next."""
    releasing, verdict = turn.state.releasing, turn.verdict
    assert releasing is not None, "the phase has it"
    if turn.arrivals() == "moving" or not turn.ripe or verdict.state is SloState.UNKNOWN:
        return
    if verdict.state.good:
        turn.reason(Term.RECOVERED, verdict.state.name.lower())
        turn.watch(retries=0)
        return
    if releasing.trying is not None:
        uuid, what, before = releasing.trying
        harmed = verdict.endangered - releasing.violated
        worst = verdict.worst(releasing.violated)
        worse = worst > releasing.baseline * (1.0 + turn.options.effect)
        if uuid in turn.bes:
            if harmed or worse:
                turn.reason(Term.EFFECT_SHOWN, worst, releasing.baseline, uuid)
                turn.put_back(uuid, before, Term.KEEP)
                turn.blame(turn.mates(uuid), harmed | (releasing.violated if worse else set()))
                helpful = releasing.helpful | ({uuid} if worse else set())
                turn.keep(releasing=replace(releasing, trying=None, helpful=helpful))
                return
            turn.events.append(Released(uuid, what, tuple(sorted(releasing.violated))))
    _next(turn)


def free(turn: Turn, ignored: Iterable[str], servers: Container[str]) -> None:
    """Take everything back at once of servers for which no objective is left; what is tried for others goes on.

    :param ignored: servers that are there but not listened to
    :param servers: best-effort servers
    """
    lcs = tuple(sorted(ignored))
    for uuid, target in sorted(turn.state.targets.items()):
        if uuid not in servers:
            continue
        if target != BeTarget() and turn.set_target(uuid, BeTarget(), Term.FREE) and lcs:
            turn.events.append(Released(uuid, Release.ALL, lcs))
    if not goes_on(turn, servers):
        turn.watch(moving=None, retries=0)


def goes_on(turn: Turn, servers: Container[str]) -> bool:
    """Return whether what is being tried is for a server that is listened to, and is tried with none of some servers.

    :param servers: best-effort servers
    """
    state = turn.state
    at_work = [state.moving.be] if state.moving else []
    if state.search:
        at_work += state.search.order[state.search.position : state.search.position + 1]
        needed = any(not lc.nodes.isdisjoint(state.search.location) for lc in turn.listened)
    elif state.releasing:
        at_work += [each for each, _ in state.releasing.queue]
        at_work += [state.releasing.trying[0]] if state.releasing.trying else []
        needed = any(lc.uuid in state.releasing.violated for lc in turn.listened)
    elif state.trial:
        at_work.append(state.trial.be)
        needed = bool(turn.listened)
    else:
        return False
    return needed and not any(uuid in servers for uuid in at_work)


def _next(turn: Turn) -> None:
    releasing = turn.state.releasing
    assert releasing is not None, "the phase has it"
    queue = releasing.queue
    while queue and queue[0][0] not in turn.bes:
        queue = queue[1:]
    if not queue:
        _end(turn, releasing)
        return
    (uuid, what), *rest = queue
    before = turn.target(uuid)
    turn.keep(releasing=replace(releasing, queue=tuple(rest), trying=(uuid, what, before)))
    if what is Release.THROTTLE:
        turn.set_target(uuid, replace(before, level=FULL), Term.TRY_WITHOUT_THROTTLE)
    else:
        earlier = turn.state.before.get(uuid, BeTarget()).shares
        back = replace(before, shares=earlier)
        turn.move(uuid, back, before.level, Term.TRY_WITHOUT_PAGES, careful=False)


def _end(turn: Turn, releasing: Releasing) -> None:
    until = turn.now_s + turn.options.ignore_s
    gone = dict.fromkeys(releasing.violated & turn.verdict.violated, until)
    if releasing.helpful:
        turn.keep(parked={**turn.state.parked, **gone})
        leave = tuple(u for u in releasing.leave if u in releasing.helpful and u in turn.bes)
        if gone and leave and turn.verdict.sure:
            turn.events.append(ShouldLeave(tuple(sorted(gone)), leave))
    else:
        turn.keep(ignored={**turn.state.ignored, **gone})
    for uuid in sorted(gone):
        term = Term.PARKED if releasing.helpful else Term.IGNORED
        turn.reason(term, turn.options.ignore_s, where=uuid)
    turn.watch(retries=0)
