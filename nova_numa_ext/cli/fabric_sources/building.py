# SPDX-License-Identifier: Apache-2.0
"""From switches and what hangs on them to a fabric: the levels are those of a tree in which all hosts are as deep."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from placement_traits.errors import InvalidValueError
from placement_traits.fabric import MOST_LEVELS, Fabric, FabricKind, FabricNode

LEVELS: Final = ("leaf", "pod", "spine", "core")
"""The words for levels where a source has none."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One line of a source.

    :param name: of the switch
    :param children: switches below it
    :param hosts: on it
    """

    name: str
    children: Sequence[str] = ()
    hosts: Sequence[str] = ()


def of_hosts(leafs: Iterable[tuple[str, Iterable[str]]], where: str) -> dict[str, str]:
    """Return the leaf of each host.

    :raises InvalidValueError: a host hangs on two
    """
    found: dict[str, str] = {}
    for leaf, hosts in leafs:
        for host in hosts:
            if found.setdefault(host, leaf) != leaf:
                raise InvalidValueError(
                    f"{where}, {leaf}",
                    host,
                    f"hosts that hang on no other leaf; it is on {found[host]}",
                )
    return found


def of_tree(name: str, kind: FabricKind, switches: Sequence[Switch], where: str) -> Fabric:
    """Return the fabric of a tree of switches; one switch on top of all is the fabric itself.

    :raises InvalidValueError: this is no tree, or its leafs are not at one depth
    """
    by_name: dict[str, Switch] = {}
    for switch in switches:
        if by_name.setdefault(switch.name, switch) is not switch:
            raise InvalidValueError(where, switch.name, "each switch once")
    parent_of: dict[str, str] = {}
    for switch in switches:
        for child in switch.children:
            if child not in by_name:
                raise InvalidValueError(f"{where}, {switch.name}", child, "switches that are given")
            if parent_of.setdefault(child, switch.name) != switch.name:
                raise InvalidValueError(
                    f"{where}, {switch.name}",
                    child,
                    f"switches below one other; it is below {parent_of[child]}",
                )
        if bool(switch.children) == bool(switch.hosts):
            raise InvalidValueError(
                where, switch.name, "switches with either switches or hosts below"
            )
    leafs = [switch for switch in switches if switch.hosts]
    paths = {leaf.name: _path(leaf.name, parent_of, where) for leaf in leafs}
    depths = {len(path) for path in paths.values()}
    if len(depths) != 1:
        raise InvalidValueError(where, sorted(depths), "leafs that are all as far below the top")
    depth = depths.pop()
    if depth > 1 and len({path[-1] for path in paths.values()}) == 1:
        depth -= 1
    levels = LEVELS[:depth]
    nodes: dict[str, FabricNode] = {}
    for leaf in leafs:
        path = paths[leaf.name][:depth]
        for at, node in enumerate(path):
            parent = path[at + 1] if at + 1 < depth else None
            nodes.setdefault(node, FabricNode(node, levels[at], parent))
    hosts = of_hosts(((leaf.name, leaf.hosts) for leaf in leafs), where)
    return Fabric(name, kind, levels, nodes, hosts)


def _path(leaf: str, parent_of: Mapping[str, str], where: str) -> list[str]:
    """Return a leaf and the switches above it."""
    found = [leaf]
    while found[-1] in parent_of:
        found.append(parent_of[found[-1]])
        if len(found) > MOST_LEVELS + 1:  # the top may be the fabric itself
            raise InvalidValueError(
                where, leaf, f"at most {MOST_LEVELS} levels above hosts, and no circle"
            )
    return found
