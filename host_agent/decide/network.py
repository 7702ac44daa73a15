# SPDX-License-Identifier: Apache-2.0
"""How much each server uses the network: its class by bytes in windows (Jokanović, section 3.2). Pure.

A host does not see to whom its servers send. What leaves the leaf is estimated from where their peers are, as if each
sent to all alike: bytes times (N - n) over (N - 1), of N peers with n on the leaf. Without peers that are known all
bytes count as if they left it, so that a class is rather too high than too low. What a server sends and what it
receives cross the uplinks in different directions; the larger of both counts. A new class must be there for two windows
in a row, so that one burst changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from host_agent.model.network import TrafficBytes
from nova_numa_ext.policy.network.use import DEFAULT_THRESHOLDS, UseThresholds, class_of
from placement_traits.names import NetClass

_MBIT: Final = 1e6 / 8


@dataclass(frozen=True, slots=True)
class PeersByLevel:
    """How many servers there are on the networks of one, itself included.

    :param everywhere: all of them
    :param on_leaf: on hosts of its leaf
    :param in_pod: on hosts below the node above its leaf
    """

    everywhere: int
    on_leaf: int
    in_pod: int

    def beyond(self, near: int) -> float:
        """Return the share of a server's traffic that goes to others than so many near ones, in [0, 1]."""
        if self.everywhere < 2:  # to no peer: all that is known is that it goes somewhere
            return 1.0
        return min(1.0, max(0.0, (self.everywhere - near) / (self.everywhere - 1)))


@dataclass(frozen=True, slots=True)
class LevelTraffic:
    """What of a server's traffic crosses a level of the network, in the last window.

    :param level: ``server``: all; ``leaf``: leaves the leaf; ``pod``: leaves the node above it
    :param mbps: Mbit/s, the larger one of both directions
    :param estimated: it was reckoned and not counted
    """

    level: str
    mbps: float
    estimated: bool


def by_level(mbps: float, peers: PeersByLevel | None) -> tuple[LevelTraffic, ...]:
    """Return what crosses each level, each at most as much as the one before (S-7).

    :param mbps: that the server's interfaces count
    :param peers: None: not known, and nothing is reckoned
    """
    counted = LevelTraffic("server", mbps, estimated=False)
    if peers is None:
        return (counted,)
    return (
        counted,
        LevelTraffic("leaf", mbps * peers.beyond(peers.on_leaf), estimated=True),
        LevelTraffic("pod", mbps * peers.beyond(peers.in_pod), estimated=True),
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is known of a server.

    :param counted: at the end of the last window
    :param net_class: that is published, None before the first window has ended
    :param next_class: that the last window had, where it is another one
    :param levels: of the last window
    """

    counted: TrafficBytes
    net_class: NetClass | None = None
    next_class: NetClass | None = None
    levels: tuple[LevelTraffic, ...] = ()


class IntensityClasses:
    """Classes of servers.

    :param share_mbps: Mbit/s of which the utilisation is a share
    :param window_s: length of a window
    """

    def __init__(
        self, share_mbps: float, window_s: float, thresholds: UseThresholds = DEFAULT_THRESHOLDS
    ) -> None:
        self._share_mbps = share_mbps
        self._window_s = window_s
        self._thresholds = thresholds
        self._seen: Mapping[str, _Seen] = {}
        self._began_s: float | None = None

    def due(self, now_s: float) -> bool:
        """Tell whether a window has ended; the first one begins at once."""
        return self._began_s is None or now_s - self._began_s >= self._window_s

    def take(
        self,
        counted: Mapping[str, TrafficBytes],
        now_s: float,
        peers: Mapping[str, PeersByLevel] | None = None,
    ) -> None:
        """End a window.

        :param counted: of each server; one that is missing is forgotten
        :param now_s: monotonic clock
        :param peers: of the servers of which they are known
        """
        took_s = 0.0 if self._began_s is None else now_s - self._began_s
        self._began_s = now_s
        known = peers or {}
        self._seen = {
            uuid: self._next(uuid, after, took_s, known.get(uuid))
            for uuid, after in counted.items()
        }

    @property
    def classes(self) -> Mapping[str, NetClass]:
        """Class of each server of which a window is known."""
        return {uuid: each.net_class for uuid, each in self._seen.items() if each.net_class}

    @property
    def levels(self) -> Mapping[str, tuple[LevelTraffic, ...]]:
        """What crosses each level of each server of which a window is known."""
        return {uuid: each.levels for uuid, each in self._seen.items() if each.levels}

    def _next(
        self, uuid: str, after: TrafficBytes, took_s: float, peers: PeersByLevel | None
    ) -> _Seen:
        seen = self._seen.get(uuid)
        if seen is None or took_s <= 0:
            return _Seen(after)
        sent, received = after.sent - seen.counted.sent, after.received - seen.counted.received
        if min(sent, received) < 0:  # its interfaces are others
            return _Seen(after, seen.net_class, seen.next_class)
        levels = by_level(max(sent, received) / _MBIT / took_s, peers)
        leaving = levels[1] if len(levels) > 1 else levels[0]
        found = class_of((None, leaving.mbps / self._share_mbps), self._thresholds)
        if seen.net_class is None or found in (seen.net_class, seen.next_class):
            return _Seen(after, found, levels=levels)
        return _Seen(after, seen.net_class, found, levels)
