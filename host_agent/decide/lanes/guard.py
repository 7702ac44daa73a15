# SPDX-License-Identifier: Apache-2.0
"""When lanes are given up: who overwrites them twice in ten minutes means it, and we do not fight."""

from collections import deque
from typing import Final

from host_agent.decide.lanes.terms import LaneTerm
from placement_traits.reason import Reason

MOST: Final = 2
WITHIN_S: Final = 600.0


class LaneGuard:
    """Counts how often the lanes of an uplink were overwritten or removed by others.

    :param device: the uplink
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._seen: deque[float] = deque(maxlen=MOST)

    def overwritten(self, now_s: float) -> Reason | None:
        """Count one more; return why lanes are to be withdrawn, None: they may be made once more.

        :param now_s: monotonic clock
        """
        self._seen.append(now_s)
        if len(self._seen) == MOST and now_s - self._seen[0] <= WITHIN_S:
            return Reason(LaneTerm.OVERWRITTEN, MOST, WITHIN_S, self._device)
        return None
