# SPDX-License-Identifier: Apache-2.0
"""How much each server uses the network: its class by bytes in windows (Jokanović, section 3.2). Pure.

A host does not know to whom its servers send: all bytes count as if they left the leaf, so a class is an estimate and
rather too high than too low. What a server sends and what it receives cross the uplinks in different directions; the
larger of both counts. A new class must be there for two windows in a row, so that one burst changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from host_agent.model.network import TrafficBytes
from nova_numa_ext.policy.network.use import DEFAULT_THRESHOLDS, UseThresholds, class_of
from placement_traits.names import NetClass

_MBIT = 1e6 / 8


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is known of a server.

    :param counted: at the end of the last window
    :param net_class: that is published, None before the first window has ended
    :param next_class: that the last window had, where it is another one
    """

    counted: TrafficBytes
    net_class: NetClass | None = None
    next_class: NetClass | None = None


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

    def take(self, counted: Mapping[str, TrafficBytes], now_s: float) -> None:
        """End a window.

        :param counted: of each server; one that is missing is forgotten
        :param now_s: monotonic clock
        """
        took_s = 0.0 if self._began_s is None else now_s - self._began_s
        self._began_s = now_s
        self._seen = {uuid: self._next(uuid, after, took_s) for uuid, after in counted.items()}

    @property
    def classes(self) -> Mapping[str, NetClass]:
        """Class of each server of which a window is known."""
        return {uuid: each.net_class for uuid, each in self._seen.items() if each.net_class}

    def _next(self, uuid: str, after: TrafficBytes, took_s: float) -> _Seen:
        seen = self._seen.get(uuid)
        if seen is None or took_s <= 0:
            return _Seen(after)
        sent, received = after.sent - seen.counted.sent, after.received - seen.counted.received
        if min(sent, received) < 0:  # its interfaces are others
            return _Seen(after, seen.net_class, seen.next_class)
        utilisation = max(sent, received) / _MBIT / took_s / self._share_mbps
        found = class_of((utilisation, utilisation), self._thresholds)
        if seen.net_class is None or found in (seen.net_class, seen.next_class):
            return _Seen(after, found)
        return _Seen(after, seen.net_class, found)
