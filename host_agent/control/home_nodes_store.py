# SPDX-License-Identifier: Apache-2.0
"""The little that a restart cannot read from the host: home nodes of floating servers.

A lost or broken file costs nothing but a fresh decision; a version that is not known is treated so, too.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_VERSION: Final = 1

Homes = Mapping[str, tuple[int, ...]]


def load(path: Path) -> dict[str, tuple[int, ...]]:
    """Return server UUID -> home nodes; empty when there is no usable file."""
    try:
        content: Any = json.loads(path.read_text())
        if content["version"] != _VERSION:
            return {}
        return {uuid: tuple(map(int, nodes)) for uuid, nodes in content["homes"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def save(path: Path, homes: Homes) -> None:
    """Write the file."""
    plain = {uuid: list(homes[uuid]) for uuid in sorted(homes)}
    write_json(path, {"version": _VERSION, "homes": plain})


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file so that a crash leaves the old or the new one, never half of one.

    :raises OSError: it cannot be written
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    new = path.with_suffix(".new")
    with new.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
