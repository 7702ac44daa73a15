# SPDX-License-Identifier: Apache-2.0
"""What ``ibnetdiscover`` prints: switches and adapters with their ports, by GUID, described by their nodes.

::

    Switch  36 "S-0002c90200400300"    # "leaf1" enhanced port 0 lid 1 lmc 0
    [1]     "H-0002c90300001234"[1](2c90300001235)    # "cmp001 HCA-1" lid 4 4xQDR
    [19]    "S-0002c90200400400"[1]    # "spine1" lid 2 4xQDR

A host is named by the first word of its adapter's description. Switches with hosts are leafs; leafs with the same
switches above them are one pod. Hosts with adapters on several leafs (rails) must share all of these with the others
there: the set is their unit.
"""

import re
from typing import Final

from nova_numa_ext.cli.fabric_sources.building import LEVELS
from placement_traits.errors import InvalidValueError
from placement_traits.fabric import Fabric, FabricKind, FabricNode

_SWITCH: Final = re.compile(r'Switch\s+\d+\s+"S-([0-9a-fA-F]+)"\s*(?:#\s*"([^"]*)")?')
_OTHER: Final = re.compile(r"(?:Ca|Rt)\s")
_PORT: Final = re.compile(
    r'\[\d+\](?:\([0-9a-fA-F]+\))?\s+"([SH])-([0-9a-fA-F]+)"\[\d+\][^#]*(?:#\s*"([^"]*)")?'
)
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def read(text: str, name: str, where: str) -> Fabric:
    """Return the fabric that was seen.

    :raises InvalidValueError: it has no leaf, or hosts that share only some of their leafs
    """
    names: dict[str, str] = {}
    above: dict[str, set[str]] = {}
    leafs_of: dict[str, dict[str, None]] = {}  # in order
    switch: str | None = None
    for line in text.splitlines():
        if found := _SWITCH.match(line):
            switch = found[1].lower()
            names[switch] = _UNSAFE.sub("_", found[2] or "").strip("._-")[:100] or f"S-{switch}"
            above.setdefault(switch, set())
        elif _OTHER.match(line):
            switch = None
        elif switch is not None and (found := _PORT.match(line)):
            if found[1] == "S":
                above[switch].add(found[2].lower())
            elif words := (found[3] or "").split():
                leafs_of.setdefault(words[0], {})[switch] = None
    if not leafs_of:
        raise InvalidValueError(where, "no switch with a host", "what ibnetdiscover prints")
    leafs = {leaf for its in leafs_of.values() for leaf in its}
    unit_of = _units(leafs_of, names, where)
    pods: dict[frozenset[str], str] = {}
    nodes: dict[str, FabricNode] = {}
    for host, its in leafs_of.items():
        upper = frozenset(up for leaf in its for up in above[leaf] - leafs)
        pod = pods.setdefault(upper, f"pod-{len(pods) + 1}")
        nodes.setdefault(unit_of[host], FabricNode(unit_of[host], LEVELS[0], pod))
    nodes = {**{pod: FabricNode(pod, LEVELS[1]) for pod in pods.values()}, **nodes}
    return Fabric(name, FabricKind.INFINIBAND, LEVELS[:2], nodes, unit_of)


def _units(
    leafs_of: dict[str, dict[str, None]], names: dict[str, str], where: str
) -> dict[str, str]:
    """Return the unit of each host: its leaf, or the set of its leafs."""
    sets = {host: frozenset(its) for host, its in leafs_of.items()}
    first: dict[str, tuple[str, frozenset[str]]] = {}
    for host, its in sets.items():
        for leaf in its:
            other, others = first.setdefault(leaf, (host, its))
            if others != its:
                raise InvalidValueError(
                    f"{where}, {names[leaf]}",
                    f"{host} on {_listed(its, names)}",
                    f"the leafs of {other}, which hangs there, too: {_listed(others, names)}",
                )
    found = {}
    number_of: dict[frozenset[str], int] = {}
    for host, its in sets.items():
        if len(its) == 1:
            found[host] = names[next(iter(its))]
        else:
            found[host] = f"su-{number_of.setdefault(its, len(number_of) + 1)}"
    return found


def _listed(leafs: frozenset[str], names: dict[str, str]) -> str:
    return " and ".join(sorted(names[leaf] for leaf in leafs))
