# SPDX-License-Identifier: Apache-2.0
"""A fabric as operators plan it: which host hangs on which leaf switch, and what is above the leafs.

The levels have operators' words, bottom up. With the usual two::

    train                 the fabric
    ├─ p1                 pod
    │  ├─ l001            leaf: compute001 … compute018
    │  └─ l002
    └─ p2 …

Where a host's adapters hang on several switches (rails), hosts with the same set of switches are one unit, and the
lowest level is that unit.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from placement_traits import names
from placement_traits.errors import InvalidValueError

MOST_HOSTS: Final = 100_000
MOST_LEVELS: Final = 4
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_LEVEL: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")
_NAMES_ALLOWED: Final = "1 to 100 letters, digits, '.', '_' and '-', a letter or digit at both ends"


class FabricKind(StrEnum):
    """What the switches speak."""

    ETHERNET = "ethernet"
    INFINIBAND = "infiniband"


class LeafLayout(StrEnum):
    """How a leaf's hosts are given to groups; its inventories in Placement say so.

    PARTITIONED: a block of a power of two that one group takes as a whole, and the rest.
    REMAINDER: one by one, for the last servers of large groups.
    WHOLE: one by one, for groups that fit in one leaf.
    """

    PARTITIONED = "partitioned"
    REMAINDER = "remainder"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class FabricNode:
    """A switch, or a group of switches, of one level.

    :param name: as operators call it
    :param level: one of the fabric's
    :param parent: the node of the next level that it hangs on, None at the highest level
    :param uplink_mbps: bandwidth of all its links upwards together, Mbit/s; None: not known
    """

    name: str
    level: str
    parent: str | None = None
    uplink_mbps: int | None = None


@dataclass(frozen=True, slots=True)
class Fabric:
    """A fabric; leafs of a pod stand together, and the order of the leafs is theirs in ``nodes``.

    :param name: as operators call it
    :param kind: what the switches speak
    :param levels: bottom up, 1 to 4
    :param nodes: by name
    :param hosts: leaf by compute node
    :param host_mbps: bandwidth of one host's links, Mbit/s; None: not known
    :param block_size: hosts of a leaf's block; None: the largest power of two that fits in most leafs
    :param nonblocking: leafs pass upwards all that their hosts send, so that several blocks may share one
    :raises InvalidValueError: this is no fabric; the sentence names the node
    """

    name: str
    kind: FabricKind
    levels: tuple[str, ...]
    nodes: Mapping[str, FabricNode]
    hosts: Mapping[str, str]
    host_mbps: int | None = None
    block_size: int | None = None
    nonblocking: bool = False
    _leafs: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _sizes: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_names(self)
        _check_nodes(self)
        _check_hosts(self)
        sizes = Counter(self.hosts.values())
        leafs = [name for name, node in self.nodes.items() if node.level == self.levels[0]]
        order: dict[str, int] = {}
        for leaf in leafs:
            for node in reversed(self.above(leaf)):
                order.setdefault(node, len(order))
        leafs.sort(key=lambda leaf: [order[node] for node in reversed(self.above(leaf))])
        object.__setattr__(self, "_leafs", tuple(leafs))
        object.__setattr__(self, "_sizes", MappingProxyType({leaf: sizes[leaf] for leaf in leafs}))
        _check_traits(self)
        _check_block(self)

    @property
    def leafs(self) -> tuple[str, ...]:
        """The leafs in their order."""
        return self._leafs

    @property
    def sizes(self) -> Mapping[str, int]:
        """Hosts by leaf."""
        return self._sizes

    def above(self, node: str) -> tuple[str, ...]:
        """Return the nodes above one, the nearest first; the fabric itself is none of them."""
        found = []
        parent = self.nodes[node].parent
        while parent is not None:
            found.append(parent)
            parent = self.nodes[parent].parent
        return tuple(found)

    @property
    def usual_size(self) -> int:
        """Hosts of most leafs, the larger number of two that are as frequent."""
        return max(Counter(self._sizes.values()).items(), key=lambda item: (item[1], item[0]))[0]

    @property
    def block(self) -> int:
        """Hosts of a block, in each leaf that has as many."""
        return self.block_size or power_of_two(self.usual_size)

    def oversubscription(self, leaf: str) -> float | None:
        """Return how much more its hosts can send than a leaf passes upwards; 1: nothing; None: not known."""
        uplink = self.nodes[leaf].uplink_mbps
        if uplink is None or self.host_mbps is None:
            return None
        return max(1.0, self._sizes[leaf] * self.host_mbps / uplink)


def power_of_two(number: int) -> int:
    """Return the largest power of two <= a number >= 1."""
    return 1 << (number.bit_length() - 1)


def _check_names(fabric: Fabric) -> None:
    if not _NAME.fullmatch(fabric.name):
        raise InvalidValueError("fabric", fabric.name, f"a name of {_NAMES_ALLOWED}")
    where = f"fabric {fabric.name}"
    if not 1 <= len(fabric.levels) <= MOST_LEVELS:
        raise InvalidValueError(f"{where}, levels", list(fabric.levels), f"1 to {MOST_LEVELS}")
    for level in fabric.levels:
        if not _LEVEL.fullmatch(level) or fabric.levels.count(level) > 1:
            raise InvalidValueError(
                f"{where}, levels", level, "small letters, digits and '_', each level once"
            )
    for name in fabric.nodes:
        if not _NAME.fullmatch(name):
            raise InvalidValueError(f"{where}, nodes", name, f"names of {_NAMES_ALLOWED}")


def _check_nodes(fabric: Fabric) -> None:
    for node in fabric.nodes.values():
        where = f"fabric {fabric.name}, {node.level} {node.name}"
        if node.level not in fabric.levels:
            raise InvalidValueError(where, node.level, f"levels {', '.join(fabric.levels)}")
        if node.uplink_mbps is not None and node.uplink_mbps < 1:
            raise InvalidValueError(f"{where}, uplink", node.uplink_mbps, ">= 1 Mbit/s")
        place = fabric.levels.index(node.level)
        if place + 1 == len(fabric.levels):
            if node.parent is not None:
                raise InvalidValueError(f"{where}, parent", node.parent, "none, its level is last")
            continue
        above = fabric.levels[place + 1]
        parent = fabric.nodes.get(node.parent or "")
        if parent is None or parent.level != above:
            raise InvalidValueError(f"{where}, parent", node.parent, f"a node of level {above}")


def _check_hosts(fabric: Fabric) -> None:
    where = f"fabric {fabric.name}, hosts"
    if not 1 <= len(fabric.hosts) <= MOST_HOSTS:
        raise InvalidValueError(where, len(fabric.hosts), f"1 to {MOST_HOSTS}")
    for host, leaf in fabric.hosts.items():
        node = fabric.nodes.get(leaf)
        if node is None or node.level != fabric.levels[0]:
            raise InvalidValueError(f"{where}, {host}", leaf, f"a node of level {fabric.levels[0]}")
    filled = set(fabric.hosts.values())
    for node in fabric.nodes.values():
        if node.level == fabric.levels[0] and node.name not in filled:
            raise InvalidValueError(f"fabric {fabric.name}, {node.name}", 0, "1 host or more")


def _check_traits(fabric: Fabric) -> None:
    seen: dict[str, str] = {}
    for leaf in fabric.leafs:
        trait = names.leaf_trait(fabric.name, leaf)
        if trait is None:
            raise InvalidValueError(
                f"fabric {fabric.name}", leaf, "leafs whose names fit in a trait, with the fabric's"
            )
        if seen.setdefault(trait, leaf) != leaf:
            raise InvalidValueError(
                f"fabric {fabric.name}", leaf, f"a name of another trait than leaf {seen[trait]}'s"
            )


def _check_block(fabric: Fabric) -> None:
    size = fabric.block_size
    if size is None:
        return
    where, usual = f"fabric {fabric.name}, block_size", fabric.usual_size
    if not 1 <= size <= usual:
        raise InvalidValueError(where, size, f"1 to {usual}, the hosts of most leafs")
    if 2 * size <= usual and not fabric.nonblocking:
        raise InvalidValueError(
            where, size, f"more than half of {usual} hosts, or a fabric that is nonblocking"
        )
