# SPDX-License-Identifier: Apache-2.0
"""The name under which this host is published, for withdrawing its tiers while neither agent nor libvirt answers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from placement_traits.json_store import JsonStore
from placement_traits.plain import Value

_VERSION: Final = 1


def store(path: Path) -> JsonStore[str]:
    """Return the file."""
    return JsonStore(path, _VERSION, _decode, _encode)


def _decode(found: Value) -> str:
    return found.member("host").text()


def _encode(host: str) -> Mapping[str, Any]:
    return {"host": host}
