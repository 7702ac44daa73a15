# SPDX-License-Identifier: Apache-2.0
"""What a best-effort server keeps whatever latency-critical ones paid for: a mean level over each sliding hour. Pure.

Time below the full level is counted in minutes. A server whose next minute at the strongest throttle might bring the
mean of its last hour below the floor is *spared*: it is not throttled at all until a tenth of what may be taken of it
has grown back. So the floor holds over every hour, and a server is not throttled and freed by the minute.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from host_agent.model.levels import FULL

MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0
_MINUTES: Final = round(HOUR_S / MINUTE_S)
_GROWN_BACK: Final = 0.1


@dataclass(frozen=True, slots=True)
class LevelHour:
    """How far one server was below the full level in the last hour.

    :param minutes: (number of the minute, per cent times seconds below the full level), oldest first, only those with
        any; the last may go on
    :param total: their sum
    """

    minutes: tuple[tuple[int, float], ...] = ()
    total: float = 0.0

    @property
    def mean_level(self) -> float:
        """Mean level, per cent."""
        return max(0.0, FULL - self.total / HOUR_S)

    def until(self, now_s: float) -> "LevelHour":
        """Return the minutes that are not yet to come."""
        past = tuple(one for one in self.minutes if one[0] <= now_s / MINUTE_S)
        return LevelHour(past, sum(deficit for _, deficit in past))

    def after(self, now_s: float, seconds: float, level: int) -> "LevelHour":
        """Return the hour until now.

        :param now_s: host's monotonic clock, seconds
        :param seconds: how long the level was in effect until now
        """
        minute = math.floor(now_s / MINUTE_S)
        found, total = self.minutes, self.total
        # One minute more than an hour: the oldest is counted as long as any of it may be within the hour.
        kept = tuple(one for one in found if one[0] >= minute - _MINUTES)
        if len(kept) < len(found):
            found, total = kept, sum(deficit for _, deficit in kept)
        deficit = (FULL - level) * min(seconds, HOUR_S)
        if deficit <= 0.0:
            return self if found is self.minutes else replace(self, minutes=found, total=total)
        if found and found[-1][0] == minute:
            last = found[-1][1] + deficit
            return LevelHour((*found[:-1], (minute, last)), total + deficit)
        return LevelHour((*found, (minute, deficit)), total + deficit)


def spared(
    hours: Iterable[tuple[str, LevelHour]], before: frozenset[str], floor_percent: float
) -> frozenset[str]:
    """Return the servers that may not be throttled now.

    :param hours: best-effort server and how far it was below the full level in the last hour
    :param before: those that were spared until now
    :param floor_percent: least mean level over an hour
    """
    allowed = (FULL - floor_percent) * HOUR_S
    reached = allowed - FULL * MINUTE_S
    grown_back = reached - _GROWN_BACK * allowed
    return frozenset(
        uuid for uuid, hour in hours if hour.total > (grown_back if uuid in before else reached)
    )
