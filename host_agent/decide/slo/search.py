# SPDX-License-Identifier: Apache-2.0
"""BALM's answer to a violation: heal by throttling, then climb back throughput with pages and levels.

A *pass* first throttles best-effort servers to the minimum, heaviest user of the violated nodes first, until all
objectives are met. Then the same servers in the same order get their throughput back: one level up as long as all is
well; pages away from the violated nodes when it is not. Each action is judged by requests received after it.

What BALM's algorithm 4 leaves open or gets wrong is decided here like this:

* when no pages are left to move, the level that violated is taken back (algorithm 4 as printed ends one level too high,
  throttles all again, and raises its exception on a solvable host);
* a violation at a node outside the pass's location means that the action did harm elsewhere: it is rolled back to the
  last configuration in which all objectives were met;
* a server that could not climb because the system was still violated gets a second lap when others have healed it;
* a step up is not taken when the last one, taken once more, would violate (latency rises ever faster with load, so it
  would): pages are moved first;
* a violation without a new action means that the world has changed: the pass starts again;
* servers that came during a pass join it, those that left drop out;
* what a violated server has paid for it gets at once: best-effort servers together are held down to their own
  bandwidth first (:mod:`~host_agent.decide.slo.entitlement`), in one action however many they are;
* servers of one class of service have one level: each step is one of the class, and once its limit is found its other
  servers are asked for pages only.

Source: Gureya 2021, algorithm 4 and section 5.3.
"""

from collections.abc import Mapping
from dataclasses import replace

from host_agent.decide.pages.steps import away
from host_agent.decide.slo import release
from host_agent.decide.slo.shapes import BalmPhase, BeServer, BeTarget, Moving, Search
from host_agent.decide.slo.turn import Turn
from host_agent.decide.slo.violation import SloState
from host_agent.model.terms import Term


def start(turn: Turn) -> None:
    """Begin a pass and take its first action at once."""
    state, location = turn.state, turn.verdict.location
    order = turn.heaviest(location)
    if state.retries == 0:
        # A small user is not worth a throttle in the first pass; when that was not enough, everyone counts.
        order = turn.noticeable(order, location) or order
    if state.phase is BalmPhase.WATCH:
        turn.keep(before=dict(state.targets), retries=0)
    turn.keep(phase=BalmPhase.HEAL, search=Search(order, location), moving=None, trial=None)
    turn.reason(Term.SEARCH, _nodes(location), turn.verdict.state.name.lower())
    if not _hold(turn, order, location):
        _throttle_next(turn)


def heal(turn: Turn) -> None:
    """Throttle one server after the other until all objectives are met."""
    if not turn.ripe or turn.verdict.state is SloState.UNKNOWN:
        return
    if turn.verdict.state.bad:
        search = _search(turn)
        turn.keep(search=replace(search, location=search.location | turn.verdict.location))
        if _throttle_next(turn):
            return
    turn.keep(phase=BalmPhase.CLIMB)
    climb(turn)


def climb(turn: Turn) -> None:
    """Give throughput back, server by server."""
    moving = turn.state.moving
    if moving is not None and _harm_of_moving(turn, moving):
        return
    arriving = turn.arrivals()
    if arriving == "moving":
        return
    if arriving == "stuck":
        _cap(turn, moving.be if moving else "")
    if not turn.ripe or turn.verdict.state is SloState.UNKNOWN:
        return
    if turn.verdict.state.good:
        turn.keep(search=replace(_search(turn), valid=dict(turn.state.targets)))
    acted = False
    while not acted:
        search = _search(turn)
        if search.position >= len(search.order):
            _end(turn)
            return
        be = turn.bes.get(search.order[search.position])
        if be is None:
            _next(turn)
        elif turn.verdict.state.good:
            acted = _upwards(turn, be)
        else:
            acted = _downwards(turn, be)


def _search(turn: Turn) -> Search:
    search = turn.state.search
    assert search is not None, "the phases of a search have one"
    return search


def _hold(turn: Turn, order: tuple[str, ...], location: frozenset[int]) -> bool:
    """Take what is paid for, of all servers of the pass together; return whether that was anything."""
    there, held = turn.present(order, location), False
    level = turn.entitled(location, there)
    for uuid in there:
        now = turn.target(uuid)
        if now.level > level:
            held |= turn.set_target(uuid, replace(now, level=level), Term.HOLD)
    return held


def _throttle_next(turn: Turn) -> bool:
    """Throttle the next server of the pass that is not at the minimum; return whether there was one."""
    for uuid in _search(turn).order:
        if uuid in turn.bes and turn.target(uuid).level > turn.least(uuid):
            lowest = replace(turn.target(uuid), level=turn.lowest)
            return turn.set_target(uuid, lowest, Term.THROTTLE)
    return False


def _harm_of_moving(turn: Turn, moving: Moving) -> bool:
    """Pages are on their way: only harm is looked for; return whether there was some."""
    search, verdict = _search(turn), turn.verdict
    if not (turn.ripe and verdict.state.bad and verdict.sure):
        return False
    now = turn.target(moving.be)
    if verdict.location - search.location and moving.be not in search.capped:
        _roll_back(turn, moving.be)
    elif moving.careful and now.level > turn.least(moving.be):
        # Moving costs bandwidth, too.
        turn.set_target(moving.be, replace(now, level=turn.lowest), Term.THROTTLE_WHILE_MOVING)
    elif moving.careful:
        _again(turn)
    else:
        return False
    return True


def _upwards(turn: Turn, be: BeServer) -> bool:
    """All is well: one level up; at the top, or at its limit, it is the next server's turn."""
    search, now = _search(turn), turn.target(be.uuid)
    if now.level >= turn.most(be.uuid) or not turn.view.levels or be.uuid in search.capped:
        _next(turn)
        return False
    search = _with_rises(search, turn.verdict.ratios)
    turn.keep(search=search)
    foreseen = max(
        (ratio + search.rises.get(lc, 0.0) for lc, ratio in turn.verdict.ratios.items()),
        default=0.0,
    )
    at_limit = search.undo is None and not search.capped.isdisjoint(turn.mates(be.uuid))
    if at_limit or (turn.options.foresee and foreseen > 1.0):
        turn.reason(Term.FORESEEN, foreseen, 1.0, be.uuid)
        shares = _pages_away(turn, be)
        if shares is None:
            _cap(turn, be.uuid)
            return False
        turn.keep(search=replace(search, undo=now, ratios=None))
        turn.move(be.uuid, replace(now, shares=shares), now.level, Term.PAGES_BEFORE, careful=True)
        return True
    turn.keep(search=replace(search, undo=now))
    turn.set_target(be.uuid, replace(now, level=turn.level_up(now.level)), Term.WEAKER_THROTTLE)
    return True


def _with_rises(search: Search, ratios: Mapping[str, float]) -> Search:
    """Take note of what the last step up has done to each server: the worst may be another than the one that rises."""
    before = search.ratios
    if before is None:
        return replace(search, ratios=ratios)
    rises = {lc: max(0.0, ratio - before[lc]) for lc, ratio in ratios.items() if lc in before}
    return replace(search, ratios=ratios, rises=rises)


def _pages_away(turn: Turn, be: BeServer) -> dict[int, float] | None:
    """Return the shares of a server after one step away from the violated nodes, None when it must not take one."""
    if not be.movable or be.uuid in turn.state.barred:
        return None
    location, step = _search(turn).location, turn.options.page_step
    return away(turn.shares(be), location, be.preferred, turn.room(be), step)


def _downwards(turn: Turn, be: BeServer) -> bool:
    """An objective suffers: pages away, or back to what was good; return whether something was done."""
    search, now = _search(turn), turn.target(be.uuid)
    valid = search.valid.get(be.uuid)
    untried = search.undo is None and (valid is None or valid == now)
    if untried and search.valid:
        _again(turn)
        return True
    if not untried and turn.verdict.location - search.location:
        _roll_back(turn, be.uuid)
        return True
    shares = _pages_away(turn, be)
    if shares is not None:
        outbound = be.nodes & search.location
        why = Term.PAGES_OUTBOUND if outbound else Term.PAGES_INBOUND
        known_good = valid is not None and turn.options.throttle_while_moving
        meanwhile = valid.level if valid is not None and known_good else now.level
        turn.keep(search=replace(search, undo=now, ratios=None))
        turn.move(
            be.uuid,
            BeTarget(now.level, shares),
            meanwhile,
            why,
            careful=known_good,
        )
        return True
    if valid is not None and valid.level < now.level:
        # Trap of algorithm 4 as printed: without this the pass ends one level too high, and all begins again.
        turn.set_target(be.uuid, replace(now, level=valid.level), Term.UNDO_LAST_LEVEL)
        _cap(turn, be.uuid)
        return True
    _next(turn)
    return False


def _roll_back(turn: Turn, uuid: str) -> None:
    """The last action did harm elsewhere: back to the last configuration that was good, on to the next server."""
    search = _search(turn)
    good = search.valid.get(uuid) or search.undo or turn.target(uuid)
    turn.reason(Term.HARM_ELSEWHERE, _nodes(turn.verdict.location), _nodes(search.location))
    if good.shares != turn.target(uuid).shares:
        until = turn.now_s + turn.options.bar_s
        turn.keep(barred={**turn.state.barred, uuid: until})
    turn.put_back(uuid, good, Term.ROLL_BACK)
    _cap(turn, uuid)


def _cap(turn: Turn, uuid: str) -> None:
    """Its limit is found: the next one's turn."""
    turn.keep(search=replace(_search(turn), capped=_search(turn).capped | {uuid}))
    _next(turn)


def _next(turn: Turn) -> None:
    search = _search(turn)
    turn.keep(
        search=replace(search, position=search.position + 1, undo=None, ratios=None, rises={})
    )


def _end(turn: Turn) -> None:
    """Every server had its turn."""
    search, state = _search(turn), turn.verdict.state
    if state.good:
        rest = tuple(
            uuid
            for uuid in search.order
            if uuid in turn.bes
            and turn.target(uuid).level < turn.most(uuid)
            and uuid not in search.capped
        )
        if rest and turn.view.levels:
            turn.keep(
                search=replace(search, order=rest, position=0, undo=None, ratios=None, rises={})
            )
            climb(turn)
            return
        turn.reason(Term.SEARCH_ENDED, state.name.lower(), f"{turn.state.retries} retries")
        turn.watch(retries=0)
    elif state is SloState.AT_RISK:
        turn.reason(Term.SEARCH_ENDED, state.name.lower(), "nothing left to do")
        turn.watch(retries=0, at_risk_from_s=turn.now_s + turn.options.at_risk_pause_s)
    else:
        _again(turn)


def _again(turn: Turn) -> None:
    """The pass has failed, or the world has changed: once more, unless there were too many."""
    retries = turn.state.retries
    if retries > turn.options.max_retries:
        release.give_up(turn)
        return
    turn.keep(retries=retries + 1, moving=None, judge_from_s=turn.now_s + turn.options.settle_s)
    turn.reason(Term.RETRY, retries + 1, turn.options.max_retries)
    start(turn)


def _nodes(nodes: frozenset[int]) -> str:
    return ",".join(map(str, sorted(nodes)))
