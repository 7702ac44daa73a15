# SPDX-License-Identifier: Apache-2.0
"""Slurm's topologies of types tree and block; LinkSpeed and block sizes are not used.

``topology.conf``: lines ``SwitchName=s1 Nodes=n[1-16]``, ``SwitchName=top Switches=s[1-2]`` or
``BlockName=b1 Nodes=n[1-16]``. ``topology.yaml`` (Slurm 25.05): a list of topologies, of which the first one with a
tree or with blocks is taken.
"""

import re
from collections.abc import Iterator
from typing import Final

from nova_numa_ext.cli.fabric_sources.building import Switch, of_tree
from nova_numa_ext.cli.fabric_sources.hostlist import expanded
from nova_numa_ext.cli.fabric_sources.native import loaded
from placement_traits.errors import InvalidValueError
from placement_traits.fabric import Fabric, FabricKind
from placement_traits.plain import Value

_PAIR: Final = re.compile(r"(\w+)\s*=\s*(\S+)")


def read_conf(text: str, name: str, kind: FabricKind, where: str) -> Fabric:
    """Return the fabric of a ``topology.conf``.

    :raises InvalidValueError: it is none
    """
    switches = []
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        place = f"{where}:{number}"
        rest = line.partition("#")[0].strip()
        given = {key.lower(): value for key, value in _PAIR.findall(rest)}
        own = given.get("switchname", given.get("blockname"))
        if not rest or (own is None and "blocksizes" in given):
            continue
        if own is None or ("nodes" not in given and "switches" not in given):
            raise InvalidValueError(
                place, rest, "SwitchName= or BlockName= with Nodes= or Switches="
            )
        switches.append(_switch(own, given.get("switches"), given.get("nodes"), place))
    return of_tree(name, kind, switches, where)


def read_yaml(text: str, name: str, kind: FabricKind, where: str) -> Fabric:
    """Return the fabric of a ``topology.yaml``.

    :raises InvalidValueError: it is none
    """
    for topology in Value(loaded(text, where), where).items():
        found = list(_switches(topology))
        if found:
            return of_tree(name, kind, found, where)
    raise InvalidValueError(where, "no topology of these", "a topology with tree: or block:")


def _switches(topology: Value) -> Iterator[Switch]:
    given = topology.members()
    if "tree" in given:
        for one in given["tree"].member("switches").items():
            its = one.members()
            yield _switch(
                one.member("switch").text(), _text(its, "children"), _text(its, "nodes"), one.where
            )
    elif "block" in given:
        for one in given["block"].member("blocks").items():
            yield _switch(one.member("block").text(), None, one.member("nodes").text(), one.where)


def _text(members: dict[str, Value], key: str) -> str | None:
    return members[key].text() if key in members else None


def _switch(name: str, children: str | None, hosts: str | None, where: str) -> Switch:
    return Switch(
        name,
        expanded(children, where) if children else (),
        expanded(hosts, where) if hosts else (),
    )
