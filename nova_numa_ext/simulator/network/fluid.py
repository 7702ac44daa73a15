# SPDX-License-Identifier: Apache-2.0
"""What groups get of shared links: rates that are max-min fair, by progressive filling. No packets, no queues.

All groups speed up together. When a link is full, those that use it stay as fast as they are, and the others go on; a
group that nothing slows reaches rate 1. The links of a leaf, or of a pod, upwards count as one: ideal spraying.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import numpy as np

from placement_traits.errors import InvalidValueError
from placement_traits.fabric import Fabric

Rates = np.ndarray[Any, np.dtype[np.float64]]

_EQUAL: Final = 1e-12  # links that are full at the same rate, but for rounding


class Pattern(StrEnum):
    """Who of a group sends to whom."""

    ALL_TO_ALL = "all_to_all"
    RING = "ring"
    HALVES = "halves"


def demands(fabric: Fabric, places: Mapping[str, int], pattern: Pattern) -> dict[str, float]:
    """Return what a group sends upwards from each node while nothing slows it, in links of a host.

    :param places: its hosts by leaf, in the order of the fabric
    :param pattern: all to all: as much to each other host; ring: to the next one, in the order of the leafs; halves:
        each of the first half to one of the second, and back; of an odd number the last one is idle
    """
    total = sum(places.values())
    ranks: dict[str, tuple[int, int]] = {}
    first = 0
    for leaf, hosts in places.items():
        for node in (leaf, *fabric.above(leaf)):
            ranks[node] = ranks.get(node, (first, 0))[0], first + hosts
        first += hosts
    sent = {
        node: _upwards(begin, end, total, pattern)
        for node, (begin, end) in ranks.items()
        if 0 < end - begin < total
    }
    return {node: load for node, load in sent.items() if load > 0}


def _upwards(begin: int, end: int, total: int, pattern: Pattern) -> float:
    """Return what ranks from one up to another send to others."""
    hosts = end - begin
    if pattern is Pattern.ALL_TO_ALL:
        return hosts * (total - hosts) / (total - 1)
    if pattern is Pattern.RING:
        return 1.0
    half = total // 2
    within = max(0, min(end - half, half) - begin)
    return float(max(0, min(end, 2 * half) - begin) - 2 * within)


def capacities(fabric: Fabric, oversubscription: float) -> dict[str, float]:
    """Return what each node passes upwards, in links of a host; nothing is above the highest level's nodes.

    :param oversubscription: of leafs; what is above passes all that leafs send
    :raises InvalidValueError: it is below 1
    """
    if oversubscription < 1:
        raise InvalidValueError("over-subscription", oversubscription, "1 or more")
    found: dict[str, float] = {}
    for leaf, hosts in fabric.sizes.items():
        for node in (leaf, *fabric.above(leaf)):
            found[node] = found.get(node, 0.0) + hosts / oversubscription
    return found


def max_min(demanded: Sequence[Mapping[str, float]], capacity: Mapping[str, float]) -> Rates:
    """Return the rate of each group, in [0, 1].

    No group could be faster without one that is not faster becoming slower.

    :param demanded: of each group, what it sends over links at rate 1, above 0; a group without links has rate 1
    :param capacity: of all links, above 0, in the same unit
    :raises InvalidValueError: a demand or a capacity is not above 0, or not finite
    :raises KeyError: a link has no capacity
    """
    links = {link: at for at, link in enumerate(sorted({one for each in demanded for one in each}))}
    rates = np.ones(len(demanded))
    if not links:
        return rates
    loads = np.zeros((len(demanded), len(links)))
    for group, each in enumerate(demanded):
        for link, load in each.items():
            loads[group, links[link]] = load
    room = np.array([capacity[link] for link in links], np.float64)
    given = np.array([load for each in demanded for load in each.values()], np.float64)
    if not (np.isfinite(room).all() and np.isfinite(given).all() and min(*room, *given) > 0):
        raise InvalidValueError("demands and capacities", "0 or less, or not finite", "above 0")
    return filled(loads, room)


def alone(demanded: Mapping[str, float], capacity: Mapping[str, float]) -> float:
    """Return the rate of a group that has the links alone, as :func:`max_min` would.

    :param demanded: what it sends over links at rate 1, above 0
    :param capacity: of these links, above 0, in the same unit
    """
    return min(1.0, *(capacity[link] / load for link, load in demanded.items()))


def filled(loads: Rates, room: Rates) -> Rates:
    """Return the rate of each group, in [0, 1], by progressive filling.

    :param loads: what each group sends over each link at rate 1, 0 or more, groups x links
    :param room: what each link passes, above 0, in the same unit
    """
    groups, links = loads.shape
    rates = np.ones(groups)
    senders, used = np.nonzero(loads)
    sent = loads[senders, used]
    active = np.zeros(groups, np.bool_)
    active[senders] = True
    while len(senders):  # of what is sent by groups that still speed up
        rising = np.bincount(used, sent, links)
        left = room - rates[~active] @ loads[~active]
        at_full = np.divide(left, rising, out=np.full(links, np.inf), where=rising > 0)
        rate = max(0.0, min(1.0, float(at_full.min())))
        full = at_full <= rate * (1.0 + _EQUAL)
        stopped = active.copy()
        if rate < 1.0:
            stopped[:] = False
            stopped[senders[full[used]]] = True
        rates[stopped] = rate
        active &= ~stopped
        going_on = active[senders]
        senders, used, sent = senders[going_on], used[going_on], sent[going_on]
    return rates
