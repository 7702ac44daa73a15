# SPDX-License-Identifier: Apache-2.0
"""When the agent beats in Placement: slowly, and at a moment that other agents do not share."""

import random as random_module
import time
from collections.abc import Callable
from typing import Protocol

from placement_traits.beats import EVERY_MINUTES, SPREAD


class Writer(Protocol):
    """What writes beats: :class:`placement_traits.beats.BeatWriter`."""

    def age_minutes(self) -> float | None:
        """Return how old the beat in Placement is, None when there is none."""

    def beat(self, withheld_permille: int | None) -> None:
        """Write the present minute."""


class Beat:
    """Beats when it is due; an agent that was started again goes on with the beat of the one before.

    :param writer: writes it
    :param costs: returns two sums: seconds that best-effort servers ran, and seconds of their whole bandwidth that were
        withheld
    :param clock: monotonic seconds: the time of the day may jump
    :param random: uniform in [0, 1)
    """

    def __init__(
        self,
        writer: Writer,
        *,
        costs: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._writer = writer
        self._costs = costs
        self._before = costs()
        self._clock = clock
        self._random = random
        self._due_s: float | None = None

    def turn(self) -> None:
        """Beat if it is time.

        :raises NumaExtError: Placement does not take it now; the next turn attempts it again
        """
        now = self._clock()
        if self._due_s is None:
            age = self._writer.age_minutes()
            left = 0.0 if age is None or age < 0 else self._interval_s() - 60 * age
            self._due_s = now + left
        if now >= self._due_s:
            sums = self._costs()
            seconds, withheld = (
                now - before for now, before in zip(sums, self._before, strict=True)
            )
            self._writer.beat(round(1000 * withheld / seconds) if seconds > 0 else None)
            self._before = sums
            self._due_s = now + self._interval_s()

    def _interval_s(self) -> float:
        return 60 * EVERY_MINUTES * (1 + SPREAD * (2 * self._random() - 1))
