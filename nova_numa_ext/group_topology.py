# SPDX-License-Identifier: Apache-2.0
"""A group's part of the fabric, for schedulers inside its servers: Slurm's files, labels for Kueue, JSON.

Names of leafs and pods are the operator's. With a key each is a hash of key, project, fabric and name instead: servers
of one project see what is near what, in all of their groups, and nothing that two projects could compare.

The operator's command and the job service's API make the same files of it; with the same key the names are the same.
"""

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import yaml

_LABEL: Final = "numa-ext.openstack.org"
_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class CabledServer:
    """A server of a group and the nodes above it.

    :param name: of the server
    :param nodes: its leaf, then the nodes above; empty: its host hangs on no fabric
    """

    name: str
    nodes: tuple[str, ...]


def hashed(
    servers: Sequence[CabledServer], project: str, fabric: str, key: bytes
) -> list[CabledServer]:
    """Return the servers with hashes for the names of nodes.

    :param key: the operator's secret; the same one gives the same names
    """

    return [
        replace(each, nodes=tuple(_hashed("n", key, project, fabric, node) for node in each.nodes))
        for each in servers
    ]


def hashed_fabric(project: str, fabric: str, key: bytes) -> str:
    """Return what stands for a fabric's name beside the hashes of :func:`hashed`."""
    return _hashed("f", key, project, fabric)


def _hashed(first: str, key: bytes, *words: str) -> str:
    """Return letters and digits that begin with a letter, as names of switches and values of labels have to."""
    return first + hmac.new(key, "\0".join(words).encode(), hashlib.sha256).hexdigest()[:_DIGITS]


def as_slurm(servers: Sequence[CabledServer], levels: Sequence[str]) -> str:
    """Return a topology.yaml of type tree; servers on no fabric are left out."""
    del levels
    nodes, children = _tree(servers)
    switches = [{"switch": leaf, "nodes": ",".join(names)} for leaf, names in nodes.items()]
    switches += [{"switch": node, "children": ",".join(c)} for node, c in children.items()]
    tree = {"topology": "numa-ext", "cluster_default": True, "tree": {"switches": switches}}
    return str(yaml.safe_dump([tree], sort_keys=False, width=1_000_000))


def as_slurm_conf(servers: Sequence[CabledServer], levels: Sequence[str]) -> str:
    """Return a topology.conf, for Slurm before it read topology.yaml; servers on no fabric are left out."""
    del levels
    nodes, children = _tree(servers)
    lines = [f"SwitchName={leaf} Nodes={','.join(names)}" for leaf, names in nodes.items()]
    lines += [f"SwitchName={node} Switches={','.join(c)}" for node, c in children.items()]
    return "".join(f"{line}\n" for line in lines)


def _tree(servers: Sequence[CabledServer]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return servers by leaf, and nodes by the node above them, one above all included."""
    top = "fabric"
    while any(top in each.nodes for each in servers):
        top += "_"
    nodes: dict[str, list[str]] = {}
    children: dict[str, list[str]] = {}
    for each in (server for server in servers if server.nodes):
        for below, above in zip(each.nodes, (*each.nodes[1:], top), strict=True):
            found = children.setdefault(above, [])
            if below not in found:
                found.append(below)
        nodes.setdefault(each.nodes[0], []).append(each.name)
    return nodes, children


def as_kueue(servers: Sequence[CabledServer], levels: Sequence[str]) -> str:
    """Return Kubernetes nodes with a label for each level, the levels of Kueue's Topology."""
    found = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": each.name,
                "labels": {
                    f"{_LABEL}/{level}": node
                    for level, node in zip(levels, each.nodes, strict=False)
                },
            },
        }
        for each in servers
    ]
    return str(yaml.safe_dump_all(found, sort_keys=False))


def as_json(servers: Sequence[CabledServer], levels: Sequence[str]) -> str:
    """Return the nodes above each server by level."""
    found = [
        {"server": each.name, **dict(zip(levels, each.nodes, strict=False))} for each in servers
    ]
    return json.dumps(found, indent=2) + "\n"


FORMATS: Final[Mapping[str, Callable[[Sequence[CabledServer], Sequence[str]], str]]] = (
    MappingProxyType(
        {"slurm": as_slurm, "slurm-conf": as_slurm_conf, "kueue": as_kueue, "json": as_json}
    )
)
