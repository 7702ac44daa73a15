# SPDX-License-Identifier: Apache-2.0
"""Who uses the memory of a NUMA node most: what bandwidth monitoring (MBM) tells about it.

MBM knows two figures per server: traffic to the memory of its own nodes, and all of it. With two nodes the difference
is the traffic to the other one; with more, remote traffic is distributed by the pages on each node: an estimate.

Source: Gureya 2021, algorithm 4, line 6.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from host_agent.model.pages import Shares

NodeBandwidth: TypeAlias = Mapping[int, Mapping[int, float]]
"""Memory node -> worker node -> bandwidth that the worker's threads get from it, any unit, the same everywhere."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Memory traffic of one server in the near past.

    :param local_mbps: to the nodes its CPUs belong to, MB/s
    :param total_mbps: all, MB/s
    """

    local_mbps: float
    total_mbps: float


def traffic_at(
    nodes: Collection[int], home: Collection[int], shares: Shares, traffic: Traffic
) -> float:
    """Return a server's traffic to some memory nodes, MB/s.

    :param nodes: memory nodes
    :param home: nodes of its CPUs
    :param shares: node -> share of its pages
    :param traffic: what MBM shows
    """
    remote = max(0.0, traffic.total_mbps - traffic.local_mbps)
    there = _part(nodes, shares, [node for node in shares if node in home])
    elsewhere = _part(nodes, shares, [node for node in shares if node not in home])
    return there * traffic.local_mbps + elsewhere * remote


def _part(nodes: Collection[int], shares: Shares, among: Iterable[int]) -> float:
    """Share of the pages on ``among`` that is on ``nodes``."""
    chosen = tuple(among)
    total = sum(shares[node] for node in chosen)
    return sum(shares[node] for node in chosen if node in nodes) / total if total > 0 else 0.0
