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

from host_agent.decide.slo.shapes import BeServer, SloView
from host_agent.model.levels import FULL, legal
from host_agent.model.traffic import Traffic, traffic_at


@dataclass(frozen=True, slots=True)
class Loss:
    """What throttles take of best-effort traffic beyond what is paid for.

    :param share: of what best-effort servers would use, 0 to 1
    :param traffic_mbps: what they use now; None when it is not monitored
    :param own_mbps: what is their own; None where the bandwidth of the nodes is not known
    :param measured: by their traffic when they were last not throttled, else estimated by their levels
    """

    share: float
    traffic_mbps: float | None = None
    own_mbps: float | None = None
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
    """

    levels: Mapping[str, int]
    unthrottled: Mapping[str, Traffic]

    def unthrottled_mbps(self, be: BeServer, location: frozenset[int]) -> float | None:
        """Return what a server would use of some nodes without a throttle, MB/s; None when it is not monitored."""
        seen = self.unthrottled.get(be.uuid)
        if seen is not None:
            return traffic_at(location, be.nodes, be.shares, seen)
        now = be.traffic_at(location)
        return None if now is None else now * FULL / self.levels[be.uuid]


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


def loss(view: SloView, held: Held, location: frozenset[int]) -> Loss:
    """Return what best-effort servers lose now of their own bandwidth at some memory nodes.

    :param held: how they are held now
    """
    if all(level >= FULL for level in held.levels.values()):
        return Loss(0.0)
    own = own_mbps(view, location)
    used = demand = 0.0
    measured = True
    for be in view.bes:
        now, full = be.traffic_at(location), held.unthrottled_mbps(be, location)
        if now is None or full is None:
            return Loss(_deficit(view, held, location))
        used += now
        demand += max(now, full)
        measured &= be.uuid in held.unthrottled
    if demand <= 0.0:
        return Loss(_deficit(view, held, location))
    share = max(0.0, min(demand, own) - used) / demand
    return Loss(share, used, None if math.isinf(own) else own, measured)


def _deficit(view: SloView, held: Held, location: frozenset[int]) -> float:
    """Return how far levels are below those that are paid for, as a share: for traffic that is not monitored."""
    capacity = capacity_mbps(view, location)
    own = 1.0 if math.isinf(capacity) else own_mbps(view, location) / capacity
    return sum(max(0.0, own - level / FULL) for level in held.levels.values()) / len(held.levels)


def _legal(view: SloView, share: float) -> int:
    return legal(view.levels, math.ceil(FULL * min(1.0, max(0.0, share)) - 1e-9))
