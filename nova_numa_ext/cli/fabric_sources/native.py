# SPDX-License-Identifier: Apache-2.0
"""Our own form of a fabric, as YAML; :file:`etc/numa-ext/fabric.yaml.sample` explains it."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from nova_numa_ext.cli.fabric_sources.building import of_hosts
from nova_numa_ext.cli.fabric_sources.hostlist import expanded
from placement_traits.errors import InvalidValueError, cut
from placement_traits.fabric import Fabric, FabricKind, FabricNode
from placement_traits.plain import Value

_KEYS: Final = frozenset(
    {"name", "kind", "levels", "host_mbps", "block_size", "nonblocking", "nodes"}
)
_NODE_KEYS: Final = frozenset({"level", "parent", "uplink_mbps", "hosts"})
_MOST_CHARACTERS: Final = 10_000_000


def loaded(text: str, where: str) -> Any:
    """Return what a YAML text holds.

    :raises InvalidValueError: it is none, it is too long, or uses aliases
    """
    if len(text) > _MOST_CHARACTERS:
        raise InvalidValueError(where, len(text), f"at most {_MOST_CHARACTERS} characters")
    try:
        if any(isinstance(each, yaml.AliasEvent) for each in yaml.parse(text, yaml.SafeLoader)):
            raise InvalidValueError(where, "an alias", "YAML without aliases")
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidValueError(where, cut(str(error)), "YAML") from error


def read(text: str, where: str) -> Fabric:
    """Return the fabric of a file's text.

    :raises InvalidValueError: it is none
    """
    whole = Value(loaded(text, where), where)
    _check_keys(whole, _KEYS)
    given = whole.members()
    nodes: dict[str, FabricNode] = {}
    hosts: list[tuple[str, list[str]]] = []
    for name, node in whole.member("nodes").members().items():
        _check_keys(node, _NODE_KEYS)
        its = node.members()
        nodes[name] = FabricNode(
            name,
            node.member("level").text(),
            its["parent"].text() if "parent" in its else None,
            its["uplink_mbps"].integer(1) if "uplink_mbps" in its else None,
        )
        if "hosts" in its:
            hosts.append((name, _hosts(its["hosts"])))
    return Fabric(
        whole.member("name").text(),
        _kind(given["kind"]) if "kind" in given else FabricKind.ETHERNET,
        tuple(level.text() for level in whole.member("levels").items()),
        nodes,
        of_hosts(hosts, where),
        given["host_mbps"].integer(1) if "host_mbps" in given else None,
        given["block_size"].integer(1) if "block_size" in given else None,
        given["nonblocking"].flag() if "nonblocking" in given else False,
    )


def written(fabric: Fabric) -> str:
    """Return a fabric as :func:`read` reads it."""
    below: dict[str, list[str]] = {}
    for host, leaf in fabric.hosts.items():
        below.setdefault(leaf, []).append(host)
    nodes = {
        name: {
            "level": node.level,
            **({"parent": node.parent} if node.parent else {}),
            **({"uplink_mbps": node.uplink_mbps} if node.uplink_mbps else {}),
            **({"hosts": below[name]} if name in below else {}),
        }
        for name, node in fabric.nodes.items()
    }
    found = {
        "name": fabric.name,
        "kind": fabric.kind.value,
        "levels": list(fabric.levels),
        **({"host_mbps": fabric.host_mbps} if fabric.host_mbps else {}),
        **({"block_size": fabric.block_size} if fabric.block_size else {}),
        **({"nonblocking": True} if fabric.nonblocking else {}),
        "nodes": nodes,
    }
    return str(yaml.safe_dump(found, sort_keys=False, default_flow_style=None, width=100))


def _hosts(value: Value) -> list[str]:
    parts = [value] if isinstance(value.raw, str) else value.items()
    return [host for part in parts for host in expanded(part.text(), part.where)]


def _kind(value: Value) -> FabricKind:
    try:
        return FabricKind(value.text())
    except ValueError:
        raise value.refused(" or ".join(FabricKind)) from None


def _check_keys(value: Value, allowed: frozenset[str]) -> None:
    if not isinstance(value.raw, Mapping):
        raise value.refused("an object")
    unknown = [key for key in value.raw if key not in allowed]
    if unknown:
        raise InvalidValueError(value.where, unknown[0], f"keys {', '.join(sorted(allowed))}")
