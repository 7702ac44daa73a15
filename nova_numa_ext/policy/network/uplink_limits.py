# SPDX-License-Identifier: Apache-2.0
"""What best-effort servers of a leaf's hosts may send while latency-critical ones there wait for its uplinks. Pure.

Hosts say what their servers send; nothing of it is believed further than it can do harm:

* what latency-critical servers are kept is bounded by a share of the uplinks, whatever hosts ask for;
* the rest is best-effort servers', one limit for each host, by max-min fairness: a host that says more than it sends
  gets its equal part and no more, so that no host has less than the rest over the hosts that say anything.

What is asked for is given at once, and taken back step by step when no host asks any more.
"""

from collections.abc import Iterable
from typing import Final

from placement_traits.leaf_limits import LeafLimit, NetworkDemand

_HELD: Final = 0.9
"""Of its limit: a host that sends as much would send more."""
_STEP: Final = 1.25
"""Factor of a limit that no host asks for any more, each time."""


def limit(
    uplink_mbps: int,
    demands: Iterable[NetworkDemand],
    before: LeafLimit | None,
    most_kept: float,
) -> LeafLimit | None:
    """Return what is to be said of a leaf; None: nothing is kept, and best-effort servers may as much as goes.

    :param uplink_mbps: of the leaf's uplinks together, >= 1
    :param demands: of its hosts
    :param before: what was said so far
    :param most_kept: share of the uplinks that is kept at most, in (0, 1)
    """
    said = tuple(demands)
    kept = min(sum(max(0, each.asked) for each in said), int(most_kept * uplink_mbps))
    if kept <= 0:
        if before is None:
            return None
        wider = int(before.best_effort * _STEP) + 1
        return LeafLimit(0, wider) if wider < uplink_mbps else None
    held = before.best_effort if before else None
    rates = [each.best_effort for each in said if each.best_effort > 0]
    return LeafLimit(kept, max(1, _level(uplink_mbps - kept, rates, held)))


def _level(room: int, rates: Iterable[int], held: int | None) -> int:
    """Return the highest limit for each with which all together keep to the room (progressive filling).

    :param rates: that hosts send
    :param held: their limit so far, None without one; a rate near it says nothing of what a host would send
    """
    most = [room if held is not None and rate >= _HELD * held else rate for rate in rates]
    left, waiting = room, len(most)
    for rate in sorted(most):
        if rate * waiting >= left:
            return left // waiting
        left, waiting = left - rate, waiting - 1
    return room
