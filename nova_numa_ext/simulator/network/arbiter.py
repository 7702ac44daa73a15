# SPDX-License-Identifier: Apache-2.0
"""Which lane sends next at a port of InfiniBand: two lists with weights, one above the other.

The management lane goes before all others. The high list goes before the low list, but when it has sent as much as its
limit while a lane of the low list waits, the low list sends one packet. Within a list it is a weighted round robin: a
lane goes on while it has credit left, then the next one of the list has its weight. A lane may be in both lists.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from placement_traits.errors import InvalidValueError

MANAGEMENT = 15
"""The lane of subnet management."""

_HIGHEST = 14
_HEAVIEST = 255


@dataclass(frozen=True, slots=True)
class ListedLane:
    """An entry of a list.

    :param lane: 0 to 14
    :param weight: units of data that it may send in a row, 1 to 255
    """

    lane: int
    weight: int


@dataclass(slots=True)
class _Turns:
    """A weighted round robin.

    :param at: whose turn it is
    :param credit: that it has left
    """

    entries: Sequence[ListedLane]
    at: int = -1
    credit: int = 0

    def next(self, waiting: Collection[int]) -> int | None:
        if not (self.credit and self.entries[self.at].lane in waiting):
            places = (self.at + step for step in range(1, len(self.entries) + 1))
            found = (place % len(self.entries) for place in places)
            at = next((each for each in found if self.entries[each].lane in waiting), None)
            if at is None:
                return None
            self.at, self.credit = at, self.entries[at].weight
        self.credit -= 1
        return self.entries[self.at].lane


class LaneArbiter:
    """Chooses lanes, packet by packet.

    :param high: the list that goes first
    :param low: the other one
    :param limit: packets that the high list may send while one of the low list waits, >= 1; None: without end, by which
        the low list may starve
    :raises InvalidValueError: a lane, a weight or the limit has no meaning
    """

    def __init__(
        self, high: Sequence[ListedLane], low: Sequence[ListedLane], limit: int | None
    ) -> None:
        for entry in (*high, *low):
            if not (0 <= entry.lane <= _HIGHEST and 1 <= entry.weight <= _HEAVIEST):
                raise InvalidValueError(
                    "lane and weight",
                    (entry.lane, entry.weight),
                    f"0 to {_HIGHEST}, 1 to {_HEAVIEST}",
                )
        if limit is not None and limit < 1:
            raise InvalidValueError("limit of the high list", limit, "1 or more")
        self._high, self._low, self._limit = _Turns(high), _Turns(low), limit
        self._low_lanes = frozenset(entry.lane for entry in low)
        self._sent_high = 0

    def chosen(self, waiting: Collection[int]) -> int | None:
        """Return the lane that sends a packet now; None: no lane of a list waits.

        :param waiting: lanes that have a packet
        """
        if MANAGEMENT in waiting:
            return MANAGEMENT
        low_waits = not self._low_lanes.isdisjoint(waiting)
        if not (low_waits and self._limit is not None and self._sent_high >= self._limit):
            lane = self._high.next(waiting)
            if lane is not None:
                self._sent_high = self._sent_high + 1 if low_waits else 0
                return lane
        self._sent_high = 0
        return self._low.next(waiting)

    @property
    def longest_wait(self) -> int | None:
        """Packets of others that a lane of the low list sees at most before one of its own; None: there is no bound.

        Those of the management lane, which are few, are not counted.
        """
        if self._limit is None and self._high.entries:
            return None
        before = self._limit if self._high.entries and self._limit else 0
        return (before + 1) * sum(entry.weight for entry in self._low.entries)
