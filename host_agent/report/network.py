# SPDX-License-Identifier: Apache-2.0
"""How much servers use the network, for Prometheus and the journal: bytes, levels, and the class of each (F-003-24).

Bytes of interfaces are counted. What of them leaves the leaf, and the node above it, is estimated from where the peers
of a server are, and marked so.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from host_agent.conf.network import NetworkUseOptions
from host_agent.decide.network import IntensityClasses, PeersByLevel
from host_agent.model.journal import ActionJournal, Entry, Result
from host_agent.model.network import TrafficBytes
from host_agent.model.round import Round
from host_agent.observe.network import traffic
from host_agent.report.metrics import Sample
from host_agent.util.last_answer import LastAnswer
from placement_traits.leaf_neighbours import LeafNeighbours
from placement_traits.names import NetClass

PEERS_EVERY_S: Final = 600.0


class KnownPeers:
    """Where the peers of this host's servers are, as far as Neutron and Placement say it; no round waits for them.

    :param ask: returns ports by host of each tap's network, and this host's neighbours
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        ask: Callable[[], tuple[Mapping[str, Mapping[str, int]], LeafNeighbours | None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._last = LastAnswer("network-peers", ask)
        self._clock = clock
        self._due_s = 0.0

    def of(self, interfaces: tuple[str, ...]) -> PeersByLevel | None:
        """Return those of a server with some interfaces; None where they are not known."""
        ports, near = self._last.answer or ({}, None)
        there = [ports[name] for name in interfaces if name in ports]
        if near is None or not there:
            return None

        return PeersByLevel(
            sum(sum(of_host.values()) for of_host in there),
            sum(_on(near.leaf, of_host) for of_host in there),
            sum(_on(near.pod, of_host) for of_host in there),
        )

    def look(self) -> None:
        """Have them asked for again where it is time to."""
        if self._clock() >= self._due_s:
            self._due_s = self._clock() + PEERS_EVERY_S
            self._last.ask()


def _on(hosts: frozenset[str], ports: Mapping[str, int]) -> int:
    """Return the ports on some hosts; nova may know these by their full names, and Neutron by the short ones."""
    known = hosts | {host.partition(".")[0] for host in hosts}
    return sum(
        count for host, count in ports.items() if host in known or host.partition(".")[0] in hosts
    )


class NetworkUse:
    """A :class:`~host_agent.control.agent.Listener` that has metrics.

    :param options: the operator's
    :param sys: where sysfs is
    :param journal: gets each new class
    :param peers: of servers; None: nothing is estimated
    """

    def __init__(
        self,
        options: NetworkUseOptions,
        sys: Path,
        journal: ActionJournal,
        peers: KnownPeers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._classified = options.uplink_share_mbps is not None
        self._classes = IntensityClasses(options.uplink_share_mbps or 1, options.window_s)
        self._sys = sys
        self._journal = journal
        self._peers = peers
        self._clock = clock
        self._written: Mapping[str, NetClass] = {}
        self._shown: tuple[Sample, ...] = ()

    def on_round(self, done: Round) -> None:
        """Count the bytes of all servers when a window has ended."""
        now_s = self._clock()
        if done.paused or not self._classes.due(now_s):
            return
        if self._peers:
            self._peers.look()
        counted: dict[str, TrafficBytes] = {}
        titles: dict[str, str] = {}
        peers: dict[str, PeersByLevel] = {}
        for guest in done.observation.guests:
            interfaces = guest.workload.domain.interfaces
            found = traffic(self._sys, interfaces)
            if found is None:
                continue
            counted[guest.uuid], titles[guest.uuid] = found, guest.workload.title
            if self._peers and (known := self._peers.of(interfaces)):
                peers[guest.uuid] = known
        self._classes.take(counted, now_s, peers)
        self._shown = tuple(self._made(counted, titles))
        if self._classified:
            self._write(titles)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the last window."""
        yield from self._shown

    def _made(self, counted: dict[str, TrafficBytes], titles: dict[str, str]) -> Iterator[Sample]:
        for uuid, found in counted.items():
            labels = (uuid, titles[uuid])
            yield "numa_ext_server_network_bytes", (*labels, "sent"), found.sent
            yield "numa_ext_server_network_bytes", (*labels, "received"), found.received
        for uuid, levels in self._classes.levels.items():
            for each in levels:
                of_level = (uuid, titles[uuid], each.level, "yes" if each.estimated else "no")
                yield "numa_ext_server_network_level_mbps", of_level, each.mbps
        if self._classified:
            for uuid, net_class in self._classes.classes.items():
                yield "numa_ext_server_network_class", (uuid, titles[uuid], net_class.value), 1.0

    def _write(self, titles: Mapping[str, str]) -> None:
        """Write classes that are new into the journal."""
        found = self._classes.classes
        for uuid, net_class in found.items():
            if net_class is not self._written.get(uuid):
                measured = {
                    f"{each.level}_mbps": {"mbps": round(each.mbps, 1), "estimated": each.estimated}
                    for each in self._classes.levels.get(uuid, ())
                }
                what = {"class": net_class.value}
                entry = Entry("network_class", Result.NOTED, uuid, titles[uuid], what)
                self._journal.write(replace(entry, measured=measured))
        self._written = found
