# SPDX-License-Identifier: Apache-2.0
"""The fluid network link by link: what groups send over each single link of a fat tree, by its routes.

:mod:`.fluid` takes all links of a leaf upwards for one. Here each message takes one path, so two may meet on a link
while another is idle. The tree is an XGFT(h; m1 … mh; w1 … wh), hosts are numbered from 0 so that those of one subtree
stand together. A path goes up to the lowest level that both hosts are below, and down from there; which of the w_i
links it takes at level i is the routing's choice, and the way down follows from it::

    d-mod-k    floor(receiver / (w1 · … · w(i-1))) mod w_i: all that goes to one host goes one way down
    s-mod-k    the same with the sender
    random     any of them, once for each pair

Shifts (host n sends to n + k) meet nowhere under d-mod-k where the tree has as many links up as down (Zahavi: Fat-tree
routing and node ordering providing contention free traffic for MPI global collectives, 2012); a test says so here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

import numpy as np

from nova_numa_ext.simulator.network.fluid import Pattern
from placement_traits.errors import InvalidValueError

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

CAPACITY: Final = 1.0
"""Of every link, in links of a host."""


class Routing(StrEnum):
    """Which of several links a path takes."""

    D_MOD_K = "d_mod_k"
    S_MOD_K = "s_mod_k"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class LinkTree:
    """A fat tree.

    :param children: m1 … mh, of a node of each level
    :param parents: w1 … wh, of a node of the level below
    :raises InvalidValueError: the lists are empty, not as long as each other, or have numbers below 1
    """

    children: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        same = len(self.children) == len(self.parents)
        if not (same and self.children and min(*self.children, *self.parents) >= 1):
            given = (self.children, self.parents)
            raise InvalidValueError(
                "tree", given, "numbers >= 1, of children as many as of parents"
            )

    @property
    def hosts(self) -> int:
        """Hosts of the tree."""
        return int(np.prod(self.children))


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """Who sends to whom while nothing slows the group, F flows.

    :param senders: hosts, F
    :param receivers: hosts, F; none sends to itself
    :param size: of each flow, in links of a host
    """

    senders: Numbers
    receivers: Numbers
    size: float


def flows(hosts: Sequence[int], pattern: Pattern) -> Flows:
    """Return what a group sends; a group of one host sends nothing.

    :param hosts: of the group, in the order of its ranks, each once
    """
    ranks = np.array(hosts, np.int64)
    if len(ranks) < 2:
        return Flows(ranks[:0], ranks[:0], 0.0)
    if pattern is Pattern.RING:
        return Flows(ranks, np.roll(ranks, -1), 1.0)
    if pattern is Pattern.HALVES:
        half = len(ranks) // 2
        first, second = ranks[:half], ranks[half : 2 * half]
        return Flows(np.concatenate([first, second]), np.concatenate([second, first]), 1.0)
    senders, receivers = np.repeat(ranks, len(ranks)), np.tile(ranks, len(ranks))
    others = senders != receivers
    return Flows(senders[others], receivers[others], 1.0 / (len(ranks) - 1))


def loads(tree: LinkTree, sent: Flows, routing: Routing, seed: int = 0) -> Mapping[str, float]:
    """Return what a group sends over each link that it uses, in links of a host.

    :param seed: of random routes
    :return: by link: ``up`` or ``down``, the level of its upper end, and its number there
    :raises InvalidValueError: a host is none of the tree's
    """
    ends = (sent.senders, sent.receivers)
    if len(sent.senders) and not (
        0 <= min(map(np.min, ends)) <= max(map(np.max, ends)) < tree.hosts
    ):
        raise InvalidValueError("hosts of flows", "others", f"0 to {tree.hosts - 1}")
    chance = np.random.default_rng(seed)
    found: dict[str, float] = {}
    path = np.zeros(len(sent.senders), np.int64)  # links taken so far, as one number
    below = ways = 1
    for level, (children, parents) in enumerate(
        zip(tree.children, tree.parents, strict=True), start=1
    ):
        port = _port(sent, routing, ways, parents, chance)
        leaves = ends[0] // below != ends[1] // below
        for direction, hosts in zip(("up", "down"), ends, strict=True):
            links = ((hosts // below * ways + path) * parents + port)[leaves]
            numbers, counts = np.unique(links, return_counts=True)
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                found[f"{direction}{level}.{number}"] = count * sent.size
        path = path * parents + port
        ways *= parents
        below *= children
    return found


def _port(
    sent: Flows, routing: Routing, ways: int, parents: int, chance: np.random.Generator
) -> Numbers:
    """Return the link that each flow takes at a level, 0 to w_i - 1."""
    if routing is Routing.RANDOM:
        return chance.integers(0, parents, len(sent.senders))
    key = sent.receivers if routing is Routing.D_MOD_K else sent.senders
    return key // ways % parents
