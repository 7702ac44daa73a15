# SPDX-License-Identifier: Apache-2.0
"""What best-effort servers keep of some memory nodes when latency-critical ones take what their flavors paid for. Pure.

The bandwidth of the nodes less all that latency-critical servers there declare (``CUSTOM_MEMORY_BANDWIDTH_MBPS``) is
best-effort servers' own. To hold their traffic down to it costs a latency-critical server nothing, however long it
lasts; what goes below is charged to its :mod:`account <host_agent.decide.slo.account>`. Where the bandwidth of a node
is not known Placement offers none, no flavor can declare any, and all is best-effort servers' own.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from host_agent.decide.slo.shapes import BeServer, SloView
from host_agent.model.latency import LcServer
from host_agent.model.levels import FULL, legal
from host_agent.model.traffic import Traffic, traffic_at

_IDLE: Final = 0.25
"""What a level takes of some traffic is not known well: a quarter of what it allows by its name is clearly less."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What throttles take of best-effort traffic beyond what is paid for, for the sake of one latency-critical server.

    :param share: of what best-effort servers would use, 0 to 1
    :param needed_mbps: what the server would have to declare for it to be free; None where traffic is not monitored, or
        the bandwidth of its nodes is not known
    :param measured: by their traffic when they were last not throttled, else estimated by their levels
    """

    share: float
    needed_mbps: float | None = None
    measured: bool = False


def capacity_mbps(view: SloView, location: Collection[int]) -> float:
    """Return the memory bandwidth of some nodes, MB/s; infinity where one's is not known."""
    return sum(view.capacity_mbps.get(node, math.inf) for node in location)


def declared_mbps(view: SloView, location: Collection[int]) -> float:
    """Return what latency-critical servers declare at some memory nodes, MB/s: evenly over a server's nodes."""
    return sum(
        lc.declared_mbps * len(lc.nodes.intersection(location)) / len(lc.nodes)
        for lc in view.lcs
        if lc.nodes
    )


def own_mbps(view: SloView, location: Collection[int]) -> float:
    """Return the best-effort servers' own bandwidth at some memory nodes, MB/s; infinity where it is not known."""
    return max(0.0, capacity_mbps(view, location) - declared_mbps(view, location))


@dataclass(frozen=True, slots=True)
class Held:
    """How best-effort servers are held now.

    :param levels: server -> its level, per cent
    :param unthrottled: server -> its traffic when it was last not throttled
    :param old: servers for which that is long ago
    """

    levels: Mapping[str, int]
    unthrottled: Mapping[str, Traffic]
    old: frozenset[str] = frozenset()

    def measured(self, uuid: str) -> bool:
        """Tell whether what a server would use without a throttle is measured, not estimated by its level."""
        known = uuid in self.unthrottled and uuid not in self.old
        return known or self.levels[uuid] >= FULL

    def unthrottled_mbps(self, be: BeServer, location: frozenset[int]) -> float | None:
        """Return what a server would use of some nodes without a throttle, MB/s; None when it is not monitored.

        A server that uses clearly less than its level allows would use no more without it: it is idle. What it used
        long ago tells that, and nothing else: it may want more or less by now, so its level tells how much.
        """
        now, level = be.traffic_at(location), self.levels[be.uuid] / FULL
        seen = self.unthrottled.get(be.uuid)
        if now is None:
            return None if seen is None else traffic_at(location, be.nodes, be.shares, seen)
        if seen is None:
            return now / level
        before = traffic_at(location, be.nodes, be.shares, seen)
        if level < 1.0 and now < _IDLE * level * before:
            return now
        return now / level if be.uuid in self.old else before

    def use(
        self, be: BeServer, location: frozenset[int], *, monitored: bool
    ) -> tuple[float, float]:
        """Return what a server uses of some nodes, and what it would without a throttle.

        :param monitored: in MB/s, else in shares of its pages and by its level
        """
        if not monitored:
            pages = sum(be.shares.get(node, 0.0) for node in location)
            return pages * self.levels[be.uuid] / FULL, pages
        used = be.traffic_at(location) or 0.0
        return used, max(used, self.unthrottled_mbps(be, location) or 0.0)


def level(view: SloView, held: Held, location: frozenset[int], servers: Collection[str]) -> int:
    """Return the level at which best-effort servers use no more than their own bandwidth at some memory nodes.

    :param held: how they are held now
    :param servers: those that are to be held down; the others go on as they do
    """
    own = own_mbps(view, location)
    if math.isinf(own) or not view.levels:
        return FULL
    theirs = rest = 0.0
    for be in view.bes:
        demand = held.unthrottled_mbps(be, location)
        if demand is None:
            return _legal(view, own / capacity_mbps(view, location))
        if be.uuid in servers:
            theirs += demand
        else:
            rest += demand
    return FULL if theirs <= 0.0 else _legal(view, (own - rest) / theirs)


def loss(
    view: SloView,
    held: Held,
    lc: LcServer,
    there: Collection[str],
    causes: Mapping[str, Collection[str]],
) -> Loss:
    """Return what best-effort servers lose now for the sake of one latency-critical server.

    At its nodes they lose what they use less than their own, each as it is throttled; one that is throttled elsewhere
    for its sake loses all that it uses less.

    :param held: how they are held now
    :param lc: the latency-critical server
    :param there: best-effort servers that are throttled together with one that has pages at its nodes
    :param causes: best-effort server -> those for whose sake it is throttled; each answers for an equal part
    """
    monitored = all(be.traffic is not None for be in view.bes)
    here, elsewhere = _sums(view, held, lc, there, causes, monitored=monitored)
    if here.demand + elsewhere.demand <= 0.0:
        # No traffic is seen at all: as if there were no monitoring.
        monitored = False
        here, elsewhere = _sums(view, held, lc, there, causes, monitored=False)
    capacity = capacity_mbps(view, lc.nodes)
    own = own_mbps(view, lc.nodes)
    if not monitored:
        own = math.inf if math.isinf(capacity) else own / capacity * here.demand
    beyond = max(0.0, min(here.demand, own) - here.used)
    part = here.caused / here.deficit if here.deficit > 0.0 else 0.0
    demand = here.demand + elsewhere.demand
    share = (beyond * part + elsewhere.caused) / demand if demand > 0.0 else 0.0
    needed = None
    if monitored and not math.isinf(own):
        needed = lc.declared_mbps + max(0.0, own - here.used) * part
    return Loss(share, needed, monitored and all(held.measured(be.uuid) for be in view.bes))


@dataclass(slots=True)
class _Sum:
    """Of some servers: what they use, what they would, what they lose, and what of that for some server's sake."""

    used: float = 0.0
    demand: float = 0.0
    deficit: float = 0.0
    caused: float = 0.0

    def add(self, used: float, demand: float, part: float) -> None:
        self.used += used
        self.demand += demand
        self.deficit += demand - used
        self.caused += part * (demand - used)


def _sums(
    view: SloView,
    held: Held,
    lc: LcServer,
    there: Collection[str],
    causes: Mapping[str, Collection[str]],
    *,
    monitored: bool,
) -> tuple[_Sum, _Sum]:
    """Sum up servers that are there, at the nodes of a latency-critical one, and those throttled for it elsewhere."""
    here, elsewhere = _Sum(), _Sum()
    for be in view.bes:
        mine = causes.get(be.uuid, ())
        part = 1.0 / len(mine) if lc.uuid in mine else 0.0
        if be.uuid in there:
            here.add(*held.use(be, lc.nodes, monitored=monitored), part)
        elif part:
            elsewhere.add(*held.use(be, frozenset(be.shares), monitored=monitored), part)
    return here, elsewhere


def _legal(view: SloView, share: float) -> int:
    return legal(view.levels, math.ceil(FULL * min(1.0, max(0.0, share)) - 1e-9))
