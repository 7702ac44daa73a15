# SPDX-License-Identifier: Apache-2.0
"""One decision of BALM while it is being made: what is seen, the state as it changes, and what all phases share."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from host_agent.conf.slo import BalmOptions
from host_agent.decide.slo import entitlement
from host_agent.decide.slo.shapes import (
    BalmDecision,
    BalmPhase,
    BalmState,
    BeServer,
    BeTarget,
    Event,
    Moving,
    SloView,
)
from host_agent.decide.slo.violation import SloState, SloVerdict, evaluate
from host_agent.model import levels as throttle
from host_agent.model.latency import LcServer
from host_agent.model.pages import Shares, share_error
from host_agent.model.terms import Term
from placement_traits.reason import Reason


class Turn:
    """A decision in the making; lives only as long as one call of ``decide``.

    :ivar state: as far as it has been decided
    :ivar bes: best-effort servers by UUID
    :ivar verdict: the state of the objectives that are listened to
    """

    def __init__(self, view: SloView, state: BalmState, options: BalmOptions, now_s: float) -> None:
        self.view = view
        self.options = options
        self.now_s = now_s
        self.state = state
        self.bes = {be.uuid: be for be in view.bes}
        self.verdict = SloVerdict(evaluate((), options).state)
        self.reasons: list[Reason] = []
        self.events: list[Event] = []
        self._before = state.targets
        self._ceiling = frozenset[str](), frozenset[str](), throttle.FULL
        self._groups: dict[str, tuple[str, ...]] = {}
        for be in view.bes:
            self._groups[be.group] = (*self._groups.get(be.group, ()), be.uuid)

    def keep(self, **changes: Any) -> None:
        """Change the state."""
        self.state = replace(self.state, **changes)

    def reason(
        self, term: Term, value: str | float, against: str | float = "", where: str = ""
    ) -> None:
        """Give a reason.

        :param where: the server that it is about
        """
        self.reasons.append(Reason(term, value, against, where))

    @property
    def listened(self) -> tuple[LcServer, ...]:
        """Servers with an objective for which something may be done."""
        return tuple(lc for lc in self.view.objectives if lc.uuid not in self.unheard)

    @property
    def unheard(self) -> frozenset[str]:
        """Servers for which nothing is done now, whatever they report, but for what overdrawn ones declare."""
        return self.state.taken.overdrawn.union(self.state.ignored)

    def listen(self) -> None:
        """Evaluate the objectives for which something may be done."""
        self.verdict = evaluate(self.listened, self.options)
        if self.verdict.state.bad and self.now_s < self.state.healing_until_s:
            # What was received while queues drained counts against nothing: only the latest requests do.
            latest = self.now_s - self.options.judge_s
            self.keep(judge_from_s=max(self.state.judge_from_s, latest))

    @property
    def ripe(self) -> bool:
        """Enough was received since the last action to judge it; a violation beyond chance needs no more."""
        if self.now_s < self.state.judge_from_s:
            return False
        if self.verdict.state.bad and self.now_s < self.state.healing_until_s:
            return False
        waited = self.now_s - self.state.judge_from_s >= self.options.judge_s - 1e-9
        return waited or (self.verdict.state.bad and self.verdict.sure)

    # -- targets --

    @property
    def lowest(self) -> int:
        """The strongest throttle."""
        levels = self.view.levels
        return levels[0] if levels else throttle.FULL

    def mates(self, uuid: str) -> tuple[str, ...]:
        """Return the servers that are throttled together with one, and itself."""
        group = self.bes[uuid].group
        return self._groups[group] if group else (uuid,)

    def least(self, uuid: str) -> int:
        """Return the strongest throttle that a server may have now."""
        spared = self.state.taken.spared
        return throttle.FULL if not spared.isdisjoint(self.mates(uuid)) else self.lowest

    def most(self, uuid: str) -> int:
        """Return the weakest throttle that a server may have now: overdrawn servers still get what they declare."""
        overdrawn = self.state.taken.overdrawn
        if self._ceiling[0] != overdrawn:
            nodes = (lc.nodes for lc in self.view.lcs if lc.uuid in overdrawn)
            location = frozenset[int]().union(*nodes)
            there = frozenset(self.present(self.bes, location))
            self._ceiling = overdrawn, there, self.entitled(location, there)
        _, there, level = self._ceiling
        return throttle.FULL if there.isdisjoint(self.mates(uuid)) else level

    def entitled(self, location: frozenset[int], servers: Collection[str]) -> int:
        """Return the level at which servers use no more than what is best-effort servers' own at some nodes."""
        return entitlement.level(self.view, self.held, location, servers)

    @property
    def held(self) -> entitlement.Held:
        """How best-effort servers are held."""
        levels = {uuid: self.in_effect(uuid) for uuid in self.bes}
        oldest = self.now_s - self.options.demand_s
        old = frozenset(uuid for uuid, at in self.state.throttled_s.items() if at < oldest)
        return entitlement.Held(levels, self.state.unthrottled, old)

    def level_up(self, level: int) -> int:
        """Return the next level that is a step weaker."""
        return throttle.step_up(self.view.levels, level, self.options.throttle_step)

    def target(self, uuid: str) -> BeTarget:
        """Return the target of a server."""
        return self.state.targets[uuid]

    def in_effect(self, uuid: str) -> int:
        """Return the level that was in effect until now, per cent."""
        level = self.bes[uuid].in_effect
        return self.target(uuid).level if level is None else level

    def shares(self, be: BeServer) -> Shares:
        """Return where a server's pages are, or shall be once they have moved."""
        shares = self.target(be.uuid).shares
        return be.shares if shares is None else shares

    def room(self, be: BeServer) -> dict[int, float]:
        """Return node -> largest share of the server's memory it can hold, for all nodes."""
        return {node: be.room.get(node, 1.0) for node in self.view.nodes}

    def heaviest(self, location: frozenset[int]) -> tuple[str, ...]:
        """Return the best-effort servers, heaviest user of some nodes first.

        Servers without figures come first, by their pages there: they may be anything.
        """
        found = self._traffic_at(location)
        pages = {u: sum(be.shares.get(n, 0.0) for n in location) for u, be in self.bes.items()}
        total = sum(value for value in found.values() if value is not None)
        order = sorted(
            found, key=lambda u: (found[u] is not None, -(found[u] or 0.0), -pages[u], u)
        )
        for uuid in order:
            traffic = found[uuid]
            known = "unknown" if traffic is None else traffic
            self.reason(Term.TRAFFIC_MBPS, known, total, uuid)
        return tuple(order)

    def noticeable(self, order: Iterable[str], location: frozenset[int]) -> tuple[str, ...]:
        """Return those servers whose part of the best-effort traffic at some nodes, with mates, is worth a throttle."""
        found = self._traffic_at(location)
        least = self.options.noticeable * sum(value or 0.0 for value in found.values())
        return tuple(
            uuid
            for uuid in order
            if found[uuid] is None or sum(found[mate] or 0.0 for mate in self.mates(uuid)) > least
        )

    def present(self, order: Iterable[str], location: frozenset[int]) -> tuple[str, ...]:
        """Return those servers with pages on some nodes that are worth a throttle, together with all others."""
        return tuple(
            uuid
            for uuid in order
            if sum(self.bes[uuid].shares.get(node, 0.0) for node in location)
            > self.options.noticeable
        )

    def _traffic_at(self, location: frozenset[int]) -> dict[str, float | None]:
        return {uuid: be.traffic_at(location) for uuid, be in self.bes.items()}

    def set_target(self, uuid: str, target: BeTarget, why: Term) -> bool:
        """Change the target of a server, and the level of its mates; the effect is judged from now on.

        The level is one that floors and accounts allow.

        :returns: whether something has changed
        """
        old = self.target(uuid)
        level = max(min(target.level, self.most(uuid)), self.least(uuid))
        targets = {mate: replace(self.target(mate), level=level) for mate in self.mates(uuid)}
        targets[uuid] = target = replace(target, level=level)
        if all(self.target(mate) == one for mate, one in targets.items()):
            return False
        self.keep(
            targets={**self.state.targets, **targets},
            judge_from_s=self.now_s + self.options.settle_s,
        )
        if level < old.level:
            self.blame(targets, self.verdict.endangered)
        if level < old.level or target.shares is not old.shares:
            self.keep(healing_until_s=self.now_s + self.options.heal_s)
        self.reason(why, _text(target), _text(old), uuid)
        return True

    def blame(self, throttled: Collection[str], suffering: frozenset[str]) -> None:
        """Those pay for a throttle whose objectives suffer when it is made stronger: where it is, if any do there.

        A server beyond help does not, unless it is the only one: nothing is done for its sake.

        :param throttled: servers of one class
        :param suffering: servers whose objectives are violated or at risk without the throttle
        """
        suffering = suffering.difference(self.state.parked) or suffering
        here = frozenset(
            lc.uuid
            for lc in self.view.lcs
            if lc.uuid in suffering and not self.throttled_at(lc.nodes).isdisjoint(throttled)
        )
        if suffering:
            causes = {**self.state.taken.causes, **dict.fromkeys(throttled, here or suffering)}
            self.keep(taken=replace(self.state.taken, causes=causes))

    def throttled_at(self, location: frozenset[int]) -> frozenset[str]:
        """Return the servers that are throttled together with one that has pages on some nodes."""
        there = self.present(self.bes, location)
        return frozenset(mate for uuid in there for mate in self.mates(uuid))

    def move(
        self, uuid: str, target: BeTarget, meanwhile: int, why: Term, *, careful: bool
    ) -> None:
        """Move a server's pages and set its level in the end.

        :param target: of the server, in the end
        :param meanwhile: level until the pages have arrived
        :param careful: ``meanwhile`` is a level at which all objectives were met
        """
        self.set_target(uuid, replace(target, level=meanwhile), why)
        self.keep(moving=Moving(uuid, target.level, careful, progress_s=self.now_s))

    def put_back(
        self, uuid: str, target: BeTarget, why: Term, *, meanwhile: int | None = None
    ) -> None:
        """Give a server an earlier target; its pages, if they moved, travel back."""
        if _same_pages(self.target(uuid), target):
            self.keep(moving=None)
            self.set_target(uuid, target, why)
        else:
            level = target.level if meanwhile is None else meanwhile
            self.move(uuid, target, level, why, careful=False)

    # -- pages under way --

    def arrivals(self) -> str:
        """Look after moving pages; return "" when none move, else "moving", "arrived" or "stuck"."""
        moving = self.state.moving
        if moving is None:
            return ""
        be = self.bes[moving.be]
        goal = self.target(moving.be).shares
        left = share_error(be.shares, be.preferred if goal is None else goal)
        raises = moving.then > self.target(moving.be).level
        if left <= self.options.arrived:
            if raises and self.verdict.state is SloState.UNKNOWN:
                return "moving"  # nothing is released in silence
            self.keep(moving=None, judge_from_s=self.now_s + self.options.settle_s)
            self.set_target(
                moving.be, replace(self.target(moving.be), level=moving.then), Term.PAGES_ARRIVED
            )
            return "arrived"
        if left < moving.left - 0.005:
            self.keep(moving=replace(moving, left=left, progress_s=self.now_s))
        elif self.now_s - moving.progress_s > self.options.stuck_s:
            self.keep(moving=None)
            shares = dict(be.shares)
            self.set_target(
                moving.be, replace(self.target(moving.be), shares=shares), Term.PAGES_STUCK
            )
            return "stuck"
        return "moving"

    def watch(self, **changes: Any) -> None:
        """Go back to watching."""
        self.keep(
            phase=BalmPhase.WATCH,
            search=None,
            trial=None,
            releasing=None,
            ample_since_s=None,
            **changes,
        )

    def decision(self) -> BalmDecision:
        """Return what was decided."""
        changes = {
            uuid: target
            for uuid, target in self.state.targets.items()
            if self._before.get(uuid, BeTarget(self.bes[uuid].level)) != target
        }
        return BalmDecision(self.state, changes, tuple(self.reasons), tuple(self.events))


def _same_pages(a: BeTarget, b: BeTarget) -> bool:
    if a.shares is None or b.shares is None:
        return a.shares is b.shares
    return share_error(a.shares, b.shares) < 1e-9


def _text(target: BeTarget) -> str:
    if target.shares is None:
        return f"{target.level}%"
    return f"{target.level}% " + " ".join(f"{n}:{s:.3g}" for n, s in sorted(target.shares.items()))
