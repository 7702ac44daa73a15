# SPDX-License-Identifier: Apache-2.0
"""What a host asks for of the uplinks of its leaf, and how far it slows its own best-effort servers for others. Pure.

A host asks where an objective stays violated though nothing on the host is being tried: its servers may wait behind
those of other hosts. It asks for what its latency-critical servers send and a little more, never for more than what is
theirs of its own uplink. It goes on for a minute after the objective is met again; where it is violated again soon, for
twice as long the next time, up to half an hour. It gives up for ten minutes where asking has not helped in five.

What is asked of it as best-effort servers' host is held by the same :mod:`floor <.floor>` as any throttle: the mean of
each hour is never below it.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from host_agent.decide.slo import floor
from host_agent.decide.slo.floor import LevelHour
from host_agent.model.levels import FULL
from placement_traits.leaf_limits import LeafLimit

_AFTER_S: Final = 5.0
_KEEP_S: Final = 60.0
_KEEP_MOST_S: Final = 1800.0
_SOON_S: Final = 600.0
_MOST_S: Final = 300.0
_REST_S: Final = 600.0
_MORE: Final = 1.25
"""Who waits sends less than it would."""


@dataclass(frozen=True, slots=True)
class RoomRequest:
    """Whether a host asks.

    :param violated_s: since when an objective is violated and nothing is tried here, None while that is not so
    :param since_s: since when it asks in vain, None while it does not ask
    :param met_s: since when objectives are met while it asks, None while they are not
    :param rests_until_s: before that it does not ask again
    :param keep_s: for so long it goes on asking when objectives are met
    :param ended_s: when it ceased to ask because they were
    """

    violated_s: float | None = None
    since_s: float | None = None
    met_s: float | None = None
    rests_until_s: float = 0.0
    keep_s: float = _KEEP_S
    ended_s: float | None = None

    @property
    def asks(self) -> bool:
        """It does."""
        return self.since_s is not None

    def unwatched(self) -> "RoomRequest":
        """Return what holds while objectives are not watched: it does not ask, and what it has learnt stays."""
        return replace(self, violated_s=None, since_s=None, met_s=None)

    def after(self, now_s: float, *, violated: bool, idle: bool) -> "RoomRequest":
        """Return what holds now.

        :param violated: an objective of a server that sends over the uplink is, or is at risk
        :param idle: nothing is being tried on this host
        """
        since = self.violated_s if self.violated_s is not None else now_s
        state = replace(self, violated_s=since if violated and idle else None)
        if self.since_s is None:
            waited = state.violated_s is not None and now_s - state.violated_s >= _AFTER_S
            if not waited or now_s < self.rests_until_s:
                return state
            is_soon = self.ended_s is not None and now_s - self.ended_s < _SOON_S
            keep_s = min(2 * self.keep_s, _KEEP_MOST_S) if is_soon else _KEEP_S
            return replace(state, since_s=now_s, met_s=None, keep_s=keep_s)
        if not violated:
            met = self.met_s if self.met_s is not None else now_s
            if now_s - met >= self.keep_s:
                return replace(state, since_s=None, met_s=None, ended_s=now_s)
            return replace(state, since_s=now_s, met_s=met)
        if now_s - self.since_s >= _MOST_S:
            return replace(state, since_s=None, met_s=None, rests_until_s=now_s + _REST_S)
        return replace(state, met_s=None)


def asked_mbps(sent_mbps: float, speed_mbps: float, protected: float) -> int:
    """Return what a host asks for, Mbit/s.

    :param sent_mbps: by its latency-critical servers over the uplink
    :param speed_mbps: of the uplink
    :param protected: share of it that is theirs
    """
    return max(1, round(min(_MORE * sent_mbps, protected * speed_mbps)))


@dataclass(frozen=True, slots=True)
class LeafHold:
    """How far a host's best-effort servers are slowed for the sake of other hosts.

    :param mbps: what they may send together; None: as much as goes
    :param hour: how far that was below the uplink's speed in the last hour
    :param spared: they are not slowed for a while: the floor is reached
    :param seen_s: when that was decided
    """

    mbps: int | None = None
    hour: LevelHour = field(default_factory=LevelHour)
    spared: bool = False
    seen_s: float | None = None

    def after(
        self, now_s: float, reported: LeafLimit | None, speed_mbps: float, floor_percent: float
    ) -> "LeafHold":
        """Return what holds from now on.

        :param reported: of the leaf, None where nothing is
        :param speed_mbps: of the uplink
        :param floor_percent: least mean of an hour, per cent of the speed
        """
        passed = 0.0 if self.seen_s is None else max(0.0, now_s - self.seen_s)
        level = FULL if self.mbps is None else min(FULL, int(self.mbps / speed_mbps * FULL))
        hour = self.hour.after(now_s, passed, level)
        before = frozenset({""}) if self.spared else frozenset[str]()
        is_spared = bool(floor.spared([("", hour)], before, floor_percent))
        mbps = None
        if reported is not None and not is_spared and 0 < reported.best_effort < speed_mbps:
            mbps = reported.best_effort
        return LeafHold(mbps, hour, is_spared, now_s)
