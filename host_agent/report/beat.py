# SPDX-License-Identifier: Apache-2.0
"""When the agent beats in Placement: slowly, and at a moment that other agents do not share."""

import random as random_module
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from placement_traits.beats import EVERY_MINUTES, PERMILLE, SPREAD


class Writer(Protocol):
    """What writes beats: :class:`placement_traits.beats.BeatWriter`."""

    def age_minutes(self) -> float | None:
        """Return how old the beat in Placement is, None when there is none."""

    def beat(self, withheld_permille: int | None) -> None:
        """Write the present minute."""


class CostsByServer(Protocol):
    """What writes costs by server: :class:`placement_traits.server_costs.CostWriter`."""

    def write(self, permille: Mapping[str, int]) -> None:
        """Write the part that was withheld for the sake of each."""


class NoCosts:
    """Costs are not written by server."""

    def write(self, permille: Mapping[str, int]) -> None:
        """Write nothing."""


class Paid(NamedTuple):
    """Sums that only grow, but where a server has gone.

    :param seconds: that best-effort servers ran
    :param withheld_s: seconds of their whole bandwidth that were withheld
    :param for_server_s: the part of these by the latency-critical server for whose sake they were
    """

    seconds: float = 0.0
    withheld_s: float = 0.0
    for_server_s: Mapping[str, float] = MappingProxyType({})


class Beat:
    """Beats when it is due; an agent that was started again goes on with the beat of the one before.

    :param writer: writes it
    :param costs: returns what best-effort servers have paid so far
    :param by_server: writes it by latency-critical server
    :param clock: monotonic seconds: the time of the day may jump
    :param random: uniform in [0, 1)
    """

    def __init__(
        self,
        writer: Writer,
        *,
        costs: Callable[[], Paid] = Paid,
        by_server: CostsByServer | None = None,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._writer = writer
        self._costs = costs
        self._by_server = by_server or NoCosts()
        self._before = costs()
        self._unwritten: Mapping[str, int] | None = None
        self._clock = clock
        self._random = random
        self._due_s: float | None = None

    def turn(self) -> None:
        """Beat if it is time; what servers cost follows the beat, and is no reason for another one.

        :raises NumaExtError: Placement does not take the one or the other now; the next turn attempts that again
        """
        now = self._clock()
        if self._due_s is None:
            age = self._writer.age_minutes()
            left = 0.0 if age is None or age < 0 else self._interval_s() - 60 * age
            self._due_s = now + left
        if now >= self._due_s:
            paid, before = self._costs(), self._before
            seconds = paid.seconds - before.seconds

            def part(withheld_s: float) -> int:
                return round(PERMILLE * withheld_s / seconds) if seconds > 0 else 0

            whole = part(paid.withheld_s - before.withheld_s)
            self._writer.beat(whole if seconds > 0 else None)
            self._unwritten = {
                server: part(withheld_s - before.for_server_s.get(server, 0.0))
                for server, withheld_s in paid.for_server_s.items()
            }
            self._before = paid
            self._due_s = now + self._interval_s()
        if self._unwritten is not None:
            self._by_server.write(self._unwritten)
            self._unwritten = None

    def _interval_s(self) -> float:
        return 60 * EVERY_MINUTES * (1 + SPREAD * (2 * self._random() - 1))
