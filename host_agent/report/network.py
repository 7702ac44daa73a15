# SPDX-License-Identifier: Apache-2.0
"""How much servers use the network, for Prometheus: bytes, and the class of each server (F-003-24)."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from host_agent.conf.network import NetworkUseOptions
from host_agent.decide.network import IntensityClasses
from host_agent.model.network import TrafficBytes
from host_agent.model.round import Round
from host_agent.observe.network import traffic
from host_agent.report.metrics import Sample


class NetworkUse:
    """A :class:`~host_agent.control.agent.Listener` that has metrics.

    :param options: the operator's
    :param sys: where sysfs is
    """

    def __init__(
        self, options: NetworkUseOptions, sys: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._classified = options.uplink_share_mbps is not None
        self._classes = IntensityClasses(options.uplink_share_mbps or 1, options.window_s)
        self._sys = sys
        self._clock = clock
        self._shown: tuple[Sample, ...] = ()

    def on_round(self, done: Round) -> None:
        """Count the bytes of all servers when a window has ended."""
        now_s = self._clock()
        if done.paused or not self._classes.due(now_s):
            return
        counted: dict[str, TrafficBytes] = {}
        titles: dict[str, str] = {}
        for guest in done.observation.guests:
            found = traffic(self._sys, guest.workload.domain.interfaces)
            if found is not None:
                counted[guest.uuid], titles[guest.uuid] = found, guest.workload.title
        self._classes.take(counted, now_s)
        self._shown = tuple(self._made(counted, titles))

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the last window."""
        yield from self._shown

    def _made(self, counted: dict[str, TrafficBytes], titles: dict[str, str]) -> Iterator[Sample]:
        for uuid, found in counted.items():
            labels = (uuid, titles[uuid])
            yield "numa_ext_server_network_bytes", (*labels, "sent"), found.sent
            yield "numa_ext_server_network_bytes", (*labels, "received"), found.received
        if self._classified:
            for uuid, net_class in self._classes.classes.items():
                yield "numa_ext_server_network_class", (uuid, titles[uuid], net_class.value), 1.0
