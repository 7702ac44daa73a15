# SPDX-License-Identifier: Apache-2.0
"""The colour of the system: how far the latencies of its latency-critical servers are from their objectives.

======== ==========================================================
red      above the objective
yellow   below, by less than 5 %: about to be violated
grey     between
green    at least 20 % below
unknown  too few samples: silence is never good news
======== ==========================================================

The worst server gives the system its colour, in the order red, yellow, unknown, grey, green; the *location* is where
the red and yellow ones live.

Source: Gureya 2021, section 5.3 (function evaluateSLO) and 5.5 (thresholds).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from host_agent.conf.balm import Thresholds
from host_agent.model.latency import LcServer

_ROUNDING = 1e-9


class Colour(IntEnum):
    """Better to worse."""

    GREEN = 0
    GREY = 1
    UNKNOWN = 2
    YELLOW = 3
    RED = 4

    @property
    def good(self) -> bool:
        """Every objective is known to be met with some room."""
        return self <= Colour.GREY

    @property
    def bad(self) -> bool:
        """Some objective is violated or about to be."""
        return self >= Colour.YELLOW


@dataclass(frozen=True, slots=True)
class SloVerdict:
    """The state of all objectives together.

    :param colour: of the worst server
    :param location: nodes where objectives are violated or about to be
    :param violated: UUIDs of the servers that are yellow or red
    :param red: UUIDs of the servers that are red
    :param unknown: UUIDs of the servers whose latency is unknown
    :param ratios: UUID -> ratio of latency to objective, where known
    :param sure: a violation is beyond chance, so waiting for more samples would tell nothing
    """

    colour: Colour
    location: frozenset[int] = frozenset()
    violated: frozenset[str] = frozenset()
    red: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    ratios: Mapping[str, float] = field(default_factory=dict)
    sure: bool = False

    def worst(self, servers: Iterable[str]) -> float:
        """Return the highest ratio among some servers; 0.0 when none is known."""
        return max((self.ratios.get(uuid, 0.0) for uuid in servers), default=0.0)


def colour_of(ratio: float | None, thresholds: Thresholds) -> Colour:
    """Return the colour of one server.

    :param ratio: latency over objective, None when unknown
    """
    if ratio is None:
        return Colour.UNKNOWN
    if ratio > 1.0 + _ROUNDING:
        return Colour.RED
    if ratio > 1.0 - thresholds.yellow + _ROUNDING:
        return Colour.YELLOW
    return Colour.GREEN if ratio <= 1.0 - thresholds.green + _ROUNDING else Colour.GREY


def colours(servers: Iterable[LcServer], thresholds: Thresholds) -> dict[str, Colour]:
    """Return UUID -> colour of each server."""
    return {server.uuid: colour_of(server.ratio, thresholds) for server in servers}


def evaluate(servers: Iterable[LcServer], thresholds: Thresholds) -> SloVerdict:
    """Return the state of all objectives; without servers it is green."""
    found = {server: colour_of(server.ratio, thresholds) for server in servers}
    bad = [server for server, colour in found.items() if colour.bad]
    return SloVerdict(
        colour=max(found.values(), default=Colour.GREEN),
        location=frozenset().union(*(server.nodes for server in bad)),
        violated=frozenset(server.uuid for server in bad),
        red=frozenset(server.uuid for server, colour in found.items() if colour is Colour.RED),
        unknown=frozenset(s.uuid for s, colour in found.items() if colour is Colour.UNKNOWN),
        ratios={server.uuid: ratio for server in found if (ratio := server.ratio) is not None},
        sure=any(server.reading is not None and server.reading.surely_violated for server in bad),
    )
