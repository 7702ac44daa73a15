# SPDX-License-Identifier: Apache-2.0
"""The little that a restart cannot read from the host: home nodes of floating servers.

A lost or broken file costs nothing but a fresh decision.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from placement_traits.json_store import JsonStore
from placement_traits.plain import Value

_VERSION: Final = 2

HomeNodes = dict[str, tuple[int, ...]]
"""Server UUID -> home nodes."""


def store(path: Path) -> JsonStore[HomeNodes]:
    """Return the file."""
    return JsonStore(path, _VERSION, _decode, _encode, renamed={"homes": "home_nodes"})


def _decode(found: Value) -> HomeNodes:
    home_nodes = found.member("home_nodes").members()
    return {
        uuid: tuple(node.integer() for node in nodes.items()) for uuid, nodes in home_nodes.items()
    }


def _encode(home_nodes: HomeNodes) -> Mapping[str, Any]:
    return {"home_nodes": {uuid: list(home_nodes[uuid]) for uuid in sorted(home_nodes)}}
