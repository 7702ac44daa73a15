# SPDX-License-Identifier: Apache-2.0
"""When an objective is violated: how far the latencies of latency-critical servers are from their objectives.

======== ====== ==========================================================
state    source
======== ====== ==========================================================
violated red    above the objective
at risk  yellow below, by less than 5 %: about to be violated
met      grey   between
ample    green  at least 20 % below
unknown         too few samples: silence is never good news
======== ====== ==========================================================

The worst server gives the host its state, in the order violated, at risk, unknown, met, ample; the *location* is where
the servers live that are violated or at risk.

Source: Gureya 2021, section 5.3 (function evaluateSLO, colours) and 5.5 (thresholds).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from host_agent.conf.slo import BalmOptions
from host_agent.model.latency import LcServer

_ROUNDING = 1e-9


class SloState(IntEnum):
    """Better to worse."""

    AMPLE = 0
    MET = 1
    UNKNOWN = 2
    AT_RISK = 3
    VIOLATED = 4

    @property
    def good(self) -> bool:
        """Every objective is known to be met with some room."""
        return self <= SloState.MET

    @property
    def bad(self) -> bool:
        """Some objective is violated or about to be."""
        return self >= SloState.AT_RISK


@dataclass(frozen=True, slots=True)
class SloVerdict:
    """The state of all objectives together.

    :param state: of the worst server
    :param location: nodes where objectives are violated or at risk
    :param endangered: UUIDs of the servers that are violated or at risk
    :param violated: UUIDs of the servers that are violated
    :param unknown: UUIDs of the servers whose latency is unknown
    :param ratios: UUID -> ratio of latency to objective, where known
    :param sure: a violation is beyond chance, so more samples would change nothing
    """

    state: SloState
    location: frozenset[int] = frozenset()
    endangered: frozenset[str] = frozenset()
    violated: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    ratios: Mapping[str, float] = field(default_factory=dict)
    sure: bool = False

    def worst(self, servers: Iterable[str]) -> float:
        """Return the highest ratio among some servers; 0.0 when none is known."""
        return max((self.ratios.get(uuid, 0.0) for uuid in servers), default=0.0)


def state_of(ratio: float | None, options: BalmOptions) -> SloState:
    """Return the state of one server.

    :param ratio: latency over objective, None when unknown
    """
    if ratio is None:
        return SloState.UNKNOWN
    if ratio > 1.0 + _ROUNDING:
        return SloState.VIOLATED
    if ratio > 1.0 - options.at_risk_slack + _ROUNDING:
        return SloState.AT_RISK
    return SloState.AMPLE if ratio <= 1.0 - options.ample_slack + _ROUNDING else SloState.MET


def states(servers: Iterable[LcServer], options: BalmOptions) -> dict[str, SloState]:
    """Return UUID -> state of each server."""
    return {server.uuid: state_of(server.ratio, options) for server in servers}


def evaluate(servers: Iterable[LcServer], options: BalmOptions) -> SloVerdict:
    """Return the state of all objectives; without servers it is ample."""
    found = {server: state_of(server.ratio, options) for server in servers}
    bad = [server for server, state in found.items() if state.bad]
    return SloVerdict(
        state=max(found.values(), default=SloState.AMPLE),
        location=frozenset().union(*(server.nodes for server in bad)),
        endangered=frozenset(server.uuid for server in bad),
        violated=frozenset(
            server.uuid for server, state in found.items() if state is SloState.VIOLATED
        ),
        unknown=frozenset(s.uuid for s, state in found.items() if state is SloState.UNKNOWN),
        ratios={server.uuid: ratio for server in found if (ratio := server.ratio) is not None},
        sure=any(server.reading is not None and server.reading.surely_violated for server in bad),
    )
